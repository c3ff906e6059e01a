"""Checks of the folders that the hosts file mounts: present, readable, with room, the same on all hosts.

Docker runs as root and must be able to read the folders too, so it cannot mount shares that deny root access.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator

from toolkit.checks.disk import GIB, NOTHING
from toolkit.checks.model import (
    Check,
    Probe,
    Scene,
    Seen,
    error,
    fine,
    grouped,
    groups_text,
    unchecked,
    warning,
)
from toolkit.checks.places import PLACES, Place, places
from toolkit.core.command import quoted
from toolkit.core.container import Mount
from toolkit.core.engines import PODMAN
from toolkit.core.finding import Finding
from toolkit.core.printable import counted
from toolkit.protocol.frames import ROW, rows

# Folders that every image has, so that a link into them is valid in a container too.
_OF_IMAGE = ("/usr/", "/bin/", "/lib", "/etc/", "/proc/", "/dev/", "/sys/")


def mounted(seen: Seen, scene: Scene) -> tuple[tuple[Mount, Place], ...]:
    """Return each mount of the hosts file with the host's report about its source."""
    found = {one.path: one for one in places(seen) if one.role == "mount"}
    return tuple((m, found[m.source]) for m in scene.inventory.mounts if m.source in found)


def _there(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    if not scene.inventory.mounts:
        yield fine("hosts.yaml has no mounts")
    found = mounted(seen, scene)
    for mount, where in found:
        if not where.answered:
            what = f"the file system of {mount.source} does not respond"
            # Not `findmnt -T`, which can hang too. A lazy unmount leaves processes and containers with the
            # hung file system, and a mount usually recovers with its server.
            fix = (
                f"on {seen.host}: findmnt -lo TARGET,SOURCE,FSTYPE  # then repair the server of "
                f"{quoted(mount.source)}, or the network to the server; if the server no longer exists: "
                "sudo umount -f -l TARGET"
            )
            yield error(what, fix, subject=mount.source)
        elif where.kind == "broken link":
            fix = f"on {seen.host}: ls -l {quoted(mount.source)}"
            fix = f"{fix}  # then create the target of the link, or change the link to an existing path"
            yield error(f"{mount.source} is a broken symbolic link", fix, subject=mount.source)
        elif not where.kind:
            what = f"{mount.source} does not exist, or user {seen.facts.user} cannot open its parent folder"
            fix = f"on {seen.host}: mkdir -p {quoted(mount.source)}  # or mount the file system"
            yield error(what, fix, subject=mount.source)
    unknown = {m.source for m in scene.inventory.mounts} - {m.source for m, _ in found}
    for source in sorted(unknown):
        yield unchecked(f"the host did not report the mount source {source}", subject=source)


def lost_source(seen: Seen, scene: Scene) -> str:
    """Return the first source of a mount that is missing or does not respond, empty if there is none."""
    lost = (m.source for m, where in mounted(seen, scene) if where.kind in ("", "broken link"))
    return next(lost, "")


def unwritable(seen: Seen, mount: Mount, reason: str, fix: str = "") -> Finding:
    """Return the finding about a mount that ranks cannot write to, as its host or a container reports it."""
    assert seen.facts is not None
    user = seen.facts.user
    fix = fix or f"on {seen.host}: sudo chown {quoted(user, mount.source)}"
    entry = quoted(f"{mount.source}:{mount.target}:ro")
    fix = f"{fix}  # or, if ranks only read the folder, set the entry under mounts: in hosts.yaml to {entry}"
    what = f"ranks run as user {user} and cannot write to {mount.source}: {reason}"
    return warning(what, fix, subject=mount.source)


def access(seen: Seen, scene: Scene) -> Iterator[Finding]:
    """Yield findings of the host, without a container, about mounts that ranks cannot read or write."""
    assert seen.facts is not None
    user = seen.facts.user
    for mount, where in mounted(seen, scene):
        needed = "rx" if where.kind == "directory" else "r"
        if not where.kind or where.kind == "broken link" or not where.answered:
            continue
        if not set(needed) <= set(where.may):
            look = f"ls -ld {quoted(mount.source)}"
            group = f"chmod g+rX and add user {user} to the group of the path"
            fix = f"on {seen.host}: {look}  # then run chmod o+rX on this path, or {group}"
            what = f"ranks run as user {user} and cannot read {mount.source}"
            yield error(what, fix, subject=mount.source)
        elif not mount.read_only and "ro" in where.options:
            find = f"findmnt -no TARGET -T {quoted(mount.source)}"
            fix = f'on {seen.host}: sudo mount -o remount,rw "$({find})"'
            yield unwritable(seen, mount, "the file system is mounted read-only", fix)
        elif not mount.read_only and "w" not in where.may:
            yield unwritable(seen, mount, f"{user} has no write permission")


def _room(seen: Seen, scene: Scene) -> Iterator[Finding]:
    for mount, where in mounted(seen, scene):
        if mount.read_only or "w" not in where.may or not where.size:
            continue
        source = quoted(mount.source)
        # Hidden folders such as .cache too, which /* omits.
        look = f"du -xahd1 {source} | sort -h  # can take minutes"
        fix = f"on {seen.host}: {look}; then remove unneeded files"
        free = f"{where.free / GIB:.1f} of {where.size / GIB:.0f} GiB free"
        if where.free < NOTHING:
            what = f"the file system of {mount.source} is almost full ({free})"
            yield error(what, fix, subject=mount.source)
        elif where.free < GIB:
            what = (
                f"the file system of {mount.source} has only {free}, so ranks can fail to write checkpoints"
            )
            yield warning(what, fix, subject=mount.source)
        elif where.inodes and where.inodes_free < 1000:
            left = counted(where.inodes_free, "more file")
            what = f"the file system of {mount.source} has room for only {left}"
            inodes = f"on {seen.host}: df -i {source}  # then remove unneeded files"
            yield warning(what, inodes, subject=mount.source)


def _same(scene: Scene) -> Iterator[Finding]:
    for mount in scene.inventory.mounts:
        found = {
            name: where
            for name, seen in scene.seen.items()
            for other, where in mounted(seen, scene)
            if other == mount and where.kind not in ("", "broken link") and where.answered
        }
        if not found:
            continue
        kinds = grouped((name, where.kind) for name, where in found.items())
        if len(kinds) > 1:
            what = f"{mount.source} does not have the same type on all hosts: {groups_text(kinds)}"
            yield error(
                what,
                f"make {mount.source} a folder on all hosts, or a file on all hosts",
                subject=mount.source,
            )
            continue
        shared = {name: where for name, where in found.items() if where.shared}
        if shared and len(shared) < len(found):
            groups = grouped(
                (n, f"{w.type} from {w.source}" if w.shared else "local") for n, w in found.items()
            )
            what = f"{mount.source} is a shared folder only on some hosts: {groups_text(groups)}"
            yield warning(what, "on every host: mount the same file system", subject=mount.source)
        # The inode number and the disk size are the server's; the same server can have several names.
        elif (
            len({(where.inode.partition(":")[2], where.size) for where in shared.values() if where.inode}) > 1
        ):
            groups = grouped((name, where.source) for name, where in shared.items())
            what = f"{mount.source} is not the same folder on all hosts: {groups_text(groups)}"
            yield warning(what, "on every host: mount the same file system", subject=mount.source)


def restart_findings(scene: Scene, hosts: Collection[str]) -> tuple[Finding, ...]:
    """Return a warning if checkpoints of a job that restarts can be missing on its hosts.

    Args:
        hosts: on which the job can run, spare hosts included. If the mounts of one of them are not known,
            only the absence of any writable mount is reported.
    """
    writable = [mount for mount in scene.inventory.mounts if not mount.read_only]
    if len(hosts) < 2 or any(_is_common(scene, mount, hosts) for mount in writable):
        return ()
    what = (
        "ranks that restart on a different host might not find the checkpoints, because no writable mount is "
        "on a network file system that all hosts of the job share"
    )
    fix = (
        "in hosts.yaml: add under mounts: - /SHARED/FOLDER:/checkpoints; then: toolkit up  # and write "
        "checkpoints to /checkpoints. If the hosts share no folder, let rank 0 write, read and broadcast the "
        "checkpoints, which works only if rank 0 restarts on the same host"
    )
    return (Finding("restart-checkpoints", "warning", what, fix, subject="--max-restarts"),)


def _is_common(scene: Scene, mount: Mount, hosts: Collection[str]) -> bool:
    """Return True if a mount is one shared folder on these hosts, or if a host did not report it."""
    found = [dict(mounted(scene.seen[name], scene)).get(mount) for name in hosts if name in scene.seen]
    if None in found:
        return True
    known = [where for where in found if where is not None]
    # As in _same: the inode number and the disk size are the server's. One of the hosts can be the server:
    # it has the folder on its own disk and counts the size in other blocks.
    numbers = {where.inode.partition(":")[2] for where in known}
    sizes = {where.size for where in known if where.shared}
    servers = [where for where in known if not where.shared]
    return len(numbers) == 1 and len(sizes) == 1 and len(servers) <= 1


def _links(seen: Seen, scene: Scene) -> Iterator[Finding]:
    targets = [mount.target for mount in scene.inventory.mounts]
    for mount, where in mounted(seen, scene):
        astray = []
        for name, to in where.links:
            end = posixpath.normpath(posixpath.join(mount.target, to))
            inside = any(end == target or end.startswith(f"{target}/") for target in targets)
            if not inside and not f"{end}/".startswith(_OF_IMAGE):
                astray.append((name, to, posixpath.dirname(end)))
        if astray:
            name, to, target = astray[0]
            link = f"{name} -> {to}"
            many = f" (and {len(astray) - 1} more)" if len(astray) > 1 else ""
            what = f"{mount.source} contains a symbolic link that is broken in a container: {link}{many}"
            folder = posixpath.dirname(posixpath.normpath(posixpath.join(mount.source, to)))
            entry = quoted(f"{folder}:{target}:ro")
            fix = f"in hosts.yaml: add under mounts: - {entry}"
            yield warning(what, fix, subject=mount.source)


# The engine examines a mount's source before it searches for the image, and no engine has this image: so it
# reports missing permissions and creates nothing. In a folder it must be able to find a name. The state
# folder is private and possibly does not exist yet: ~/.ssh is as private, if it is on the same disk.
# A mount of a running container is readable for the engine.
SEES = Probe(
    "engine-sees",
    ROW
    + r"""
csv() { printf '"source=%s"' "$(printf '%s' "$1" | sed 's/"/""/g')"; }
look() {
  mount="type=bind,$(csv "$3"),target=/x"
  said=$(timeout -s KILL 10 docker create --pull never --mount "$mount" toolkit.local/none:none x 2>&1)
  # An engine that hangs must not use up the time of the probe, once for each mount.
  [ $? -ne 137 ] || exit 0
  case $said in
    *"mount config"*ermission\ denied*) row shut "$1" "$2" ;;
    *"mount config"*|*"o such image"*) row open "$1" "$2" ;;
  esac
}
there="${XDG_STATE_HOME:-$HOME/.local/state}/toolkit/$3/$4"
while [ -n "$there" ] && [ ! -e "$there" ]; do there=${there%/*}; done; there=${there:-/}
case $seen in
  *"|$there/conf|"*) row open state "$there" ;;
  *)
    look state "$there" "$there/toolkit-looks"
    if [ -d "$HOME/.ssh" ] && [ "$(stat -c %d "$HOME/.ssh")" = "$(stat -c %d "$there")" ]; then
      look state "$there" "$HOME/.ssh/toolkit-looks"
    fi ;;
esac
shift 4
for source; do
  case $seen in *"|$source|"*) row open mount "$source"; continue ;; esac
  ! timeout -s KILL 5 test -e "$source" || look mount "$source" "$source"
done
""",
)


def _sees(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if seen.facts is not None and seen.facts.engine == PODMAN:
        return  # it runs as the SSH user, whose access to mounts is another check
    lines = [(word, *cells) for word, cells in rows(seen.answer(SEES)) if len(cells) == 2]
    if not lines:
        yield unchecked("the container engine did not report which folders it can read")
    shut = dict.fromkeys((role, path) for word, role, path in lines if word == "shut")
    for role, path in shut:
        if role == "state":
            what = (
                f"the engine runs as root and cannot access the state directory in {path}; "
                "a possible cause is a network file system that denies access to root (root_squash)"
            )
            yield error(
                what,
                "in hosts.yaml: set state_dir: FOLDER  # a folder on the hosts' local disks",
                subject=path,
            )
        else:
            what = (
                f"the engine runs as root and cannot read {path}; a possible cause is a parent "
                "folder on a network file system that denies access to root (root_squash)"
            )
            fix = (
                f"on {seen.host}: namei -l {quoted(path)}  # then run chmod o+x on the printed folders, "
                "or add the first folder that root cannot open under mounts: in hosts.yaml"
            )
            yield error(what, fix, subject=path)


CHECKS = (
    Check("mount-there", "sources of mounts exist", host=_there, probes=(PLACES,)),
    Check(
        "mount-access",
        "ranks can read mounts, and write to mounts that are not read-only",
        host=access,
        probes=(PLACES,),
    ),
    Check("mount-room", "writable mounts have free space", host=_room, probes=(PLACES,)),
    Check(
        "mount-same",
        "each mounted folder is shared by all hosts or local on all hosts",
        whole=_same,
        probes=(PLACES,),
    ),
    Check(
        "mount-links",
        "symbolic links in mounted folders are valid in containers",
        host=_links,
        probes=(PLACES,),
    ),
    Check(
        "engine-sees",
        "the engine can access the mounted folders and the state directory",
        host=_sees,
        probes=(SEES,),
    ),
)
