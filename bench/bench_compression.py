"""I6: no chunk compressed, all compressed, and the choice of toolkit, at several link rates.

    toolkit lab up --count 2 && export TOOLKIT_HOSTS=…
    python bench/bench_compression.py

One layer goes to two hosts, from one to the other: either the first bytes of torch's largest library, which
become about half, or bytes that cannot be compressed. Seconds from the first byte until the last host had the
last one, the median of all rounds.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from bench_images import BURST, TOOLKIT, forget, hosts_file, limited_here
from lab_links import limited, links_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.e2e import images
from toolkit.api.connection import Connection
from toolkit.cluster.session import observe_layout
from toolkit.lifecycle.up import plan_image_send
from toolkit.transfer import feeder as relay_supply
from toolkit.transfer.feeder import Packer

MIB = 2**20
LIBRARY = "/opt/venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so"


class Never(Packer):
    def pack(self, chunk: bytes, worth: bool) -> tuple[bool, bytes]:
        return False, chunk


class Always(Packer):
    def pack(self, chunk: bytes, worth: bool) -> tuple[bool, bytes]:
        self._left = 0
        return super().pack(chunk, True)


WAYS: dict[str, Callable[[], Packer]] = {"none": Never, "always": Always, "ours": Packer}


def library(size: int) -> bytes:
    """Return the tar of one file: the first bytes of torch's largest library."""
    # As the same stretch of it: its beginning is names, which become a quarter.
    text = f"tail -c +{64 * MIB} {LIBRARY} | head -c {size}"
    argv = ["docker", "run", "--rm", "--network", "none", "toolkit:cpu", "sh", "-c", text]
    data = subprocess.run(argv, check=True, capture_output=True).stdout
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("made/library")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def seconds(hosts: Path, links: Sequence[tuple[str, str]], way: str) -> tuple[float, int]:
    """Send it; return the transfer's seconds and the bytes that each host got."""
    forget(links)
    relay_supply.Packer = WAYS[way]  # type: ignore[misc,assignment]
    with Connection(hosts).connect() as session:
        report = session.execute(plan_image_send(observe_layout(session)))
    found = [dict(o.amounts) for o in report.outcomes if "transfer_ms" in dict(o.amounts)]
    assert report.ok and len(found) == len(links), report.outcomes
    return max(a["transfer_ms"] for a in found) / 1000, max(a["bytes"] for a in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", default="10,100,1000", help="Mb/s")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    given = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(given).is_file():
        print("compression  skipped: no practice cluster; toolkit lab up --count 2, then set TOOLKIT_HOSTS")
        return
    data: dict[str, Any] = yaml.safe_load(Path(given).read_text())
    network, links = f"toolkit-lab-{data['cluster']}", links_of(data)[:2]
    base = images.base_parts()
    # Whose first layers are those of the images below.
    subprocess.run([TOOLKIT, "image", "send", "--hosts", given], check=True, stderr=subprocess.DEVNULL)
    part = None
    print(f"{'compression':<14}{'Mb/s':>6}{'MiB':>6}  {'none':>8}{'always':>8}{'ours':>8}  ours : best")
    try:
        with limited(links, [int(word) for word in options.rates.split(",")], BURST) as rates:
            for mbit, rate in zip(options.rates.split(","), rates, strict=True):
                size = min(128, max(8, int(mbit) * 64 // 100)) * MIB
                for kind, layer in (("library", library(size)), ("random", images.layer("random", size))):
                    made = images.make(base, f"{kind}{size}", [layer])
                    part = hosts_file(Path(given), data, len(links), made.tag)
                    with limited_here(network, rate):
                        runs: dict[str, list[float]] = {way: [] for way in WAYS}
                        for _ in range(options.rounds):
                            for way, found in runs.items():
                                found.append(seconds(part, links, way)[0])
                    none, always, ours = (statistics.median(found) for found in runs.values())
                    print(
                        f"{kind:<14}{mbit:>6}{size // MIB:>6}  {none:>8.2f}{always:>8.2f}{ours:>8.2f}"
                        f"  {ours / min(none, always):.2f}",
                        flush=True,
                    )
    finally:
        if part:
            part.unlink()
        forget(links)


if __name__ == "__main__":
    main()
