"""An archive for `docker load`, made while it is sent: blobs first, and last what makes an image of them."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Sequence

from toolkit.errors import ImageError
from toolkit.image.layers import Layer, blob_name

_END = tarfile.NUL * tarfile.BLOCKSIZE * 2


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
