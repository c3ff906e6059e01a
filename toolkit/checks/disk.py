"""Checks of free disk space on the hosts: for the image, the state directory and the home folder."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks.engine import engine_info
from toolkit.checks.model import Check, Probe, Scene, Seen, error, fine, unchecked, warning
from toolkit.checks.places import PLACES, Place, place
from toolkit.core.command import quoted
from toolkit.core.engines import PODMAN
from toolkit.core.finding import Finding
from toolkit.core.image import listed_name
from toolkit.core.printable import counted
from toolkit.errors import UnsafeState
from toolkit.launchers import BY_AGENT
from toolkit.protocol.frames import lines_of
from toolkit.protocol.names import IDENTITY_REPOSITORY

GIB, MIB = 2**30, 2**20
# The upper bound: the containerd store keeps packed and unpacked layers. overlay2 needs the size
# of the missing layers plus the largest of them, but their sizes are known only when they are sent.
TIMES = 2
# The least free space for containers, their logs and layers, and the limit below which engines fail.
LOW, NOTHING = GIB, 100 * MIB
# An image of PyTorch and CUDA has some 50 thousand files.
FILES, FEW_FILES = 100_000, 2_000

# File servers and file systems keep quotas. Without quotas or the program, a host prints no asterisk.
# An asterisk marks an exceeded limit, but not with -q. With -w, each file system has one line.
QUOTA = Probe("quota", "! command -v quota >/dev/null || timeout -s KILL 3 quota -w")
# Usage, soft limit, hard limit and, while the user can still write, the rest of the grace period.
_OVER = re.compile(r"(\d{1,18})\*\s+\d+\s+(\d{1,18})\b(\s+\d+(?:days|:))?")


def image_place(seen: Seen) -> Place | None:
    """Return the folder of the engine's images: below its data root, or below containerd's data."""
    root, beside = place(seen, "root"), place(seen, "containerd")
    if seen.facts is None or seen.facts.store != "containerd" or beside is None:
        return root
    # An engine that starts its own containerd keeps its data below the data root.
    containerd = engine_info(seen).containerd
    return root if containerd and "docker" in containerd.address else beside


def _old_images(seen: Seen, scene: Scene) -> str:
    """Return the command that removes images created by toolkit and used by no container; empty if none."""
    assert seen.facts is not None
    used = {container.image for container in seen.facts.containers}
    wanted = {image.identity for image in (scene.image, scene.next_image) if image}
    unused = [i for i in seen.facts.images if i.id not in used and i.identity not in wanted]
    names: list[str] = []
    for image in unused:
        # All tags of an image, because the engine keeps the layers of an image that still has a tag.
        tags = [tag for tag in image.tags if "@" not in tag]
        sent = {tag for tag in tags if tag.startswith(f"{IDENTITY_REPOSITORY}:")}
        # As in `toolkit image prune`, an image with another name stays, because the user assigned the name.
        if sent and set(tags) <= sent | {listed_name(scene.inventory.image, tags)}:
            names += tags
    return f"on {seen.host}: {seen.facts.engine} image rm {quoted(*names)}" if names and wanted else ""


def _image(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    where = image_place(seen)
    if where is None or not where.size or not seen.facts.docker:
        yield unchecked("the disk of the image store is not known")
        return
    engine = seen.facts.engine
    prune = f"on {seen.host}: {engine} image prune  # {engine} system df shows the disk usage"
    fix = _old_images(seen, scene) or prune
    room = f"the disk of {where.path} has only {_size(where.free)} free"
    if "ro" in where.options:
        yield _read_only(seen, where)
    elif scene.image is None or any(i.identity == scene.image.identity for i in seen.facts.images):
        if where.free < NOTHING:
            yield error(f"{room}, so containers can fail to start", fix)
        elif where.free < LOW:
            yield warning(f"{room} for containers, their logs and layers", fix)
    elif where.free < scene.image.size * TIMES:
        need = f"unpacking the image needs up to {_size(scene.image.size * TIMES)}"
        base = scene.image.diff_ids[:1]
        if base and any(image.diff_ids[:1] == base for image in seen.facts.images):
            # Layers that the host has are not sent; the size of the missing ones is not known yet.
            yield warning(f"{room}, but {need}, minus the size of layers already on the host", fix)
        else:
            yield error(f"{room}, but {need}", fix)


def _inodes(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    where = image_place(seen)
    if where is None:
        yield unchecked("the disk of the image store is not known")
    elif not where.inodes:
        yield fine("the file system of the image store has no fixed number of inodes")
    else:
        missing = scene.image and not any(i.identity == scene.image.identity for i in seen.facts.images)
        left = f"the file system of {where.path} has room for only {counted(where.inodes_free, 'more file')}"
        fix = (
            f"on {seen.host}: {seen.facts.engine} image prune  # df -i {quoted(where.path)} shows the inodes"
        )
        if where.inodes_free < FEW_FILES:
            yield error(f"{left}, so containers can fail to start", fix)
        elif missing and where.inodes_free < FILES:
            yield warning(f"{left}, but an image can contain more files", fix)


def _state(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    there, wanted, user = place(seen, "state"), seen.facts.state_dir, seen.facts.user
    elsewhere = "in hosts.yaml: set state_dir: FOLDER  # a folder on the hosts' local disks"
    if isinstance(seen.error, UnsafeState):
        yield error(seen.error.what, seen.error.fix)
    elif there is None or not there.kind:
        yield unchecked("the disk of the state directory is not known")
    elif "ro" in there.options:
        yield _read_only(seen, there)
    elif there.locked or "w" not in there.may:
        folder = there.locked[0] if there.locked else there.path
        own = f"on {seen.host}: sudo chown -R {quoted(user, folder)}"
        fix = own if folder.startswith(wanted) else elsewhere
        what = f"user {user} cannot write to {folder}, but toolkit stores files below this folder"
        yield error(what, fix)
    elif (
        there.type.startswith("fuse.")
        and "allow_other" not in there.options
        and seen.facts.uid
        and seen.facts.engine != PODMAN  # it runs as the SSH user
    ):
        what = (
            f"the engine runs as root and cannot access {there.path}, because the folder is on {there.type} "
            "without the option allow_other"
        )
        yield error(what, elsewhere)
    elif "noexec" in there.options:
        # Observed: mpirun and horovodrun exit with "Permission denied", torchrun works.
        find = f"findmnt -no TARGET -T {quoted(there.path)}"
        instead = "in hosts.yaml: set state_dir: to a folder on a disk that is mounted without noexec"
        fix = f'on {seen.host}: sudo mount -o remount,exec "$({find})"  # or {instead}'
        noexec = f"the file system of {there.path} is mounted with noexec"
        if scene.inventory.launcher in BY_AGENT:
            launcher = scene.inventory.launcher
            yield error(f"{noexec}, but {launcher} executes a program in the state directory", fix)
        else:
            yield warning(f"{noexec}, so mpirun and horovodrun would fail", fix)
    elif there.size and there.free < NOTHING:
        yield error(
            f"the disk of {there.path} has only {_size(there.free)} free for SSH keys and job records",
            _usage(seen, there),
        )
    elif there.size and there.free < LOW:
        what = f"the disk of {there.path} has only {_size(there.free)} free for code, logs and results"
        yield warning(what, _usage(seen, there))


def _home(seen: Seen, scene: Scene) -> Iterator[Finding]:
    over = [line for line in lines_of(seen.answer(QUOTA)) if "*" in line]
    full = [line for line in over if not _in_grace(line)]
    home = place(seen, "home")
    fix = f"on {seen.host}: quota -s  # then remove files"
    if over and not full:
        what = "the SSH user has exceeded a soft disk quota, and cannot write after the grace period"
        yield warning(f"{what}: {' '.join(over[0].split())}", fix)
    if full:
        yield error(f"the SSH user has exceeded the disk quota: {' '.join(full[0].split())}", fix)
    elif home is None or not home.size:
        yield unchecked("the disk of the home folder is not known")
    elif "w" not in home.may:
        fix = (
            f"on {seen.host}: ls -ld {quoted(home.path)}  # then make the SSH user the owner of the home "
            "folder, and run chmod u+w on this folder"
        )
        yield warning(f"the SSH user cannot write to the home folder {home.path}", fix)
    elif home.free < NOTHING:
        yield error(
            f"the disk of the home folder {home.path} has only {_size(home.free)} free", _usage(seen, home)
        )


def _in_grace(line: str) -> bool:
    """Return True if the user can still write, although an asterisk marks an exceeded limit."""
    limits = _OVER.findall(line)
    return bool(limits) and all(grace and not 0 < int(hard) <= int(used) for used, hard, grace in limits)


def _size(count: int) -> str:
    if count < GIB:
        return f"{count / MIB:.0f} MiB"
    return f"{count / GIB:.1f} GiB" if count < 100 * GIB else f"{count / GIB:.0f} GiB"


def _usage(seen: Seen, where: Place) -> str:
    folder = quoted(where.real or where.path)
    # Hidden folders such as .cache too, which /* omits.
    look = f"du -xahd1 {folder} | sort -h  # can take minutes"
    return f"on {seen.host}: {look}; then remove unneeded files"


def _read_only(seen: Seen, where: Place) -> Finding:
    look = "sudo dmesg | grep -i 'remount\\|i/o error'"
    then = "if the disk has errors, replace the disk; otherwise, remount the file system read-write"
    fix = f"on {seen.host}: {look}  # {then}"
    return error(f"{where.path} is on a file system that is mounted read-only", fix)


CHECKS = (
    Check("disk-image", "the disk has room for the image", host=_image, probes=(PLACES,)),
    Check(
        "disk-inodes",
        "the file system of the image store has room for the files of the image",
        host=_inodes,
        probes=(PLACES,),
    ),
    Check("disk-state", "toolkit can store SSH keys and job records", host=_state, probes=(PLACES,)),
    Check("disk-home", "the home folder has free space", host=_home, probes=(PLACES, QUOTA)),
)
