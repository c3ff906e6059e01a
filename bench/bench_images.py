"""I1 to I4: an image to practice hosts, compared with `docker save | ssh docker load` and the bound.

    toolkit lab up --count 8 && export TOOLKIT_HOSTS=…
    python bench/bench_images.py
    python bench/bench_images.py --rates 100 --hosts 8 --ways ours

Links are limited on every host, and from this machine to all of them together (see bench/lab_links.py): it
has one port, as each host has. The bound is (S + (N - 1) chunk) / payload: all bytes once over a link, and
one chunk's time per further host. "transfer" is from the first byte until the last host had the last one,
"loaded" until the last engine had the image under its name, "ran" until a container of it had run on every
host. Bytes are those that network interfaces counted. Hosts hold the first layers before, Debian and Python;
the others, who would send these as well, send an image that lacks them, and cannot run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from lab_links import limited, links_of, payload

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.e2e import images

MIB = 2**20
CHUNK = 2**18
SIZE = 64 * MIB
# Bytes of the shapers' buckets, a thousandth of what travels.
BURST = 125_000
TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
WAYS = ("ours", "serial", "parallel")


@contextmanager
def limited_here(network: str, mbit: int) -> Iterator[None]:
    """Limit what this machine sends to the practice hosts, all of them together."""
    device = bridge(network)
    if mbit:
        rule = f"root handle 1: tbf rate {mbit}mbit burst {BURST} latency 150ms"
        subprocess.run(["tc", "qdisc", "replace", "dev", device, *rule.split()], check=True)
    try:
        yield
    finally:
        if mbit:
            subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], check=False)


@contextmanager
def crawling(container: str, mbit: float) -> Iterator[None]:
    """Limit what reaches one practice host."""
    peer = inside(container, f"{images.CARD}; cat /sys/class/net/$card/iflink").strip()
    lines = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    (name,) = (line.split()[1] for line in lines.splitlines() if line.startswith(f"{peer}:"))
    device = name.partition("@")[0].rstrip(":")
    rule = f"root handle 1: tbf rate {mbit}mbit burst 64k latency 150ms"
    subprocess.run(["tc", "qdisc", "replace", "dev", device, *rule.split()], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], check=False)


def bridge(network: str) -> str:
    ask = ["docker", "network", "inspect", "--format", "{{.Id}}", network]
    return "br-" + subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()[:12]


def sent_from_here(network: str) -> int:
    return int(Path(f"/sys/class/net/{bridge(network)}/statistics/tx_bytes").read_text())


def inside(container: str, text: str) -> str:
    done = subprocess.run(["docker", "exec", container, "sh", "-c", text], capture_output=True, text=True)
    return done.stdout


def counts(links: Sequence[tuple[str, str]], way: str) -> list[int]:
    ask = f"{images.CARD}; cat /sys/class/net/$card/statistics/{way}_bytes"
    return [int(inside(container, ask)) for container, _ in links]


def forget(links: Sequence[tuple[str, str]]) -> None:
    text = (
        f"docker rmi -f $(docker images -q {images.NAME}) "
        "$(docker images -q --filter label=toolkit.flavor=images) >/dev/null 2>&1"
    )
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda link: inside(link[0], text), links))


def hosts_file(given: Path, data: dict[str, Any], count: int, tag: str) -> Path:
    """Write a hosts file beside the lab's: its first hosts, and this image."""
    names = list(data["hosts"])[:count]
    path = given.with_name("bench-images.yaml")
    chosen = {name: data["hosts"][name] for name in names}
    path.write_text(yaml.safe_dump({**data, "image": tag, "hosts": chosen, "main": names[0]}))
    return path


