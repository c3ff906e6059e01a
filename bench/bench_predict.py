"""T3: predicted and measured seconds per step: 12 sizes of model, links of 10, 100, 1000 Mb/s, 2 to 4 hosts.

Needs a practice cluster of as many hosts, up, and TOOLKIT_HOSTS:

    toolkit lab up --count 4 && export TOOLKIT_HOSTS=… && toolkit up
    python bench/bench_predict.py                                    # all of it: most of an hour
    python bench/bench_predict.py --rates 100 --hosts 2 --sizes 4    # one cell

Each host's link is limited as bench/lab_links.py says. Computing is a sleep of known length, half as long as
the gradients are predicted to travel. Predicted twice: from the rate alone, and from four or five all-reduces
measured first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from lab_links import limited, links_of, payload

from toolkit.network.cost import allreduce, fit_ring
from toolkit.network.links import INSIDE, LATENCY, OVERHEAD, Member, Network
from toolkit.network.measured import Point
from toolkit.predict.model import BUCKETS, Run, each_wire, fill, step, whole_wire

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
STEPS = Path(__file__).with_name("predict_steps.py")
# From LeNet-5 to ResNet-50, each 1.7 times the one before.
PARAMETERS = (61_706, 107e3, 185e3, 320e3, 554e3, 960e3, 1.66e6, 2.88e6, 4.98e6, 8.63e6, 14.9e6, 25_557_032)
POINTS = (65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
TARGET = 0.10


def measure(names: list[str], task: dict[str, Any]) -> dict[str, Any]:
    """Run predict_steps.py on these hosts and return what rank 0 printed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / STEPS.name).write_bytes(STEPS.read_bytes())
        only = [word for name in names for word in ("--only", name)]
        argv = [TOOLKIT, "run", "--launcher", "torchrun", "--workdir", folder, *only, STEPS.name]
        done = subprocess.run([*argv, json.dumps(task)], capture_output=True, text=True, check=False)
    found = [line.partition("bench ")[2] for line in done.stdout.splitlines() if "] bench {" in line]
    if done.returncode or not found:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(found[0])
    return measured


def cell(names: list[str], mbit: int, parameters: list[float]) -> list[tuple[str, ...]]:
    """Measure one rate on these hosts; return rows of the table."""
    members = tuple(Member(name, 1, payload(mbit), mbit * 1e6) for name in names)
    given = Network(members, LATENCY, OVERHEAD)
    runs = [fill(4 * round(count), BUCKETS["ddp"]) for count in parameters]

    def each(network: Network, buckets: Sequence[Run]) -> tuple[float, ...]:
        return each_wire(buckets, lambda b: allreduce("ring", b, network.slots, network.link, INSIDE))

    wires = [whole_wire(buckets, each(given, buckets)) for buckets in runs]
    computes = [min(5.0, max(0.02, wire / 2)) for wire in wires]
    repeats = [1 if wire > 5 else 3 if wire > 0.5 else 7 for wire in wires]
    sizes = [[int(size) for size, number in buckets for _ in range(number)] for buckets in runs]
    # No single all-reduce of more than about four seconds, unless the link is a slow one.
    points = [size for size in POINTS if each(given, [(size, 1)])[0] < 4]
    task = {"points": points, "steps": list(zip(computes, sizes, repeats, strict=True))}
    result = measure(names, task)
    fit = fit_ring([Point(p["bytes"], p["ranks"], p["seconds"]) for p in result["points"]])
    assert fit is not None
    fitted = Network(members, LATENCY, OVERHEAD, fits={(len(names), len(names)): fit})
    rows = []
    for count, buckets, compute, found in zip(parameters, runs, computes, result["steps"], strict=True):
        row = [f"{mbit}", f"{len(names)}", f"{count / 1e6:.2f}", f"{compute:.3f}"]
        for way in ("plain", "hidden"):
            row.append(f"{found[way]:.3f}")
            for network in (given, fitted):
                guess = step(compute, buckets, each(network, buckets))
                expected = guess.most if way == "plain" else guess.likely
                row += [f"{expected:.3f}", f"{expected / found[way] - 1:+.1%}"]
        rows.append(tuple(row))
        print(" ".join(f"{text:>9}" for text in row), flush=True)
    print(
        f"#   fitted: {fit.rate / 1e6:.1f} Mb/s of payload, {fit.message * 1e6:.0f} us a message", flush=True
    )
    return rows


def summary(rows: list[tuple[str, ...]]) -> None:
    for title, column in (
        ("nothing hidden, from the rate", 6),
        ("nothing hidden, from measured all-reduces", 8),
        ("hidden as DDP does, from the rate", 11),
        ("hidden as DDP does, from measured all-reduces", 13),
    ):
        errors = sorted(abs(float(row[column].rstrip("%"))) / 100 for row in rows)
        inside = sum(error <= TARGET for error in errors)
        print(
            f"    {title:<44} median {statistics.median(errors):6.1%}  worst {errors[-1]:6.1%}"
            f"  within 10 %: {inside} of {len(errors)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", default="10,100,1000", help="Mb/s")
    parser.add_argument("--hosts", default="2,3,4")
    parser.add_argument("--sizes", type=int, default=len(PARAMETERS), help="how many, spread over all")
    options = parser.parse_args()
    hosts_file = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(hosts_file).is_file():
        print("T3  skipped: no practice cluster; toolkit lab up --count 4, set TOOLKIT_HOSTS, toolkit up")
        return
    data = yaml.safe_load(Path(hosts_file).read_text())
    names = list(data["hosts"])
    counts = [int(word) for word in options.hosts.split(",")]
    last = len(PARAMETERS) - 1
    spread = max(1, options.sizes - 1)
    parameters = [PARAMETERS[round(i * last / spread)] for i in range(options.sizes)]
    ways = [[way, "rate", "off", "fitted", "off"] for way in ("plain", "hidden")]
    heads = ["Mb/s", "hosts", "params/M", "compute", *ways[0], *ways[1]]
    print("T3  seconds per step, measured and predicted (plain: nothing hidden; hidden: as DDP does)")
    print(" ".join(f"{head:>9}" for head in heads))
    rows: list[tuple[str, ...]] = []
    with limited(links_of(data), [int(word) for word in options.rates.split(",")]) as rates:
        for mbit in rates:
            for count in counts:
                if count > len(names):
                    print(f"#   {count} hosts: the practice cluster has {len(names)}")
                    continue
                rows += cell(names[:count], mbit, parameters)
    if rows:
        summary(rows)


if __name__ == "__main__":
    main()
