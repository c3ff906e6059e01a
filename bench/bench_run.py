"""S5: seconds that `toolkit run` adds to the same command typed by hand, on a warm cluster.

The lower bound is the smallest program that opens the same connections and starts the same Python programs:
it connects to all hosts, starts a session and a lease on each, and on main the supervisor, the start program,
the launcher and the ranks. It has no probe, sends no code and writes no record.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import connect_all
import yaml

ROUNDS = int(os.environ.get("ROUNDS", "20"))
TOOLKIT = os.environ.get("TOOLKIT") or str(Path(sys.executable).with_name("toolkit"))
# If it is set, every command compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
LAUNCHERS = ("mpirun", "horovodrun")

# What `run` imports before and while it connects.
MODULES = ("toolkit.cli.app", "toolkit.cli.run", "toolkit.remote.ssh", "toolkit.hostsfile.models", "jinja2")
# Programs without work, in the place of toolkit's own. The session starts the lease beside its command.
SESSION = """
import subprocess, sys
lease = subprocess.Popen([sys.executable, "-c", "pass"])
subprocess.run(sys.argv[1:], check=True)
lease.wait()
"""
START = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"
RANK = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def timed(argv: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - start


def ssh_to_main(data: dict[str, Any]) -> list[str]:
    """Return the words that start a command on main over ssh."""
    host = data["hosts"][data.get("main") or next(iter(data["hosts"]))]
    options = ["-i", host["identity_file"], "-o", f"UserKnownHostsFile={data['known_hosts']}"]
    return ["ssh", *options, "-o", "BatchMode=yes", f"{host['user']}@{host['address']}"]


def launch_words(data: dict[str, Any], launcher: str, command: Sequence[str]) -> list[str]:
    """Return the words of the launcher for one rank per slot."""
    explained = subprocess.run([TOOLKIT, "network", "explain", "--json"], check=True, capture_output=True)
    networks = ",".join(json.loads(explained.stdout)["networks"])
    ranks = sum(int((each or {}).get("slots", 1)) for each in data["hosts"].values())
    where = ",".join(f"{name}:{(each or {}).get('slots', 1)}" for name, each in data["hosts"].items())
    if launcher == "horovodrun":
        options = ["--mpi", "--disable-cache", "--network-interfaces", networks]
    else:
        options = ["--mca", "btl_tcp_if_include", networks, "--mca", "oob_tcp_if_include", networks]
    return [launcher, *options, "-np", str(ranks), "-H", where, *command]


def in_container(data: dict[str, Any], role: str, words: Sequence[str]) -> str:
    """Return the command that a host runs to start these words in its container."""
    agent = ["-e", "OMPI_MCA_plm_rsh_agent=/etc/mpi/kubexec.sh"]
    return shlex.join(["docker", "exec", *agent, f"toolkit-{data['cluster']}-{role}", *words])


def typed_command(data: dict[str, Any], launcher: str, words: Sequence[str]) -> list[str]:
    """Return the command that a user types to start these words on every host, without toolkit."""
    return [*ssh_to_main(data), in_container(data, "main", launch_words(data, launcher, words))]


def login_of(data: dict[str, Any]) -> tuple[str, str, str]:
    """Return the known_hosts file, key and user of the login; they are the same for all practice hosts."""
    first = next(iter(data["hosts"].values()))
    return data["known_hosts"], first["identity_file"], first["user"]


def floor_commands(data: dict[str, Any], launcher: str) -> list[tuple[str, str]]:
    """Return the addresses, and the commands with the processes of `toolkit run`."""
    ranks = launch_words(data, launcher, ["python3", "-c", RANK, "true"])
    start = ["python3", "-c", START]
    main = data.get("main") or next(iter(data["hosts"]))
    commands = []
    for name, about in data["hosts"].items():
        work = [*start, *start, *ranks] if name == main else ["true"]
        role = "main" if name == main else "worker"
        commands.append((about["address"], in_container(data, role, ["python3", "-c", SESSION, *work])))
    return commands


def main() -> None:
    hosts_file = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(hosts_file).is_file():
        print("S5  skipped: no practice cluster; toolkit lab up, then set TOOLKIT_HOSTS")
        return
    data = yaml.safe_load(Path(hosts_file).read_text())
    subprocess.run([TOOLKIT, "up"], check=True, capture_output=True)
    ssh = ssh_to_main(data)
    print(f"S5  {len(data['hosts'])} hosts, one rank each, medians of {ROUNDS} interleaved rounds")
    for launcher in LAUNCHERS:
        typed = typed_command(data, launcher, ["true"])
        ours = [TOOLKIT, "run", "--launcher", launcher, "--no-check", "--workdir", "examples", "--", "true"]
        rows: dict[str, list[float]] = {"interpreter": [], "ssh": [], "typed": [], "floor": [], "ours": []}
        with connect_all.program(*login_of(data), floor_commands(data, launcher), *MODULES) as floor:
            for _ in range(ROUNDS):
                rows["interpreter"].append(timed([TOOLKIT, "--version"]))
                rows["ssh"].append(timed([*ssh, "true"]))
                rows["typed"].append(timed(typed))
                rows["floor"].append(timed(floor))
                rows["ours"].append(timed(ours))
        middle = {name: statistics.median(seconds) for name, seconds in rows.items()}
        by_hand = middle["typed"] - middle["ssh"]
        added, added_floor = (
            middle[name] - by_hand - middle["interpreter"] - middle["ssh"] for name in ("ours", "floor")
        )
        print(f"  {launcher}")
        print(f"    interpreter start (toolkit --version)        {middle['interpreter']:5.2f} s")
        print(f"    SSH connection (ssh HOST true)               {middle['ssh']:5.2f} s")
        print(f"    docker exec … {launcher:<12} typed on main    {by_hand:5.2f} s")
        spread = f"{min(rows['ours']):.2f} to {max(rows['ours']):.2f}"
        print(f"    toolkit run                                  {middle['ours']:5.2f} s   ({spread})")
        print(f"    the same connections and processes, no work  {middle['floor']:5.2f} s")
        print(f"    added by that                                {added_floor:5.2f} s")
        print(f"    added by toolkit run                         {added:5.2f} s   (target 0.6)")


if __name__ == "__main__":
    main()
