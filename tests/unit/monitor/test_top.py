"""`toolkit top`: the step rates that ranks print, the gauges of a host, and their output as text and JSON."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.container_world import JOB, PATIENCE_S, World, python, rank_env, unkillable_smi, wait_for
from tests.unit.each import for_each
from toolkit.cli.top import _go_on as go_on
from toolkit.cluster.gauges import Gauges
from toolkit.cluster.session import Session
from toolkit.container.monitor import gauges
from toolkit.container.monitor.steps import StepRate
from toolkit.core.command import Command, Result
from toolkit.core.files import write_whole
from toolkit.core.gauges import HostGauges, job_gauges, parse_gauges
from toolkit.errors import NotReady, ToolkitError, Unreachable, UnreachableCause, UnsafeState
from toolkit.monitor.prometheus import prometheus_text
from toolkit.monitor.top import tables, top_json, top_text
from toolkit.protocol.gauges import GaugedJob, GpuGauge, RankGauge

# What a rank says


@pytest.mark.parametrize(
    ("line", "step", "steps", "samples"),
    [
        ("epoch 1 step 120 loss 0.31", 120, None, None),
        ("step: 7/100, 3.5 steps/s", 7, 3.5, None),
        ("global_step=42 812.3 images/sec", 42, None, 812.3),
        (" 12%|#2        | 12/100 [00:05<00:40,  2.19it/s]", 12, 2.19, None),
        (" 12%|#2        | 3/100 [00:05<02:10,  1.25s/it]", 3, 0.8, None),
        ("{'train_samples_per_second': 411.5, 'train_steps_per_second': 3.2}", None, 3.2, 411.5),
        ("[iter 9] 1.2e+03 tokens/s", 9, None, 1200.0),
        ("batch 10: 64 samples/s, 2 batches/s", 10, 2.0, 64.0),
        # What trainers print.
        (
            "Epoch: [2]  [ 150/1251]  eta: 0:20:52  lr: 0.1  img/s: 812.33  loss: 6.8 (6.9)  time: 1.05",
            *(150, None, 812.33),
        ),
        ("Epoch: [0][  10/5005]\tTime  0.312 ( 0.915)\tData  0.000 ( 0.201)", 10, None, None),
        (
            "Epoch(train)  [1][  50/1000]  lr: 2.0e-02  eta: 0:50:00  time: 0.31  data_time: 0.01",
            50,
            None,
            None,
        ),
        (
            "Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (6.93)  Time: 0.312s,  820.51/s  (0.412s,  621.30/s)",
            *(50, None, 820.51),
        ),
        (
            "\x1b[1m 12/100\x1b[0m \x1b[32m━━\x1b[37m━━━\x1b[0m \x1b[1m1s\x1b[0m 20ms/step - loss: 2.3",
            12,
            50,
            None,
        ),
        ("100/100 - 1s - 20ms/step - accuracy: 0.91", 100, 50.0, None),
        # The micro sign, the Greek letters, and characters that are s and k without regard to case.
        *((f"250 {micro}s/step", None, 4000.0, None) for micro in "uU\u00b5\u03bc\u039c"),
        ("250 m\u017f/\u017ftep", None, 4.0, None),
        ("\u017fteps_per_second: 3", None, 3.0, None),
        ("to\u212aens/s: 3", None, None, 3.0),
        ("  12/100 [==>...........................] - ETA: 3s - loss: 0.5", 12, None, None),
        (
            "[INFO] [timer.py:215:stop] epoch=0/micro_step=68/global_step=34, RunningAvgSamplesPerSec=7.86,"
            " CurrSamplesPerSec=8.25, MemAllocated=59.65GB",
            *(34, None, 8.25),
        ),
        (
            " iteration      201/  250000 | elapsed time per iteration (ms): 400.0 |"
            " batch size:  1024 | number of skipped iterations:   0 |",
            *(201, 2.5, None),
        ),
        (
            " samples/sec: 7.799 | iteration       34/   10000 | elapsed time per iteration (ms): 4000",
            34,
            0.25,
            7.799,
        ),
        (
            "[titan] 2026-05-18 16:04:46,338 - root - INFO - \x1b[31mstep: 14  \x1b[32mloss:  3.24  memory: "
            " 9.46GiB(64.99%)  tps: 10,050  tflops: 0.52  mfu: 0.17%",
            *(14, None, 10050.0),
        ),
        ("step 3, loss 0.5,120 images/s", 3, None, 120.0),
        # The preparation of data.
        ("Map:  10%|█         | 5000/50000 [00:01<00:10, 4871.09 examples/s]", None, None, None),
        ("Map (num_proc=8):   0%|          | 0/50000 [00:00<?, ? examples/s]", None, None, None),
        ("Generating train split: 5000 examples [00:01, 4871.09 examples/s]", None, None, None),
        ("Downloading data: 100%|██████████| 4/4 [00:02<00:00,  1.70files/s]", None, None, None),
        ("Downloading data: 100%|██████████| 1/1 [00:02<00:00,  2.52s/files]", None, None, None),
        ("Map:   1%|          | 2/203 [02:20<3:50:05, 68.68s/ examples]", None, None, None),
        ("spiece.model:  12%|#2        | 5/42 [00:05<00:37,  1.01s/B]", None, None, None),
        ("Fetching 4 files: 100%|██████████| 4/4 [00:02<00:00,  1.70it/s]", None, None, None),
        ("config.json: 100%|██████████| 570/570 [00:00<00:00, 3.11MB/s]", None, None, None),
        ("spiece.model: 100%|██████████| 42/42 [00:00<?, ?B/s]", None, None, None),
        (" 12%|#2        | 12/100 [00:05<00:40,  2.19it/s, read=3.1MB/s]", 12, 2.19, None),
        ("[00:05] step 12, 640 examples/s", 12, None, 640.0),
        # What only looks like it.
        (
            "{'eval_loss': 0.3, 'eval_samples_per_second': 411.5, 'eval_steps_per_second': 3.2}",
            None,
            None,
            None,
        ),
        ("Epoch(val)  [1][50/98]    eta: 0:00:09  time: 0.1", None, None, None),
        ("Test:  [ 10/98]  eta: 0:00:50", None, None, None),
        ("forward_microstep: 652.42 | step_microstep: 1172.13 | step: 1172.13", None, None, None),
        ("footstep 12 meters/s", None, None, None),
        ("learning rate 0.1, stepsize 3", None, None, None),
        ("step 1.5", None, None, None),
    ],
)
def test_the_pace_that_a_line_tells(
    line: str, step: int | None, steps: float | None, samples: float | None
) -> None:
    throughput = StepRate()
    throughput.feed(line.encode() + b"\n", 0.0)
    assert (throughput.step, throughput.samples_per_s) == (step, samples)
    assert throughput.steps_per_s == (pytest.approx(steps) if steps else None)
    assert throughput.line == re.sub("\x1b[^m]*m", "", line).strip()


def test_a_line_of_toolkit_is_not_a_line_of_the_rank() -> None:
    throughput = StepRate()
    throughput.feed(b"step 10 1048576.0\n[toolkit] NCCL uses TCP on eth0\n", 0.0)
    assert (throughput.step, throughput.line) == (10, "step 10 1048576.0")


def test_a_pace_that_nobody_prints_is_taken_from_the_steps() -> None:
    throughput = StepRate()
    for second in range(60):
        throughput.feed(f"step {second * 4}\n".encode(), float(second))
    assert throughput.steps_per_s == pytest.approx(4.0)
    throughput.feed(b"step 1\n", 60.0)
    throughput.feed(b"step 3\nhalf a li", 61.0)
    assert (throughput.step, throughput.steps_per_s) == (3, pytest.approx(2.0)), (
        "the step number restarts with an epoch"
    )
    throughput.feed(b"ne 5\rprogress\r", 62.0)
    assert throughput.line == "progress", "a bar writes over its line"
    throughput.feed(b"step 4, 9 it/s\nstep 5\n", 63.0)
    assert throughput.steps_per_s == 9.0, "what the script says is better than what we count"
    for second in range(40):
        throughput.feed(f"step {second * 2 + 6}\n".encode(), 64.0 + second)
    assert throughput.steps_per_s == pytest.approx(2.0), "what it said once is not true for ever"
    throughput.feed(b"1/9 [>....]\b\b\b\b2/9 [=>...]\n", 105.0)
    assert (throughput.step, throughput.line) == (2, "2/9 [=>...]"), "a bar takes back what it wrote"


DIGITS = "1" * 5000


@for_each(
    "line",
    [
        *(f"step {DIGITS}", f"{DIGITS} it/s", f"{DIGITS} s/it", f"samples/sec: {DIGITS}", f"tps: {DIGITS}"),
        *(f"{DIGITS}/{DIGITS} [00:05<00:40]", f"  {DIGITS}/9 [==>...", f"Epoch: [2]  [ {DIGITS}/1251]"),
        *("1e999 it/s", "1e-999 s/it", "0 s/it", f"0.{DIGITS} s/it", "elapsed time per step (ms): 1e-400"),
        *(
            "samples/sec: 1e400",
            "steps/s: 1e99, samples/s: 1e99",
            "step 999999999999999",
            "nan it/s",
            "inf it/s",
        ),
    ],
)
def test_a_number_out_of_range_stops_neither_top_nor_report(line: str) -> None:
    throughput = StepRate()
    for second in range(3):
        throughput.feed(f"{line}\n".encode(), float(second))
    throughput.feed(b"step 1\nstep 2, 4 samples/s\n", 60.0)
    throughput.feed(f"{line}\n".encode(), 61.0)
    told = json.dumps([throughput.step, throughput.steps_per_s, throughput.samples_per_s], allow_nan=False)
    step, steps_per_s, samples_per_s = json.loads(told)
    rank = RankGauge("job", 0, step=step, steps_per_s=steps_per_s, samples_per_s=samples_per_s)
    hosts = (HostGauges("gpu1", 1.0, ranks=(rank, rank)),)
    assert top_text(hosts, {}) and prometheus_text("demo", hosts, {})


@for_each(
    "piece",
    [
        *(
            " ",
            "\t",
            "1",
            "1.",
            "1,111,",
            "1 ",
            "1e1",
            "1/1",
            "1/1[",
            " 1",
            "step",
            "step ",
            "step\t",
            "step 1.",
            "e1",
        ),
        *(
            "samples/s",
            "samples/s ",
            "Time: 1",
            "Time: ",
            "per step (ms) ",
            "Epoch[1",
            "Epoch [1][ ",
            "\x1b[1;",
            "[1:",
            "[1<1,",
            "[1, 1s/",
        ),
    ],
)
def test_a_line_takes_time_in_proportion_to_its_length(piece: str) -> None:

    def seconds(letters: int) -> float:
        """The time of the slowest beginning of a line, so that no quick one hides it."""
        slowest = 1e-4
        for begin in ("", "1", "step", "samples/s", "1/1", "Time: 1s,", "tps:", "Epoch[1]"):
            line = begin + (piece * letters)[:letters]
            started = time.process_time()
            StepRate()._take(line, 0.0)
            slowest = max(slowest, time.process_time() - started)
        return slowest

    few = min(seconds(500) for _ in range(3))
    many = min(seconds(4000) for _ in range(2))
    # In proportion: 8 times. By the square: 64 times.
    assert many < 24 * few, f"{few:.4f} s, then {many:.4f} s"


def test_of_an_overlong_line_the_end_counts() -> None:
    throughput = StepRate()
    throughput.feed(b"x" * 1_000_000 + b" step 7, 3 it/s\n", 0.0)
    assert (throughput.step, throughput.steps_per_s) == (7, 3.0)


# The program on a host


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    (tmp_path / "jobs").mkdir()
    yield made
    made.close()


@contextmanager
def gauge(here: World, seconds: str = "0.2", **env: str) -> Iterator[subprocess.Popen[str]]:
    """The program; it ends when its standard input is closed."""
    program = [sys.executable, "-S", "-E", str(here.root / "inside" / "run.py"), "monitor.gauges", seconds]
    process = subprocess.Popen(program, stdin=-1, stdout=-1, env={**here.base_env(), **env}, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def reading(process: subprocess.Popen[str]) -> HostGauges:
    assert process.stdout is not None
    found = parse_gauges("gpu1", process.stdout.readline().encode())
    assert found is not None
    return found


def test_the_gauges_of_this_host_and_of_a_rank_on_it(here: World) -> None:
    text = "import time\nfor n in range(999): print('step', n, flush=True); time.sleep(0.05)"
    here.job(command=python(text), launches=[{"host": "gpu1", "argv": here.rank_argv(), "env": rank_env()}])
    here.start("job.supervisor", JOB)
    wait_for(lambda: b"step 3" in here.log())
    with gauge(here) as process:
        first, second = reading(process), [reading(process) for _ in range(8)][-1]
    assert first.busy is None and second.busy is not None, "a rate needs two readings"
    assert second.cores == os.cpu_count() and 0 <= second.busy <= second.cores
    assert second.memory_total and second.memory_used and second.memory_used < second.memory_total
    assert second.interface == "eth0" and second.disk_free
    (rank,) = second.ranks
    assert (rank.job, rank.rank) == (JOB, 0) and rank.step and rank.line == f"step {rank.step}"
    # How many, and how long ago the last one was, depends on what else this machine does.
    assert rank.steps_per_s is not None and rank.steps_per_s > 0
    assert rank.memory and rank.cpu is not None and rank.silent is not None
    here.call("job.stop", JOB)


def test_no_more_processors_are_busy_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's ticks and our clock are read at different moments."""
    host = gauges.Host("eth0")
    monkeypatch.setattr(host, "_rate", lambda name, value, now: 1e6)
    cpu = host._cpu(0.0)
    assert cpu["busy"] == cpu["cores"] == os.cpu_count()


