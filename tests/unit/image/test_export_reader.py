"""Tests of the file to which an image is exported, and of its removal."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.container_world import PATIENCE_S
from toolkit.core.image import ImageFacts, config_identity
from toolkit.image.export_reader import ExportReader
from toolkit.image.layer_reader import LayerReader, Unreadable, verified

IMAGE = ImageFacts("sha256:1", "0" * 16, ())


def folders_of_export() -> set[Path]:
    """Export an image and return the folders of open files without a name meanwhile."""
    found: set[Path] = set()

    def save(reference: str) -> Iterator[bytes]:
        yield b"x"
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                target = entry.readlink()
                if target.name.endswith(" (deleted)"):
                    found.add(target.parent)

    with pytest.raises(Unreadable):  # one byte is no archive
        ExportReader(save, IMAGE).describe("0" * 16)
    return found


def test_an_export_is_written_to_the_cache_unless_tmpdir_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TMPDIR", raising=False)
    exports = tmp_path / "cache" / "toolkit" / "exports"
    assert exports in folders_of_export() and list(exports.iterdir()) == []
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert tmp_path in folders_of_export()


def test_a_full_disk_is_not_a_malformed_export(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr("toolkit.image.export_reader.tempfile.TemporaryFile", lambda dir: full)
        with pytest.raises(Unreadable, match=r"cannot write the image export to .*: No space left on device"):
            ExportReader(lambda _: iter([b"x"]), IMAGE).describe("0" * 16)


_EXPORTS = """
import sys
from toolkit.core.image import ImageFacts
from toolkit.image.export_reader import ExportReader

def save(reference):
    yield b"x" * 2**20
    print("exports", flush=True)
    sys.stdin.read()

ExportReader(save, ImageFacts("sha256:1", "0" * 16, ())).describe("0" * 16)
"""


def test_a_killed_export_leaves_no_file(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    with subprocess.Popen(
        [sys.executable, "-c", _EXPORTS],
        env={**env, "XDG_CACHE_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"exports\n"
        finally:
            process.kill()
    assert process.wait(PATIENCE_S) == -9
    assert list((tmp_path / "toolkit" / "exports").iterdir()) == []


def reader_of(layer: bytes, plain: bytes) -> tuple[ExportReader, str]:
    """Return the reader of an export with one layer, and the content digest of the image."""
    diff_ids = (f"sha256:{hashlib.sha256(plain).hexdigest()}",)
    config = {"os": "linux", "rootfs": {"type": "layers", "diff_ids": list(diff_ids)}}
    manifest = [{"Config": "config", "Layers": ["layer"]}]
    export = io.BytesIO()
    with tarfile.open(fileobj=export, mode="w") as tar:
        files = {"config": json.dumps(config), "manifest.json": json.dumps(manifest)}
        for name, data in ("layer", layer), *((name, text.encode()) for name, text in files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    identity = config_identity(config)
    image = ImageFacts("sha256:1", identity, diff_ids)
    return ExportReader(lambda _: iter([export.getvalue()]), image), identity


def test_a_layer_of_several_gzip_members_is_read_to_its_end() -> None:
    """Builders of estargz layers start a new member for each file."""
    pieces = [os.urandom(300_000), bytes(3_000_000), b"end"]
    plain = b"".join(pieces)
    reader, identity = reader_of(b"".join(map(gzip.compress, pieces)), plain)
    parts = reader.describe(identity)
    assert [one.size for one in parts.layers] == [len(plain)]
    assert b"".join(verified(reader.read([0]), parts.layers)) == plain
    reader.close()


@pytest.mark.parametrize(
    "layer",
    [
        gzip.compress(b"layer") + b"bytes after the last member",
        gzip.compress(b"layer") + bytes(512),
        gzip.compress(b"layer")[:-8] + bytes(8),
        gzip.compress(b"layer")[:-1],
        b"\x1f\x8b" + bytes(99),
    ],
    ids=["more bytes", "zeros", "wrong sum", "cut", "no header"],
)
def test_a_damaged_layer_makes_the_export_unreadable(layer: bytes) -> None:
    """The engine then gets the whole archive; Go's decompressor accepts no bytes after a member either."""
    reader, identity = reader_of(layer, b"layer")
    with pytest.raises(Unreadable, match="the container engine on your machine is malformed"):
        reader.describe(identity)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_headers_of_headers_make_the_export_unreadable(kind: bytes) -> None:
    """tarfile calls itself for the member that such a header describes."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 12
    member = header.tobuf(tarfile.GNU_FORMAT) + b"12 path=abc\n".ljust(tarfile.BLOCKSIZE, tarfile.NUL)
    with pytest.raises(Unreadable, match="the container engine on your machine is malformed"):
        ExportReader(lambda _: iter([member * 3000]), IMAGE).describe("0" * 16)


@pytest.mark.parametrize("size", [2**36, 2**80])
def test_a_header_that_is_longer_than_its_archive_takes_no_memory(size: int) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    data = header.tobuf(tarfile.GNU_FORMAT)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**35, before[1]))
    try:
        with pytest.raises(Unreadable, match="a header has"):
            ExportReader(lambda _: iter([data]), IMAGE).describe("0" * 16)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("what", ["missing", "no folder"])
def test_a_folder_for_the_export_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It is not an error of the engine's export, which has not started."""
    folder = tmp_path / "chosen"
    if what == "no folder":
        folder.write_text("")
    monkeypatch.setenv("TMPDIR", str(folder))
    words = "No such file or directory" if what == "missing" else "Not a directory"
    with pytest.raises(Unreadable) as caught:
        ExportReader(lambda _: pytest.fail("it was exported"), IMAGE).describe("0" * 16)
    assert caught.value.what == (
        f"toolkit cannot write the image export to {folder}: {words}; "
        "set TMPDIR to a writable folder with free space"
    )


def test_the_container_that_reads_layers_can_open_nothing_else() -> None:
    """DAC_READ_SEARCH alone would let it open any file of the host by its handle."""
    made: dict[str, Any] = {}

    def create(image: str, host_config: dict[str, Any], **config: Any) -> None:
        made.update(host_config, **config)
        raise OSError("none is started")

    api = SimpleNamespace(create_host_config=lambda **limits: limits, create_container=create)
    client = SimpleNamespace(api=api, info=lambda: {"Driver": "overlay2", "DockerRootDir": "/var/lib/docker"})
    with pytest.raises(Unreadable, match="none is started"):
        LayerReader(client, "sha256:1", ["sha256:a"]).describe("identity")
    assert (made["cap_drop"], made["cap_add"]) == (["ALL"], ["DAC_READ_SEARCH"])
    assert (made["network_mode"], made["read_only"], made["auto_remove"]) == ("none", True, True)
    assert made["mounts"] and all(mount["ReadOnly"] for mount in made["mounts"])
    assert "no-new-privileges" in made["security_opt"] and "privileged" not in made
    (profile,) = (word for word in made["security_opt"] if word.startswith("seccomp="))
    rules = json.loads(profile.removeprefix("seccomp="))["syscalls"]
    denied = {name for rule in rules if rule["action"] == "SCMP_ACT_ERRNO" for name in rule["names"]}
    assert denied >= {"open_by_handle_at", "name_to_handle_at", "mount", "setns", "unshare", "ptrace", "bpf"}
