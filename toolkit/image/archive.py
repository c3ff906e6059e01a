"""Archives for `docker load`: one for each group of layers, made while it is sent, and cut into chunks.

Blobs come first, and last what makes an image of them.
"""

from __future__ import annotations

import contextlib
import tarfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from toolkit.errors import ImageError
from toolkit.image.layers import Group, ImageParts, Layer, blob_name, metadata, part_config
from toolkit.image.source import ImageSource
from toolkit.protocol.chunks import CHUNK
from toolkit.protocol.names import part_name
from toolkit.transfer.payload import cut
from toolkit.transfer.tee_reader import Tap

_END = tarfile.NUL * tarfile.BLOCKSIZE * 2


@dataclass(frozen=True)
class Archive:
    """One group of layers for `docker load`, as chunks from ``first`` up to, not including, ``end``.

    Args:
        name: under which the engine will know it.
        layers: those that are in it.
        about: what makes an image of them; see ``toolkit.image.layers.metadata``.
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


def make_archive(parts: ImageParts, group: Group, identity: str, token: str, first: int = 0) -> Archive:
    """Return the archive of a group: the image itself when it is the last, else an image of its part.

    Args:
        identity: of the whole image.
        token: of this try to send it.
        first: the number of its first chunk.
    """
    whole = group.stop == len(parts.layers)
    config = parts.config if whole else part_config(parts, group.stop, identity)
    name = part_name(identity, token, group.stop)
    layers = parts.unlike(group)
    about = metadata(config, parts.layers[: group.stop], name)
    return Archive(group, name, layers, about, archive_size(layers, about), first)


def make_archives(
    parts: ImageParts, groups: Sequence[Group], identity: str, token: str
) -> tuple[Archive, ...]:
    """Return the archives of groups, with their chunks numbered through."""
    found: list[Archive] = []
    for group in groups:
        first = found[-1].end if found else 0
        found.append(make_archive(parts, group, identity, token, first))
    return tuple(found)


def read_archive(source: ImageSource, one: Archive) -> Iterator[bytes]:
    """Yield an archive's bytes, in pieces of any length; see ``ImageSource.layers`` for errors."""
    with contextlib.closing(source.layers(one.group)) as tap:
        yield from _archive(one, tap)


def read_chunks(source: ImageSource, archives: Sequence[Archive], number: int) -> Iterator[tuple[int, bytes]]:
    """Yield chunks with their numbers, from one on."""
    wanted = [one for one in archives if one.end > number]
    with contextlib.ExitStack() as stack:
        taps: list[Tap] = []
        for index, one in enumerate(wanted):
            # While one is read, the next begin: a reader takes a third of a second to start.
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

    The metadata come last: what is cut off before has made no image, and the engine forgets it.

    Args:
        layers: those that are in it, without repetitions.
        plain: their tars, one behind the other, in pieces of any length.
        metadata: see ``toolkit.image.layers.metadata``.

    Raises:
        ImageError: there are more or fewer bytes than the layers have.
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
    """Cuts a stream of pieces where layers end."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = (piece for piece in pieces if piece), b""

    def take(self, count: int) -> Iterator[bytes]:
        while count:
            piece = self._rest or next(self._pieces, b"")
            if not piece:
                raise ImageError("a layer ended early", "run the command again")
            self._rest = piece[count:]
            count -= min(count, len(piece))
            yield piece[: len(piece) - len(self._rest)]

    def end(self) -> None:
        if self._rest or next(self._pieces, b""):
            raise ImageError("a layer is longer than it was", "run the command again")
