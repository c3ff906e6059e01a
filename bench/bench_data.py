"""Data sets to practice hosts, compared with `tar | ssh tar`; bytes after an interruption; unchanged sets.

    toolkit lab up --count 3 && export TOOLKIT_HOSTS=…
    python bench/bench_data.py
    python bench/bench_data.py --rate 0 --small 100000 --large 10000000000

Links are limited as in bench_images.py: on every host, and from this machine to all hosts together. The bound
is all bytes once over a link, (S + (N - 1) chunk) / payload. "sent" is what this machine's side of the
network counted, in units of S. The baseline is tar through ssh, all hosts at once, which is faster than
scp and rsync for small files, because tar sends no request per file. For "broken off", the command is
killed (SIGKILL) when the last host has a third; the row shows the next command. "again" is
the same command again, without a change.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from bench_images import BURST, CHUNK, TOOLKIT, inside, limited_here, sent_from_here, ssh_words
from lab_links import limited, links_of, payload

PLACE = "/home/trainer/bench-data"
ACCOUNT = "/home/trainer/.local/state/toolkit/.data/*/*"


def make_small(folder: Path, count: int) -> int:
    for number in range(count):
        path = folder / f"{number // 1000:03}" / f"{number:06}.jpg"
        if not number % 1000:
            path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(10_000))
    return 10_000 * count


def make_large(folder: Path, size: int) -> int:
    with (folder / "one.bin").open("wb") as file:
        for at in range(0, size, 2**24):
            file.write(os.urandom(min(2**24, size - at)))
    return size


def hosts_file(given: Path, data: dict[str, Any], source: Path) -> Path:
    path = given.with_name("bench-data.yaml")
    item = {"source": str(source), "path": PLACE, "target": "/data"}
    path.write_text(yaml.safe_dump({**data, "data": [item]}))
    return path


def forget(links: Sequence[tuple[str, str]]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda link: inside(link[0], f"rm -rf {PLACE} {ACCOUNT}; sync"), links))


def ours(hosts: Path) -> tuple[float, list[str]]:
    """Return the seconds of the command and its outcome for each host."""
    begun = time.perf_counter()
    argv = [TOOLKIT, "data", "send", "--json", "--hosts", str(hosts)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begun
    report = json.loads(done.stdout)
    assert report["ok"], done.stdout + done.stderr
    return took, [f"  {o['host']}: {o['seconds']:.1f} s, {o['detail']}" for o in report["outcomes"]]


def break_off(hosts: Path, last: str, third: int) -> None:
    argv = [TOOLKIT, "data", "send", "--hosts", str(hosts)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    ask = f"grep -hs '^{{\"whole\"' {ACCOUNT}/journal | tail -n 1"
    while process.poll() is None:
        said = inside(last, ask)
        if said and json.loads(said)["bytes"] > third:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while inside(last, "pgrep -f '[p]ython3 -I -S'"):
        time.sleep(0.1)


def person(given: Path, data: dict[str, Any], source: Path, at_once: bool) -> float:
    config = given.with_name("ssh_config")

    def pipe(name: str) -> None:
        words = ssh_words(data, name, config)
        line = f"tar -C {source} -c . | {words} 'mkdir -p {PLACE}; tar -C {PLACE} -x; sync'"
        subprocess.run(["sh", "-c", line], check=True, capture_output=True)

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(data["hosts"]) if at_once else 1) as pool:
        list(pool.map(pipe, data["hosts"]))
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="Mb/s; 0 for no limit")
    parser.add_argument("--small", type=int, default=10_000, help="files of 10 kB")
    parser.add_argument("--large", type=int, default=100_000_000, help="bytes of one file")
    parser.add_argument("--notes", action="store_true", help="what the command said of each host")
    parser.add_argument("--only-ours", action="store_true")
    options = parser.parse_args()
    given = Path(os.environ.get("TOOLKIT_HOSTS", ""))
    if not given.is_file():
        print("data  skipped: no practice cluster; toolkit lab up --count 3, then set TOOLKIT_HOSTS")
        return
    data = yaml.safe_load(given.read_text())
    network, links = f"toolkit-lab-{data['cluster']}", links_of(data)
    print(f"| set, {len(links)} hosts, {options.rate or 'no limit in'} Mb/s | way | seconds | sent / S |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, limited(links, [options.rate], BURST) as rates:
        next(rates)
        for title, make, amount in (
            (f"{options.small} files of 10 kB", make_small, options.small),
            (f"one file of {options.large / 1e6:.0f} MB", make_large, options.large),
        ):
            if not amount:
                continue
            source = Path(folder) / make.__name__
            source.mkdir()
            total = make(source, amount)
            hosts = hosts_file(given, data, source)

            def row(way: str, seconds: float, sent: float, title: str = title, total: int = total) -> None:
                print(f"| {title} | {way} | {seconds:.1f} | {sent / total:.2f} |", flush=True)

            with limited_here(network, options.rate):
                if options.rate:
                    bound = 8 * (total + (len(links) - 1) * CHUNK) / payload(options.rate)
                    row("bound", bound, total)
                for at_once in () if options.only_ours else (False, True):
                    forget(links)
                    before = sent_from_here(network)
                    seconds = person(given, data, source, at_once)
                    way = "tar, ssh, tar: all at once" if at_once else "tar, ssh, tar: one after another"
                    row(way, seconds, sent_from_here(network) - before)
                forget(links)
                for way in ("data send", "data send, again", "data send, broken off after a third"):
                    if "broken" in way:
                        forget(links)
                        break_off(hosts, links[-1][0], total // 3)
                    before = sent_from_here(network)
                    seconds, notes = ours(hosts)
                    row(way, seconds, sent_from_here(network) - before)
                    if options.notes:
                        print("\n".join(notes))
            forget(links)
            hosts.unlink()


if __name__ == "__main__":
    main()
