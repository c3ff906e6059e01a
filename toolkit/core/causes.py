"""What the words of a failed command on a host mean: the cause behind them, and its cure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Cause:
    """Why a command failed.

    Args:
        what: the cause in a few words, to stand before the command's own.
        fix: what to do about it, on the host or here.
    """

    what: str
    fix: str


class Unwritable(Enum):
    """The kernel's messages for a file that cannot be written."""

    QUOTA = "disk quota exceeded"
    READ_ONLY = "read-only file system"
    FULL = "no space left on device"


# Words of docker (client, engine, runtimes) and of the system, in the order in which they are looked for;
# HOST, USER and groups of the pattern stand for what they name.
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"permission denied while trying to connect to the docker|"
        r"dial unix \S*docker\S*: connect: permission denied",
        "user USER may not use docker",
        "on HOST: sudo usermod -aG docker USER, then log in anew",
    ),
    (
        r"cannot connect to the docker daemon|is the docker daemon running|"
        r"error during connect: .*docker|dial unix \S*docker\S*: ",
        "the docker engine is not running",
        "on HOST: sudo systemctl start docker",
    ),
    (
        r"docker: (command )?not found|failed to run command \S?docker\S?: |unknown command: docker",
        "docker is not installed",
        "https://docs.docker.com/engine/install/; or put it on the PATH of a login without a terminal",
    ),
    (
        r"bind source path does not exist: (?P<path>[^\n|]+)",
        "a folder to be mounted is not there",
        "on HOST: mkdir -p {path}, or correct mounts: in the hosts file",
    ),
    (
        r"invalid mount config for type \"bind\": (l?stat|mkdir) (?P<path>[^\n|]+): permission denied|"
        r"mounting \"(?P<path2>[^\"]+)\" to .*: permission denied",
        "the docker engine may not enter a folder to be mounted, as on NFS with root_squash",
        "let others enter the folders above it, or have it on a local disk; for the toolkit's own state:"
        " state_dir: in the hosts file",
    ),
    (
        r"could not select device driver .*gpu|unknown or invalid runtime name: nvidia|"
        r"nvidia-container-cli: .*(library|driver) .*",
        "docker there cannot give GPUs to containers",
        "on HOST: install the NVIDIA container toolkit, then sudo nvidia-ctk runtime configure"
        " --runtime=docker and restart docker",
    ),
    (
        r"toolkit\.local|no such image",
        "the image has gone from the host",
        "run the same command again: it sends the image anew",
    ),
    (
        r"exec: \"?(?P<program>[^\":]+)\"?: (executable file not found|stat .*: no such file)",
        "the image lacks {program}",
        "an image made by toolkit image build, or one with python3, openssh-client and openssh-server in it;"
        " without the last two: transport: exec in hosts.yaml",
    ),
    (
        r"cannot allocate memory|out of memory",
        "the host is out of memory",
        "on HOST: free -h; docker stats",
    ),
    (
        r"error setting rlimit|setting rlimits? .*operation not permitted",
        "the docker engine there may not raise limits",
        "on HOST: give the engine CAP_SYS_RESOURCE, or remove the limit from the hosts file",
    ),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), what, fix) for pattern, what, fix in _CAUSES)

_DENIED = "Permission denied"  # the kernel's message
_PATH = re.compile(r"(?<![\w.])/[^\s:'\"‘’|]+")
# What stands around docker's own words and says nothing.
_NOISE = re.compile(r"^(docker: )?Error response from daemon: |^docker: (?=[A-Z])")
_HINT = re.compile(r"^(See|Run) 'docker .* --help'|^time=\"|^WARNING: ")


def cause_of(said: str, host: str, user: str = "") -> Cause | None:
    """Return the cause that the words of a command name, None when they name none that is known.

    Args:
        said: the command's output.
        host: name of the host, for the fix.
        user: the ssh user there.
    """
    for pattern, what, fix in _COMPILED:
        if match := pattern.search(said):
            # docker run puts a full stop behind the engine's words.
            found = {k.rstrip("2"): v.strip().removesuffix(".") for k, v in match.groupdict().items() if v}
            groups = found | {k: shlex.quote(v) for k, v in found.items() if k == "path"}
            what = what.replace("user USER", f"user {user}" if user else "the ssh user")
            fix = fix.replace("USER", user or "$USER").replace("HOST", host)
            return Cause(_fill(what, groups), _fill(fix, groups))
    return None


def _fill(text: str, groups: dict[str, str]) -> str:
    for name, value in groups.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def why_unwritable(said: str) -> Unwritable | None:
    """Return why a command could not write, None if its output names no such reason."""
    low = said.lower()
    return next((reason for reason in Unwritable if reason.value in low), None)


def is_denied(said: str) -> bool:
    """Return whether a command failed because its user lacks a permission."""
    return _DENIED in said


def named_paths(said: str) -> tuple[str, ...]:
    """Return the absolute paths in the lines of a command's output that say why it could not write."""
    lines = [line for line in said.splitlines() if why_unwritable(line)]
    return tuple(dict.fromkeys(path for line in lines for path in _PATH.findall(line)))


def words_of(said: str) -> str:
    """Return the end of a command's output as one line, without what docker puts around every message."""
    lines = [line.strip() for line in said.splitlines()]
    kept = [_NOISE.sub("", line) for line in lines if line and not _HINT.search(line)]
    return " | ".join((kept or [line for line in lines if line])[-4:])
