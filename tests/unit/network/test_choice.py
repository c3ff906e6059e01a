"""The choice among several networks, and the reason for or against every address."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from dataclasses import replace

import pytest

from tests.unit import cluster_world as world
from toolkit.core.facts import Facts, Interface, Link, RdmaPort, Remembered, Route
from toolkit.network.choose import Answer, Choice, Evidence, choose, cidrs, undecided_networks

TWO = "cluster: demo\nimage: toolkit:cpu\nhosts:\n  gpu1: {address: 10.0.0.1}\n  gpu2: {address: 10.0.0.2}\n"
SLOW, FAST = "10.0.0.0/24", "10.9.0.0/24"


def card(name: str, network: str, host: int, speed: int = 1000, **link: object) -> tuple[Interface, Link]:
    address = f"{network.rpartition('.')[0]}.{host}"
    return Interface(name, address, 24), Link(name, state="up", speed=speed, card=True, **link)  # type: ignore[arg-type]


def host(name: str, *cards: tuple[Interface, Link], ssh: str = "", routes: tuple[Route, ...] = ()) -> Facts:
    """A host with loopback, docker0 and these cards; ssh comes in by the first one."""
    own = (Interface("lo", "127.0.0.1", 8), world.DOCKER0, *(i for i, _ in cards))
    links = (
        Link("lo", "loopback", "unknown"),
        Link("docker0", "bridge", "down", carrier=False),
        *(link for _, link in cards),
    )
    straight = tuple(Route(i.name, i.network) for i, _ in cards)
    return replace(
        world.facts(name),
        interfaces=own,
        links=links,
        ssh_address=ssh or (cards[0][0].address if cards else ""),
        routes=(*routes, *straight),
    )


def pick(*said: Facts, evidence: Evidence | None = None, text: str = TWO) -> Choice:
    return choose(world.inventory(text), {f.host: f for f in said}, evidence or Evidence())


def taken(choice: Choice) -> dict[str, str]:
    return {name: path.interface for name, path in choice.paths.items()}


def two(slow: int = 1000, fast: int = 100000, **link: object) -> tuple[Facts, Facts]:
    """Two hosts whose cards have each other's names: ssh comes in by the slow network."""
    return (
        host("gpu1", card("eth0", SLOW, 1, slow), card("eth1", FAST, 1, fast, **link)),
        host("gpu2", card("eth1", SLOW, 2, slow), card("eth0", FAST, 2, fast, **link)),
    )


def test_the_fastest_shared_network_wins_over_the_one_of_ssh_and_over_names() -> None:
    choice = pick(*two())
    assert taken(choice) == {"gpu1": "eth1", "gpu2": "eth0"}
    assert (
        choice.paths["gpu1"].reason == "the address is in the fastest network that all hosts share (100 Gb/s)"
    )
    slow = choice.verdicts["gpu1", "10.0.0.1"]
    assert (
        slow == "all hosts share the network, but it is slower than 10.9.0.0/24 (1 Gb/s instead of 100 Gb/s)"
    )


@pytest.mark.parametrize(
    ("one", "two_", "wins"),
    [
        ((1000, 1000), (1000, 100000), SLOW),  # the slowest host of a network sets its pace
        ((100, 1000), (1000, 1000), FAST),
        ((0, 0), (0, 0), SLOW),  # virtual machines do not say; then where ssh comes in
        ((0, 0), (25000, 25000), FAST),
        ((0, 0), (100, 100), SLOW),  # unknown is taken for 1 Gb/s
    ],
)
def test_a_network_is_as_fast_as_its_slowest_host(
    one: tuple[int, int], two_: tuple[int, int], wins: str
) -> None:
    said = (
        host("gpu1", card("eth0", SLOW, 1, one[0]), card("eth1", FAST, 1, two_[0])),
        host("gpu2", card("eth0", SLOW, 2, one[1]), card("eth1", FAST, 2, 1000 if wins == SLOW else two_[1])),
    )
    assert {path.network for path in pick(*said).paths.values()} == {wins}


def test_traffic_shaping_counts_like_a_slow_link() -> None:
    choice = pick(*two(slow=10000, fast=10000, limit=50.0))
    assert taken(choice) == {"gpu1": "eth0", "gpu2": "eth1"}
    assert "slower than" in choice.verdicts["gpu1", "10.9.0.1"]


def test_between_two_equal_networks_the_one_of_ssh_is_chosen() -> None:
    choice = pick(*two(10000, 10000))
    reason = "the address is in a shared network that contains the SSH addresses"
    assert choice.paths["gpu1"].reason == reason
    assert "of the SSH addresses" in choice.verdicts["gpu2", "10.9.0.2"]


