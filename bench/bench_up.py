"""S2 and S3: connections, duration and lower bound of an `up` that changes nothing, on a practice cluster.

The lower bound is a program that opens the same connections with the same library and runs `true`, with and
without the modules that `up` imports, or the probe of `up`, whose output it discards.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import connect_all
import yaml
from bench_run import login_of

from toolkit.checks.preflight import questions
from toolkit.cluster.probe import probe_command

ROUNDS = int(os.environ.get("ROUNDS", "20"))
TOOLKIT = os.environ.get("TOOLKIT") or str(Path(sys.executable).with_name("toolkit"))
# If it is set, every command compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

NONCE = "0123456789abcdef"  # it ends the sections of a probe's output
# What `up` imports before and while it connects.
MODULES = ("toolkit.cli.app", "toolkit.cli.up", "toolkit.remote.ssh", "toolkit.hostsfile.models", "jinja2")


def logins(container: str) -> int:
    argv = ["docker", "exec", container, "grep", "-c", "Accepted publickey", "/var/log/sshd.log"]
    return int(subprocess.run(argv, capture_output=True, text=True, check=False).stdout or 0)


def cpu() -> float:
    """Return the processor time of all ended children, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def usage_file(container: str) -> Path:
    """Return the file in which the kernel counts the processor time of a practice host."""
    argv = ["docker", "inspect", "--format", "{{.Id}}", container]
    ident = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    found = [
        path
        for name in ("cpuacct.usage", "cpu.stat")  # of cgroup version 1 and 2
        for path in Path("/sys/fs/cgroup").glob(f"**/*{ident}*/{name}")
    ]
    return min(found, key=lambda path: (path.name != "cpuacct.usage", len(path.parts)))


def host_cpu(files: Iterable[Path]) -> float:
    """Return the processor time of all practice hosts, in seconds."""
    words = [file.read_text().split() for file in files]
    # nanoseconds, or "usage_usec" and microseconds
    return sum(int(each[0]) / 1e9 if len(each) == 1 else int(each[1]) / 1e6 for each in words)


def timed(work: Callable[[], object], files: Iterable[Path]) -> tuple[float, float, float]:
    """Return the duration, the processor time of this machine without the hosts, and that of all hosts."""
    before, hosts_before, start = cpu(), host_cpu(files), time.perf_counter()
    work()
    return time.perf_counter() - start, cpu() - before, host_cpu(files) - hosts_before


def forks() -> int:
    """Return the processes and threads that this machine has started; the practice hosts share its kernel."""
    lines = Path("/proc/stat").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("processes ")).split()[1])


def main() -> None:
    hosts_file = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(hosts_file).is_file():
        print("S2, S3  skipped: no practice cluster; toolkit lab up, then set TOOLKIT_HOSTS")
        return
    data = yaml.safe_load(Path(hosts_file).read_text())
    subprocess.run([TOOLKIT, "up"], check=True, stderr=subprocess.DEVNULL)
    names = {host: f"toolkit-lab-{data['cluster']}-{host}" for host in data["hosts"]}
    hosts = list(data["hosts"].values())
    login = login_of(data)
    true = [(host["address"], "true") for host in hosts]
    probes = [
        (about["address"], probe_command(data["image"], data["cluster"], name, NONCE, questions()).shell())
        for name, about in data["hosts"].items()
    ]

    def up() -> None:
        done = subprocess.run([TOOLKIT, "up", "--json"], check=True, capture_output=True)
        assert json.loads(done.stdout)["changes"] == 0

    def ssh(host: dict[str, str]) -> None:
        target = f"{host['user']}@{host['address']}"
        options = ["-i", host["identity_file"], "-o", f"UserKnownHostsFile={data['known_hosts']}"]
        argv = ["ssh", *options, "-o", "BatchMode=yes", target, "docker", "ps"]
        subprocess.run(argv, check=True, capture_output=True)

    def plain() -> None:
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(ssh, hosts))

    def start(*argv: str) -> Callable[[], object]:
        return lambda: subprocess.run(argv, check=True)

    before = {host: logins(container) for host, container in names.items()}
    started = forks()
    up()
    started = forks() - started
    used = {host: logins(container) - before[host] for host, container in names.items()}
    files = [usage_file(container) for container in names.values()]
    with connect_all.program(*login, true) as connect, connect_all.program(*login, probes) as probe:
        rows: dict[str, Callable[[], object]] = {
            "ssh HOST docker ps, all at once": plain,
            "interpreter and imports of up, no connection": start(
                sys.executable, "-c", f"import {', '.join(MODULES)}"
            ),
            "connect and run true, without these imports": start(*connect),
            "connect and run true, with these imports": start(*connect, *MODULES),
            "connect and run the probe, with these imports": start(*probe, *MODULES),
            "toolkit up": up,
        }
        rounds = [[timed(work, files) for work in rows.values()] for _ in range(ROUNDS)]
    print(f"S2  SSH connections during one `up`, by host: {used} (target 1)")
    load = os.getloadavg()[0]
    print(f"S3  {len(names)} hosts, median of {ROUNDS} interleaved rounds, 0 changes, load {load:.1f}")
    print(f"    processes and threads started during one `up`, all hosts and the client: {started}")
    for number, name in enumerate(rows):
        ratios = sorted(each[number][0] / each[0][0] for each in rounds)
        took, used_cpu, hosts_cpu = (statistics.median(each[number][i] for each in rounds) for i in range(3))
        spread = f"{statistics.median(ratios):.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        each_host = hosts_cpu / len(names)
        print(f"    {name:46} {took:.2f} s  CPU: client {used_cpu:.2f}, host {each_host:.3f}  ratio {spread}")
    print("    target of the last ratio: 1.5 at 8 hosts")


if __name__ == "__main__":
    main()
