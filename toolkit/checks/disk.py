"""Checks of room on the hosts' disks: for the image, for our state folder, in the home."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.engine import engine_info
from toolkit.checks.model import Check, Probe, Scene, Seen, error, fine, unchecked, warning
from toolkit.checks.places import PLACES, Place, place
from toolkit.core.command import quoted
from toolkit.core.finding import Finding
from toolkit.errors import UnsafeState
from toolkit.launchers import BY_AGENT
from toolkit.protocol.frames import lines_of
from toolkit.protocol.names import IDENTITY_REPOSITORY

GIB, MIB = 2**30, 2**20
# At the most: the containerd store keeps layers as they came beside the unpacked ones. With overlay2 it is
# what is missing and the largest layer once more, but how large those are is known only when they are sent.
TIMES = 2
# What containers, their logs and layers need at the least, and below which engines begin to fail.
LOW, NOTHING = GIB, 100 * MIB
# An image of PyTorch and CUDA has some 50 thousand files.
FILES, FEW_FILES = 100_000, 2_000

# Quotas are kept by file servers and file systems; whoever has none, or no such program, says nothing.
QUOTA = Probe("quota", "! command -v quota >/dev/null || timeout -s KILL 3 quota -q")


def image_place(seen: Seen) -> Place | None:
    """Return where the engine keeps images: under its data root, or with containerd's own data."""
    root, beside = place(seen, "root"), place(seen, "containerd")
    if seen.facts is None or seen.facts.store != "containerd" or beside is None:
        return root
    # An engine that starts its own containerd keeps its data below the data root.
    containerd = engine_info(seen).containerd
    return root if containerd and "docker" in containerd.address else beside


def _old_images(seen: Seen, scene: Scene) -> str:
    """The command that removes images of ours which nothing here uses any more; empty for none."""
    assert seen.facts is not None
    used = {container.image for container in seen.facts.containers}
    wanted = scene.image.identity if scene.image else ""
    tags = [
        tag
        for image in seen.facts.images
        if image.id not in used and image.identity != wanted
        for tag in image.tags
        if tag.startswith(f"{IDENTITY_REPOSITORY}:")
    ]
    return f"on {seen.host}: docker image rm {quoted(*tags)}" if tags and wanted else ""


def _image(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    where = image_place(seen)
    if where is None or not where.size or not seen.facts.docker:
        yield unchecked("the disk of the image store cannot be seen")
        return
    fix = _old_images(seen, scene) or f"on {seen.host}: docker system df; docker image prune"
    room = f"{where.path} has {_size(where.free)} free"
    if "ro" in where.options:
        yield _read_only(seen, where)
    elif scene.image is None or any(i.identity == scene.image.identity for i in seen.facts.images):
        if where.free < NOTHING:
            yield error(f"{room}: containers cannot start", fix)
        elif where.free < LOW:
            yield warning(f"{room}, and containers write there", fix)
    elif where.free < scene.image.size * TIMES:
        need = f"the image needs up to {_size(scene.image.size * TIMES)} while it is unpacked"
        base = scene.image.diff_ids[:1]
        if base and any(image.diff_ids[:1] == base for image in seen.facts.images):
            # Layers that are there do not travel; how large the missing ones are is not known before.
            yield warning(f"{room}; {need}, less what it has already", fix)
        else:
            yield error(f"{room}; {need}", fix)


def _inodes(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    where = image_place(seen)
    if where is None:
        yield unchecked("the disk of the image store cannot be seen")
    elif not where.inodes:
        yield fine("this file system has no fixed number of files")
    else:
        missing = scene.image and not any(i.identity == scene.image.identity for i in seen.facts.images)
        left = f"{where.path} has room for {where.inodes_free} more files"
        fix = f"on {seen.host}: df -i {quoted(where.path)}; docker system df; docker image prune"
        if where.inodes_free < FEW_FILES:
            yield error(f"{left}, whatever its free bytes", fix)
        elif missing and where.inodes_free < FILES:
            yield warning(f"{left}; an image may have more", fix)


def _state(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    there, wanted, user = place(seen, "state"), seen.facts.state_dir, seen.facts.user
    elsewhere = "state_dir: in the hosts file, a folder on the hosts' local disks"
    if isinstance(seen.error, UnsafeState):
        yield error(seen.error.what, seen.error.fix)
    elif there is None or not there.kind:
        yield unchecked("the state folder's disk cannot be seen")
    elif "ro" in there.options:
        yield _read_only(seen, there)
    elif there.locked or "w" not in there.may:
        folder = there.locked[0] if there.locked else there.path
        own = f"on {seen.host}: sudo chown -R {quoted(user, folder)}"
        fix = own if folder.startswith(wanted) else elsewhere
        yield error(f"user {user} may not write to {folder}, where keys and job records go", fix)
    elif there.type.startswith("fuse.") and "allow_other" not in there.options and seen.facts.uid:
        what = f"{there.path} is on {there.type}, where the engine, being root, may not enter"
        yield error(what, elsewhere)
    elif "noexec" in there.options:
        # Seen: mpirun and horovodrun end with "Permission denied", torchrun works.
        fix = f"{elsewhere} that is not; or: sudo mount -o remount,exec MOUNTPOINT"
        if scene.inventory.launcher in BY_AGENT:
            yield error(f"{there.path} is mounted noexec, and mpirun executes a program from there", fix)
        else:
            yield warning(f"{there.path} is mounted noexec: mpirun and horovodrun would fail", fix)
    elif there.size and there.free < NOTHING:
        yield error(
            f"{there.path} has {_size(there.free)} free: no room for keys and job records", _usage(there)
        )
    elif there.size and there.free < LOW:
        yield warning(f"{there.path} has {_size(there.free)} free for code, logs and results", _usage(there))


def _home(seen: Seen, scene: Scene) -> Iterator[Finding]:
    over = [line for line in lines_of(seen.answer(QUOTA)) if "*" in line]
    home = place(seen, "home")
    if over:
        yield error(
            f"its disk quota is used up: {' '.join(over[0].split())}", "remove files; quota -s shows it"
        )
    elif home is None or not home.size:
        yield unchecked("the home's disk cannot be seen")
    elif "w" not in home.may:
        fix = f"on {seen.host}: ls -ld {quoted(home.path)}"
        yield warning(f"the home {home.path} cannot be written to", fix)
    elif home.free < NOTHING:
        yield error(f"the home {home.path} has {_size(home.free)} free", _usage(home))


def _size(count: int) -> str:
    if count < GIB:
        return f"{count / MIB:.0f} MiB"
    return f"{count / GIB:.1f} GiB" if count < 100 * GIB else f"{count / GIB:.0f} GiB"


def _usage(where: Place) -> str:
    return f"remove what is not needed: du -xsh {quoted(where.real or where.path)}/* | sort -h"


def _read_only(seen: Seen, where: Place) -> Finding:
    fix = f"on {seen.host}: sudo dmesg | grep -i 'remount\\|i/o error'; a kernel does so when a disk fails"
    return error(f"{where.path} is on a file system that is mounted read-only", fix)


CHECKS = (
    Check("disk-image", "there is room for the image", host=_image, probes=(PLACES,)),
    Check("disk-inodes", "there is room for the image's files", host=_inodes, probes=(PLACES,)),
    Check("disk-state", "keys and job records can be written", host=_state, probes=(PLACES,)),
    Check("disk-home", "the home has room", host=_home, probes=(PLACES, QUOTA)),
)
