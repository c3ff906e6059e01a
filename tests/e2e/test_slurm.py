"""The script of `render slurm` under a real Slurm: world size, exit codes, cancelled without leftovers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import waiting
from tests.e2e.care import CARE
from tests.e2e.conftest import hosts_file
from tests.e2e.slurm import Slurm
from tests.e2e.world import LAB, Toolkit, outer, sh

pytestmark = pytest.mark.lab

# Both of the newer Debian: daemons of Slurm of two ages do not work together.
HOSTS = ("box1", "box3")
FOLDER = "/srv/shared/away"
TELLS = """\
import os, sys, time
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE"
words = ["told", *(os.environ[name] for name in names.split()), os.uname().nodename]
os.write(1, (" ".join(words) + "\\n").encode())  # as one write: ranks may share a pipe
if sys.argv[1:] == ["fail"] and os.environ["RANK"] == "1":
    sys.exit(7)
if sys.argv[1:] == ["stay"]:
    import signal
    def end(*_):
        print("saved", os.environ["RANK"], flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
if sys.argv[1:]:
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def away(lab: Path, folder: Path) -> Toolkit:
    """A hosts file of two hosts that have the image, and code that both see."""
    cluster = Toolkit(hosts_file(lab, folder, "away", HOSTS), folder)
    cluster.run("image", "send", check=True, timeout=600)
    (folder / "tells.py").write_text(TELLS)
    sh("box1", f"install -d -o trainer {FOLDER}")
    put(folder / "tells.py")
    subprocess.run(
        ["docker", "cp", str(folder / "examples"), f"{outer('box1')}:{FOLDER}/examples"], check=True
    )
    return cluster


@pytest.fixture(scope="module")
def slurm(away: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    addresses = [re.findall(r"inet (10\.[0-9.]+)", sh(host, "ip -4 addr"))[0] for host in HOSTS]
    made = Slurm(HOSTS, addresses, tmp_path_factory.mktemp("debs"))
    try:
        made.start()
        with CARE.changed(LAB):
            yield made
    finally:
        made.stop()


def put(path: Path) -> None:
    subprocess.run(["docker", "cp", str(path), f"{outer('box1')}:{FOLDER}/{path.name}"], check=True)
    sh("box1", f"chown trainer {FOLDER}/{path.name}")


def both_tell(script: str, job: str) -> None:
    """Wait until both ranks run."""
    waiting.until(
        f"both ranks of {job} tell their place",
        lambda: log_of(script, job),
        lambda said: said.count("told") == 2,
        180,
    )


def rendered(away: Toolkit, *words: str) -> str:
    """Render a job's script, put it where Slurm can read it, return its name."""
    out = away.folder / "rendered"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    away.run("render", "slurm", "--gpus", "0", "-o", str(out), *words, check=True)
    (script,) = out.iterdir()
    put(script)
    return script.name


def log_of(script: str, job: str) -> str:
    return sh("box1", f"cat {FOLDER}/{script.removesuffix('.sh')}-{job}.log")


def leftovers() -> list[str]:
    """Containers, folders and ranks of such jobs, on all nodes."""
    found = []
    for host in HOSTS:
        found += sh(host, "docker ps -aq --filter label=toolkit.slurm").split()
        found += sh(host, "ls -d /tmp/toolkit-job-* 2>/dev/null").split()
        found += [
            line for line in sh(host, "ps -eo args").splitlines() if "tells.py" in line and "ps " not in line
        ]
    return found


RARE = [pytest.param(name, marks=pytest.mark.rare) for name in ("torchrun", "python")]


@pytest.mark.parametrize("launcher", ["mpirun", *RARE])
def test_two_nodes_make_one_world(away: Toolkit, slurm: Slurm, launcher: str) -> None:
    script = rendered(away, "--launcher", launcher, "--slots", "2", "tells.py")
    job = slurm.submit(script, folder=FOLDER)
    assert slurm.ended(job) == ("COMPLETED", "0:0"), log_of(script, job)
    told = sorted(re.findall(r"told (\d) (\d) (\d) (\d) (\w+)", log_of(script, job)))
    assert told == [
        ("0", "4", "0", "2", "box1"),
        ("1", "4", "1", "2", "box1"),
        ("2", "4", "0", "2", "box3"),
        ("3", "4", "1", "2", "box3"),
    ]
    record = slurm.record(job)
    assert (record["JobState"], record["ExitCode"]) == ("COMPLETED", "0:0")
    assert (record["NodeList"], record["NodeCnt"]) == ("box[1,3]", "2")
    assert leftovers() == []


@pytest.mark.rare
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun", "python"])
def test_the_exit_code_is_the_rank_s(away: Toolkit, slurm: Slurm, launcher: str) -> None:
    script = rendered(away, "--launcher", launcher, "tells.py", "fail")
    job = slurm.submit(script, folder=FOLDER)
    assert slurm.ended(job) == ("FAILED", "7:0"), log_of(script, job)
    assert slurm.record(job)["ExitCode"] == "7:0"
    assert leftovers() == []


@pytest.mark.rare
@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("mpirun", marks=pytest.mark.rare)])
def test_scancel_leaves_nothing(away: Toolkit, slurm: Slurm, launcher: str) -> None:
    script = rendered(away, "--launcher", launcher, "tells.py", "stay")
    job = slurm.submit(script, folder=FOLDER)
    both_tell(script, job)
    sh("box1", f"runuser -u trainer -- scancel {job}")
    assert slurm.ended(job)[0] == "CANCELLED"
    assert slurm.record(job)["JobState"] == "CANCELLED"
    waiting.until("nothing of the job is left", leftovers, lambda found: found == [])


