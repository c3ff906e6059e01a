"""Holders of GPUs: the real query, the interpretation of its answers, and refused jobs."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cluster_world import facts, gpu, running
from tests.unit.container_world import OTHER, only_root, sleeping, until_seen
from toolkit.cluster import probe
from toolkit.cluster.gpu_usage import Holder, gpus_json, gpus_text, holders, refuse_held
from toolkit.cluster.probe import LEASE, USES, parse_claims, parse_processes
from toolkit.core.facts import Claim, Facts, GpuProcess, Mig
from toolkit.errors import NotReady
from toolkit.protocol.frames import ROW, framed_script, read_frames

SINCE = 1795204800.0  # 2026-11-20 20:00 UTC
CLAIM = Claim("j1", "theirs", "mallory", (0,), ("GPU-0",), "mallory", 900, SINCE)
STRANGER = GpuProcess("GPU-0", 4711, 512, "bob", "python")
INNER = "c" * 64  # the Id of every container of cluster_world

NONCE = "ab" * 8
WORDS = "\0".join(LEASE)


def host(*processes: GpuProcess, claims: Sequence[Claim] = (), **changes: object) -> Facts:
    return facts(gpus=(gpu(0), gpu(1)), gpu_processes=processes, claims=tuple(claims), **changes)


def held(said: Facts) -> list[list[str]]:
    return [[str(holder) for holder in use.holders] for use in holders(said)]


# The question


def test_the_question_in_a_real_shell_finds_processes_and_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = tmp_path / "run.py"
    lease.write_text("import time\ntime.sleep(60)\n")
    owner = "mal\tlory\nclaim|1|bob|S|x"
    argv = [str(lease), "job.lease", "j1", "--cluster", "demo", "--owner", owner, "--slots", "0,1", "--gpus"]
    mine = subprocess.Popen([sys.executable, *argv, "GPU-0,GPU-1"], env={"TOOLKIT_JOB": "j1|x"})
    other = subprocess.Popen([sys.executable, *argv, ""])
    # It names the program and is none: the path must be what Python runs.
    decoy = subprocess.Popen(
        ["sh", "-c", "read line; :", str(lease), "job.lease", "j9"], stdin=subprocess.PIPE
    )
    smi = tmp_path / "nvidia-smi"
    gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    smi.write_text(f"#!/bin/sh\necho 'GPU-0, {mine.pid}, 512'\necho 'GPU-1, {other.pid}, [N/A]'\necho\n")
    with smi.open("a") as file:
        file.write(f"echo 'GPU-1, {gone}, 3'\necho 'No running processes found'\n")
    smi.chmod(0o755)
    try:
        for process in (mine, other, decoy):
            until_seen(process)
        done = subprocess.run(
            ["sh", "-c", framed_script(ROW + USES, NONCE)],
            capture_output=True,
            check=True,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )
    finally:
        for process in (mine, other, decoy):
            process.kill()
            process.communicate()
    assert done.stderr == b""
    sections = read_frames(done.stdout, NONCE)
    apps, claims = sections["apps"], sections["claims"]
    monkeypatch.setattr(probe, "LEASE", (str(lease), "job.lease"))
    me = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    found = [(p.gpu, p.pid, p.memory_mib, p.user, p.job) for p in parse_processes(apps)]
    assert found == [("GPU-0", mine.pid, 512, me, "j1|x"), ("GPU-1", other.pid, 0, me, "")]
    assert all(process.program.startswith("python") for process in parse_processes(apps))
    boot = next(x for x in Path("/proc/stat").read_text().splitlines() if x.startswith("btime"))
    told = {claim.pid: claim for claim in parse_claims(claims, boot)}
    assert told.keys() == {mine.pid, other.pid}
    claim = told[mine.pid]
    assert (claim.job, claim.cluster, claim.owner, claim.user) == ("j1", "demo", owner, me)
    assert (claim.slots, claim.gpus, told[other.pid].gpus) == ((0, 1), ("GPU-0", "GPU-1"), ())
    assert abs(claim.since - time.time()) < 60


@only_root
def test_the_job_of_a_process_of_another_user_is_not_read(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    with sleeping(user=OTHER, TOOLKIT_JOB="j1") as other, sleeping(TOOLKIT_JOB="j1") as mine:
        smi.write_text(f"#!/bin/sh\necho 'GPU-0, {other.pid}, 512'\necho 'GPU-0, {mine.pid}, 512'\n")
        smi.chmod(0o755)
        done = subprocess.run(
            ["sh", "-c", framed_script(ROW + USES, NONCE)],
            capture_output=True,
            check=True,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )
    found = parse_processes(read_frames(done.stdout, NONCE)["apps"])
    assert {process.pid: process.job for process in found} == {other.pid: "", mine.pid: "j1"}


@pytest.mark.parametrize(
    "argv",
    [
        f"grep\0-slzFx\0{WORDS}\0j",
        f"python3\0-u\0{WORDS}\0j1",
        f"python3\0/tmp/other.py\0{WORDS}",
        f"python3\0{WORDS}\0",
        "",
    ],
)
def test_what_only_looks_like_a_claim(argv: str) -> None:
    assert parse_claims(f"claim|12|bob|S 1|={base64.b64encode(argv.encode()).decode()}", "") == ()
    assert parse_claims("no line of ours\nx|y", "") == ()


# Who holds what


def test_a_free_gpu_a_job_and_a_stranger() -> None:
    said = host(STRANGER, claims=[replace(CLAIM, gpus=("GPU-1",))])
    assert held(said) == [
        ["python (pid 4711, user bob)"],
        ["job j1 of cluster theirs (mallory, according to user mallory) since 2026-11-20 20:00 UTC"],
    ]
    assert held(host()) == [[], []] and held(facts()) == []


@pytest.mark.parametrize(
    ("process", "seen"),
    [
        # Own processes carry their job's mark; of others' only the container can be seen.
        (replace(STRANGER, job="j1"), 1),
        (replace(STRANGER, container=INNER), 1),
        (STRANGER, 2),
        (replace(STRANGER, container="d" * 64), 2),
        (replace(STRANGER, job="j2", container=INNER), 2),
        # The same person's, started past the toolkit.
        (replace(STRANGER, user="mallory"), 2),
        (replace(STRANGER, program="nvidia-cuda-mps"), 1),
    ],
)
def test_the_processes_of_a_job_are_not_counted_beside_its_claim(process: GpuProcess, seen: int) -> None:
    said = host(process, claims=[CLAIM], containers=(running("theirs", "gpu1", "main"),))
    assert len(holders(said)[0].holders) == seen


def test_a_process_in_a_cluster_without_a_claim_names_the_cluster() -> None:
    said = host(replace(STRANGER, container=INNER), containers=(running("theirs", "gpu1", "main"),))
    assert held(said)[0] == ["python (pid 4711, user bob) in cluster theirs"]


def test_holders_of_mig_devices() -> None:
    split = replace(gpu(0), migs=(Mig(0, "MIG-a", "1g"), Mig(1, "MIG-b", "1g")))
    said = facts(gpus=(split,), gpu_processes=(STRANGER,), claims=(replace(CLAIM, gpus=("MIG-a",)),))
    # No report names the part that the other user's process uses.
    assert [(use.uuid, len(use.holders)) for use in holders(said)] == [("MIG-a", 1), ("MIG-b", 0)]


def test_status_says_it_as_text_and_as_json() -> None:
    said = host(STRANGER)
    assert gpus_text([said]).splitlines()[1:] == [
        "gpu1  0    NVIDIA GeForce RTX 3090  python (pid 4711, user bob)",
        "gpu1  1    NVIDIA GeForce RTX 3090  free",
    ]
    first, second = gpus_json([said])
    assert (first["free"], first["holders"][0]["pid"], first["uuid"]) == (False, 4711, "GPU-0")
    assert (second["free"], second["holders"]) == (True, ())
    assert gpus_text([facts()]) == ""


# What is refused


def test_a_held_gpu_is_refused_with_its_holder() -> None:
    two = {"gpu1": host(claims=[CLAIM]), "gpu2": replace(host(STRANGER), host="gpu2")}
    with pytest.raises(NotReady) as caught:
        refuse_held(two, {"gpu1": ["GPU-0", "GPU-1"]})
    assert caught.value.host == "gpu1"
    assert (
        "GPU 0 (GPU-0) is held by job j1 of cluster theirs (mallory, according to user mallory)"
        in caught.value.what
    )
    assert "--share" in caught.value.fix and "--exclude gpu1" in caught.value.fix
    with pytest.raises(NotReady, match=r"GPU 0 \(GPU-0\) on gpu2 is held by python \(pid 4711, user bob\)"):
        refuse_held(two, {"gpu1": ["GPU-0"], "gpu2": ["GPU-0"]})
    refuse_held(two, {"gpu1": ["GPU-1"], "gpu2": []})
    refuse_held(two, {"gpu9": ["GPU-0"]})


def test_jobs_that_the_caller_knows_are_not_refused_again() -> None:
    mine = replace(CLAIM, cluster="demo", owner="alice", user="alice")
    compared = {"j1": {"gpu1": ["GPU-0"]}}
    refuse_held({"gpu1": host(claims=[mine])}, {"gpu1": ["GPU-0"]}, "demo", compared)
    for claim in (mine, replace(mine, cluster="other"), replace(mine, user="mallory")):
        known = {} if claim is mine else compared
        with pytest.raises(NotReady):
            refuse_held({"gpu1": host(claims=[claim])}, {"gpu1": ["GPU-0"]}, "demo", known)


def test_a_gpu_that_does_not_belong_to_the_slots_of_a_known_job_is_refused() -> None:
    both = {"gpu1": host(claims=[replace(CLAIM, cluster="demo", user="alice", gpus=("GPU-0", "GPU-1"))])}
    compared = {"j1": {"gpu1": ["GPU-0"]}}
    refuse_held(both, {"gpu1": ["GPU-0"]}, "demo", compared)
    with pytest.raises(NotReady, match=r"GPU 1 \(GPU-1\) is held by job j1 of cluster demo"):
        refuse_held(both, {"gpu1": ["GPU-0", "GPU-1"]}, "demo", compared)
    # The lease on a spare host of an elastic job reserves GPUs without slots.
    refuse_held(both, {"gpu1": ["GPU-0", "GPU-1"]}, "demo", {"j1": {"gpu2": ["GPU-0"]}})


def test_many_holders_are_one_sentence() -> None:
    claims = [replace(CLAIM, job=f"j{number}") for number in range(6)]
    with pytest.raises(NotReady, match=r"; and 2 more jobs or processes hold GPUs\n"):
        refuse_held({"gpu1": host(claims=claims)}, {"gpu1": ["GPU-0"]})
    both = replace(CLAIM, gpus=("GPU-0", "GPU-1"))
    with pytest.raises(NotReady, match=r"gpu1: GPUs 0 \(GPU-0\), 1 \(GPU-1\) are held by job j1"):
        refuse_held({"gpu1": host(claims=[both])}, {"gpu1": ["GPU-0", "GPU-1"]})


def test_a_process_of_unknown_name_and_user() -> None:
    assert str(Holder(pid=5)) == "a process (pid 5, user unknown)"
