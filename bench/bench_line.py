"""I1 with many hosts: the transfer from host to host, without engines and without ssh.

    python bench/bench_line.py
    python bench/bench_line.py --hosts 32 --rate 25 --size 16777216

As root. Each host is a network namespace whose link is limited both ways; in it runs the program that hosts
run, told what to do by the code that tells hosts. Its engine is one on paper, and what this machine sends is
kept to the same rate. "seconds" is until the last of the others, where one is slow or dies. The bound is
that of bench_images.py: (S + (N - 1) chunk) / payload.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab_links import payload

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import pytest

from tests.integration.test_relay import Streaming, noise, send
from tests.unit.images_here import Sender, engines, use
from toolkit.core.command import Command, Result
from toolkit.core.runner import Sink

CHUNK = 2**18
BURST = 125_000
NAME, NET = "toolkit-line", "10.209.0"


class Port:
    """The one port of this machine: everything that it sends shares the rate."""

    def __init__(self, bytes_per_second: float) -> None:
        self.rate, self.free, self.lock, self.sent = bytes_per_second, 0.0, threading.Lock(), 0
        self.due = float("inf")
        self.then: Callable[[], None] = lambda: None

    def at(self, count: int, then: Callable[[], None]) -> None:
        """Call a function once N bytes have been sent."""
        self.due, self.then = count, then

    def through(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            for start in range(0, len(piece), 65_536):
                part = piece[start : start + 65_536]
                with self.lock:
                    now = time.monotonic()
                    # A bucket, as tbf's: who slept too long may make up for it.
                    self.free = max(self.free, now - BURST / self.rate) + len(part) / self.rate
                    due, self.sent = self.free, self.sent + len(part)
                if due > now:
                    time.sleep(due - now)
                if self.sent >= self.due:
                    self.due = float("inf")
                    self.then()
                yield part


class Linked(Streaming):
    """A host in a network of its own."""

    port: Port
    slow = 0

    def __init__(self, name: str, folder: Path, store: str) -> None:
        super().__init__(name, folder, store)
        self.number = int(name[3:])
        self.address = f"{NET}.{self.number}"

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        inside = command.within("ip", "netns", "exec", f"{NAME}-{self.number}")
        if source is not None:
            if self.number == self.slow:
                source = Port(self.port.rate / 10).through(source)
            source = self.port.through(source)
        return super().stream(inside, sink, source, silence)


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


@contextmanager
def networks(count: int, mbit: int, slow: int = 0) -> Iterator[None]:
    """Create a switch and N hosts with limited links; one of them receives at a tenth of the rate."""
    made: list[str] = []
    try:
        ip(f"netns add {NAME}")
        made.append(NAME)
        ip(f"-n {NAME} link add switch type bridge")
        ip(f"-n {NAME} link set switch up")
        for number in range(1, count + 1):
            host, port = f"{NAME}-{number}", f"port{number}"
            ip(f"netns add {host}")
            made.append(host)
            ip(f"-n {NAME} link add {port} type veth peer name card netns {host}")
            ip(f"-n {NAME} link set {port} master switch up")
            ip(f"-n {host} addr add {NET}.{number}/24 dev card")
            ip(f"-n {host} link set card up")
            ip(f"-n {host} link set lo up")
            for space, device, part in ((host, "card", 1), (NAME, port, 10 if number == slow else 1)):
                rule = f"tbf rate {mbit * 1000 // part}kbit burst {max(65_536, mbit * 1250)} latency 150ms"
                words = f"tc -n {space} qdisc add dev {device} root {rule}"
                subprocess.run(words.split(), check=True)
            control = "sysctl -qw net.ipv4.tcp_congestion_control=reno"
            subprocess.run(["ip", "netns", "exec", host, *control.split()], check=True)
        yield
    finally:
        for name in reversed(made):
            ip(f"netns del {name}")


def seconds(count: int, mbit: int, size: int, slow: int = 0, dead: int = 0) -> tuple[float, float]:
    """Send it once; return the others' seconds, and what this machine sent as a share of the image."""
    with (
        networks(count, mbit, slow),
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
        engines(Path(folder)) as make,
    ):
        Linked.slow, Linked.port = slow, Port(payload(mbit) / 8)
        sender = use(Sender([noise(size // 4) for _ in range(4)]), patch)
        build: Callable[..., Any] = make
        hosts = [build(f"box{number}", "overlay2", Linked) for number in range(1, count + 1)]
        if dead:
            Linked.port.at(size // 2, hosts[dead - 1].die)
        found = send(sender, *hosts)
    others = [found[host.name] for host in hosts if host.number not in (slow, dead)]
    assert all(outcome.status == "ok" for outcome in others), found
    took = max(dict(outcome.amounts)["transfer_ms"] for outcome in others) / 1000
    return took, Linked.port.sent / size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", default="2,8,16,32")
    parser.add_argument("--rate", type=int, default=25, help="Mb/s")
    parser.add_argument("--size", type=int, default=2**24, help="bytes")
    parser.add_argument("--slow", type=int, default=0, help="this host, 1 and up, gets a tenth")
    parser.add_argument("--dead", type=int, default=0, help="this one dies when half has been sent")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    # A python3 that is a shell script of a version manager would start much slower than a host's own.
    os.environ["PATH"] = f"{sys.base_prefix}/bin:{os.environ['PATH']}"
    if os.geteuid():
        print("line  skipped: making networks takes root")
        return
    print(f"{'line':<6}{'Mb/s':>6}{'MiB':>5}{'hosts':>7}{'bound':>8}{'seconds':>9}{'ratio':>7}{'sent':>7}")
    for count in [int(word) for word in options.hosts.split(",")]:
        bound = 8 * (options.size + (count - 1) * CHUNK) / payload(options.rate)
        given = (count, options.rate, options.size, options.slow, options.dead)
        runs = sorted(seconds(*given) for _ in range(options.rounds))
        took, sent = runs[len(runs) // 2]
        print(
            f"{'line':<6}{options.rate:>6}{options.size // 2**20:>5}{count:>7}{bound:>8.2f}{took:>9.2f}"
            f"{took / bound:>7.2f}{sent:>7.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
