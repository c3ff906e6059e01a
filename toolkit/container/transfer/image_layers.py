"""Reads an image's layers from the folders of the local engine, each as the tar of its diff id.

usage: transfer.image_layers STORE describe ID DIFF_ID...    one line of JSON: the config, the layers' sizes
       transfer.image_layers STORE read ID N,N... DIFF_ID...    the concatenated tars of these layers

`docker save` exports only complete images, and engines with the overlay2 store write them to their disk
first. This program is sent to a container of the image itself, which mounts the folders read-only and has no
network. The reader checks every tar against its diff id, so this program need not be trusted. It exits when
its standard input is closed.

overlay2: the engine keeps a layer unpacked, and separately all bytes of its tar that are not file content
(https://github.com/vbatts/tar-split). containerd: its content store has the layers as blobs, by digest.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import os
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

ROOT = Path("/store")
CHUNK = 2**20
SEGMENT = 2  # of tar-split's entries; 1 is a file


class Unreadable(Exception):
    """The engine stores its layers in an unknown way."""


class Overlay2:
    """The engine's own store: image/overlay2 and overlay2 below its data root."""

    def __init__(self, image: str, diff_ids: list[str]) -> None:
        self.image, self.diff_ids = image, diff_ids

    def config(self) -> bytes:
        return (ROOT / "image" / "imagedb" / "content" / self.image.replace(":", "/")).read_bytes()

    def _folder(self, number: int) -> Path:
        # An engine knows a layer by the digest of its whole chain (image-spec, config.md, Layer ChainID).
        chain = self.diff_ids[0]
        for diff_id in self.diff_ids[1 : number + 1]:
            chain = f"sha256:{hashlib.sha256(f'{chain} {diff_id}'.encode()).hexdigest()}"
        return ROOT / "image" / "layerdb" / chain.replace(":", "/")

    def _entries(self, number: int) -> Iterator[dict[str, Any]]:
        with gzip.open(self._folder(number) / "tar-split.json.gz", "rb") as lines:
            for line in lines:
                yield json.loads(line)

    def size(self, number: int) -> int:
        total = 0
        for entry in self._entries(number):
            if entry["type"] == SEGMENT:
                payload = entry["payload"] or ""
                total += len(payload) // 4 * 3 - payload.count("=", -2)
            else:
                total += entry.get("size") or 0
        return total

    def write(self, number: int, out: BinaryIO) -> None:
        cache = (self._folder(number) / "cache-id").read_text().strip()
        files = os.open(ROOT / "layers" / cache / "diff", os.O_RDONLY | os.O_DIRECTORY)
        try:
            for entry in self._entries(number):
                if entry["type"] == SEGMENT:
                    out.write(base64.b64decode(entry["payload"] or ""))
                elif entry.get("size"):
                    raw = entry.get("name") or base64.b64decode(entry["name_raw"])
                    name = raw.encode() if isinstance(raw, str) else raw
                    self._copy(files, name.lstrip(b"/"), entry["size"], out)
        finally:
            os.close(files)

    @staticmethod
    def _copy(folder: int, name: bytes, left: int, out: BinaryIO) -> None:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            while left:
                data = os.read(file, min(left, CHUNK))
                if not data:
                    raise Unreadable(
                        f"{name.decode(errors='replace')} is shorter than its size in the layer's metadata"
                    )
                left -= len(data)
                out.write(data)
        finally:
            os.close(file)


class Containerd:
    """containerd's content store: every blob as a file under its digest."""

    def __init__(self, image: str, diff_ids: list[str]) -> None:
        self.diff_ids = diff_ids
        self._config, self._layers = self._find(image, 3)
        if not self._config:
            raise Unreadable("containerd has no manifest with the layers of the image")

    def _blob(self, digest: str) -> Path:
        return ROOT / "content" / "blobs" / digest.replace(":", "/")

    def _find(self, digest: str, depth: int) -> tuple[bytes, list[dict[str, Any]]]:
        """Return the config with these layers and the layers of its manifest, also through an index."""
        subject = json.loads(self._blob(digest).read_bytes())
        if "config" in subject:
            config = self._blob(subject["config"]["digest"]).read_bytes()
            same = json.loads(config)["rootfs"]["diff_ids"] == self.diff_ids
            return (config, subject["layers"]) if same else (b"", [])
        for one in subject["manifests"] if depth else ():
            # Manifests of other platforms are usually missing, and those of signatures are no images.
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                found = self._find(one["digest"], depth - 1)
                if found[0]:
                    return found
        return b"", []

    def config(self) -> bytes:
        return self._config

    def _plain(self, number: int) -> Iterator[bytes]:
        with self._blob(self._layers[number]["digest"]).open("rb") as file:
            head = file.read(4)
            file.seek(0)
            if head == b"\x28\xb5\x2f\xfd":
                raise Unreadable("a layer is compressed with zstd")
            pieces = iter(lambda: file.read(CHUNK), b"")
            yield from _gunzip(pieces) if head.startswith(b"\x1f\x8b") else pieces

    def size(self, number: int) -> int:
        path = self._blob(self._layers[number]["digest"])
        if self._layers[number]["digest"] == self.diff_ids[number]:
            return path.stat().st_size
        return sum(map(len, self._plain(number)))

    def write(self, number: int, out: BinaryIO) -> None:
        for piece in self._plain(number):
            out.write(piece)


def _gunzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=31)
    for piece in pieces:
        while piece:
            yield inflate.decompress(piece)
            piece = inflate.unused_data
            if inflate.eof:  # pigz and estargz write several gzip members
                inflate = zlib.decompressobj(wbits=31)
    yield inflate.flush()


STORES: dict[str, type[Overlay2] | type[Containerd]] = {"overlay2": Overlay2, "containerd": Containerd}


def _end(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the thread below waits forever


def _watch() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(1)


def main() -> None:
    threading.Thread(target=_watch, daemon=True).start()
    kind, what, image, *rest = sys.argv[1:]
    try:
        if what == "describe":
            store = STORES[kind](image, rest)
            with ThreadPoolExecutor(4) as pool:  # compressed layers are inflated in parallel
                sizes = list(pool.map(store.size, range(len(rest))))
            description = {"config": base64.b64encode(store.config()).decode(), "sizes": sizes}
            sys.stdout.write(json.dumps(description) + "\n")
        else:
            store = STORES[kind](image, rest[1:])
            with os.fdopen(1, "wb", CHUNK, closefd=False) as out:
                for number in rest[0].split(","):
                    store.write(int(number), out)
    except (OSError, ValueError, LookupError, TypeError, EOFError, zlib.error, Unreadable) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        _end(3)
    _end(0)
