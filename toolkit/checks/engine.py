"""Checks of the container engine: present, accessible, new enough, and configured for jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks.model import Check, Probe, Scene, Seen, error, unchecked, warning
from toolkit.cluster.ownership import foreign
from toolkit.core.engines import PODMAN, parse_info
from toolkit.core.finding import Finding
from toolkit.errors import UnsafeState
from toolkit.protocol.decode import DecodeError
from toolkit.protocol.engine import EngineInfo

# The oldest engine that the practice cluster tries; `--gpus` came with 19.03, cgroup v2 with 20.10.
OLDEST_ENGINE = (20, 10)
# Debian 12's; the practice cluster tries 5.4.
OLDEST_PODMAN = (4, 3)

INFO = Probe("docker")
# Only systemd-logind stops containers at a logout. Without it, the probe prints nothing. Nor does it with the
# default data root, which a rootless engine cannot use.
LINGER = Probe(
    "linger",
    '[ "$root" = /var/lib/docker ] || ! command -v loginctl >/dev/null ||'
    ' timeout -s KILL 3 loginctl show-user "$(id -un)" -p Linger 2>/dev/null',
)
# The end of a fix that changes the configuration of the Docker engine.
RESTART = "then: sudo systemctl restart docker"
_DAEMON, _CONTAINERS_CONF = "/etc/docker/daemon.json", "~/.config/containers/containers.conf"
_DOCKER = ("docker engine", "docs.docker.com/engine/install/")
# The reason for a check without a result; the check `docker` prints the cause.
UNUSABLE = "toolkit cannot use the container engine [docker]"
# Runtimes that toolkit was tested with, and the wrapper that NVIDIA puts around runc.
_RUNTIMES = ("runc", "crun", "nvidia")
# Drivers that copy whole layers or loop-mount files: an image of 10 GB takes hours or fails.
_SLOW_DRIVERS = ("vfs", "devicemapper", "aufs")


def engine_info(seen: Seen, probe: Probe = INFO) -> EngineInfo:
    """Return the engine's description of itself; without a version if the engine did not answer."""
    try:
        info = parse_info(seen.answer(probe))
    except DecodeError:  # the error of the host names the field
        info = None
    return info if info and info.version else EngineInfo()


def _usable(seen: Seen, scene: Scene) -> Iterator[Finding]:
    # Another check covers the state directory.
    if seen.error is not None and not isinstance(seen.error, UnsafeState):
        yield error(seen.error.what, seen.error.fix)


