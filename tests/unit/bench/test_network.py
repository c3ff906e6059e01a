"""`toolkit bench network`: the job's result on its way through the log, and what becomes of a failed job."""

from __future__ import annotations

import itertools
import json
import socket
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import toolkit.bench.network
from tests.unit import cluster_world as world
from toolkit.bench.network import NetworkBench, bench_plan, check_bench, run_bench
from toolkit.cli.bench import _text
from toolkit.container.bench import algorithms, network
from toolkit.container.logs.lines import Stream
from toolkit.diagnose.messages import message_of
from toolkit.errors import BadInput, NotReady, ToolkitError
from toolkit.network.measured import Measured, Pair, Point, parse_measured
from toolkit.protocol.bench import result_lines, result_of

PAIRS = [
    {"from": "gpu1", "to": "gpu2", "mbit": 941.2, "latency_us": 61.0},
    {"from": "gpu2", "to": "gpu1", "mbit": 941.2, "latency_us": 61.0},
]
ALLREDUCE = [{"bytes": 1024, "ranks": 2, "seconds": 0.001}]


def result(hosts: tuple[str, ...] = ("gpu1", "gpu2"), **changes: object) -> dict[str, object]:
    return {"hosts": hosts, "pairs": PAIRS, "faults": [], "allreduce": [], **changes}


