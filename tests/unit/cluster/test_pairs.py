"""Connections that hosts are to try, the answers of their shells, and the programs in their containers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit import cluster_world as world
from tests.unit.container_world import PATIENCE_S
from toolkit.cluster import pairs
from toolkit.cluster.container_probe import look_inside
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.pairs import (
    Ways,
    network_ways,
    parse_ways,
    path_ways,
    together,
    unanswered,
    ways_command,
)
from toolkit.cluster.ports import free_port
from toolkit.cluster.probe_containers import Look, Looked, last_words, parse_line, plan_looks
from toolkit.container.bench import network
from toolkit.core.command import Command, Result
from toolkit.core.facts import Facts
from toolkit.core.host_programs import packed
from toolkit.core.runner import Sink
from toolkit.errors import Unreachable
from toolkit.network.choose import DataPath, Evidence, choose
from toolkit.protocol.decode import DecodeError
from toolkit.protocol.probes import Listening, LookReport

FACTS = world.cluster_facts()
PATHS = choose(world.inventory(), FACTS).paths
PROGRAM = packed("check.container_probe")


def test_every_ordered_pair_is_tried_on_the_ports_of_jobs() -> None:
    ways = path_ways(PATHS, FACTS, 12345)
    assert ways["gpu1"].addresses == ("10.77.0.3", "10.77.0.4")
    assert ways["cpu3"].targets == tuple(
        (a, p) for a in ("10.77.0.2", "10.77.0.3") for p in (12345, 29500, 45000)
    )


def test_free_ports_are_searched_once_for_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def counted(first: int, facts: Facts, address: str) -> int:
        searched.append(address)
        return free_port(first, facts, address)

    monkeypatch.setattr(pairs, "free_port", counted)
    hosts = {f"gpu{n}": world.facts(f"gpu{n}", f"10.0.0.{n}") for n in range(1, 21)}
    paths = {name: DataPath(name, facts.ssh_address, "eth0", "", "") for name, facts in hosts.items()}
    ways = path_ways(paths, hosts, 12345)
    assert {len(way.addresses) for way in ways.values()} == {19}
    assert len(searched) == 3 * len(hosts)


def test_nobody_who_listens_is_called_without_a_word() -> None:
    """A connection that does not log in counts against us at an sshd, ours or anybody's."""
    busy = {**FACTS, "gpu2": replace(FACTS["gpu2"], listening=(("10.77.0.3", 12345), ("0.0.0.0", 29500)))}
    ports = {port for a, port in path_ways(PATHS, busy, 12345)["gpu1"].targets if a == "10.77.0.3"}
    assert ports == {29501, 45000}
    tried = {(a, p) for w in path_ways(PATHS, FACTS, 22).values() for a, p in w.targets}
    assert not any(port == 22 for _, port in tried), "the hosts' own sshd least of all"
    shared = choose(world.inventory(), FACTS).shared
    assert {p for w in network_ways(shared, FACTS).values() for _, p in w.targets} == {45000}


def test_pairs_that_containers_try_are_left_to_them_but_not_their_routes() -> None:
    ways = path_ways(PATHS, FACTS, 12345, ("gpu1", "gpu2"))
    assert {a for a, _ in ways["gpu1"].targets} == {"10.77.0.4"}
    assert ways["gpu1"].addresses == ("10.77.0.3", "10.77.0.4")


SAID = """\
asked
route 10.77.0.3 dev eth0 src 10.77.0.2 uid 1000 \\    cache
route 10.77.0.4 via 10.77.0.1 dev eth1 src 10.77.0.2 uid 1000 \\    cache
open 10.77.0.3:12345
bash: connect: Connection refused
bash: line 1: /dev/tcp/10.77.0.3/29500: Connection refused
bash: line 1: /dev/tcp/10.77.0.4/29500: No route to host
bash: line 1: 4711 Terminated              ( exec 3<> "/dev/tcp/${t%:*}/${t#*:}" && echo "open $t" )
tried
"""
WAYS = Ways(
    ("10.77.0.3", "10.77.0.4", "10.77.0.5"),
    (("10.77.0.3", 12345), ("10.77.0.3", 29500), ("10.77.0.4", 29500), ("10.77.0.5", 29500)),
)


