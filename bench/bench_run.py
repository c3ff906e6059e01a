"""S5: seconds that `toolkit run` adds to the same command typed by hand, on a warm cluster."""

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

import yaml

ROUNDS = int(os.environ.get("ROUNDS", "20"))
TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
# If it is set, every command compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
LAUNCHERS = ("mpirun", "horovodrun")


def timed(argv: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - start


def ssh_to_main(data: dict[str, Any]) -> list[str]:
    """Return the words that start a command on main over ssh."""
    host = data["hosts"][data.get("main") or next(iter(data["hosts"]))]
    options = ["-i", host["identity_file"], "-o", f"UserKnownHostsFile={data['known_hosts']}"]
    return ["ssh", *options, "-o", "BatchMode=yes", f"{host['user']}@{host['address']}"]


def typed_command(data: dict[str, Any], launcher: str, command: Sequence[str]) -> list[str]:
    """Return the equivalent command by hand for one rank per slot, with the ssh to main."""
    explained = subprocess.run([TOOLKIT, "network", "explain", "--json"], check=True, capture_output=True)
    networks = ",".join(json.loads(explained.stdout)["networks"])
    ranks = sum(int((each or {}).get("slots", 1)) for each in data["hosts"].values())
    where = ",".join(f"{name}:{(each or {}).get('slots', 1)}" for name, each in data["hosts"].items())
    if launcher == "horovodrun":
        options = ["--mpi", "--disable-cache", "--network-interfaces", networks]
    else:
        options = ["--mca", "btl_tcp_if_include", networks, "--mca", "oob_tcp_if_include", networks]
    agent = ["docker", "exec", "-e", "OMPI_MCA_plm_rsh_agent=/etc/mpi/kubexec.sh"]
    run = [*agent, f"toolkit-{data['cluster']}-main", launcher, *options, "-np", str(ranks), "-H", where]
    return [*ssh_to_main(data), shlex.join([*run, *command])]


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
        rows: dict[str, list[float]] = {"interpreter": [], "ssh": [], "typed": [], "ours": []}
        for _ in range(ROUNDS):
            rows["interpreter"].append(timed([TOOLKIT, "--version"]))
            rows["ssh"].append(timed([*ssh, "true"]))
            rows["typed"].append(timed(typed))
            rows["ours"].append(timed(ours))
        middle = {name: statistics.median(seconds) for name, seconds in rows.items()}
        by_hand = middle["typed"] - middle["ssh"]
        added = middle["ours"] - by_hand - middle["interpreter"] - middle["ssh"]
        print(f"  {launcher}")
        print(f"    interpreter start (toolkit --version)        {middle['interpreter']:5.2f} s")
        print(f"    SSH connection (ssh HOST true)               {middle['ssh']:5.2f} s")
        print(f"    docker exec … {launcher:<12} typed on main    {by_hand:5.2f} s")
        spread = f"{min(rows['ours']):.2f} to {max(rows['ours']):.2f}"
        print(f"    toolkit run                                  {middle['ours']:5.2f} s   ({spread})")
        print(f"    added                                        {added:5.2f} s   (target 0.6)")


if __name__ == "__main__":
    main()
