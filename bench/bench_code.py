"""S6: 10,000 files of code to all hosts of a practice cluster at once, compared with rsync.

Needs a cluster that is up, and TOOLKIT_HOSTS. Connections are open in both cases. Seconds: reading the files
on your machine and creating the folders of the job on the hosts. Bytes: what the interfaces of the hosts
count in both directions, including packet headers and SSH.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from toolkit.api.connection import Connection
from toolkit.core.command import script
from toolkit.jobs.make_job import plan_request, read_code
from toolkit.jobs.plan import plan_job
from toolkit.jobs.request import Request
from toolkit.launchers.job import Job
from toolkit.protocol.names import JOBS

FILES, ROUNDS, NEW_ROUNDS = 10_000, 20, 3
# Interface names differ between hosts. Interfaces that end on the host are left out.
COUNT = "awk '/:/ && !/lo:|docker|br-|veth/ { sub(/.*:/, \"\"); print $1 + $9 }' /proc/net/dev"


def write_tree(folder: Path, files: int, seed: int) -> None:
    """Write N files of 200 to 4,000 bytes that cannot be compressed, fifty per folder."""
    chance = random.Random(seed)
    for number in range(files):
        place = folder / f"package{number // 500:02d}" / f"module{number // 50 % 10}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"file{number}.py").write_bytes(chance.randbytes(chance.randrange(200, 4000)))


class Hosts:
    """The practice hosts and the connections to them."""

    def __init__(self, hosts_file: Path, stack: ExitStack) -> None:
        data: dict[str, Any] = yaml.safe_load(hosts_file.read_text())
        self.session = stack.enter_context(Connection(hosts_file).connect(container_sessions=True))
        self.session.require_some()
        self.containers = [f"toolkit-lab-{data['cluster']}-{name}" for name in data["hosts"]]
        self.planned = plan_request(self.session, Request(("true",), Path.cwd()))
        self.made: list[str] = []
        control = stack.enter_context(tempfile.TemporaryDirectory())
        self.ssh = {
            f"{host['user']}@{host['address']}": (
                f"ssh -i {host['identity_file']} -o UserKnownHostsFile={data['known_hosts']} "
                f"-o BatchMode=yes -o ControlMaster=auto -o ControlPath={control}/%C -o ControlPersist=600"
            )
            for host in data["hosts"].values()
        }
        self.rsync = bool(shutil.which("rsync")) and all(
            subprocess.run([*ssh.split(), to, "command -v rsync"], capture_output=True).returncode == 0
            for to, ssh in self.ssh.items()
        )

    def wire(self) -> list[int]:
        """Return the bytes that the interface of each host has counted."""

        def one(container: str) -> int:
            argv = ["docker", "exec", container, "sh", "-c", COUNT]
            return sum(map(int, subprocess.run(argv, check=True, capture_output=True).stdout.split()))

        return [one(container) for container in self.containers]

    def send(self, folder: Path) -> None:
        """Send the code as `run` does."""
        job: Job = replace(self.planned.job, id=f"{self.planned.job.id}-{len(self.made)}")
        self.made.append(job.id)
        code = read_code(self.session.inventory, folder)
        plan = plan_job(self.planned.layout, job, str(folder), code)
        report = self.session.execute(replace(plan, phases=plan.phases[:1]))
        assert report.ok, report.failures

    def copy(self, folder: Path) -> None:
        """Send the same folder with rsync, to the same place each time."""

        def one(to: str) -> None:
            argv = ["rsync", "-a", "--delete", "-e", self.ssh[to], f"{folder}/", f"{to}:bench-code/"]
            subprocess.run(argv, check=True)

        with ThreadPoolExecutor(len(self.ssh)) as pool:
            list(pool.map(one, self.ssh))

    def forget(self, everything: bool = False) -> None:
        """Remove the jobs that this program created, and the code store of the hosts."""
        kept = [".code"] if everything else []
        remove = script('cd "$1" && shift && rm -rf "$@"', str(JOBS), *self.made, *kept)
        for name in self.session.facts:
            self.session.container(name).run(remove)
        for to, ssh in self.ssh.items() if everything else ():
            subprocess.run([*ssh.split(), to, "rm -rf bench-code"], check=True)
        self.made.clear()

    def settled(self) -> None:
        """Wait until no host prepares the next job: people take longer between two runs."""
        look = '[ -z "$(ls "$1/.code/spares" 2>/dev/null)" ] || exec flock "$1/.code/busy" true'
        quiet = script(f"for i in $(seq 200); do {look}; sleep 0.1; done", str(JOBS))
        for name in self.session.facts:
            self.session.container(name).run(quiet, 120)


def measure(hosts: Hosts, act: Callable[[], None]) -> tuple[float, int]:
    """Return the seconds, and the most bytes that the interface of one host counted."""
    before, start = hosts.wire(), time.perf_counter()
    act()
    seconds = time.perf_counter() - start
    return seconds, max(b - a for a, b in zip(before, hosts.wire(), strict=True))


def row(name: str, figures: list[tuple[float, int]]) -> str:
    times, sizes = sorted(s for s, _ in figures), sorted(b for _, b in figures)
    spread = f"{times[0]:.2f} to {times[-1]:.2f}"
    wire = f"{statistics.median(sizes):,.0f} ({sizes[0]:,} to {sizes[-1]:,})"
    return f"    {name:36} {statistics.median(times):.2f} s ({spread})   {wire} bytes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    hosts_file = Path(os.environ.get("TOOLKIT_HOSTS", ""))
    if not hosts_file.is_file():
        print("S6  skipped: no practice cluster; toolkit lab up and toolkit up, then set TOOLKIT_HOSTS")
        return
    with ExitStack() as stack:
        hosts = Hosts(hosts_file, stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(hosts.forget, everything=True)
        write_tree(folder, options.files, 1)
        ways: dict[str, Callable[[Path], None]] = {"toolkit run": hosts.send}
        if hosts.rsync:
            ways["rsync -a --delete"] = hosts.copy
        print(f"S6  {options.files} files to {len(hosts.containers)} hosts at once: median and spread of")
        print(f"    {options.rounds} rounds in turn, {NEW_ROUNDS} for all new; bytes of one host, both ways")

        def table(what: str, rounds: int, change: Callable[[int], None]) -> None:
            found: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
            for number in range(rounds):
                change(number)
                if what != "all new":
                    hosts.settled()
                for way in ways:
                    found[way].append(measure(hosts, partial(ways[way], folder)))
                hosts.forget()
            for way in ways:
                print(row(f"{what}, {way}", found[way]), flush=True)

        def renew(number: int) -> None:
            hosts.forget(everything=True)
            write_tree(folder, options.files, number)

        def edit(number: int) -> None:
            changed.write_bytes(os.urandom(3000))

        changed = folder / "package03" / "module4" / "file1700.py"
        table("all new", NEW_ROUNDS, renew)
        table("nothing changed", options.rounds, lambda number: None)
        table("3,000 bytes", options.rounds, edit)
        if not hosts.rsync:
            print("    rsync: not on your machine, or not on every host")


if __name__ == "__main__":
    main()
