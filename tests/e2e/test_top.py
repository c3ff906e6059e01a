"""`toolkit top` on real hosts: what ranks do as they go, once and live, and nothing left of it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.world import Toolkit, heed_signals, sh, wait_until

pytestmark = pytest.mark.lab

# Rank 1 needs three times as long for each step.
TRAINING = (
    "import os, time; rank = int(os.environ['RANK'])\n"
    "for step in range(9999): print('step', step, 'loss 0.5', flush=True); time.sleep(0.1 + 0.2 * rank)"
)


def programs(host: str) -> str:
    return sh(host, "ps -eo args | grep '[i]nside/gauge.py' || true")


def live(tool: Toolkit, *words: str, seconds: float) -> tuple[int, str]:
    """Run a verb on a terminal for so long, press Ctrl-C; return how it ended and what was on the screen."""
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
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    status = process.wait(15)
    reader.join(5)
    os.close(ours)
    return status, b"".join(seen).decode(errors="replace")


def test_hosts_and_ranks_as_they_go(up: Toolkit, tmp_path: Path) -> None:
    idle = up.run("top", "--json", check=True).json
    assert [host["host"] for host in idle["hosts"]] == ["box1", "box2"] and idle["jobs"] == []
    words = ("--launcher", "torchrun", "--", "python", "-c", TRAINING)
    job = str(up.run("run", "-d", "--json", *words, check=True).json["job"])
    wait_until(lambda: "step 9" in up.run("logs", "--rank", "1", job).out)
    said = up.run("top", "--json", "--interval", "1", check=True).json
    (found,) = said["jobs"]
    assert (found["id"], found["world_size"], found["launcher"]) == (job, 2, "torchrun")
    assert list(found["behind"]) == ["1"] and "the others at" in found["behind"]["1"]
    ranks = {rank["rank"]: rank for host in said["hosts"] for rank in host["ranks"]}
    assert ranks[0]["step"] > ranks[1]["step"] > 0 and ranks[0]["line"].startswith("step ")
    assert all(host["busy"] is not None and host["received"] is not None for host in said["hosts"])
    text = up.run("top", check=True).out
    assert "held up by" in text and f"{job} " in text and "1 *" in text
    status, screen = live(up, "top", "--interval", "0.5", "--prometheus", str(tmp_path / "t.prom"), seconds=6)
    assert status == 0 and "Ctrl-C ends" in screen and job in screen and "Traceback" not in screen
    assert (
        f'toolkit_rank_step{{cluster="two",host="box2",job="{job}",rank="1"}}'
        in (tmp_path / "t.prom").read_text()
    )
    up.run("stop", "--now", job, check=True)
    for host in ("box1", "box2"):
        wait_until(lambda h=host: not programs(h), 15)