def test_a_rank_that_has_ended_is_no_rank(here: World) -> None:
    folder = here.job()
    (folder / "logs").mkdir()
    run = {"rank": 0, "attempt": 0, "pid": os.getpid(), "began": 0.0}
    (folder / "logs" / "rank-0.run").write_text(json.dumps(run))
    with gauge(here) as process:
        assert reading(process).ranks == ()


def test_a_rank_whose_log_has_begun_a_new_piece_is_not_silent(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("step 1\n")
    os.utime(log, (1000.0, 1000.0))
    (tmp_path / "rank-0.log.7").write_text("step 2\n")
    rank = gauges.Rank(JOB, 0, os.getpid(), log)
    found = rank.sample(0.0)
    rank.close()
    assert found["step"] == 2 and found["silent"] < 600


def test_gpus_by_nvidia_smi(here: World, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\nwhile :; do echo '0, GPU-1, 97, 20000, 24576, 349.12, 71, 1695, 2100';"
        " echo '1, GPU-2, [N/A], 3, 24576, [Not Supported], 35, 210, 2100'; sleep 0.1; done\n"
    )
    script.chmod(0o755)
    # nvidia-smi does not outlive it: it would keep the pipe open.
    with gauge(here, PATH=f"{script.parent}:{os.environ['PATH']}") as process:
        found = [reading(process) for _ in range(4)][-1].gpus
    assert found == (
        GpuGauge(0, "GPU-1", 97.0, 20000.0, 24576.0, 349.12, 71.0, 1695.0, 2100.0),
        GpuGauge(1, "GPU-2", None, 3.0, 24576.0, None, 35.0, 210.0, 2100.0),
    )


def test_what_nvidia_smi_said_long_ago_is_not_true_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[float] = []

    def start(gpus: Any, now: float) -> None:
        starts.append(now)
        gpus._begun = now

    monkeypatch.setattr(gauges.Gpus, "_start", start)
    gpus = gauges.Gpus(2.0)
    assert gpus.sample(0.0) == [] and starts == [0.0]
    gpus._rows["GPU-1"] = (1.0, {"uuid": "GPU-1"})
    assert gpus.sample(9.0) == [{"uuid": "GPU-1"}] and starts == [0.0]
    assert gpus.sample(12.0) == [] and starts == [0.0, 12.0], "it hangs, and is started anew"
    assert gpus.sample(15.0) == [] and starts == [0.0, 12.0]


def test_an_unkillable_nvidia_smi_is_not_waited_for_and_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow one has time to initialize the GPUs."""
    killed = unkillable_smi(tmp_path, monkeypatch)
    gpus, start = gauges.Gpus(2.0), time.monotonic()
    assert gpus.sample(0.0) == gpus.sample(65.0) == [] and killed == []
    assert gpus.sample(75.0) == gpus.sample(77.0) == gpus.sample(150.0) == [] and len(killed) == 2
    gpus.close()
    assert time.monotonic() - start < 20
    killed[0].terminate()
    killed[0].wait()
    gpus.sample(170.0)
    wait_for(lambda: len((tmp_path / "started").read_text().split()) == 2)
    gpus.close()
    killed[-1].terminate()
    killed[-1].wait()


def test_it_costs_less_than_a_hundredth_of_a_processor(here: World) -> None:
    with gauge(here, "2") as process:
        path = Path(f"/proc/{process.pid}/stat")

        def ticks() -> int:
            words = path.read_text().rpartition(")")[2].split()
            return int(words[11]) + int(words[12])

        reading(process)
        before, began = ticks(), time.monotonic()
        for _ in range(3):
            reading(process)
        spent = (ticks() - before) / os.sysconf("SC_CLK_TCK")
    assert spent <= 0.01 * (time.monotonic() - began) + 0.01  # the clock ticks by hundredths


# The streams of all hosts


class Streams:
    """The containers of a cluster: each reading arrives when a reader waits for it."""

    def __init__(self, gauges: Gauges, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = threading.Semaphore(0)
        wait = gauges._changed.wait

        def waited(seconds: float | None = None) -> bool:
            self.waits.release()
            return wait(seconds)

        monkeypatch.setattr(gauges._changed, "wait", waited)
        monkeypatch.setattr(gauges._session, "container", lambda name: self)

    def stream(self, ask: Command, sink: Callable[[bytes], None], held: Iterable[bytes]) -> Result:
        for number in (1, 2):
            assert self.waits.acquire(timeout=PATIENCE_S)
            parts = {"cpu": {"cores": 1}, "memory": {}, "network": {"interface": "eth0"}, "disk": {}}
            sink(json.dumps({"at": float(number), **parts}).encode() + b"\n")
        list(held)
        return Result(0, "", "", 0.0)


def test_rates_are_there_after_the_second_reading_of_every_host_that_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session(world.inventory())
    session.facts = {"gpu1": world.facts()}
    session.errors = {"gpu2": Unreachable("no route", "look at it", "gpu2")}
    gauges = Gauges(session, PATIENCE_S)
    streams = Streams(gauges, monkeypatch)
    with gauges:
        try:
            gauges.wait_for_rates()
            found, silent = gauges.now()
            assert [(one.host, one.at) for one in found] == [("gpu1", 2.0)]
            assert silent == {"gpu2": "no route"}
        finally:
            streams.waits.release(2)


def test_a_host_that_is_not_read_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(world.inventory())
    session.facts = {"gpu1": world.facts()}
    monkeypatch.setattr("toolkit.cluster.gauges._PATIENCE_S", 0.0)
    gauges = Gauges(session, 0.0)
    gauges.wait_for_rates()
    assert gauges.now() == ((), {"gpu1": "the host sent no measurements within 0 s"})


def test_a_host_that_sends_nothing_more_over_a_connection_that_lives_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its container is paused, or a file system hangs."""
    session = Session(world.inventory())
    session.facts = {"gpu1": world.facts(), "gpu2": world.facts("gpu2")}
    gauges = Gauges(session, 0.0)
    streams = Streams(gauges, monkeypatch)
    monkeypatch.setattr("toolkit.cluster.gauges._PATIENCE_S", PATIENCE_S)
    streams.waits.release(3)  # a half of the readings of one host is left out
    with gauges:
        wait_for(lambda: len(gauges._counts) == 2 and sum(gauges._counts.values()) == 3)
        assert [one.host for one in gauges.now()[0]] == ["gpu1", "gpu2"]
        monkeypatch.setattr("toolkit.cluster.gauges._PATIENCE_S", 0.0)
        found, silent = gauges.now()
        assert found == () and list(silent) == ["gpu1", "gpu2"]
        assert silent["gpu1"].startswith("the host has sent no measurements for ")
        streams.waits.release()


def test_a_host_that_was_down_at_the_start_is_probed_and_read_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session(world.inventory())
    down = Unreachable("no route", "look at it", "gpu2")
    session.facts, session.errors = {"gpu1": world.facts()}, {"gpu2": down}
    tries: list[str] = []
    probed: list[str] = []

    class Lost:
        is_open = False

    def reconnect(name: str) -> Any:
        tries.append(name)
        if len(tries) < 3:
            raise down
        return session.runners[name]

    session.runners = {"gpu1": Lost(), "gpu2": Lost()}  # type: ignore[dict-item]
    monkeypatch.setattr(session, "reconnect", reconnect)
    monkeypatch.setattr(session, "_ask", probed.append)
    monkeypatch.setattr("toolkit.cluster.gauges._PAUSE_S", 0.0)
    gauges = Gauges(session, PATIENCE_S)
    streams = Streams(gauges, monkeypatch)
    monkeypatch.setattr("toolkit.cluster.gauges.ContainerRunner", lambda runner, container: streams)
    streams.waits.release(4)
    with gauges:
        wait_for(lambda: [one.host for one in gauges.now()[0]] == ["gpu1", "gpu2"])
        assert gauges.now()[1] == {} and (tries, probed) == (["gpu2"] * 3, ["gpu2"])


REFUSALS = [
    *(
        Unreachable("refused", "", "gpu2", cause)
        for cause in UnreachableCause
        if cause not in (UnreachableCause.OTHER, UnreachableCause.UNKNOWN_NAME)
    ),
    UnsafeState("others can write to the state directory", "", "gpu2"),
]


@for_each("error", [*REFUSALS, NotReady("the engine is not running", "", "gpu2")])
def test_a_host_that_refused_at_the_start_is_not_tried_again(error: ToolkitError) -> None:
    """After repeated failed logins, the sshd of the host or fail2ban blocks this machine."""
    session = Session(world.inventory())
    session.errors = {"gpu2": error, "cpu3": Unreachable("no route", "look at it", "cpu3")}
    session.facts, session.runners = {"gpu1": world.facts()}, dict.fromkeys(world.inventory().names)  # type: ignore[arg-type]
    held: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gauges, "_hold", lambda gauges, name, ending: held.append(name))
        with Gauges(session, 1.0) as gauges:
            wait_for(lambda: {"gpu1", "cpu3"} <= set(held))
            assert "gpu2" not in held and gauges.now()[1]["gpu2"] == error.what


