"""S1: duration of `toolkit --help`, of an empty typer program, and of `toolkit render`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAIRS = 20
# If it is set, every command compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
BARE = """
import typer
app = typer.Typer()
@app.command()
def hello() -> None: ...
app()
"""
HOSTS = "cluster: demo\nimage: toolkit:cpu\nhosts:\n  a: {address: 10.0.0.1}\n  b: {address: 10.0.0.2}\n"


def seconds(argv: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        toolkit = str(Path(sys.executable).with_name("toolkit"))
        ours = [toolkit, "--help"]
        theirs = [sys.executable, str(bare), "--help"]
        seconds(ours), seconds(theirs)  # both from a warm file cache
        pairs = [(seconds(theirs), seconds(ours)) for _ in range(PAIRS)]
        hosts = Path(folder) / "hosts.yaml"
        hosts.write_text(HOSTS)
        # The words say what hosts would be asked for.
        words = f"render slurm --hosts {hosts} --slots 2 --gpus 0 -- true"
        render = [seconds([toolkit, *words.split()]) for _ in range(PAIRS)]
    ratios = sorted(b / a for a, b in pairs)
    print(f"S1  median of {PAIRS} interleaved pairs, cold process")
    print(f"    bare typer app --help   {statistics.median(a for a, _ in pairs):.3f} s")
    print(f"    toolkit --help          {statistics.median(b for _, b in pairs):.3f} s")
    middle = statistics.median(ratios)
    print(f"    ratio                   {middle:.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f}; target 1.3)")
    print(f"    toolkit render slurm    {statistics.median(render):.3f} s  (target 0.35)")


if __name__ == "__main__":
    main()
