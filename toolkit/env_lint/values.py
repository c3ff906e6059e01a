"""Checks of a value by kind. Each check parses the value like the library does."""

from __future__ import annotations

import re
from collections.abc import Callable

from toolkit.core.printable import counted
from toolkit.env_lint import lists
from toolkit.env_lint.variables import Complaint, Variable, listed
from toolkit.hostsfile.errors import shown

_YES = ("true", "yes", "on", "y", "t", "enable", "enabled")
_NO = ("false", "no", "off", "n", "f", "disable", "disabled", "none")
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)")
_SIZE = re.compile(r"([0-9]{1,12}) ?([kKmMgG])(?:i?[bB])?")
_SHIFT = {"k": 10, "m": 20, "g": 30}


def judge_value(variable: Variable, value: str) -> Complaint | None:
    """Return the complaint about a value; None if it is good, or empty, which resets most variables."""
    return _KINDS[variable.kind](variable, value) if value else None


def c_number(value: str) -> int:
    """Return the number that C's strtol reads from a text: the one at its beginning, or 0."""
    match = _NUMBER.match(value)
    if not match:
        return 0
    sign, digits = match.groups()
    hexadecimal = digits[:2].lower() == "0x"
    octal = digits.startswith("0") and not hexadecimal and not set(digits) - set("01234567")
    # Past 64 bits C stays at the largest number; Python would refuse thousands of digits.
    number = int(digits[:40], 16 if hexadecimal else 8 if octal else 10)
    return -number if sign == "-" else number


def is_number(value: str) -> bool:
    """Return True if the complete text is one integer."""
    match = _NUMBER.match(value)
    return match is not None and not value[match.end() :].strip()


def _number(variable: Variable, value: str) -> Complaint | None:
    if not is_number(value):
        what = f"{variable.library} reads {variable.name}={shown(value)} as the integer {c_number(value)}"
        return Complaint("warning", what, _as_number(variable, value))
    return _outside(variable, value)


def _outside(variable: Variable, value: str) -> Complaint | None:
    if not variable.words:
        return None
    low, _, high = variable.words[0].partition("..")
    number = c_number(value)
    if number < int(low) or (high and number > int(high)):
        what = (
            f"{variable.name}={shown(value)} is outside the range of {variable.library}: {_range(variable)}"
        )
        fix = f"set {variable.name} to a number ({_range(variable)}), or remove {variable.name}"
        return Complaint("warning", what, fix)
    step = int(variable.words[2]) if len(variable.words) > 2 else 1
    if number > 0 and number % step:
        instead = f"{variable.library} uses the maximum {high} instead of {variable.name}={shown(value)}"
        what = f"{instead}, because the value is not a multiple of {step}"
        return Complaint("warning", what, f"set {variable.name} to a multiple of {step}")
    return None


def _range(variable: Variable) -> str:
    low, _, high = variable.words[0].partition("..")
    return f"{low} to {high}" if high else f"{low} or more"


def _as_number(variable: Variable, value: str) -> str:
    if value.lower() in (*_YES, *_NO):
        return f"set {variable.name}={int(value.lower() in _YES)}"
    if size := _SIZE.fullmatch(value):
        return f"set {variable.name}={int(size[1]) << _SHIFT[size[2].lower()]}"
    return f"set {variable.name} to an integer{f': {_range(variable)}' if variable.words else ''}"


def _switch(variable: Variable, value: str) -> Complaint | None:
    # A word for "no" is read as 0, as intended.
    return None if value.lower() in _NO else _number(variable, value)


def _bytes(variable: Variable, value: str) -> Complaint | None:
    if is_number(value) and 0 < c_number(value) < 1024:
        what = (
            f"{variable.name} is a size in bytes, and {counted(c_number(value), 'byte')} is unusually small"
        )
        return Complaint("warning", what, f"set {variable.name}={c_number(value) << 20} for {value} MiB")
    return _number(variable, value)


