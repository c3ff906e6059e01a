"""A job's life on real hosts: left and found again, asked about, beside another, cut off from main."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e import waiting
from tests.e2e.world import PROGRAM, Toolkit, marked, on, sh

pytestmark = pytest.mark.lab


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts."""
    return standing


STEPS = "import os, time\nfor step in range({n}):\n    print('step', step, flush=True); time.sleep(0.5)\n"
# The same, but it waits at step 8 until its folder contains the file go-on.
HELD = STEPS + "    while step == 8 and not os.path.exists('go-on'): time.sleep(0.1)\n"
HERE = ("--workdir", "examples", "--launcher", "mpirun")


class Terminal:
    """A command on a terminal of its own, as a person has it."""

    def __init__(self, toolkit: Toolkit, *words: str) -> None:
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.chdir(toolkit.folder)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execvpe(PROGRAM, [PROGRAM, *words], toolkit.env)
        self.seen = ""

    def read_until(self, pattern: str, seconds: float = 180) -> str:
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, (
                f"no {pattern!r} on the screen in {seconds:.0f} s: {self.seen}"
            )
            if select.select([self.screen], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.screen, 4096).decode(errors="replace")
                except OSError:  # the other end has closed
                    assert re.search(pattern, self.seen), self.seen
        return found[found.lastindex or 0]

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def close(self) -> None:
        """Close the window, as a person does: what runs in it gets SIGHUP."""
        os.close(self.screen)

    def status(self, seconds: float = 180) -> int:
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._read(1):  # what it printed just before its end
                    pass
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"it did not end in {seconds:.0f} s: {self.seen}"
            # Read its output, otherwise the command waits for room in the pipe.
            if not self._read(0.05):
                time.sleep(0.05)

    def _read(self, seconds: float) -> bool:
        """Add the next output to ``seen``; False after the end of the output, or after these seconds."""
        try:
            if not select.select([self.screen], [], [], seconds)[0]:
                return False
            self.seen += (data := os.read(self.screen, 4096)).decode(errors="replace")
        except (OSError, ValueError):  # the other end has closed, or the window
            return False
        return bool(data)


def python(text: str) -> tuple[str, ...]:
    return (*HERE, "--", "python", "-c", text)


@pytest.fixture(autouse=True)
def no_job_stays(up: Toolkit) -> Iterator[None]:
    """A case that fails leaves its job's slots to the next one."""
    yield
    for job in up.run("jobs", "--json", check=True).json:
        if job["state"] in ("starting", "running"):
            up.run("stop", "--now", job["id"])


def test_a_terminal_is_closed_in_the_middle_and_another_checkout_attaches(
    up: Toolkit, tmp_path: Path
) -> None:
    terminal = Terminal(up, "run", *python(HELD.format(n=24)))
    job = terminal.read_until(r"job (\S+): 2 ranks")
    terminal.read_until(r"box2 1\] step 3")
    terminal.close()
    assert terminal.status() == 128 + signal.SIGHUP
    assert marked("box2", f"TOOLKIT_JOB={job}")
    # Another folder that has nothing but the same hosts file.
    other = tmp_path / "checkout"
    other.mkdir()
    (other / "hosts.yaml").write_text(up.hosts.read_text())
    elsewhere = Toolkit(other / "hosts.yaml", other)
    row = next(j for j in elsewhere.run("jobs", "--json", check=True).json if j["id"] == job)
    assert (row["state"], row["ranks"], row["hosts"]) == ("running", 2, {"box1": [0], "box2": [0]})
    for host in ("box1", "box2"):
        sh(host, f"touch /home/trainer/.local/state/toolkit/two/{host}/jobs/{job}/code/go-on")
    done = elsewhere.run("attach", check=True)
    assert "[box2 1] step 23" in done.out and f"job {job}: succeeded" in done.err
    whole = elsewhere.run("logs", job, check=True).out
    assert [f"[box1 0] step {n}" in whole for n in range(24)] == [True] * 24
    own = elsewhere.run("logs", job, "--rank", "1", check=True).out
    assert own == "".join(f"step {n}\n" for n in range(24))
    assert elsewhere.run("logs", job, "--host", "box2", "--tail", "2", check=True).out.count("[box2 1]") == 2
    late = elsewhere.run("logs", job, "--since", "1000d", check=True).out
    assert late == whole
    assert elsewhere.run("logs", job, "--rank", "2").status == 3
    elsewhere.run("logs", job, "--save", "kept", check=True)
    assert (other / "kept" / job / "box2" / "logs" / "rank-1.log").read_text() == own
    assert (other / "kept" / job / "box1" / "output.log").read_text() == whole


def test_ctrl_c_asks_and_does_what_is_answered(up: Toolkit) -> None:
    terminal = Terminal(up, "run", *python(STEPS.format(n=600)))
    job = terminal.read_until(r"job (\S+): 2 ranks")
    terminal.read_until(r"box2 1\] step 2")
    terminal.type("\x03")
    terminal.read_until("s: stop the job")
    terminal.seen = ""
    terminal.type("\n")
    terminal.read_until(r"box2 1\] step \d+")
    terminal.seen = ""
    terminal.type("\x03")
    terminal.read_until("s: stop the job")
    terminal.type("d\n")
    assert terminal.status() == 130 and "detached" in terminal.seen
    assert marked("box2", f"TOOLKIT_JOB={job}")
    terminal = Terminal(up, "attach", job[-4:])
    terminal.read_until(r"box2 1\] step \d+")
    terminal.type("\x03")
    terminal.read_until("s: stop the job")
    terminal.type("\x03")
    terminal.read_until(f"stopping {job} on all hosts")
    assert terminal.status() == 130 and f"job {job}: stopped" in terminal.seen
    assert not marked("box1", f"TOOLKIT_JOB={job}") and not marked("box2", f"TOOLKIT_JOB={job}")


