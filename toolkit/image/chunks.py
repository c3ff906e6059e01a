"""An image's archives as one row of chunks, which hosts take from each other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from toolkit.image.archive import archive, archive_size
from toolkit.image.layers import Group, ImageParts, Layer, metadata, part_config
from toolkit.image.source import ImageSource
from toolkit.protocol.chunks import CHUNK
from toolkit.protocol.names import part_name
from toolkit.transfer.payload import cut
from toolkit.transfer.tee_reader import Tap


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