@pytest.mark.parametrize("answer", ["timeout", "unreachable"])
def test_a_network_in_which_hosts_do_not_reach_each_other_is_not_taken(answer: Answer) -> None:
    tries: dict[tuple[str, str, int], Answer] = {
        ("gpu1", "10.9.0.2", 45000): "refused",
        ("gpu2", "10.9.0.1", 45000): answer,
        ("gpu1", "10.0.0.2", 45000): "open",
        ("gpu2", "10.0.0.1", 45000): "refused",
    }
    choice = pick(*two(), evidence=Evidence(tries))
    assert taken(choice) == {"gpu1": "eth0", "gpu2": "eth1"}
    assert "gpu2 does not reach 10.9.0.1 (gpu1)" in choice.verdicts["gpu1", "10.9.0.1"]


class Counted(dict[tuple[str, str, int], Answer]):
    """Attempts that count how often all of them are read."""

    reads = 0

    def items(self) -> ItemsView[tuple[str, str, int], Answer]:
        self.reads += 1
        return super().items()


def test_the_attempts_are_read_once_and_not_once_for_each_pair_of_hosts() -> None:
    names = [f"gpu{number}" for number in range(1, 13)]
    cards = ((SLOW, 1000), (FAST, 10000))
    own = {
        name: host(name, *(card(f"eth{n}", net, number, rate) for n, (net, rate) in enumerate(cards)))
        for number, name in enumerate(names, 1)
    }
    rows = "".join(f"  {name}: {{address: 10.0.0.{number}}}\n" for number, name in enumerate(names, 1))
    every = [(name, i.address) for name, facts in own.items() for i in facts.interfaces[2:]]
    tries = Counted({(name, to, 45000): "refused" for name in names for owner, to in every if owner != name})
    choice = pick(
        *own.values(),
        evidence=Evidence(tries),
        text=f"cluster: demo\nimage: toolkit:cpu\nhosts:\n{rows}",
    )
    assert set(taken(choice).values()) == {"eth1"}
    assert tries.reads == 1


def test_without_any_connection_the_fastest_network_is_kept() -> None:
    tries: dict[tuple[str, str, int], Answer] = {
        (a, f"{net}.{n}", 45000): "timeout"
        for a, n in (("gpu1", 2), ("gpu2", 1))
        for net in ("10.0.0", "10.9.0")
    }
    assert taken(pick(*two(), evidence=Evidence(tries))) == {"gpu1": "eth1", "gpu2": "eth0"}


def test_a_network_whose_route_leads_through_a_slow_one_is_as_slow_as_that() -> None:
    """gpu2 sends to gpu1's fast address by its slow card; a third network has no such route."""
    third = "10.8.0.0/24"
    said = (
        host("gpu1", card("eth0", SLOW, 1), card("eth1", FAST, 1, 100000), card("eth2", third, 1, 25000)),
        host("gpu2", card("eth0", SLOW, 2), card("eth1", FAST, 2, 100000), card("eth2", third, 2, 25000)),
    )
    bent = Evidence(routes={("gpu2", "10.9.0.1"): "eth0"})
    choice = pick(*said, evidence=bent)
    assert taken(choice) == {"gpu1": "eth2", "gpu2": "eth2"}
    assert "gpu2 sends to 10.9.0.1 (gpu1) through eth0" in choice.verdicts["gpu2", "10.9.0.2"]
    # With the slow one as the only other, it is still the better half of it.
    assert taken(pick(*two(), evidence=Evidence(routes={("gpu2", "10.9.0.1"): "eth1"})))["gpu1"] == "eth1"
    # The kernel's main table decides if no host could be queried.
    by_table = host(
        "gpu2",
        card("eth0", SLOW, 2),
        card("eth1", FAST, 2, 100000),
        card("eth2", third, 2, 25000),
        routes=(Route("eth0", "10.9.0.1/32"),),
    )
    assert taken(pick(said[0], by_table)) == {"gpu1": "eth2", "gpu2": "eth2"}


def test_of_two_cards_in_one_network_the_one_that_the_kernel_sends_by() -> None:
    said = (
        host("gpu1", card("eth0", SLOW, 1, 1000), card("eth1", SLOW, 11, 10000)),
        host("gpu2", card("eth0", SLOW, 2)),
    )
    assert taken(pick(*said))["gpu1"] == "eth0"
    assert pick(*said).verdicts["gpu1", "10.0.0.11"] == "the data address 10.0.0.1 is in the same network"


