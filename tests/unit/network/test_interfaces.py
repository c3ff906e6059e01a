"""Network facts from recorded output of hosts' kernels, and the conclusions from them."""

from __future__ import annotations

import pytest

from tests.unit import cluster_world as world
from toolkit.core.facts import Gid, Link, RdmaPort, Route, rate_text
from toolkit.network import interfaces
from toolkit.network.interfaces import parse_links, parse_rdma, parse_routes
from toolkit.protocol.decode import DecodeError

# Debian 13: a bond of two cards under a bridge, WireGuard, a VPN's tap, a card that is switched off.
LINKS = """\
./bond0/operstate:up
./br0/operstate:up
./eno1/operstate:up
./eno2/operstate:down
./lo/operstate:unknown
./tap0/operstate:unknown
./wg0/operstate:unknown
./wlp3s0/operstate:up
./ib0/operstate:up
./bond0/carrier:1
./br0/carrier:1
./eno1/carrier:1
./lo/carrier:1
./ib0/carrier:1
./bond0/speed:20000
./br0/speed:4294967295
./eno1/speed:10000
./tap0/speed:10
./wg0/speed:-1
./eno1/duplex:full
./eno1/mtu:9000
./lo/mtu:65536
./bond0/type:1
./br0/type:1
./eno1/type:1
./eno1.7/type:1
./eno1.7/operstate:up
./eno2/type:1
./lo/type:772
./tap0/type:1
./wg0/type:65534
./wlp3s0/type:1
./ib0/type:32
./bond0/uevent:DEVTYPE=bond
./bond0/uevent:INTERFACE=bond0
./br0/uevent:DEVTYPE=bridge
./eno1.7/uevent:DEVTYPE=vlan
./wg0/uevent:DEVTYPE=wireguard
./wlp3s0/uevent:DEVTYPE=wlan
./tap0/tun_flags:0x1002
./eno1/statistics/rx_packets:1000
./eno1/statistics/tx_packets:500
./eno1/statistics/rx_errors:7
./eno1/statistics/tx_errors:1
./eno1/device
./eno2/device
./bond0/lower_eno1
./bond0/lower_eno2
./br0/lower_bond0
./eno1.7/lower_eno1
"""
SHAPING = """\
qdisc noqueue 0: dev lo root refcnt 2
qdisc mq 0: dev eno1 root
qdisc fq_codel 0: dev eno1 parent :1 limit 10240p flows 1024 rate 9Gbit
qdisc tbf 8001: dev bond0 root refcnt 2 rate 100Mbit burst 125000b lat 50ms
qdisc cake 8002: dev wlp3s0 root refcnt 2 bandwidth 512Kbit diffserv3
"""


def test_links_are_told_apart_by_what_they_are_not_by_their_names() -> None:
    links = {link.name: link for link in parse_links(LINKS, SHAPING)}
    assert {name: link.kind for name, link in links.items()} == {
        "bond0": "ethernet",
        "br0": "bridge",
        "eno1": "ethernet",
        "eno1.7": "ethernet",
        "eno2": "ethernet",
        "ib0": "infiniband",
        "lo": "loopback",
        "tap0": "tunnel",
        "wg0": "tunnel",
        "wlp3s0": "wireless",
    }
    eno1 = Link(
        "eno1", "ethernet", "up", True, 10000, 0.0, "full", 9000, (), card=True, packets=1500, errors=8
    )
    assert links["eno1"] == eno1
    assert links["eno2"].carrier is None and links["eno2"].down, "a card that is off does not say"
    assert [name for name, link in links.items() if link.vlan] == ["eno1.7"]
    assert links["eno1.7"].lower == ("eno1",)
    assert links["bond0"].lower == ("eno1", "eno2") and links["br0"].lower == ("bond0",)
    assert (links["br0"].speed, links["wg0"].speed) == (0, 0), "two ways to say unknown"
    assert (links["bond0"].rate, links["wlp3s0"].rate) == (100.0, 0.512)
    assert links["eno1"].limit == 0, "a queue below the root limits nothing as a whole"


def test_nothing_is_made_of_nothing() -> None:
    assert parse_links("", "") == () and parse_links("garbage\n./x\n:::\n", "qdisc") == ()
    assert parse_rdma("") == () and parse_routes("") == ()


ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t01004D0A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
    "eth0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    "eth1\t03004D0A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n"
    "*\t00000A0A\t00000000\t0200\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
)


