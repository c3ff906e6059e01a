"""How long `toolkit check` takes on practice hosts that hold the image, with and without the containers.

With ``--alarms 100``: so many times in a row on all hosts, and what it finds on them though they are well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROUNDS = 7
TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
# Where it is set, every command compiles all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def seconds(hosts: Path, *options: str) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        [TOOLKIT, "check", "--json", *options, "--hosts", str(hosts)], capture_output=True, check=False
    )
    taken = time.perf_counter() - start
    findings = json.loads(done.stdout)["findings"]
    # A figure with a fault in it would be that of a time limit.
    assert not [f for f in findings if f["verdict"] == "error"], findings
    return taken


def alarms(hosts: Path, rounds: int) -> None:
    found: list[str] = []
    for _ in range(rounds):
        done = subprocess.run(
            [TOOLKIT, "check", "--json", "--hosts", str(hosts)], capture_output=True, check=False
        )
        said = json.loads(done.stdout)["findings"]
        found += [f"{f['host']} {f['check']}" for f in said if f["verdict"] in ("error", "warning")]
    print(f"toolkit check, {rounds} times on hosts that are well: {len(found)} errors and warnings", *found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alarms", type=int, default=0, help="only count findings, in so many runs")
    options = parser.parse_args()
    given = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(given).is_file():
        print("toolkit check  skipped: no practice cluster; toolkit lab up --count 8, then set TOOLKIT_HOSTS")
        return
    if options.alarms:
        alarms(Path(given), options.alarms)
        return
    data = yaml.safe_load(Path(given).read_text())
    names = list(data["hosts"])
    subprocess.run([TOOLKIT, "image", "send"], check=True, stderr=subprocess.DEVNULL)
    load = os.getloadavg()[0]
    print(f"toolkit check, median of {ROUNDS}; {os.cpu_count()} cores here, load {load:.1f} before")
    print("    hosts   whole        --quick      (target 3 s at 8)")
    for count in [n for n in (2, 4, 8) if n <= len(names)]:
        part = Path(given).with_name(f"bench-{count}.yaml")
        chosen = {name: data["hosts"][name] for name in names[:count]}
        part.write_text(yaml.safe_dump({**data, "hosts": chosen, "main": names[0]}))
        try:
            pairs = [(seconds(part), seconds(part, "--quick")) for _ in range(ROUNDS)]
        finally:
            part.unlink()
        whole, quick = (sorted(column) for column in zip(*pairs, strict=True))
        print(
            f"    {count:<7} {statistics.median(whole):.2f} s       {statistics.median(quick):.2f} s"
            f"       (whole {whole[0]:.2f} to {whole[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
