"""What an unquoted YAML scalar means, and which ones mean something else than they seem to."""

from __future__ import annotations

import re

Value = str | int | float | bool | None

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*|\.[0-9]+")

# Python refuses to convert very long digit strings; no number in the file needs more than these.
_MOST_DIGITS = 18
_TOO_LONG = "is too long for a number; put it in quotes if it is text"

# The patterns below take quadratic time, so that longer texts are told apart by one that does not.
_LONGEST_READ = 100
_NUMBERLIKE = re.compile(r"[-+0-9_.:eE]+")

# Everything that YAML 1.1, YAML 1.2 and a person's eye do not agree on (https://yaml.org/type/).
_SURPRISES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF"),
        "is a boolean to some YAML readers; write true or false, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"),
        "is a number in base 60 to YAML; put it in quotes if it is text",
    ),
    (
        re.compile(r"[-+]?0[0-9_]+"),
        "starts with 0 and is octal to some YAML readers; drop the 0, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?0([xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)"),
        "is a number in another base to YAML; write it in decimal, or put it in quotes",
    ),
    (
        re.compile(r"(?=.*_)[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"),
        "is a number with '_' in it to YAML; drop the '_', or put it in quotes",
    ),
    (
        re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+|[-+]\.[0-9]+"),
        "is a number to some YAML readers and text to others; write it out, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        "is infinity or not-a-number to YAML; put it in quotes if it is text",
    ),
    (
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"),
        "is a date to YAML; put it in quotes if it is text",
    ),
    (re.compile(r"="), "has a special meaning in YAML; put it in quotes"),
)


def plain(text: str) -> tuple[Value, str]:
    """Return the value of an unquoted scalar and what is wrong with it (empty: nothing).

    When something is wrong the value is the text itself. Accepted are null, true and false, decimal
    integers, and decimal numbers with a point; everything else is text.
    """
    if text in _NULL:
        return None, ""
    if text in _BOOL:
        return _BOOL[text], ""
    if text[0].isalpha() and len(text) > 3:
        return text, ""  # most scalars: no pattern below can match
    if len(text) > _LONGEST_READ:
        return text, _TOO_LONG if _NUMBERLIKE.fullmatch(text) else ""
    for pattern, complaint in _SURPRISES:
        if pattern.fullmatch(text):
            return text, complaint
    if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            return text, _TOO_LONG
        return (int(text) if _INT.fullmatch(text) else float(text)), ""
    return text, ""
