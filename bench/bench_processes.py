"""Processes, programs and connections of `toolkit run` until the first line of a rank, host by host.

    toolkit lab up && export TOOLKIT_HOSTS=… && toolkit up
    python bench/bench_processes.py --launcher mpirun --list

As root on Linux, on a practice cluster. strace follows the command and every process of every host. Counted
is what starts between the start of the command and the first line of output: processes (forks, without
threads), programs (execve), and of those the interpreters of Python. "inside" is the part in containers.
"typed" is the same command typed by hand over ssh. A round trip is a change of direction, from received to
sent, on a connection of the client.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from bench_run import TOOLKIT, typed_command

WORDS = ("sh", "-c", "echo word; sleep 1")
TRACED = "trace=execve,execveat,fork,vfork,clone,clone3"
LINE = re.compile(r"(\d+)\s+(\d+\.\d+) (.*)")
RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
MADE = re.compile(r"(?:v?fork|clone3?)\(.*\s= (\d+)(?: /\* (\d+) in strace's PID NS \*/)?$")
RAN = re.compile(r'execve(?:at)?\([^"]*"([^"]*)", \[(.*?)\](?:\.\.\.)?, .* = 0$')


@dataclass
class Counts:
    """What one host, or the client, has started."""

    processes: int = 0
    inside: int = 0
    programs: Counter[str] = field(default_factory=Counter)
    programs_inside: Counter[str] = field(default_factory=Counter)

    @property
    def pythons(self) -> int:
        both = self.programs + self.programs_inside
        return sum(count for name, count in both.items() if name.startswith("python"))


def children() -> dict[int, list[int]]:
    """Return the children of every process."""
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            found.setdefault(parent, []).append(int(folder.name))
    return found


def descendants(first: int) -> Iterator[int]:
    known, left = children(), [first]
    while left:
        pid = left.pop()
        yield pid
        left += known.get(pid, [])


def in_container(host: int) -> set[int]:
    """Return the processes and threads in the containers of a host, whose first process is known."""
    found: set[int] = set()
    for pid in descendants(host):
        if "containerd-shim" in Path(f"/proc/{pid}/comm").read_text():
            for child in children().get(pid, []):
                for one in descendants(child):
                    found |= {int(thread.name) for thread in Path(f"/proc/{one}/task").iterdir()}
    return found


def name_of(path: str, words: str) -> str:
    """Return a short name of a program, with the program of toolkit that it runs."""
    argv = re.findall(r'"((?:[^"\\]|\\.)*)"', words)
    name = path.rpartition("/")[2]
    if name.startswith("exe") or path.startswith("/proc/"):
        name = f"{argv[0].rpartition('/')[2]} (again)" if argv else name
    for first, second in itertools.pairwise(argv):
        if first.endswith("/run.py"):
            return f"{name} {second}"
    if name.startswith(("python", "docker", "runc", "git")):
        rest = [word for word in argv[1:] if not word.startswith("-")]
        return " ".join([name, *(word.rpartition("/")[2] for word in rest[:1])])
    return name


@dataclass
class Log:
    """What strace has seen on one host, or of the client.

    Args:
        inside: the processes of containers at the start, with their threads.
    """

    inside: set[int]
    parents: dict[int, tuple[int, float]] = field(default_factory=dict)
    forks: list[tuple[float, int]] = field(default_factory=list)
    runs: list[tuple[float, int, str, str]] = field(default_factory=list)
    entered: dict[int, float] = field(default_factory=dict)

    def read(self, path: Path) -> Log:
        waiting: dict[int, str] = {}
        for text in path.read_text(errors="replace").splitlines():
            if not (found := LINE.match(text)):
                continue
            pid, when, call = int(found[1]), float(found[2]), found[3]
            if call.endswith("<unfinished ...>"):
                waiting[pid] = call.removesuffix("<unfinished ...>")
                continue
            if resumed := RESUMED.match(call):
                call = waiting.pop(pid, "") + resumed[1]
            if made := MADE.match(call):
                child = int(made[2] or made[1])
                self.parents[child] = pid, when
                if "CLONE_THREAD" not in call:
                    self.forks.append((when, child))
            elif ran := RAN.match(call):
                self.runs.append((when, pid, ran[1], ran[2]))
                if ran[2].endswith('"init"') and "runc" in ran[2]:
                    self.entered[pid] = when
        return self

    def is_inside(self, pid: int, when: float) -> bool:
        """Return whether a process or thread was in a container at a moment."""
        if pid in self.inside or when > self.entered.get(pid, math.inf):
            return True
        return pid in self.parents and self.is_inside(*self.parents[pid])

    def count(self, begun: float, until: float) -> Counts:
        counts = Counts()
        for when, pid in self.forks:
            if begun <= when <= until:
                counts.processes += 1
                counts.inside += self.is_inside(*self.parents[pid])
        for when, pid, path, words in self.runs:
            if begun <= when <= until:
                inside = self.is_inside(pid, when)
                (counts.programs_inside if inside else counts.programs)[name_of(path, words)] += 1
        return counts


@contextmanager
def traced(folder: Path, hosts: dict[str, int]) -> Iterator[None]:
    """Follow every process of these hosts with strace, into a file for each host."""
    tracers = []
    for host, first in hosts.items():
        attach = [word for pid in descendants(first) for word in ("-p", str(pid))]
        words = ["-f", "-ttt", "-s", "120", "-e", TRACED, "-e", "signal=none", "--decode-pids=pidns"]
        argv = ["strace", *words, "-o", str(folder / host), *attach]
        tracers.append(subprocess.Popen(argv, stderr=subprocess.DEVNULL))
    time.sleep(1.0 + 0.5 * len(hosts))
    try:
        yield
    finally:
        for tracer in tracers:
            tracer.send_signal(signal.SIGINT)
        for tracer in tracers:
            tracer.wait()


SENT = re.compile(r"(?:sendto|send|write|sendmsg|writev)\((\d+)<TCP:")
GOT = re.compile(r"(?:recvfrom|recv|read|recvmsg)\((\d+)<TCP:.* = [1-9]")


def turns(log: Path, until: float) -> dict[str, int]:
    """Return for each connection of the client how often it sent after it had received."""
    heard: dict[str, bool] = {}
    found: Counter[str] = Counter()
    for text in log.read_text(errors="replace").splitlines():
        if not (line := LINE.match(text)) or float(line[2]) > until:
            continue
        if not (peer := re.search(r"<TCP:\[[^]]*->([0-9.]+):", line[3])):
            continue
        where = peer[1]
        if SENT.match(line[3]) and heard.get(where, True):
            found[where] += 1
            heard[where] = False
        elif GOT.match(line[3]):
            heard[where] = True
    return dict(found)


def first_line(argv: Sequence[str], log: Path) -> tuple[float, float]:
    """Run a command under strace; return the times of its start and of its first line."""
    words = ["-f", "-ttt", "-yy", "-s", "120", "-e", f"{TRACED},%network,read,write,writev"]
    begun = time.time()
    full = ["strace", *words, "-e", "signal=none", "-o", str(log), *argv]
    job = subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert job.stdout is not None
    told = next(time.time() for line in job.stdout if "word" in line)
    job.communicate()
    return begun, told


def show(name: str, counts: Counts, listed: bool) -> None:
    programs, inside = counts.programs.total(), counts.programs_inside.total()
    print(
        f"    {name:<10}{counts.processes:>10}{counts.inside:>8}{programs + inside:>10}"
        f"{inside:>8}{counts.pythons:>8}"
    )
    if listed:
        for where, found in (("", counts.programs), ("inside ", counts.programs_inside)):
            for program, number in found.most_common():
                print(f"        {number:>3}  {where}{program}")


def measure(argv: Sequence[str], hosts: dict[str, int], addresses: dict[str, str], listed: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inside = {host: in_container(first) for host, first in hosts.items()}
        with traced(folder, hosts):
            begun, told = first_line(argv, folder / "client")
        heads = ("", "processes", "inside", "programs", "inside", "python")
        print(f"    {heads[0]:<10}{heads[1]:>10}{heads[2]:>8}{heads[3]:>10}{heads[4]:>8}{heads[5]:>8}")
        show("client", Log(set()).read(folder / "client").count(begun, told), listed)
        for host in hosts:
            show(host, Log(inside[host]).read(folder / host).count(begun, told), listed)
        trips = turns(folder / "client", told)
        print("    round trips: " + ", ".join(f"{h} {trips.get(a, 0)}" for h, a in addresses.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--launcher", default="mpirun,horovodrun")
    parser.add_argument("--list", action="store_true", help="print each program as well")
    options = parser.parse_args()
    file = Path(os.environ.get("TOOLKIT_HOSTS", ""))
    if not file.is_file():
        print("processes  skipped: no practice cluster; toolkit lab up, then set TOOLKIT_HOSTS")
        return
    data: dict[str, Any] = yaml.safe_load(file.read_text())
    lab = file.parent.name
    hosts = {}
    for host in data["hosts"]:
        asked = ["docker", "inspect", "-f", "{{.State.Pid}}", f"toolkit-lab-{lab}-{host}"]
        hosts[host] = int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    addresses = {host: about["address"] for host, about in data["hosts"].items()}
    for launcher in options.launcher.split(","):
        ours = [TOOLKIT, "run", "--launcher", launcher, "--workdir", "examples", "--", *WORDS]
        # The code is sent, and a spare copy exists.
        subprocess.run(ours, check=True, capture_output=True)
        print(f"  {launcher} typed")
        measure(typed_command(data, launcher, WORDS), hosts, addresses, options.list)
        print(f"  {launcher} by toolkit run")
        measure(ours, hosts, addresses, options.list)


if __name__ == "__main__":
    main()
