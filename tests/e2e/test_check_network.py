"""Faults of networks and containers made for real on two practice hosts, and found: host, cause and cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import CARDS, Done, Toolkit, sh, wait_until

pytestmark = pytest.mark.lab

STATE = "/home/trainer/.local/state/toolkit"
LISTEN = "python3 -c 'import socket,time; s=socket.create_server((\"{}\",{})); time.sleep(600)'"


@dataclass(frozen=True)
class Fault:
    """What is done to box2 as root, what takes it back, and the finding that must come of it.

    In commands and words DATA1 and DATA2 stand for the hosts' data addresses, SPARE for one that nobody
    has. box2's data card is enp3s0, its management card ens5.
    """

    check: str
    make: str
    mend: str
    words: str
    verdict: str = "error"
    quick: bool = False


def drop(rule: str) -> tuple[str, str]:
    return f"iptables -I INPUT -i enp3s0 {rule}", f"iptables -D INPUT -i enp3s0 {rule}"


BENT = "ip route add DATA1/32 dev ens5 src DATA2"
NAT = "iptables -t nat -{} POSTROUTING -o enp3s0 -p tcp -j SNAT --to-source SPARE"

# On hosts with the image, where the cluster is not up.
DOWN = (
    Fault(
        "net-link",
        "ip route show default >/root/route; ip link set enp3s0 down",
        "ip link set enp3s0 up; ip route replace $(cat /root/route)",
        "is switched off",
    ),
    Fault("net-conflict", "ip addr add DATA1/32 dev enp3s0", "ip addr del DATA1/32 dev enp3s0", "box1, box2"),
    Fault("pair-route", BENT, "ip route del DATA1/32", "by ens5, which carries 100 Mb/s", "warning"),
    Fault(
        "pair-route", "ip route add unreachable DATA1/32", "ip route del unreachable DATA1/32", "has no route"
    ),
    Fault(
        "pair-filter",
        f"{BENT}; sysctl -w net.ipv4.conf.enp3s0.rp_filter=1",
        "ip route del DATA1/32; sysctl -w net.ipv4.conf.enp3s0.rp_filter=0",
        "(rp_filter is 1)",
    ),
    Fault("pair-open", *drop("-s DATA1 -p tcp -j DROP"), "all ports dropped, no answer within 1.5 s"),
    Fault("pair-open", *drop("-p tcp --dport 29500 -j DROP"), "port 29500 dropped"),
    Fault("pair-open", *drop("-p tcp --syn -j DROP"), "dropped, no answer within 1.5 s; box2 → box1 is open"),
    Fault("pair-open", *drop("-p tcp --dport 12345 -j REJECT"), "port 12345 rejected, though a program"),
    Fault(
        "pair-open",
        *drop("-p tcp --dport 12345 -j REJECT --reject-with icmp-admin-prohibited"),
        "port 12345 rejected as unreachable",
    ),
    Fault("pair-open", *drop("-p tcp --syn -j DROP"), "box1 → box2", quick=True),
    Fault("pair-large", *drop("-p tcp -m length --length 1401: -j DROP"), "small messages pass, large ones"),
    Fault(
        "pair-seen",
        f"ip addr add SPARE/32 dev enp3s0; {NAT.format('A')}",
        f"{NAT.format('D')}; ip addr del SPARE/32 dev enp3s0",
        "sees box2 as SPARE",
    ),
)

# Those that harm no other and are told apart by their checks: made at once, found at once.
TOGETHER = (
    Fault(
        "net-speed",
        "tc qdisc add dev enp3s0 root tbf rate 10mbit burst 64kb latency 50ms",
        "tc qdisc del dev enp3s0 root",
        "holds enp3s0 to 10 Mb/s",
        "warning",
    ),
    Fault("net-speeds", "", "", "box2 carries 10 Mb/s, others 10 Gb/s", "warning"),
    Fault("net-mtu", "ip link set enp3s0 mtu 1400", "ip link set enp3s0 mtu 1500", "1400 on box2", "warning"),
    Fault(
        "net-port-range",
        "sysctl -w net.ipv4.ip_local_port_range='10000 60999'",
        "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        "port 12345 (the workers' sshd)",
        "warning",
    ),
)


def own(host: str, text: str) -> str:
    return sh(host, text, CARDS)


@pytest.fixture(scope="module")
def data(cards: Toolkit) -> dict[str, str]:
    """The hosts' data addresses; and the image is on both."""
    cards.run("image", "send", check=True)
    cards.run("down", "--no-save", check=True)
    names = {"box1": "eth0", "box2": "enp3s0"}
    found = {host: own(host, f"ip -o -4 addr show {name}").split()[3] for host, name in names.items()}
    return {host: address.partition("/")[0] for host, address in found.items()}


