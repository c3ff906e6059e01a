"""Hangs made on purpose on real hosts: `toolkit why` names the rank, the link or the host to blame."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.conftest import hosts_file
from tests.e2e.hangs import WAYS
from tests.e2e.world import Toolkit, on, sh
from toolkit.protocol.names import program

pytestmark = pytest.mark.lab

HOSTS = ("box1", "box2", "box3")
SECRET = "not-for-anybody-else"
STATE = "/home/trainer/.local/state/toolkit/why"
# What each way comes to: kind of verdict, and words of it.
EXPECTED = {
    "sleeps": ("sleep", "sleeps at hangs.py:"),
    "loops": ("spin", "computes at hangs.py:"),
    "queue": ("lock", "waits for a lock or a queue in Queue.get() at hangs.py:"),
    "fifo": ("file", "is blocked opening batches (fifo) at hangs.py:"),
    "checkpoint": (
        "file",
        "/code/model.pt (fifo) for a checkpoint at hangs.py:",
    ),
    "loader": ("child", "for its child process "),
    "handler": ("handler", "while handling an exception at hangs.py:"),
    "stopped": ("stopped", "is stopped by a signal such as SIGSTOP"),
}


@pytest.fixture(scope="module")
def cluster(lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toolkit]:
    """A cluster of this file's own: three hosts of one slot, which several jobs share."""
    folder = tmp_path_factory.mktemp("why")
    hosts = hosts_file(lab, folder, "why", HOSTS)
    data = yaml.safe_load(hosts.read_text())
    for host in data["hosts"].values():
        host["slots"] = 1
    (folder / "token").write_text(SECRET)
    (folder / "token").chmod(0o600)
    hosts.write_text(yaml.safe_dump(data | {"secrets": {"WANDB": "token"}, "env": {"MY_KEY": "k-123456"}}))
    (folder / "code").mkdir()
    shutil.copy(Path(__file__).with_name("hangs.py"), folder / "code" / "hangs.py")
    toolkit = Toolkit(hosts, folder)
    toolkit.run("up", "--no-check", check=True)
    yield toolkit
    toolkit.run("down", "--no-save", check=True)


def start(cluster: Toolkit, launcher: str, mode: str) -> str:
    words = ("run", "-d", "--json", "--np", "3", "--launcher", launcher, "--no-check", "--workdir", "code")
    done = cluster.run(*words, "--share", "--", "python", "hangs.py", mode, check=True)
    return str(done.json["job"])


def has_printed(job: str, line: str) -> None:
    waiting.on_host(
        f"job {job} prints {line!r}",
        "box1",
        f"cat {STATE}/box1/jobs/{job}/output.log",
        lambda said: line in said,
        seconds=240,
    )


def why(cluster: Toolkit, job: str, *words: str) -> Any:
    return cluster.run("why", job, "--json", *words, check=True).json


def blames(said: Any, kind: str, rank: int, words: str) -> None:
    verdict = said["verdict"]
    assert (verdict["kind"], verdict["ranks"], verdict["hosts"]) == (kind, [rank], [HOSTS[rank]]), verdict
    assert re.match(rf"rank {rank} on {HOSTS[rank]} ", verdict["what"]) and words in verdict["what"], verdict
    waiting = [str(other) for other in range(3) if other != rank]
    assert f"ranks {', '.join(waiting)} wait for rank {rank} in " in verdict["what"], verdict
    assert verdict["fix"]


@pytest.mark.rare
def test_hangs_of_all_sorts_are_told_by_rank(cluster: Toolkit) -> None:
    job = start(cluster, "torchrun", "all")
    has_printed(job, "way sleeps")
    with ThreadPoolExecutor(2) as pool:
        small = [pool.submit(one, cluster) for one in (ends_early, is_in_another_collective)]
        for way, rank in WAYS.items():
            has_printed(job, f"way {way}")
            said = why(cluster, job) if way != "queue" else in_a_bundle_without_secrets(cluster, job)
            blames(said, EXPECTED[way][0], rank, EXPECTED[way][1])
            sh(HOSTS[rank], f"touch {STATE}/{HOSTS[rank]}/jobs/{job}/code/go-{way}")
        for each in small:
            each.result()
    has_printed(job, "steps")
    a_link_is_cut(cluster, job)
    a_host_is_frozen(cluster, job)