def test_of_two_addresses_of_one_interface_the_primary() -> None:
    """A floating address moves to another host, and packets that the host sends have the primary one."""
    one, other = host("gpu1", card("eth0", SLOW, 5)), host("gpu2", card("eth0", SLOW, 2))
    moving = replace(one, interfaces=(*one.interfaces, Interface("eth0", "10.0.0.100", 24, secondary=True)))
    assert pick(moving, other).paths["gpu1"].address == "10.0.0.5"
    assert pick(replace(moving, ssh_address="10.0.0.100"), other).paths["gpu1"].address == "10.0.0.5"
    # Without the word, as from /proc: the kernel lists the primary address first.
    last = replace(one, interfaces=(*one.interfaces, Interface("eth0", "10.0.0.100", 24)))
    assert pick(replace(last, ssh_address="192.168.0.1"), other).paths["gpu1"].address == "10.0.0.5"


class CountedRoutes(tuple[Route, ...]):
    """Routes that count how often all of them are read."""

    reads = 0

    def __iter__(self) -> Iterator[Route]:
        CountedRoutes.reads += 1
        return super().__iter__()


def test_the_routes_are_read_once_and_not_once_for_each_pair_of_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"gpu{number}" for number in range(1, 13)]
    rows = "".join(f"  {name}: {{address: 10.0.0.{number}}}\n" for number, name in enumerate(names, 1))
    said = [
        replace(made, routes=CountedRoutes(made.routes))
        for number, name in enumerate(names, 1)
        for made in [host(name, card("eth0", SLOW, number), card("eth1", FAST, number, 10000))]
    ]
    monkeypatch.setattr(CountedRoutes, "reads", 0)
    choice = pick(*said, text=f"cluster: demo\nimage: toolkit:cpu\nhosts:\n{rows}")
    assert set(taken(choice).values()) == {"eth1"}
    assert CountedRoutes.reads == len(names)


def test_an_existing_cluster_stays_and_a_new_host_joins_it() -> None:
    one, other = two()
    old = Remembered(addresses=(("gpu1", "10.0.0.1"),))
    choice = pick(replace(one, remembered=old), other)
    assert {path.network for path in choice.paths.values()} == {SLOW}
    assert choice.paths["gpu1"].reason == "an earlier `toolkit up` selected the address"
    assert choice.paths["gpu2"].reason.endswith("that other hosts already use")
    assert "other hosts already use 10.0.0.0/24" in choice.verdicts["gpu2", "10.9.0.2"]
    # If the host no longer has it, another address is chosen.
    gone = Remembered(addresses=(("gpu1", "10.3.3.3"),))
    assert {p.network for p in pick(replace(one, remembered=gone), other).paths.values()} == {FAST}


@pytest.mark.parametrize("given", ["", ", data_address: 10.5.5.5"])
def test_other_hosts_do_not_choose_the_address_of_an_absent_host(given: str) -> None:
    """The last host that answers remembers another address of main than the others."""
    text = TWO.replace("{address: 10.0.0.1}", f"{{address: 10.0.0.1{given}}}")
    other = replace(two()[1], remembered=Remembered(addresses=(("gpu1", "10.0.0.66"),)))
    paths = pick(other, text=text).paths
    assert paths["gpu1"].address == (given.split()[-1] if given else "10.0.0.1")
    assert cidrs(paths) == (paths["gpu2"].network,)
    # With a name instead of an address nothing is known of it here.
    named = pick(other, text=TWO.replace("{address: 10.0.0.1}", "{address: gpu1.example}"))
    assert list(named.paths) == ["gpu2"]


def test_a_set_address_selects_the_network_of_all_hosts() -> None:
    text = TWO.replace("{address: 10.0.0.1}", "{address: 10.0.0.1, data_address: 10.0.0.1}")
    choice = pick(*two(), text=text)
    assert {path.network for path in choice.paths.values()} == {SLOW}
    assert (
        choice.verdicts["gpu1", "10.9.0.1"]
        == "the host uses 10.0.0.1: hosts.yaml sets data_address to this address"
    )


def test_connections_are_tried_only_if_there_is_a_choice() -> None:
    one, other = two()

    def names(*said: Facts) -> list[str]:
        return [s.network for s in undecided_networks(world.inventory(TWO), {f.host: f for f in said})]

    assert names(one, other) == [FAST, SLOW]
    old = [Remembered(addresses=((f.host, f.ssh_address),)) for f in (one, other)]
    assert names(replace(one, remembered=old[0]), replace(other, remembered=old[1])) == []
    assert names(host("gpu1", card("eth0", SLOW, 1)), host("gpu2", card("eth0", SLOW, 2))) == []


