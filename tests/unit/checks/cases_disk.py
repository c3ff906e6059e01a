"""Cases of room on the hosts' disks."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.checks.recorded import GIB, HOME, place, places
from tests.unit.checks.scenes import Case, info, scene, with_host, with_image
from tests.unit.cluster_world import IMAGE
from toolkit.checks.model import Scene
from toolkit.core.finding import Verdict
from toolkit.errors import UnsafeState
from toolkit.protocol.names import identity_reference

_MIB = 2**20
_OLD = replace(IMAGE, id="sha256:" + "3" * 64, identity="e" * 16, tags=(identity_reference("e" * 16),))
# The image of the name in hosts.yaml, before `up` sends a newer one.
_NAMED = replace(_OLD, tags=("toolkit:cpu", *_OLD.tags, f"toolkit@sha256:{'d' * 64}"))
# With a name that the user assigned, for example to return to the image later.
_KEPT = replace(_OLD, tags=("trainer:v1", *_OLD.tags))
_PRUNE = "on gpu2: docker image prune  # docker system df shows"
_UNRELATED = replace(_OLD, diff_ids=("sha256:" + "c" * 64,))
# Rows as quota-tools print them: blocks, soft limit, hard limit, grace; then the same for files.
_QUOTAS: tuple[tuple[Verdict, str, tuple[str, ...]], ...] = (
    ("ok", "", ("  1000    1024    2048               4       0       0        ",)),
    ("warning", "cannot write after the grace period: /dev/sda1 1048*", ("1048* 1024 2048 6days 4 0 0",)),
    ("warning", "cannot write after the grace period", ("1048* 1024 0 01:30 9* 8 20 6days",)),
    ("error", "has exceeded the disk quota", ("1048* 1024 2048 none 4 0 0",)),
    ("error", "has exceeded the disk quota", ("2048* 1024 2048 6days 4 0 0",)),
    ("error", "has exceeded the disk quota", ("2048* 0 2048 4 0 0",)),
    ("error", "has exceeded the disk quota", ("1048* 1024 2048 6days 20* 8 20 6days",)),
    ("error", "quota: /dev/sda1 9* 8 9", ("1048* 1024 2048 6days 4 0 0", "9* 8 9 6days 4 0 0")),
)
_STATE = f"{HOME}/.local/state/toolkit/demo/gpu2"


def _root(image_there: bool = True, **changes: object) -> Scene:
    base = scene(places=places(root=place("root", "/var/lib/docker", may="", **changes)))  # type: ignore[arg-type]
    return base if image_there else with_image(with_host(base, "gpu2", {"images": ()}), size=10 * GIB)


def _state(more: str = "", **changes: object) -> Scene:
    return scene(places=places(state=place("state", f"{HOME}/.local", more=more, **changes)))  # type: ignore[arg-type]


def _home(**changes: object) -> Scene:
    return scene(places=places(home=place("home", HOME, **changes)))  # type: ignore[arg-type]


_CONTAINERD = place("root", "/var/lib/docker", may="") + place(
    "containerd", "/var/lib/containerd", may="", free=5 * GIB
)
_BESIDE = with_host(scene(places=places(root=_CONTAINERD)), "gpu2", {"images": (), "store": "containerd"})
_ITS_OWN = replace(
    _BESIDE,
    seen={
        **_BESIDE.seen,
        "gpu2": replace(
            _BESIDE.seen["gpu2"],
            answers={
                **_BESIDE.seen["gpu2"].answers,
                "docker": info(Containerd={"Address": "/var/run/docker/containerd/containerd.sock"}),
            },
        ),
    },
)

_UNSAFE = with_host(
    scene(), "gpu2", error=UnsafeState("the state directory is not safe: /x", "rm /x", "gpu2")
)
_NOEXEC = _state(on="ext4|/dev/vda|rw,nosuid,noexec")

CASES = (
    *(Case(check, "ok", scene()) for check in ("disk-image", "disk-inodes", "disk-state", "disk-home")),
    *(
        Case(check, "not checked", scene(places=""), "is not known")
        for check in ("disk-image", "disk-inodes", "disk-state", "disk-home")
    ),
    Case("disk-image", "error", _root(free=50 * _MIB), "50 MiB free, so containers can fail to start"),
    Case("disk-image", "warning", _root(free=500 * _MIB), "500 MiB free"),
    Case(
        "disk-image",
        "error",
        _root(False, free=11 * GIB),
        "has only 11.0 GiB free, but unpacking the image needs up to 20.0",
    ),
    Case(
        "disk-image",
        "warning",
        with_host(_root(False, free=11 * GIB), "gpu2", {"images": (_OLD,)}),
        "minus the size of layers",
    ),
    Case("disk-image", "error", with_host(_root(False, free=11 * GIB), "gpu2", {"images": (_UNRELATED,)})),
    Case(
        "disk-image",
        "warning",
        with_host(_root(False, free=11 * GIB), "gpu2", {"images": (_NAMED,)}),
        fix=f"on gpu2: docker image rm toolkit:cpu {identity_reference('e' * 16)}",
    ),
    Case(
        "disk-image",
        "warning",
        with_host(_root(False, free=11 * GIB), "gpu2", {"images": (_KEPT,)}),
        fix=_PRUNE,
    ),
    # The next `up` uses it.
    Case(
        "disk-image",
        "warning",
        replace(with_host(_root(False, free=11 * GIB), "gpu2", {"images": (_NAMED,)}), next_image=_NAMED),
        fix=_PRUNE,
    ),
    Case("disk-image", "ok", _root(False, free=21 * GIB)),
    Case("disk-image", "error", _root(on="ext4|/dev/vda|ro,relatime"), "mounted read-only"),
    Case("disk-image", "error", with_image(_BESIDE, size=3 * GIB), "/var/lib/containerd has only 5.0 GiB"),
    Case("disk-image", "ok", with_image(_ITS_OWN, size=3 * GIB)),
    Case("disk-inodes", "error", _root(inodes_free=900), "900 more files"),
    Case("disk-inodes", "warning", _root(False, inodes_free=30_000), "can contain more"),
    Case("disk-inodes", "ok", _root(inodes_free=30_000)),
    Case("disk-inodes", "ok", _root(inodes=0, inodes_free=0, on="btrfs|/dev/vda|rw"), "no fixed number"),
    Case("disk-state", "error", _UNSAFE, "not safe"),
    # The engine can be used anyway.
    Case("docker", "ok", _UNSAFE),
    Case("disk-state", "error", _state(on="ext4|/dev/vda|ro"), "mounted read-only"),
    Case("disk-state", "error", _state(may="rx"), "cannot write to /home/alice/.local"),
    Case("disk-state", "error", _state(f"locked|{_STATE}/jobs\n"), f"cannot write to {_STATE}/jobs"),
    Case("disk-state", "error", _state(on="fuse.sshfs|nas:/home|rw,user_id=1000"), "cannot access"),
    # Podman runs as the SSH user, who can access the folder.
    Case(
        "disk-state",
        "ok",
        with_host(_state(on="fuse.sshfs|nas:/home|rw,user_id=1000"), "gpu2", {"engine": "podman"}),
    ),
    Case(
        "disk-state",
        "error",
        replace(_NOEXEC, inventory=replace(_NOEXEC.inventory, launcher="horovodrun")),
        "noexec",
    ),
    Case("disk-state", "warning", _NOEXEC, "mpirun and horovodrun would fail"),
    Case(
        "disk-state",
        "warning",
        replace(_NOEXEC, inventory=replace(_NOEXEC.inventory, launcher="torchrun")),
        "mpirun and horovodrun would fail",
    ),
    Case("disk-state", "error", _state(free=20 * _MIB), "only 20 MiB free"),
    Case("disk-state", "warning", _state(free=300 * _MIB), "300 MiB free for code"),
    # Whether root may enter is another check's.
    Case("disk-state", "ok", _state(on="nfs4|nas:/home|rw,vers=4.2")),
    *(
        Case("disk-home", verdict, scene(quota="".join(f"/dev/sda1 {row}\n" for row in rows)), words)
        for verdict, words, rows in _QUOTAS
    ),
    Case(
        "disk-home",
        "error",
        _home(free=_MIB),
        "has only 1 MiB free",
        fix="du -xahd1 /home/alice | sort -h",
    ),
    Case("disk-home", "warning", _home(may="rx"), "cannot write to the home folder"),
)
