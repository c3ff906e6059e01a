"""Jobs that lose a host or a rank and continue automatically."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.conftest import hosts_file
from tests.e2e.world import Toolkit, marked, on, sh

pytestmark = pytest.mark.lab

DIGITS = ("--workdir", "examples/digits", "--launcher", "torchrun", "train_ddp.py", "--epochs", "40")


@pytest.fixture(scope="module")
def again(lab: Path, folder: Path) -> Iterator[Toolkit]:
    """Two hosts for ranks and a spare, up."""
    path = hosts_file(lab, folder, "again", ("box1", "box2", "box3"))
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"spares": ["box3"]}))
    toolkit = Toolkit(path, folder)
    toolkit.run("up", check=True)
    yield toolkit
    toolkit.run("down", check=True)


def read_until(process: subprocess.Popen[str], pattern: str, lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return
    raise AssertionError("".join(lines))


@pytest.mark.rare
def test_a_host_is_killed_and_a_spare_brings_the_training_to_its_end(again: Toolkit) -> None:
    process, lines = again.start("run", "--max-restarts", "2", *DIGITS), []
    read_until(process, r"epoch 5/40", lines)
    on("box2", "docker", "kill", "toolkit-again-worker")
    read_until(process, "continues after step", lines)
    running = again.run("jobs", "--json", check=True).json[-1]
    assert running["hosts"] == {"box1": [0], "box3": [0]} and running["state"] == "running"
    read_until(process, r"test accuracy \S+ on 2 ranks", lines)
    assert process.wait(240) == 0
    said = "".join(lines) + (process.stdout.read() if process.stdout else "")
    # Whichever is seen first, the host's end or that of the rank on it.
    assert re.search(r"\[toolkit\] .*box2.*\n(.*\n)*\[toolkit\] restart 1 of 2 in 1 s", said), said
    assert "[toolkit] restart 1: 2 ranks on box1, box3" in said
    first = int(re.findall(r"continues after step (\d+)", said)[0])
    accuracy = float(re.findall(r"test accuracy (\S+) on 2 ranks", said)[0])
    assert first >= 5 * 22
    again.run("up", check=True)
    # The very same as of a run that nothing disturbs: weights, momentum and the order of the pictures.
    whole = again.run("run", *DIGITS, check=True).out
    assert accuracy == float(re.findall(r"test accuracy (\S+) on 2 ranks", whole)[0]) >= 0.97
    (job,) = re.findall(r"job (\S+): succeeded", said)
    assert not marked("box1", f"TOOLKIT_JOB={job}") and not marked("box3", f"TOOLKIT_JOB={job}")


@pytest.mark.rare
def test_torchrun_starts_its_ranks_again_by_itself_and_takes_a_spare(again: Toolkit) -> None:
    process, lines = again.start("run", "--elastic", "--max-restarts", "2", *DIGITS), []
    read_until(process, r"epoch 3/40", lines)
    kill_ranks("box2", again)
    read_until(process, r"continues after step", lines)
    on("box2", "docker", "kill", "toolkit-again-worker")
    read_until(process, r"test accuracy \S+ on 2 ranks", lines)
    assert process.wait(240) == 0
    said = "".join(lines) + (process.stdout.read() if process.stdout else "")
    first = "rank 1 on box2 was killed by SIGKILL; restart 1 of 2 by torchrun on box1, box2"
    assert f"[toolkit] {first}" in said
    assert re.search(r"\[toolkit\] .*box2.*; restart 2 of 2 by torchrun on box1, box3", said), said
    assert float(re.findall(r"test accuracy (\S+) on 2 ranks", said)[0]) >= 0.97
    again.run("up", check=True)


@pytest.mark.rare
def test_horovod_goes_on_in_memory_and_takes_a_spare(again: Toolkit) -> None:
    words = ("--launcher", "horovodrun", "--workdir", "examples/digits", "train_elastic.py", "--epochs", "40")
    process, lines = again.start("run", "--elastic", "--max-restarts", "1", *words), []
    read_until(process, r"epoch 3/40", lines)
    kill_ranks("box2", again)
    read_until(process, r"test accuracy \S+ on 2 ranks", lines)
    assert process.wait(240) == 0
    said = "".join(lines)
    assert "CVE-2024-10190" in said and "CVE-2026-31234" in said
    assert "on box2 was killed by SIGKILL; restart 1 of 1 by horovodrun on box1, box3" in said
    assert int(re.findall(r"continues after step (\d+) of \d+ on 2 ranks", said)[-1]) >= 3 * 22
    assert float(re.findall(r"test accuracy (\S+) on 2 ranks", said)[0]) >= 0.97
    (job,) = re.findall(r"job (\S+): 2 ranks", said)
    assert not any(marked(host, f"TOOLKIT_JOB={job}") for host in ("box1", "box2", "box3"))


def kill_ranks(host: str, toolkit: Toolkit) -> None:
    """SIGKILL of the newest job's ranks on a host, past the toolkit."""
    job = toolkit.run("jobs", "--json", check=True).json[-1]["id"]
    text = (
        "for p in /proc/[0-9]*; do"
        f" grep -qsxz TOOLKIT_JOB={job} $p/environ && grep -qsz ^TOOLKIT_RANK= $p/environ"
        " && kill -9 ${p#/proc/};"
        " done; true"
    )
    sh(host, text)


def test_ranks_that_fail_are_told_apart_and_the_last_reason_stays(standing: Toolkit) -> None:
    here = ("--workdir", "examples", "--launcher", "mpirun")
    kill = (
        "import os, time; print('alive', flush=True)\n"
        "os.environ['RANK'] == '1' and os.kill(os.getpid(), 9)\n"
        "time.sleep(60)"
    )
    done = standing.run(
        "run", "--max-restarts", "1", "--env", "TOKEN=s3cret-1", *here, "--", "python", "-c", kill
    )
    for host in ("box1", "box2"):
        assert not sh(host, "grep -rls s3cret-1 /home/*/.local/state/toolkit/two").strip(), host
    assert done.status == 137
    assert "rank 1 on box2 was killed by SIGKILL" in done.out and "restart 1 of 1 in 1 s" in done.out
    assert "rank 1 on box2 was killed by SIGKILL; toolkit gave up after 1 restart" in done.err
    assert "    alive\n" in done.err


@pytest.mark.rare
def test_a_rank_without_memory_and_too_few_hosts(again: Toolkit) -> None:
    eat = (
        "import os, time; x = []\nwhile os.environ['RANK'] == '1': x.append(bytearray(10**7))\ntime.sleep(60)"
    )
    here = ("--workdir", "examples", "--launcher", "mpirun")
    on("box2", "docker", "update", "--memory", "300m", "--memory-swap", "300m", "toolkit-again-worker")
    try:
        done = again.run("run", *here, "--", "python", "-c", eat)
    finally:
        on("box2", "docker", "rm", "-f", "toolkit-again-worker")
        again.run("up", check=True)
    assert done.status == 137 and "rank 1 on box2 was killed by the out-of-memory killer" in done.err
    process, lines = (
        again.start("run", "--max-restarts", "1", "--exclude", "box3", *here, "--", "sleep", "60"),
        [],
    )
    read_until(process, r"job \S+: 2 ranks", lines)
    job = re.findall(r"job (\S+): 2 ranks", lines[-1])[0]
    waiting.rank_runs("box2", job, "sleep 60")
    on("box2", "docker", "kill", "toolkit-again-worker")
    said = process.communicate(timeout=240)[0]
    assert process.returncode != 0 and "no restart: only box1 answers, but the job requires 2" in said, said
    again.run("up", check=True)
