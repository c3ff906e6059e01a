"""Pieces in which programs send bytes: chunks of a transfer, and the large message of a test."""

from __future__ import annotations

import struct

# In front of a chunk: kind, flags, number, length of the content.
HEAD = struct.Struct(">cBII")
# Flag of a frame: its content is compressed by zstd.
ZSTD = 1
# Bytes of a chunk, but for a stretch's last. Each host in a line adds the time of one; smaller ones cost
# more work than they save.
CHUNK = 2**18

# The large message that shows whether packets of every size pass between two hosts: bytes of a piece, and how
# many pieces. 64 KiB are many packets of every size that a network has.
PIECE, PIECES = 1 << 14, 4
