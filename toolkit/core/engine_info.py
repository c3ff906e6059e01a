"""What an engine says about itself, in docker's words whichever it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolkit.core.engines import DOCKER, PODMAN


def parse_info(text: str) -> dict[str, Any]:
    """Return the object that ``info --format '{{json .}}'`` printed; empty when there is none.

    That of Podman is turned into docker's (https://docs.docker.com/reference/api/engine/, SystemInfo), as far
    as anybody here asks for it; ``Engine`` says which it was.
    """
    for line in text.splitlines():
        if line.startswith("{"):
            info: dict[str, Any] = json.loads(line)
            return _as_docker(info) if "store" in info and "host" in info else {**info, "Engine": DOCKER}
    return {}


def _as_docker(info: Mapping[str, Any]) -> dict[str, Any]:
    host, store = info["host"], info["store"]
    security = host.get("security") or {}
    options = [f"name={name}" for name in ("rootless", "selinux") if security.get(f"{name}Enabled")]
    options += ["name=rootless"] if security.get("rootless") else []
    return {
        "Engine": PODMAN,
        "ServerVersion": (info.get("version") or {}).get("Version", ""),
        "Driver": store.get("graphDriverName", ""),
        "DriverStatus": [],
        "DockerRootDir": store.get("graphRoot", ""),
        "SecurityOptions": options,
        "DefaultRuntime": (host.get("ociRuntime") or {}).get("name", ""),
        "LoggingDriver": host.get("logDriver", ""),
        "CgroupDriver": host.get("cgroupManager", ""),
        "CgroupVersion": str(host.get("cgroupVersion", "")).removeprefix("v"),
        "Name": host.get("hostname", ""),
    }
