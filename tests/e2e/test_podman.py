"""Rootless Podman on hosts that have no Docker: the life of a cluster, a trained model, and nothing left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import waiting
from tests.e2e.care import practice_cluster
from tests.e2e.world import LAB, Toolkit, interrupt, outer, sh
from toolkit.lab.spec import LabSpec

pytestmark = [pytest.mark.lab, pytest.mark.rare]

NAME = f"{LAB}-pod"
HOSTS = ("box1", "box2")


def podman(host: str, words: str) -> str:
    """Podman of the SSH user on a practice host, past the toolkit."""
    own = "HOME=/home/trainer XDG_RUNTIME_DIR=/run/user/1000 PODMAN_IGNORE_CGROUPSV1_WARNING=1"
    return sh(host, f"runuser -u trainer -- env {own} podman {words}", lab=NAME)


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toolkit]:
    place, work = tmp_path_factory.mktemp("pod"), tmp_path_factory.mktemp("pod-work")
    shutil.copytree(Path("examples"), work / "examples")
    with practice_cluster(LabSpec(NAME, str(place), hosts=2, engines=("podman",))):
        yield Toolkit(place / "hosts.yaml", work)


def test_a_cluster_s_life_without_docker(pod: Toolkit) -> None:
    assert all("not found" in sh(host, "docker --version", lab=NAME) for host in HOSTS), outer(HOSTS[0], NAME)
    checked = pod.run("check", "--json")
    assert checked.json["verdict"] != "error", checked.out
    planned = pod.run("up", "--dry-run", check=True).out
    assert "podman run --rm" in planned and "docker run" not in planned
    first = pod.run("up", check=True, timeout=600)
    assert "10 of 10 layers" in first.err or "layers" in first.err
    assert pod.run("up", "--json", check=True).json["changes"] == 0
    for host, name in zip(HOSTS, ("main", "worker"), strict=True):
        assert podman(host, "ps --format '{{.Names}} {{.Status}}'").startswith(f"toolkit-{NAME}-{name} Up")
    assert "all-reduce over 2 ranks: sum 3 correct on all ranks" in pod.run("smoke", check=True).out
    rows = pod.run("image", "ls", "--json", check=True).json["rows"]
    assert {(row["state"], row["names"][0]) for row in rows} == {("whole", "toolkit:cpu")}


@pytest.mark.parametrize("launcher", ["horovodrun", "torchrun"])
def test_the_digits_train_across_two_hosts(pod: Toolkit, launcher: str) -> None:
    script = "train_horovod.py" if launcher == "horovodrun" else "train_ddp.py"
    done = pod.run("run", "--launcher", launcher, f"examples/digits/{script}", "--epochs", "2", timeout=300)
    assert done.status == 0 and "test accuracy" in done.out and "on 2 ranks" in done.out, done.out + done.err


def test_files_belong_to_the_user_and_jobs_end(pod: Toolkit) -> None:
    text = (
        "import os, time; open('made', 'w').write('x'); "
        "print('made by', os.getuid(), flush=True); time.sleep(600)"
    )
    pod.run("run", "--detach", "--launcher", "torchrun", "--", "python", "-c", text, check=True)
    waiting.until(
        "both ranks have made their file",
        lambda: pod.run("logs").out,
        lambda said: said.count("made by 1000") == 2,
        120,
    )
    owners = sh("box2", "stat -c %U /home/trainer/.local/state/toolkit/*/*/jobs/*/code/made", lab=NAME)
    assert owners.split() == ["trainer"]
    pod.run("stop", "--now", check=True)
    assert pod.run("get", "made", "-o", "got", check=True).status == 0
    waiting.program_gone("box2", "time.sleep(600)", lab=NAME)


def test_what_exec_runs_ends_with_it(pod: Toolkit) -> None:
    done = pod.run("exec", "box2", "--", "sh", "-c", "echo out; echo beside >&2; exit 5")
    assert (done.status, done.out) == (5, "out\n") and "beside" in done.err, done.err
    process = pod.start("exec", "box2", "--", "sleep", "98765")
    waiting.program_runs("box2", "sleep 98765", lab=NAME)
    interrupt(process)
    assert process.wait(120) != 0
    waiting.program_gone("box2", "98765", lab=NAME)


def test_nothing_is_left(pod: Toolkit) -> None:
    pod.run("down", check=True)
    for host in HOSTS:
        assert podman(host, "ps --all --quiet") == ""
        assert "No such file" in sh(host, "ls /home/trainer/.local/state/toolkit", lab=NAME)
