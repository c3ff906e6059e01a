"""Host lists: many names as one short text, and back."""

from __future__ import annotations

import random
import time

import pytest

from toolkit.protocol.host_list import every_host, host_list, hosts_of_list, slots_list, spans


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["gpu1", "gpu2", "gpu3"], "gpu1, gpu2, gpu3"),
        (["gpu1", "gpu2", "gpu3", "gpu4"], "gpu[1-4]"),
        (["x8", "x9", "x10", "x11"], "x[8-11]"),
        (["node08", "node09", "node10", "node12"], "node[08-10,12]"),
        (["a1", "a2", "a3", "a4", "login", "b1"], "a[1-4], login, b1"),
        # In the order that was given: main comes first.
        (["gpu9", "gpu1", "gpu2", "gpu3", "gpu4"], "gpu9, gpu[1-4]"),
        # Different names, although the numbers are equal or follow.
        (["a1", "a01", "a2", "a02"], "a1, a01, a2, a02"),
        (["a08", "a9", "a10", "a11"], "a08, a9, a10, a11"),
        (["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"], "10.0.0.[1-4]"),
        (["1", "2", "3", "4"], "1, 2, 3, 4"),
    ],
)
def test_a_series_of_numbered_hosts_is_one_word(names: list[str], text: str) -> None:
    assert host_list(names) == text


def test_every_list_names_the_same_hosts_again() -> None:
    chance = random.Random(3)
    for _ in range(2000):
        prefixes, widths = ("gpu", "n1-", "rack2x", ""), (1, 2)
        names = [
            chance.choice(prefixes) + str(chance.randrange(30)).zfill(chance.choice(widths))
            for _ in range(chance.randrange(12))
        ]
        names = list(dict.fromkeys(names))
        if chance.random() < 0.7:
            names.sort()
        words = host_list(names, " ").split()
        assert every_host(words) == tuple(names)


@pytest.mark.parametrize("text", ["gpu[", "gpu[]", "gpu[1-]", "gpu[a-b]", "gpu[3-1]", "gpu[1-999999999]"])
def test_a_word_that_is_no_list_stays_as_it_is(text: str) -> None:
    assert hosts_of_list(text) == (text,)


def test_a_list_is_bounded() -> None:
    begin = time.process_time()
    assert hosts_of_list("gpu[" + ",".join(["1-99999"] * 100_000) + "]")
    assert time.process_time() - begin < 5


def test_slots_and_ranks() -> None:
    assert slots_list((f"gpu{n}", 8) for n in range(1, 5)) == "gpu[1-4] x 8"
    assert slots_list([("a", 1), ("b", 2), ("c", 1)]) == "a x 1, b x 2, c x 1"
    assert spans([0, 1, 2, 5]) == "0-2,5"
