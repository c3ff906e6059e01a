"""An image as a payload: archives for `docker load`, one per group of layers, generated while it is sent.

The blobs come first; the metadata that makes an image of them comes last.
"""

from __future__ import annotations

import contextlib
import tarfile
import threading
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from toolkit.errors import ImageError
from toolkit.image.layers import (
    Group,
    ImageLayers,
    Layer,
    blob_name,
    groups_for,
    groups_of,
    metadata,
    part_config,
)
from toolkit.image.source import ImageSource
from toolkit.protocol.chunks import CHUNK
from toolkit.protocol.names import part_name
from toolkit.transfer.payload import Segment, cut
from toolkit.transfer.tee_reader import Tap

_END = tarfile.NUL * tarfile.BLOCKSIZE * 2


@dataclass(frozen=True)
class Archive:
    """One group of layers for `docker load`, as chunks from ``first`` up to, not including, ``end``.

    Args:
        name: the image name in the engine after the load.
        layers: the layers in the archive.
        about: the files that turn the layers into an image; see ``toolkit.image.layers.metadata``.
        size: bytes.
    """

    group: Group
    name: str
    layers: tuple[Layer, ...] = field(repr=False)
    about: tuple[tuple[str, bytes], ...] = field(repr=False)
    size: int
    first: int = 0

    @property
    def end(self) -> int:
        return self.first + -(-self.size // CHUNK)


def make_archive(parts: ImageLayers, group: Group, identity: str, token: str, first: int = 0) -> Archive:
    """Return the archive of a group: the final image for the last group, a partial image for the others.

    Args:
        identity: content digest of the complete image.
        token: identifies this transfer attempt.
        first: number of its first chunk.
    """
    whole = group.stop == len(parts.layers)
    config = parts.config if whole else part_config(parts, group.stop, identity, datetime.now(timezone.utc))
    name = part_name(identity, token, group.stop)
    layers = parts.unique_layers(group)
    about = metadata(config, parts.layers[: group.stop], name)
    return Archive(group, name, layers, about, archive_size(layers, about), first)


def make_archives(
    parts: ImageLayers, groups: Sequence[Group], identity: str, token: str
) -> tuple[Archive, ...]:
    """Return the archives of groups; chunk numbers continue from one archive to the next."""
    found: list[Archive] = []
    for group in groups:
        first = found[-1].end if found else 0
        found.append(make_archive(parts, group, identity, token, first))
    return tuple(found)


def read_archive(source: ImageSource, one: Archive) -> Iterator[bytes]:
    """Yield an archive's bytes, in pieces of arbitrary length; see ``ImageSource.layers`` for errors."""
    with contextlib.closing(source.layers(one.group)) as tap:
        yield from _archive(one, tap)


def read_chunks(source: ImageSource, archives: Sequence[Archive], number: int) -> Iterator[tuple[int, bytes]]:
    """Yield numbered chunks, starting at chunk ``number``."""
    wanted = [one for one in archives if one.end > number]
    with contextlib.ExitStack() as stack:
        taps: list[Tap] = []
        for index, one in enumerate(wanted):
            # Start the next readers in advance: a reader takes about 0.3 s to start.
            for coming in wanted[len(taps) : index + 3]:
                taps.append(stack.enter_context(contextlib.closing(source.layers(coming.group))))
                if coming is not one and coming.layers:
                    threading.Thread(target=taps[-1].prime, daemon=True).start()
            for at, chunk in enumerate(cut(_archive(one, taps[index])), one.first):
                if at >= number:
                    yield at, chunk
            taps[index].close()


def _archive(one: Archive, tap: Tap) -> Iterator[bytes]:
    return archive(one.layers, tap if one.layers else (), one.about)


def archive(
    layers: Sequence[Layer], plain: Iterable[bytes], metadata: Sequence[tuple[str, bytes]]
) -> Iterator[bytes]:
    """Yield an archive of these layers.

    The metadata come last: an archive that is cut off before them creates no image, and the engine
    discards it.

    Args:
        layers: the layers in the archive, without repetitions.
        plain: their concatenated tars, in pieces of arbitrary length.
        metadata: see ``toolkit.image.layers.metadata``.

    Raises:
        ImageError: the stream is longer or shorter than the layers.
    """
    bytes_of = _Bytes(plain)
    for layer in layers:
        yield _header(blob_name(layer.diff_id), layer.size)
        yield from bytes_of.take(layer.size)
        yield _padding(layer.size)
    bytes_of.end()
    for name, content in metadata:
        yield _header(name, len(content)) + content + _padding(len(content))
    yield _END


def archive_size(layers: Sequence[Layer], metadata: Sequence[tuple[str, bytes]]) -> int:
    """Return how many bytes ``archive`` yields."""
    sizes = [*(layer.size for layer in layers), *(len(content) for _, content in metadata)]
    return sum(tarfile.BLOCKSIZE + size + len(_padding(size)) for size in sizes) + len(_END)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return tarfile.NUL * (-size % tarfile.BLOCKSIZE)


class _Bytes:
    """A byte stream that is cut at layer boundaries."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = (piece for piece in pieces if piece), b""

    def take(self, count: int) -> Iterator[bytes]:
        while count:
            piece = self._rest or next(self._pieces, b"")
            if not piece:
                raise ImageError(
                    "the container engine on your machine returned only part of the image data",
                    "run the same command again",
                )
            self._rest = piece[count:]
            count -= min(count, len(piece))
            yield piece[: len(piece) - len(self._rest)]

    def end(self) -> None:
        if self._rest or next(self._pieces, b""):
            raise ImageError(
                "the container engine on your machine returned more data than the layers of the image "
                "contain",
                "run the same command again",
            )


class ImagePayload:
    """An image as a payload; a host needs all layers from a certain number on.

    Args:
        identity, token: content digest of the image, and identifier of this attempt.
    """

    def __init__(self, source: ImageSource, parts: ImageLayers, identity: str, token: str) -> None:
        self._source, self._parts, self._identity, self._token = source, parts, identity, token
        self._lock = threading.Lock()
        self._primed: Tap | None = None
        self.archives: tuple[Archive, ...] = ()

    def lay_out(self, needs: Mapping[str, Hashable]) -> dict[str, tuple[Segment, ...]]:
        sizes = [layer.size for layer in self._parts.layers]
        groups = groups_for(sizes, {_first(need) for need in needs.values()})
        self.archives = make_archives(self._parts, groups, self._identity, self._token)
        return {
            host: tuple(one for one in self.archives if one.group.start >= _first(need))
            for host, need in needs.items()
        }

    def order(self, need: Hashable, segments: tuple[Segment, ...]) -> dict[str, object]:
        return {}

    def prime(self, need: Hashable) -> None:
        sizes = [one.size for one in self._parts.layers]
        with self._lock:
            if self._primed is not None:
                return
            self._primed = self._source.layers(groups_of(sizes, _first(need))[0])
        threading.Thread(target=self._primed.prime, daemon=True).start()

    def chunks(self, number: int) -> Generator[tuple[int, bytes], None, None]:
        yield from read_chunks(self._source, self.archives, number)

    def settle(self) -> None:
        if self._primed:
            self._primed.close()


def _first(need: Hashable) -> int:
    assert isinstance(need, int)
    return need