def send(hosts: Path, links: Sequence[tuple[str, str]], way: str, tag: str) -> dict[str, Any]:
    """Bring the image to all hosts; return seconds as far as they are known."""
    begun = time.perf_counter()
    if way == "ours":
        argv = [TOOLKIT, "image", "send", "--json", "--hosts", str(hosts)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        report = json.loads(done.stdout)
        outcomes = [o for o in report["outcomes"] if "send image" in o["step"]]
        assert report["ok"], done.stdout + done.stderr
        transfer = max((o.get("amounts", {}).get("transfer_ms", 0) for o in outcomes), default=0) / 1000
        loaded = max((o["seconds"] for o in outcomes), default=0.0)
        each = {o["host"]: o.get("amounts", {}).get("transfer_ms", 0) / 1000 for o in outcomes}
        notes = [o["detail"] for o in outcomes if "(" in o["detail"] or "not over" in o["detail"]]
        return {
            "each": each,
            "transfer": transfer,
            "loaded": loaded,
            "all": time.perf_counter() - begun,
            "notes": notes,
        }
    data = yaml.safe_load(hosts.read_text())
    config = hosts.with_name("ssh_config")

    def pipe(name: str) -> None:
        words = f"docker save {tag} | {ssh_words(data, name, config)} docker load -q"
        subprocess.run(["sh", "-c", words], check=True, capture_output=True)

    with ThreadPoolExecutor(len(data["hosts"]) if way == "parallel" else 1) as pool:
        list(pool.map(pipe, data["hosts"]))
    seconds = time.perf_counter() - begun
    return {"transfer": 0.0, "loaded": seconds, "all": seconds, "notes": []}


def ssh_words(data: dict[str, Any], name: str, config: Path) -> str:
    """Return the equivalent ssh command by hand, with the key and host keys of the practice cluster."""
    host, lab = data["hosts"][name], Path(os.environ["TOOLKIT_HOSTS"]).parent
    key, known = (
        data.get("identity_file") or lab / "id_ed25519",
        data.get("known_hosts") or lab / "known_hosts",
    )
    user = host.get("user") or data.get("user") or "trainer"
    options = f"-F none -o IdentitiesOnly=yes -o UserKnownHostsFile={shlex.quote(str(known))}"
    return f"ssh -i {shlex.quote(str(key))} {options} {user}@{host['address']}"


def run_everywhere(links: Sequence[tuple[str, str]], tag: str) -> float:
    begun = time.perf_counter()
    text = f"docker run --rm --network none {tag} true && echo ran"
    with ThreadPoolExecutor(len(links)) as pool:
        said = list(pool.map(lambda link: inside(link[0], text), links))
    assert all(word.strip() == "ran" for word in said), said
    return time.perf_counter() - begun


def cell(
    hosts: Path, links: Sequence[tuple[str, str]], network: str, way: str, made: images.Made
) -> dict[str, Any]:
    here, before = sent_from_here(network), counts(links, "tx")
    found = send(hosts, links, way, made.tag)
    found["here"] = sent_from_here(network) - here
    found["most"] = max(b - a for a, b in zip(before, counts(links, "tx"), strict=True))
    found["ran"] = found["loaded"] + (run_everywhere(links, made.tag) if way == "ours" else 0.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", default="100,0", help="Mb/s; 0 for no limit")
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of the layers above the base")
    parser.add_argument("--slow", type=int, default=0, help="what reaches this host, 1 and up, is a tenth")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    given = os.environ.get("TOOLKIT_HOSTS", "")
    if not Path(given).is_file():
        print("images  skipped: no practice cluster; toolkit lab up --count 8, then set TOOLKIT_HOSTS")
        return
    data = yaml.safe_load(Path(given).read_text())
    network = f"toolkit-lab-{data['cluster']}"
    counted = [int(word) for word in options.hosts.split(",")]
    links = links_of(data)[: max(counted)]
    base = images.base_parts()
    # Whose first layers are those of the images below.
    subprocess.run([TOOLKIT, "image", "send", "--hosts", given], check=True, stderr=subprocess.DEVNULL)
    quarter = options.size // 4
    first = [images.layer(f"l{n}", quarter) for n in range(3)]
    if options.slow:
        made = images.make(base, "crawl", [*first, images.layer("last", quarter)])
        crawl(Path(given), data, links, network, int(options.rates.split(",")[0]), options.slow, made)
        forget(links)
        return
    cold = images.make(base, "cold", [*first, images.layer("last", quarter)])
    bare = images.make(base, "bare", [*first, images.layer("last", quarter)], tools=0)
    changed = images.make(base, "changed", [*first, images.layer("last", quarter, 2)])
    print("images  seconds; bytes that left your machine and the busiest host, as shares of what was missing")
    print(
        f"{'Mb/s':>9}{'hosts':>6} {'case':<10}{'way':<10}{'bound':>8}{'transfer':>10}{'ratio':>7}"
        f"{'loaded':>9}{'ran':>8}{'ratio':>7}{'command':>9}{'here':>8}{'host':>8}"
    )
    for rate in [int(word) for word in options.rates.split(",")]:
        for count in counted:
            for way in options.ways.split(","):
                for _ in range(options.rounds):
                    cases = [
                        ("cold", cold, cold.size),
                        ("unchanged", cold, 0),
                        ("one layer", changed, changed.parts.layers[-1].size),
                    ]
                    if way != "ours":  # it sends the same again, whatever is there
                        cases = [("cold", bare, cold.size)]
                    _rows(given, data, links[:count], network, rate, way, cases)
    forget(links)


def crawl(
    given: Path,
    data: dict[str, Any],
    links: Sequence[tuple[str, str]],
    network: str,
    rate: int,
    slow: int,
    made: images.Made,
) -> None:
    """I5: print when the other hosts had everything, with and without one at a tenth of the rate."""
    names = list(data["hosts"])[: len(links)]
    part = hosts_file(given, data, len(links), made.tag)
    others = [name for name in names if name != names[slow - 1]]
    try:
        with limited(links, [rate], BURST) as rates:
            for _ in rates:
                with limited_here(network, rate):
                    forget(links)
                    usual = send(part, links, "ours", made.tag)["each"]
                    forget(links)
                    with crawling(links[slow - 1][0], rate / 10):
                        found = send(part, links, "ours", made.tag)["each"]
    finally:
        part.unlink()
    print(
        f"images  {len(links)} hosts, {rate} Mb/s, {names[slow - 1]} at a tenth: the others' last byte after "
        f"{max(found[name] for name in others):.2f} s, {max(usual[name] for name in others):.2f} s without; "
        f"its own after {found[names[slow - 1]]:.1f} s"
    )


def _rows(
    given: str,
    data: dict[str, Any],
    links: Sequence[tuple[str, str]],
    network: str,
    rate: int,
    way: str,
    cases: Sequence[tuple[str, images.Made, int]],
) -> None:
    forget(links)
    for case, made, missing in cases:
        part = hosts_file(Path(given), data, len(links), made.tag)
        try:
            with limited(links, [rate], BURST) as rates:
                for _ in rates:
                    with limited_here(network, rate):
                        found = cell(part, links, network, way, made)
        finally:
            part.unlink()
        bound = (missing + (len(links) - 1) * CHUNK * bool(missing)) * 8 / payload(rate) if rate else 0.0
        sent = (found["here"], found["most"])
        share = [f"{x / missing:.3f}" if missing else f"{x / 1000:.0f} kB" for x in sent]
        slow = max(found["transfer"] or found["loaded"], 1e-9)
        print(
            f"{rate or '-':>9}{len(links):>6} {case:<10}{way:<10}{bound:>8.2f}{found['transfer']:>10.2f}"
            f"{slow / bound if bound else 0:>7.2f}{found['loaded']:>9.2f}{found['ran']:>8.2f}"
            f"{found['ran'] / bound if bound else 0:>7.2f}{found['all']:>9.2f}{share[0]:>8}{share[1]:>8}",
            *found["notes"],
            flush=True,
        )


if __name__ == "__main__":
    main()