def ends_early(cluster: Toolkit) -> None:
    job = start(cluster, "mpirun", "early")
    waiting.on_host(
        "rank 1 has ended",
        "box2",
        f"ls {STATE}/box2/jobs/{job}/logs",
        lambda said: "rank-1.exit" in said,
        seconds=240,
    )
    # Rarely: the other two import torch meanwhile, and each look costs them time.
    said = waiting.until(
        "ranks 0 and 2 wait",
        lambda: why(cluster, job),
        lambda said: "ranks 0, 2 wait" in said["verdict"]["what"],
        240,
        pause=3.0,
    )
    blames(said, "ended", 1, "exited with exit code 0")
    cluster.run("stop", "--now", job, check=True)


def is_in_another_collective(cluster: Toolkit) -> None:
    job = start(cluster, "mpirun", "mpi")
    has_printed(job, "parts")
    said = why(cluster, job)["verdict"]
    assert (said["kind"], said["ranks"], said["hosts"]) == ("apart", [2], ["box3"]), said
    assert "ranks 0, 1 on box1, box2 wait in Barrier at hangs.py:" in said["what"]
    assert "rank 2 on box3 waits in allreduce at hangs.py:" in said["what"]
    # As the watchdog has it done: main asks the others, and keeps what they say.
    words = (*program("diagnose.collect"), job)
    kept = cluster.run("exec", "--", *words, "--why", "no word", check=True)
    assert json.loads(kept.out.splitlines()[-1]) | {"path": ""} == {"path": "", "hosts": 3, "silent": []}
    cluster.run("stop", "--now", job, check=True)
    ended = why(cluster, job)["verdict"]
    assert (ended["kind"], ended["ranks"]) == ("apart", [2]), ended
    assert ended["what"].startswith("the job was stopped: stopped by SIG")
    assert "; before the job ended (no word): " in ended["what"]


def in_a_bundle_without_secrets(cluster: Toolkit, job: str) -> Any:
    done = cluster.run("why", job[-4:], "--save", "kept/report.tar.gz", check=True)
    assert f"{job}: rank 0 on box1 waits" in done.out and "last line" in done.out
    path = cluster.folder / "kept" / "report.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600 and "kept/report.tar.gz" in done.out
    with tarfile.open(path) as tar:
        files = {m.name: f.read() for m in tar if (f := tar.extractfile(m))}
    assert {f"report/hosts/{h}.json" for h in HOSTS} | {"report/report.txt", "report/why.json"} <= set(files)
    assert b"way sleeps" in files["report/hosts/box1/output.log"]
    assert not [name for name, data in files.items() if SECRET.encode() in data or b"k-123456" in data]
    said = json.loads(files["report/why.json"])
    assert said["ranks"][2]["stack"]
    return said


def a_link_is_cut(cluster: Toolkit, job: str) -> None:
    address = yaml.safe_load(cluster.hosts.read_text())["hosts"]["box3"]["address"]
    rules = [f"{chain} {way} {address} -j DROP" for chain, way in (("INPUT", "-s"), ("OUTPUT", "-d"))]
    for rule in rules:
        assert sh("box2", f"iptables -I {rule}") == ""
    try:
        # By the time it looks, bytes have been sent again some times.
        verdict = why(cluster, job)["verdict"]
    finally:
        for rule in rules:
            assert sh("box2", f"iptables -D {rule}") == ""
    assert (verdict["kind"], verdict["ranks"], verdict["hosts"]) == ("link", [1, 2], ["box2", "box3"]), (
        verdict
    )
    assert "the network between box2 and box3 transmits no data" in verdict["what"]


def a_host_is_frozen(cluster: Toolkit, job: str) -> None:
    on("box3", "docker", "pause", "toolkit-why-worker")
    try:
        verdict = why(cluster, job)["verdict"]
        assert verdict["hosts"] == ["box3"], verdict
        # On a busy machine the job may have ended because of it before it was looked at.
        assert verdict["kind"] == "end" or verdict["ranks"] == [2], verdict
        assert "toolkit-why-worker is paused (on box3: docker unpause" in verdict["what"]
    finally:
        on("box3", "docker", "unpause", "toolkit-why-worker")
    cluster.run("stop", "--now", job, check=True)
