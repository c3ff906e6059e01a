"""Processes, programs and round trips of `toolkit run` until the first line of a rank, host by host.

    toolkit lab up && export TOOLKIT_HOSTS=…
    python bench/bench_processes.py --launcher mpirun --list

As root on Linux, on a practice cluster. The kernel reports each new process and each program of this machine
(the process connector of netlink); each belongs to the command or to a practice host by its ancestors.
Counted is what starts between the start of the command and the first line of output: processes (forks,
without threads), programs (exec), and the interpreters of Python among them. "inside" is the part in
containers. "typed" is the same command typed by hand over ssh. A round trip is a change of direction, from
received to sent, on a connection of the client, counted with strace in another run.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from bench_run import TOOLKIT, typed_command

WORDS = ("sh", "-c", "echo word; sleep 1")
# linux/netlink.h, linux/connector.h and linux/cn_proc.h
NETLINK_CONNECTOR, CN_IDX_PROC, PROC_CN_MCAST_LISTEN = 11, 1, 1
FORK, EXEC = 0x1, 0x2
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
EVENT_AT, DATA_AT = 36, 52


@dataclass
class Counts:
    """Numbers of started processes and programs, of a host or of the client."""

    processes: int = 0
    inside: int = 0
    programs: Counter[str] = field(default_factory=Counter)
    programs_inside: Counter[str] = field(default_factory=Counter)

    @property
    def pythons(self) -> int:
        both = self.programs + self.programs_inside
        return sum(count for name, count in both.items() if name.startswith("python"))


class Events(threading.Thread):
    """The new processes and programs of this machine, from the creation of this object on."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_CONNECTOR)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 25)
        self._socket.bind((0, CN_IDX_PROC))
        ask = struct.pack("=IIIIHHI", CN_IDX_PROC, 1, 0, 0, 4, 0, PROC_CN_MCAST_LISTEN)
        self._socket.send(struct.pack("=IHHII", 16 + len(ask), 3, 0, 0, os.getpid()) + ask)
        self.parents: dict[int, tuple[int, float]] = {}
        self.forks: list[tuple[float, int]] = []
        self.runs: list[tuple[float, int, list[str]]] = []
        self.entered: dict[int, float] = {}
        self.complete = True
        self.start()

    def run(self) -> None:
        while True:
            try:
                data = self._socket.recv(4096)
            except OSError:  # ENOBUFS: the machine is too busy, and the kernel has dropped reports
                self.complete = False
                continue
            what, _, nanoseconds = struct.unpack_from("=IIQ", data, EVENT_AT)
            when = nanoseconds / 1e9
            if what == FORK:
                _, parent, child, group = struct.unpack_from("=IIII", data, DATA_AT)
                if child == group:  # not a thread
                    self.parents[child] = parent, when
                    self.forks.append((when, child))
            elif what == EXEC:
                _, pid = struct.unpack_from("=II", data, DATA_AT)
                words = words_of(pid)
                self.runs.append((when, pid, words))
                if words[-1:] == ["init"] and "runc" in words[0]:
                    self.entered[pid] = when

    def count(self, begun: float, until: float, roots: set[int], inside: set[int]) -> Counts:
        """Count what the descendants of some processes have started between two moments."""
        counts = Counts()
        for when, pid in list(self.forks):
            if begun <= when <= until and self._comes_from(pid, roots):
                counts.processes += 1
                counts.inside += self._is_inside(*self.parents[pid], inside)
        for when, pid, words in list(self.runs):
            if begun <= when <= until and self._comes_from(pid, roots):
                into = counts.programs_inside if self._is_inside(pid, when, inside) else counts.programs
                into[name_of(words)] += 1
        return counts

    def _comes_from(self, pid: int, roots: set[int]) -> bool:
        while pid not in roots and pid in self.parents:
            pid = self.parents[pid][0]
        return pid in roots

    def _is_inside(self, pid: int, when: float, inside: set[int]) -> bool:
        """Return whether a process was in a container at a moment; a new one enters it by `runc init`."""
        while pid not in inside and when <= self.entered.get(pid, math.inf):
            if pid not in self.parents:
                return False
            pid, when = self.parents[pid]
        return True


