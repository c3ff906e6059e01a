"""Which CUDA a driver carries and which one an image asks for, by NVIDIA's own tables and rules."""

from __future__ import annotations

import re
from collections.abc import Mapping

Version = tuple[int, ...]

# The driver branch and the newest CUDA that it carries: "CUDA Toolkit and Corresponding Driver Versions",
# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/. Branches between two rows carry the older one's.
BRANCHES: tuple[tuple[int, Version], ...] = (
    *((410, (10, 0)), (418, (10, 1)), (440, (10, 2)), (450, (11, 0)), (455, (11, 1)), (460, (11, 2))),
    *((465, (11, 3)), (470, (11, 4)), (495, (11, 5)), (510, (11, 6)), (515, (11, 7)), (520, (11, 8))),
    *((525, (12, 0)), (530, (12, 1)), (535, (12, 2)), (545, (12, 3)), (550, (12, 4)), (555, (12, 5))),
    *((560, (12, 6)), (565, (12, 7)), (570, (12, 8)), (575, (12, 9)), (580, (13, 0)), (590, (13, 1))),
)
# The first driver that runs programs of a whole CUDA major version, by "minor version compatibility":
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
FIRST_DRIVER: Mapping[int, int] = {11: 450, 12: 525, 13: 580}
# The oldest GPUs (compute capability) that a CUDA major version makes programs for: its release notes.
OLDEST_GPU: Mapping[int, Version] = {11: (3, 5), 12: (5, 0), 13: (7, 5)}

_TERM = re.compile(r"(cuda|driver|brand|arch)(>=|<=|!=|>|<|=)(.+)")


def version(text: str) -> Version:
    """Return the numbers of a version such as ``550.54.14``; empty when it does not begin with one."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*(?!\d)", text.strip())
    return tuple(map(int, found[0].split("."))) if found else ()


def dotted(numbers: Version) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, numbers))


def newest_cuda(driver: str) -> Version:
    """Return the newest CUDA that a driver carries; empty when it is older than the table, or unreadable.

    A branch newer than the table carries at least this; see ``unknown_branch``.
    """
    numbers = version(driver)
    return next((cuda for branch, cuda in reversed(BRANCHES) if numbers and numbers[0] >= branch), ())


def unknown_branch(driver: str) -> bool:
    """Whether a driver is newer than the table."""
    numbers = version(driver)
    return bool(numbers) and numbers[0] > BRANCHES[-1][0]


def first_driver(cuda: Version) -> int:
    """Return the branch of the oldest driver that runs programs of this CUDA, 0 when it is not known."""
    if cuda[0] in FIRST_DRIVER:
        return FIRST_DRIVER[cuda[0]]
    return next((branch for branch, has in BRANCHES if has >= cuda[:2]), 0)


def required(env: Mapping[str, str]) -> str:
    """Return the condition that an image puts on the driver, as the NVIDIA Container Toolkit reads it.

    Empty when the image has none, or has it switched off.
    """
    if env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "t", "true"):
        return ""
    return env.get("NVIDIA_REQUIRE_CUDA", "").strip()


def image_cuda(env: Mapping[str, str]) -> Version:
    """Return the CUDA that an image says it was made with; empty when it does not say."""
    asked = re.search(r"cuda>=([\d.]+)", env.get("NVIDIA_REQUIRE_CUDA", ""))
    return version(env.get("CUDA_VERSION", "") or (asked[1] if asked else ""))


def satisfied(condition: str, driver: str) -> bool | None:
    """Say whether a driver meets an image's condition; None when that depends on what we do not know.

    As in https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html:
    alternatives are parted by blanks, the terms of one by commas. The brand of a GPU is not known here, so
    an alternative that holds but for its brand leaves it open.
    """
    known = {"cuda": newest_cuda(driver), "driver": version(driver)}
    at_least = unknown_branch(driver)
    answers = [_alternative(alternative, known, at_least) for alternative in condition.split()]
    if True in answers:
        return True
    return None if None in answers else False


def _alternative(text: str, known: Mapping[str, Version], at_least: bool) -> bool | None:
    undecided = False
    for term in text.split(","):
        match = _TERM.fullmatch(term)
        if match is None or match[1] not in known:
            undecided = True
        elif not known[match[1]] or not _holds(known[match[1]], match[2], version(match[3])):
            if match[1] != "cuda" or not at_least:
                return False
            undecided = True
    return None if undecided else True


def _holds(left: Version, sign: str, right: Version) -> bool:
    length = max(len(left), len(right))
    a, b = ((*one, *(0,) * (length - len(one))) for one in (left, right))
    results = {">=": a >= b, "<=": a <= b, "!=": a != b, ">": a > b, "<": a < b, "=": a == b}
    return results[sign]
