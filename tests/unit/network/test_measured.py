"""A measurement as a value: what it says of links and all-reduce, and the page made of it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from toolkit.bench.network import MOST_BYTES, NetworkBench, check_bench
from toolkit.bench.network_html import network_html
from toolkit.container.bench import network
from toolkit.network.measured import (
    Measured,
    Pair,
    Point,
    parse_measured,
    shown_bytes,
    shown_rate,
    shown_time,
)

GIGABIT = 941.5e6


def three(slow: float = GIGABIT) -> Measured:
    names = ("gpu1", "gpu2", "gpu3")
    links = tuple(
        Pair(a, b, slow if "gpu3" in (a, b) else GIGABIT, 60e-6) for a, b in itertools.permutations(names, 2)
    )
    points = (Point(1024, 3, 100e-6), Point(64 * 1024**2, 3, 0.8))
    return Measured(names, links, points, "mpi")


def test_bandwidths_are_those_of_nccl_tests() -> None:
    point = Point(4_000_000, 4, 0.5)
    assert point.algbw == 8_000_000 and point.busbw == 12_000_000
    assert Point(8, 2, 1.0).busbw == Point(8, 2, 1.0).algbw


def test_the_share_of_the_wire() -> None:
    measured = three()
    small, large = measured.allreduce
    assert measured.wire_share(small) is None
    share = measured.wire_share(large)
    assert share == pytest.approx(64 * 1024**2 * 8 * 4 / 3 / 0.8 / GIGABIT)
    assert Measured(("a",), (), (large,)).wire_share(large) is None


def test_the_slowest_link_and_its_cost() -> None:
    assert three().verdict().startswith("the slowest link, from ") and "as long" not in three().verdict()
    text = three(9.4e6).verdict()
    assert "gpu3" in text and "9.4 Mb/s" in text
    one_way = Measured(
        ("a", "b", "c"),
        tuple(
            Pair(x, y, 9.4e6 if (x, y) == ("a", "b") else GIGABIT, 1e-4)
            for x, y in itertools.permutations("abc", 2)
        ),
    )
    assert "from a to b, has 9.4 Mb/s" in one_way.verdict() and "100.2 times as long" in one_way.verdict()
    assert Measured(("a",), ()).verdict().startswith("the job ran on one host, so toolkit measured no link")
    failed = Measured(("a", "b"), (), faults=("a to b: refused", "b to a: refused"))
    assert failed.verdict() == "toolkit measured no link between hosts"


def test_it_survives_json() -> None:
    measured = replace(three(1e7), faults=("gpu1 with gpu9: no route",))
    again = parse_measured(json.dumps(measured.as_json()), "x.json")
    assert [pair.rate for pair in again.pairs] == pytest.approx([pair.rate for pair in measured.pairs])
    assert replace(again, pairs=()) == replace(measured, pairs=())


def test_units_as_text() -> None:
    assert [shown_rate(r) for r in (9.415e9, 95.6e6, 12e3, 7)] == [
        "9.41 Gb/s",
        "95.6 Mb/s",
        "12 kb/s",
        "7 b/s",
    ]
    assert [shown_bytes(s) for s in (512, 65536, 256 * 1024**2)] == ["512 B", "64 KiB", "256 MiB"]
    assert [shown_time(t) for t in (2.791, 1.35e-3, 12.3e-6, 5e-9)] == [
        "2.79 s",
        "1.35 ms",
        "12.3 us",
        "5 ns",
    ]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_is_self_contained_and_shows_every_pair() -> None:
    text = network_html(three(1e7), "<demo>", "2026-01-02 03:04")
    page = _Page()
    page.feed(text)
    assert page.links == [] and "http" not in text.replace("http-equiv", "")
    assert "<demo>" not in text and "&lt;demo&gt;" in text
    assert page.tags.count("td") >= 18 and "svg" in page.tags
    assert page.tags.count("circle") == 2


@pytest.mark.parametrize("count", range(1, 12))
def test_every_pair_meets_once_and_no_host_is_in_two_at_a_time(count: int) -> None:
    made = network.rounds(count)
    met = [pair for meeting in made for pair in meeting]
    assert sorted(met) == list(itertools.combinations(range(count), 2))
    for meeting in made:
        names = [n for pair in meeting for n in pair]
        assert len(names) == len(set(names))
    assert len(made) <= count


def test_the_first_moments_do_not_count() -> None:
    # A bucket of 1 MB at once, then 1 MB/s.
    seen = [(0.0, 10**6)] + [(0.01 * k, 10**4) for k in range(1, 101)]
    assert network.rate_of(seen) == pytest.approx(8e6)
    assert network.rate_of([]) == 0.0
    assert network.rate_of([(0.0, 5), (0.05, 10)]) == pytest.approx(8 * 10 / 0.05)


def test_sizes_of_all_reduces_grow_up_to_the_requested_one() -> None:
    last = [NetworkBench(most=most * 1024**2).words[-1] for most in (256, 300, 4096)]
    assert last == [str(size * 1024**2) for size in (256, 256, 4096)]
    assert NetworkBench(most=0).words[-1] == "--sizes"
    check_bench(NetworkBench(most=MOST_BYTES))