def words_of(pid: int) -> list[str]:
    """Return the command line of a process, or only its name if it has exited."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1] or ["?"]
    except OSError:
        return ["? (short)"]


def name_of(words: list[str]) -> str:
    """Return a short name of a program, with the program of toolkit that it runs."""
    name = words[0].rpartition("/")[2].split(" ")[0]
    for first, second in pairwise(words):
        if first.endswith("/run.py"):
            return f"{name} {second}"
    if name.startswith(("python", "docker", "runc", "git")):
        rest = [word for word in words[1:] if not word.startswith("-")]
        return " ".join([name, *(word.rpartition("/")[2][:40] for word in rest[:1])])
    return name


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


def in_containers(host: int) -> set[int]:
    """Return the processes in the containers of a host, whose first process is known."""
    found: set[int] = set()
    for pid in descendants(host):
        if "containerd-shim" in Path(f"/proc/{pid}/comm").read_text():
            for child in children().get(pid, []):
                found |= set(descendants(child))
    return found


def first_line(argv: Sequence[str]) -> tuple[float, float, int]:
    """Run a command; return the times of its start and of its first line, and its pid.

    Raises:
        SystemExit: the command has failed.
    """
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        job = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert job.stdout is not None
        told = next((time.monotonic() for line in job.stdout if "word" in line), 0.0)
        job.communicate()
        errors.seek(0)
        if job.returncode or not told:
            raise SystemExit(f"{' '.join(argv)} printed nothing: {errors.read()[-1000:]}")
    return begun, told, job.pid


CALL = re.compile(r"\d+ (?:\[[^]]*\] )?(\w+)\(\d+<TCP:\[[^]]*->([0-9.]+):\d+\]>.* = ([1-9]\d*)")
SENDS, RECEIVES = ("sendto", "send", "write", "sendmsg", "writev"), ("recvfrom", "recv", "read", "recvmsg")


def round_trips(argv: Sequence[str]) -> dict[str, int]:
    """Return for each address how often the client sends after it has received, until its first line."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        calls = ",".join((*SENDS, *RECEIVES)).replace(",send,", ",").replace(",recv,", ",")
        first_line(
            [
                "strace",
                "-f",
                "--seccomp-bpf",
                "-yy",
                "-s",
                "64",
                "-e",
                f"trace={calls}",
                "-o",
                str(log),
                *argv,
            ]
        )
        lines = log.read_text(errors="replace").splitlines()
    heard: dict[str, bool] = {}
    found: Counter[str] = Counter()
    for line in lines:
        if re.search(r'write\(1(?:<[^>]*>)?, ".*word', line):
            break
        if not (call := CALL.match(line)):
            continue
        if call[1] in SENDS and heard.get(call[2], True):
            found[call[2]] += 1
            heard[call[2]] = False
        elif call[1] in RECEIVES:
            heard[call[2]] = True
    return dict(found)


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
    roots = {host: set(descendants(first)) for host, first in hosts.items()}
    inside = {host: in_containers(first) for host, first in hosts.items()}
    events = Events()
    begun, told, pid = first_line(argv)
    time.sleep(0.5)
    if not events.complete:
        print("    the kernel dropped reports: the counts are too low; repeat this on an idle machine")
    heads = ("", "processes", "inside", "programs", "inside", "python")
    print(f"    {heads[0]:<10}{heads[1]:>10}{heads[2]:>8}{heads[3]:>10}{heads[4]:>8}{heads[5]:>8}")
    show("client", events.count(begun, told, {pid}, set()), listed)
    for host in hosts:
        show(host, events.count(begun, told, roots[host], inside[host]), listed)
    trips = round_trips(argv)
    counts = ", ".join(f"{host} {trips.get(address, 0)}" for host, address in addresses.items())
    print(f"    round trips: {counts if trips else 'strace printed no addresses; repeat'}", flush=True)


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
    toolkit = TOOLKIT
    subprocess.run([toolkit, "up"], check=True, capture_output=True)
    hosts = {}
    for host in data["hosts"]:
        asked = ["docker", "inspect", "-f", "{{.State.Pid}}", f"toolkit-lab-{data['cluster']}-{host}"]
        hosts[host] = int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    addresses = {host: about["address"] for host, about in data["hosts"].items()}
    for launcher in options.launcher.split(","):
        ours = [toolkit, "run", "--launcher", launcher, "--workdir", "examples", "--", *WORDS]
        # The code is sent, and a spare copy exists.
        subprocess.run(ours, check=True, capture_output=True)
        print(f"  {launcher} typed")
        measure(typed_command(data, launcher, WORDS), hosts, addresses, options.list)
        print(f"  {launcher} by toolkit run")
        measure(ours, hosts, addresses, options.list)


if __name__ == "__main__":
    main()
