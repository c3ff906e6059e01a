"""T1: all-reduce in the cluster's containers against the same processes without containers.

Needs a practice cluster of two hosts or more, up, and TOOLKIT_HOSTS:

    toolkit lab up --count 2 && export TOOLKIT_HOSTS=… && toolkit up
    python bench/bench_containers.py                # some five minutes
    python bench/bench_containers.py --pairs 3

Without containers: the image's files are unpacked on both hosts, and the same program runs there by chroot,
as a process of the host itself. Gloo does the all-reduce on both sides, over links without a limit. Jobs in
turn; each tells medians of about a second per size; the ratio is of medians over all pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import yaml
from bench_allreduce import ROUNDS, measure
from lab_links import links_of

from toolkit.api.connection import Connection
from toolkit.network.measured import shown_bytes, shown_time

SIZES = (1024, 16_777_216)
SECONDS = 1.0
BARE = "/srv/bare"
PORT = 29_990

UNPACK = f"""
set -e; mkdir -p {BARE}; id=$(docker create "$1"); trap 'docker rm "$id" >/dev/null' EXIT
docker export "$id" | tar -x -C {BARE}
mount -t proc proc {BARE}/proc; mount --bind /dev {BARE}/dev; cat >{BARE}/rounds.py
"""
REMOVE = f"umount {BARE}/proc {BARE}/dev; rm -rf --one-file-system {BARE}"


def on(container: str, script: str, *arguments: str, text: str = "") -> str:
    argv = ["docker", "exec", "-i", container, "sh", "-c", script, "sh", *arguments]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout


def image_env(container: str, image: str) -> dict[str, str]:
    """What the image sets for every process."""
    ask = "docker image inspect --format '{{range .Config.Env}}{{println .}}{{end}}' \"$1\""
    lines = on(container, ask, image).split("\n")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def bare(links: list[tuple[str, str]], image: dict[str, str], sizes: list[int]) -> dict[int, float]:
    """Run one job without containers; return its median seconds by size."""
    ranks = []
    for rank, (container, address) in enumerate(links):
        device = on(container, f"ip -o -4 addr | awk '/ {address}\\// {{print $2}}'").strip()
        env = {
            **{"RANK": rank, "WORLD_SIZE": len(links), "MASTER_ADDR": links[0][1], "MASTER_PORT": PORT},
            **{"GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": 1, **image},
        }
        words = ["chroot", BARE, "env", "-i", *(f"{name}={value}" for name, value in env.items())]
        words += ["python3", "/rounds.py", "gloo", f"{SECONDS:g}", *map(str, sizes)]
        ranks.append(
            subprocess.Popen(["docker", "exec", container, *words], stdout=subprocess.PIPE, text=True)
        )
    texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("a rank without a container failed")
    return {int(size): seconds for size, seconds in json.loads(texts[0].partition("rounds ")[2]).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    hosts_file = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(hosts_file).is_file():
        print("T1  skipped: no practice cluster; toolkit lab up --count 2, set TOOLKIT_HOSTS, toolkit up")
        return
    data = yaml.safe_load(Path(hosts_file).read_text())
    names, links = tuple(data["hosts"])[:2], links_of(data)[:2]
    times: dict[str, dict[int, list[float]]] = {way: {size: [] for size in SIZES} for way in ("in", "bare")}
    try:
        for container, _ in links:
            on(container, UNPACK, data["image"], text=ROUNDS.read_text())
        with Connection(hosts_file).connect() as session:
            env = image_env(links[0][0], data["image"])
            for _ in range(options.pairs):
                for size, seconds in bare(links, env, list(SIZES)).items():
                    times["bare"][size].append(seconds)
                for size, seconds in measure(
                    session, names, False, list(SIZES), "gloo", SECONDS, "torchrun"
                ).items():
                    times["in"][size].append(seconds)
    finally:
        for container, _ in links:
            subprocess.run(["docker", "exec", container, "sh", "-c", REMOVE], check=False)
    print(f"T1  all-reduce between 2 hosts (Gloo), {options.pairs} pairs of jobs in turn")
    heads = ("size", "bare", "spread", "container", "spread", "ratio")
    print(" ".join(f"{head:>17}" for head in heads))
    for size in SIZES:
        mine, other = times["in"][size], times["bare"][size]
        inside, outside = statistics.median(mine), statistics.median(other)
        cells = (
            shown_bytes(size),
            *(shown_time(outside), f"{shown_time(min(other))}-{shown_time(max(other))}"),
            *(shown_time(inside), f"{shown_time(min(mine))}-{shown_time(max(mine))}"),
            f"{inside / outside:.3f}",
        )
        print(" ".join(f"{text:>17}" for text in cells))
    large = max(SIZES)
    bandwidth = statistics.median(times["bare"][large]) / statistics.median(times["in"][large])
    small = min(SIZES)
    late = statistics.median(times["in"][small]) / statistics.median(times["bare"][small]) - 1
    print(f"    bus bandwidth in containers: {bandwidth:.1%} of without (target: 99 %)")
    print(f"    time of small ones: {late:+.1%} (target: +2 %)")


if __name__ == "__main__":
    main()