@for_each("error", [*REFUSALS, Unreachable("no route", "", "gpu2"), NotReady("no container", "", "gpu2")])
def test_the_pause_after_a_refusal_is_long(error: ToolkitError) -> None:
    """A host that boots refuses logins for a moment."""
    gauges, pauses = Gauges(Session(world.inventory()), 1.0), []

    class Ending(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            self.set()
            return True

    def refuse(name: str, again: bool) -> Any:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gauges, "_container", refuse)
        patch.setattr(gauges, "_answered", ("gpu2",))
        gauges._hold("gpu2", Ending())
    assert pauses == [900.0 if error in REFUSALS else 5.0] and gauges.now()[1] == {"gpu2": error.what}


def test_a_silent_host_does_not_cost_more_threads_with_every_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread holds the input of each stream open, as the connection of a host does."""
    session = Session(world.inventory())
    session.facts = {"gpu1": world.facts()}
    feeding: list[threading.Thread] = []
    tries = threading.Semaphore(0)

    class Stopped:
        """A host whose container does not run; it is connected."""

        is_open = True

        def stream(self, ask: Command, sink: Callable[[bytes], None], held: Iterable[bytes]) -> Result:
            thread = threading.Thread(target=list, args=(held,), daemon=True)
            thread.start()
            feeding.append(thread)  # now, because the test joins all that are here
            tries.release()
            return Result(1, "", "no such container", 0.0)

    stopped: Any = Stopped()
    session.runners = {"gpu1": stopped}
    monkeypatch.setattr("toolkit.cluster.gauges.ContainerRunner", lambda runner, container: runner)
    monkeypatch.setattr(session, "container", lambda name: stopped)
    monkeypatch.setattr("toolkit.cluster.gauges._PAUSE_S", 0.0)
    with Gauges(session, 1.0):
        for _ in range(20):
            assert tries.acquire(timeout=PATIENCE_S)
        for thread in feeding[:15]:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in feeding[:15])
    for thread in list(feeding):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


# What is made of it


ID = "20261122-101500-train-a1b2"


def host(name: str, ranks: tuple[RankGauge, ...] = (), **more: Any) -> HostGauges:
    about = {ID: GaugedJob(4, "torchrun", ("python", "a.py"), "alice")}
    base: dict[str, Any] = {"cores": 16, "busy": 3.25, "load": 2.0, "memory_used": 12 * 2**30}
    base |= {"memory_total": 64 * 2**30, "interface": "eth0", "received": 1.1e8, "sent": 2e6, "mbit": 1000}
    base |= {"disk_read": 0.0, "disk_written": 5e6, "disk_free": 2**29, "jobs": about if ranks else {}}
    return HostGauges(name, 1.8e9, ranks=ranks, **(base | more))


GPUS = (
    GpuGauge(0, "GPU-1", 97.0, 20000.0, 24576.0, 349.0, 88.0, 900.0, 2100.0),
    GpuGauge(1, "GPU-2", None, 3.0, 24576.0, None, 35.0, 210.0, 2100.0),
)
HOSTS = (
    host(
        "gpu1",
        (
            RankGauge(ID, 0, 1.02, 2**31, 0.5, "step 120 loss 0.31 [rank 0]", 120, 3.1, 99.0),
            RankGauge(ID, 1, 1.0, 2**31, 0.4, "step 120", 120, 3.2, 101.0),
        ),
        gpus=GPUS,
    ),
    host(
        "gpu2",
        (RankGauge(ID, 2, None, None, 0.7, "\x1b[31mstep 117", 117, 3.1, None),),
        mbit=None,
        busy=None,
    ),
)
SILENT = {"cpu3": "10.0.0.4 port 22: no answer within 10 s"}


def test_the_tables() -> None:
    check_golden("top/top.txt", top_text(HOSTS, SILENT))
    check_golden("top/metrics.prom", prometheus_text('de"mo', HOSTS, SILENT))
    alarms = {
        (one.title, cell.text)
        for one in tables(HOSTS, SILENT)
        for row in one.rows
        for cell in row
        if cell.alarm
    }
    assert {kind for kind, _ in alarms} == {"hosts", "GPUs", "jobs", "ranks"}
    assert ("GPUs", "900 of 2100 MHz") in alarms and ("GPUs", "210 of 2100 MHz") not in alarms
    assert ("jobs", "3 of 4") in alarms and ("ranks", "2") in alarms
    assert not any("\x1b" in cell.text for one in tables(HOSTS, {}) for row in one.rows for cell in row)


def test_who_holds_the_others_up() -> None:
    def behind(*ranks: RankGauge) -> dict[int, str]:
        return dict(job_gauges((host("gpu1", ranks),))[0].behind)

    assert behind(RankGauge("j", 0, step=9), RankGauge("j", 1, step=8), RankGauge("j", 2, step=9)) == {}
    assert list(behind(*(RankGauge("j", n, step=5 if n == 2 else 9) for n in range(4)))) == [2]
    slow = behind(*(RankGauge("j", n, steps_per_s=1.0 if n == 1 else 2.0) for n in range(3)))
    assert slow == {1: "1 steps/s, but the median of the ranks that print steps is 2 steps/s"}
    talking = [RankGauge("j", n, step=9, silent=200.0 if n == 1 else 2.0) for n in range(3)]
    assert list(behind(*talking)) == [1]
    alone = [RankGauge("j", n, step=9 if n == 0 else None, silent=300.0 * n) for n in range(3)]
    assert behind(*alone) == {}, "rank 0 alone often prints, and nobody expects it of the others"


def test_numbers_for_programs() -> None:
    said = top_json(HOSTS, SILENT)
    json.dumps(said)
    (job,) = said["jobs"]
    assert (job["world_size"], job["step"], job["steps_per_s"], job["samples_per_s"]) == (4, 120, 3.1, 99.0)
    assert list(job["behind"]) == ["2"] and said["silent"] == SILENT
    text = prometheus_text("demo", HOSTS, SILENT)
    names = re.compile(r'toolkit_[a-z_]+\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)+\} -?\d[\d.e+-]*$')
    for line in text.splitlines():
        assert line.startswith("# ") or names.match(line), line
    assert 'toolkit_host_up{cluster="demo",host="cpu3"} 0' in text
    assert prometheus_text("demo", (), {}) == ""


def test_samples_of_a_job_are_those_of_its_first_rank_that_prints_them() -> None:
    ranks = (RankGauge("j", 2, samples_per_s=30.0), RankGauge("j", 1, samples_per_s=20.0), RankGauge("j", 0))
    assert job_gauges((host("gpu1", ranks),))[0].samples_per_s == 20.0


class Readings:
    """Gauges of one host; the disk is full at the readings ``full``, and Ctrl-C follows the last reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int, *full: int) -> None:
        self.number, self.last, self.full = 0, last, full
        real = tempfile.mkstemp
        monkeypatch.setattr(tempfile, "mkstemp", lambda **words: self._refuse() or real(**words))

    def _refuse(self) -> None:
        if self.number in self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def now(self) -> tuple[tuple[HostGauges, ...], dict[str, str]]:
        self.number += 1
        if self.number > self.last:
            raise KeyboardInterrupt
        return (host("gpu1", busy=float(self.number)),), {}


def test_a_disk_that_is_full_for_a_while_does_not_end_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.prom"
    go_on(Readings(monkeypatch, 4, 2, 3), "demo", 0.0, False, str(file))  # type: ignore[arg-type]
    assert 'toolkit_host_processors_busy{cluster="demo",host="gpu1"} 4' in file.read_text()
    assert 'toolkit_host_reading_timestamp_seconds{cluster="demo",host="gpu1"} 1800000000' in file.read_text()
    assert capsys.readouterr().err.count("cannot write") == 1
    with pytest.raises(ToolkitError, match="cannot write"):
        go_on(Readings(monkeypatch, 4, 1), "demo", 0.0, False, str(file))  # type: ignore[arg-type]


def test_ctrl_c_within_a_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "chmod", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "t.prom", "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["", "null", "[1]", "Error response from daemon"])
def test_a_word_of_the_engine_is_no_reading(line: str) -> None:
    assert parse_gauges("gpu1", line.encode()) is None
