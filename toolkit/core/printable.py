"""Text for a terminal: that of hosts, containers and ranks, escaped or filtered as a stream; tables."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from enum import Enum

# Bytes of file names that were no UTF-8 when they were decoded; several of them can be a character together.
_BYTES = re.compile("[\udc80-\udcff]+")
# Control characters but newline and tab, line and paragraph separators, bidi controls, lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile("[\n\t]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_COLOR = re.compile("\x1b\\[[0-9;:]*m")
_RESET = "\x1b[0m"
# Within a color sequence (SGR): a color with its values, 38;5;N, 38;2;R;G;B or 38:…, which are no codes.
_VALUES = re.compile("(?<![0-9:])0*[345]8(?:;0*5;[0-9]*|;0*2(?:;[0-9]*){3}|:[0-9:]*)(?![0-9:])")
_DEFAULT_COLOR = "39"
# Codes of SGR that do not pass: conceal, and colors without their values, which terminals read differently.
_REFUSED = frozenset((8, 38, 48, 58))
_LAST_CODE = 107  # terminals that compute with fewer bits take 264 for 8


def counted(number: int, noun: str) -> str:
    """Return ``1 host`` or ``3 hosts``; `noun` forms its plural with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str) -> str:
    r"""Return a text of one or more lines in which no character controls a terminal.

    Newline and tab stay; each other control character, bidi control and lone surrogate is escaped.

    >>> printable("a\x1b[2J\r\nb\u202e")
    'a\\x1b[2J\nb\\u202e'
    """
    if text.isprintable():
        return text
    text = _BYTES.sub(_decoded, text).replace("\r\n", "\n")
    return _UNSAFE.sub(_escaped, text)


def printable_line(text: str) -> str:
    r"""Return the text as one line: ``printable``, with newline and tab escaped as well.

    >>> printable_line("a\nb")
    'a\\nb'
    """
    return _BREAKS.sub(_escaped, printable(text))


def without_color(text: str) -> str:
    r"""Return the text without its color sequences, for a quotation of what a rank printed.

    >>> without_color("\x1b[1;31mError\x1b[0m")
    'Error'
    """
    return _COLOR.sub("", text)


def _decoded(match: re.Match[str]) -> str:
    return match[0].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _SHORT.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class _Within(Enum):
    """The part of a terminal's input that the next character belongs to (ECMA-48)."""

    TEXT = "text"
    ESCAPE = "escape sequence"  # after ESC
    FINAL = "its last byte"  # after ESC and an intermediate byte
    CONTROL = "control sequence"  # after CSI
    STRING = "control string"  # after OSC, DCS, APC, PM or SOS


class TerminalFilter:
    """Filters output of ranks on its way to a terminal: text and colors pass, other sequences are removed.

    Carriage return, newline, tab and backspace pass, because progress bars use them. Other control characters
    are removed, and color sequences that conceal text. A newline or a carriage return ends every sequence, so
    that an unterminated one hides at most the rest of its line.
    """

    # A color sequence with more parameters is removed; no other sequence is held at all.
    LONGEST = 128
    # Color sequences that are repeated at the start of a piece.
    MOST_OPEN = 16
    # Control characters that do not pass, and bytes that a terminal without UTF-8 takes for such.
    _CONTROL = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udc9f]")
    _STRING_ENDS = re.compile("[\x07\n\r\x18\x1a\x1b\x80-\x9f]")

    def __init__(self) -> None:
        # Bytes that are no UTF-8 pass as they are.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._within = _Within.TEXT
        self._parameters = ""
        # Color sequences since the last reset, each once, the latest last. A dict, for its order.
        self._open: dict[str, None] = {}

    def piece(self, data: bytes) -> bytes:
        """Return ``feed(data)`` as a piece that leaves the terminal without colors.

        Open colors are reset at its end and set again at the start of the next piece, so that other text can
        be printed between two pieces at any time.
        """
        before = "".join(self._open).encode()
        shown = self.feed(data)
        if not shown:
            return b""
        return before + shown + (_RESET.encode() if before or self._open else b"")

    def feed(self, data: bytes) -> bytes:
        """Return the text to show for the next bytes; a sequence can begin in one call and end in another."""
        text, at = self._decoder.decode(data), 0
        shown: list[str] = []
        while at < len(text):
            if self._within is _Within.TEXT:
                found = self._CONTROL.search(text, at)
                end = found.start() if found else len(text)
                shown.append(text[at:end])
                if found:
                    shown.append(self._begin(found[0]))
                    end += 1
                at = end
            elif self._within is _Within.STRING:
                found = self._STRING_ENDS.search(text, at)
                at = found.start() if found else len(text)
                if found:
                    self._within = _Within.TEXT  # which removes the end, unless it is a newline
            else:
                at += self._continue(text[at], shown)
        return "".join(shown).encode("utf-8", "surrogateescape")

    def _begin(self, letter: str) -> str:
        """Consume a control character within text; return its replacement."""
        if letter >= "\u2000":  # a control of the direction of text, or a byte
            return "\ufffd"
        if letter == "\x1b":
            self._within = _Within.ESCAPE
        elif letter >= "\x80":
            self._introduce(chr(ord(letter) - 0x40))  # a C1 character is short for ESC and another one
        return ""

    def _introduce(self, letter: str) -> None:
        """Take the character after ESC, which no intermediate byte precedes."""
        self._parameters = ""
        if letter == "[":
            self._within = _Within.CONTROL
        else:
            self._within = _Within.STRING if letter in "]PX^_" else _Within.TEXT

    def _continue(self, letter: str, shown: list[str]) -> int:
        """Take a character within a sequence; return 0 if it does not belong to the sequence, else 1."""
        if " " <= letter <= "/" and self._within is not _Within.CONTROL:
            self._within = _Within.FINAL
        elif " " <= letter <= "?" and self._within is _Within.CONTROL:
            self._parameters = (self._parameters + letter)[: self.LONGEST + 1]
        elif not "0" <= letter <= "~":
            self._within = _Within.TEXT
            return 0
        elif self._within is _Within.ESCAPE:
            self._introduce(letter)
        else:
            color = f"\x1b[{self._parameters}{letter}"
            if self._within is _Within.CONTROL and len(color) <= self.LONGEST and _COLOR.fullmatch(color):
                shown.append(self._color(color))
            self._within = _Within.TEXT
        return 1

    def _color(self, color: str) -> str:
        """Take a color sequence; return it, or nothing if a terminal could conceal text because of it."""
        codes = _VALUES.sub(_DEFAULT_COLOR, self._parameters).split(";")
        numbers = [int(number or "0") for code in codes for number in code.split(":")]
        if max(numbers) > _LAST_CODE or not _REFUSED.isdisjoint(numbers):
            return ""
        resets = [not code.strip("0") for code in codes]
        if any(resets):
            self._open.clear()
        if not all(resets):
            self._open.pop(color, None)
            self._open[color] = None
            if len(self._open) > self.MOST_OPEN:
                del self._open[next(iter(self._open))]
        return color


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in aligned columns; each cell is one line."""
    cells = [[printable_line(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines) + "\n"