def test_refused_is_told_apart_from_dropped_and_from_no_route() -> None:
    evidence = parse_ways("gpu1", WAYS, SAID)
    assert evidence.tries == {
        ("gpu1", "10.77.0.3", 12345): "open",
        ("gpu1", "10.77.0.3", 29500): "refused",
        ("gpu1", "10.77.0.4", 29500): "unreachable",
        ("gpu1", "10.77.0.5", 29500): "timeout",
    }
    assert evidence.routes == {
        ("gpu1", "10.77.0.3"): "eth0",
        ("gpu1", "10.77.0.4"): "eth1",
        ("gpu1", "10.77.0.5"): "",
    }
    assert (evidence.answer("gpu1", "10.77.0.3"), evidence.answer("gpu1", "1.1.1.1")) == ("open", None)
    assert unanswered(evidence) == {"gpu1": Ways((), (("10.77.0.5", 29500),))}


def test_a_host_without_the_programs_says_nothing_rather_than_no() -> None:
    assert parse_ways("gpu1", WAYS, "") == Evidence()
    assert parse_ways("gpu1", WAYS, "tried\n").routes == {}


def test_the_later_answer_counts() -> None:
    late = parse_ways("gpu1", WAYS, "tried\n")
    both = together((late, parse_ways("gpu1", WAYS, SAID)))
    assert both.tries["gpu1", "10.77.0.3", 12345] == "open" and both.routes


def run_text(programs: str, *targets: str, seconds: float = 1.5) -> str:
    """Run the shell text as on a host that has these programs alone."""
    text = str(ways_command(Ways()).argv[2])
    for name in ("bash", "python3", "ip"):
        if name not in programs.split():
            text = text.replace(f"command -v {name} ", "false ").replace(f"if {name} -V ", "if false ")
    argv = ["sh", "-c", text, "sh", str(seconds), "--", *targets]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


@pytest.mark.parametrize("programs", ["bash", "python3"])
def test_nothing_to_try_takes_no_time(programs: str) -> None:
    start = time.monotonic()
    assert "tried" not in run_text(programs, seconds=100) and time.monotonic() - start < 90


def test_a_host_without_bash_and_python_says_that_nothing_was_tried() -> None:
    assert "tried" not in run_text("", "10.0.0.1:1") and run_text("") == ""


@pytest.mark.parametrize("status", ["1", "127"])  # `ip` of BusyBox; an `ip` whose libraries are missing
def test_an_ip_that_cannot_answer_is_no_missing_route(tmp_path: Path, status: str) -> None:
    (tmp_path / "ip").write_text(f"#!/bin/sh\nexit {status}\n")
    (tmp_path / "ip").chmod(0o755)
    asked = ways_command(Ways(("10.77.0.3",)))
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = [str(word) for word in asked.argv]
    said = subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    assert parse_ways("gpu1", Ways(("10.77.0.3",)), said).routes == {}


# The programs in containers


def told(look: Look) -> dict[str, Any]:
    """Return the arguments of a program: the part of its standard input behind the programs."""
    size = int(str(look.command.argv[-1]))
    assert look.head[:size].decode() == PROGRAM
    value: dict[str, Any] = json.loads(look.head[size:])
    return value


def test_a_container_like_those_of_ranks_is_started_where_the_image_is_and_leaves_nothing() -> None:
    first, second = plan_looks(world.layout(), PROGRAM, "ab" * 16)  # cpu3 has no image yet
    assert (first.host, second.host, first.up) == ("gpu1", "gpu2", False)
    line = " ".join(map(str, second.command.argv))
    for words in (
        "docker run --rm --interactive --name toolkit-demo-check-",
        "--network host",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--user 1000:1000",
        "--device /dev/infiniband/uverbs0",
        "target=/out",
        world.IMAGE.id,
    ):
        assert words in line
    assert "--detach" not in line and "--label" not in line and "target=/run/toolkit" not in line
    assert "abab" not in line, "the token travels by standard input alone"
    said = told(second)
    assert said["token"] == "ab" * 16 and said["ports"] == {"worker": 12345, "master": 29500, "any": 0}
    assert said["mounts"] == ["/out"], "what is read-only is not written to"


