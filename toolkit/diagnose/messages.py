"""Messages of toolkit with their causes and fixes, and the lookup of a message by the text of an error."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import yaml

from toolkit.core.templates import package_text
from toolkit.hostsfile.yaml import LOADER
from toolkit.protocol.decode import decode

GAP = "…"


@dataclass(frozen=True)
class Message:
    """One message, an entry of messages.yaml.

    Args:
        name: a short name that does not change.
        says: ways to print the message, each as words of one line with ``…`` in place of values.
        cause: one to three sentences.
        fix: a command alone, or sentences.
    """

    name: str
    says: tuple[str, ...]
    cause: str
    fix: str


@dataclass(frozen=True)
class MessageTopic:
    """Messages about one subject, with a title and possibly an introduction."""

    title: str
    messages: tuple[Message, ...]
    about: str = ""


@functools.cache
def topics() -> dict[str, MessageTopic]:
    """Return all topics by name, in the order of the file."""
    return decode(dict[str, MessageTopic], yaml.load(package_text("diagnose/messages.yaml"), Loader=LOADER))


def by_name() -> dict[str, Message]:
    """Return all messages by name."""
    return {message.name: message for topic in topics().values() for message in topic.messages}


def message_of(text: str) -> Message | None:
    """Return the message that explains the text of an error, None if no message does.

    Each line of the text is compared separately. If several messages match, the message with the most letters
    counts, and among equal messages, the first message in the file.
    """
    lines = [" ".join(line.split()) for line in text.splitlines()]
    best, found = 0, None
    for message in by_name().values():
        for way in message.says:
            pieces = [piece.strip() for piece in way.split(GAP)]
            weight = sum(map(len, pieces))
            if weight > best and any(_is_in(line, pieces) for line in lines):
                best, found = weight, message
    return found


def _is_in(line: str, pieces: list[str]) -> bool:
    """Return whether a line contains the pieces in this order, as complete words."""
    at = 0
    for piece in pieces:
        at = _end_of(piece, line, at)
        if at < 0:
            return False
    return True


def _end_of(piece: str, line: str, at: int) -> int:
    while (at := line.find(piece, at)) >= 0:
        end = at + len(piece)
        # With a space added at both ends, the neighbors of the piece always exist.
        before, after = f" {line}"[at], f"{line} "[end]
        if not (before + piece[:1]).isalnum() and not (piece[-1:] + after).isalnum():
            return end
        at += 1
    return -1
