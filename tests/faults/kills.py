"""SIGKILL of the command at many moments of `up`, `run` and `down`: what is left, and who was harmed.

A cluster beside the tried one trains all the time, and on each host runs a stranger's `python train.py`.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.e2e.world import Toolkit, outer, wait_until
from tests.faults.census import settled, take_census

TRAIN = "import time\nprint('training', flush=True)\nwhile True: time.sleep(0.2)\n"
VERBS = ("up", "run", "down")
_STRANGER = "train.py"


@dataclass
class Kills:
    """What came of the kills so far."""

    done: int = 0
    left: list[str] = field(default_factory=list)
    harmed: list[str] = field(default_factory=list)
    longest_down: float = 0.0


class Arena:
    """Two clusters on the same hosts, the one that is tried and a bystander, and strangers."""

    def __init__(self, hosts_file: Path, folder: Path, lab: str) -> None:
        data = yaml.safe_load(hosts_file.read_text())
        self.hosts = {host: outer(host, lab) for host in data["hosts"]}
        (folder / "code").mkdir(parents=True, exist_ok=True)
        (folder / "code" / "train.py").write_text(TRAIN)
        self.tried = self._cluster(data, folder, "tried")
        self.bystander = self._cluster(data, folder, "bystander")
        self.strangers: dict[str, str] = {}
        self.job = ""

    def _cluster(self, data: dict[str, object], folder: Path, name: str) -> Toolkit:
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**data, "cluster": name}))
        return Toolkit(path, folder)

    def __enter__(self) -> Arena:
        self.bystander.run("up", check=True)
        words = ("run", "-d", "--json", "--launcher", "torchrun", "--workdir", "code", "train.py")
        self.job = self.bystander.run(*words, check=True).json["job"]
        wait_until(lambda: self.bystander.run("logs", self.job).out.count("] training") == len(self.hosts))
        for host, container in self.hosts.items():
            start = (
                f"exec setsid python3 -c 'import time; time.sleep(1e6)' {_STRANGER} >/dev/null 2>&1 & echo $!"
            )
            argv = ["docker", "exec", "-u", "trainer", container, "bash", "-c", start]
            self.strangers[host] = subprocess.run(argv, capture_output=True, text=True).stdout.strip()
        return self

    def __exit__(self, *_: object) -> None:
        for host, pid in self.strangers.items():
            subprocess.run(["docker", "exec", self.hosts[host], "kill", "-9", pid], check=False)
        self.tried.run("down", "--no-save")
        self.bystander.run("down", "--no-save")

    def harmed(self) -> list[str]:
        """Return who of those beside is not as it was."""
        jobs = {job["id"]: job["state"] for job in self.bystander.run("jobs", "--json").json}
        found = [] if jobs.get(self.job) == "running" else [f"the bystander's job is {jobs.get(self.job)}"]
        for host, pid in self.strangers.items():
            argv = ["docker", "exec", self.hosts[host], "cat", f"/proc/{pid}/cmdline"]
            if _STRANGER not in subprocess.run(argv, capture_output=True, text=True).stdout:
                found.append(f"{host}: the stranger's process {pid} is gone")
        return found

    def prepare(self, verb: str) -> tuple[str, ...]:
        """Bring the tried cluster to where the verb begins; return the verb's words."""
        if verb == "up":
            return ("up",)
        self.tried.run("up", check=True)
        run = ("run", "--launcher", "mpirun", "--workdir", "code", "--timeout", "5", "train.py")
        if verb == "run":
            return run
        self.tried.run(*run[:1], "-d", *run[1:5], "train.py", check=True)
        return ("down", "--no-save")

    def kill_at(self, words: tuple[str, ...], seconds: float) -> bool:
        """Start the command and kill it after so long; whether it was still there."""
        process = self.tried.start(*words)
        try:
            process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        finally:
            if process.stdout:
                process.stdout.close()


def try_kills(arena: Arena, count: int, seed: int) -> Kills:
    """Kill the command at ``count`` moments, spread over the verbs, and count what comes of it."""
    rng = random.Random(seed)
    kills = Kills()
    lengths: dict[str, float] = {}
    before = take_census(arena.hosts)
    for verb in VERBS:
        words = arena.prepare(verb)
        start = time.monotonic()
        arena.tried.run(*words)
        lengths[verb] = time.monotonic() - start
        arena.tried.run("down", "--no-save", check=True)
    if left := settled(arena.hosts, before):
        kills.left += [f"without any kill: {line}" for line in left]
    for number in range(count):
        verb = VERBS[number % len(VERBS)]
        # One moment from each of as many equal parts of the verb's length as it is tried.
        parts = max(1, count // len(VERBS))
        moment = lengths[verb] * ((number // len(VERBS)) % parts + rng.random()) / parts
        alive = arena.kill_at(arena.prepare(verb), moment)
        down = arena.tried.run("down", "--no-save")
        kills.longest_down = max(kills.longest_down, down.seconds)
        left = settled(arena.hosts, before)
        harmed = arena.harmed()
        name = f"{verb} killed after {moment:.2f} s" + ("" if alive else " (it had ended)")
        if down.status:
            left = [*left, f"down ended with {down.status}: {' | '.join(down.err.splitlines()[-6:])}"]
        kills.done += alive
        kills.left += [f"{name}: {line}" for line in left]
        kills.harmed += [f"{name}: {line}" for line in harmed]
        print(f"{number + 1:3d}  {name}: {len(left)} left, {len(harmed)} harmed", flush=True)
        for line in (*left[:10], *harmed):
            print(f"       {line}", flush=True)
        if harmed:
            break
    return kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=50, help="how many moments")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lab", default="faults", help="a practice cluster that is up")
    parser.add_argument("--folder", default=".lab", help="where the practice clusters' folders stand")
    args = parser.parse_args()
    place = Path(args.folder, args.lab).resolve()
    with Arena(place / "hosts.yaml", place / "kills", args.lab) as arena:
        kills = try_kills(arena, args.n, args.seed)
    print(f"R4, R5  SIGKILL of the command at {kills.done} moments of {', '.join(VERBS)}; seed {args.seed}")
    print(f"    left after down: {len(kills.left)} (target 0); bystanders harmed: {len(kills.harmed)} (0)")
    print(f"    longest down afterwards: {kills.longest_down:.1f} s")
    return 1 if kills.left or kills.harmed else 0


if __name__ == "__main__":
    sys.exit(main())
