"""Compression of chunks in transit: used if the link is slower than the compression and the chunk shrinks."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# The fastest useful level: 300 to 450 MB/s on one core, more than most links carry.
_LEVEL = 1
_WORTH = 0.95
# After a chunk that did not shrink, this many chunks are not tried; the number doubles each time.
_SKIP, _MOST = 4, 64


class Packer:
    """Compressor for the chunks of one link; it compresses only chunks that shrink."""

    def __init__(self) -> None:
        self._compress = zstd.compress
        self._skip, self._left = _SKIP, 0

    def pack(self, chunk: bytes, worth: bool) -> tuple[bool, bytes]:
        """Return whether the chunk is compressed, and its bytes.

        Args:
            worth: whether the link needs longer for the chunk than the compression.
        """
        if not worth:
            return False, chunk
        if self._left:
            self._left -= 1
            return False, chunk
        packed = self._compress(chunk, _LEVEL)
        if len(packed) < _WORTH * len(chunk):
            self._skip = _SKIP
            return True, packed
        self._left, self._skip = self._skip, min(2 * self._skip, _MOST)
        return False, chunk
