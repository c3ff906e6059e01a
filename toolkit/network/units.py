"""Rates, times and counts: parsing from a command line, and formatting as text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolkit.hostsfile.errors import shown

_NUMBER = re.compile(r"((?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,9})?)([A-Za-z]*)")

_RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}
_SIZES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}


def rate(text: str) -> float:
    """Return a rate such as ``1gbit``, ``2.5gbit`` or ``100mbit`` in bits per second.

    Raises:
        ValueError: it has another form, is not positive, or is above 10 Tb/s.
    """
    value = _read(text, _RATES, "a number with bit, kbit, mbit or gbit, as in 1gbit")
    return _within(value, 1, 1e13, "1bit to 10000gbit", text)


def seconds(text: str) -> float:
    """Return a time such as ``200us``, ``1.5ms`` or ``0.25s`` in seconds.

    Raises:
        ValueError: it has another form, or is longer than a day.
    """
    value = _read(text, _TIMES, "a number with us, ms or s, as in 200us")
    return _within(value, 0, 86400, "0s to 86400s", text)


def parameters(text: str) -> int:
    """Return a number of parameters such as ``25.6M``, ``340M``, ``7B`` or ``61706``.

    Raises:
        ValueError: it has another form, is less than one, or is above ten million million.
    """
    value = _read(text, _COUNTS, "a number, optionally with k, M or B (thousands, millions, billions)")
    return round(_within(value, 1, 1e13, "1 to 10000B", text))


def size(text: str) -> int:
    """Return a size such as ``25MiB`` or ``64MB`` in bytes.

    Raises:
        ValueError: it has another form, or is outside 1 KiB to 1 TiB.
    """
    value = _read(text, _SIZES, "a number and a unit (B, kB, MB, GB, KiB, MiB or GiB), such as 25MiB")
    return round(_within(value, 1024, 2.0**40, "1KiB to 1024GiB", text))


def _read(text: str, units: Mapping[str, float], should: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f"should be {should}, found {shown(text)}")
    return float(match[1]) * units[match[2]]


def _within(value: float, least: float, most: float, should: str, text: str) -> float:
    if not least <= value <= most:
        raise ValueError(f"should be {should}, found {shown(text)}")
    return value


def rate_text(bits: float) -> str:
    """Return bits per second as text: ``10 Mb/s``, ``9.42 Mb/s``, ``25 Gb/s``."""
    for unit, scale in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        # Rounding to three figures comes first: 999.9 Mb/s is 1 Gb/s.
        if float(f"{bits:.3g}") >= scale:
            return f"{number_text(bits / scale)} {unit}"
    return f"{number_text(bits)} b/s"


def bytes_text(count: float) -> str:
    """Return a size in decimal units, as for links: ``102 MB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if float(f"{count:.3g}") >= scale:
            return f"{number_text(count / scale)} {unit}"
    return f"{number_text(count)} B"


def count_text(count: float) -> str:
    """Return a count as text: ``25.6 M``, ``6.74 B`` (billions), ``61.7 k``."""
    for unit, scale in ((" B", 1e9), (" M", 1e6), (" k", 1e3)):
        if float(f"{count:.3g}") >= scale:
            return f"{number_text(count / scale)}{unit}"
    return number_text(count)


def seconds_text(value: float) -> str:
    """Return a time as text, three figures: ``0.292 s``, ``85.5 s``, ``310 us``, ``1.2 ms``."""
    if value == 0:
        return "0 s"
    if float(f"{value:.3g}") < 1e-3:
        return f"{number_text(value * 1e6)} us"
    if float(f"{value:.3g}") < 0.1:
        return f"{number_text(value * 1e3)} ms"
    return f"{number_text(value)} s"


def number_text(value: float) -> str:
    """Return a number with about three figures, without an exponent and trailing zeros."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
