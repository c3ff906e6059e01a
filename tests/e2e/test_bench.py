"""The network of two practice hosts, measured through the command."""

from __future__ import annotations

import json

import pytest

from tests.e2e.world import Toolkit, sh

pytestmark = pytest.mark.lab


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts, which no test of this file changes."""
    return standing


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
    gloo = up.run("bench", "network", "--seconds", "0", "--most", "1", "--backend", "gloo", check=True)
    assert "all-reduce (gloo)" in gloo.out


def test_nonsense_is_refused_before_anything_is_contacted(two: Toolkit) -> None:
    done = two.run("bench", "network", "--streams", "0", "--backend", "nccl2")
    assert done.status == 2 and "--streams" in done.err and "--backend" in done.err


# What a rank was given of what is tuned, and a sum that all ranks must agree on to get right.
_RANK = """
import os, numpy
from mpi4py import MPI
ours = ("OMPI_MCA_coll_tuned_", "OMPI_MCA_btl_tcp_flags")
env = {name: value for name, value in os.environ.items() if name.startswith(ours)}
rules = env.get("OMPI_MCA_coll_tuned_dynamic_rules_filename")
total = numpy.empty(2**18, "float32")
MPI.COMM_WORLD.Allreduce(numpy.full(2**18, MPI.COMM_WORLD.rank + 1, "float32"), total)
print("told", sorted(env.items()), open(rules).read().split() if rules else "", set(total.tolist()))
"""


@pytest.mark.rare
def test_what_is_tuned_reaches_the_ranks_of_just_these_hosts(up: Toolkit) -> None:
    (tuned,) = up.run("network", "tune", "--budget", "4", "--json", check=True).json["tuned"]
    assert {row[0] for row in tuned["timings"]} == {"default", "streamed"}
    assert [host[0] for host in tuned["hosts"]] == ["box1", "box2"]
    (kept,) = up.run("network", "explain", "--json", check=True).json["tuned"]
    assert [host[0] for host in kept["hosts"]] == ["box1", "box2"]

    # Whatever was quickest on this machine now: a choice that shows.
    flags = {"OMPI_MCA_btl_tcp_flags": "9", "OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}
    text = json.dumps({"tuned": [{**tuned, "env": flags, "rules": [[0, 0, 0], [65536, 5, 65536]]}]})
    (path,) = sh("box1", "ls /home/trainer/.local/state/toolkit/*/box1/conf/tuned.json").split()
    sh("box1", f"cat >{path} <<'END'\n{text}\nEND")

    def told(*options: str) -> list[str]:
        done = up.run("run", "--launcher", "mpirun", *options, "--", "python3", "-c", _RANK, check=True)
        return [line for line in done.out.splitlines() if "] told" in line]

    lines = told()
    assert len(lines) == 2, lines
    for line in lines:
        assert "('OMPI_MCA_btl_tcp_flags', '9')" in line and "{3.0}" in line
        assert "['1', '2', '1', '2', '2', '0', '0', '0', '0', '65536', '5', '0', '65536']" in line
    assert all(
        "('OMPI_MCA_btl_tcp_flags', '1')" in line for line in told("--env", "OMPI_MCA_btl_tcp_flags=1")
    )
    assert ["told [] " in line for line in told("--only", "box2")] == [True], "other ranks"
    assert up.run("network", "tune", "--forget", "--json", check=True).json["forgotten"]
    assert all("told [] " in line for line in told())
