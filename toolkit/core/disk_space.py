"""Free disk space of a host at the paths that a command writes to, measured with df."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.core.command import Command, script
from toolkit.core.printable import counted
from toolkit.protocol.decode import MOST, whole
from toolkit.protocol.frames import ROW, rows

# Sets `beside` to the data folder of the host's containerd, which the administrator can move to another disk.
CONTAINERD = r"""
beside=
[ ! -r /etc/containerd/config.toml ] ||
  beside=$(sed -n '/^\[/q; s/^root *= *["'"'"']\(.*\)["'"'"'].*/\1/p' /etc/containerd/config.toml 2>/dev/null)
beside=${beside:-/var/lib/containerd}
"""

# For each path, and for the engine's image folder: the path, and the bytes and inodes of its file system.
# A path that does not exist is replaced by the nearest existing folder above it.
ASK_ROOM = (
    ROW
    + CONTAINERD
    + r"""
root=$(timeout 10 docker info --format '{{.DockerRootDir}}' 2>/dev/null ||
  timeout 10 docker info --format '{{.Store.GraphRoot}}' 2>/dev/null)
[ ! -e "$beside" ] || set -- "$@" "$beside"
for path in "$@" "$root"; do
  [ -n "$path" ] || continue
  place=$path
  until [ -e "$place" ]; do place=${place%/*}; [ -n "$place" ] || place=/; done
  blocks=$(df -Pk "$place" | tail -n 1); inodes=$(df -Pi "$place" | tail -n 1)
  row room "$path" "$blocks" "$inodes"
done
"""
)


@dataclass(frozen=True)
class Room:
    """The file system of one path; sizes in bytes, ``inodes`` the free inodes."""

    path: str
    mount: str
    free: int
    total: int
    inodes: int

    @property
    def is_full(self) -> bool:
        """True if less than 1 % is free, or no file can be created."""
        return self.inodes == 0 or self.free * 100 < self.total

    def line(self) -> str:
        """Return the state of the file system as text."""
        if self.inodes == 0 and self.free * 100 >= self.total:
            return f"no free inode for another file on {self.mount}"
        return f"{size(self.free)} free of {size(self.total)} on {self.mount}"


def ask_room(*paths: str) -> Command:
    """Return the command whose output ``parse_room`` reads."""
    return script(ASK_ROOM, *paths)


def parse_room(text: str) -> tuple[Room, ...]:
    """Return the file system of each path from the output of df; unreadable lines are skipped."""
    found = []
    for path, in_bytes, in_files in (
        cells for word, cells in rows(text) if word == "room" and len(cells) == 3
    ):
        # POSIX: file system, blocks, used, available, capacity, mount point (which can contain blanks).
        cells, files = in_bytes.split(None, 5), in_files.split(None, 5)
        if len(cells) != 6:
            continue
        total, free = whole(cells[1]), whole(cells[3], least=-MOST)
        if total is not None and free is not None:
            # Some file systems count no inodes: their total is 0 or a dash.
            inodes = whole(files[3]) if len(files) == 6 and whole(files[1]) else None
            left = -1 if inodes is None else inodes
            found.append(Room(path, cells[5], max(free, 0) * 1024, total * 1024, left))
    return tuple(found)


def tightest(rooms: Sequence[Room], named: Sequence[str]) -> Room | None:
    """Return the full file system: a named path's if full, otherwise that with the least space."""
    for room in rooms:
        if room.path in named and room.is_full:
            return room
    full = [room for room in rooms if room.is_full]
    return min(full, key=lambda room: room.free, default=None)


def size(count: int) -> str:
    """Return a number of bytes as readable text, in units of 1000."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            number = count / factor
            return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
    return counted(count, "byte")
