"""S2 and S3: SSH connections and duration of an `up` that changes nothing, on a practice cluster."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

ROUNDS = int(os.environ.get("ROUNDS", "20"))
TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
# If it is set, every command compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def logins(container: str) -> int:
    argv = ["docker", "exec", container, "grep", "-c", "Accepted publickey", "/var/log/sshd.log"]
    return int(subprocess.run(argv, capture_output=True, text=True, check=False).stdout or 0)


def main() -> None:
    hosts_file = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(hosts_file).is_file():
        print("S2, S3  skipped: no practice cluster; toolkit lab up, then set TOOLKIT_HOSTS")
        return
    data = yaml.safe_load(Path(hosts_file).read_text())
    lab = Path(hosts_file).parent.name
    subprocess.run([TOOLKIT, "up"], check=True, stderr=subprocess.DEVNULL)
    names = {host: f"toolkit-lab-{lab}-{host}" for host in data["hosts"]}

    def up() -> float:
        start = time.perf_counter()
        done = subprocess.run([TOOLKIT, "up", "--json"], check=True, capture_output=True)
        assert json.loads(done.stdout)["changes"] == 0
        return time.perf_counter() - start

    def ssh(host: dict[str, str]) -> None:
        target = f"{host['user']}@{host['address']}"
        options = ["-i", host["identity_file"], "-o", f"UserKnownHostsFile={data['known_hosts']}"]
        argv = ["ssh", *options, "-o", "BatchMode=yes", target, "docker", "ps"]
        subprocess.run(argv, check=True, capture_output=True)

    def plain() -> float:
        start = time.perf_counter()
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(ssh, data["hosts"].values()))
        return time.perf_counter() - start

    before = {host: logins(container) for host, container in names.items()}
    up()
    used = {host: logins(container) - before[host] for host, container in names.items()}
    pairs = [(plain(), up()) for _ in range(ROUNDS)]
    ratios = sorted(b / a for a, b in pairs)
    print(f"S2  ssh connections during one `up`, by host: {used} (target 1)")
    print(f"S3  {len(names)} hosts, median of {ROUNDS} interleaved pairs, 0 changes")
    print(f"    ssh HOST docker ps, all at once   {statistics.median(a for a, _ in pairs):.2f} s")
    print(f"    toolkit up                        {statistics.median(b for _, b in pairs):.2f} s")
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(
        f"    ratio                             {statistics.median(ratios):.2f}  ({spread}; target 1.5 at 8)"
    )


if __name__ == "__main__":
    main()
