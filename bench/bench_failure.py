"""R1, R2, R3: seconds until a failure is detected, all hosts are clean, and the job makes steps again.

Needs a practice cluster of two hosts or more, up, and TOOLKIT_HOSTS; R3 with a host lost needs `spares:`
or takes the survivors:

    toolkit lab up --count 3 && export TOOLKIT_HOSTS=… && toolkit up
    python bench/bench_failure.py --rounds 10
    python bench/bench_failure.py --only R3 --rounds 5

Times are those of the clock of this machine, which practice hosts share. Processes of a job are searched from
outside, in /proc, by the job tag in their environment; run it as root.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import yaml
from lab_links import links_of

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
STEPS = Path(__file__).with_name("failing_steps.py")
WAYS = ("exit", "SIGKILL", "SIGSEGV")
LAUNCHERS = ("mpirun", "torchrun")
AT = 20  # the step at which it fails


class Run:
    """A `toolkit run` under way: its output by line, and its job."""

    def __init__(self, launcher: str, *arguments: str, options: tuple[str, ...] = ()) -> None:
        self.folder = tempfile.TemporaryDirectory()
        (Path(self.folder.name) / STEPS.name).write_text(STEPS.read_text())
        self.process = subprocess.Popen(
            [TOOLKIT, "run", "--no-check", "--launcher", launcher, *options, STEPS.name, *arguments],
            cwd=self.folder.name,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """Read to the next line that contains this text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise SystemExit(f"no {pattern!r} in:\n{''.join(self.lines)}")

    def end(self) -> float:
        """Read to the end; return its time."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        self.process.wait()
        ended = time.time()
        self.folder.cleanup()
        return ended


def marked(job: str, but: frozenset[int] = frozenset()) -> set[int]:
    """Return the processes of a job on all practice hosts, without its supervisor."""
    mark, found = f"TOOLKIT_JOB={job}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found - but


def clean_after(job: str, but: frozenset[int] = frozenset(), seconds: float = 60.0) -> float:
    """Return when the last process of the job was gone."""
    deadline = time.time() + seconds
    while marked(job, but):
        if time.time() > deadline:
            raise SystemExit(f"{job} is not clean after {seconds} s")
    return time.time()


def of_host(container: str) -> frozenset[int]:
    """Return the processes of a practice host, including those in its containers."""
    ask = ["docker", "inspect", "--format", "{{.State.Pid}}", container]
    first = int(subprocess.run(ask, check=True, capture_output=True, text=True).stdout)
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [first]
    for pid in found:
        found += children.get(pid, [])
    return frozenset(found)


def crash(launcher: str, how: str, victim: int) -> tuple[float, float, str]:
    """Return R1: seconds until no process of the job is left, seconds until the command exits, the reason."""
    run = Run(launcher, how, str(victim), str(AT))
    job = run.until(r"job (\S+): ")[1]
    failed = float(run.until(r"fails at (\S+)")[1])
    clean = clean_after(job)
    ended = run.end()
    reason = next(line for line in run.lines if line.startswith(f"job {job}: failed")).split(": ", 2)[2]
    words = {
        "exit": "exited with code 3",
        "SIGKILL": "was killed by SIGKILL",
        "SIGSEGV": "was killed by SIGSEGV",
    }
    assert f"rank {victim} on " in reason and words[how] in reason, reason
    return clean - failed, ended - failed, reason.strip()


def freeze(container: str) -> Callable[[], None]:
    """Stop all processes of a practice host; its kernel, which is that of this machine, still answers."""

    def send(number: int) -> None:
        for pid in of_host(container):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGSTOP)
    return lambda: send(signal.SIGCONT)


def cut(container: str) -> Callable[[], None]:
    """Drop all packets of a practice host, both ways."""
    rules = [
        ["iptables", "-I", chain, "!", direction, "lo", "-j", "DROP"]
        for chain, direction in (("INPUT", "-i"), ("OUTPUT", "-o"))
    ]
    for rule in rules:
        subprocess.run(["docker", "exec", container, *rule], check=True)

    def heal() -> None:
        for rule in rules:
            back = ["-D" if word == "-I" else word for word in rule]
            subprocess.run(["docker", "exec", container, *back], check=True)

    return heal


def lose(
    launcher: str, container: str, fault: Callable[[str], Callable[[], None]]
) -> tuple[float, float, float]:
    """Return R2: seconds until the other hosts are clean, the command exits, the lost host is clean."""
    run = Run(launcher, "nothing", "0", "0")
    job = run.until(r"job (\S+): ")[1]
    run.until(rf"step {AT} ")
    there = of_host(container)
    began = time.time()
    heal = fault(container)
    healed = False
    try:
        others = clean_after(job, there) - began
        ended = run.end() - began
        if fault is freeze:  # nothing moves there before it is let go
            heal()
            healed, began = True, time.time()
        own = clean_after(job) - began
    finally:
        if not healed:
            heal()
    assert "is lost" in "".join(run.lines[-12:]), run.lines[-12:]
    return others, ended, own


def again(launcher: str, options: tuple[str, ...], fail: Callable[[], Callable[[], None]] | None) -> float:
    """Return R3: seconds from the failure to the first step of the next attempt."""
    how = "nothing" if fail else "SIGKILL"
    run = Run(launcher, how, "1", str(AT), options=("--max-restarts", "1", *options))
    heal = None
    if fail:
        run.until(rf"step {AT} ")
        failed = time.time()
        heal = fail()
    else:
        failed = float(run.until(r"fails at (\S+)")[1])
    try:
        stepped = float(run.until(r"step 0 of attempt 1 at (\S+)")[1])
        run.end()
    finally:
        if heal:
            heal()
    return stepped - failed


def told(name: str, seconds: list[float], target: str) -> None:
    middle, most = statistics.median(seconds), max(seconds)
    print(
        f"    {name:<58} p50 {middle:5.2f} s   max {most:5.2f} s   of {len(seconds)}   ({target})", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="R1,R2,R3")
    args = parser.parse_args()
    file = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(file).is_file():
        print("R1  skipped: no practice cluster; toolkit lab up, then set TOOLKIT_HOSTS")
        return
    data = yaml.safe_load(Path(file).read_text())
    subprocess.run([TOOLKIT, "up"], check=True, capture_output=True)
    ranks = [name for name in data["hosts"] if name not in data.get("spares", ())]
    containers = dict(zip(data["hosts"], (container for container, _ in links_of(data)), strict=True))
    last = containers[ranks[-1]]
    fewer = () if data.get("spares") else ("--min-hosts", str(len(ranks) - 1))
    wanted = args.only.split(",")
    for launcher in LAUNCHERS:
        print(f"{launcher}, {len(ranks)} hosts, one rank each", flush=True)
        if "R1" in wanted:
            found = [crash(launcher, WAYS[n % len(WAYS)], n % len(ranks)) for n in range(args.rounds)]
            told("R1  a rank crashes, until every host is clean", [one[0] for one in found], "p50 1, max 3")
            told("R1  until the command has ended", [one[1] for one in found], "")
        if "R2" in wanted:
            for name, fault in (("frozen", freeze), ("cut off", cut)):
                rows = [lose(launcher, last, fault) for _ in range(max(1, args.rounds // 3))]
                told(f"R2  a host is {name}, until the others are clean", [row[0] for row in rows], "max 8")
                told("R2  until the command has ended", [row[1] for row in rows], "max 8")
                what = (
                    "from its thaw until it is clean itself"
                    if fault is freeze
                    else "until it is clean itself"
                )
                told(f"R2  {what}", [row[2] for row in rows], "max 15")
        if "R3" in wanted:
            found3 = [again(launcher, (), None) for _ in range(args.rounds)]
            told("R3  a rank is killed, until the next attempt steps", found3, "max 20")
            lost3 = [again(launcher, fewer, lambda: freeze(last)) for _ in range(max(1, args.rounds // 3))]
            told("R3  a host is frozen, until the next attempt steps", lost3, "max 20")


if __name__ == "__main__":
    main()
