"""Which section of docs/troubleshooting.md explains a message, by the words that the section names."""

from __future__ import annotations

from toolkit.cli.explained import EXPLAINED, GAP, OR


def section_of(text: str) -> str:
    """Return the anchor of the section that explains the text of an error, empty when none does.

    Each line is looked at by itself. Of several messages that fit, the one with the most letters counts,
    as it is the most particular; of equal ones the first on the page.
    """
    lines = [" ".join(line.split()) for line in text.splitlines()]
    best, section = 0, ""
    for anchor, words in EXPLAINED.items():
        for message in " ".join(words.split()).split(OR):
            pieces = [piece.strip() for piece in message.split(GAP)]
            weight = sum(map(len, pieces))
            if weight > best and any(_is_in(line, pieces) for line in lines):
                best, section = weight, anchor
    return section


def _is_in(line: str, pieces: list[str]) -> bool:
    """Whether the pieces stand in the line in their order, none of them in the middle of a word."""
    at = 0
    for piece in pieces:
        at = _end_of(piece, line, at)
        if at < 0:
            return False
    return True


def _end_of(piece: str, line: str, at: int) -> int:
    while (at := line.find(piece, at)) >= 0:
        end = at + len(piece)
        # A space in front of the line and behind it: there is no word there to be in the middle of.
        before, after = f" {line}"[at], f"{line} "[end]
        if not (before + piece[:1]).isalnum() and not (piece[-1:] + after).isalnum():
            return end
        at += 1
    return -1