@pytest.mark.rare
def test_a_node_that_lacks_the_image_is_named(away: Toolkit, slurm: Slurm) -> None:
    script = rendered(away, "--image", "gone:1", "--launcher", "torchrun", "tells.py")
    job = slurm.submit(script, folder=FOLDER)
    assert slurm.ended(job) == ("FAILED", "69:0")
    log = log_of(script, job)
    assert "box1: docker has no image gone:1" in log or "box3: docker has no image gone:1" in log, log
    assert leftovers() == []


@pytest.mark.rare
def test_the_digits_train_with_horovod(away: Toolkit, slurm: Slurm) -> None:
    script = rendered(away, "--launcher", "horovodrun", "examples/digits/train_horovod.py", "--epochs", "2")
    job = slurm.submit(script, folder=FOLDER)
    assert slurm.ended(job, 300) == ("COMPLETED", "0:0"), log_of(script, job)
    assert "2 ranks" in log_of(script, job), log_of(script, job)


@pytest.mark.rare
def test_check_has_slurm_run_two_ranks(
    away: Toolkit, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's commands are box1's; the folder is the one that all nodes see."""
    shared = subprocess.run(
        [
            "docker",
            "inspect",
            "--format",
            '{{range .Mounts}}{{.Destination}} {{.Source}}{{"\\n"}}{{end}}',
            outer("box1"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = dict(line.split() for line in shared.splitlines() if line)["/srv/shared"] + "/away"
    for name in ("sbatch", "scontrol", "scancel"):
        text = (
            f"#!/bin/bash\nhere={here} there={FOLDER}\n"
            f'exec docker exec -i -u trainer -w {FOLDER} {outer("box1")} {name} "${{@//"$here"/"$there"}}"\n'
        )
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    at = Toolkit(away.hosts, Path(here))
    words = ("render", "slurm", "--gpus", "0", "--check", "--launcher", "torchrun")
    done = at.run(*words, "tells.py", check=True, timeout=300)
    assert (
        "ok: the script has valid Bash syntax (bash -n)" in done.err
        and "ok: Slurm accepts the job (sbatch --test-only)" in done.err
    )
    assert "ok: all-reduce over 2 ranks with torchrun under Slurm" in done.err
    assert "all-reduce over 2 ranks: sum 3 correct on all ranks" in done.err and done.out == ""
    lacks = at.run(*words, "--image", "gone:1", "--json", "tells.py", timeout=300)
    assert lacks.status == 1 and [each["verdict"] for each in lacks.json["check"]] == ["ok", "ok", "error"]
    assert "docker has no image gone:1" in lacks.json["check"][2]["detail"]


@pytest.mark.rare
def test_what_is_killed_outright_leaves_no_container(away: Toolkit, slurm: Slurm) -> None:
    script = rendered(away, "--launcher", "torchrun", "tells.py", "stay")
    job = slurm.submit(script, folder=FOLDER)
    both_tell(script, job)
    sh("box1", f"runuser -u trainer -- scancel --full --signal=KILL {job}")
    slurm.ended(job)
    for host in HOSTS:
        waiting.on_host(
            "no container of the job is left",
            host,
            "docker ps -aq --filter label=toolkit.slurm",
            lambda said: not said.strip(),
        )
