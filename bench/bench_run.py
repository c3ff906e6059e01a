"""S5: seconds that `toolkit run` adds to the same command typed by hand, on a warm cluster."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

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


def main() -> None:
    hosts_file = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(hosts_file).is_file():
        print("S5  skipped: no practice cluster; toolkit lab up, then set TOOLKIT_HOSTS")
        return
    data = yaml.safe_load(Path(hosts_file).read_text())
    subprocess.run([TOOLKIT, "up"], check=True, capture_output=True)
    main_name = data.get("main") or next(iter(data["hosts"]))
    host = data["hosts"][main_name]
    options = ["-i", host["identity_file"], "-o", f"UserKnownHostsFile={data['known_hosts']}"]
    ssh = ["ssh", *options, "-o", "BatchMode=yes", f"{host['user']}@{host['address']}"]
    container = f"toolkit-{data['cluster']}-main"
    explained = subprocess.run([TOOLKIT, "network", "explain", "--json"], check=True, capture_output=True)
    networks = ",".join(json.loads(explained.stdout)["networks"])
    print(f"S5  {len(data['hosts'])} hosts, one rank each, medians of {ROUNDS} interleaved rounds")
    ranks = sum(int((each or {}).get("slots", 1)) for each in data["hosts"].values())
    where = ",".join(f"{name}:{(each or {}).get('slots', 1)}" for name, each in data["hosts"].items())
    for launcher in LAUNCHERS:
        typed = [
            *("docker", "exec", "-e", "OMPI_MCA_plm_rsh_agent=/etc/mpi/kubexec.sh", container, launcher),
            *(
                ("--mpi", "--disable-cache", "--network-interfaces", networks)
                if launcher == "horovodrun"
                else ("--mca", "btl_tcp_if_include", networks, "--mca", "oob_tcp_if_include", networks)
            ),
            *("-np", str(ranks), "-H", where, "true"),
        ]
        ours = [TOOLKIT, "run", "--launcher", launcher, "--no-check", "--workdir", "examples", "--", "true"]
        rows: dict[str, list[float]] = {"interpreter": [], "ssh": [], "typed": [], "ours": []}
        for _ in range(ROUNDS):
            rows["interpreter"].append(timed([TOOLKIT, "--version"]))
            rows["ssh"].append(timed([*ssh, "true"]))
            rows["typed"].append(timed([*ssh, *typed]))
            rows["ours"].append(timed(ours))
        middle = {name: statistics.median(seconds) for name, seconds in rows.items()}
        by_hand = middle["typed"] - middle["ssh"]
        added = middle["ours"] - by_hand - middle["interpreter"] - middle["ssh"]
        print(f"  {launcher}")
        print(f"    interpreter start (toolkit --version)        {middle['interpreter']:5.2f} s")
        print(f"    ssh connection (ssh HOST true)               {middle['ssh']:5.2f} s")
        print(f"    docker exec … {launcher:<12} typed on main    {by_hand:5.2f} s")
        spread = f"{min(rows['ours']):.2f} to {max(rows['ours']):.2f}"
        print(f"    toolkit run                                  {middle['ours']:5.2f} s   ({spread})")
        print(f"    added                                        {added:5.2f} s   (target 0.3)")


if __name__ == "__main__":
    main()
