"""Frames in which this machine and hosts send chunks of a transfer: kind, flags, number, length, content."""

from __future__ import annotations

import struct

HEAD = struct.Struct(">cBII")
# Flag of a frame: its content is compressed by zstd.
ZSTD = 1
# Bytes of a chunk, but for a stretch's last. Each host in a line adds the time of one; smaller ones cost
# more work than they save.
CHUNK = 2**18
