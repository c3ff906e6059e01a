"""Try container engine x image store x user x transport x launcher; write docs/internals/matrix.md.

usage: bench_matrix.py [--lab NAME] [--keep-lab] [--only ENGINE] FILE
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml
from matrix_cluster import SCRIPTS, TOOLKIT, Cluster, Failed, Host, run

# Two hosts of each kind; a mixed cluster has one of each, so that all three meet in one job.
ENGINES = ("old", "new", "containerd", "old", "new", "containerd")
CLUSTERS = {"old": (1, 4), "new": (2, 5), "containerd": (3, 6), "mixed": (1, 2, 3)}
USERS = ("trainer", "root")


@dataclass
class Row:
    """One row: one way to start one cluster, with the steps in order and their results."""

    engine: str
    user: str
    way: str
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(cell == "ok" for cell in self.cells.values())

    @property
    def failures(self) -> str:
        failed = [f"{HEADS[column]}: {cell}" for column, cell in self.cells.items() if cell != "ok"]
        return ", ".join(failed) or "none"


COLUMNS = ("up", "smoke", *SCRIPTS, "up again", "down")
# Headings of the columns on the page.
HEADS = {column: column for column in COLUMNS} | {"up": "start", "up again": "second up"}


def fill(row: Row, cluster: Cluster, start: Callable[[], None], log: Callable[[str], None]) -> None:
    """Run all steps in order; after a failed start, run only `down`."""
    steps: dict[str, Callable[[], None]] = {"up": start, "smoke": cluster.smoke}
    for launcher in SCRIPTS:
        steps[launcher] = lambda launcher=launcher: cluster.job(launcher)  # type: ignore[misc]
    steps |= {"up again": cluster.up_again, "down": cluster.down}
    for column in COLUMNS:
        if row.cells.get("up", "ok") != "ok" and column != "down":
            row.cells[column] = "not run"
            continue
        begin = time.monotonic()
        try:
            steps[column]()
            row.cells[column] = "ok"
        except (Failed, subprocess.TimeoutExpired) as error:
            row.cells[column] = "FAILED"
            log(f"      {error}")
        log(f"    {row.cells[column]:7} {column} ({time.monotonic() - begin:.1f} s)")


def look(lab: Path, name: str) -> list[Host]:
    """Query the engine of every practice host, and allow root to log in beside the user of the lab."""
    hosts = []
    for host, about in yaml.safe_load((lab / "hosts.yaml").read_text())["hosts"].items():
        found = Host(host, f"toolkit-lab-{name}-{host}", about["address"])
        inside = ("docker", "exec", found.container)
        info = json.loads(run(*inside, "docker", "info", "--format", "{{json .}}"))
        found.engine = info["ServerVersion"].partition("+")[0]
        containerd = "io.containerd.snapshotter" in str(info["DriverStatus"])
        found.store = "containerd" if containerd else info["Driver"]
        for words in (("docker", "compose"), ("docker-compose",)):
            version = run(*inside, *words, "version", "--short", check=False).strip()
            if version:
                found.words, found.compose = words, f"{' '.join(words)} {version.partition('-')[0]}"
                break
        copy = "install -d -m 700 /root/.ssh && install -m 600 /home/trainer/.ssh/authorized_keys /root/.ssh/"
        run(*inside, "sh", "-c", copy)
        hosts.append(found)
    return hosts


def rows(lab: Path, hosts: list[Host], only: str, log: Callable[[str], None]) -> Iterator[Row]:
    for kind, numbers in CLUSTERS.items():
        if only not in ("", kind):
            continue
        own = [hosts[n - 1] for n in numbers]
        engine = ", ".join(f"{h.engine} {h.store}" for h in own)
        engine = engine if kind == "mixed" else f"{own[0].engine} {own[0].store}"
        composes = " and ".join(dict.fromkeys(f"`{h.compose}`" for h in own))
        for user in USERS:
            with tempfile.TemporaryDirectory() as folder:
                cluster = Cluster(lab, Path(folder), f"matrix-{kind}-{user}", own, user)
                ways = {
                    "`toolkit up`": cluster.by_toolkit,
                    composes: cluster.by_compose,
                    "`docker run` scripts": cluster.by_script,
                }
                for way, start in ways.items():
                    row = Row(engine, "root" if user == "root" else "ordinary", way)
                    log(f"  {engine}, {user}, {way}")
                    fill(row, cluster, start, log)
                    yield row


def document(found: list[Row], outer: dict[str, Any], version: str, command: str, when: datetime) -> str:
    """Return the page: versions, steps, and one line for each way to start a cluster."""
    system = f"{outer['OperatingSystem']}, Docker {outer['ServerVersion']}, cgroup v{outer['CgroupVersion']}"
    good = sum(row.ok for row in found)
    head = ("Docker version and image store", "SSH user", "Containers started by", "Failed tests")
    lines = [
        "# Combinations of engines and launchers",
        "",
        f"`{command}` ran the tests on this page on {when:%Y-%m-%d} with toolkit {version}.",
        f"The hosts were practice hosts on one machine with {system} and {outer['Architecture']}.",
        "",
        "Each tested cluster has two hosts with the same Docker version and image store, "
        "or three hosts that differ in Docker version or image store.",
        "Each job has one rank per host.",
        "For Compose and `docker run`, `toolkit up --prepare` prepares the hosts, "
        "and `toolkit render` creates the files.",
        "",
        "The tests are:",
        "",
        "- **start**: The containers start.",
        "- **smoke**: `toolkit smoke` succeeds.",
        "- **horovodrun, mpirun, torchrun**: With each of these three launchers, "
        "a job that runs an all-reduce succeeds.",
        "- **second up**: A second `toolkit up` changes no container and no file.",
        "- **down**: After `toolkit down`, no container, volume or network of the cluster exists.",
        "",
        f"Every test succeeded in {good} of {len(found)} combinations of hosts, SSH user and start method.",
        "",
        "| " + " | ".join(head) + " |",
        "| " + " | ".join("---" for _ in head) + " |",
    ]
    alike: dict[tuple[str, str, str], list[str]] = {}
    for row in found:
        alike.setdefault((row.engine, row.way, row.failures), []).append(row.user)
    for (engine, way, failures), users in alike.items():
        lines.append(f"| {engine} | {', '.join(users)} | {way} | {failures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", default="matrix", metavar="NAME")
    parser.add_argument("--keep-lab", action="store_true")
    parser.add_argument("--only", default="", choices=("", *CLUSTERS))
    parser.add_argument("file", nargs="?", type=Path)
    args = parser.parse_args()
    if args.file is None:
        print("matrix  skipped: takes 30 minutes; python bench/bench_matrix.py docs/internals/matrix.md")
        return
    start = time.monotonic()

    def log(text: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s {text}", file=sys.stderr, flush=True)

    lab = Path(".lab", args.lab).resolve()
    about = ("--name", args.lab, "--count", str(len(ENGINES)), "--engine", ",".join(ENGINES))
    try:
        run(TOOLKIT, "lab", "up", *about, "--folder", str(lab))
        hosts = look(lab, args.lab)
        run(TOOLKIT, "image", "send", "--hosts", str(lab / "hosts.yaml"))
        log("all hosts have the image")
        found = list(rows(lab, hosts, args.only, log))
    finally:
        if not args.keep_lab:
            subprocess.run([TOOLKIT, "lab", "down", "--name", args.lab], capture_output=True, check=False)
    outer = json.loads(run("docker", "info", "--format", "{{json .}}"))
    version = json.loads(
        run(sys.executable, "-c", "import json, toolkit; print(json.dumps(toolkit.__version__))")
    )
    command = "python bench/bench_matrix.py docs/internals/matrix.md"
    args.file.write_text(document(found, outer, version, command, datetime.now(timezone.utc)))
    log(f"{args.file}: {sum(row.ok for row in found)} of {len(found)} lines ok")
    sys.exit(not all(row.ok for row in found))


if __name__ == "__main__":
    main()
