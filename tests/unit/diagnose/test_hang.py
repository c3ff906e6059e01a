"""Evidence made by hand, each sort of hang, and the rank that the verdict names."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.each import for_each
from toolkit.diagnose.evidence import Connection, Evidence, Frame, HostSeen, Process, RankSeen, parse_host
from toolkit.diagnose.rank_activity import doing
from toolkit.diagnose.verdict import doings, judge
from toolkit.protocol.decode import decode
from toolkit.protocol.evidence import Inspected

OWN = "/run/toolkit/jobs/x/code/train.py"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
THREADING = "/usr/lib/python3.11/threading.py"
HOSTS = ("box1", "box2", "box3")


def own(line: int, text: str, name: str = "main", handler: bool = False) -> Frame:
    return Frame(name, OWN, line, text, handler)


def process(*frames: Frame, pid: int = 100, **changes: Any) -> Process:
    return replace(Process(pid, 1, "python", frames=frames), **changes)


def in_all_reduce(line: int = 9) -> Process:
    wrapper = Frame("wrapper", TORCH.replace("distributed_c10d", "c10d_logger"), 83)
    return process(Frame("all_reduce", TORCH, 3128), wrapper, own(line, "dist.all_reduce(x)"), call="futex")


def seen(rank: int, *processes: Process, **changes: Any) -> RankSeen:
    return replace(RankSeen(rank, HOSTS[rank], 12.0, ("step 3",), None, processes), **changes)


def evidence(*ranks: RankSeen | None, **changes: Any) -> Evidence:
    """One rank on each host; None for one of which nothing was seen."""
    hosts = tuple(
        HostSeen(name, ranks=(rank,) if rank is not None else ())
        for name, rank in zip(HOSTS, ranks, strict=False)
    )
    return replace(Evidence("job", "running", "", HOSTS[: len(ranks)], hosts), **changes)


def others(rank: RankSeen | None) -> Evidence:
    """Ranks 0 and 2 wait in an all-reduce; rank 1 is this one."""
    return evidence(seen(0, in_all_reduce()), rank, seen(2, in_all_reduce()))


SLEEP = process(own(5, "time.sleep(600)", "load"), call="clock_nanosleep")
LOOP = process(own(6, "x += 1", "spin"), cpu=0.98, state="R")
QUEUE = process(
    Frame("wait", THREADING, 320),
    Frame("get", "/usr/lib/python3.11/queue.py", 171),
    own(7, "box.get()", "load"),
    call="futex",
)
FIFO = process(own(8, "handle.read()"), call="read", target="/tmp/in (fifo)")
SAVE = process(
    Frame("save", "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", 960),
    own(12, "torch.save(state, path)", "checkpoint"),
    call="write",
    target="/out/model.pt",
)
MPI_BUSY = process(own(3, "comm.Allreduce(a, b)"), cpu=1.0, state="R")


@for_each(
    ("text", "saves"),
    [
        ("torch.save(state, path)", True),
        ("save_model(x)", True),
        ("trainer._dump_state", True),
        ("write_Checkpoint = 3", True),
        ("x.dump", True),
        ("x = save(y)", False),
        ("x.save + 1", False),
        ("resave(x)", False),
        ("handle.write(saved)", False),
    ],
)
def test_a_write_within_a_function_that_saves_is_a_checkpoint(text: str, saves: bool) -> None:
    found = doing(seen(1, process(own(12, text), call="write", target="/out/model.pt")))
    assert found.kind == "file" and ("checkpoint" in found.what) == saves


@for_each("piece", ["_save", "dump.", "save(", "Iwait.", ".get", "a", ".", "with lock", "comm."])
def test_a_line_of_source_takes_time_in_proportion_to_its_length(piece: str) -> None:
    def seconds(letters: int) -> float:
        slowest = 1e-4
        for call in ("write", "futex", ""):
            line = (piece * letters)[:letters] + " "
            started = time.process_time()
            doing(seen(1, process(own(12, line), call=call)))
            slowest = max(slowest, time.process_time() - started)
        return slowest

    few = min(seconds(1000) for _ in range(3))
    many = min(seconds(8000) for _ in range(2))
    # In proportion: 8 times. By the square: 64 times.
    assert many < 24 * few, f"{few:.4f} s, then {many:.4f} s"


@for_each(
    ("rank", "kind", "words"),
    [
        (seen(1, SLEEP), "sleep", "sleeps at train.py:5 in load"),
        (seen(1, replace(in_all_reduce(), state="T")), "stopped", "is stopped by a signal such as SIGSTOP"),
        (seen(1, replace(in_all_reduce(), state="t")), "stopped", "is stopped by a debugger (state t"),
        (seen(1, LOOP), "spin", "computes at train.py:6 in spin (98% of a CPU core)"),
        (seen(1, QUEUE), "lock", "waits for a lock or a queue in get() at train.py:7 in load"),
        (seen(1, FIFO), "file", "is blocked reading /tmp/in (fifo) at train.py:8"),
        (seen(1, SAVE), "file", "is blocked writing /out/model.pt for a checkpoint"),
        (
            seen(1, replace(SAVE, state="D")),
            "disk",
            "hangs in the kernel in the system call write on /out/model.pt (state D",
        ),
        (seen(1, exit_code=0), "ended", "exited with exit code 0"),
        (seen(1, exit_code=139), "failed", "exited with exit code 139"),
        (seen(1), "gone", "exited without an exit record"),
        (None, "absent", "has not started yet"),
        (
            seen(1, QUEUE, Process(200, 100, "python", "Z")),
            "child",
            "waits at train.py:7 in load for its child process 200 (python), which has exited",
        ),
        (
            seen(
                1, process(own(5, "time.sleep(9)"), own(20, "clean()", handler=True), call="clock_nanosleep")
            ),
            "handler",
            "is blocked (clock_nanosleep) while handling an exception at train.py:20",
        ),
        (
            seen(1, process(call="epoll_wait")),
            "network",
            "waits for a network connection or a file (epoll_wait)",
        ),
        (seen(1, process(call="clock_nanosleep")), "sleep", "sleeps"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)
def test_the_rank_that_the_others_wait_for_is_named(rank: RankSeen | None, kind: str, words: str) -> None:
    verdict = judge(others(rank))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (kind, (1,), ("box2",)), verdict
    assert verdict.what.startswith(f"rank 1 on box2 {words}"), verdict.what
    assert verdict.what.endswith("; ranks 0, 2 wait for rank 1 in all_reduce"), verdict.what
    assert verdict.fix and "HOST" not in verdict.fix and "RANK" not in verdict.fix


def test_a_rank_without_a_record_of_an_ended_job_did_not_start() -> None:
    assert doings(others(None))[1].what == "has not started yet"
    assert doings(replace(others(None), state="failed"))[1].what == "did not start"


def test_an_mpi_rank_that_polls_in_a_collective_is_not_the_one_that_computes() -> None:
    verdict = judge(evidence(seen(0, MPI_BUSY), seen(1, SLEEP), seen(2, MPI_BUSY)))
    assert verdict.ranks == (1,) and "wait for rank 1 in Allreduce" in verdict.what
    assert doing(seen(0, MPI_BUSY)).waits


def test_a_rank_in_a_different_collective_is_named_and_both_ranks_of_two() -> None:
    barrier = process(Frame("barrier", TORCH, 4000), own(11, "dist.barrier()"))
    verdict = judge(others(seen(1, barrier)))
    assert (verdict.kind, verdict.ranks) == ("apart", (1,))
    assert "rank 1 called a different collective than the other ranks" in verdict.what
    assert "ranks 0, 2 on box1, box3 wait in all_reduce" in verdict.what
    two = judge(evidence(seen(0, in_all_reduce()), seen(1, barrier)))
    assert two.ranks == (0, 1) and "waits in barrier at train.py:11" in two.what
    place = judge(others(seen(1, in_all_reduce(40))))
    assert place.ranks == (1,) and "at a different line than the other ranks" in place.what


def test_a_rank_that_waits_for_its_gpu_called_no_different_collective() -> None:
    """The GPU of the rank can hang, or run the same collective as the GPUs of the other ranks."""
    verdict = judge(others(seen(1, process(own(12, "loss.item()")))))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == ("gpu", (1,), ("box2",))
    assert verdict.what == (
        "rank 1 waits for its GPU, and the other ranks wait elsewhere: rank 1 on box2 waits for its GPU in"
        " item() at train.py:12 in main; ranks 0, 2 on box1, box3 wait in all_reduce at train.py:9 in main"
    )
    assert verdict.fix.startswith("on box2: nvidia-smi")


def test_a_link_that_is_cut_is_named_before_the_ranks_that_wait() -> None:
    whole = others(seen(1, in_all_reduce()))
    stuck = Connection(1, "box2", "box3", "ESTABLISHED", unsent=4096, retries=3)
    hosts = (whole.hosts[0], replace(whole.hosts[1], connections=(stuck,)), whole.hosts[2])
    verdict = judge(replace(whole, hosts=hosts))
    assert (verdict.kind, verdict.hosts, verdict.ranks) == ("link", ("box2", "box3"), (1, 2))
    assert "box2 sent 4096 bytes 4 times without a reply (rank 1)" in verdict.what
    once = replace(whole.hosts[1], connections=(replace(stuck, retries=1),))
    hosts = (whole.hosts[0], once, whole.hosts[2])
    assert judge(replace(whole, hosts=hosts)).kind != "link"


def test_a_host_that_does_not_answer_is_evidence() -> None:
    whole = others(None)
    silent = HostSeen("box2", "no answer on port 22", "its container x is paused (on box2: docker unpause x)")
    verdict = judge(replace(whole, hosts=(whole.hosts[0], silent, whole.hosts[2])))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == ("host", (1,), ("box2",))
    assert "box2 does not answer: no answer on port 22; its container x is paused" in verdict.what
    assert "the state of rank 1 is unknown" in verdict.what


def test_all_ranks_wait_at_one_line_or_no_rank_waits() -> None:
    assert judge(others(seen(1, in_all_reduce()))).kind == "unclear"
    runs = judge(evidence(*(seen(rank, LOOP) for rank in range(3))))
    assert runs.kind == "runs" and runs.ranks == () and "12 s old" in runs.what
    assert judge(evidence(seen(0, in_all_reduce()))).kind == "runs"


def test_a_running_job_has_no_blamed_rank() -> None:
    moving = replace(in_all_reduce(), moved=True)
    verdict = judge(evidence(seen(0, moving), seen(1, SLEEP), seen(2, moving)))
    assert (verdict.kind, verdict.ranks) == ("runs", ())
    assert verdict.what.startswith("the job runs: ranks 0, 2 on box1, box3 waited for other ranks")
    stopped = judge(evidence(seen(0, moving), seen(1, replace(SLEEP, state="T")), seen(2, moving)))
    assert stopped.ranks == (1,)


def test_a_child_that_exited_earlier_is_not_the_cause() -> None:
    dead = Process(200, 100, "python", "Z")
    assert doing(seen(1, replace(SLEEP, call="futex"), dead)).kind == "sleep"
    assert doing(seen(1, process(call="futex"), dead)).kind == "child"


def test_ranks_that_exit_before_others_do_not_count_as_a_hang() -> None:
    ending = judge(evidence(seen(0, exit_code=0), seen(1, LOOP), seen(2, LOOP)))
    assert ending.kind == "runs" and "rank 1 on box2 computes" in ending.what
    assert judge(evidence()).kind == "unclear"


def test_without_stacks_the_rank_that_differs_is_named() -> None:
    poll = process(call="epoll_wait")
    verdict = judge(evidence(seen(0, poll), seen(1, process(call="clock_nanosleep")), seen(2, poll)))
    assert verdict.ranks == (1,) and "sleeps" in verdict.what


NO_SPY = "the image has no py-spy"
SPINS = process(cpu=2.0, state="R", no_stack=NO_SPY)


def without_py_spy(whole: Evidence) -> Evidence:
    return replace(whole, hosts=tuple(replace(host, py_spy=False) for host in whole.hosts))


def test_without_stacks_a_rank_that_spins_can_wait() -> None:
    """Recorded on an H200: rank 0 waits in an all-reduce of NCCL, and rank 1 does not take part."""
    sleeps = process(call="clock_nanosleep", no_stack=NO_SPY)
    verdict = judge(without_py_spy(evidence(seen(0, SPINS), seen(1, sleeps, age=28.0))))
    assert (verdict.kind, verdict.ranks) == ("unclear", ())
    assert verdict.what == (
        "toolkit cannot determine whether a rank waits for another rank, because toolkit could not read the"
        " stacks of ranks 0, 1: rank 0 on box1 uses 200% of a CPU core; rank 1 on box2 sleeps; the newest"
        " line of output is 12 s old"
    )
    assert verdict.fix.startswith("RUN pip install py-spy  #")
    alike = judge(without_py_spy(evidence(seen(0, SPINS), seen(1, SPINS), seen(2, SPINS))))
    assert "ranks 0–2: ranks 0–2 on box1, box2, box3 use 200% of a CPU core" in alike.what
    one = judge(evidence(seen(0, replace(SPINS, no_stack="py-spy failed")), seen(1, LOOP)))
    assert "the stack of rank 0: " in one.what and one.fix.startswith("toolkit why")
    program = process(cpu=1.0, state="R")  # no Python
    assert judge(without_py_spy(evidence(seen(0, program), seen(1, program)))).fix.startswith("toolkit why")
    assert judge(without_py_spy(evidence(seen(0, SPINS)))).kind == "runs", "the only rank waits for no rank"


FLOAT = process(own(21, 'print("step", float(x.sum()))'), cpu=2.0, state="R")
CUDA = "/opt/venv/lib/python3.12/site-packages/torch/cuda/__init__.py"


@for_each(
    ("frames", "op"),
    [
        ((Frame("synchronize", CUDA, 1040), own(23, "torch.cuda.synchronize()")), "synchronize"),
        ((own(23, "done.synchronize()"),), "synchronize"),
        (
            (
                Frame("Stream.synchronize", CUDA.replace("__init__", "streams"), 105),
                Frame("step", CUDA.replace("torch/cuda", "lightning"), 5),
                own(23, "trainer.fit(model)"),
            ),
            "synchronize",
        ),
        ((own(23, "loss = float(x.sum())"),), "a GPU operation"),
        ((own(23, "loss = x.sum().item()"),), "item"),
    ],
)
def test_a_rank_that_spins_until_its_gpu_is_ready_waits(frames: tuple[Frame, ...], op: str) -> None:
    whole = evidence(seen(0, process(*frames, cpu=2.0, state="R")), seen(1, SLEEP))
    busy = replace(whole, hosts=(replace(whole.hosts[0], busy=(True,)), whole.hosts[1]))
    verdict = judge(busy)
    assert (verdict.kind, verdict.ranks) == ("sleep", (1,))
    assert verdict.what.endswith(f"; rank 0 waits for rank 1 in {op}")
    assert judge(whole).ranks == (() if op == "a GPU operation" else (1,)), "its GPU is idle"


def test_the_gpu_of_a_rank_counts() -> None:
    """With as many GPUs as ranks, GPU 1 belongs to the second rank."""
    ranks = (replace(seen(0, FLOAT), rank=0), replace(seen(0, LOOP), rank=1))
    host = HostSeen("box1", ranks=ranks, busy=(True, False))
    verdict = judge(Evidence("job", "running", "", ("box1", "box1"), (host,)))
    assert (verdict.kind, verdict.ranks) == ("spin", (1,))
    assert not replace(host, busy=(True, False, True)).is_gpu_busy(0)
    assert not replace(host, busy=()).is_gpu_busy(0)


def test_ranks_that_compute_on_their_gpus_are_not_blamed() -> None:
    later = process(own(25, "y = x @ x"), cpu=1.0, state="R")
    whole = evidence(seen(0, FLOAT), seen(1, later))
    verdict = judge(replace(whole, hosts=tuple(replace(host, busy=(True,)) for host in whole.hosts)))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == ("unclear", (), ())
    assert verdict.what.startswith(
        "the ranks called a GPU operation at different lines: rank 0 on box1 is busy"
    )
    assert verdict.fix.startswith("toolkit why")


def test_a_rank_that_uses_its_gpu_is_the_one_that_others_wait_for() -> None:
    """The rank can evaluate on its GPU while the other ranks wait in a barrier."""
    evaluates = process(own(30, "y = model(x)"), cpu=1.0, state="R")
    whole = evidence(seen(0, evaluates), seen(1, in_all_reduce()), seen(2, in_all_reduce()))
    verdict = judge(replace(whole, hosts=tuple(replace(host, busy=(True,)) for host in whole.hosts)))
    assert (verdict.kind, verdict.ranks) == ("spin", (0,))
    assert verdict.what.startswith("rank 0 on box1 is busy with its GPU at train.py:30")
    assert verdict.what.endswith("ranks 1, 2 wait for rank 0 in all_reduce")


def test_ranks_that_use_their_gpus_do_not_hide_different_collectives() -> None:
    """The GPUs can be busy with an all-reduce that one rank does not call."""
    later = process(own(30, "if loss > best:"), cpu=1.0, state="R")
    barrier = process(Frame("barrier", TORCH, 5046), own(40, "dist.barrier()"))
    for whole, ranks in (
        (evidence(seen(0, barrier), seen(1, later), seen(2, later)), (0,)),
        (evidence(seen(0, barrier), seen(1, in_all_reduce()), seen(2, later)), (0, 1, 2)),
    ):
        busy = replace(whole, hosts=tuple(replace(host, busy=(True,)) for host in whole.hosts))
        verdict = judge(busy)
        assert (verdict.kind, verdict.ranks) == ("apart", ranks)


def test_ranks_that_share_a_gpu_do_not_share_its_load() -> None:
    ranks = (replace(seen(0, in_all_reduce()), rank=0), replace(seen(0, LOOP), rank=1))
    host = HostSeen("box1", ranks=ranks, busy=(True,))
    verdict = judge(Evidence("job", "running", "", ("box1", "box1"), (host,)))
    assert (verdict.kind, verdict.ranks) == ("spin", (1,))
    assert "computes" in verdict.what


def test_a_line_of_toolkit_is_not_the_last_line_of_a_rank() -> None:
    own_line = "[toolkit] NCCL uses TCP on eth0"
    assert seen(0, lines=("step 10", own_line)).last_line == "step 10"
    assert seen(0, lines=(own_line,)).last_line == own_line
    assert seen(0, lines=()).last_line == ""


def test_the_end_of_a_job() -> None:
    ended = replace(
        others(seen(1, exit_code=137, lines=("Killed",))),
        state="failed",
        reason="rank 1 on box2 exited with code 137",
        failed_rank=1,
    )
    assert "the last line of rank 1 is: Killed" in judge(ended).what and judge(ended).ranks == (1,)
    aborted = ("[rank1]: KeyError: 'b'", "terminate called without an active exception")
    raised = replace(others(seen(1, exit_code=134, lines=aborted)), state="failed", failed_rank=1)
    assert "the exception of rank 1 is: KeyError: 'b'" in judge(raised).what
    killed = replace(ended, hosts=tuple(replace(host, oom_kills=1) for host in ended.hosts))
    memory = "the kernel killed rank 1, because the container or box2 ran out of memory"
    assert memory in judge(killed).what
    # With a record of the rank, the count of the host can be of an earlier job.
    for oom in (True, False):
        rows = tuple(replace(h, ranks=tuple(replace(r, oom=oom) for r in h.ranks)) for h in killed.hosts)
        assert (memory in judge(replace(killed, hosts=rows)).what) == oom
    lost = replace(ended, reason="box3 is lost: no answer for 8 s", failed_rank=None, lost_host="box3")
    assert judge(lost).hosts == ("box3",) and "box3 is lost" in judge(lost).what
    # The words of the reason decide on nothing.
    translated = replace(lost, reason="rank 1 on box2: box1 is lost")
    assert (judge(translated).hosts, judge(translated).ranks) == (("box3",), ())
    assert judge(replace(ended, state="succeeded", reason="")).kind == "end"


def test_backward_waits_only_when_it_does_not_compute() -> None:
    backward = Frame(
        "_engine_run_backward", "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 8
    )
    frames = (backward, own(30, "loss.backward()"))
    assert doing(seen(0, process(*frames, call="futex"))).op == "backward"
    assert doing(seen(0, process(*frames, cpu=0.9, state="R"))).kind == "spin"


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("MPI.COMM_WORLD.Barrier()", "Barrier"),
        ("work.wait()", "wait"),
        ("queue.get()", ""),
        ("dist.all_gather_object(all, one)", "all_gather_object"),
        ("box.send(1)", ""),
        ("comm.send(1, 2)", "send"),
    ],
)
def test_a_collective_is_known_by_the_line_that_calls_it(text: str, op: str) -> None:
    assert doing(seen(0, process(own(1, text)))).op == op


def test_a_daemon_does_not_hide_that_its_rank_has_exited() -> None:
    daemon = Process(77, 1, "monitor", call="futex")
    verdict = judge(others(seen(1, daemon, exit_code=0)))
    assert (verdict.kind, verdict.ranks) == ("ended", (1,))
    assert judge(others(seen(1, replace(daemon, state="T"), exit_code=3))).kind == "failed"


@for_each(
    ("changes", "state"),
    [
        ({"states": "DD"}, "D"),
        ({"states": "SD"}, "S"),
        ({"states": "DD", "woken": 231}, "S"),
        ({"states": "DD", "woken": 40, "call": "ioctl"}, "D"),
        ({"states": "DD", "woken": 2, "call": ""}, "D"),  # the call cannot be read
        ({}, "D"),
    ],
)
def test_a_disk_that_works_is_none_that_hangs(changes: dict[str, Any], state: str) -> None:
    """Two samples of a process that writes all the time are both D by chance."""
    row = {"pid": 7, "state": "D", "call": "write", **changes}
    host = parse_host("box2", decode(Inspected, {"ranks": [{"rank": 1, "processes": [row]}]}), {})
    assert host.ranks[0].processes[0].state == state


def test_the_report_of_a_host_is_parsed() -> None:
    row = {"rank": 1, "age": 3.5, "lines": ["a"], "exit_code": None}
    one = {
        "pid": 7,
        "parent": 1,
        "name": "python",
        "state": "D",
        "states": "SD",
        "call": "read",
        "target": "/x",
    }
    frame = {"name": "main", "file": OWN, "line": 3, "text": "x()", "handler": False}
    threads = [
        {"name": "other", "first": False, "frames": []},
        {"name": "", "first": True, "frames": [frame]},
    ]
    sockets = [
        {"pid": 7, "peer": "10.77.0.4:4", "state": "ESTABLISHED", "unsent": 1, "unread": 0, "retries": 2},
        {"pid": 7, "peer": "10.9.9.9:4", "state": "ESTABLISHED", "unsent": 1, "unread": 0, "retries": 2},
    ]
    said = {
        "ranks": [{**row, "processes": [{**one, "threads_seen": threads}]}],
        "sockets": sockets,
        "py_spy": True,
        "gpus": [{"index": "0", "busy": "100"}, {"index": "1", "busy": "99"}],
    }
    host = parse_host("box2", decode(Inspected, said), {"10.77.0.3": "box2", "10.77.0.4": "box3"})
    assert host.connections == (Connection(1, "box2", "box3", "ESTABLISHED", 1, 0, 2),)
    assert host.busy == (True, False)
    (rank,) = host.ranks
    assert rank.last_line == "a" and rank.processes[0].frames[0].line == 3
    assert rank.processes[0].state == "S", "a disk that works is none that hangs"
    assert parse_host("box2", Inspected(error="gone"), {}).error == "gone"