@pytest.fixture(scope="module")
def settled(cards: Toolkit, data: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    """The same hosts with their data addresses written down, so that no fault moves them elsewhere."""
    return variant(cards, data, tmp_path_factory.mktemp("settled"), lambda _: None)


def variant(cards: Toolkit, data: dict[str, str], to: Path, change: Callable[[Any], None]) -> Toolkit:
    file = yaml.safe_load(cards.hosts.read_text())
    for host, address in data.items():
        file["hosts"][host]["data_address"] = address
    change(file)
    (to / "hosts.yaml").write_text(yaml.safe_dump(file))
    return Toolkit(to / "hosts.yaml", cards.folder)


@contextmanager
def broken(fault: Fault, data: dict[str, str]) -> Iterator[None]:
    own("box2", filled(fault.make, data))
    try:
        yield
    finally:
        own("box2", filled(fault.mend, data))


def filled(text: str, data: dict[str, str]) -> str:
    spare = data["box2"].rpartition(".")[0] + ".222"
    return text.replace("DATA1", data["box1"]).replace("DATA2", data["box2"]).replace("SPARE", spare)


def alarms(done: Done) -> list[dict[str, Any]]:
    return [f for f in done.json["findings"] if f["verdict"] in ("error", "warning")]


def require(done: Done, fault: Fault) -> None:
    found = [f for f in alarms(done) if f["check"] == fault.check]
    assert found, alarms(done)
    assert fault.words in found[0]["what"] and found[0]["verdict"] == fault.verdict and found[0]["fix"], found
    assert "box2" in (found[0]["host"], found[0]["subject"]) or "box2" in found[0]["what"]
    assert done.status == (1 if any(f["verdict"] == "error" for f in alarms(done)) else 0)


def test_the_lab_is_healthy(settled: Toolkit) -> None:
    assert alarms(settled.run("check", "--json")) == []


@pytest.mark.parametrize("fault", DOWN, ids=lambda f: f"{f.check}-{f.words[:24]}")
def test_a_fault_is_found(settled: Toolkit, data: dict[str, str], fault: Fault) -> None:
    with broken(fault, data):
        done = settled.run("check", "--json", *(("--quick",) if fault.quick else ()))
    require(done, replace(fault, words=filled(fault.words, data)))


def test_faults_side_by_side_are_told_apart(settled: Toolkit, data: dict[str, str]) -> None:
    for fault in TOGETHER:
        own("box2", fault.make)
    try:
        done = settled.run("check", "--json")
    finally:
        for fault in TOGETHER:
            own("box2", fault.mend)
    for fault in TOGETHER:
        require(done, fault)
    assert {f["check"] for f in alarms(done)} == {fault.check for fault in TOGETHER}
    assert alarms(settled.run("check", "--json")) == [], "mended"


def test_what_a_firewall_rejects_is_not_called_open_before_a_container_listens(
    settled: Toolkit, data: dict[str, str]
) -> None:
    make, mend = drop("-p tcp --syn -j REJECT --reject-with tcp-reset")
    with broken(Fault("pair-open", make, mend, ""), data):
        quick = settled.run("check", "--quick", "--json").json["findings"]
        told = settled.run("check", "--json")
    assert [f["verdict"] for f in quick if f["check"] == "pair-open"] == ["not checked"]
    require(told, Fault("pair-open", "", "", "all ports rejected, though a program listens there"))


@pytest.mark.parametrize(
    ("check", "words", "change", "before"),
    [
        ("net-address", "is not one of its addresses", {"data_address": ("10.1.1.1", "10.1.1.2")}, ""),
        ("net-shared", "different networks", {"data_address": ("", "CONTROL2")}, ""),
        ("net-link", "has no carrier", {"data_address": ("10.98.0.1", "10.98.0.2")}, "CABLE"),
        ("net-public", "a public address", {"data_address": ("8.8.99.1", "8.8.99.2")}, "PUBLIC"),
        ("net-conflict", "ranks do not use it", {}, "TWINS"),
        ("net-worker-port", "held by another program", {"worker_port": 23456}, "LISTEN"),
        ("rdma", "no active InfiniBand", {"network": "infiniband"}, ""),
        ("in-start", "/srv/absent", {"mounts": ["/srv/absent:/data"]}, ""),
        ("in-shm", "/dev/shm is 64 MiB", {"shm_size": "64m"}, ""),
        ("in-mounts", "write: Permission denied", {"mounts": ["/srv/roots:/out"]}, "MOUNT"),
        ("in-listen", "Address already in use", {}, "BOUND"),
    ],
)  # fmt: skip
def test_a_fault_of_the_file_or_with_it(
    cards: Toolkit,
    data: dict[str, str],
    tmp_path: Path,
    check: str,
    words: str,
    change: dict[str, Any],
    before: str,
) -> None:
    control = yaml.safe_load(cards.hosts.read_text())["hosts"]["box2"]["address"]
    bound = f's=socket.socket(); s.bind(("{data["box2"]}",29500)); time.sleep(600)'
    by_host = {
        # The other end of the cable is off.
        "CABLE": ("ip link add lan9 type veth peer name lan8; ip addr add 10.98.0.N/24 dev lan9; "
                  "ip link set lan9 up", "ip link del lan9"),
        "PUBLIC": ("ip addr add 8.8.99.N/24 dev {card}", "ip addr del 8.8.99.N/24 dev {card}"),
        "TWINS": ("ip addr add 10.55.0.1/24 dev {card}", "ip addr del 10.55.0.1/24 dev {card}"),
        "MOUNT": ("mkdir -p /srv/roots", "rmdir /srv/roots"),
        "LISTEN": (LISTEN.format(data["box2"], 23456) + " & echo $! >/run/fault", "kill $(cat /run/fault)"),
        "BOUND": (f"python3 -c 'import socket,time; {bound}' & echo $! >/run/fault",
                  "kill $(cat /run/fault)"),
    }  # fmt: skip
    make, mend = by_host.get(before, ("", ""))
    hosts = ("box2",) if before in ("LISTEN", "BOUND") else ("box1", "box2")

    def apply(file: Any) -> None:
        for key, value in change.items():
            if key == "data_address":
                for host, address in zip(("box1", "box2"), value, strict=True):
                    if address:
                        file["hosts"][host][key] = address.replace("CONTROL2", control)
            else:
                file[key] = value

    def do(text: str) -> None:
        for host in hosts:
            card = "eth0" if host == "box1" else "enp3s0"
            own(
                host,
                "{ " + text.replace("{card}", card).replace(".N", f".{host[-1]}") + "; } >/dev/null 2>&1",
            )

    toolkit = variant(cards, data, tmp_path, apply)
    do(make)
    try:
        found = [f for f in alarms(toolkit.run("check", "--json")) if f["check"] == check]
    finally:
        do(mend)
    assert found and all(words in f["what"] and f["fix"] for f in found), found


def test_nothing_of_a_check_is_left_though_it_was_killed(settled: Toolkit) -> None:
    process = settled.start("check")
    wait_until(lambda: "-check-" in own("box1", "docker ps --format '{{.Names}}'"))
    process.kill()
    process.wait()
    for host in ("box1", "box2"):
        wait_until(lambda: "-check-" not in own(host, "docker ps -a --format '{{.Names}}'"))  # noqa: B023


@pytest.fixture(scope="module")
def running(cards: Toolkit, data: dict[str, str]) -> Iterator[Toolkit]:
    cards.run("up", check=True)
    yield cards
    cards.run("down", "--no-save", check=True)


# On a cluster that is up: what ranks find in its containers, by the ways that they come.
UP = (
    Fault("in-login", *drop("-p tcp --dport 12345 -j DROP"), "cannot log in to it"),
    Fault(
        "in-names",
        "cp HOSTS /root/hosts; sed 's/.* box2$/127.0.1.1 box2/' /root/hosts >HOSTS",
        "cat /root/hosts >HOSTS",
        "box2 leads to 127.0.1.1, itself, not to",
    ),
    Fault(
        "in-files",
        # bash reads it in sessions over ssh too, which is how ranks start there.
        "echo 'ulimit -n 512' >HOME/.bashrc",
        "rm HOME/.bashrc",
        "ranks may open 512 files",
        "warning",
    ),
    Fault(
        "in-memlock",
        "mkdir /dev/infiniband; mknod /dev/infiniband/uverbs0 c 231 192",
        "rm -r /dev/infiniband",
        "ranks may lock 8192 KiB of memory",
    ),
    Fault(
        "in-gpus",
        "printf '#!/bin/sh\\necho 0, GPU-0, A100, 550.54.14, 81920\\n' >/usr/local/bin/nvidia-smi; "
        "chmod 755 /usr/local/bin/nvidia-smi",
        "rm /usr/local/bin/nvidia-smi",
        "a container on it has no nvidia-smi",
    ),
    Fault(
        "in-versions",
        "docker exec -u 0 WORKER sh -c 'sed -i s/^Version:.*/Version:\\ 9.9.9/ "
        "/opt/venv/lib/python3*/site-packages/mpi4py-*.dist-info/METADATA'",
        "docker rm -f WORKER",
        "mpi4py differs: 4.1.2 on box1; 9.9.9 on box2",
    ),
)


@pytest.mark.parametrize("fault", UP, ids=lambda f: f.check)
def test_a_fault_of_a_cluster_that_is_up_is_found(
    running: Toolkit, data: dict[str, str], fault: Fault
) -> None:
    cluster = yaml.safe_load(running.hosts.read_text())["cluster"]

    def named(text: str) -> str:
        state, worker = f"{STATE}/{cluster}/box2", f"toolkit-{cluster}-worker"
        return (
            text.replace("HOSTS", f"{state}/etc/hosts")
            .replace("HOME", f"{state}/home")
            .replace("WORKER", worker)
        )

    with broken(Fault(fault.check, named(fault.make), named(fault.mend), ""), data):
        done = running.run("check", "--json")
    require(done, fault)


def test_twenty_looks_at_healthy_hosts_raise_no_alarm(running: Toolkit) -> None:
    banners = own("box2", "grep -c 'Connection closed by .*preauth' /var/log/sshd.log || true").split()[0]
    for _ in range(5):
        assert alarms(running.run("check", "--json")) == []
    after = own("box2", "grep -c 'Connection closed by .*preauth' /var/log/sshd.log || true").split()[0]
    assert banners == after, "no host's sshd has seen a connection that did not log in"
