"""A saved image on disk, and streams of it that leave out the layers which a receiver has.

Formats: ``docker save`` before engine 25 writes one folder per layer; since then an OCI layout with
blobs. Both hold manifest.json, which names the config and the layers in order:
https://github.com/moby/docker-image-spec/blob/main/spec.md
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator
from typing import IO

from toolkit.errors import ImageError

_CHUNK = 2**18


class ImageArchive:
    """One image, as the local engine saved it, in a temporary file without a name.

    It goes with ``close``, and with this process however that ends.

    Raises:
        ImageError: it cannot be kept here, or is not a whole image.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._file = tempfile.TemporaryFile(prefix="toolkit-image-")  # noqa: SIM115 - closed by close()
        try:
            for chunk in chunks:
                self._file.write(chunk)
            self._file.flush()
            self._file.seek(0)
            self._tar = tarfile.open(fileobj=self._file)  # noqa: SIM115 - closed by close()
            self._read()
        except (tarfile.TarError, ValueError, LookupError, TypeError) as error:
            self._file.close()
            raise ImageError(f"the saved image cannot be read: {error}", "try again") from error
        except OSError as error:
            self._file.close()
            what = f"the saved image cannot be kept in {tempfile.gettempdir()}: {error}"
            raise ImageError(what, "make room there, or set TMPDIR to a folder that has it") from error
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        members = {m.name: m for m in self._tar.getmembers()}
        entry = json.loads(self._bytes(_member(members, "manifest.json")))[0]
        self.config_name = str(entry["Config"])
        self.config = self._bytes(_member(members, self.config_name))
        self.tags: list[str] = list(entry.get("RepoTags") or ())
        self.diff_ids: tuple[str, ...] = tuple(json.loads(self.config)["rootfs"]["diff_ids"])
        self.layers = [_target(members, name) for name in entry["Layers"]]
        if len(self.layers) != len(self.diff_ids):
            raise ImageError("the saved image is incomplete: layers and diff ids differ in number")

    def _bytes(self, member: tarfile.TarInfo) -> bytes:
        opened = self._tar.extractfile(member)
        if opened is None:
            raise ImageError(f"the saved image lacks {member.name}")
        return opened.read()

    def close(self) -> None:
        self._tar.close()
        self._file.close()

    def missing(self, chains: Collection[tuple[str, ...]]) -> int:
        """Return the index of the first layer that a holder of these layer chains lacks.

        An engine knows a layer by its whole chain from the base up, so only a common beginning counts.
        """
        best = 0
        for chain in chains:
            same = 0
            for ours, theirs in zip(self.diff_ids, chain, strict=False):
                if ours != theirs:
                    break
                same += 1
            best = max(best, same)
        return best

    def size(self, first: int = 0) -> int:
        """Return the bytes of the layers from ``first`` on, as they travel."""
        return sum(m.size for m in self.layers[first:])

    def stream(self, first: int = 0) -> Iterator[bytes]:
        """Yield an archive for ``docker load`` that holds the layers from ``first`` on.

        Engines with the overlay2 store accept an archive without the layers that they have; the
        containerd store needs ``first`` to be 0.
        """
        names = [f"{d.removeprefix('sha256:')}/layer.tar" for d in self.diff_ids]
        config = f"{hashlib.sha256(self.config).hexdigest()}.json"
        manifest = [{"Config": config, "RepoTags": self.tags, "Layers": names}]
        yield from _entry(config, io.BytesIO(self.config), len(self.config))
        sent: set[str] = set()
        for name, member in list(zip(names, self.layers, strict=True))[first:]:
            if name not in sent:
                sent.add(name)
                yield from _layer(name, _Window(self._file.fileno(), member.offset_data, member.size))
        text = json.dumps(manifest).encode()
        yield from _entry("manifest.json", io.BytesIO(text), len(text))
        yield tarfile.NUL * tarfile.BLOCKSIZE * 2


def _member(members: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    if name not in members:
        raise ImageError(f"the saved image lacks {name}", "try again; is the disk full?")
    return members[name]


def _target(members: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    # A layer that stands twice in an image is a symlink in old archives.
    member = _member(members, name)
    if member.issym():
        return _member(members, posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname)))
    return member


def _layer(name: str, raw: _Window) -> Iterator[bytes]:
    head = raw.head(4)
    if head == b"\x28\xb5\x2f\xfd":
        what = "this machine's engine holds a layer of the image compressed with zstd"
        raise ImageError(what, "build the image on this machine anew, or compress it with gzip")
    if not head.startswith(b"\x1f\x8b"):
        yield from _entry(name, raw, raw.size)
        return
    # The containerd store saves layers compressed; `docker load` of an overlay2 store wants them plain
    # under this name, so they are unpacked once into a spool file, whose size the header must tell.
    with tempfile.TemporaryFile(prefix="toolkit-layer-") as plain:
        with gzip.GzipFile(fileobj=raw) as packed:
            while chunk := packed.read(_CHUNK):
                plain.write(chunk)
        length = plain.tell()
        plain.seek(0)
        yield from _entry(name, plain, length)


class _Window(io.RawIOBase):
    """A part of a file, as a file with a place of its own: several hosts read the archive at once."""

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        self._descriptor, self._at, self._end, self.size = descriptor, start, start + size, size

    def readable(self) -> bool:
        return True

    def head(self, count: int) -> bytes:
        return os.pread(self._descriptor, min(count, self._end - self._at), self._at)

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._at
        data = os.pread(self._descriptor, left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data


def _entry(name: str, raw: IO[bytes] | _Window, size: int) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    yield info.tobuf(tarfile.GNU_FORMAT)
    left = size
    while left:
        chunk = raw.read(min(_CHUNK, left))
        if not chunk:
            raise ImageError("the saved image ended early", "try again; is the disk full?")
        left -= len(chunk)
        yield chunk
    if rest := size % tarfile.BLOCKSIZE:
        yield tarfile.NUL * (tarfile.BLOCKSIZE - rest)
