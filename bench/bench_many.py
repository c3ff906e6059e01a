"""S10: commands on up to 256 hosts: time, memory, threads and open files of the client, bytes to main.

    python bench/bench_many.py
    python bench/bench_many.py --hosts 8,64,256 --rounds 5 --until status
    python bench/bench_many.py --hosts 64 --jump

As root, with the program sshd; see many_hosts.py. All hosts share the processors of this machine, so the
time contains the work of all hosts; "client" is the processor time of the command alone. The baseline is one
`ssh HOST true` to each host, all at once, with the key exchange that toolkit uses; "ssh cpu" is the processor
time of these programs. The lower bounds of `status` are connect_all.py with `true`, and with the probe of
toolkit, whose output it discards.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import connect_all
from many_hosts import IMAGE, Cluster, address, many, why_not

from toolkit.cluster.probe import probe_command

TOOLKIT = os.environ.get("TOOLKIT") or str(Path(sys.executable).with_name("toolkit"))
# In this order, in every round.
COMMANDS = {
    "status": "status",
    "check": "check",
    "up --dry-run": "up --dry-run",
    "up": "up",
    "status, up": "status",
    "second up": "up",
    "run": "run --launcher mpirun -- echo hello",
    "logs": "logs",
    "jobs": "jobs",
    "top": "top --once",
    "down": "down",
}
LOWER_BOUNDS = (("connect, true", False), ("connect, probe", True))
# `status` without a cluster returns 3, and `check` reports what is missing.
EXPECTED = {"status": (0, 3), "check": (0, 1)}


@dataclass(frozen=True)
class Run:
    """One run of a command.

    Args:
        client: seconds of processor time of the command and its children.
        memory: MiB of the command's largest resident set.
        to_main: KiB that the network card of main received.
    """

    seconds: float
    client: float
    memory: float
    threads: int
    files: int
    to_main: float


class Failed(Exception):
    """A command failed; contains the end of its output."""


def measured(cluster: Cluster, *argv: str) -> Run:
    """Run a program, and sample its threads and descriptors until it ends.

    Raises:
        Failed: its exit status is not expected, or it could not use a host.
    """
    env = {**os.environ, "TOOLKIT_HOSTS": str(cluster.file), "DOCKER_HOST": "unix:///nonexistent"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = cluster.received(), time.perf_counter()
    here = cluster.folder / "code"  # empty: `run` sends it
    here.mkdir(exist_ok=True)
    process = subprocess.Popen(argv, env=env, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    proc, most = Path(f"/proc/{process.pid}"), [0, 0]

    def sample() -> None:
        with contextlib.suppress(OSError):
            while True:
                most[0] = max(most[0], sum(1 for _ in (proc / "task").iterdir()))
                most[1] = max(most[1], sum(1 for _ in (proc / "fd").iterdir()))
                time.sleep(0.05)

    threading.Thread(target=sample, daemon=True).start()
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    bad = [name for name in cluster.names if f"{name}: cannot" in said.decode()]
    if process.returncode not in EXPECTED.get(argv[1], (0,)) or bad or b"unreachable" in said:
        raise Failed(said.decode()[-2000:])
    client, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    return Run(seconds, client, memory, most[0], most[1], (cluster.received() - before) / 1024)


def baseline(cluster: Cluster) -> tuple[float, float]:
    """Return the seconds of one `ssh HOST true` to every host, all at once, and their processor time."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ssh = ["ssh", "-F", str(cluster.config)]
    every = [subprocess.Popen([*ssh, name, "true"], stdin=subprocess.DEVNULL) for name in cluster.names]
    failed = sum(process.wait() != 0 for process in every)
    if failed:
        print(f"{len(every):>5}  ssh HOST true failed on {failed} hosts", flush=True)
    seconds, usage = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime


def lower_bound(cluster: Cluster, probe: bool) -> Run:
    """Connect to every host at once with toolkit's library, and run `true` or toolkit's probe on each."""
    commands = []
    for number, name in enumerate(cluster.names, 1):
        command = probe_command(IMAGE, "many", name, "0123456789abcdef").shell() if probe else "true"
        commands.append((address(number), command))
    login = str(cluster.folder / "known_hosts"), str(cluster.folder / "login"), "root"
    with connect_all.program(*login, commands) as argv:
        return measured(cluster, *argv)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", default="8,32,64")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of the baseline and each command")
    parser.add_argument("--until", default="down", choices=COMMANDS, help="the last command of a round")
    parser.add_argument("--jump", action="store_true", help="reach all hosts through a jump host")
    options = parser.parse_args()
    if reason := why_not():
        print(f"S10  skipped: {reason}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the hosts are removed
    print(
        f"{'hosts':>5}  {'command':<14}{'ssh true':>9}{'seconds':>9}{'ratio':>7}{'ssh cpu':>9}{'client':>8}"
        f"{'MiB':>6}{'threads':>9}{'files':>7}{'to main':>9}"
    )
    failed = False
    for count in [int(word) for word in options.hosts.split(",")]:
        with many(count, options.jump) as cluster:
            found: dict[str, list[tuple[tuple[float, float], Run]]] = {}
            for _ in range(options.rounds):
                for name, probe in () if options.jump else LOWER_BOUNDS:
                    found.setdefault(name, []).append((baseline(cluster), lower_bound(cluster, probe)))
                for command, words in COMMANDS.items():
                    try:
                        pair = baseline(cluster), measured(cluster, TOOLKIT, *words.split())
                        found.setdefault(command, []).append(pair)
                    except Failed as error:
                        print(f"{count:>5}  {command} failed: {error}", flush=True)
                        failed = True
                    if command == options.until:
                        break
            for command, pairs in found.items():
                ratio = statistics.median(run.seconds / seconds for (seconds, _), run in pairs)
                ssh, cpu = (statistics.median(found[n] for found, _ in pairs) for n in (0, 1))
                run = sorted((run for _, run in pairs), key=lambda run: run.seconds)[len(pairs) // 2]
                print(
                    f"{count:>5}  {command:<14}{ssh:>9.2f}{run.seconds:>9.2f}{ratio:>7.2f}{cpu:>9.2f}"
                    f"{run.client:>8.2f}{run.memory:>6.0f}{run.threads:>9}{run.files:>7}{run.to_main:>9.0f}",
                    flush=True,
                )
            if options.jump:
                before = cluster.logins()
                measured(cluster, TOOLKIT, "status")
                print(f"{count:>5}  logins on the jump host during status: {cluster.logins() - before}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