def test_a_third_ctrl_c_kills_what_will_not_stop(up: Toolkit) -> None:
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
    )
    terminal = Terminal(up, "run", "--on-interrupt", "stop", *python(deaf))
    job = terminal.read_until(r"job (\S+): 2 ranks")
    terminal.read_until(r"box2 1\] deaf")
    terminal.type("\x03")
    terminal.read_until("stopping")
    terminal.type("\x03")
    terminal.read_until("killing")
    assert terminal.status() == 130
    assert not marked("box1", f"TOOLKIT_JOB={job}") and not marked("box2", f"TOOLKIT_JOB={job}")


def test_sigterm_detaches_and_wait_and_stop_now_find_the_job(up: Toolkit) -> None:
    process = up.start("run", *python(STEPS.format(n=600)))
    assert process.stdout is not None
    text = ""
    while "step 1" not in text:
        text += process.stdout.readline()
    found = re.search(r"job (\S+): 2 ranks", text)
    assert found
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM
    assert up.run("wait", found[1], "--timeout", "2").status == 3
    done = up.run("stop", "--now", "--json", check=True)
    assert done.json["id"] == found[1] and done.json["state"] == "stopped"
    assert up.run("wait", found[1]).status == 143


def test_two_jobs_share_the_slots_and_a_third_is_told_who_has_them(up: Toolkit, tmp_path: Path) -> None:
    roomy = Toolkit(tmp_path / "hosts.yaml", up.folder)
    roomy.hosts.write_text(re.sub(r"slots: \d+", "slots: 2", up.hosts.read_text()))
    first = roomy.run("run", "-d", "--json", "--np", "2", *HERE, "--", "sleep", "300", check=True).json["job"]
    try:
        show = "import os; print('AT', os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])"
        second = roomy.run("run", "--np", "2", *python(show), check=True).out
        assert second.count("AT 0 2") + second.count("AT 1 2") == 2
        third = roomy.run("run", "--np", "3", *HERE, "--", "true")
        assert third.status == 3 and first in third.err and "--np 2" in third.err
        assert roomy.run("run", "--np", "3", "--share", *HERE, "--", "true").status == 0
    finally:
        assert roomy.run("stop", first, check=True).status == 0
    state = {job["id"]: job["state"] for job in roomy.run("jobs", "--json", check=True).json}
    assert state[first] == "stopped"


def test_ranks_end_by_themselves_when_main_is_frozen(up: Toolkit) -> None:
    job = up.run("run", "-d", "--json", *HERE, "--", "sleep", "300", check=True).json["job"]
    # The rank itself: what gets the host ready for the job has its mark as well, and is gone soon.
    waiting.rank_runs("box2", job, "sleep 300")
    on("box1", "docker", "pause", "toolkit-two-main")
    try:
        # `make faults` measures the seconds, on a machine that does nothing else.
        waiting.job_gone("box2", job)
    finally:
        on("box1", "docker", "unpause", "toolkit-two-main")
    done = up.run("wait", job, "--json")
    assert done.status == 69
    assert re.search(r"box1 stalled for \d+ s, so", up.run("logs", job, check=True).out)
    assert json.loads(done.out)["state"] == "failed"
    assert not marked("box1", f"TOOLKIT_JOB={job}")


@pytest.mark.rare
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_job_goes_on_when_all_its_hosts_stood_still_together(up: Toolkit, launcher: str) -> None:
    text = STEPS.format(n=9999)
    words = ("--workdir", "examples", "--launcher", launcher, "--", "python", "-c", text)
    job = up.run("run", "-d", "--json", *words, check=True).json["job"]
    waiting.job_prints(up, job, "step 3\n", 2)

    def both(verb: str) -> None:
        names = {"box1": "toolkit-two-main", "box2": "toolkit-two-worker"}
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: on(host, "docker", verb, names[host]), names))

    both("pause")
    time.sleep(30)
    both("unpause")
    time.sleep(12)  # in which a host that had not heard from main would have ended its ranks
    before = waiting.job_file(up, job).count("step")
    waiting.job_prints(up, job, "step", before + 5)
    assert json.loads(up.run("jobs", "--json", check=True).out)[-1]["state"] == "running"
    up.run("stop", job, check=True)


@pytest.mark.rare
def test_the_output_may_go_to_a_reader_that_leaves(up: Toolkit) -> None:
    words = " ".join(["run", *HERE, "--", "yes"])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {PROGRAM} {words} | head -n 3"],
        cwd=up.folder,
        env=up.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 141 and done.stdout.count("] y\n") == 3, done.stderr
    found = re.search(r"; (\S+) continues", done.stderr)
    assert found
    assert up.run("stop", found[1], check=True).status == 0
