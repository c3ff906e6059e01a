"""Whether the kernel has killed for lack of memory, told by its own counters."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

# Of this container: cgroup v2, then v1 (https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.events).
OWN = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
# Of the whole host (https://docs.kernel.org/filesystems/proc.html): a container without a limit dies by it.
HOST = Path("/proc/vmstat")


def kills(path: Path) -> int:
    """The count in a file's line `oom_kill N`; 0 where there is none."""
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


class Memory:
    """Looks now and then, so that what is found at the end can be dated."""

    def __init__(self) -> None:
        self._first = self._before = self._latest = self._look()

    def _look(self) -> tuple[int, int]:
        return max(map(kills, OWN)), kills(HOST)

    def look(self) -> None:
        """Called now and then, a second apart at most."""
        self._before, self._latest = self._latest, self._look()

    def has_killed(self) -> bool:
        """Whether the kernel has killed here since the beginning, or on the host a moment ago."""
        own, host = self._look()
        return own > self._first[0] or host > self._before[1]
