"""`toolkit top` on real hosts: what ranks do as they go, once and live, and nothing left of it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.e2e import waiting
from tests.e2e.world import Toolkit, heed_signals, sh

pytestmark = pytest.mark.lab


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts, which no test of this file changes."""
    return standing


# Rank 1 needs three times as long for each step.
TRAINING = (
    "import os, time; rank = int(os.environ['RANK'])\n"
    "for step in range(9999): print('step', step, 'loss 0.5', flush=True); time.sleep(0.1 + 0.2 * rank)"
)


def programs(host: str) -> str:
    return sh(host, "ps -eo args | grep '[i]nside/run.py monitor.gauges' || true")


def live(tool: Toolkit, *words: str, until: str) -> tuple[int, str]:
    """Run a verb on a terminal until it shows these words, press Ctrl-C; return status and screen."""
    ours, theirs = pty.openpty()
    env = {**tool.env, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen(
        [tool.program, *words],
        cwd=tool.folder,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=heed_signals,
    )
    os.close(theirs)
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                seen.append(data)
        except OSError:
            pass  # the terminal's other end is closed

    reader = threading.Thread(target=read)
    reader.start()
    waiting.until(
        f"the screen of `toolkit {words[0]}` shows {until!r}",
        lambda: b"".join(seen).decode(errors="replace"),
        lambda screen: until in screen,
        120,
    )
    process.send_signal(signal.SIGINT)
    status = process.wait(60)
    reader.join(60)
    os.close(ours)
    return status, b"".join(seen).decode(errors="replace")


def test_hosts_and_ranks_as_they_go(up: Toolkit, tmp_path: Path) -> None:
    idle = up.run("top", "--json", check=True).json
    assert [host["host"] for host in idle["hosts"]] == ["box1", "box2"] and idle["jobs"] == []
    words = ("--launcher", "torchrun", "--", "python", "-c", TRAINING)
    job = str(up.run("run", "-d", "--json", *words, check=True).json["job"])
    waiting.until(
        f"rank 1 of job {job} prints step 9",
        lambda: waiting.job_file(up, job, "logs/rank-1.log", host="box2"),
        lambda said: "step 9 " in said,
        120,
    )
    said = up.run("top", "--json", "--interval", "1", check=True).json
    (found,) = said["jobs"]
    assert (found["id"], found["world_size"], found["launcher"]) == (job, 2, "torchrun")
    assert list(found["behind"]) == ["1"] and "the fastest rank is at step" in found["behind"]["1"]
    ranks = {rank["rank"]: rank for host in said["hosts"] for rank in host["ranks"]}
    assert ranks[0]["step"] > ranks[1]["step"] > 0 and ranks[0]["line"].startswith("step ")
    assert all(host["busy"] is not None and host["received"] is not None for host in said["hosts"])
    text = up.run("top", check=True).out
    assert "blocked by" in text and f"{job} " in text and "1 *" in text
    status, screen = live(up, "top", "--interval", "0.5", "--prometheus", str(tmp_path / "t.prom"), until=job)
    assert status == 0 and "to stop: Ctrl-C" in screen and job in screen and "Traceback" not in screen
    assert (
        f'toolkit_rank_step{{cluster="two",host="box2",job="{job}",rank="1"}}'
        in (tmp_path / "t.prom").read_text()
    )
    up.run("stop", "--now", job, check=True)
    for host in ("box1", "box2"):
        waiting.until(f"no gauge runs on {host}", lambda h=host: programs(h), lambda found: not found)  # type: ignore[misc]


@pytest.mark.rare
def test_what_a_second_host_is_worth(up: Toolkit, tmp_path: Path) -> None:
    (up.folder / "steps.py").write_text(
        "import os, time\n"
        "pause = 0.1 if os.environ['WORLD_SIZE'] == '1' else 0.125\n"
        "for step in range(9999): print('step', step, flush=True); time.sleep(pause)\n"
    )
    predicted = tmp_path / "p.json"
    predicted.write_text('{"rows": [{"hosts": 1, "efficiency": 1}, {"hosts": 2, "efficiency": 0.9}]}')
    page = tmp_path / "scaling.html"
    words = ("--seconds", "6", "--warm-up", "1", "--predicted", str(predicted), "--report", str(page))
    done = up.run("bench", "scaling", *words, "--launcher", "torchrun", "--json", "steps.py", check=True)
    one, two = done.json["rows"]
    assert (one["ranks"], two["ranks"], two["predicted_efficiency"]) == (1, 2, 0.9)
    assert 0.7 < two["efficiency"] < 0.9 and "2 hosts have 1." in done.json["verdict"]
    assert "<svg" in page.read_text() and "http" not in page.read_text()
    assert all(job["state"] == "stopped" for job in up.run("jobs", "--json", check=True).json[-2:])
    # A script that says nothing of steps is named, with what it said last.
    failed = up.run(
        "bench", "scaling", "--on", "1", "--launcher", "torchrun", "--", "sh", "-c", "echo no; exit 3"
    )
    assert failed.status == 1 and "exit code 3" in failed.out and "no" in failed.err