def log(*printed: object) -> str:
    """Return what a job's log contains after a rank has printed these results."""
    lines = [line for one in printed for line in result_lines(network.RESULT, json.dumps(one))]
    return b"".join(Stream(1, b"[gpu1 0] ").feed("".join(f"{line}\n" for line in lines).encode())).decode()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the benchmark as a job with a given log and exit code."""

    def run(text: str, code: int | None = 0, state: str = "succeeded") -> Measured:
        planned = SimpleNamespace(job=world.job("mpirun"), plan=None)
        ended = SimpleNamespace(exit_code=code, state=state)
        monkeypatch.setattr(toolkit.bench.network, "plan_request", lambda *_: planned)
        monkeypatch.setattr(toolkit.bench.network, "run_to_completion", lambda *_: text)
        monkeypatch.setattr(toolkit.bench.network, "job_status", lambda *_: ended)
        session: Any = SimpleNamespace(inventory=world.inventory())
        return run_bench(session, NetworkBench(), lambda event: None)

    return run


def test_the_result_of_many_hosts_is_complete(ran: Any) -> None:
    """The log splits lines at 4096 bytes."""
    names = tuple(f"gpu{n}" for n in range(1, 17))
    pairs = [{**PAIRS[0], "from": a, "to": b} for a, b in itertools.permutations(names, 2)]
    measured = ran(log(result(names, pairs=pairs), result(names, pairs=pairs, allreduce=ALLREDUCE)))
    assert len(measured.pairs) == 240 and measured.hosts == names and len(measured.allreduce) == 1


def test_only_a_complete_result_counts() -> None:
    text = "".join(map(str, range(4000)))
    first, *rest = result_lines("@x", text)
    assert rest and result_of("@x", ["[gpu1 0] noise", first, "[gpu2 1] noise", *rest]) == text
    assert result_of("@x", rest) == result_of("@x", [first]) == result_of("@x", []) == ""
    # A later result was not printed completely.
    assert result_of("@x", ["[gpu1 0] @x 1/1 [3]", first]) == "[3]"
    # The format before numbered pieces.
    assert result_of("@network", ['[gpu1 0] @network {"hosts": []}']) == '{"hosts": []}'


def test_pairs_of_a_job_whose_all_reduce_fails_are_kept(ran: Any) -> None:
    traceback = "[gpu2 1] Traceback\n[gpu2 1] MemoryError\n[toolkit] rank 1 on gpu2 exited with code 1\n"
    launcher = "".join(f"line {n} of mpirun\n" for n in range(9))
    measured = ran(log(result()) + traceback + launcher, 1, "failed")
    assert len(measured.pairs) == 2
    (fault,) = measured.faults
    assert fault == (
        f"all-reduce: job {world.JOB_ID} ended with the state failed and exit code 1; end of the log: "
        "[gpu2 1] Traceback | [gpu2 1] MemoryError | [toolkit] rank 1 on gpu2 exited with code 1"
    )
    assert f"not measured: {fault}" in _text(measured)


@pytest.mark.parametrize("line", ["\tat \x1b[31mfoo\x1b[0m\r\x00", "x" * 4000, "\x07" * 4000])
def test_the_fault_of_a_failed_all_reduce_is_accepted_by_predict(ran: Any, line: str) -> None:
    measured = ran(log(result()) + f"[gpu2 1] {line}\n" * 3, 1, "failed")
    assert parse_measured(json.dumps(measured.as_json()), "file") == measured


def test_a_job_without_a_result_is_an_error(ran: Any) -> None:
    blame = "[toolkit] mpirun exited with code 1"
    launcher = "ssh: connect to host 10.77.0.3 port 12345: Connection refused"
    with pytest.raises(ToolkitError) as caught:
        ran(f"{launcher}\n{blame}\n", 1, "failed")
    assert caught.value.what.endswith(f"exit code 1; end of the log: {launcher} | {blame}")
    assert caught.value.fix == f"toolkit logs {world.JOB_ID}"
    with pytest.raises(ToolkitError, match="the state succeeded and exit code 0; end of the log: no output"):
        ran("")
    with pytest.raises(ToolkitError, match="the state timeout; end of the log: no output"):
        ran("", None, "timeout")


@pytest.mark.parametrize(
    ("line", "name", "adds"),
    [
        ("[gpu1 0] ModuleNotFoundError: No module named 'mpi4py'", "mpi4py", "RUN pip install mpi4py"),
        (
            "[toolkit] gpu1: the image has no mpirun; run `toolkit image inspect` to list its launchers",
            "mpirun",
            "RUN apt-get update && apt-get install -y --no-install-recommends openmpi-bin"
            " && pip install mpi4py",
        ),
    ],
)
def test_a_job_without_mpi_names_the_line_that_adds_it(ran: Any, line: str, name: str, adds: str) -> None:
    with pytest.raises(NotReady) as caught:
        ran(f"{line}\n", 1, "failed")
    assert caught.value.what == f"the image toolkit:cpu has no {name}, which this command needs"
    assert caught.value.fix.partition("  #")[0] == adds
    message = message_of(caught.value.what)
    assert message and message.name == "image-lacks-mpi4py"


def test_an_image_without_pytorch_uses_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not network._gpu()


def test_a_result_without_measurements_has_reasons() -> None:
    faults = ("gpu1 with gpu2: timed out", "gpu2 with gpu1: timed out")
    failed = parse_measured(json.dumps(result(pairs=[], faults=faults)), "job1")
    assert _text(failed) == (
        "not measured: gpu1 with gpu2: timed out\nnot measured: gpu2 with gpu1: timed out\n"
        "toolkit measured no link between hosts\n"
    )
    alone = parse_measured(json.dumps(result(("gpu1",), pairs=[])), "job1")
    assert _text(alone) == "the job ran on one host, so toolkit measured no link between hosts\n"
    with pytest.raises(BadInput, match="has no measurements"):
        parse_measured(json.dumps(result(pairs=[])), "job1")
    # Without pairs, all-reduces need no sentence about links.
    assert "no link" not in _text(Measured(("a", "b"), (), (Point(1024, 2, 0.1),)))
    assert "the slowest link" in _text(Measured(("a", "b"), (Pair("a", "b", 1e9, 1e-4),)))


@pytest.mark.parametrize(
    ("bench", "problem"),
    [
        (NetworkBench(seconds=0.001), "--seconds: should be 0, or 0.05 to 60 s, found 0.001 s"),
        (NetworkBench(seconds=61), "--seconds: should be 0, or 0.05 to 60 s, found 61 s"),
        (NetworkBench(seconds=0, most=0), "--most: should be more than 0 if --seconds is 0"),
    ],
)
def test_options_that_measure_nothing_are_refused(bench: NetworkBench, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_bench(bench)
    assert [str(one) for one in caught.value.problems] == [problem]


def test_options_that_measure_something_are_accepted() -> None:
    for bench in (NetworkBench(seconds=0.05, most=0), NetworkBench(seconds=60), NetworkBench(seconds=0)):
        check_bench(bench)


@pytest.mark.parametrize(("only", "hosts"), [((), 3), (("gpu1", "gpu2"), 2)])
def test_the_time_limit_of_the_job_grows_with_the_measurement(
    only: tuple[str, ...], hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """31 hosts need 31 rounds of twice 60 s, which is more than an hour."""
    monkeypatch.setattr(toolkit.bench.network, "plan_request", lambda _, asked: SimpleNamespace(plan=asked))
    session: Any = SimpleNamespace(inventory=world.inventory())
    request: Any = bench_plan(session, NetworkBench(seconds=60, budget=3600), only)
    assert request.timeout == 3600 + 2 * 60 * hosts + 3600


# The measuring program


class Clock:
    """A clock on which each look takes a while."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.01
        return self.now


