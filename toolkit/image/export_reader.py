"""Image layers read from the archive that the local engine exports.

No program of the image runs. The archive is written to a file first, because the engine exports the layers in
an order of its own, and hosts need only their missing layers. The file is unlinked while it is open, so the
kernel frees it even if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, cast

from toolkit.core.disk_space import size as size_text
from toolkit.core.engines import DOCKER
from toolkit.core.image import ImageFacts, config_identity
from toolkit.core.local_writer import TarHeaders
from toolkit.errors import ToolkitError
from toolkit.image.layer_reader import Unreadable
from toolkit.image.layers import ImageLayers, Layer
from toolkit.protocol.decode import Items, Key, decode_json, load_json
from toolkit.remote.local_image import default_cache

_CHUNK = 2**18
_MOST_JSON = 1 << 24  # bytes of the manifest and of the config
_MOST_MEMBERS = 100_000
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MALFORMED = (tarfile.TarError, OSError, EOFError, zlib.error)
_SPARE = 1.1  # required free space, as a multiple of the image size


@dataclass(frozen=True)
class _Manifest:
    """Entry of manifest.json for one image: paths in the archive."""

    config: Annotated[str, Key("Config")]
    layers: Annotated[tuple[str, ...], Key("Layers"), Items(1000)]


def _export_folder() -> Path:
    """Return TMPDIR if it is set, otherwise a folder in toolkit's cache: /tmp is often in memory."""
    if chosen := os.environ.get("TMPDIR"):
        return Path(chosen)
    try:
        folder = Path(default_cache(os.environ), "exports")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the user has no home, or cannot write there
        return Path(tempfile.gettempdir())
    return folder


def _unwritable(folder: Path, error: OSError) -> Unreadable:
    return Unreadable(
        f"toolkit cannot write the image export to {folder}: {error.strerror}; "
        "set TMPDIR to a writable folder with free space"
    )


class ExportReader:
    """Reader of the layers of one image from its ``docker save`` archive.

    Args:
        save: function that yields the archive.
        image: as the engine reports it.
    """

    def __init__(self, save: Callable[[str], Iterator[bytes]], image: ImageFacts) -> None:
        self._save, self._image = save, image
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int]] = {}  # offset and length of each member
        self._names: tuple[str, ...] = ()

    def describe(self, identity: str, engine: str = DOCKER) -> ImageLayers:
        """Export the image and return its config and layers.

        Args:
            engine: container engine of the cluster's hosts.

        Raises:
            Unreadable: the engine's export is missing, wrong or too large.
        """
        try:
            self._export()
            (manifest,) = decode_json(tuple[_Manifest, ...], self._small("manifest.json"))
            config = self._small(manifest.config)
            if config_identity(load_json(config), engine) != identity:
                raise Unreadable("the container engine on your machine exported a different image")
            self._names = manifest.layers
            pairs = zip(self._image.diff_ids, self._names, strict=True)
            return ImageLayers(config, tuple(Layer(diff_id, self._size(name)) for diff_id, name in pairs))
        except ToolkitError:
            self.close()
            raise
        except Exception as error:  # tarfile raises many kinds for headers that are not valid
            self.close()
            raise Unreadable(
                f"the image export of the container engine on your machine is malformed: {error}"
            ) from error

    def read(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """Yield the concatenated plain tars of some layers; the caller checks their digests.

        Raises:
            Unreadable: the archive is truncated or malformed.
        """
        try:
            for number in numbers:
                yield from self._plain(self._names[number])
        except _MALFORMED as error:
            raise Unreadable(
                f"the image export of the container engine on your machine is malformed: {error}"
            ) from error

    def close(self) -> None:
        """Close and free the archive."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def _export(self) -> None:
        needed, folder = int(self._image.size * _SPARE), _export_folder()
        try:
            free = shutil.disk_usage(folder).free
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise _unwritable(folder, error) from error
        if free < needed:
            raise Unreadable(f"{folder} has less than {size_text(needed)} of free space for the image export")
        for piece in self._save(self._image.id):
            try:
                self._file.write(piece)
                self._file.flush()
            except OSError as error:
                raise _unwritable(folder, error) from error
        self._file.seek(0)
        links: dict[str, str] = {}
        with tarfile.TarFile(fileobj=cast("IO[bytes]", TarHeaders(self._file))) as tar:
            for count, member in enumerate(tar):
                if count >= _MOST_MEMBERS:
                    raise Unreadable(
                        "the image export of the container engine on your machine contains more than "
                        f"{_MOST_MEMBERS} files"
                    )
                if member.isfile():
                    self._places[member.name] = (member.offset_data, member.size)
                elif member.issym():
                    links[member.name] = posixpath.join(posixpath.dirname(member.name), member.linkname)
        # Old engines export two equal layers as a file and a link to it.
        for name, target in links.items():
            with contextlib.suppress(KeyError):
                self._places[name] = self._places[posixpath.normpath(target)]

    def _small(self, name: str) -> bytes:
        if self._places[name][1] > _MOST_JSON:
            raise Unreadable(
                f"{name} in the image export of the container engine on your machine is larger than "
                f"{_MOST_JSON} bytes"
            )
        return b"".join(self._stored(name))

    def _stored(self, name: str) -> Iterator[bytes]:
        """Yield a member. Several readers share the file, so none moves its position."""
        offset, left = self._places[name]
        while left:
            if self._file is None:
                raise Unreadable("toolkit has closed the image export")
            data = os.pread(self._file.fileno(), min(_CHUNK, left), offset)
            if not data:
                raise EOFError("a layer is truncated")
            yield data
            offset, left = offset + len(data), left - len(data)

    def _size(self, name: str) -> int:
        """Return the size of a layer's plain tar in bytes."""
        head = next(self._stored(name), b"")
        if head.startswith((_GZIP, _ZSTD)):
            return sum(map(len, self._plain(name)))
        return self._places[name][1]

    def _plain(self, name: str) -> Iterator[bytes]:
        pieces = self._stored(name)
        first = next(pieces, b"")
        if first.startswith(_ZSTD):
            raise Unreadable("a layer is compressed with zstd, which toolkit cannot read")
        if not first.startswith(_GZIP):
            yield first
            yield from pieces
            return
        inflate = zlib.decompressobj(31)
        for piece in chain((first,), pieces):
            data = piece
            while data:
                if inflate.eof:  # estargz layers have several gzip members
                    inflate = zlib.decompressobj(31)
                # Bounded pieces: a small input can inflate to a very large output.
                yield inflate.decompress(data, _CHUNK)
                data = inflate.unconsumed_tail or inflate.unused_data
        yield inflate.flush()
        if not inflate.eof:
            raise EOFError("a compressed layer is truncated")
