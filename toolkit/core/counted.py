"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return ``1 host`` or ``3 hosts``; `noun` is one that takes an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
