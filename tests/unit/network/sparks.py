"""Two hosts as DGX Sparks show themselves to the probe: one QSFP cable, two network functions per socket.

Composed from the output in NVIDIA's playbooks (connect-two-sparks, nccl) and in issue reports about GB10. It
was not recorded on a Spark of our own.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Mapping

from tests.unit.cluster.test_probe import answer
from toolkit.cluster.probe import parse_facts
from toolkit.core.facts import Facts

HOSTS = """\
cluster: demo
image: toolkit:gpu
hosts:
  spark1: {address: 192.168.1.51}
  spark2: {address: 192.168.1.52}
"""
# The two functions of the socket that the cable connects.
FIRST, SECOND = "enp1s0f1np1", "enP2p1s0f1np1"
_DEVICES = {FIRST: "rocep1s0f1", SECOND: "roceP2p1s0f1"}
_DOWN = {"enp1s0f0np0": "rocep1s0f0", "enP2p1s0f0np0": "roceP2p1s0f0"}

_OTHERS = """\
./wlP9s9/operstate:down
./wlP9s9/mtu:1500
./wlP9s9/type:1
./wlP9s9/uevent:DEVTYPE=wlan
./wlP9s9/device
./docker0/operstate:down
./docker0/carrier:0
./docker0/mtu:1500
./docker0/type:1
./docker0/uevent:DEVTYPE=bridge
./lo/operstate:unknown
./lo/carrier:1
./lo/mtu:65536
./lo/type:772
"""

# Addresses of each host, by interface, as a netplan file with static addresses gives them.
STATIC = (
    {FIRST: "192.168.100.9/30", SECOND: "192.168.101.9/30"},
    {FIRST: "192.168.100.10/30", SECOND: "192.168.101.10/30"},
)
# With `link-local: [ipv4]` for the first function only, and for both.
LOCAL = ({FIRST: "169.254.35.62/16"}, {FIRST: "169.254.118.7/16"})
BOTH_LOCAL = (
    {FIRST: "169.254.35.62/16", SECOND: "169.254.201.4/16"},
    {FIRST: "169.254.118.7/16", SECOND: "169.254.60.19/16"},
)


def sparks(
    addresses: tuple[Mapping[str, str], Mapping[str, str]] = STATIC, mtu: int = 9000
) -> dict[str, Facts]:
    """Both hosts with these addresses on the cable; MTU in bytes."""
    return {f"spark{n}": spark(n, own, mtu) for n, own in enumerate(addresses, 1)}


def spark(number: int, own: Mapping[str, str], mtu: int = 9000) -> Facts:
    """One host, with 10 Gb/s Ethernet in a LAN beside the cable, and Wi-Fi that is off."""
    lan = f"192.168.1.{50 + number}/24"
    sections = answer(
        machine=f"spark{number}\naarch64",
        ssh=f"192.168.1.20 51000 {lan.partition('/')[0]} 22",
        interfaces=_addresses({"lo": "127.0.0.1/8", "enP7s7": lan, **own, "docker0": "172.17.0.1/16"}),
        routes=_routes({"enP7s7": lan, **own, "docker0": "172.17.0.1/16"}),
        links=_links(mtu),
        shaping="",
        rdma="".join(map(_port, _DOWN.values(), _DOWN, ("", ""))) + _ports(own),
        gpus="0, GPU-2dee1e25-b3b5-007e-2b55-79f2d0f2ebe5, NVIDIA GB10, 580.95.05, [N/A]\n",
        infiniband="rdma_cm\nuverbs0\nuverbs1\nuverbs2\nuverbs3",
        cluster="",
        tuned="",
    )
    return parse_facts(f"spark{number}", "demo", sections)


def _addresses(own: Mapping[str, str]) -> str:
    tail = "\\       valid_lft forever preferred_lft forever"
    return "".join(
        f"{n}: {name}    inet {at} scope global {name}{tail}\n" for n, (name, at) in enumerate(own.items(), 1)
    )


def _routes(own: Mapping[str, str]) -> str:
    lines = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    lines.append(f"enP7s7\t00000000\t{_word('192.168.1.1')}\t0003\t0\t0\t100\t00000000\t0\t0\t0")
    for name, at in own.items():
        network = ipaddress.IPv4Interface(at).network
        to, mask = _word(str(network.network_address)), _word(str(network.netmask))
        lines.append(f"{name}\t{to}\t00000000\t0001\t0\t0\t101\t{mask}\t0\t0\t0")
    return "\n".join(lines) + "\n"


def _word(address: str) -> str:
    return f"{struct.unpack('<L', ipaddress.IPv4Address(address).packed)[0]:08X}"


def _links(mtu: int) -> str:
    up = {"enP7s7": (10000, 1500), FIRST: (200000, mtu), SECOND: (200000, mtu)}
    text = ""
    for name, (speed, size) in up.items():
        text += f"./{name}/operstate:up\n./{name}/carrier:1\n./{name}/speed:{speed}\n./{name}/duplex:full\n"
        text += f"./{name}/mtu:{size}\n./{name}/type:1\n./{name}/uevent:INTERFACE={name}\n./{name}/device\n"
    for name in _DOWN:
        text += f"./{name}/operstate:down\n./{name}/carrier:0\n./{name}/speed:-1\n./{name}/duplex:unknown\n"
        text += f"./{name}/mtu:1500\n./{name}/type:1\n./{name}/uevent:INTERFACE={name}\n./{name}/device\n"
    return text + _OTHERS


def _ports(own: Mapping[str, str]) -> str:
    return "".join(_port(device, name, own.get(name, "-")) for name, device in _DEVICES.items())


def _port(device: str, interface: str, address: str) -> str:
    """One RDMA device in sysfs; the address is ``-`` for an active port without one, empty if it is down."""
    at = f"./{device}/ports/1"
    state, rate = ("4: ACTIVE", "200 Gb/sec (4X HDR)") if address else ("1: DOWN", "40 Gb/sec (4X QDR)")
    text = f"{at}/state:{state}\n{at}/rate:{rate}\n{at}/link_layer:Ethernet\n"
    text += f"./{device}/device/uevent:DRIVER=mlx5_core\n./{device}/device/net/{interface}\n"
    gids = ["fe80:0000:0000:0000:3e6d:66ff:fecc:b3b7"] * 2
    if address not in ("", "-"):
        number = int(ipaddress.IPv4Interface(address).ip)
        gids += [f"0000:0000:0000:0000:0000:ffff:{number >> 16:04x}:{number & 0xFFFF:04x}"] * 2
    for index, gid in enumerate(gids):
        text += f"{at}/gids/{index}:{gid}\n{at}/gid_attrs/ndevs/{index}:{interface}\n"
        text += f"{at}/gid_attrs/types/{index}:{'RoCE v2' if index % 2 else 'IB/RoCE v1'}\n"
    return text
