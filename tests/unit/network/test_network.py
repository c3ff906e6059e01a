"""The choice of the data address: other hosts cannot reach every address of a host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit import cluster_world as world
from toolkit.core.facts import Facts, Interface
from toolkit.errors import NotReady
from toolkit.network.choose import DataPath, choose_paths, cidrs

TWO = (
    "cluster: demo\nimage: toolkit:cpu\nhosts:\n  gpu1: {address: 10.77.0.2}\n  gpu2: {address: 10.77.0.3}\n"
)


def host(name: str, *interfaces: tuple[str, str, int], ssh: str = "") -> Facts:
    own = (Interface("lo", "127.0.0.1", 8), world.DOCKER0, *(Interface(*i) for i in interfaces))
    return replace(world.facts(name), interfaces=own, ssh_address=ssh)


def chosen(*said: Facts, text: str = TWO) -> dict[str, tuple[str, str]]:
    paths = choose_paths(world.inventory(text), {f.host: f for f in said})
    return {name: (path.interface, path.address) for name, path in paths.items()}


def test_interfaces_may_have_other_names_on_other_hosts() -> None:
    said = (
        host("gpu1", ("eth0", "10.77.0.2", 24), ssh="10.77.0.2"),
        host("gpu2", ("enp3s0", "10.77.0.3", 24), ssh="10.77.0.3"),
    )
    assert chosen(*said) == {"gpu1": ("eth0", "10.77.0.2"), "gpu2": ("enp3s0", "10.77.0.3")}


def test_an_address_that_two_hosts_have_leads_nowhere() -> None:
    """docker0, and whatever else a person's own bridges are called."""
    said = (
        host("gpu1", ("mybridge", "192.168.100.1", 24), ("eth0", "10.77.0.2", 24)),
        host("gpu2", ("mybridge", "192.168.100.1", 24), ("eth0", "10.77.0.3", 24)),
    )
    assert chosen(*said) == {"gpu1": ("eth0", "10.77.0.2"), "gpu2": ("eth0", "10.77.0.3")}


@pytest.mark.parametrize(
    "name", ["docker0", "br-12ab", "veth0a1", "virbr0", "cni0", "flannel.1", "cali123", "lxcbr0"]
)
def test_interfaces_of_engines_and_overlays_are_not_used(name: str) -> None:
    said = (
        host("gpu1", (name, "172.30.0.1", 16), ("eth0", "10.77.0.2", 24)),
        host("gpu2", (name, "172.30.0.2", 16), ("eth0", "10.77.0.3", 24)),
    )
    assert chosen(*said) == {"gpu1": ("eth0", "10.77.0.2"), "gpu2": ("eth0", "10.77.0.3")}


def test_of_two_shared_networks_the_one_that_ssh_comes_in_by() -> None:
    said = (
        host("gpu1", ("eth0", "10.0.0.2", 24), ("eth1", "10.9.0.2", 24), ssh="10.9.0.2"),
        host("gpu2", ("eth0", "10.0.0.3", 24), ("eth1", "10.9.0.3", 24), ssh="10.9.0.3"),
    )
    assert chosen(*said) == {"gpu1": ("eth1", "10.9.0.2"), "gpu2": ("eth1", "10.9.0.3")}


def test_a_shared_network_counts_more_than_where_ssh_comes_in() -> None:
    said = (
        host("gpu1", ("eth0", "203.0.113.2", 30), ("eth1", "10.9.0.2", 24), ssh="203.0.113.2"),
        host("gpu2", ("eth0", "203.0.113.9", 30), ("eth1", "10.9.0.3", 24), ssh="203.0.113.9"),
    )
    assert chosen(*said) == {"gpu1": ("eth1", "10.9.0.2"), "gpu2": ("eth1", "10.9.0.3")}


def test_without_a_shared_network_where_ssh_comes_in() -> None:
    said = (
        host("gpu1", ("eth0", "10.1.0.2", 24), ssh="10.1.0.2"),
        host("gpu2", ("eth0", "10.2.0.3", 24), ssh="10.2.0.3"),
    )
    assert chosen(*said) == {"gpu1": ("eth0", "10.1.0.2"), "gpu2": ("eth0", "10.2.0.3")}


def test_ssh_through_localhost_or_a_forwarded_port() -> None:
    said = (
        host("gpu1", ("eth0", "10.77.0.2", 24), ssh="127.0.0.1"),
        host("gpu2", ("eth0", "10.77.0.3", 24), ssh="127.0.0.1"),
    )
    assert chosen(*said) == {"gpu1": ("eth0", "10.77.0.2"), "gpu2": ("eth0", "10.77.0.3")}


def test_an_error_lists_the_addresses_if_none_can_be_chosen() -> None:
    said = (
        host("gpu1", ("eth0", "10.1.0.2", 24), ssh="127.0.0.1"),
        host("gpu2", ("eth0", "10.2.0.3", 24), ssh="10.2.0.3"),
    )
    with pytest.raises(
        NotReady, match=r"127.0.0.1 \(lo\), 172.17.0.1 \(docker0\), 10.1.0.2 \(eth0\)"
    ) as caught:
        chosen(*said)
    assert (caught.value.host, "hosts/gpu1/data_address" in caught.value.fix) == ("gpu1", True)


GIVEN = TWO.replace("{address: 10.77.0.3}", "{address: gate.example.com, data_address: 10.9.0.3}")


def test_an_address_of_the_file_is_taken_whatever_else_is_there() -> None:
    said = (
        host("gpu1", ("eth0", "10.77.0.2", 24)),
        host("gpu2", ("eth0", "10.77.0.3", 24), ("ib0", "10.9.0.3", 24), ssh="10.77.0.3"),
    )
    assert chosen(*said, text=GIVEN)["gpu2"] == ("ib0", "10.9.0.3")


def test_an_address_of_the_file_that_the_host_does_not_have() -> None:
    said = (host("gpu1", ("eth0", "10.77.0.2", 24)), host("gpu2", ("eth0", "10.77.0.3", 24)))
    with pytest.raises(
        NotReady, match=r"data_address 10.9.0.3 is not among the addresses of the host.*10.77.0.3 \(eth0\)"
    ) as caught:
        chosen(*said, text=GIVEN)
    assert caught.value.host == "gpu2"


def test_a_host_that_did_not_answer_keeps_the_address_of_the_file() -> None:
    one = host("gpu1", ("eth0", "10.77.0.2", 24), ssh="10.77.0.2")
    assert chosen(one) == {"gpu1": ("eth0", "10.77.0.2"), "gpu2": ("", "10.77.0.3")}
    assert chosen(one, text=GIVEN)["gpu2"] == ("", "10.9.0.3")
    # A name says nothing about the address that ranks would use.
    assert "gpu2" not in chosen(one, text=TWO.replace("10.77.0.3", "gpu2.example.com"))


def test_networks_are_listed_once_and_sorted() -> None:
    def path(host: str, network: str) -> DataPath:
        return DataPath(host, "", "", network, "")

    paths = {n: path(n, net) for n, net in (("b", "10.9.0.0/24"), ("a", "10.0.0.0/8"), ("c", "10.9.0.0/24"))}
    assert cidrs(paths) == ("10.0.0.0/8", "10.9.0.0/24")
