"""Cases of what the hosts file mounts: /data/digits read-only, /scratch/out to be written to."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.checks.recorded import GIB, place, places
from tests.unit.checks.scenes import Case, healthy, scene, with_host
from toolkit.checks.model import Scene

_MIB = 2**20
_NFS = "nfs4|nas:/export/data|rw,vers=4.2"


def _data(**changes: object) -> str:
    return place("mount", "/data/digits", **changes)  # type: ignore[arg-type]


def _out(**changes: object) -> str:
    return place("mount", "/scratch/out", **changes)  # type: ignore[arg-type]


def _told(*lines: str) -> Scene:
    """gpu2 says this about the mounts."""
    return scene(places=places(mounts="".join(lines)))


def _all(**by_host: str) -> Scene:
    """Each host says this about the mounts."""
    base = scene()
    seen = {
        name: healthy(name, one.facts, places=places(mounts=by_host[name]))
        for name, one in base.seen.items()
        if one.facts is not None
    }
    return replace(base, seen=seen)


_NO_MOUNTS = replace(scene(), inventory=replace(scene().inventory, mounts=()))
_HANGS = places(mounts=_data() + "at|mount|/scratch/out\n").removesuffix("looked\n")
_EVERYWHERE = _data(on=_NFS) + _out()
_ELSEWHERE = _data(on="nfs4|old-nas:/data|rw", inode="44:99") + _out()
_SAME_BY_NAME = _data(on="nfs|10.0.0.9:/export/data|rw", inode="77:1632646") + _out()


def _sees(*lines: str) -> Scene:
    return scene(engine_sees="\n".join(lines))


CASES = (
    Case("engine-sees", "ok", _sees("open|state|/home/alice", "open|mount|/scratch/out")),
    Case("engine-sees", "not checked", _sees(""), "did not report which folders it can read"),
    # It is no service of root, so the SSH user's own access counts.
    Case("engine-sees", "ok", with_host(_sees(""), "gpu2", {"engine": "podman"})),
    Case(
        "engine-sees",
        "error",
        _sees("open|state|/home/alice", "shut|state|/home/alice"),
        "cannot access the state directory in /home/alice",
    ),
    Case(
        "engine-sees",
        "error",
        _sees("open|state|/home/alice", "shut|mount|=L3NjcmF0Y2gvYXxi"),
        "cannot read /scratch/a|b",
    ),
    *(
        Case(check, "ok", scene())
        for check in ("mount-there", "mount-access", "mount-room", "mount-same", "mount-links")
    ),
    Case("mount-there", "ok", _NO_MOUNTS, "has no mounts"),
    Case("mount-there", "error", _told(_data(), _out(kind="")), "/scratch/out does not exist"),
    Case("mount-there", "error", _told(_data(), _out(kind=""), "broken\n"), "a broken symbolic link"),
    Case(
        "mount-there",
        "error",
        scene(places=_HANGS),
        "/scratch/out does not respond",
        fix="findmnt -lo TARGET,SOURCE,FSTYPE  # then repair the server of /scratch/out, or the network",
    ),
    Case("mount-there", "not checked", scene(places=""), "did not report the mount source"),
    Case("mount-access", "error", _told(_data(may="x"), _out()), "cannot read /data/digits"),
    Case(
        "mount-access",
        "warning",
        _told(_data(), _out(may="rx")),
        "cannot write to /scratch/out: alice has no",
    ),
    Case(
        "mount-access",
        "warning",
        _told(_data(), _out(on="ext4|/dev/sdb|ro")),
        "the file system is mounted read-only",
    ),
    Case("mount-access", "ok", _told(_data(may="rx", on="iso9660|/dev/sr0|ro"), _out())),
    Case("mount-access", "ok", _told(_data(kind="file", may="r"), _out())),
    Case(
        "mount-room",
        "error",
        _told(_data(), _out(free=_MIB)),
        "of /scratch/out is almost full",
        fix="du -xahd1 /scratch/out | sort -h",
    ),
    Case("mount-room", "warning", _told(_data(), _out(free=GIB // 2)), "0.5 of 900 GiB free"),
    Case("mount-room", "warning", _told(_data(), _out(inodes_free=10)), "room for only 10 more files"),
    Case("mount-room", "ok", _told(_data(free=0), _out())),
    Case("mount-same", "error", _told(_data(kind="file"), _out()), "file on gpu2"),
    Case("mount-same", "warning", _told(_EVERYWHERE), "shared folder only on some hosts"),
    Case("mount-same", "ok", _all(gpu1=_EVERYWHERE, gpu2=_EVERYWHERE, cpu3=_EVERYWHERE)),
    Case("mount-same", "ok", _all(gpu1=_EVERYWHERE, gpu2=_SAME_BY_NAME, cpu3=_EVERYWHERE)),
    Case(
        "mount-same",
        "warning",
        _all(gpu1=_EVERYWHERE, gpu2=_ELSEWHERE, cpu3=_EVERYWHERE),
        "nas:/export/data on gpu1, cpu3; old-nas:/data on gpu2",
    ),
    Case(
        "mount-links",
        "warning",
        _told(_data(more="link|train|/mnt/big/train\nlink|test|../elsewhere/test\n"), _out()),
        "train -> /mnt/big/train (and 1 more)",
        fix="in hosts.yaml: add under mounts: - /mnt/big:/mnt/big:ro",
    ),
    Case(
        "mount-links",
        "warning",
        _told(_data(more="link|test|../elsewhere/test\n"), _out()),
        "test -> ../elsewhere/test",
        fix="in hosts.yaml: add under mounts: - /data/elsewhere:/elsewhere:ro",
    ),
    Case("mount-links", "ok", _told(_data(more="link|a|b/c\nlink|o|/out/x\nlink|p|/usr/share\n"), _out())),
)
