"""Reports of hosts about folders that jobs need: image store, state directory, home, sources of mounts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from toolkit.checks.model import Probe, Seen
from toolkit.core.disk_space import CONTAINERD
from toolkit.protocol.decode import whole
from toolkit.protocol.frames import ROW, rows

# A network file system that does not respond blocks every process that reads it, so a separate shell with a
# time limit reads it; its last line shows the folder that blocked it. It searches for links in a mounted
# folder one level deep and for one second, because folders of a million files are common.
PLACES = Probe(
    "places",
    r"""
inner='
@row@
look() {
  row at "$1" "$2"
  if [ ! -e "$2" ]; then [ ! -L "$2" ] || echo broken; return; fi
  # Every path is absolute, so that no way back is needed.
  real=
  ! cd -P -- "$2" 2>/dev/null || real=$PWD
  [ -n "$real" ] || real=$(readlink -f -- "$2") || real=$2
  kind=other; [ ! -f "$2" ] || kind=file; [ ! -d "$2" ] || kind=directory
  printf "is|%s\n" "$kind"
  may=; [ ! -r "$real" ] || may=r; [ ! -w "$real" ] || may=${may}w; [ ! -x "$real" ] || may=${may}x
  row may "$may" "$real"
  stat -f -c "fs|%S|%b|%a|%c|%d" -- "$real"
  # The kernel writes blanks, tabs and backslashes of a mount point as octal digits.
  written=$real
  case $real in *[\ \\"$tab"]*) written=$(printf "%s\n" "$real" |
    sed "s/\\\\/\\\\134/g; s/ /\\\\040/g; s/$tab/\\\\011/g") ;;
  esac
  # A shell reads files byte by byte, and words of a variable at once.
  longest=0; mount=; old=$IFS; IFS="
"; set -f
  for line in $mounts; do
    folder=${line#* }; folder=${folder%% *}
    case $written/ in "${folder%/}"/*)
      [ ${#folder} -lt $longest ] || { longest=${#folder}; mount=$line; } ;;
    esac
  done
  set +f; IFS=$old
  device=${mount%% *}; mount=${mount#* * }; type=${mount%% *}; options=${mount#* }; options=${options%% *}
  row on "$type" "$device" "${options%%,lowerdir=*}"
}
mounts=$(cat /proc/self/mounts) tab="@tab@"
seen() {
  there=$1; while [ -n "$there" ] && [ ! -e "$there" ]; do there=${there%/*}; done; there=${there:-/}
}
root=$1 state=$2; shift 6
seen "$root"; look root "$there"
[ ! -d "$beside" ] || look containerd "$beside"
seen "$state"; look state "$there"
for d in "$state"/*; do
  [ ! -d "$d" ] || [ -w "$d" ] || row locked "$d"
done
look home "$HOME"
for source; do
  look mount "$source"
  stat -L -c "inode|%d:%i" -- "$source" 2>/dev/null
  [ ! -d "$source" ] ||
    timeout -s KILL 1 find "$real" -maxdepth 1 -type l ! -name "*[[:cntrl:]]*" 2>/dev/null | head -n 20 |
    while read -r link; do
      row link "${link##*/}" "$(readlink -- "$link")"
    done
done
echo looked
'
root=${root:-/var/lib/docker}
@containerd@
export beside
timeout -s KILL 10 sh -c "$inner" sh "$root" "${XDG_STATE_HOME:-$HOME/.local/state}/toolkit/$3/$4" "$@"
""".replace("@row@", ROW.strip())
    .replace("@tab@", "\t")
    .replace("@containerd@", CONTAINERD.strip()),
)

# File systems that hosts share. Server and path identify such a folder, not a disk of the host.
NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "smb3", "smbfs", "virtiofs", "wekafs"),
        *("fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs", "fuse.sshfs"),
    )
)


@dataclass(frozen=True)
class Place:
    """One folder or file of a host.

    Args:
        role: root (of the image store), containerd, state, home or mount.
        path: as requested; for ``root`` and ``state`` the nearest folder that exists.
        real: the same without symbolic links.
        kind: ``directory``, ``file``, ``other`` or ``broken link``; empty if nothing exists.
        inode: for a mount's source: device and number; the number is the server's own.
        may: the permissions of the SSH user, a subset of ``rwx``.
        type, source, options: of the file system that contains it.
        size, free: bytes, free ones for users other than root; 0 if the file system counts none.
        inodes, inodes_free: 0 without a fixed number.
        links: symbolic links in the folder as (name, target).
        locked: folders in it that the SSH user cannot write to.
        answered: False if the file system did not respond in time.
    """

    role: str
    path: str
    real: str = ""
    kind: str = ""
    inode: str = ""
    may: str = ""
    type: str = ""
    source: str = ""
    options: tuple[str, ...] = ()
    size: int = 0
    free: int = 0
    inodes: int = 0
    inodes_free: int = 0
    links: tuple[tuple[str, str], ...] = field(default_factory=tuple)
    locked: tuple[str, ...] = ()
    answered: bool = True

    @property
    def shared(self) -> bool:
        """True if it is on a network file system."""
        return self.type in NETWORK


def places(seen: Seen) -> tuple[Place, ...]:
    """Return the host's report about its folders; empty if the probe did not run or failed."""
    lines = list(rows(seen.answer(PLACES)))
    found = list(_read(lines))
    if found and ("looked", ()) not in lines:
        found[-1] = replace(found[-1], answered=False)
    return tuple(found)


def place(seen: Seen, role: str) -> Place | None:
    """Return the host's place of that role, None without a report about it."""
    return next((one for one in places(seen) if one.role == role), None)


def _read(lines: list[tuple[str, tuple[str, ...]]]) -> Iterator[Place]:
    now: Place | None = None
    for word, cells in lines:
        if word == "at" and len(cells) >= 2:
            if now is not None:
                yield now
            now = Place(cells[0], "|".join(cells[1:]))
        elif now is not None:
            now = _told(now, word, cells)
    if now is not None:
        yield now


def _told(now: Place, word: str, cells: tuple[str, ...]) -> Place:
    if word == "broken":
        return replace(now, kind="broken link")
    if not cells:
        return now
    if word == "is":
        return replace(now, kind=cells[0])
    if word == "inode":
        return replace(now, inode=cells[0])
    if word == "may":
        return replace(now, may=cells[0], real="|".join(cells[1:]))
    numbers = [number for cell in cells if (number := whole(cell)) is not None]
    if word == "fs" and len(cells) == len(numbers) == 5:
        block, size, free, inodes, inodes_free = numbers
        return replace(now, size=size * block, free=free * block, inodes=inodes, inodes_free=inodes_free)
    if word == "on" and len(cells) >= 3:
        return replace(now, type=cells[0], source=cells[1], options=tuple(cells[2].split(",")))
    if word == "link" and len(cells) >= 2:
        return replace(now, links=(*now.links, (cells[0], "|".join(cells[1:]))))
    if word == "locked":
        return replace(now, locked=(*now.locked, "|".join(cells)))
    return now
