"""S7: parse hosts.yaml, plan `up` and print the plan, for 10 to 10,000 hosts.

python bench/bench_planning.py
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.unit.cluster_world import facts
from toolkit.cluster.layout import Observed, make_layout
from toolkit.core.host_programs import container_programs
from toolkit.hostsfile.parse import parse_inventory
from toolkit.lifecycle.up import plan_up
from toolkit.plan.show import plan_text

ROUNDS = 3


def timed(count: int) -> tuple[float, float, float]:
    """Return the seconds for parsing, planning and printing."""
    names = {
        f"gpu{number}": f"10.{number // 62500}.{number // 250 % 250}.{number % 250 + 1}"
        for number in range(count)
    }
    rows = "".join(
        f"  {name}: {{address: {address}, user: alice, data_address: {address}, slots: 8}}\n"
        for name, address in names.items()
    )
    text = f"cluster: demo\nimage: toolkit:cpu\nhosts:\n{rows}"
    said = {name: facts(name, address) for name, address in names.items()}
    programs = container_programs()
    start = time.perf_counter()
    inventory = parse_inventory(text, "hosts.yaml")
    read = time.perf_counter()
    plan = plan_up(make_layout(inventory, Observed(said)), programs)
    planned = time.perf_counter()
    plan_text(plan)
    return read - start, planned - read, time.perf_counter() - planned


def main() -> None:
    gc.set_threshold(50_000)  # as the command does
    print(
        f"S7  hosts   read      plan      print     all       all per host   (median of {ROUNDS};"
        " target 1 s at 1,000)"
    )
    for count in (10, 100, 1000, 10_000):
        parts = [timed(count) for _ in range(ROUNDS if count < 10_000 else 1)]
        read, plan, shown = (statistics.median(one) for one in zip(*parts, strict=True))
        whole = read + plan + shown
        print(
            f"    {count:<6}  {read:<8.3f}  {plan:<8.3f}  {shown:<8.3f}  {whole:<8.3f}"
            f"  {1000 * whole / count:.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