def _real(variable: Variable, value: str) -> Complaint | None:
    if re.fullmatch(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", value):
        return None
    what = f"{variable.library} requires a number in {variable.name}"
    return Complaint("warning", what, f"set {variable.name} to a number such as 2.5")


def _whole(variable: Variable, value: str) -> Complaint | None:
    if not _NUMBER.match(value):
        what = f"{variable.library} fails because {variable.name} is not an integer"
        return Complaint("error", what, _as_number(variable, value))
    return _outside(variable, value)


def _yes_or_no(variable: Variable, value: str) -> Complaint | None:
    if value.lower() in ("y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"):
        return None
    what = f"{variable.library} fails because {variable.name} is not 1, 0, true, false, yes or no"
    return Complaint("error", what, f"set {variable.name} to 1 or 0")


def _knows(variable: Variable, value: str) -> Complaint | None:
    return None if value.lower() in map(str.lower, variable.words) else _unknown_word(variable, value, "")


def _exactly(variable: Variable, value: str) -> Complaint | None:
    return None if value in variable.words else _unknown_word(variable, value, " (case-sensitive)")


def _only(variable: Variable, value: str) -> Complaint | None:
    complaint = _knows(variable, value)
    what = f"{variable.library} fails because {variable.name} has an unknown value"
    return complaint and complaint._replace(verdict="error", what=what)


def _unknown_word(variable: Variable, value: str, how: str) -> Complaint:
    words = [word for word in variable.words if not word.isdigit()] or variable.words
    what = f"{variable.library} does not support the value of {variable.name}"
    fix = f"set {variable.name} to one of {listed(words)}{how}, or remove {variable.name}"
    return Complaint("warning", what, fix)


def _counts(variable: Variable, value: str) -> Complaint | None:
    if all(re.fullmatch(r"\s*[1-9][0-9]*\s*", part) for part in value.split(",")):
        return None
    what = f"{variable.library} ignores {variable.name} unless the value is a list of positive integers"
    return Complaint("warning", what, f"set {variable.name} to the number of threads of each rank")


def _mca_number(variable: Variable, value: str) -> Complaint | None:
    return _number(variable, value.strip().rstrip("kKmMgG") if _SIZE.match(value) else value)


def _mca_flag(variable: Variable, value: str) -> Complaint | None:
    words = ("true", "t", "yes", "y", "enabled", "false", "f", "no", "n", "disabled")
    if value.strip() in words or is_number(value):
        return None
    what = f"{variable.name} of {variable.library} must be a number, or true, false, yes or no in lower case"
    return Complaint("warning", what, f"set {variable.name} to 1 or 0")


def _mca_level(variable: Variable, value: str) -> Complaint | None:
    return None if is_number(value) else _only(variable, value)


def _nothing(variable: Variable, value: str) -> None:
    """Accept every value."""


_KINDS: dict[str, Callable[[Variable, str], Complaint | None]] = {
    # C's strtol: "true" is 0, "4M" is 4. number LOW..HIGH [step N]; switch is 0 or not; bytes; real.
    "number": _number,
    "switch": _switch,
    "bytes": _bytes,
    "real": _real,
    # torch raises an error: C++'s stoi or Python's int, and its own reading of yes and no.
    "whole": _whole,
    "yes-or-no": _yes_or_no,
    # One of the words: in any case, in this case, in any case and fatal otherwise.
    "knows": _knows,
    "exactly": _exactly,
    "only": _only,
    # Lists: with ^ in front the others; per function of NCCL; of interfaces; of components of Open MPI.
    "tokens": lists.judge_tokens,
    "per-function": lists.judge_per_function,
    "prefixes": lists.judge_prefixes,
    "interfaces": lists.judge_interfaces,
    "interfaces-or-networks": lists.judge_interfaces_or_networks,
    "components": lists.judge_components,
    "counts": _counts,
    "mca-number": _mca_number,
    "mca-flag": _mca_flag,
    "mca-level": _mca_level,
    "text": _nothing,
}
