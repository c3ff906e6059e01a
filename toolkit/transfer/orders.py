"""What hosts are told while an image goes from host to host: from whom to take, to whom to give."""

from __future__ import annotations

from dataclasses import dataclass

# In place of a host: this machine.
HERE = ""


@dataclass(frozen=True)
class Take:
    """Tell a host to take chunks from another, or from here."""

    host: str
    giver: str | None


@dataclass(frozen=True)
class Give:
    """Tell a host to give chunks to another; to nobody when that is empty."""

    host: str
    taker: str


@dataclass(frozen=True)
class Feed:
    """Send chunks from here to a host, or no longer."""

    host: str
    wanted: bool = True


@dataclass(frozen=True)
class Drop:
    """Give a host up."""

    host: str
    why: str


Order = Take | Give | Feed | Drop
