"""Real faults of networks and containers on two practice hosts: `check` reports host, cause and fix."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.world import CARDS, Done, Toolkit, run_as_root, sh

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Fault:
    """A fault made on box2 as root, how it is undone, and the finding that it must cause.

    In commands and words names in capitals stand for what ``names`` says: DATA1 and DATA2 are the hosts'
    data addresses, SPARE one that no host has. box2's data card is enp3s0, its management card ens5.
    """

    check: str
    make: str
    mend: str
    words: str
    verdict: str = "error"


def drop(rule: str) -> tuple[str, str]:
    return f"iptables -I INPUT -i enp3s0 {rule}", f"iptables -D INPUT -i enp3s0 {rule}"


# Another way into the same network; by the management card the lab's own machine would translate addresses.
# Without ARP, by which box1 would learn of it and answer there.
BENT = (
    "bash -c ': </dev/tcp/DATA1/9'; mac=$(ip neigh show to DATA1 dev enp3s0 | awk '{ print $3 }'); "
    "ip link add link enp3s0 name mv0 type macvlan mode bridge; ip link set mv0 arp off up; "
    "tc qdisc add dev mv0 root tbf rate 50mbit burst 64kb latency 50ms; "
    "ip neigh add DATA1 lladdr $mac dev mv0; ip route add DATA1/32 dev mv0 src DATA2"
)
STRAIGHT = "ip link del mv0"
NAT = "iptables -t nat -{} POSTROUTING -o enp3s0 -p tcp -j SNAT --to-source SPARE"
REJECT = "-j REJECT --reject-with icmp-admin-prohibited"

# Faults of one group harm no other and are made at once; every alarm that a look at them raises is named.
GROUPS: Mapping[str, Sequence[Fault]] = {
    "link down": (
        Fault(
            "net-link",
            "ip route show default >/root/route; ip link set enp3s0 down",
            "ip link set enp3s0 up; ip route replace $(cat /root/route)",
            "is switched off",
        ),
        Fault("pair-route", "", "", "to box1 (DATA1)", "warning"),
    ),
    "same address": (
        Fault(
            "net-conflict",
            "ip addr add DATA1/32 dev enp3s0",
            "ip addr del DATA1/32 dev enp3s0",
            "the hosts box1, box2 have the same address DATA1, which reaches only one of these hosts",
        ),
        Fault("pair-route", "", "", "on its own interface"),
    ),
    "no route": (
        Fault(
            "pair-route",
            "ip route add unreachable DATA1/32",
            "ip route del unreachable DATA1/32",
            "the host has no route to box1",
        ),
    ),
    "filtered": (
        Fault(
            "pair-filter",
            f"{BENT}; sysctl -w net.ipv4.conf.enp3s0.rp_filter=1",
            f"{STRAIGHT}; sysctl -w net.ipv4.conf.enp3s0.rp_filter=0",
            "the kernel drops packets from box1 on enp3s0",
        ),
        Fault("pair-route", "", "", "through mv0 (50 Mb/s)", "warning"),
    ),
    "all dropped": (
        Fault("pair-open", *drop("-s DATA1 -p tcp -j DROP"), "all tested ports are dropped without"),
    ),
    "one way": (
        Fault("pair-open", *drop("-p tcp --syn -j DROP"), "within 1.5 s; box2 reaches box1"),
    ),
    "ports": (
        Fault("pair-open", *drop("-p tcp --dport 12345 -j REJECT"), "port 12345 are rejected, although"),
        Fault("pair-open", *drop("-p tcp --dport 29500 -j DROP"), "port 29500 are dropped without a reply"),
        Fault("pair-open", *drop(f"-p tcp --dport 32768:60999 {REJECT}"), "rejected as unreachable"),
    ),
    "large, translated": (
        Fault("pair-large", *drop("-p tcp -m length --length 1401: -j DROP"), "large messages from box1"),
        Fault(
            "pair-seen",
            f"ip addr add SPARE/32 dev enp3s0; {NAT.format('A')}",
            f"{NAT.format('D')}; ip addr del SPARE/32 dev enp3s0",
            "connections from box2 arrive at box1 with the source address SPARE",
        ),
    ),
    "slow": (
        Fault(
            "net-speed",
            "tc qdisc add dev enp3s0 root tbf rate 10mbit burst 64kb latency 50ms",
            "tc qdisc del dev enp3s0 root",
            "limits enp3s0 to 10 Mb/s",
            "warning",
        ),
        Fault("net-speeds", "", "", "10 Mb/s on box2, but up to 10 Gb/s on other hosts", "warning"),
        Fault("pair-route", BENT, STRAIGHT, "the host sends to box1 (DATA1) through mv0", "warning"),
        Fault(
            "net-mtu",
            "ip link set enp3s0 mtu 1400",
            "ip link set enp3s0 mtu 1500",
            "1400 on box2",
            "warning",
        ),
        Fault(
            "net-port-range",
            "sysctl -w net.ipv4.ip_local_port_range='10000 60999'",
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
            "port 12345 (sshd of the worker containers)",
            "warning",
        ),
    ),
}  # fmt: skip

LISTEN = "python3 -c 'import socket,time; s=socket.create_server((\"DATA2\",23456)); time.sleep(600)'"
BIND = "python3 -c 'import socket,time; s=socket.socket(); s.bind((\"DATA2\",29500)); time.sleep(600)'"
CABLE = "ip link add lan9 type veth peer name lan8; ip addr add 10.98.0.N/24 dev lan9; ip link set lan9 up"

# Faults of the file or of both hosts: the file's changes, done to each host N, undone, check and words.
FILES: Mapping[str, tuple[dict[str, Any], str, str, dict[str, str]]] = {
    "no such address": (
        {"data_address": ("10.1.1.1", "10.1.1.2")}, "", "",
        {"net-address": "is not among the addresses of the host"},
    ),
    "apart": (
        {"data_address": ("DATA1", "CONTROL2")}, "", "",
        {"net-shared": "different networks", "net-speeds": "only 100 Mb/s on box2"},
    ),
    "no carrier": (
        {"data_address": ("10.98.0.1", "10.98.0.2")}, CABLE, "ip link del lan9",
        {"net-link": "has no carrier"},
    ),
    "mount": (
        {"mounts": ["/srv/absent:/data"]}, "", "",
        {"mount-there": "/srv/absent does not exist"},
    ),
    "file": (
        {
            "data_address": ("8.8.99.1", "8.8.99.2"),
            "network": "infiniband",
            "shm_size": "64m",
            "mounts": ["/srv/roots:/out"],
        },
        "ip addr add 8.8.99.N/24 dev CARD; ip addr add 10.55.0.1/24 dev CARD; mkdir -p /srv/roots",
        "ip addr del 8.8.99.N/24 dev CARD; ip addr del 10.55.0.1/24 dev CARD; rmdir /srv/roots",
        {
            "net-public": "is public",
            "net-conflict": "the hosts box1, box2 have the same address 10.55.0.1, which ranks do not use",
            "rdma": "no usable InfiniBand or RoCE port",
            "in-shm": "/dev/shm in containers has 64 MiB",
            "mount-access": "cannot write to /srv/roots: trainer has no write permission",
        },
    ),
    "busy": (
        {"worker_port": 23456},
        f"case N in 2) {LISTEN} & echo $! >/run/fault;; esac",
        "case N in 2) kill $(cat /run/fault); rm /run/fault;; esac",
        {"net-worker-port": "uses port 23456, the worker_port"},
    ),
    "bound": (
        {},
        f"case N in 2) {BIND} & echo $! >/run/fault;; esac",
        "case N in 2) kill $(cat /run/fault); rm /run/fault;; esac",
        {"in-listen": "cannot listen on DATA2 (MASTER_PORT): Address already in use"},
    ),
}  # fmt: skip

# On a cluster that is up: what ranks find in its containers, by the ways that they come.
# In nvidia-smi's place: the list, the query for it, and no more.
_PLAYED_GPU = """cat >/usr/local/bin/nvidia-smi <<'END'
#!/bin/sh
case $1 in
-L) echo 'GPU 0: A100 (UUID: GPU-0)' ;;
--query-gpu=index,uuid,name,driver_version,memory.total) echo '0, GPU-0, A100, 550.54.14, 81920' ;;
*) exit 2 ;;
esac
END
chmod 755 /usr/local/bin/nvidia-smi"""

UP: Mapping[str, Sequence[Fault]] = {
    "login": (
        Fault("in-login", *drop("-p tcp --dport 12345 -j DROP"), "cannot log in to the worker container"),
    ),
    "containers": (
        Fault(
            "in-names",
            "cp STATE/etc/hosts /root/hosts; sed 's/.* box2$/127.0.1.1 box2/' /root/hosts >STATE/etc/hosts",
            "cat /root/hosts >STATE/etc/hosts",
            "the name box2 resolves to 127.0.1.1 (loopback) instead of DATA2",
        ),
        Fault(
            "in-files",
            # bash reads it in sessions over ssh too, which is how ranks start there.
            "echo 'ulimit -n 512' >STATE/home/.bashrc",
            "rm STATE/home/.bashrc",
            "ranks can open only 512 files",
            "warning",
        ),
        Fault(
            "in-memlock",
            "mkdir /dev/infiniband; mknod /dev/infiniband/uverbs0 c 231 192",
            "rm -r /dev/infiniband",
            "ranks can lock only",
        ),
        Fault(
            "in-gpus",
            _PLAYED_GPU,
            "rm /usr/local/bin/nvidia-smi",
            "but the container has no nvidia-smi",
        ),
        # What follows from a GPU that only its nvidia-smi knows of, on one host of two.
        Fault("gpu-containers", "", "", "Container Toolkit is missing"),
        Fault("gpu-alike", "", "", "compute on the CPU, but ranks on", "warning"),
        Fault(
            "in-versions",
            "docker exec -u 0 WORKER sh -c 'sed -i s/^Version:.*/Version:\\ 9.9.9/ "
            "/opt/venv/lib/python3*/site-packages/mpi4py-*.dist-info/METADATA'",
            "docker rm -f WORKER",
            "mpi4py differs: 4.1.2 on box1; 9.9.9 on box2",
        ),
    ),
}


def own(host: str, text: str) -> str:
    return sh(host, text, CARDS)


@pytest.fixture(scope="module")
def names(cards: Toolkit) -> dict[str, str]:
    """Return the values of the names in capitals; send the image to both hosts and run nothing."""
    cards.run("image", "send", check=True)
    cards.run("down", "--no-save", check=True)
    file = yaml.safe_load(cards.hosts.read_text())
    one, two = (
        own(host, f"ip -o -4 addr show {card}").split()[3].partition("/")[0]
        for host, card in (("box1", "eth0"), ("box2", "enp3s0"))
    )
    return {
        "DATA1": one,
        "DATA2": two,
        "SPARE": two.rpartition(".")[0] + ".222",
        "CONTROL2": file["hosts"]["box2"]["address"],
        "STATE": f"/home/trainer/.local/state/toolkit/{file['cluster']}/box2",
        "WORKER": f"toolkit-{file['cluster']}-worker",
    }


def filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def variant(cards: Toolkit, to: Path, change: Callable[[Any], None]) -> Toolkit:
    file = yaml.safe_load(cards.hosts.read_text())
    change(file)
    (to / "hosts.yaml").write_text(yaml.safe_dump(file))
    return Toolkit(to / "hosts.yaml", cards.folder)


@pytest.fixture(scope="module")
def settled(cards: Toolkit, names: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    """The same hosts with their data addresses written down, so that no fault moves them elsewhere."""

    def settle(file: Any) -> None:
        for number, host in enumerate(file["hosts"].values(), 1):
            host["data_address"] = names[f"DATA{number}"]

    return variant(cards, tmp_path_factory.mktemp("settled"), settle)


@contextmanager
def broken(faults: Sequence[Fault], names: Mapping[str, str]) -> Iterator[None]:
    try:
        for fault in faults:
            run_as_root("box2", filled(fault.make, names), CARDS)
        yield
    finally:
        for fault in faults:
            own("box2", filled(fault.mend, names))


def alarms(done: Done) -> list[dict[str, Any]]:
    return [f for f in done.json["findings"] if f["verdict"] in ("error", "warning")]


def lines_of(done: Done) -> str:
    """Every finding that is not ok, one a line: the reason of what is "not checked" too."""
    rest = [f for f in done.json["findings"] if f["verdict"] != "ok"]
    return "\n".join(f"{f['verdict']} {f['check']} {f['host']}: {f['what']}" for f in rest) + done.err


def require(done: Done, faults: Sequence[Fault], names: Mapping[str, str]) -> None:
    raised = alarms(done)
    for fault in faults:
        found = [f for f in raised if f["check"] == fault.check]
        words = filled(fault.words, names)
        if not any(words in f["what"] for f in found):
            pytest.fail(
                f"check {fault.check} did not report {words!r}, but:\n{lines_of(done)}", pytrace=False
            )
        assert all(f["fix"] for f in found)
    if {f["check"] for f in raised} != {fault.check for fault in faults}:
        pytest.fail(
            f"check reported more than {sorted(f.check for f in faults)}:\n{lines_of(done)}", pytrace=False
        )
    assert done.status == (1 if any(f["verdict"] == "error" for f in raised) else 0)


def test_the_lab_is_healthy(settled: Toolkit) -> None:
    assert alarms(settled.run("check", "--json")) == []


@pytest.mark.parametrize("group", GROUPS)
def test_a_fault_is_found(settled: Toolkit, names: dict[str, str], group: str) -> None:
    with broken(GROUPS[group], names):
        done = settled.run("check", "--json")
    require(done, GROUPS[group], names)


def test_what_is_told_before_the_image_is_there(settled: Toolkit, names: dict[str, str]) -> None:
    """Report dropped packets; a rejected port looks like one without a listener and is not called open."""
    with broken([Fault("", *drop("-p tcp --syn -j DROP"), "")], names):
        dropped = settled.run("check", "--quick", "--json")
    require(
        dropped,
        [
            Fault(
                "pair-open",
                "",
                "",
                "box1 does not reach box2 (DATA2): connections to all tested ports are dropped",
            )
        ],
        names,
    )
    with broken([Fault("", *drop("-p tcp --syn -j REJECT --reject-with tcp-reset"), "")], names):
        quick = settled.run("check", "--quick", "--json").json["findings"]
        told = settled.run("check", "--json")
    assert [f["verdict"] for f in quick if f["check"] == "pair-open"] == ["not checked"]
    require(told, [Fault("pair-open", "", "", "are rejected, although the test program listens")], names)


@pytest.mark.parametrize("name", FILES)
def test_a_fault_of_the_file_or_of_both_hosts(
    cards: Toolkit, names: dict[str, str], tmp_path: Path, name: str
) -> None:
    change, make, mend, words = FILES[name]

    def apply(file: Any) -> None:
        for key, value in change.items():
            if key == "data_address":
                for host, address in zip(("box1", "box2"), value, strict=True):
                    file["hosts"][host][key] = filled(address, names)
            else:
                file[key] = value

    def do(text: str) -> None:
        for host, card in (("box1", "eth0"), ("box2", "enp3s0")):
            line = filled(text, names).replace("CARD", card).replace(".N/", f".{host[-1]}/")
            own(host, f"{{ {line.replace('case N', f'case {host[-1]}') or ':'}; }} >/dev/null 2>&1")

    toolkit = variant(cards, tmp_path, apply)
    do(make)
    try:
        raised = alarms(toolkit.run("check", "--json"))
    finally:
        do(mend)
    for check, said in words.items():
        found = [f for f in raised if f["check"] == check]
        assert any(filled(said, names) in f["what"] and f["fix"] for f in found), raised


def test_nothing_of_a_check_is_left_though_it_was_killed(settled: Toolkit) -> None:
    def runs(host: str, option: str = "") -> bool:
        return "-check-" in own(host, f"docker ps {option} --format '{{{{.Names}}}}'")

    seen = False
    for _ in range(10):  # a look may be over before it was seen
        process = settled.start("check")
        while not seen and process.poll() is None:
            seen = runs("box1")
        process.kill()
        process.communicate()
        if seen:
            break
    assert seen
    for host in ("box1", "box2"):
        waiting.on_host(
            "no container of a check is left",
            host,
            "docker ps -a --format '{{.Names}}'",
            lambda said: "-check-" not in said,
            lab=CARDS,
        )


@pytest.fixture(scope="module")
def running(cards: Toolkit, names: dict[str, str]) -> Iterator[Toolkit]:
    cards.run("up", check=True)
    yield cards
    cards.run("down", "--no-save", check=True)


def test_healthy_hosts_raise_no_alarm_and_no_sshd_is_bothered(running: Toolkit) -> None:
    def bothered() -> str:
        return own("box2", "grep -c 'preauth' /var/log/sshd.log || true")

    before = bothered()
    for _ in range(int(os.environ.get("TOOLKIT_TEST_ROUNDS", "1"))):
        assert alarms(running.run("check", "--json")) == []
    # OpenSSH 9.8 and later block an address for a while that connects without logging in.
    assert bothered() == before


@pytest.mark.parametrize("group", UP)
def test_a_fault_of_a_cluster_that_is_up_is_found(
    running: Toolkit, names: dict[str, str], group: str
) -> None:
    with broken(UP[group], names):
        done = running.run("check", "--json")
    require(done, UP[group], names)
