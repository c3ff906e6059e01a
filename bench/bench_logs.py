"""The log path under load: ranks that print much, and what that costs them, main and the log.

    python bench/bench_logs.py
    python bench/bench_logs.py --ranks 64 --rate 10 --kinds text,long,binary,bars,mixed

One host on this machine, without SSH and containers: the real supervisor, lease, rank programs and follower,
and `job.spawn` as the launcher, whose ranks share one pipe. A step of a rank waits a tenth of a second, in
place of training, and then prints the rank's share of the rate. "slower" compares the time of the steps with
that of the same ranks that print to /dev/null, in pairs: of the median rank, and of the slowest rank. "noise"
is the slowest rank without output against the median one. Memory and CPU are those of the supervisor.

text: lines of 100 bytes. long: lines of 1 MB. binary: random bytes. bars: progress bars of 80 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.unit.container_world import JOB, World, host_entry

STEP_S = 0.1
# Writes what it prints to a file as well, and how long its steps took.
RANK = r"""
import os, random, sys, time
kinds, steps, share, wait = sys.argv[1].split(","), *map(float, sys.argv[2:5])
folder, heard = sys.argv[5:]
rank, steps, share = int(os.environ["RANK"]), int(steps), int(share)
kind = kinds[rank % len(kinds)]
noise = random.Random(rank)
def text(n):
    return b"".join(b"%06d %s\n" % (i, b"x" * 92) for i in range(n // 100 + 1))
def long(n):
    return b"y" * (n - 1) + b"\n"
def bars(n):
    return b"".join(b"\r%3d%% %s" % (i % 100, b"#" * 74) for i in range(n // 80 + 1))
def binary(n):
    return noise.randbytes(n)
made = {"text": text, "long": long, "bars": bars, "binary": binary}[kind]
every = max(1, 1_000_000 // share) if kind == "long" else 1
data = made(share * every)
kept = open(f"{folder}/{rank}.{kind}", "wb")
out = 1 if heard else os.open(os.devnull, os.O_WRONLY)
deadline = time.monotonic() + 60
while not os.path.exists(os.path.dirname(sys.argv[0]) + "/go") and time.monotonic() < deadline:
    time.sleep(0.01)
begun, printed = time.monotonic(), 0.0
for step in range(steps):
    time.sleep(wait)
    if (step + rank) % every == 0:
        if kind == "binary":
            data = made(share)
        kept.write(data)
        start, rest = time.monotonic(), data
        while rest:
            rest = rest[os.write(out, rest):]
        printed += time.monotonic() - start
took = time.monotonic() - begun
with open(f"{os.path.dirname(sys.argv[0])}/times.{rank}", "w") as file:
    file.write(f"{took} {printed}")
time.sleep(2)  # the end of 64 programs must not delay a rank that is still in its last step
"""


@dataclass
class Result:
    """Seconds of the steps of each rank, and what the supervisor used."""

    took: list[float]
    memory: float = 0.0
    cpu: float = 0.0
    lost: int = 0
    logged: int = 0


def run(options: argparse.Namespace, kinds: str, heard: bool, sized: int = 1 << 40) -> Result:
    """Run a job whose ranks print to the job, or to /dev/null."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        world = World(root / "root")
        try:
            return _run(options, kinds, heard, sized, root, world)
        finally:
            world.close()


def _run(
    options: argparse.Namespace, kinds: str, heard: bool, sized: int, root: Path, world: World
) -> Result:
    (root / "rank.py").write_text(RANK)
    folder = root / "printed"
    folder.mkdir()
    ranks, share = options.ranks, int(options.rate * 1e6 * STEP_S / options.ranks)
    steps = str(int(options.seconds / STEP_S))
    words = [kinds, steps, str(share), str(STEP_S), str(folder), "heard" * heard]
    job = world.job(
        world_size=ranks,
        hosts=[host_entry(slots=ranks, taken=list(range(ranks)))],
        command=[sys.executable, str(root / "rank.py"), *words],
        log_bytes=sized,
        launches=[
            {
                "host": "gpu1",
                "argv": [
                    *(sys.executable, str(world.root / "inside" / "run.py"), "job.spawn", str(ranks), "0"),
                    *world.rank_argv(),
                ],
                "env": {"WORLD_SIZE": str(ranks)},
            }
        ],
    )
    supervisor = world.start("job.supervisor", JOB)
    follower = world.start("logs.follow", JOB, "--fold")
    assert follower.stdout is not None
    shown = follower.stdout
    reader = threading.Thread(target=lambda: [None for _ in iter(lambda: shown.read(1 << 16), b"")])
    reader.start()
    deadline = time.monotonic() + 120
    while len(list(job.glob("logs/rank-*.run"))) < ranks:
        assert time.monotonic() < deadline, f"not all of {ranks} ranks have started"
        time.sleep(0.05)
    time.sleep(2.0)  # until the ranks wait for the file
    result = Result([])
    before = _used(supervisor.pid)
    (root / "go").touch()
    while supervisor.poll() is None:
        if used := _used(supervisor.pid):
            result.memory, result.cpu = max(result.memory, used[0]), used[1] - (before or used)[1]
        time.sleep(0.1)
    reader.join()
    status = json.loads((job / "status.json").read_text())
    assert status["state"] == "succeeded", status
    result.took = [float((root / f"times.{rank}").read_text().split()[0]) for rank in range(ranks)]
    result.logged = sum(file.stat().st_size for file in job.glob("output.log*") if "times" not in file.name)
    if heard and sized == 1 << 40:
        result.lost = _lost(job, folder)
    return result


def _used(pid: int) -> tuple[float, float] | None:
    """Return the peak memory of a process in MiB and its CPU seconds."""
    try:
        peak = Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if not peak:
        return None
    return int(peak[0]) / 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _lost(job: Path, folder: Path) -> int:
    """Return how many ranks miss output: in their own log, or text and long lines in the merged log."""
    lost = 0
    merged: dict[str, list[bytes]] = {}
    for line in (job / "output.log").read_bytes().split(b"\n"):
        name, _, text = line.partition(b"] ")
        merged.setdefault(name.decode(errors="replace").rpartition(" ")[2], []).append(text)
    for file in folder.iterdir():
        rank, kind = file.name.split(".")
        printed = file.read_bytes()
        whole = (job / "logs" / f"rank-{rank}.log").read_bytes() == printed
        if kind in ("text", "long"):
            whole &= b"".join(merged.get(rank, [])) == printed.replace(b"\n", b"")
        lost += not whole
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rate", type=float, default=10.0, help="MB/s of all ranks together")
    parser.add_argument("--seconds", type=float, default=10.0, help="nominal duration of a job")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--kinds", default="text,long,binary,bars,mixed")
    options = parser.parse_args()
    print(f"log path: {options.ranks} ranks, {options.rate:g} MB/s in total, {options.pairs} pairs")
    print(
        f"    {'output':<8}{'silent':>9}{'printing':>10}{'slower':>9}{'slowest':>9}{'noise':>8}"
        f"{'lost':>6}{'MiB':>7}{'CPU':>7}"
    )
    for kind in options.kinds.split(","):
        kinds = "text,long,binary,bars" if kind == "mixed" else kind
        pairs = [(run(options, kinds, False), run(options, kinds, True)) for _ in range(options.pairs)]
        # Of the ranks of one job the slowest; its peers wait for it in a training step.
        typical = [statistics.median(b.took) / statistics.median(a.took) - 1 for a, b in pairs]
        worst = max(max(b.took) / statistics.median(a.took) - 1 for a, b in pairs)
        noise = max(max(a.took) / statistics.median(a.took) - 1 for a, _ in pairs)
        silent = statistics.median(statistics.median(a.took) for a, _ in pairs)
        printing = statistics.median(statistics.median(b.took) for _, b in pairs)
        cpu = statistics.median(b.cpu / max(b.took) for _, b in pairs)
        lost, memory = sum(b.lost for _, b in pairs), max(b.memory for _, b in pairs)
        print(
            f"    {kind:<8}{silent:>7.2f} s{printing:>8.2f} s{100 * statistics.median(typical):>7.1f} %"
            f"{100 * worst:>7.1f} %{100 * noise:>6.1f} %{lost:>6}{memory:>7.1f}"
            f"{100 * cpu:>5.0f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
