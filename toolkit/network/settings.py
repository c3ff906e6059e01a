"""Network settings of NCCL, Gloo, UCX, libfabric and Open MPI for the ranks of one host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.core.facts import Facts, RdmaPort
from toolkit.network.choose import DataPath
from toolkit.network.fabric import Fabric, choose_fabric, gid_index
from toolkit.protocol.host_list import host_list


@dataclass(frozen=True)
class Setting:
    """One variable of every rank on a host, with its reason."""

    name: str
    value: str
    why: str


def rank_settings(
    path: DataPath, networks: Sequence[str], fabric: Fabric, facts: Facts
) -> tuple[Setting, ...]:
    """Return the variables of every rank on this host, sorted by name.

    Interface names differ from host to host, so these variables are not copied between hosts: the rank
    program sets them after all others (see ``toolkit/container/job/rank.py``).

    Args:
        networks: the data networks of all hosts, see ``cidrs``.
    """
    if not path.interface:
        return ()
    ports = fabric.ports.get(path.host, ())
    found = [*_tcp(path, networks), *_any_host(fabric), *_rdma(path, ports, fabric, facts)]
    return tuple(sorted(found, key=lambda setting: setting.name))


def usual_variables(profile: str = "auto") -> dict[str, str]:
    """Return the variables of every rank on hosts of which nothing is known.

    INTERFACE and NETWORK in the values are placeholders.

    Args:
        profile: ``network:`` of hosts.yaml.
    """
    # An unknown host can have an EFA device.
    fabric = replace(choose_fabric(profile, {}), some_efa=True)
    return variables([*_tcp(DataPath("", "", "INTERFACE", "NETWORK", ""), ("NETWORK",)), *_any_host(fabric)])


def variables(settings: Sequence[Setting]) -> dict[str, str]:
    """Return settings as an environment."""
    return {setting.name: setting.value for setting in settings}


def _tcp(path: DataPath, networks: Sequence[str]) -> list[Setting]:
    name = path.interface
    return [
        # NCCL's user guide: without "=" the value is a prefix.
        Setting(
            "NCCL_SOCKET_IFNAME",
            f"={name}",
            '"=" requires an exact match; without "=", eth1 also matches eth10',
        ),
        Setting("GLOO_SOCKET_IFNAME", name, "Gloo accepts exact names and no patterns"),
        Setting(
            "HOROVOD_GLOO_IFACE",
            name,
            "by default, Horovod with Gloo uses the interface name of the main host on all hosts",
        ),
        Setting("TP_SOCKET_IFNAME", name, "TensorPipe of torch.distributed.rpc uses this interface"),
        # Read when the rank calls MPI_Init.
        Setting(
            "OMPI_MCA_btl_tcp_if_include",
            ",".join(networks),
            "the networks are the same on all hosts, but interface names can differ",
        ),
    ]


def _any_host(fabric: Fabric) -> list[Setting]:
    """Return the settings of a fabric that are the same on every host."""
    found: list[Setting] = []
    if fabric.kind == "tcp only":
        found.append(Setting("NCCL_IB_DISABLE", "1", fabric.reason))
        if fabric.some_efa:
            why = f"NCCL_IB_DISABLE does not disable the EFA plugin of NCCL, and {fabric.reason}"
            found.append(Setting("NCCL_NET", "Socket", why))
    if fabric.kind in ("infiniband", "roce") and fabric.required:
        found.append(
            Setting("NCCL_NET", "IB", "hosts.yaml sets network: infiniband, so NCCL must not use TCP instead")
        )
    if fabric.kind == "efa":
        found += EFA
    return found


def _rdma(path: DataPath, ports: Sequence[RdmaPort], fabric: Fabric, facts: Facts) -> list[Setting]:
    names = [port.name for port in ports]
    why = "by default, UCX tries all devices, including devices that reach no other host"
    found = [Setting("UCX_NET_DEVICES", ",".join((*names, path.interface)), why)]
    if names:
        found.append(
            Setting(
                "NCCL_IB_HCA",
                f"={','.join(names)}",
                f"these are the fastest usable ports, and {fabric.reason}",
            )
        )
    if fabric.kind == "roce" and (index := gid_index(ports, facts, fabric.networks)) is not None:
        reason = "this GID selects RoCE v2 over the IPv4 address of the host"
        found.append(Setting("NCCL_IB_GID_INDEX", str(index), reason))
    if names and facts.gpus and all(gpu.name in NO_GPUDIRECT for gpu in facts.gpus):
        why = f"{facts.gpus[0].name} does not support GPUDirect RDMA"
        found.append(Setting("NCCL_NET_GDR_LEVEL", "LOC", why))
    return found


# Names of nvidia-smi. DGX Spark Porting Guide, "GPUDirect RDMA": neither nvidia-peermem nor DMA-BUF works,
# because network cards cannot read memory of cudaMalloc coherently. NCCL also detects this.
NO_GPUDIRECT = frozenset(("NVIDIA GB10",))


# Amazon's guide "Get started with EFA and NCCL" and the EFA cheat sheet of aws-samples/
# awsome-distributed-training. FI_EFA_USE_DEVICE_RDMA is not among them: since libfabric 1.18 it is set
# automatically, and before that it stops jobs on instances whose device cannot read remote memory.
EFA = [
    Setting("FI_PROVIDER", "efa", "libfabric must use the EFA provider"),
    Setting("FI_EFA_FORK_SAFE", "1", "data loaders that fork need this setting on kernels before 5.15"),
    Setting(
        "FI_EFA_USE_HUGE_PAGE", "0", "with the value 1, data loaders that fork can exhaust the huge pages"
    ),
]


def all_settings(
    paths: Mapping[str, DataPath], networks: Sequence[str], fabric: Fabric, facts: Mapping[str, Facts]
) -> dict[str, tuple[Setting, ...]]:
    """Return the settings of every host that answered."""
    there = [name for name in facts if name in paths]
    found = {name: rank_settings(paths[name], networks, fabric, facts[name]) for name in there}
    if lacking := without_imex(facts):
        has = "has" if len(lacking) == 1 else "have"
        why = f"{host_list(lacking)} {has} no IMEX channel, which NVLink between hosts requires on every host"
        off = Setting("NCCL_MNNVL_ENABLE", "0", why)
        found |= {
            name: tuple(sorted((*own, off), key=lambda setting: setting.name))
            for name, own in found.items()
            if own and facts[name].gpus
        }
    return found


def without_imex(facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """Return the hosts without an IMEX channel, if other hosts with the same GPUs have one.

    A rank without a channel fails (since NCCL 2.27), or disables NVLink between hosts for itself only
    (src/mnnvl.cc). If no host has a channel, all ranks do the same, and NCCL reports the error. Other GPUs do
    not count: NCCL finds that they belong to no NVLink domain.
    """
    names = {gpu.name for own in facts.values() if own.imex for gpu in own.gpus}
    return tuple(
        host for host, own in facts.items() if not own.imex and any(gpu.name in names for gpu in own.gpus)
    )
