"""InfiniBand, RoCE and EFA: all hosts or none, and the settings of every library."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit import cluster_world as world
from tests.unit.each import for_each
from toolkit.core.facts import Facts, Gid, Gpu, Interface, Link, RdmaPort
from toolkit.hostsfile.fields import NETWORKS as PROFILES
from toolkit.network.choose import DataPath
from toolkit.network.fabric import Fabric, choose_fabric, gid_index
from toolkit.network.settings import Setting, all_settings, rank_settings, usual_variables, variables
from toolkit.protocol.transport import openmpi_network

IB = RdmaPort("mlx5_0", 1, "mlx5_core", "ACTIVE", "InfiniBand", 200.0, ("ib0",))
EFA = RdmaPort("rdmap0s6", 1, "efa", "ACTIVE", "Unspecified", 100.0)
PATH = DataPath("gpu2", "10.77.0.3", "eth1", "10.77.0.0/24", "")
TCP = Fabric("tcp", "no host has an active RDMA port")
NETWORKS = ("10.77.0.0/24", "10.78.0.0/24")


def hosts(*ports: tuple[RdmaPort, ...]) -> dict[str, Facts]:
    return {f"gpu{n}": world.facts(f"gpu{n}", f"10.77.0.{n}", rdma=own) for n, own in enumerate(ports, 1)}


def roce(number: int, name: str = "mlx5_2", index: int = 3) -> RdmaPort:
    gid = Gid(index, "RoCE v2", f"10.77.0.{number}", "eth0")
    return RdmaPort(name, 1, "mlx5_core", "ACTIVE", "Ethernet", 100.0, ("eth0",), (gid,))


def test_all_hosts_have_infiniband() -> None:
    storage = replace(IB, device="mlx5_9", rate=100.0)
    down = replace(IB, device="mlx5_1", state="DOWN")
    fabric = choose_fabric("auto", hosts((IB, storage, down), (IB,)))
    assert fabric.kind == "infiniband" and fabric.ports == {"gpu1": (IB,), "gpu2": (IB,)}


def test_infiniband_for_storage_does_not_replace_faster_roce() -> None:
    storage = replace(IB, rate=100.0)
    compute = [tuple(replace(roce(n, f"mlx5_{i}"), rate=400.0) for i in (2, 3)) for n in (1, 2)]
    fabric = choose_fabric("auto", hosts((storage, *compute[0]), (storage, *compute[1])))
    assert fabric.kind == "roce" and fabric.ports == {"gpu1": compute[0], "gpu2": compute[1]}
    assert "the RoCE ports are faster than the InfiniBand ports" in fabric.reason
    equal = choose_fabric("auto", hosts((IB, replace(roce(1), rate=200.0)), (IB, roce(2))))
    assert equal.kind == "infiniband"


@pytest.mark.parametrize(
    ("other", "kind", "words"),
    [
        ((), "tcp only", "gpu2 has no usable RDMA port"),
        ((replace(IB, state="INIT"),), "tcp only", "gpu2 has no usable RDMA port"),
        ((roce(2),), "tcp only", "some hosts have only InfiniBand, and others only RoCE"),
    ],
)
def test_one_host_without_it_means_tcp_for_all(other: tuple[RdmaPort, ...], kind: str, words: str) -> None:
    fabric = choose_fabric("auto", hosts((IB,), other))
    assert (fabric.kind, fabric.ports) == (kind, {}) and words in fabric.reason


def test_roce_needs_a_network_that_all_share() -> None:
    assert choose_fabric("auto", hosts((roce(1),), (roce(2),))).kind == "roce"
    apart = hosts((roce(1),), (roce(2),))
    apart["gpu2"] = replace(apart["gpu2"], interfaces=(Interface("eth0", "10.88.0.2", 24),))
    assert choose_fabric("auto", apart).kind == "tcp only"


@pytest.mark.parametrize(
    ("rates", "networks"),
    [
        (((200.0, 200.0), (200.0, 200.0)), "AB"),
        (((200.0, 200.0), (100.0, 200.0)), "B"),
        (((200.0, 200.0), (0.0, 200.0)), "B"),
        (((200.0, 200.0), (200.0, 100.0)), "A"),
        (((200.0, 100.0), (100.0, 200.0)), "A"),
        (((200.0, 100.0), (0.0, 200.0)), "B"),
        (((200.0, 200.0, 200.0), (200.0, 0.0, 200.0)), "AC"),
        (((200.0, 200.0), (200.0, 200.0, 200.0)), "AB"),
    ],
)
def test_all_hosts_use_the_same_networks_if_a_port_is_slow_or_down(
    rates: tuple[tuple[float, ...], ...], networks: str
) -> None:
    """NCCL connects the first ports of all hosts, also if the hosts use different numbers of ports."""
    found = {}
    for number, own in enumerate(rates, 1):
        at = tuple(Interface(f"eth{i}", f"10.7{7 + i}.0.{number}", 24) for i in range(3))
        ports = tuple(
            replace(
                roce(number, f"mlx5_{i}"),
                state="ACTIVE" if rate else "DOWN",
                rate=rate,
                interfaces=(at[i].name,),
                gids=(Gid(3, "RoCE v2", at[i].address, at[i].name),),
            )
            for i, rate in enumerate(own)
        )
        found[f"gpu{number}"] = replace(world.facts(f"gpu{number}", rdma=ports), interfaces=at)
    data = {name: replace(PATH, host=name) for name in found}
    fabric = choose_fabric("auto", found, data)
    used = {name: [port.device for port in own] for name, own in fabric.ports.items()}
    assert list(used.values()) == [[f"mlx5_{'ABC'.index(network)}" for network in networks]] * 2


@pytest.mark.parametrize("above", ["bond0", "ens1f0np0.100"])
def test_an_address_above_the_port_is_the_ports(above: str) -> None:
    """With RoCE LAG one device has both ports of a card, and the bond above them has the address."""
    found = {}
    for number, name in enumerate(("gpu1", "gpu2"), 1):
        gid = Gid(3, "RoCE v2", f"10.77.0.{number}", above)
        below = ("ens1f0np0", "ens1f1np1")
        port = RdmaPort("mlx5_bond_0", 1, "mlx5_core", "ACTIVE", "Ethernet", 100.0, below, (gid,))
        own = Interface(above, f"10.77.0.{number}", 24)
        found[name] = replace(world.facts(name, own.address, rdma=(port,)), interfaces=(own,))
    fabric = choose_fabric("auto", found)
    assert fabric.kind == "roce"
    for name, ports in fabric.ports.items():
        assert [port.name for port in ports] == ["mlx5_bond_0:1"]
        assert told(fabric, found[name], replace(PATH, host=name))["NCCL_IB_GID_INDEX"] == "3"


def test_the_gid_is_in_the_network_that_the_hosts_share() -> None:
    """A port without a VLAN has an address of another network, which the kernel lists first."""
    found = {}
    for number, name in enumerate(("gpu1", "gpu2"), 1):
        addresses = (f"192.168.{number}.5", f"10.77.0.{number}")
        own = tuple(map(Interface, ("ens1", "ens1.100"), addresses, (24, 24)))
        gids = tuple(Gid(3 + 2 * at, "RoCE v2", i.address, i.name) for at, i in enumerate(own))
        port = RdmaPort("mlx5_0", 1, "mlx5_core", "ACTIVE", "Ethernet", 100.0, ("ens1",), gids)
        found[name] = replace(world.facts(name, "10.77.0.1", rdma=(port,)), interfaces=own)
    fabric = choose_fabric("auto", found)
    for name, ports in fabric.ports.items():
        assert [port.name for port in ports] == ["mlx5_0:1"]
        assert told(fabric, found[name], replace(PATH, host=name))["NCCL_IB_GID_INDEX"] == "5"


def test_an_interface_of_a_container_is_not_the_hosts() -> None:
    """A container can have an interface above the port, with the name of another card of the host."""
    found = {}
    for number, name in enumerate(("gpu1", "gpu2"), 1):
        gid = Gid(3, "RoCE v2", f"192.168.9.{number}", "eth0")
        port = RdmaPort("mlx5_0", 1, "mlx5_core", "ACTIVE", "Ethernet", 100.0, ("ens1",), (gid,))
        own = Interface("eth0", f"10.77.0.{number}", 24)
        found[name] = replace(world.facts(name, own.address, rdma=(port,)), interfaces=(own,))
    assert choose_fabric("auto", found).kind == "tcp only"


def test_profiles_of_the_file() -> None:
    both = hosts((IB,), (IB,))
    assert choose_fabric("ethernet", both).kind == "tcp only"
    asked = choose_fabric("infiniband", both)
    assert asked.required and not asked.lacking
    assert choose_fabric("infiniband", hosts((IB,), ())).lacking == ("gpu2",)
    assert choose_fabric("infiniband", hosts((), ())).lacking == ("gpu1", "gpu2")
    assert choose_fabric("efa", hosts((EFA,), ())).lacking == ("gpu2",)
    assert choose_fabric("auto", hosts((EFA,), (EFA,))).kind == "efa"
    assert choose_fabric("auto", hosts((), ())).kind == "tcp"


def told(fabric: Fabric, facts: Facts, path: DataPath = PATH) -> dict[str, str]:
    return variables(rank_settings(path, NETWORKS, fabric, facts))


def test_settings_without_rdma() -> None:
    assert told(TCP, world.facts()) == {
        "GLOO_SOCKET_IFNAME": "eth1",
        "HOROVOD_GLOO_IFACE": "eth1",
        "NCCL_SOCKET_IFNAME": "=eth1",
        "OMPI_MCA_btl_tcp_if_include": "10.77.0.0/24,10.78.0.0/24",
        "TP_SOCKET_IFNAME": "eth1",
        "UCX_NET_DEVICES": "eth1",
    }
    assert told(TCP, world.facts(), replace(PATH, interface="")) == {}


@for_each("profile", PROFILES)
def test_unknown_hosts_have_the_settings_of_known_hosts_except_names_of_devices(profile: str) -> None:
    """For exported jobs, because a scheduler selects their nodes."""
    facts = hosts((IB, EFA), (IB, EFA))
    path, fabric = replace(PATH, interface="INTERFACE"), choose_fabric(profile, facts)
    known = variables(rank_settings(path, ("NETWORK",), fabric, facts["gpu2"]))
    del known["UCX_NET_DEVICES"]
    known.pop("NCCL_IB_HCA", "")
    assert usual_variables(profile) == known


def test_settings_for_infiniband() -> None:
    facts = hosts((IB,), (IB, replace(IB, device="mlx5_3")))
    auto = told(choose_fabric("auto", facts), facts["gpu2"])
    assert auto["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_3:1", "an exact match: mlx5_1 also takes mlx5_10"
    assert auto["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_3:1,eth1"
    assert "NCCL_NET" not in auto and "NCCL_IB_GID_INDEX" not in auto
    assert told(choose_fabric("infiniband", facts), facts["gpu2"])["NCCL_NET"] == "IB"
    lone = told(choose_fabric("auto", hosts((), (IB,))), facts["gpu2"])
    assert lone["NCCL_IB_DISABLE"] == "1" and "NCCL_IB_HCA" not in lone


@pytest.mark.parametrize(
    ("profile", "ports", "reason"),
    [
        ("auto", ((EFA,), ()), "gpu2 has no EFA device"),
        ("auto", ((EFA,), (IB,)), "gpu1 has no usable RDMA port"),
        ("ethernet", ((EFA,), (EFA,)), "hosts.yaml sets network: ethernet"),
    ],
)
def test_no_host_uses_efa_if_not_all_do(
    profile: str, ports: tuple[tuple[RdmaPort, ...], ...], reason: str
) -> None:
    """A host with the plugin for EFA would wait forever for a host that uses TCP."""
    facts = hosts(*ports)
    fabric = choose_fabric(profile, facts)
    assert fabric.kind == "tcp only" and reason in fabric.reason
    for own in facts.values():
        settings = told(fabric, own)
        assert (settings["NCCL_NET"], settings["NCCL_IB_DISABLE"]) == ("Socket", "1")
        assert "FI_PROVIDER" not in settings


def test_the_gid_index_is_set_only_if_one_fits_all_ports() -> None:
    own = world.facts("gpu2", "10.77.0.2")
    assert gid_index((roce(2),), own, NETWORKS) == 3
    assert gid_index((roce(2), roce(2, "mlx5_3")), own, NETWORKS) == 3
    assert gid_index((roce(2), roce(2, "mlx5_3", 5)), own, NETWORKS) is None
    old = replace(roce(2), gids=(Gid(1, "IB/RoCE v1", "10.77.0.2", "eth0"),))
    assert gid_index((old,), own, NETWORKS) is None
    assert gid_index((), own, NETWORKS) is None
    facts = hosts((roce(1),), (roce(2),))
    assert told(choose_fabric("auto", facts), facts["gpu2"])["NCCL_IB_GID_INDEX"] == "3"


CHANNEL = ("/dev/nvidia-caps-imex-channels/channel0",)
GB200 = Gpu(0, "GPU-0", "NVIDIA GB200", "580.95.05", 189471)


def test_nvlink_between_hosts_is_for_all_of_them_or_none() -> None:
    """A rank without an IMEX channel cannot share memory with ranks on other hosts, and NCCL fails."""

    def found(*own: dict[str, object]) -> dict[str, str | None]:
        facts = {f"gpu{n}": world.facts(f"gpu{n}", **each) for n, each in enumerate(own, 1)}  # type: ignore[arg-type]
        paths = {name: replace(PATH, host=name) for name in facts}
        every = all_settings(paths, NETWORKS, TCP, facts)
        return {
            name: next((s.why for s in each if (s.name, s.value) == ("NCCL_MNNVL_ENABLE", "0")), None)
            for name, each in every.items()
        }

    has, lacks = {"gpus": (GB200,), "imex": CHANNEL}, {"gpus": (GB200,)}
    why = "gpu2 has no IMEX channel, which NVLink between hosts requires on every host"
    assert found(has, lacks, {}) == {"gpu1": why, "gpu2": why, "gpu3": None}
    # If no host has a channel, NCCL reports it. NCCL finds that other GPUs belong to no NVLink domain.
    other = {"gpus": (replace(GB200, name="NVIDIA H100 80GB HBM3"),)}
    for own in ((has, has), (lacks, lacks), (has, other), (has, {})):
        assert set(found(*own).values()) == {None}


def test_settings_for_efa_have_reasons() -> None:
    settings = rank_settings(PATH, NETWORKS, choose_fabric("efa", hosts(())), world.facts())
    assert variables(settings)["FI_PROVIDER"] == "efa"
    assert "FI_EFA_USE_DEVICE_RDMA" not in variables(settings), "stops jobs on devices that cannot"
    assert all(isinstance(s, Setting) and s.why for s in settings)
    assert [s.name for s in settings] == sorted(s.name for s in settings)


def test_open_mpi_4_and_5_have_equal_settings() -> None:
    assert set(openmpi_network(NETWORKS).values()) == {"10.77.0.0/24,10.78.0.0/24"}
    assert {n.partition("_MCA_")[0] for n in openmpi_network(NETWORKS)} == {"OMPI", "PRTE"}


def test_a_bond_reports_its_own_speed_and_shaping_counts() -> None:
    assert Link("bond0", speed=50000, limit=100.0).rate == 100.0
    assert Link("eth0").rate == 0.0
