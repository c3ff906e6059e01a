"""One container as a value, and as a `docker run` command that can be copied."""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from toolkit.core.engines import DOCKER
from toolkit.protocol.names import LABEL_DIGEST, LABEL_VERSION

# Labels that describe a container without an effect on it.
_REMARKS = (LABEL_DIGEST, LABEL_VERSION)

# Executes its arguments. In place of the image's ENTRYPOINT, which can print a banner into the output of a
# program, or start another program.
ENTRYPOINT = "env"

# Options of every container that runs one program of an image: only what the program needs, with a limit that
# stops fork bombs.
CONFINED = (
    *("--init", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--pids-limit", "4096", "--entrypoint", ENTRYPOINT),
)


@dataclass(frozen=True)
class Mount:
    """A bind mount: ``source`` on the host, ``target`` in the container, both absolute."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Ulimit:
    """A resource limit; -1 means unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True)
class Container:
    """All settings with which a container starts.

    The code that builds the value sorts pairs, so that equal containers are equal values.

    Args:
        image: a reference to one content digest (see ``toolkit.core.image``).
        entrypoint: the program that receives ``argv`` in place of the image's ENTRYPOINT; empty to keep that.
        user: ``uid:gid`` of the processes.
        groups: supplementary group ids.
        gpus: for ``--gpus``: empty for none, ``all``, or a comma-separated list of indexes or UUIDs.
        cdi: devices by their qualified CDI names, such as ``nvidia.com/gpu=0``.
        shm_bytes: size of /dev/shm in bytes.
        pids: the greatest number of processes and threads.
        userns: for ``--userns``: how the engine maps users; empty for the engine's default.
        stop_seconds: time between SIGTERM and SIGKILL when the engine stops it.
    """

    name: str
    hostname: str
    image: str
    argv: tuple[str, ...]
    user: str
    entrypoint: str = ""
    groups: tuple[int, ...] = ()
    workdir: str = "/"
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    gpus: str = ""
    cdi: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    shm_bytes: int = 0
    ulimits: tuple[Ulimit, ...] = ()
    cap_drop: tuple[str, ...] = ("ALL",)
    cap_add: tuple[str, ...] = ()
    security: tuple[str, ...] = ("no-new-privileges",)
    pids: int = 0
    network: str = "host"
    userns: str = ""
    init: bool = True
    stop_seconds: int = 10

    def digest(self) -> str:
        """Return 16 hexadecimal digits that change if, and only if, the container must be recreated.

        A new field of this class does not change the digest of a container in which the field is empty.
        """
        return self._digest

    # A plan uses the digest of each container several times.
    @functools.cached_property
    def _digest(self) -> str:
        content = without_empty(self)
        content["labels"] = [list(pair) for pair in self.labels if pair[0] not in _REMARKS]
        if not content["labels"]:
            del content["labels"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def labelled(self) -> Container:
        """Return the container with its own digest among its labels."""
        others = tuple(p for p in self.labels if p[0] != LABEL_DIGEST)
        labelled = replace(self, labels=tuple(sorted((*others, (LABEL_DIGEST, self.digest())))))
        vars(labelled)["_digest"] = self._digest  # the same, because this label has no effect
        return labelled


def without_empty(value: Any) -> Any:
    """Return the value without empty fields, so that a new empty field does not change the digest."""
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, (list, tuple)):
        return [without_empty(inner) for inner in value]
    if is_dataclass(value):
        given = ((name, getattr(value, name)) for name in value.__dataclass_fields__)
        return {name: without_empty(inner) for name, inner in given if inner}
    if isinstance(value, dict):
        return {name: without_empty(inner) for name, inner in value.items() if inner}
    return value


_HEAD = """\
#!/bin/sh
# Run this script on {host} after `toolkit up --prepare`, which provides the image and configuration files.
# Then run `toolkit up`. With transport: ssh, `toolkit up` tests the SSH logins from the main container.
# `toolkit down` removes the container.
# To change the container, change hosts.yaml and render the script again.
set -eu
"""


def docker_run_args(container: Container) -> tuple[str, ...]:
    """Return the argv that starts the container in the background."""
    args = ["docker", "run", "--detach", "--name", container.name, "--hostname", container.hostname]
    args += ["--network", container.network]
    if container.init:
        args += ["--init"]  # an sshd or a launcher as PID 1 would leave dead children as zombies
    if container.userns:
        args += ["--userns", container.userns]
    if container.entrypoint:
        args += ["--entrypoint", container.entrypoint]
    args += ["--user", container.user]
    for group in container.groups:
        args += ["--group-add", str(group)]
    args += ["--workdir", container.workdir]
    for capability in container.cap_drop:
        args += ["--cap-drop", capability]
    for capability in container.cap_add:
        args += ["--cap-add", capability]
    for option in container.security:
        args += ["--security-opt", option]
    if container.pids:
        args += ["--pids-limit", str(container.pids)]  # a fork bomb ends in the container
    if container.shm_bytes:
        args += [
            "--shm-size",
            str(container.shm_bytes),
        ]  # 64 MiB by default: too little for NCCL and data loaders
    for limit in container.ulimits:
        args += ["--ulimit", f"{limit.name}={limit.soft}:{limit.hard}"]
    args += gpu_args(container.gpus, container.cdi)
    for device in container.devices:
        args += ["--device", device]
    args += ["--stop-timeout", str(container.stop_seconds)]
    for name, value in container.env:
        args += ["--env", f"{name}={value}"]
    for mount in container.mounts:
        args += ["--mount", mount_argument(mount)]
    for name, value in container.labels:
        args += ["--label", f"{name}={value}"]
    return (*args, container.image, *container.argv)


def mount_argument(mount: Mount) -> str:
    """Return the value of ``--mount``, which Docker reads as a line of CSV."""
    cells = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    cells += ["readonly"] if mount.read_only else []
    return ",".join('"' + c.replace('"', '""') + '"' if {",", '"'} & set(c) else c for c in cells)


def gpu_args(gpus: str, cdi: Sequence[str]) -> list[str]:
    """Return the options that give GPUs to a container; both arguments as in ``Container``."""
    args = [token for name in cdi for token in ("--device", name)]
    if gpus:
        # The quotes are for docker's CSV reader, for which a comma would begin another option.
        args += ["--gpus", gpus if gpus == "all" else f'"device={gpus}"']
    return args


def docker_run_script(container: Container, host: str = "", engine: str = DOCKER) -> str:
    """Return a shell script with one option of `docker run` per line, which can be edited.

    Args:
        host: the host of the script, if it is not the container's hostname.
        engine: the engine's command on the host.
    """
    args = (engine, *docker_run_args(container)[1:])
    command = len(args) - len(container.argv) - 1
    lines: list[str] = []
    for token in args[:command]:
        if token.startswith("--") or not lines:
            lines.append(shlex.quote(token))
        else:
            lines[-1] += " " + shlex.quote(token)
    lines.append(shlex.join(args[command:]))
    head = _HEAD.format(host=host or container.hostname)
    return head + "exec " + " \\\n    ".join(lines) + "\n"
