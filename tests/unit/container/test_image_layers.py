"""Layers out of an engine's folders, as the engines lay them out, and out of folders that are not so."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.container_world import PATIENCE_S
from toolkit.core.host_programs import packed

Entry = tuple[str, bytes | None]
IMAGES: tuple[tuple[Entry, ...], ...] = (
    (("etc", None), ("etc/passwd", b"root:x:0:0\n"), ("empty", b"")),
    (("big", os.urandom(3 * 2**20 + 5)), ("name with blanks ü", b"x" * 513), (".wh.gone", b"")),
    (),
    (("etc/passwd", b"another\n"),),
)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(files: Sequence[Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.size = len(data or b"")
            packed.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


LAYERS = [tar(files) for files in IMAGES]
DIFF_IDS = [digest(layer) for layer in LAYERS]
CONFIG = json.dumps({"os": "linux", "rootfs": {"type": "layers", "diff_ids": DIFF_IDS}}).encode()


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def overlay2(root: Path) -> str:
    """The folders of an engine with the overlay2 store; returns the image's Id."""
    chain = ""
    for number, (files, layer, diff_id) in enumerate(zip(IMAGES, LAYERS, DIFF_IDS, strict=True)):
        chain = digest(f"{chain} {diff_id}".encode()) if chain else diff_id
        folder = root / "image" / "layerdb" / chain.replace(":", "/")
        put(folder / "cache-id", f"cache{number}".encode())
        put(folder / "tar-split.json.gz", gzip.compress(tar_split(layer)))
        (root / "layers" / f"cache{number}" / "diff").mkdir(parents=True)
        for name, data in files:
            # Whiteouts are kept in another form, which no content is read from.
            if data is not None and not name.startswith(".wh."):
                put(root / "layers" / f"cache{number}" / "diff" / name, data)
    put(root / "image" / "imagedb" / "content" / digest(CONFIG).replace(":", "/"), CONFIG)
    return digest(CONFIG)


def tar_split(layer: bytes) -> bytes:
    """Return the part of a tar that tar-split keeps: everything except the content of files.

    See https://github.com/vbatts/tar-split.
    """
    entries, at = [], 0

    def segment(until: int) -> None:
        entries.append({"type": 2, "payload": base64.b64encode(layer[at:until]).decode()})

    with tarfile.open(fileobj=io.BytesIO(layer)) as packed:
        for member in packed:
            segment(member.offset_data)
            name = {"name": member.name}
            if not member.name.isascii():
                name = {"name_raw": base64.b64encode(member.name.encode()).decode()}
            entries.append({"type": 1, **name, **({"size": member.size} if member.size else {})})
            at = member.offset_data + member.size
    segment(len(layer))
    return b"".join(json.dumps({**one, "position": n}).encode() + b"\n" for n, one in enumerate(entries))


def containerd(root: Path, pack: str = "") -> str:
    """containerd's content store, an index of several platforms above the image; returns its digest."""
    packed = {
        "": lambda layer: layer,
        "gzip": gzip.compress,
        "members": lambda layer: gzip.compress(layer[:99]) + gzip.compress(layer[99:]),
        "zstd": lambda layer: b"\x28\xb5\x2f\xfd" + layer,
    }
    blobs = [packed[pack](layer) for layer in LAYERS]
    manifest = {"config": {"digest": digest(CONFIG)}, "layers": [{"digest": digest(blob)} for blob in blobs]}
    other = {"config": {"digest": digest(b"{}")}, "layers": []}
    artifact = {"mediaType": "application/x-unknown", "config": {"digest": digest(b"[]")}, "layers": []}
    # Entries of an index can have any type: other tools add signatures and attestations.
    odd = [
        b"[]",
        b"no JSON",
        *(json.dumps(one).encode() for one in (artifact, {"config": 5}, {"manifests": 5})),
    ]
    kept = [b"[]", *odd, CONFIG, b"{}", *blobs, *(json.dumps(one).encode() for one in (manifest, other))]
    index = {
        "manifests": [
            {"digest": digest(b"absent")},
            {"mediaType": "application/x-unknown"},
            5,
            *({"digest": digest(blob)} for blob in odd),
            {"digest": digest(kept[-1])},
            {"digest": digest(kept[-2])},
        ]
    }
    for blob in (*kept, json.dumps(index).encode()):
        put(root / "content" / "blobs" / digest(blob).replace(":", "/"), blob)
    return digest(json.dumps(index).encode())


WAYS = {
    "overlay2": ("overlay2", overlay2),
    "plain": ("containerd", containerd),
    "gzip": ("containerd", lambda root: containerd(root, "gzip")),
    "several members": ("containerd", lambda root: containerd(root, "members")),
}


def run(root: Path, *words: str, stdin: int | None = None) -> tuple[int, bytes, str]:
    """Run the program as a reader does, with standard input held open."""
    text = packed("transfer.image_layers").replace('Path("/store")', f"Path({json.dumps(str(root))})")
    ours, theirs = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", text, *words], stdin=ours, capture_output=True, timeout=30
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize("way", WAYS)
def test_layers_are_read_as_they_were(tmp_path: Path, way: str) -> None:
    store, lay_out = WAYS[way]
    image = lay_out(tmp_path)
    status, out, err = run(tmp_path, store, "describe", image, *DIFF_IDS)
    assert (status, err) == (0, "")
    said = json.loads(out)
    assert base64.b64decode(said["config"]) == CONFIG and said["sizes"] == [len(layer) for layer in LAYERS]
    for numbers in ("0", "1", "2", "0,1,2,3", "3,1"):
        status, out, err = run(tmp_path, store, "read", image, numbers, *DIFF_IDS)
        assert (status, err) == (0, "")
        assert out == b"".join(LAYERS[int(number)] for number in numbers.split(","))


def test_what_is_laid_out_otherwise_is_said(tmp_path: Path) -> None:
    image = overlay2(tmp_path)
    (tmp_path / "layers" / "cache1" / "diff" / "big").write_bytes(b"short")
    status, _, err = run(tmp_path, "overlay2", "read", image, "1", *DIFF_IDS)
    assert status == 3 and err == "Unreadable: big is shorter than its size in the layer's metadata\n"
    (tmp_path / "layers" / "cache0" / "diff" / "etc" / "passwd").unlink()
    (tmp_path / "layers" / "cache0" / "diff" / "etc" / "passwd").symlink_to("/etc/passwd")
    status, out, err = run(tmp_path, "overlay2", "read", image, "0", *DIFF_IDS)
    assert status == 3 and "OSError" in err and b"root" not in out
    status, _, err = run(tmp_path, "overlay2", "describe", image, *DIFF_IDS[1:])
    assert status == 3 and "FileNotFoundError" in err
    assert run(tmp_path, "zfs", "describe", image)[2] == "KeyError: 'zfs'\n"
    image = containerd(tmp_path, "zstd")
    status, _, err = run(tmp_path, "containerd", "describe", image, *DIFF_IDS)
    assert status == 3 and err == "Unreadable: a layer is compressed with zstd\n"
    status, _, err = run(tmp_path, "containerd", "describe", image, *DIFF_IDS[1:])
    assert status == 3 and "no manifest with the layers of the image" in err


def test_it_ends_with_its_standard_input(tmp_path: Path) -> None:
    text = packed("transfer.image_layers").replace('Path("/store")', f"Path({json.dumps(str(tmp_path))})")
    image = overlay2(tmp_path)
    words = [sys.executable, "-I", "-S", "-c", text, "overlay2", "read", image, "1", *DIFF_IDS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdout.read(1)  # the process blocks on its output: no reader takes the rest
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 1