def _new_enough(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    version = seen.facts.docker
    found = re.match(r"([0-9]{1,6})\.([0-9]{1,6})", version)
    if found is None:
        what = f"toolkit cannot parse the version {version!r} of the engine"
        yield unchecked(what if version else UNUSABLE)
        return
    podman = seen.facts.engine == PODMAN
    least = OLDEST_PODMAN if podman else OLDEST_ENGINE
    if (int(found[1]), int(found[2])) < least:
        oldest = ".".join(map(str, least))
        name, where = ("podman", "podman.io/docs/installation") if podman else _DOCKER
        yield error(
            f"toolkit requires {name} {oldest} or newer, but the host has {version}",
            f"on {seen.host}: install {name} {oldest} or newer: https://{where}",
        )


def _driver(seen: Seen, scene: Scene) -> Iterator[Finding]:
    info = engine_info(seen)
    driver = info.driver
    if not driver:
        yield unchecked("the container engine did not report its storage driver")
    elif driver in _SLOW_DRIVERS and info.engine == PODMAN:
        what = f"podman uses the storage driver {driver}, which is slower than overlay"
        # Podman requires a reset before the driver changes; a later reset might not remove the old storage.
        fix = (
            f"on {seen.host}: podman system reset  # removes all containers, images and volumes of the SSH "
            'user; then set driver = "overlay" under [storage] in ~/.config/containers/storage.conf'
        )
        yield warning(what, fix)
    elif driver in _SLOW_DRIVERS:
        what = f"docker uses the storage driver {driver}, which is slower than overlay2"
        fix = f'on {seen.host}: add {{"storage-driver": "overlay2"}} to {_DAEMON}, {RESTART}'
        yield warning(what, fix)


def _remapped(seen: Seen, scene: Scene) -> Iterator[Finding]:
    info = engine_info(seen)
    options = " ".join(info.security_options or ())
    if not info.version:
        yield unchecked(UNUSABLE)
    elif "name=userns" in options:
        what = (
            "docker maps user IDs (userns-remap), so ranks cannot read or write files with the permissions "
            "of the SSH user"
        )
        yield error(what, f"on {seen.host}: remove userns-remap from {_DAEMON}, {RESTART}")
    elif "name=rootless" in options and info.engine != PODMAN:
        # Newer engines offer the network of the host, but still map the user IDs.
        what = (
            "docker runs in rootless mode and maps user IDs, so ranks cannot read or write files with the "
            "permissions of the SSH user"
        )
        fix = f"on {seen.host}: docker context use default  # selects the engine that runs as root"
        yield error(what, fix)


def _lasting(seen: Seen, scene: Scene) -> Iterator[Finding]:
    rootless = "name=rootless" in " ".join(engine_info(seen).security_options or ())
    if rootless and seen.answer(LINGER) == "Linger=no":
        assert seen.facts is not None
        what = f"systemd stops the containers of the rootless engine when user {seen.facts.user} logs out"
        yield warning(what, f"on {seen.host}: sudo loginctl enable-linger {seen.facts.user}")


def _own(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    info = engine_info(seen)
    if not info.version:
        yield unchecked(UNUSABLE)
    elif info.system == "Docker Desktop":
        what = "the host uses Docker Desktop, whose containers run in a virtual machine with its own network"
        yield error(what, f"on {seen.host}: install Docker Engine: https://docs.docker.com/engine/install/")
    elif info.name and info.name != seen.facts.hostname:
        what = f"docker commands reach the engine of host {info.name} instead of {seen.facts.hostname}"
        fix = f"on {seen.host}: docker context use default  # and remove DOCKER_HOST from ~/.profile"
        yield error(what, fix)


def _logs(seen: Seen, scene: Scene) -> Iterator[Finding]:
    info = engine_info(seen)
    driver = info.logging_driver
    if not driver:
        yield unchecked("the container engine did not report its log driver")
    # Since 20.10 an engine keeps a readable copy with every logging driver except "none".
    elif driver == "none":
        logs = "toolkit reads the logs of services and, with transport: ssh, of worker containers"
        fix = f'remove "log-driver": "none" from {_DAEMON}, {RESTART}'
        fix = f'remove log_driver = "none" from {_CONTAINERS_CONF}' if info.engine == PODMAN else fix
        yield error(f"{info.engine} keeps no container logs, but {logs}", f"on {seen.host}: {fix}")


def _runtime(seen: Seen, scene: Scene) -> Iterator[Finding]:
    info = engine_info(seen)
    runtime = info.default_runtime
    if not runtime:
        yield unchecked("the container engine did not report its runtime")
    elif runtime not in _RUNTIMES:
        what = f"toolkit has not been tested with the container runtime {runtime}"
        fix = f'remove "default-runtime" from {_DAEMON}, {RESTART}'
        fix = f'remove the key "runtime" from {_CONTAINERS_CONF}' if info.engine == PODMAN else fix
        yield warning(what, f"on {seen.host}: {fix}")


def _confined(seen: Seen, scene: Scene) -> Iterator[Finding]:
    info = engine_info(seen)
    options = " ".join(info.security_options or ())
    if not info.version:
        yield unchecked(UNUSABLE)
    elif info.root.startswith("/var/snap/"):
        what = (
            "docker is installed as a snap package, which cannot read hidden folders or most folders "
            "outside /home"
        )
        yield warning(what, f"on {seen.host}: sudo snap remove docker  # then install docker.io or docker-ce")
    elif "name=selinux" in options:
        what = (
            "SELinux usually allows containers without GPUs to access only folders that have the label "
            "container_file_t"
        )
        fix = "sudo chcon -Rt container_file_t FOLDER  # FOLDER: each mount source, and the state directory"
        yield warning(what, f"on {seen.host}: {fix}")


def _foreign(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    for container, what, fix in foreign(scene.inventory.cluster, seen.facts):
        yield error(what, fix, subject=container.name)


CHECKS = (
    Check("docker", "the SSH user can use the container engine", host=_usable),
    Check("docker-version", "the container engine is new enough", host=_new_enough),
    Check("docker-storage", "the storage driver of the engine is fast enough", host=_driver),
    Check("docker-users", "containers use the user IDs of the host", host=_remapped),
    Check(
        "docker-linger",
        "containers continue to run after the SSH user logs out",
        host=_lasting,
        probes=(LINGER,),
    ),
    Check("docker-here", "the container engine runs on this host", host=_own),
    Check("docker-logs", "toolkit can read container logs", host=_logs),
    Check("docker-runtime", "toolkit was tested with the container runtime", host=_runtime),
    Check("docker-confined", "containers can read mounted folders", host=_confined),
    Check("cluster-name", "no cluster of another user has the same name", host=_foreign),
)
