"""Structured answers of hosts as values, and the error for an answer that is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from toolkit.errors import ToolkitError
from toolkit.protocol.decode import MOST_BYTES, DecodeError, decode_json

T = TypeVar("T")


@contextmanager
def answer_of(host: str, asked: str) -> Iterator[None]:
    """Turn a DecodeError within the block into the error of a host.

    Args:
        asked: the subject of the question, with its article: ``the list of its jobs``.

    Raises:
        ToolkitError: names the host, what was asked, and the field that cannot be read.
    """
    try:
        yield
    except DecodeError as error:
        what = f"its answer about {asked} cannot be read: {error}"
        raise ToolkitError(what, "toolkit status -v", host) from error


def read_answer(kind: type[T], text: str, host: str, asked: str, most: int = MOST_BYTES) -> T:
    """Return the last line of a program's output, which is JSON; other lines can precede it.

    Args:
        asked: see :func:`answer_of`.
        most: characters of the line.

    Raises:
        ToolkitError: see :func:`answer_of`.
    """
    with answer_of(host, asked):
        return decode_json(kind, text.rstrip().rpartition("\n")[2], most)