def test_routes() -> None:
    routes = parse_routes(ROUTES)
    assert routes[0] == Route("eth0", "0.0.0.0/0", "10.77.0.1", 100)
    assert [r.network for r in routes[2:]] == ["10.77.0.0/24", "10.77.0.3/32"], "a rejected one is none"


@pytest.mark.parametrize(
    ("address", "interface"),
    [("10.77.0.2", "eth0"), ("10.77.0.3", "eth1"), ("8.8.8.8", "eth0"), ("10.10.0.1", "eth0")],
)
def test_the_longest_prefix_then_the_smallest_metric(address: str, interface: str) -> None:
    assert world.facts("gpu1", routes=parse_routes(ROUTES)).leaves_by(address) == interface
    assert world.facts("gpu1").leaves_by(address) == ""


def test_of_two_routes_to_one_network_the_smaller_metric_then_the_earlier_line() -> None:
    routes = tuple(Route(f"eth{i}", "10.77.0.0/24", metric=metric) for i, metric in enumerate((9, 5, 5)))
    assert world.facts("gpu1", routes=routes).leaves_by("10.77.0.9") == "eth1"


def test_a_very_long_routing_table_counts_as_unknown() -> None:
    header, row = ROUTES.splitlines(keepends=True)[0], ROUTES.splitlines(keepends=True)[3]
    assert len(parse_routes(header + row * 4096)) == 4096
    assert parse_routes(header + row * 4097) == ()


# mlx5 with RoCE, its second port down; EFA beside it.
RDMA = """\
./mlx5_0/ports/1/state:4: ACTIVE
./mlx5_0/ports/2/state:1: DOWN
./rdmap0s6/ports/1/state:4: ACTIVE
./mlx5_0/ports/1/rate:100 Gb/sec (4X EDR)
./mlx5_0/ports/2/rate:2.5 Gb/sec (1X SDR)
./rdmap0s6/ports/1/rate:100 Gb/sec (4X EDR)
./mlx5_0/ports/1/link_layer:Ethernet
./mlx5_0/ports/2/link_layer:Ethernet
./rdmap0s6/ports/1/link_layer:Unspecified
./mlx5_0/device/uevent:DRIVER=mlx5_core
./mlx5_0/device/uevent:PCI_CLASS=20700
./rdmap0s6/device/uevent:DRIVER=efa
./mlx5_0/ports/1/gids/0:fe80:0000:0000:0000:0e42:a1ff:fe8b:0001
./mlx5_0/ports/1/gids/2:0000:0000:0000:0000:0000:ffff:0a4d:0003
./mlx5_0/ports/1/gids/3:0000:0000:0000:0000:0000:ffff:0a4d:0003
./mlx5_0/ports/1/gid_attrs/types/2:IB/RoCE v1
./mlx5_0/ports/1/gid_attrs/types/3:RoCE v2
./mlx5_0/ports/1/gid_attrs/ndevs/2:ens1f0
./mlx5_0/ports/1/gid_attrs/ndevs/3:ens1f0
./mlx5_0/device/net/ens1f0
"""


def test_rdma_ports() -> None:
    first, second, efa = parse_rdma(RDMA)
    assert first == RdmaPort(
        "mlx5_0",
        1,
        "mlx5_core",
        "ACTIVE",
        "Ethernet",
        100.0,
        ("ens1f0",),
        (Gid(2, "IB/RoCE v1", "10.77.0.3", "ens1f0"), Gid(3, "RoCE v2", "10.77.0.3", "ens1f0")),
    )
    assert (second.active, second.rate, second.name) == (False, 2.5, "mlx5_0:2")
    assert (efa.driver, efa.layer, efa.active) == ("efa", "Unspecified", True)


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "unknown speed"), (10, "10 Mb/s"), (2500, "2.5 Gb/s"), (400000, "400 Gb/s")]
)
def test_rates_for_people(rate: float, text: str) -> None:
    assert rate_text(rate) == text


def test_a_host_with_very_many_addresses_is_refused() -> None:
    line = "1: e inet 10.0.0.1/8 x\n"
    assert len(interfaces.parse_interfaces(line * 4096, "", "")) == 4096
    with pytest.raises(DecodeError, match="more than 4096 addresses"):
        interfaces.parse_interfaces(line * 4097, "", "")
