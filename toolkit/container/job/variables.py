"""The variables of a job, secrets among them: kept in the memory of its hosts, never on a disk.

The client that starts a supervisor writes all variables to its standard input. The supervisor sends each
host's part over the lease of that host. lease.py keeps the part in an unnamed file in the container's memory,
and creates a symbolic link by which rank.py opens that file. The kernel frees it with the process of the
lease, even if that is killed.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, cast

from toolkit.container.conventions import fail, in_memory, job_folder
from toolkit.container.job_file import Job
from toolkit.protocol.outcomes import EXIT_NO_INPUT

# The same time as main waits for the first answer of a lease, which stores the variables first.
ARRIVE_S = 20.0
LOOK_S = 0.05


class Variables(TypedDict):
    """The variables of the ranks of one host."""

    env: dict[str, str]  # of the hosts file: a host's own variables override those of all hosts
    override: dict[str, str]  # of the command line
    token: str  # authenticates a launcher's own daemons


class AllVariables(Variables):
    """The variables of a job, as its supervisor receives them."""

    hosts: dict[str, dict[str, str]]  # the variables of single hosts


def receive() -> AllVariables:
    """Read the variables of a job from standard input, to its end.

    Raises:
        ValueError: the input is incomplete.
    """
    data = b""
    while more := os.read(0, 1 << 16):
        data += more
    if not data.endswith(b"\n"):
        raise ValueError("incomplete")
    return cast(AllVariables, json.loads(data))


def part_of(variables: AllVariables, host: str) -> Variables:
    """Return the variables of the ranks of one host."""
    env = {**variables["env"], **variables["hosts"].get(host, {})}
    return {"env": env, "override": variables["override"], "token": variables["token"]}


def keep(folder: Path, variables: Variables) -> None:
    """Keep a host's variables in memory while this process lives; the token also as a separate file.

    Args:
        folder: the job's folder.

    Raises:
        OSError: the container has no /dev/shm, or no room in it.
    """
    if variables["token"]:
        _hold(folder, token_path(folder), variables["token"].encode())
    # Last, so that a process that finds the variables also finds the token.
    _hold(folder, _link(folder), json.dumps(variables).encode())


def _hold(folder: Path, link: Path, data: bytes) -> None:
    """Keep data in an unnamed file, and create a link to it."""
    if link.parent == folder:
        raise OSError(errno.ENODEV, "/dev/shm is not writable")
    path = link.with_name(f"{link.name}.{os.urandom(4).hex()}")
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    path.unlink()  # before anything is written: no crash leaves a value on disk
    while data:
        data = data[os.write(file, data) :]
    link.unlink(missing_ok=True)  # left by a killed lease
    link.symlink_to(f"/proc/{os.getpid()}/fd/{file}")


def kept(folder: Path) -> Variables | None:
    """Return the variables of this host, None if they are not in its memory."""
    try:
        return cast(Variables, json.loads(_link(folder).read_bytes()))
    except (OSError, ValueError):
        return None


def forget(folder: Path) -> None:
    """Remove the links to a job's variables, so that ranks cannot find them any more."""
    for link in (_link(folder), token_path(folder)):
        with suppress(OSError):
            link.unlink()


def require(job: Job, host: str) -> Variables:
    """Return the variables of this host's ranks.

    They arrive through the host's lease, which starts in parallel, so this function waits. It exits with
    EXIT_NO_INPUT if the job has variables and they do not arrive.
    """
    if not job["variables"]:
        return {"env": {}, "override": {}, "token": ""}
    folder = job_folder(job["id"])
    until = time.monotonic() + ARRIVE_S
    while (found := kept(folder)) is None:
        if time.monotonic() > until:
            fail(
                EXIT_NO_INPUT,
                f"{host}: the variables of job {job['id']} are not in the memory of the container, "
                "probably because the container was restarted or the lease process was killed; "
                "run the job again",
            )
        time.sleep(LOOK_S)
    return found


def token_path(folder: Path) -> Path:
    """Return the path at which a launcher's daemons read the job's token."""
    return in_memory(folder, "token")


def _link(folder: Path) -> Path:
    return in_memory(folder, "variables")