def test_the_test_container_has_the_gpu_variables_of_ranks() -> None:
    facts = world.cluster_facts()
    facts["gpu2"] = replace(facts["gpu2"], nvidia_runtime=True)
    lines = [
        " ".join(map(str, look.command.argv))
        for look in plan_looks(make_layout(world.inventory(), Observed(facts)), PROGRAM, "ab" * 16)
    ]
    assert "--env NVIDIA_DRIVER_CAPABILITIES=compute,utility" in lines[0]
    # If NVIDIA's runtime is the default one, and the driver is broken, a container must not request GPUs.
    assert "--env NVIDIA_VISIBLE_DEVICES=void" in lines[1]


@pytest.mark.parametrize(("status", "removes"), [(124, True), (137, True), (0, False), (1, False)])
def test_the_container_of_a_program_that_does_not_end_is_removed(
    status: int, removes: bool, tmp_path: Path
) -> None:
    for name, text in {"timeout": f"exit {status}", "docker": 'echo "$@" >>"$SAID"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(tmp_path / "said")}
    for layout in (world.layout(), make_layout(world.inventory(), Observed(world.facts_when_up()))):
        (tmp_path / "said").write_text("")
        look = plan_looks(layout, PROGRAM, "0" * 32)[-1]
        argv = [str(token) for token in look.command.argv]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        assert done.stdout == f"\nended {status}\n"
        name = "" if look.up else argv[argv.index("--name") + 1]
        assert (tmp_path / "said").read_text() == (f"rm --force {name}\n" if removes and name else "")


def test_where_the_cluster_is_up_its_own_containers_are_used_and_main_logs_in() -> None:
    layout = make_layout(world.inventory(), Observed(world.facts_when_up()))
    looks = plan_looks(layout, PROGRAM, "0" * 32)
    assert "docker exec --interactive toolkit-demo-main python3" in " ".join(map(str, looks[0].command.argv))
    said = [told(look) for look in looks]
    assert [s["logins"] for s in said] == [["gpu2", "cpu3"], [], []]
    assert ["worker" in s["ports"] for s in said] == [True, False, False], "our sshd listens there"
    assert said[0]["names"] == ["cpu3", "gpu1", "gpu2"]


def test_lines_of_the_program_and_of_others() -> None:
    assert parse_line(b'{"ports": {"any": 5}}') == Listening({"any": 5})
    assert parse_line(b'{"pairs": {}}') == LookReport()
    assert parse_line(b"") is None and parse_line(b"[1]") is None and parse_line(b"Welcome!") is None
    for ports in (b'"x"', b'{"any": "1"}', b'{"any": 0}', b'{"any": 65536}', b'{"any": {}}'):
        with pytest.raises(DecodeError):
            parse_line(b'{"ports": %s}' % ports)
    assert last_words(["", "docker: no space left.", "See 'docker run --help'."]) == "no space left."
    assert last_words(["a", "b", ""]) == "b" and last_words([]) == "the process exited without a message"


class FakeHost:
    """Plays a host: says where it listens, waits for the others' list, reports, waits for the end."""

    def __init__(self, name: str, fate: str = "") -> None:
        self.name, self.fate = name, fate
        self.heard: list[bytes] = []
        self.ended = threading.Event()

    def run(self, command: Command, timeout: float | None = None) -> Result:
        raise AssertionError

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        assert source is not None
        words = iter(source)
        self.heard.append(next(words))
        if self.fate == "lost":
            raise Unreachable("the connection was lost", "", self.name)
        if self.fate == "fails":
            sink(b"\nended 125\n")
            list(words)
            return Result(0, "", "docker: no space left on device.\nSee help\n", 0.1)
        sink(b"a banner\n" + json.dumps({"ports": {"any": 5000}}).encode() + b"\n")
        self.heard.append(next(words))
        report = {"pairs": {}, "now": 0.0, "versions": {"name": self.name}}
        sink(json.dumps(report).encode() + b"\n")
        assert list(words) == []
        self.ended.set()
        sink(b"ended 0\n")
        return Result(0, "", "", 0.1)


def held(**fates: str) -> tuple[dict[str, FakeHost], dict[str, Looked]]:
    hosts = {name: FakeHost(name, fate) for name, fate in fates.items()}
    plan = [Look(name, Command(("x",)), b"head", f"10.0.0.{n}", False) for n, name in enumerate(hosts, 1)]
    return hosts, look_inside(plan, hosts)


def test_each_is_told_of_all_others_once_all_listen() -> None:
    hosts, found = held(a="", b="", c="")
    assert all(host.ended.is_set() for host in hosts.values())
    targets = json.loads(hosts["b"].heard[1])["targets"]
    assert [(t["host"], t["address"], t["ports"]) for t in targets] == [
        ("a", "10.0.0.1", {"any": 5000}),
        ("c", "10.0.0.3", {"any": 5000}),
    ]
    assert {name: looked.report.versions["name"] for name, looked in found.items()} == {
        "a": "a",
        "b": "b",
        "c": "c",
    }


@pytest.mark.parametrize(
    ("fate", "words"), [("lost", "the connection was lost"), ("fails", "no space left on device.")]
)
def test_one_that_does_not_come_up_holds_up_nobody(fate: str, words: str) -> None:
    hosts, found = held(a="", b=fate, c="")
    assert found["b"].error == words and found["b"].report == LookReport()
    assert [t["host"] for t in json.loads(hosts["a"].heard[1])["targets"]] == ["c"]
    assert not found["a"].error and not found["c"].error


# `toolkit bench network`


def test_the_pairs_of_a_rank_that_does_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes part in what all ranks do; a latency counts for both directions."""
    monkeypatch.setattr(network, "load_host", lambda: {"host": "gpu2", "address": "10.0.0.2"})
    monkeypatch.setenv("LOCAL_RANK", "1")
    given: list[object] = []
    leaders = [(f"gpu{number}", f"10.0.0.{number}", 5000 + number, True) for number in (1, 2, 3)]
    rates = [[(1, 0, 2e9, 2e-5)], [(0, 1, 1e9, 0.0)], [(0, 2, 3e9, 0.0)], []]
    answers = iter(
        [[*leaders, ("gpu2", "10.0.0.2", 0, False)], rates, [["gpu1 with gpu3: refused"], [], [], []]]
    )

    def allgather(mine: object) -> object:
        given.append(mine)
        return next(answers)

    comm = SimpleNamespace(Ibarrier=lambda: SimpleNamespace(Test=lambda: True), allgather=allgather)
    found = network.measure_pairs(comm, 1.0, 1)
    assert given == [("gpu2", "10.0.0.2", 0, False), [], []]
    assert found == {
        "hosts": ["gpu1", "gpu2", "gpu3"],
        "pairs": [
            {"from": "gpu1", "to": "gpu2", "mbit": 1000.0, "latency_us": 20.0},
            {"from": "gpu1", "to": "gpu3", "mbit": 3000.0, "latency_us": 0.0},
            {"from": "gpu2", "to": "gpu1", "mbit": 2000.0, "latency_us": 20.0},
        ],
        "faults": ["gpu1 with gpu3: refused"],
    }


def test_a_bench_of_one_rank_prints_its_result_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network, "load_host", lambda: {"host": "gpu1", "address": "10.0.0.1"})
    comm = SimpleNamespace(rank=0, size=1, allgather=lambda mine: [mine])
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=comm)))  # type: ignore[arg-type]
    words = ["--seconds", "0", "--streams", "1", "--engine", "mpi", "--sizes", "4096", "--budget", "1"]
    monkeypatch.setattr(sys, "argv", ["bench_network.py", *words])
    assert network.main() == 0
    mark, part, text = capsys.readouterr().out.split(" ", 2)
    assert (mark, part) == ("@network", "1/1")
    assert json.loads(text) == {
        "hosts": ["gpu1"],
        "pairs": [],
        "faults": [],
        "engine": "mpi",
        "allreduce": [],
    }
