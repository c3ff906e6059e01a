"""Rates, times and counts: accepted and refused texts, and their formatting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.each import for_each
from toolkit.network import units


@for_each(
    ("read", "text", "value"),
    [
        (units.rate, "1gbit", 1e9),
        (units.rate, "2.5gbit", 2.5e9),
        (units.rate, "100mbit", 1e8),
        (units.rate, "56kbit", 56e3),
        (units.rate, "300bit", 300),
        (units.seconds, "200us", 200e-6),
        (units.seconds, "1.5ms", 1.5e-3),
        (units.seconds, "0.25s", 0.25),
        (units.seconds, "0s", 0),
        (units.parameters, "25.6M", 25_600_000),
        (units.parameters, "7B", 7_000_000_000),
        (units.parameters, "61.706k", 61_706),
        (units.parameters, "61706", 61_706),
        (units.size, "25MiB", 25 * 2**20),
        (units.size, "64MB", 64_000_000),
    ],
)
def test_accepted_texts(read: Callable[[str], float], text: str, value: float) -> None:
    assert read(text) == pytest.approx(value, rel=1e-12)


@for_each(
    ("read", "text"),
    [
        *(
            (units.rate, t)
            for t in ("", "1", "1Gbit", "1 gbit", "1gb", "1GB/s", "-1gbit", "1e9bit", "01gbit")
        ),
        *((units.rate, t) for t in ("0gbit", "0.1bit", "20000gbit", "1gbit\n", "١gbit", "1" * 500 + "bit")),
        *((units.seconds, t) for t in ("", "1", "200µs", "1m", "-1s", "inf s", "90000s", "1_0s")),
        *((units.parameters, t) for t in ("", "0", "M", "25.6m", "1K", "0.1", "1e6", "99999B")),
        *((units.size, t) for t in ("", "25", "25mb", "1B", "2048GiB", "25 MiB")),
    ],
)
def test_refused_texts(read: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match=r"^should be .*, found "):
        read(text)


@for_each(
    ("tell", "value", "text"),
    [
        (units.rate_text, 1e7, "10 Mb/s"),
        (units.rate_text, 9.415e9, "9.41 Gb/s"),
        (units.rate_text, 999.9e6, "1 Gb/s"),
        (units.rate_text, 999.4e6, "999 Mb/s"),
        (units.rate_text, 1e13, "10000 Gb/s"),
        (units.rate_text, 56e3, "56 kb/s"),
        (units.rate_text, 300, "300 b/s"),
        (units.bytes_text, 102_228_128, "102 MB"),
        (units.bytes_text, 39_720, "39.7 kB"),
        (units.bytes_text, 8, "8 B"),
        (units.bytes_text, 27e9, "27 GB"),
        (units.count_text, 25_557_032, "25.6 M"),
        (units.count_text, 6.738e9, "6.74 B"),
        (units.count_text, 9930, "9.93 k"),
        (units.count_text, 12, "12"),
        (units.seconds_text, 0, "0 s"),
        (units.seconds_text, 0.29224, "0.292 s"),
        (units.seconds_text, 85.53, "85.5 s"),
        (units.seconds_text, 1234.5, "1234 s"),
        (units.seconds_text, 0.0012, "1.2 ms"),
        (units.seconds_text, 0.00031, "310 us"),
        (units.seconds_text, 0.09999, "0.1 s"),
    ],
)
def test_formatting(tell: Callable[[float], str], value: float, text: str) -> None:
    assert tell(value) == text
