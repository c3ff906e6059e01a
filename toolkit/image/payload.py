"""An image as the payload of a transfer chain: its layers, in archives for `docker load`."""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable, Mapping

from toolkit.image.archive import Archive, make_archives, read_chunks
from toolkit.image.layers import ImageLayers, groups_for, groups_of
from toolkit.image.source import ImageSource
from toolkit.transfer.payload import Segment
from toolkit.transfer.tee_reader import Tap


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
