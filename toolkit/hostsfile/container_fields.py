"""What the values of hosts.yaml may be that shape a container: limits, GPUs, labels, the image's origin."""

from __future__ import annotations

from toolkit.hostsfile.words import fits, meant, require, shown

# What the hosts do about an image that they lack: nothing (it is sent to them), pull it, pull it anew.
PULLS = ("never", "missing", "always")

# The names that docker's --ulimit knows (https://docs.docker.com/reference/cli/docker/container/run/#ulimit),
# with the number by which Linux and the errors of container runtimes call each (asm-generic/resource.h).
ULIMITS = {
    **{"cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7},
    **{"memlock": 8, "locks": 10, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15},
}
UNLIMITED = "unlimited"

_HEX = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The second form of a MIG device, GPU/instance/compute instance, is that of drivers before 470.
GPU_ID = rf"(GPU|MIG)-{_HEX}|MIG-GPU-{_HEX}/[0-9]{{1,3}}/[0-9]{{1,3}}"

LABEL = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?"
# Ours, and those that Docker keeps for itself (https://docs.docker.com/engine/manage-resources/labels/).
_KEPT_LABELS = ("toolkit.", "com.docker.", "io.docker.", "org.dockerproject.")


def pull(text: str) -> str:
    if text not in PULLS:
        raise ValueError(f"should be one of {', '.join(PULLS)}, found {shown(text)}")
    return text


def ulimit_name(text: str) -> str:
    if text not in ULIMITS:
        raise ValueError(f"no limit is called {shown(text)}; {meant(text, ULIMITS)}")
    return text


def limit_number(number: int) -> int:
    if number == -1:
        raise ValueError("for no limit write unlimited, not -1")
    require(number >= 0, "0 or more, or unlimited", number)
    return number


def limit_text(text: str) -> str:
    require(text == UNLIMITED, "a number without a unit, or unlimited", text)
    return text


def limit(value: int | str) -> int:
    """Return a checked number, -1 for ``unlimited``."""
    return -1 if isinstance(value, str) else value


def gpu_id(text: str) -> str:
    if text.isdecimal():
        raise ValueError(f"should be an index without quotes, or a UUID, found {shown(text)}")
    should = "a UUID as `nvidia-smi -L` prints it: GPU-… or MIG-… with 32 hexadecimal digits"
    require(fits(GPU_ID, text), should, text)
    return text


def label_name(text: str) -> str:
    should = "1 to 128 of letters, digits, '.', '_', '-' and '/', a letter or digit at both ends"
    require(fits(LABEL, text), should, text)
    for kept in _KEPT_LABELS:
        if f"{text}.".startswith(kept):
            whose = "the toolkit's own" if kept == "toolkit." else "Docker's own"
            raise ValueError(f"labels that begin with {kept} are {whose}; choose another name")
    return text


def label_value(text: str) -> str:
    require(text.isprintable(), "text in one line", text)
    return text
