"""Two cards a host under other names, a decoy, a slow way in, a bent route: ranks take the fast network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.care import CARE
from tests.e2e.world import CARDS, Toolkit, sh

pytestmark = pytest.mark.lab

# 32 MB over the wire each way: far more than all else that a job sends.
PUSH = """\
import sys
import torch
tensor = torch.ones(8_000_000)
if sys.argv[1] == "torchrun":
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(tensor)
    dist.destroy_process_group()
else:
    import horovod.torch as hvd
    hvd.init()
    tensor = hvd.allreduce(tensor, op=hvd.Sum)
assert tensor[0] == 2
"""
DECOY = (
    "ip link add lan0 type bridge; ip addr add 192.168.100.1/24 dev lan0; "
    "ip link add decoy0 type veth peer name decoy1; ip link set decoy1 master lan0; "
    "ip link set decoy0 up; ip link set decoy1 up; ip link set lan0 up"
)


def own(host: str, command: str) -> str:
    return sh(host, command, CARDS)


def device(host: str, address: str) -> str:
    return own(host, f"ip -o -4 addr show to {address}/32 | awk '{{print $2}}'").strip()


@pytest.fixture(scope="module")
def bent(cards: Toolkit) -> Iterator[Toolkit]:
    """A bridge with one address on both hosts, and an asymmetric route in the network of ssh."""
    hosts = yaml.safe_load(cards.hosts.read_text())["hosts"]
    control = {name: host["address"] for name, host in hosts.items()}
    for host in hosts:
        own(host, DECOY)
    data = own("box1", "ip -o -4 addr show eth0").split()[3].partition("/")[0]
    # box2 answers box1's management address by its fast card, box1 sends by the slow one.
    own("box2", f"ip route add {control['box1']}/32 via {data}")
    for host in hosts:
        waiting.on_host(
            "the decoy's bridge is up", host, "ip link show lan0", lambda said: "state UP" in said, lab=CARDS
        )
    with CARE.changed(CARDS):
        yield cards
    own("box2", f"ip route del {control['box1']}/32")
    for host in hosts:
        own(host, "ip link del lan0; ip link del decoy0")


def test_every_choice_and_every_rejection_has_its_reason(bent: Toolkit) -> None:
    said = bent.run("network", "explain", "--json", check=True).json
    slow = yaml.safe_load(bent.hosts.read_text())["hosts"]
    for host in said["hosts"]:
        by_address = {a["address"]: a for a in host["addresses"]}
        assert "the fastest network" in host["why"] and host["network"] == said["networks"][0]
        assert host["address"] != slow[host["host"]]["address"], "the data address is the SSH address"
        assert "slower than" in by_address[slow[host["host"]]["address"]]["why"]
        assert "the bridge has no network card" in by_address["192.168.100.1"]["why"]
        assert "also exists on" in by_address["172.17.0.1"]["why"]
        assert {w["answer"] for w in host["ways"]} == {"refused"}, (
            "a port without a listener refuses connections"
        )
    one, two = said["hosts"]
    assert (one["interface"], two["interface"]) == ("eth0", "enp3s0")
    settings = [{s["name"]: s["value"] for s in host["settings"]} for host in said["hosts"]]
    assert [s["NCCL_SOCKET_IFNAME"] for s in settings] == ["=eth0", "=enp3s0"]
    assert [s["GLOO_SOCKET_IFNAME"] for s in settings] == ["eth0", "enp3s0"]
    assert {s["OMPI_MCA_btl_tcp_if_include"] for s in settings} == set(said["networks"])
    assert "box2 sends to" in bent.run("network", "explain", check=True).out, "the bent route is told"


@pytest.mark.rare
@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun", "torchrun"])
def test_ranks_talk_over_the_fast_network_whatever_starts_them(bent: Toolkit, launcher: str) -> None:
    bent.run("up", check=True)
    # Alone in its folder: what other cases leave beside it would travel as code, over the slow network.
    (bent.folder / "push").mkdir(exist_ok=True)
    (bent.folder / "push" / "push.py").write_text(PUSH)
    slow = yaml.safe_load(bent.hosts.read_text())["hosts"]
    ways = {
        host: {"slow": device(host, entry["address"]), "fast": "eth0" if host == "box1" else "enp3s0"}
        for host, entry in slow.items()
    }

    def count() -> dict[tuple[str, str], int]:
        return {
            (host, way): sum(map(int, own(host, f"cat /sys/class/net/{name}/statistics/?x_bytes").split()))
            for host, names in ways.items()
            for way, name in names.items()
        }

    before = count()
    bent.run("run", "--launcher", launcher, "--workdir", "push", "push.py", launcher, check=True)
    after = count()
    sent = {key: after[key] - before[key] for key in before}
    for host in ways:
        assert sent[host, "fast"] > 60e6, sent
        # The code that is sent, the output that is followed, and no gradient.
        assert sent[host, "slow"] < 1e6, sent


def test_an_existing_cluster_stays_where_it_is(bent: Toolkit) -> None:
    bent.run("up", check=True)
    # Now its link is slower than the other one; who moved would leave containers, keys and jobs behind.
    own("box2", "tc qdisc add dev enp3s0 root tbf rate 10mbit burst 64kb latency 50ms")
    try:
        said = bent.run("network", "explain", "--json", check=True).json
        assert {h["why"] for h in said["hosts"]} == {"an earlier `toolkit up` selected the address"}
        assert bent.run("up", "--json", check=True).json["changes"] == 0
    finally:
        own("box2", "tc qdisc del dev enp3s0 root")
