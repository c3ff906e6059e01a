"""A Container as a `docker run` command that can be copied."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from toolkit.core.container import Container, Mount
from toolkit.core.engines import DOCKER

_HEAD = """\
#!/bin/sh
# Run this script on {host} after `toolkit up --prepare`, which sends image, keys and configurations.
# Then run `toolkit up`, which tests that main reaches all workers. `toolkit down` removes the container.
# To change the container, change hosts.yaml and render the script again. The label toolkit.digest identifies
# the settings of the container.
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
