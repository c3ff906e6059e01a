"""What an engine says about itself, in docker's words whichever it is."""

from __future__ import annotations

import functools
from dataclasses import replace

from toolkit.core.engines import DOCKER, PODMAN
from toolkit.protocol.decode import decode, load_json
from toolkit.protocol.engine import EngineInfo, PodmanInfo, PodmanSecurity


@functools.lru_cache(maxsize=1024)  # a dozen checks of a host ask
def parse_info(text: str) -> EngineInfo | None:
    """Return the object that ``info --format '{{json .}}'`` printed; None when there is none.

    That of Podman is turned into docker's, as far as anybody here asks for it.

    Raises:
        DecodeError: the object is not one of an engine.
    """
    for line in text.split("\n"):
        if line.startswith("{"):
            info = load_json(line)
            if "store" in info and "host" in info:
                return _as_docker(decode(PodmanInfo, info))
            return replace(decode(EngineInfo, info), engine=DOCKER)
    return None


def _as_docker(info: PodmanInfo) -> EngineInfo:
    host, security = info.host, info.host.security or PodmanSecurity()
    enabled = (("rootless", security.rootless_enabled), ("selinux", security.selinux_enabled))
    options = [f"name={name}" for name, is_on in enabled if is_on]
    options += ["name=rootless"] if security.rootless else []
    return EngineInfo(
        engine=PODMAN,
        version=info.version.version if info.version else "",
        driver=info.store.driver,
        driver_status=(),
        root=info.store.root,
        security_options=tuple(options),
        default_runtime=host.runtime.name if host.runtime else "",
        logging_driver=host.log_driver,
        cgroup_driver=host.cgroup_manager,
        cgroup_version=host.cgroup_version.removeprefix("v"),
        name=host.hostname,
    )
