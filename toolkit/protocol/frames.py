"""Sections of one answer of a shell script, delimited so that no content can open another section.

A section is a line ``NONCE NAME LENGTH`` and then LENGTH bytes. The nonce is new in every call. It serves to
find the first section, behind what a login shell prints of its own accord. From there on the lengths lead
from section to section, so what a section contains is never searched.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

# Define `say NAME CONTENT`, and $nonce for programs that print sections. LC_ALL=C, so that a shell counts
# bytes. Only the nonce is filled in.
_SAY = r"""LC_ALL=C; export LC_ALL; nonce=@nonce@
say() { printf '\n%s %s %s\n%s' "$nonce" "$1" "${#2}" "$2"; }
"""
_NONCE = re.compile(r"[0-9a-f]{8,64}")
_END = "end"


class FrameError(ValueError):
    """An answer is truncated, or does not consist of sections."""


def framed_script(text: str, nonce: str) -> str:
    """Return a shell script that prints its sections with ``say NAME CONTENT``.

    Args:
        text: the script; after it the shell exits with 0.
        nonce: 8 to 64 hexadecimal digits, new in every call.
    """
    if not _NONCE.fullmatch(nonce):
        raise ValueError(f"not a nonce: {nonce!r}")
    return f"{_SAY.replace('@nonce@', nonce)}{text}\nsay {_END} ''\nexit 0\n"


def read_frames(data: bytes, nonce: str) -> dict[str, str]:
    """Return the content of each section by its name; bytes that are not UTF-8 become U+FFFD.

    Raises:
        FrameError: the answer ends before its last section, or a section is not where it must be.
    """
    header = re.compile(rb"\n%s ([a-z0-9-]{1,40}) ([0-9]{1,10})\n" % nonce.encode())
    found: dict[str, str] = {}
    head = header.search(data)
    while head is not None:
        name, length = head[1].decode(), int(head[2])
        end = head.end() + length
        if name in found:
            raise FrameError(f"section {name} occurs twice")
        if end > len(data):
            raise FrameError(f"section {name} is truncated")
        if name == _END:
            return found
        found[name] = data[head.end() : end].decode(errors="replace")
        head = header.match(data, end)
    raise FrameError("the last section is missing")


def lines_of(text: str) -> list[str]:
    """Return the lines of a section, split at newlines only: a value can contain every other separator."""
    return text.removesuffix("\n").split("\n") if text else []


# Define `row WORD VALUE…`, which prints a line of values separated by bars. A value with other than harmless
# characters is sent as base64, so that a name with a newline or a bar in it is still one value. Only base64
# starts processes. There are no single quotes, so that it can be part of a script in single quotes.
ROW = r"""row() {
  printf %s "$1"; shift
  for value; do
    case $value in
      *[!-A-Za-z0-9_./:,@+%=\ ]*|=*) printf "|=%s" "$(printf %s "$value" | base64 | tr -d "\n")" ;;
      *) printf "|%s" "$value" ;;
    esac
  done
  echo
}
"""


def _read_cell(text: str) -> str:
    """Return a value that the shell function ``row`` printed; bytes that are not UTF-8 become U+FFFD."""
    if not text.startswith("="):
        return text
    try:
        return base64.b64decode(text[1:], validate=True).decode(errors="replace")
    except ValueError:  # the host has no base64, or did not print this by `row`
        return text


def rows(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the first word and the other values of each line ``WORD|VALUE|VALUE``, see ``ROW``."""
    for line in lines_of(text):
        word, *cells = line.split("|")
        if word:
            yield word, tuple(map(_read_cell, cells))
