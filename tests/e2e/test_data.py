"""Data sets on the practice cluster: killed in the middle, gone on with, read by ranks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import waiting
from tests.e2e.conftest import hosts_file
from tests.e2e.world import Toolkit, sh

pytestmark = [pytest.mark.docker, pytest.mark.lab]

HOSTS = ("box1", "box2", "box3")
MIB = 2**20
PLACE = "/home/trainer/staged"
# Of the host and the one data set that it has.
ACCOUNT = "/home/trainer/.local/state/toolkit/.data/*/*"
# Slowed down, so that the kill comes in the middle on every machine.
DEVICE = "$(ip -o -4 route show default | sed 's/.* dev \\([^ ]*\\).*/\\1/')"
# Content, owner, mode and time of every file.
LIST = (
    "cd {0} && find . -type f -printf '%p %s %m %T@\\n' | sort;"
    " find . -type f -print0 | sort -z | xargs -0 sha256sum"
)


@pytest.fixture
def tool(lab: Path, tmp_path: Path) -> Iterator[Toolkit]:
    # Not where other cases run: there it would be code.
    source = tmp_path / "staged"
    (source / "train").mkdir(parents=True, exist_ok=True)
    for number in range(200):
        (source / f"train/{number:04}.jpg").write_bytes(os.urandom(10_000))
    (source / "big.bin").write_bytes(os.urandom(80 * MIB))
    (source / "run.sh").write_text("echo")
    (source / "run.sh").chmod(0o750)
    (tmp_path / "code").mkdir()
    hosts = hosts_file(lab, tmp_path, "staged", HOSTS)
    with hosts.open("a") as file:
        file.write(f"data: [{{source: ./staged, path: {PLACE}, target: /data}}]\n")
    yield Toolkit(hosts, tmp_path)
    for host in HOSTS:
        sh(host, f"rm -rf {PLACE} {ACCOUNT}")


def whole(host: str) -> int:
    """Bytes in shards that are on a host's disk."""
    found = sh(host, f"grep -hs '^{{\"whole\"' {ACCOUNT}/journal | tail -n 1")
    return int(json.loads(found)["bytes"]) if found else 0


@pytest.mark.rare
def test_a_killed_transfer_goes_on_and_ranks_read_what_came(tool: Toolkit) -> None:
    for host in HOSTS:
        sh(host, f"tc qdisc add dev {DEVICE} root tbf rate 200mbit burst 256kb latency 50ms")
    try:
        process = tool.start("data", "send")
        waiting.until(
            "a host has 20 MiB in whole shards",
            lambda: {host: whole(host) for host in HOSTS},
            lambda there: max(there.values()) > 20 * MIB,
            120,
        )
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        for host in HOSTS:
            sh(host, f"tc qdisc del dev {DEVICE} root")
    for host in HOSTS:
        waiting.on_host(
            "the programs of the transfer end", host, "pgrep -f '[p]ython3 -I -S'", lambda said: not said
        )
    there = min(whole(host) for host in HOSTS)
    rows = tool.run("data", "ls", "--json").json["rows"]
    # The first host of the chain might have everything already.
    assert {row["state"] for row in rows} & {"part", "absent"}, rows

    done = tool.run("up", "--json", check=True).json
    sent = [o for o in done["outcomes"] if o["step"].startswith("send data")]
    total = sum(path.stat().st_size for path in (tool.folder / "staged").rglob("*") if path.is_file())
    assert sum(o["amounts"]["from_here"] for o in sent) < total - there + 8 * MIB, "only the rest"
    mine = LIST.format(tool.folder / "staged")
    here = os.popen(mine).read()
    for host in HOSTS:
        assert sh(host, LIST.format(PLACE)) == here
        assert not sh(host, f"find {PLACE} ! -user trainer"), "all belong to the caller"

    again = tool.run("data", "send", "--json", check=True)
    assert {o["status"] for o in again.json["outcomes"]} == {"skipped"}
    reads = "sha256sum /data/big.bin; touch /data/x 2>&1 | grep -c Read-only"
    read = tool.run("run", "--launcher", "mpirun", "--workdir", "code", "--", "sh", "-c", reads)
    sums = {line.split()[-2] for line in read.out.splitlines() if "big.bin" in line}
    assert len(sums) == 1 and sums.pop() in here, read.out + read.err

    sh("box2", f"rm {ACCOUNT}/mark")
    refused = tool.run("run", "--workdir", "code", "--", "true")
    assert refused.status == 3 and f"box2: {PLACE}: data set /data is incomplete" in refused.err
    tool.run("down", "--no-save", check=True)
    assert whole("box3") == total, "down leaves it"
    tool.run("data", "rm", check=True)
    assert not any(sh(host, f"[ ! -e {PLACE} ] || ls -A {PLACE}") for host in HOSTS)
