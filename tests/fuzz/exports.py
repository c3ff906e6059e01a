"""Archives of `docker save` that are changed: the reader returns the image's own layers, or refuses them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from toolkit.core.image import ImageFacts, config_identity
from toolkit.errors import ImageError
from toolkit.image.export_reader import ExportReader
from toolkit.image.layer_reader import verified

_SIZES = (0, 1, 511, 512, 5_000, 70_000)
_TYPES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"Z")
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
# Start and length of fields of a header: name, mode, size, time, type, link, magic, prefix.
_FIELDS = ((0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155))
_NAMES = ("blobs/0", "../blobs/0", "/etc/passwd", "", "manifest.json", "\udcff")


@dataclass(frozen=True)
class Export:
    """An archive as the engine's client yields it, and the image that was asked for.

    Args:
        plain: the layers of the image.
    """

    archive: bytes
    image: ImageFacts
    plain: bytes


def make(rng: random.Random) -> Export:
    """Return an export with a few changes, or none."""
    layers = [rng.randbytes(rng.choice(_SIZES)) for _ in range(rng.randint(1, 3))]
    diff_ids = tuple(f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers)
    config = {"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    names = [f"blobs/{number}" for number in range(len(layers))]
    files = {name: _layer(rng, layer) for name, layer in zip(names, layers, strict=True)}
    files["config.json"] = _text(rng, json.dumps(config), names)
    files["manifest.json"] = _text(rng, json.dumps([{"Config": "config.json", "Layers": names}]), names)
    image = ImageFacts("sha256:1", config_identity(json.loads(json.dumps(config))), diff_ids)
    data = bytearray(_archive(rng, files))
    for _ in range(rng.choice((0, 0, 0, 1, 2, 8))):
        _spoil(rng, data)
    return Export(bytes(data), image, b"".join(layers))


def judge(export: Export, folder: Path) -> str:
    """Read an export; return whether it was accepted.

    Raises:
        AssertionError: the reader returned other bytes than those of the image.
        Exception: any other error than a refusal.
    """
    pieces = (export.archive[at : at + 50_000] for at in range(0, len(export.archive), 50_000))
    reader = ExportReader(lambda _: pieces, export.image)
    with patch.dict(os.environ, TMPDIR=str(folder)):
        try:
            parts = reader.describe(export.image.identity)
            read = b"".join(verified(reader.read(range(len(parts.layers))), parts.layers))
        except ImageError:
            return "refused"
        finally:
            reader.close()
    assert read == export.plain, "other bytes than those of the image"
    return "accepted"


def _layer(rng: random.Random, plain: bytes) -> bytes:
    """Return a layer as some engine stores it, possibly damaged."""
    if rng.random() < 0.6:
        return plain
    packed = bytearray(gzip.compress(plain))
    way = rng.randrange(6)
    if way == 0:
        del packed[rng.randrange(len(packed)) :]
    elif way == 1:
        packed += rng.randbytes(20)
    elif way == 2:
        packed[rng.randrange(len(packed))] = rng.randrange(256)
    elif way == 3:
        packed[:4] = b"\x28\xb5\x2f\xfd"
    return bytes(packed)


def _text(rng: random.Random, text: str, names: list[str]) -> bytes:
    """Return a JSON file, sometimes one that is not valid, or that names other files."""
    if rng.random() < 0.85:
        return text.encode()
    others = [{"Config": rng.choice(_NAMES), "Layers": names * rng.choice((0, 1, 2, 600))}]
    return rng.choice(
        (
            *(b"[" * 100_000, b"null", b"[]", b"[1e999]", rng.randbytes(30)),
            *(text[: rng.randrange(len(text))].encode(), text.replace('"', "", 1).encode()),
            json.dumps(others).encode(),
        )
    )


def _archive(rng: random.Random, files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    form = rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    entries = list(files.items())
    if rng.random() < 0.3:
        rng.shuffle(entries)
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in entries:
            if rng.random() < 0.03:
                continue
            member = tarfile.TarInfo(name)
            member.size, member.linkname = len(data), rng.choice(_NAMES)
            if rng.random() < 0.05:
                member.type = rng.choice(_TYPES)
            if form == tarfile.PAX_FORMAT and rng.random() < 0.05:
                member.pax_headers = {"size": rng.choice(("-1", "9" * 11, "9" * 5000, "x", "1e3"))}
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _spoil(rng: random.Random, data: bytearray) -> None:
    """Change a byte, a header, or the blocks of an archive."""
    at = tarfile.BLOCKSIZE * rng.randrange(max(1, len(data) // tarfile.BLOCKSIZE))
    way = rng.randrange(6)
    if way == 0 and data:
        data[rng.randrange(len(data))] = rng.randrange(256)
    elif way == 1:
        del data[rng.randrange(len(data) + 1) :]
    elif way == 2:
        data[at:at] = rng.randbytes(tarfile.BLOCKSIZE)
    elif way == 3:
        data[at:at] = data[: tarfile.BLOCKSIZE * rng.randint(1, 3)]
    elif way == 4:
        header = tarfile.TarInfo("x")
        header.type, header.size = rng.choice(_HEADERS), 12
        block = b"12 path=abc\n".ljust(tarfile.BLOCKSIZE, tarfile.NUL)
        data[at:at] = (header.tobuf(tarfile.GNU_FORMAT) + block) * rng.choice((1, 3, 3000))
    else:
        data[at : at + tarfile.BLOCKSIZE] = _header(rng, data[at : at + tarfile.BLOCKSIZE])


def _header(rng: random.Random, header: bytearray) -> bytearray:
    """Return a header with a changed field and the right sum."""
    if len(header) < tarfile.BLOCKSIZE:
        return header
    start, size = rng.choice(_FIELDS)
    signs = (b"\xff", b"\0", b"7", b"x", b"L", b"S")
    number = b"\x80".ljust(size, b"\xff")  # in base 256
    header[start : start + size] = rng.choice((rng.randbytes(size), number, *(sign * size for sign in signs)))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return header