@pytest.mark.parametrize(
    ("kind", "about", "words"),
    [
        ("ethernet", {"carrier": False}, "has no carrier"),
        ("ethernet", {"carrier": None, "state": "down"}, "switched off"),
        ("bridge", {"card": False}, "the bridge has no network card"),
        ("bridge", {"card": False, "lower": ("veth1",)}, "the bridge has no network card"),
    ],
)
def test_unusable_addresses_are_excluded_with_a_reason(
    kind: str, about: dict[str, object], words: str
) -> None:
    bad = {"kind": kind, "card": True, "state": "up", **about}
    said = tuple(
        host(
            name,
            card("eth0", SLOW, number),
            (Interface("fast0", f"10.9.0.{number}", 24), Link("fast0", speed=100000, **bad)),  # type: ignore[arg-type]
        )
        for number, name in ((1, "gpu1"), (2, "gpu2"))
    )
    choice = pick(*said)
    assert taken(choice) == {"gpu1": "eth0", "gpu2": "eth0"}
    assert words in choice.verdicts["gpu1", "10.9.0.1"]


def test_a_bridge_over_a_card_or_a_bond_of_cards_leads_out() -> None:
    def bridged(name: str, number: int) -> Facts:
        base = host(
            name,
            (Interface("br0", f"10.9.0.{number}", 24), Link("br0", "bridge", "up", lower=("bond0", "vnet3"))),
        )
        below = (Link("bond0", state="up", lower=("eno1",)), Link("eno1", state="up", card=True))
        return replace(base, links=(*base.links, *below))

    assert taken(pick(bridged("gpu1", 1), bridged("gpu2", 2))) == {"gpu1": "br0", "gpu2": "br0"}


@pytest.mark.parametrize("card", [True, False])
def test_a_loop_and_a_ladder_of_lower_interfaces_end(card: bool) -> None:
    """Both are impossible in a kernel, but a host can report them; a ladder has 2**40 ways down."""
    loop = (
        Link("br0", "bridge", "up", lower=("x0", "y0")),
        Link("x40", lower=("x0", "br0")),
        Link("y40", card=card),
    )
    ladder = tuple(
        Link(f"{side}{step}", lower=(f"x{step + 1}", f"y{step + 1}")) for step in range(40) for side in "xy"
    )
    said = [
        replace(made, links=(*made.links, *loop[1:], *ladder))
        for number in (1, 2)
        for made in [host(f"gpu{number}", (Interface("br0", f"10.9.0.{number}", 24), loop[0]))]
    ]
    choice = pick(*said)
    assert taken(choice) == ({"gpu1": "br0", "gpu2": "br0"} if card else {})


def test_cables_come_before_radio_and_radio_before_tunnels() -> None:
    said = tuple(
        host(
            name,
            card("eth0", SLOW, number, 100),
            card("wlan0", "10.3.0.0/24", number, 1000, kind="wireless"),
            card("wg0", FAST, number, 100000, kind="tunnel"),
        )
        for number, name in ((1, "gpu1"), (2, "gpu2"))
    )
    choice = pick(*said)
    assert taken(choice) == {"gpu1": "eth0", "gpu2": "eth0"}
    assert "prefers cable" in choice.verdicts["gpu1", "10.9.0.1"]
    assert [s.network for s in choice.shared] == [SLOW, "10.3.0.0/24", FAST]


def test_ip_over_infiniband_is_as_fast_as_the_port_below_it() -> None:
    said = [
        host(name, card("eth0", SLOW, number, 25000), card("ib0", FAST, number, 0, kind="infiniband"))
        for number, name in ((1, "gpu1"), (2, "gpu2"))
    ]
    port = RdmaPort("mlx5_0", 1, "mlx5_core", "ACTIVE", "InfiniBand", 200.0, ("ib0",))
    assert taken(pick(*(replace(f, rdma=(port,)) for f in said)))["gpu1"] == "ib0"


def test_a_network_of_some_hosts_only_names_the_hosts_without_it() -> None:
    said = (
        host("gpu1", card("eth0", SLOW, 1), card("ib0", FAST, 1, 100000)),
        host("gpu2", card("e", SLOW, 2)),
    )
    assert pick(*said).verdicts["gpu1", "10.9.0.1"] == "gpu2 has no address in 10.9.0.0/24"
