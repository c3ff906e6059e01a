"""T2: all-reduce with Open MPI's defaults and with the result of `toolkit network tune`, on limited links.

Needs a practice cluster, up, and TOOLKIT_HOSTS:

    toolkit lab up --count 8 && export TOOLKIT_HOSTS=… && toolkit up
    python bench/bench_allreduce.py                                      # half an hour
    python bench/bench_allreduce.py --rates 100 --hosts 4 --pairs 3      # one cell

For each rate and number of hosts the network is tuned; then pairs of jobs follow, one with the defaults of
Open MPI and one tuned. Shares are of the wire limit: 2 (n - 1) / n of the bytes at what the limited link
carries as payload (see bench/lab_links.py). The median over all jobs, of each job's median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import yaml
from lab_links import limited, links_of, payload

from toolkit.api.connection import Connection
from toolkit.bench.tune import tune
from toolkit.cluster.session import Session
from toolkit.jobs.control import run_to_completion
from toolkit.jobs.make_job import plan_request
from toolkit.jobs.request import Request
from toolkit.network.measured import shown_bytes, shown_time
from toolkit.network.tuning import Tuning

ROUNDS = Path(__file__).with_name("allreduce_rounds.py")
SIZES = (65_536, 1_048_576, 4_194_304, 16_777_216)
LARGE, TARGET = 4_194_304, 0.95
LONGEST = 8.0  # seconds of one all-reduce at the wire limit; larger ones are left out


def measure(
    session: Session,
    only: tuple[str, ...],
    tuned: bool,
    sizes: list[int],
    engine: str = "mpi",
    each: float = 0.2,
    launcher: str = "mpirun",
) -> dict[int, float]:
    """Run one job that gives about ``each`` seconds to every size; return its median seconds by size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ROUNDS.name).write_bytes(ROUNDS.read_bytes())
        words = (ROUNDS.name, engine, f"{each:g}", *map(str, sizes))
        request = Request(words=words, launcher=launcher, workdir=folder, only=only, tuned=tuned)
        planned = plan_request(session, request)
        job = planned.job
        text = run_to_completion(session, planned.plan, job.id, lambda event: None)
    found = [line.partition("rounds ")[2] for line in text.splitlines() if "] rounds {" in line]
    if not found:
        sys.exit(f"job {job.id} failed:\n{text[-2000:]}")
    return {int(size): seconds for size, seconds in json.loads(found[0]).items()}


def cell(hosts_file: str, names: tuple[str, ...], mbit: int, pairs: int) -> list[tuple[float, float, int]]:
    """Measure one rate on these hosts and print rows; return shares of the wire, plain and tuned, by size."""
    count = len(names)

    def limit(size: int) -> float:
        return 2 * (count - 1) / count * size * 8 / payload(mbit)

    sizes = [size for size in SIZES if limit(size) < LONGEST]
    with Connection(hosts_file).connect() as session:
        start = time.monotonic()
        tuning = tune(session, "mpi", 8.0, lambda event: None, names)
        tuned_in = time.monotonic() - start
    times: dict[bool, dict[int, list[float]]] = {way: {size: [] for size in sizes} for way in (False, True)}
    # What is kept on main is read when a session begins.
    with Connection(hosts_file).connect() as session:
        for _ in range(pairs):
            for way in (False, True):
                for size, seconds in measure(session, names, way, sizes).items():
                    times[way][size].append(seconds)
    rows = []
    for size in sizes:
        plain, tuned = (statistics.median(times[way][size]) for way in (False, True))
        spread = [
            f"{limit(size) / max(t):.0%}-{limit(size) / min(t):.0%}"
            for t in (times[False][size], times[True][size])
        ]
        cells = (
            *(str(mbit), str(count), shown_bytes(size), shown_time(limit(size))),
            *(shown_time(plain), f"{limit(size) / plain:.0%}", spread[0]),
            *(shown_time(tuned), f"{limit(size) / tuned:.0%}", spread[1], f"{plain / tuned:.2f}"),
        )
        print(" ".join(f"{text:>9}" for text in cells), flush=True)
        rows.append((limit(size) / plain, limit(size) / tuned, size))
    print(f"#   tuned in {tuned_in:.1f} s: {said(tuning)}", flush=True)
    return rows


def said(tuning: Tuning) -> str:
    env = ", ".join(f"{name.removeprefix('OMPI_MCA_')}={value}" for name, value in tuning.env)
    rules = ", ".join(f"{rule.algorithm} from {shown_bytes(rule.size)} on" for rule in tuning.rules)
    return "; ".join(part for part in (env, rules) if part) or "nothing changed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", default="10,100,1000", help="Mb/s")
    parser.add_argument("--hosts", default="2,3,4,8")
    parser.add_argument("--pairs", type=int, default=7, help="jobs of each kind")
    options = parser.parse_args()
    hosts_file = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(hosts_file).is_file():
        print("T2  skipped: no practice cluster; toolkit lab up --count 8, set TOOLKIT_HOSTS, toolkit up")
        return
    data = yaml.safe_load(Path(hosts_file).read_text())
    names = tuple(data["hosts"])
    heads = (
        "Mb/s",
        "hosts",
        "size",
        "limit",
        "plain",
        "of wire",
        "spread",
        "tuned",
        "of wire",
        "spread",
        "ratio",
    )
    print("T2  one all-reduce, Open MPI's defaults (plain) and tuned")
    print(" ".join(f"{head:>9}" for head in heads))
    shares: list[tuple[float, float, int]] = []
    with limited(links_of(data), [int(word) for word in options.rates.split(",")]) as rates:
        for mbit in rates:
            for count in (int(word) for word in options.hosts.split(",")):
                if count > len(names):
                    print(f"#   {count} hosts: the practice cluster has {len(names)}")
                    continue
                shares += cell(hosts_file, names[:count], mbit, options.pairs)
    large = [tuned for _, tuned, size in shares if size >= LARGE]
    if large:
        reached = sum(share >= TARGET for share in large)
        print(
            f"    tuned, 4 MiB and more: least {min(large):.0%}, {reached} of {len(large)} reach {TARGET:.0%}"
        )
    slower = sum(tuned < plain * 0.97 for plain, tuned, _ in shares)
    print(f"    tuned slower than plain by more than 3 %: {slower} of {len(shares)}")


if __name__ == "__main__":
    main()