def test_a_slow_link_is_no_silent_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of `sendall` is for the complete buffer; of `send`, for any progress."""
    monkeypatch.setattr(network, "time", Clock())
    connection = MagicMock()
    connection.send.side_effect = lambda data: 1000
    connection.sendall.side_effect = TimeoutError("timed out")
    network.send([connection], 0.05)
    assert connection.send.call_count > 1 and connection.shutdown.call_count == 1


def test_a_slow_link_has_little_to_send_after_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer waits until it has received what is buffered, and its wait has a time limit."""
    connection = MagicMock()
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: connection)
    network.connect("10.77.0.3", 4000, 0, 1)
    option = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, network.MOST_UNSENT)
    assert option in [call.args for call in connection.setsockopt.call_args_list]


def test_other_clients_do_not_end_a_pair() -> None:
    def client(*received: object) -> MagicMock:
        made = MagicMock()
        made.recv.side_effect = received
        return made

    peer = network.HELLO.pack(3)
    clients = [
        client(b""),
        client(TimeoutError("timed out")),
        client(ConnectionResetError()),
        client(network.HELLO.pack(7)),
        client(peer[:1], peer[1:]),
    ]
    listener = MagicMock()
    listener.accept.side_effect = [(one, "address") for one in clients]
    assert network.accept(listener, 3, 1) == clients[4:]
    assert [one.close.called for one in clients] == [True] * 4 + [False]
    # The time limit of the peer is longer than the one of the greeting.
    limits = [call.args[0] for call in clients[4].settimeout.call_args_list]
    assert limits == [network.HELLO_S, network.LIMIT_S]


class Two:
    """A communicator of two ranks on two hosts, of which the other reports nothing."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.aborted: list[int] = []

    def allgather(self, value: Any) -> list[Any]:
        other: Any = ("gpu2", "10.77.0.3", 4001, True) if isinstance(value, tuple) else []
        return [value, other]

    def Ibarrier(self) -> Any:
        return SimpleNamespace(Test=lambda: True)

    def Abort(self, code: int) -> None:
        self.aborted.append(code)


@pytest.mark.parametrize("rate", [0.0, 400.0])
def test_a_pair_without_data_is_a_fault(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = SimpleNamespace(getsockname=lambda: ("10.77.0.2", 4000), close=lambda: None)
    monkeypatch.setattr(network, "load_host", lambda: {"host": "gpu1", "address": "10.77.0.2"})
    monkeypatch.setattr(network, "listen", lambda address: listener)
    monkeypatch.setattr(network, "measure", lambda *_: (rate, 1e-4))
    monkeypatch.setenv("LOCAL_RANK", "0")
    found = network.measure_pairs(Two(), 0.05, 1)
    assert found == {
        "hosts": ["gpu1", "gpu2"],
        "pairs": [],
        "faults": ["gpu1 received too little data from gpu2 to measure the rate"],
    }


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (network.main, ["--seconds", "0", "--streams", "1"]),
        (algorithms.main, ["--algorithms", "0:0"]),
    ],
)
def test_an_error_of_one_rank_ends_all(
    main: Any, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its exit, mpi4py would wait for the other ranks, which wait for this one."""
    comm, torch = Two(), MagicMock()
    monkeypatch.setattr(network, "load_host", lambda: {"host": "gpu1"})
    monkeypatch.setattr(Two, "allgather", lambda self, value: [value])
    torch.cuda.device_count.return_value = 0
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=comm)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    monkeypatch.setenv("LOCAL_RANK", "0")
    options = ["--engine", "nccl", "--sizes", "1024", "--budget", "5"]
    monkeypatch.setattr(sys, "argv", ["bench", *words, *options])
    with pytest.raises(ZeroDivisionError):
        main()
    assert comm.aborted == [1]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_pairs_are_printed_before_the_all_reduce(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    comm: Any = SimpleNamespace(rank=0, size=2, allgather=lambda value: [value, value])
    monkeypatch.setattr(network, "load_host", lambda: {"host": "gpu1"})
    monkeypatch.setattr(network, "measure_pairs", lambda *_: result())
    monkeypatch.setattr(network, "mpi_allreduce", fail)
    asked: Any = SimpleNamespace(seconds=0.5, streams=4, engine="mpi", sizes=[1024], budget=5.0)
    with pytest.raises(MemoryError):
        network.run(comm, asked)
    found = result_of(network.RESULT, capsys.readouterr().out.splitlines())
    assert json.loads(found)["pairs"] == PAIRS
