"""The large message by which programs try whether packets of every size pass between two hosts."""

from __future__ import annotations

# Bytes of a piece, and how many pieces: 64 KiB, many packets of every size that a network has.
PIECE, PIECES = 1 << 14, 4
