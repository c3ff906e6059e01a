"""Shared file systems that all hosts mount at the same path, as mounts that a hosts file could have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.checks.model import Probe, Seen
from toolkit.checks.places import NETWORK
from toolkit.core.container import Mount
from toolkit.hostsfile import fields
from toolkit.protocol.frames import ROW, rows

# A separate shell tests each, all at once: a share whose server is lost blocks its shell.
SHARES = Probe(
    "shares",
    rf"""
look='
@row@
  may=; [ ! -r "$3" ] || may=r; [ ! -w "$3" ] || may=${{may}}w; [ ! -x "$3" ] || may=${{may}}x
  inode=$(stat -L -c %i -- "$3") && size=$(stat -f -c %S:%b -- "$3") || exit
  row share "$1" "$2" "$may" "$inode" "$size" "$3"
'
while read -r device folder type _; do
  case $type in {"|".join(sorted(NETWORK))}) ;; *) continue ;; esac
  timeout -s KILL 3 sh -c "$look" sh "$type" "$device" "$folder" 2>/dev/null &
done </proc/self/mounts
wait
""".replace("@row@", ROW.strip()),
)

# Folders of the image or the system, with everything below them.
_WHOLE = ("/", "/home", "/mnt", "/opt", "/root", "/tmp", "/var")
_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/snap", "/sys", "/usr"),
    *("/var/lib", "/var/run"),
)


@dataclass(frozen=True)
class Share:
    """A network file system that a host mounts.

    Args:
        may: the permissions of the SSH user at its top, a subset of ``rwx``.
        inode, size: of its top folder and of the whole, as its server counts them.
    """

    type: str
    device: str
    may: str
    inode: str
    size: str
    folder: str


@dataclass(frozen=True)
class CommonShare:
    """One that all hosts have at the same path; ``source`` is what the first host calls its server's side."""

    mount: Mount
    type: str
    source: str


def shares(seen: Seen) -> tuple[Share, ...]:
    """Return the network file systems that a host has mounted, and that answered."""
    found = (cells for word, cells in rows(seen.answer(SHARES)) if word == "share" and len(cells) == 6)
    return tuple(Share(*cells) for cells in found)


def common_shares(hosts: Sequence[Seen]) -> tuple[CommonShare, ...]:
    """Return the file systems that all these hosts mount at one path and the SSH user can read, for ranks.

    It is writable if the user can write on every host. A path that the system, the container or the
    user's home has for itself is none, nor one below another that is among them.
    """
    by_host = [{share.folder: share for share in shares(seen)} for seen in hosts]
    found: list[CommonShare] = []
    for folder in sorted(set.intersection(*map(set, by_host))) if by_host else ():
        own = [each[folder] for each in by_host]
        below = any(folder.startswith(f"{one.mount.source}/") for one in found)
        alike = len({(share.inode, share.size) for share in own}) == 1
        readable = all({"r", "x"} <= set(share.may) for share in own)
        if below or not alike or not readable or _kept(folder, hosts):
            continue
        read_only = not all("w" in share.may for share in own)
        try:
            mount = fields.mount(f"{folder}:{folder}{':ro' if read_only else ''}")
        except ValueError:
            continue
        found.append(CommonShare(mount, own[0].type, own[0].device))
    return tuple(found)


def _kept(folder: str, hosts: Sequence[Seen]) -> bool:
    # The kernel writes blanks in /proc/self/mounts as octal digits.
    if "\\" in folder or folder in _WHOLE:
        return True
    if any(folder == tree or folder.startswith(f"{tree}/") for tree in _TREES):
        return True
    return any(f"{home}/".startswith(f"{folder}/") for home in _homes(hosts))


def _homes(hosts: Sequence[Seen]) -> Iterator[str]:
    for seen in hosts:
        if seen.facts is not None:
            yield seen.facts.home
            yield f"/home/{seen.facts.user}"
