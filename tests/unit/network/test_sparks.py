"""Hosts that a cable connects: two ports of one card, link-local addresses, GPUs without GPUDirect RDMA."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.network.sparks import BOTH_LOCAL, FIRST, HOSTS, LOCAL, SECOND, STATIC, sparks
from tests.unit.network.test_choice import TWO, card, host, pick, taken
from toolkit.core.facts import Facts, Gpu, Interface, Remembered, Route
from toolkit.errors import NotReady
from toolkit.network.choose import Answer, Choice, Evidence, choose, choose_paths, undecided_networks
from toolkit.network.explain import Explanation, explain
from toolkit.network.show import explanation_text

INVENTORY = world.inventory(HOSTS)
LAN, LOCAL_NETWORK = "192.168.1.0/24", "169.254.0.0/16"


def connected(facts: dict[str, Facts], answer: Answer = "refused") -> Evidence:
    """Every host has tried each address of the others that is not loopback or docker0."""
    return Evidence(
        {
            (name, i.address, 45000): answer if i.address.startswith("169.254.") else "refused"
            for name in facts
            for other, said in facts.items()
            if other != name
            for i in said.interfaces
            if i.name not in ("lo", "docker0")
        }
    )


def explained(facts: dict[str, Facts], evidence: Evidence | None = None) -> Explanation:
    return explain(INVENTORY, facts, connected(facts) if evidence is None else evidence, {})


def environment(said: Explanation, host: str = "spark1") -> dict[str, str]:
    (one,) = (each for each in said.hosts if each.host == host)
    return {setting.name: setting.value for setting in one.settings}


@pytest.mark.parametrize(("name", "addresses"), [("static", STATIC), ("link-local", LOCAL)])
def test_two_sparks_have_a_golden_choice_and_environment(
    name: str, addresses: tuple[dict[str, str], dict[str, str]]
) -> None:
    check_golden(f"network/sparks-{name}.txt", explanation_text(explained(sparks(addresses))))


def test_both_functions_of_a_socket_carry_rdma_if_both_have_static_addresses() -> None:
    said = environment(explained(sparks()))
    assert said["NCCL_IB_HCA"] == "=roceP2p1s0f1:1,rocep1s0f1:1"
    assert (said["NCCL_SOCKET_IFNAME"], said["NCCL_IB_GID_INDEX"]) == (f"={FIRST}", "3")
    assert said["UCX_NET_DEVICES"] == f"roceP2p1s0f1:1,rocep1s0f1:1,{FIRST}"


def test_gb10_gets_no_gpudirect_and_other_gpus_get_no_such_setting() -> None:
    facts = sparks()
    assert environment(explained(facts))["NCCL_NET_GDR_LEVEL"] == "LOC"
    gpu = Gpu(0, "GPU-1", "NVIDIA H100 80GB HBM3", "580.95.05", 81559)
    other = {name: replace(said, gpus=(gpu,)) for name, said in facts.items()}
    assert "NCCL_NET_GDR_LEVEL" not in environment(explained(other))
    assert "NCCL_NET_GDR_LEVEL" not in environment(explained(sparks(({}, {})))), "without RDMA"


def test_a_link_local_cable_is_used_only_if_every_pair_has_connected() -> None:
    facts = sparks(LOCAL)
    used = choose(INVENTORY, facts, connected(facts))
    assert taken(used) == {"spark1": FIRST, "spark2": FIRST}
    assert "link-local network" in used.paths["spark1"].reason
    for evidence, words in (
        (
            Evidence(),
            "the network is link-local, and not every host has connected to every other host in this network",
        ),
        (connected(facts, "timeout"), "spark1 does not reach 169.254.118.7 (spark2): no answer"),
    ):
        choice = choose(INVENTORY, facts, evidence)
        assert taken(choice) == {"spark1": "enP7s7", "spark2": "enP7s7"}
        assert words in choice.verdicts["spark1", "169.254.35.62"]


def test_rdma_uses_a_link_local_address_only_if_it_is_the_data_address() -> None:
    facts = sparks(LOCAL)
    assert environment(explained(facts))["NCCL_IB_HCA"] == "=rocep1s0f1:1"
    assert environment(explained(sparks(BOTH_LOCAL)))["NCCL_IB_HCA"] == "=rocep1s0f1:1", "one way was tried"
    untried = environment(explained(facts, Evidence()))
    assert untried["NCCL_IB_DISABLE"] == "1" and "NCCL_IB_HCA" not in untried


def local_beside(speed: int, lan: int) -> dict[str, Facts]:
    """A LAN, and a cable with link-local addresses; speeds in Mbit/s, 0 for unknown."""

    def cable(number: int) -> tuple[Interface, object]:
        _, link = card("cable0", "10.9.0.0/24", number, speed)
        return Interface("cable0", f"169.254.7.{number}", 16), link

    return {
        name: host(name, card("eth0", "10.0.0.0/24", n, lan), cable(n))  # type: ignore[arg-type]
        for n, name in ((1, "gpu1"), (2, "gpu2"))
    }


@pytest.mark.parametrize(
    ("speed", "lan", "wins"), [(10000, 1000, "cable0"), (1000, 1000, "eth0"), (0, 0, "eth0")]
)
def test_of_equally_fast_networks_the_link_local_one_is_last(speed: int, lan: int, wins: str) -> None:
    facts = local_beside(speed, lan)
    choice = pick(*facts.values(), evidence=connected(facts))
    assert taken(choice) == {"gpu1": wins, "gpu2": wins}
    if wins == "eth0":
        assert "10.0.0.0/24 is as fast" in choice.verdicts["gpu1", "169.254.7.1"]


@pytest.mark.parametrize(
    ("speed", "lan", "tried"),
    [(10000, 1000, [LOCAL_NETWORK, "10.0.0.0/24"]), (1000, 1000, []), (0, 10000, [])],
)
def test_connections_to_link_local_addresses_are_tried_only_if_their_network_can_win(
    speed: int, lan: int, tried: list[str]
) -> None:
    facts = local_beside(speed, lan)
    found = [one.network for one in undecided_networks(world.inventory(TWO), facts)]
    assert sorted(found) == sorted(tried)


def without_lan(ssh: str) -> dict[str, Facts]:
    """Hosts without a common network except the cable; SSH arrives at ``ssh``."""
    facts = local_beside(10000, 1000)
    for name, said in facts.items():
        own = tuple(i for i in said.interfaces if i.name != "eth0")
        facts[name] = replace(said, interfaces=own, ssh_address=ssh)
    return facts


def test_a_cable_is_found_if_the_hosts_share_nothing_else() -> None:
    facts, inventory = without_lan("127.0.0.1"), world.inventory(TWO)
    assert [one.network for one in undecided_networks(inventory, facts)] == [LOCAL_NETWORK]
    with pytest.raises(NotReady, match=r"169\.254\.7\.1 \(cable0\)"):
        choose_paths(inventory, facts)
    choice = choose(inventory, facts, connected(facts))
    assert choice.paths["gpu1"].reason.endswith("in the only usable link-local network that all hosts share")


def test_a_link_local_address_beside_another_one_is_not_used() -> None:
    facts = sparks(LOCAL)
    for n, (name, said) in enumerate(facts.items(), 9):
        own = (*said.interfaces, Interface(FIRST, f"192.168.100.{n}", 30))
        routes = (*said.routes, Route(FIRST, "192.168.100.8/30"))
        facts[name] = replace(said, interfaces=own, routes=routes)
    choice = choose(INVENTORY, facts, connected(facts))
    assert choice.paths["spark1"].network == "192.168.100.8/30"
    assert (
        choice.verdicts["spark1", "169.254.35.62"]
        == "the address is link-local, and toolkit prefers 192.168.100.9 on the same interface"
    )


def test_controllers_with_one_link_local_address_are_no_conflict() -> None:
    facts = local_beside(0, 10000)
    for name, said in facts.items():
        own = tuple(replace(i, address="169.254.3.1") if i.name == "cable0" else i for i in said.interfaces)
        facts[name] = replace(said, interfaces=own)
    choice: Choice = pick(*facts.values())
    (one,) = (c for c in choice.candidates["gpu1"] if c.link_local)
    assert (
        one.barred == "the address also exists on gpu2, so ranks cannot use the address" and not one.conflict
    )


def test_a_cluster_on_a_link_local_network_stays_there_without_new_connections() -> None:
    facts = sparks(LOCAL)
    before = Remembered((("spark1", "169.254.35.62"), ("spark2", "169.254.118.7")))
    facts = {name: replace(said, remembered=before) for name, said in facts.items()}
    choice = choose(INVENTORY, facts)
    assert {path.reason for path in choice.paths.values()} == {"an earlier `toolkit up` selected the address"}
    assert undecided_networks(INVENTORY, facts) == ()


def test_ports_in_another_order_on_one_host_use_one_network_only() -> None:
    """The second host has the networks of its two functions swapped: NCCL would connect across networks."""
    swapped = (STATIC[0], {SECOND: STATIC[1][FIRST], FIRST: STATIC[1][SECOND]})
    said = explained(sparks(swapped))
    assert [host.network for host in said.hosts] == ["192.168.100.8/30"] * 2
    assert environment(said)["NCCL_IB_HCA"] == "=rocep1s0f1:1"
    assert environment(said, "spark2")["NCCL_IB_HCA"] == "=roceP2p1s0f1:1"
    assert environment(said, "spark2")["NCCL_SOCKET_IFNAME"] == f"={SECOND}"


def test_memory_of_a_gb10_is_unknown_and_not_an_error() -> None:
    said = sparks()["spark1"]
    assert (said.gpus[0].name, said.gpus[0].memory_mib, said.gpu_trouble) == ("NVIDIA GB10", 0, "")
    assert (said.arch, len(said.rdma), sum(port.active for port in said.rdma)) == ("aarch64", 4, 2)
