"""The network of two practice hosts, measured through the command."""

from __future__ import annotations

import pytest

from tests.e2e.world import Toolkit

pytestmark = pytest.mark.lab


def test_pairs_and_allreduce_are_measured(up: Toolkit) -> None:
    words = ("bench", "network", "--seconds", "0.2", "--most", "1", "--budget", "5")
    done = up.run(*words, "--report", "net.html", "--json", check=True)
    found = done.json
    assert [(p["from"], p["to"]) for p in found["pairs"]] == [("box1", "box2"), ("box2", "box1")]
    assert all(p["mbit"] > 10 and 0 < p["latency_us"] < 1e5 for p in found["pairs"])
    assert [p["bytes"] for p in found["allreduce"]] == [1024 * 4**k for k in range(6)]
    assert found["engine"] == "mpi" and found["faults"] == []
    page = (up.folder / "net.html").read_text()
    assert "slowest link" in page and "box2" in page
    gloo = up.run("bench", "network", "--seconds", "0", "--most", "1", "--engine", "gloo", check=True)
    assert "all-reduce (gloo)" in gloo.out


def test_nonsense_is_refused_before_anything_is_contacted(two: Toolkit) -> None:
    done = two.run("bench", "network", "--streams", "0", "--engine", "nccl2")
    assert done.status == 2 and "--streams" in done.err and "--engine" in done.err
