"""Structured answers of hosts as values, and the error for an invalid answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from toolkit.errors import ToolkitError
from toolkit.protocol.decode import MOST_BYTES, DecodeError, TooLarge, decode, decode_json, load_first

T = TypeVar("T")

_FIX = "toolkit status -v"


@contextmanager
def answer_of(host: str, answer_name: str, if_too_large: str = _FIX) -> Iterator[None]:
    """Turn a DecodeError within the block into the error of a host.

    Args:
        answer_name: name of the expected answer, with its article: ``the job list``.
        if_too_large: fix for an answer with too many bytes or items.

    Raises:
        ToolkitError: names the host, the expected answer, and the field that cannot be read.
    """
    try:
        yield
    except DecodeError as error:
        sender = "the host" if host else "the engine of your machine"
        what = f"toolkit cannot read {answer_name} that {sender} sent: {error}"
        raise ToolkitError(what, if_too_large if isinstance(error, TooLarge) else _FIX, host) from error


class LineStream:
    """A stream of bytes as lines; without a newline no more than ``most`` bytes are kept.

    Args:
        host: that sends them.
    """

    def __init__(self, host: str, most: int = MOST_BYTES) -> None:
        self._host, self._most = host, most
        self._rest = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """Return the lines that the data ends, without their newlines.

        Raises:
            ToolkitError: the line is too long.
        """
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._most:
            what = f"a program on the host sent a line of more than {self._most} bytes"
            raise ToolkitError(what, _FIX, self._host)
        return lines


class Tail:
    """The end of a stream of bytes: at most ``most`` bytes are kept."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, bytearray()

    def take(self, data: bytes) -> None:
        """Add data, and forget what no longer fits."""
        self._kept += data
        del self._kept[: -self._most]

    @property
    def text(self) -> str:
        """The kept bytes as text without empty lines around it."""
        return self._kept.decode(errors="replace").strip("\n")


def read_answer(
    kind: type[T],
    text: str,
    host: str,
    answer_name: str,
    most: int = MOST_BYTES,
    if_too_large: str = _FIX,
) -> T:
    """Return the last line of a program's output, which is JSON; other lines can precede it.

    Args:
        answer_name, if_too_large: see :func:`answer_of`.
        most: characters of the line.

    Raises:
        ToolkitError: see :func:`answer_of`.
    """
    with answer_of(host, answer_name, if_too_large):
        return decode_json(kind, text.rstrip().rpartition("\n")[2], most)


def json_list(kind: type[T], text: str) -> tuple[T, ...]:
    """Return the first JSON array in the text as values of a type; empty if the text contains none.

    Raises:
        DecodeError: the text at the first bracket is no array of such values.
    """
    start = text.find("[")
    if start < 0:
        return ()
    return decode(tuple[kind, ...], load_first(text, start)[0])  # type: ignore[valid-type]
