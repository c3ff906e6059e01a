"""Known causes of failed commands on a host, recognized by the output, each with a fix."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Cause:
    """The cause of a failed command.

    Args:
        what: the cause in a few words, printed in front of the command's output.
        fix: a command to paste, on the host if it begins with ``on HOST:``; a shell comment explains it.
    """

    what: str
    fix: str


class Unwritable(Enum):
    """The kernel's messages for a file that cannot be written."""

    QUOTA = "disk quota exceeded"
    READ_ONLY = "read-only file system"
    FULL = "no space left on device"


# Messages of Docker (client, engine, runtimes) and of the operating system, in the order in which they are
# searched for. HOST, USER and the named groups of the pattern are replaced in the cause and in the fix.
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"permission denied while trying to connect to the docker|"
        r"dial unix \S*docker\S*: connect: permission denied",
        "user USER cannot use docker",
        "on HOST: sudo usermod -aG docker USER  # then log in again",
    ),
    (
        r"cannot connect to the docker daemon|is the docker daemon running|"
        r"error during connect: .*docker|dial unix \S*docker\S*: ",
        "the docker engine is not running",
        "on HOST: sudo systemctl start docker",
    ),
    (
        r"docker: (command )?not found|failed to run command \S?docker\S?: |unknown command: docker",
        "docker is not on the PATH",
        "on HOST: bash -lc 'command -v docker'  # if the output is a path, add its folder to the PATH of"
        " SSH sessions; otherwise install Docker: https://docs.docker.com/engine/install/",
    ),
    (
        r"bind source path does not exist: (?P<path>[^\n|]+)",
        "the source of a mount does not exist",
        "on HOST: mkdir -p {path}  # or correct the source under mounts: in hosts.yaml",
    ),
    (
        r"invalid mount config for type \"bind\": (l?stat|mkdir) (?P<path>[^\n|]+): permission denied|"
        r"mounting \"(?P<path2>[^\"]+)\" to .*: permission denied",
        "the docker engine cannot enter a folder to be mounted, for example on NFS with root_squash",
        "on HOST: namei -l {path}  # then run chmod o+x on its parent folders, or use a local disk; for"
        " the state directory, set state_dir: in hosts.yaml",
    ),
    (
        r"could not select device driver .*gpu|unknown or invalid runtime name: nvidia|"
        r"nvidia-container-cli: .*(library|driver) .*",
        "docker on the host cannot give GPUs to containers",
        "on HOST: sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
        "  # if nvidia-ctk is missing, install the NVIDIA Container Toolkit first",
    ),
    (
        r"toolkit\.local|no such image",
        "the image is no longer on the host",
        "toolkit up  # restores the image; then run the same command again",
    ),
    (
        r"exec: \"?(?P<program>catatonit|docker-init)\"?: executable file not found",
        "{program}, the init process of containers, is not installed on the host",
        "on HOST: sudo apt-get install catatonit tini  # or the package of your distribution with {program}",
    ),
    (
        r"docker-default profile could not be loaded",
        "AppArmor is enabled on the host, but the docker engine cannot run apparmor_parser",
        "on HOST: sudo apt-get install apparmor && sudo systemctl restart docker",
    ),
    (
        r"exec: \"?(?P<program>[^\":]+)\"?: (executable file not found|stat .*: no such file)",
        "the image does not contain {program}",
        "toolkit image build  # or use an image with python3, openssh-client and openssh-server; for an"
        " image with only python3, set transport: exec in hosts.yaml",
    ),
    (
        # runc cannot enter the container's working folder, which is in the state directory.
        r"outside of container mount namespace root|chdir to cwd (?!.*permission denied)",
        "the state directory of the cluster was deleted",
        "toolkit down && toolkit up",
    ),
    (
        r"no such (container|object): toolkit-|via template \S*\.toolkit-new\S*: no such file|"
        r"mv: target \S*: no such file",
        "the cluster was removed during the command, for example by `toolkit down`",
        "toolkit up  # after the removal has finished",
    ),
    (
        r"cannot allocate memory|out of memory",
        "the host is out of memory",
        "on HOST: free -h; docker stats --no-stream  # lists the memory use",
    ),
    (
        r"error setting rlimit|setting rlimits? .*operation not permitted",
        "the docker engine on the host cannot raise limits",
        "on HOST: cat /proc/$(pidof dockerd)/limits  # then use a smaller number under ulimits: in"
        " hosts.yaml, or give the engine CAP_SYS_RESOURCE",
    ),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), what, fix) for pattern, what, fix in _CAUSES)

_DENIED = "Permission denied"  # the kernel's message
_PATH = re.compile(r"(?<![\w.])/[^\s:'\"‘’|]+")
# Prefixes that Docker prints around a message and that carry no information.
_NOISE = re.compile(r"^(docker: )?Error response from daemon: |^docker: (?=[A-Z])")
_HINT = re.compile(r"^(See|Run) 'docker .* --help'|^time=\"|^WARNING: ")


def cause_of(message: str, host: str, user: str = "") -> Cause | None:
    """Return the known cause that a command's message names, None if it names no known cause.

    Args:
        message: the error output of the command.
        host: name of the host, for the fix.
        user: the SSH user on the host.
    """
    for pattern, what, fix in _COMPILED:
        if match := pattern.search(message):
            # docker run appends a full stop to the engine's message.
            found = {k.rstrip("2"): v.strip().removesuffix(".") for k, v in match.groupdict().items() if v}
            groups = found | {k: shlex.quote(v) for k, v in found.items() if k == "path"}
            what = what.replace("user USER", f"user {user}" if user else "the SSH user")
            fix = fix.replace("USER", user or "$USER").replace("HOST", host)
            return Cause(_fill(what, groups), _fill(fix, groups))
    return None


def _fill(text: str, groups: dict[str, str]) -> str:
    for name, value in groups.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def why_unwritable(message: str) -> Unwritable | None:
    """Return the reason that a command could not write, None if its message names no such reason."""
    low = message.lower()
    return next((reason for reason in Unwritable if reason.value in low), None)


def is_denied(message: str) -> bool:
    """Return whether a command failed because its user lacks a permission."""
    return _DENIED in message


def misses_python(message: str) -> bool:
    """Return whether the engine or `env` reports that a container's python3 is missing.

    The exit code does not decide: docker exits with 127 also if it cannot run a program of the host.
    """
    return "python3" in message


def named_paths(message: str) -> tuple[str, ...]:
    """Return the absolute paths in those lines of a command's message that name why it could not write."""
    lines = [line for line in message.splitlines() if why_unwritable(line)]
    return tuple(dict.fromkeys(path for line in lines for path in _PATH.findall(line)))


def words_of(message: str) -> str:
    """Return the end of a command's message as one line, without Docker's prefixes and hints."""
    lines = [line.strip() for line in message.splitlines()]
    kept = [_NOISE.sub("", line) for line in lines if line and not _HINT.search(line)]
    return " | ".join((kept or [line for line in lines if line])[-4:])
