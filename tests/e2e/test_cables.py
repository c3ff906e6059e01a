"""Two hosts with two cables between them and a slower network for SSH: ranks use a cable."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.care import practice_cluster
from tests.e2e.test_network_choice import PUSH
from tests.e2e.world import LAB, Toolkit, run_as_root, sh
from toolkit.lab.spec import LabSpec

pytestmark = [pytest.mark.lab, pytest.mark.rare]

NAME = f"{LAB}-cables"
HOSTS = ("box1", "box2")
FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
DROP = f"INPUT -i {FIRST} -j DROP"


@pytest.fixture(scope="module")
def cables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toolkit]:
    place, work = tmp_path_factory.mktemp("cables"), tmp_path_factory.mktemp("cables-work")
    (work / "push.py").write_text(PUSH)
    with practice_cluster(LabSpec(NAME, str(place), hosts=2, rate="1gbit", cables=2)):
        yield Toolkit(place / "hosts.yaml", work)


@pytest.fixture
def static(cables: Toolkit) -> Iterator[Toolkit]:
    """The cables as the practice cluster makes them; a cluster that a test brought up is taken down."""
    yield cables
    # Hosts remember their addresses while the cluster is up.
    cables.run("down", "--no-save", check=True)


@pytest.fixture
def local(static: Toolkit) -> Iterator[Toolkit]:
    """Only the first cable has addresses, and these are link-local, as of netplan's `link-local: [ipv4]`."""
    before = {host: addresses(host) for host in HOSTS}
    for number, host in enumerate(HOSTS, 1):
        readdress(host, {FIRST: f"169.254.9.{number}/16"})
    yield static
    for host, own in before.items():
        readdress(host, own)


def addresses(host: str) -> dict[str, str]:
    lines = [sh(host, f"ip -4 -o addr show dev {name}", lab=NAME).split() for name in (FIRST, SECOND)]
    return {line[1]: line[3] for line in lines}


def readdress(host: str, own: dict[str, str]) -> None:
    """Give the cables of a host these addresses, by interface, and no others."""
    lines = [f"ip -4 addr flush dev {name}" for name in (FIRST, SECOND)]
    lines += [f"ip addr add {address} dev {name}" for name, address in own.items()]
    run_as_root(host, " && ".join(lines), lab=NAME)


def explained(toolkit: Toolkit) -> list[dict[str, Any]]:
    hosts: list[dict[str, Any]] = toolkit.run("network", "explain", "--json", check=True).json["hosts"]
    return hosts


def test_a_cable_with_static_addresses_is_used_and_has_two_addresses_only(static: Toolkit) -> None:
    one, two = explained(static)
    assert one["network"] == two["network"] and one["interface"] == two["interface"] == FIRST
    assert ipaddress.IPv4Network(one["network"]).prefixlen == 30
    assert all(way["answer"] == "refused" and way["interface"] == FIRST for way in one["ways"])
    for host in HOSTS:
        assert sh(host, f"cat /sys/class/net/{FIRST}/mtu", lab=NAME).strip() == "9000"


def test_a_link_local_cable_is_used_while_hosts_reach_each_other_there(local: Toolkit) -> None:
    assert {host["interface"] for host in explained(local)} == {FIRST}
    run_as_root("box2", f"iptables -I {DROP}", lab=NAME)
    try:
        one, _ = explained(local)
        reasons = {address["address"]: address["why"] for address in one["addresses"]}
        assert one["interface"] == "eth0", "the network of SSH"
        assert "box1 does not reach 169.254.9.2" in reasons["169.254.9.1"]
    finally:
        run_as_root("box2", f"iptables -D {DROP}", lab=NAME)


@pytest.mark.parametrize("launcher", ["torchrun", "horovodrun"])
def test_ranks_send_over_a_link_local_cable(local: Toolkit, launcher: str) -> None:
    local.run("up", check=True)

    def sent() -> int:
        return int(sh("box1", f"cat /sys/class/net/{FIRST}/statistics/tx_bytes", lab=NAME))

    before = sent()
    local.run("run", "--launcher", launcher, "push.py", launcher, check=True)
    assert sent() - before > 30e6


def test_up_uses_the_new_address_of_a_host_that_started_again(local: Toolkit) -> None:
    local.run("up", check=True)
    readdress("box2", {FIRST: "169.254.77.2/16"})
    assert local.run("up", "--json", check=True).json["changes"] > 0
    assert [host["address"] for host in explained(local)] == ["169.254.9.1", "169.254.77.2"]
    assert local.run("up", "--json", check=True).json["changes"] == 0
