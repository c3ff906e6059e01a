"""The verdicts on networks, ways between hosts and containers, as ``cases.py`` has them for hosts."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.checks import net_scenes as net
from tests.unit.checks.cases import Case
from tests.unit.checks.recorded import place, places
from tests.unit.checks.scenes import scene, with_file, with_host
from tests.unit.cluster_world import gpu
from toolkit.checks.model import Scene
from toolkit.cluster.probe_containers import Looked
from toolkit.core.facts import Interface, Mig
from toolkit.protocol.probes import LookReport

GOOD = scene()
_NO_APPARMOR = (
    "Error response from daemon: AppArmor enabled on system but the docker-default profile could not be"
    " loaded: running `apparmor_parser apparmor_parser --version` failed with output: ."
)
_HOROVODRUN = replace(GOOD, inventory=replace(GOOD.inventory, launcher="horovodrun"))
DROPPED = {"worker": {"answer": "timeout"}, "master": {"answer": "timeout"}, "any": {"answer": "timeout"}}
REFUSED = {"worker": {"answer": "refused"}}


def with_nccl(version: str, **env: str) -> Scene:
    """A GPU image with this NCCL, and variables for all ranks."""
    base = replace(GOOD, inventory=replace(GOOD.inventory, env=tuple(env.items())))
    for name in base.inside:
        base = net.with_inside(base, name, versions={"torch": "2.13.0", "nvidia-nccl-cu13": version})
    return base


def _with_migs(*lines: str) -> Scene:
    """MIG has split the GPU of gpu2 into three; the file lists two of them; the lines of the container."""
    migs = tuple(Mig(index, f"MIG-{letter}", "1g.5gb") for index, letter in enumerate("abc"))
    base = with_host(GOOD, "gpu2", {"gpus": (replace(gpu(0), migs=migs),)})
    return net.with_inside(with_file(base, gpus=2, gpu_ids=("MIG-a", "MIG-b")), "gpu2", gpus=list(lines))


NOTHING = replace(GOOD, paths={}, choice=replace(GOOD.choice, paths={}))
GIVEN = replace(GOOD, inventory=net.settle(GOOD.inventory, {"gpu2": "10.1.1.1"}))
UNLINKED = net.with_facts(GOOD, "gpu2", links=())


def fixed_port(base: Scene) -> Scene:
    inventory = replace(base.inventory, worker_port=23456, worker_port_fixed=True)
    return replace(base, inventory=inventory)


def profile(base: Scene, name: str) -> Scene:
    return replace(base, inventory=replace(base.inventory, network=name))


def other_network(base: Scene) -> Scene:
    apart = (*base.facts["gpu2"].interfaces[:-1], Interface("enp3s0", "10.9.0.3", 24))
    return net.with_facts(base, "gpu2", interfaces=apart, ssh_address="10.9.0.3")


def kernel(range_: str = "32768\t60999", reserved: str = "", rp_filter: str = "0") -> str:
    return (
        f"ip_local_port_range:{range_}\nip_local_reserved_ports:{reserved}\n"
        f"conf/all/rp_filter:0\nconf/enp3s0/rp_filter:{rp_filter}\n"
    )


def with_channels(*hosts: str) -> Scene:
    """Two GB200 hosts; these have an IMEX channel."""
    base, gb200 = GOOD, replace(gpu(0), name="NVIDIA GB200")
    for name in ("gpu1", "gpu2"):
        imex = ("/dev/nvidia-caps-imex-channels/channel0",) if name in hosts else ()
        base = net.with_facts(base, name, gpus=(gb200,), imex=imex)
    return base


def all_into(base: Scene, target: str) -> Scene:
    for source in base.facts:
        base = net.with_pair(base, source, target, **DROPPED) if source != target else base
    return base


def all_out(base: Scene, source: str) -> Scene:
    for target in base.facts:
        base = net.with_pair(base, source, target, **DROPPED) if source != target else base
    return base


NETWORK_CASES = (
    Case("net-address", "ok", GOOD),
    Case(
        "net-address",
        "error",
        net.looked_at(GIVEN),
        "data_address 10.1.1.1 is not among the addresses of the host",
    ),
    Case("net-address", "not checked", NOTHING, "no host answered"),
    Case("net-shared", "ok", GOOD),
    Case("net-shared", "warning", other_network(GOOD), "gpu2 in 10.9.0.0/24"),
    Case("net-shared", "not checked", NOTHING, "no host has a known data address"),
    Case("net-conflict", "ok", GOOD),
    Case(
        "net-conflict",
        "warning",
        net.with_address(net.with_address(GOOD, "gpu1", "eno1", "10.5.0.1"), "cpu3", "eno1", "10.5.0.1"),
        "the hosts gpu1, cpu3 have the same address 10.5.0.1, which ranks do not use",
    ),
    Case(
        "net-conflict",
        "error",
        net.looked_at(
            replace(
                net.with_address(GOOD, "cpu3", "eno1", "10.77.0.3"),
                inventory=net.settle(GOOD.inventory, {"gpu2": "10.77.0.3"}),
            )
        ),
        "the hosts gpu2, cpu3 have the same address 10.77.0.3, which reaches only one of these hosts",
    ),
    Case("net-link", "ok", GOOD),
    Case(
        "net-link",
        "error",
        net.with_link(GOOD, "gpu2", carrier=False, state="down"),
        "the data interface enp3s0 (10.77.0.3) has no carrier",
    ),
    Case("net-link", "error", net.with_link(GOOD, "gpu2", carrier=None, state="down"), "is switched off"),
    Case("net-link", "not checked", UNLINKED, "the data interface of the host is not known"),
    Case("net-speed", "ok", GOOD),
    Case("net-speed", "warning", net.with_link(GOOD, "gpu2", speed=10), "enp3s0 has only 10 Mb/s"),
    Case("net-speed", "warning", net.with_link(GOOD, "gpu2", duplex="half"), "half duplex"),
    Case("net-speed", "warning", net.with_link(GOOD, "gpu2", limit=50.0), "limits enp3s0 to 50 Mb/s"),
    Case("net-speed", "not checked", net.with_link(GOOD, "gpu2", speed=0), "the speed of the data link"),
    Case("net-speeds", "ok", GOOD),
    Case(
        "net-speeds",
        "warning",
        net.with_link(GOOD, "gpu2", speed=1000),
        "the speed of the data link is only 1 Gb/s on gpu2, but up to 10 Gb/s on other hosts",
    ),
    Case("net-speeds", "not checked", net.with_link(GOOD, "gpu2", speed=0), "the speed of some data links"),
    Case("net-mtu", "ok", GOOD),
    Case("net-mtu", "warning", net.with_link(GOOD, "gpu2", mtu=9000), "1500 on gpu1, cpu3; 9000 on gpu2"),
    Case("net-mtu", "ok", net.with_roce(GOOD)),
    Case(
        "net-mtu",
        "warning",
        net.with_other_link(net.with_roce(GOOD), "gpu2", "ens9f1", mtu=4200),
        "the MTU differs in 192.168.1.0/24: 4200 on gpu2; 9000 on gpu1, cpu3",
    ),
    Case("net-mtu", "not checked", NOTHING, "the MTU of the data interfaces is not known"),
    Case("net-errors", "ok", GOOD),
    Case("net-errors", "ok", net.with_link(GOOD, "gpu2", errors=90)),
    Case(
        "net-errors",
        "warning",
        net.with_link(GOOD, "gpu2", errors=2000, packets=10**7),
        "2000 errors in 10000000 packets",
    ),
    Case("net-errors", "not checked", UNLINKED, "the data interface of the host is not known"),
    Case("net-public", "ok", GOOD),
    Case(
        "net-public",
        "warning",
        net.looked_at(
            replace(
                net.with_address(GOOD, "gpu2", "eth9", "8.8.99.2"),
                inventory=net.settle(GOOD.inventory, {"gpu2": "8.8.99.2"}),
            )
        ),
        "8.8.99.2 is public",
    ),
    Case("net-public", "not checked", NOTHING, "not known"),
    Case("net-worker-port", "ok", fixed_port(GOOD)),
    Case(
        "net-worker-port",
        "error",
        net.with_facts(fixed_port(GOOD), "gpu2", listening=(("0.0.0.0", 23456),)),
        "uses port 23456, the worker_port in hosts.yaml",
    ),
    Case("net-worker-port", "not checked", NOTHING, "not known"),
    Case("net-port-range", "ok", GOOD),
    Case(
        "net-port-range", "ok", scene(**{"network-settings": kernel("1024 60999", "12000-13000,29500-31547")})
    ),
    Case(
        "net-port-range",
        "warning",
        scene(**{"network-settings": kernel("10000 60999", "29500-31547")}),
        "12345 (sshd of the worker containers), because the kernel's ephemeral port range is 10000 to 60999",
    ),
    Case(
        "net-port-range",
        "warning",
        scene(**{"network-settings": kernel("31000 60999", "29500")}),
        "can use ports 29500-31547 (MASTER_PORT of jobs), because the kernel's ephemeral port range is 31000",
    ),
    Case("net-port-range", "not checked", scene(**{"network-settings": ""}), "cannot read"),
    Case("rdma", "ok", GOOD),
    Case("rdma", "ok", net.with_rdma(GOOD, "gpu1", "gpu2", "cpu3")),
    Case(
        "rdma",
        "error",
        profile(net.with_rdma(GOOD, "gpu1", "cpu3"), "infiniband"),
        "but the host has no usable InfiniBand or RoCE port",
    ),
    Case("rdma", "error", profile(GOOD, "efa"), "but the host has no EFA device"),
    Case(
        "rdma",
        "error",
        profile(net.with_rdma(net.with_roce(GOOD), "gpu1"), "infiniband"),
        "network: infiniband, but some hosts have only InfiniBand, and others only RoCE",
    ),
    Case(
        "rdma",
        "warning",
        net.with_rdma(GOOD, "gpu1", "cpu3"),
        "(gpu2 has no usable RDMA port), so all hosts use TCP",
    ),
    Case("rdma-ports", "ok", net.with_rdma(GOOD, "gpu1", "gpu2")),
    Case(
        "rdma-ports",
        "warning",
        net.with_rdma(net.with_rdma(GOOD, "gpu1"), "gpu2", state="DOWN"),
        "mlx5_0:1 has the state DOWN, but a port of this name is ACTIVE on another host",
    ),
    Case("rdma-ports", "warning", net.with_rdma(GOOD, "gpu2", state="INIT"), "no subnet manager"),
    Case("rdma-rates", "ok", net.with_rdma(GOOD, "gpu1", "gpu2", "cpu3")),
    Case(
        "rdma-rates",
        "warning",
        net.with_rdma(net.with_rdma(GOOD, "gpu1", "cpu3"), "gpu2", rate=40.0),
        "gpu1 1 × 100 Gb/s, gpu2 1 × 40 Gb/s",
    ),
    Case("rdma-unused", "ok", net.with_roce(GOOD)),
    Case("rdma-unused", "ok", net.with_rdma(GOOD, "gpu1", "gpu2", "cpu3")),
    Case(
        "rdma-unused",
        "warning",
        net.readdressed(net.with_roce(GOOD), "gpu2", ("ens9f0", "192.168.0.2")),
        "ranks do not use the RDMA port roce1:1 (200 Gb/s): ens9f1 has no IPv4 address",
    ),
    Case(
        "rdma-unused",
        "warning",
        net.readdressed(net.with_roce(GOOD), "gpu2", ("ens9f0", "192.168.0.2"), ("ens9f1", "169.254.1.2")),
        "ens9f1 has only the link-local address 169.254.1.2",
    ),
    Case(
        "rdma-unused",
        "warning",
        net.readdressed(net.with_roce(GOOD), "gpu2", ("ens9f1", "192.168.0.2"), ("ens9f0", "192.168.1.2")),
        "ranks do not use the RDMA port roce1:1, because NCCL would connect ports in different networks",
    ),
    Case("rdma-unused", "ok", net.with_vlans(net.with_roce(GOOD), "gpu2", "192.168.0.2", "192.168.1.2")),
    Case(
        "rdma-unused",
        "ok",
        net.with_vlans(net.with_roce(GOOD), "gpu2", "192.168.0.2", "192.168.1.2", gids=False),
    ),
    Case(
        "rdma-unused",
        "warning",
        net.with_vlans(net.with_roce(GOOD), "gpu2", "192.168.0.2"),
        "ranks do not use the RDMA port roce1:1 (200 Gb/s): ens9f1.100 has no IPv4 address",
    ),
    Case(
        "rdma-unused",
        "warning",
        net.with_vlans(net.with_roce(GOOD), "gpu2", "192.168.0.2", "169.254.1.2"),
        "ens9f1.100 has only the link-local address 169.254.1.2",
    ),
    Case("rdma-mtu", "ok", net.with_roce(GOOD, mtu=4200)),
    Case("rdma-mtu", "ok", net.with_rdma(GOOD, "gpu1", "gpu2", "cpu3")),
    Case(
        "rdma-mtu",
        "warning",
        net.with_roce(GOOD, mtu=1500),
        "ens9f0 has MTU 1500, but RoCE packets of 4096",
    ),
    Case("rdma-devices", "ok", net.with_rdma(GOOD, "gpu2")),
    Case(
        "rdma-devices",
        "error",
        net.with_facts(net.with_rdma(GOOD, "gpu2"), "gpu2", infiniband=()),
        "the host has mlx5_0, but no /dev/infiniband/uverbs*",
    ),
    Case("gpu-imex", "ok", with_channels("gpu1", "gpu2")),
    Case("gpu-imex", "ok", with_channels()),
    Case(
        "gpu-imex",
        "warning",
        with_channels("gpu1"),
        "the host has no IMEX channel that user alice can open, but gpu1 has one, so NCCL does not",
    ),
    Case("rdma-devices", "not checked", net.with_rdma(GOOD, "gpu2", state="DOWN"), "no port"),
    Case("pair-route", "ok", GOOD),
    Case(
        "pair-route",
        "warning",
        net.with_route(GOOD, "gpu2", "gpu1", "wlan0"),
        "the host sends to gpu1 (10.77.0.2) through wlan0, but its data interface is enp3s0",
    ),
    Case("pair-route", "error", net.with_route(GOOD, "gpu2", "gpu1", ""), "the host has no route to gpu1"),
    Case("pair-route", "error", net.with_route(GOOD, "gpu2", "gpu1", "lo"), "on its own interface"),
    Case(
        "pair-route",
        "not checked",
        replace(net.with_facts(GOOD, "gpu2", routes=()), evidence=replace(GOOD.evidence, routes={})),
        "did not report its route to gpu1",
    ),
    Case("pair-filter", "ok", GOOD),
    Case("pair-filter", "ok", scene(**{"network-settings": kernel(rp_filter="1")})),
    Case(
        "pair-filter",
        "error",
        net.with_pair(
            net.with_route(scene(**{"network-settings": kernel(rp_filter="1")}), "gpu2", "gpu1", "wlan0"),
            "gpu1",
            "gpu2",
            **DROPPED,
        ),
        "drops packets from gpu1 on enp3s0, because the return route is through wlan0",
    ),
    Case(
        "pair-filter",
        "warning",
        net.with_route(scene(**{"network-settings": kernel(rp_filter="1")}), "gpu2", "gpu1", "wlan0"),
        "would drop packets from gpu1",
    ),
    Case(
        "pair-filter",
        "not checked",
        scene(**{"network-settings": ""}),
        "the reverse-path filter of the data interface",
    ),
    Case("pair-open", "ok", GOOD),
    Case(
        "pair-open",
        "error",
        net.with_pair(GOOD, "gpu1", "gpu2", **DROPPED),
        "connections to all tested ports are dropped without a reply within 1.5 s; gpu2 reaches gpu1",
    ),
    Case(
        "pair-open",
        "error",
        net.with_pair(GOOD, "gpu1", "gpu2", **REFUSED),
        "gpu1 does not reach gpu2 (10.77.0.3): connections to port 12345 are rejected, although",
    ),
    Case(
        "pair-open",
        "error",
        all_into(GOOD, "gpu2"),
        "no other host reaches gpu2 at 10.77.0.3: connections to all tested ports are dropped",
    ),
    Case(
        "pair-open",
        "error",
        all_out(GOOD, "gpu2"),
        "the host reaches no other host: connections to all tested ports are dropped",
    ),
    Case(
        "pair-open",
        "error",
        net.plain(GOOD, {("gpu1", "gpu2", 29500): "timeout", ("cpu3", "gpu2", 29500): "timeout"}),
        "no other host reaches gpu2 at 10.77.0.3: connections to port 29500 are dropped",
    ),
    Case(
        "pair-open",
        "error",
        net.with_pair(net.with_pair(GOOD, "gpu1", "gpu2", **DROPPED), "gpu2", "gpu1", **DROPPED),
        "gpu2 and gpu1 cannot reach each other",
    ),
    Case(
        "pair-open",
        "not checked",
        net.with_route(net.with_pair(GOOD, "gpu1", "gpu2", **DROPPED), "gpu2", "gpu1", ""),
        "connections between gpu1 and gpu2 fail because a link is down or a route is wrong",
    ),
    Case("pair-open", "not checked", net.plain(GOOD, {}), "cannot detect a firewall"),
    Case("pair-open", "not checked", net.without_looks(GOOD), "(gpu1 → gpu2"),
    Case("pair-seen", "ok", GOOD),
    Case(
        "pair-seen",
        "error",
        net.with_pair(GOOD, "gpu1", "gpu2", any={"seen": "10.77.0.99"}),
        "connections from gpu1 arrive at gpu2 with the source address 10.77.0.99 instead of 10.77.0.2",
    ),
    Case(
        "pair-seen",
        "not checked",
        net.without_looks(GOOD),
        "on at least two hosts (gpu1: --quick skips the test programs)",
    ),
    Case("pair-large", "ok", GOOD),
    Case(
        "pair-large",
        "error",
        net.with_pair(GOOD, "gpu1", "gpu2", any={"sent": 0}),
        "large messages from gpu1 to gpu2 stall",
    ),
    Case(
        "pair-large",
        "not checked",
        net.without_looks(GOOD),
        "on at least two hosts (gpu1: --quick skips the test programs)",
    ),
    Case("in-start", "ok", GOOD),
    Case("in-start", "error", net.with_looked(GOOD, "gpu2", Looked(error="no space left")), "no space left"),
    Case(
        "in-start",
        "error",
        net.with_looked(GOOD, "gpu2", Looked(error="exec python3 failed", status=127)),
        "the image toolkit:cpu has no python3",
    ),
    Case(
        "in-start",
        "error",
        net.with_looked(GOOD, "gpu2", Looked(error=_NO_APPARMOR, status=127)),
        "the test program failed: AppArmor is enabled on the host, but",
    ),
    Case("in-start", "not checked", net.without_looks(GOOD), "--quick skips the test programs"),
    # mount-there reports a missing source, and its fix creates the folder.
    Case(
        "in-start",
        "not checked",
        net.with_looked(
            scene(
                places=places(mounts=place("mount", "/data/digits") + place("mount", "/scratch/out", kind=""))
            ),
            "gpu2",
            Looked(error="invalid mount config: bind source path does not exist: /scratch/out"),
        ),
        "the mount source /scratch/out is missing or does not respond [mount-there]",
    ),
    Case("in-programs", "ok", GOOD),
    Case("in-programs", "ok", net.with_inside(GOOD, "gpu2", lacks=["python:ray", "python:deepspeed"])),
    Case(
        "in-programs",
        "error",
        net.with_inside(
            replace(GOOD, inventory=replace(GOOD.inventory, transport="ssh")),
            "gpu2",
            lacks=["/usr/sbin/sshd", "ssh"],
        ),
        "the image toolkit:cpu has no ssh and no /usr/sbin/sshd, which transport: ssh needs",
    ),
    Case(
        "in-programs",
        "error",
        net.with_inside(
            replace(GOOD, inventory=replace(GOOD.inventory, transport="auto", worker_port_fixed=True)),
            "gpu2",
            lacks=["ssh"],
        ),
        "requires sshd in the containers, but transport is exec (the image has no ssh or no /usr/sbin/sshd)",
        fix="in hosts.yaml: remove worker_port  # or build another image: toolkit image build --onto",
    ),
    Case(
        "in-programs",
        "error",
        net.with_inside(_HOROVODRUN, "gpu2", lacks=["mpirun"]),
        "the image toolkit:cpu has no mpirun, which launcher: horovodrun needs",
    ),
    # With launcher: auto the image needs no launcher's program.
    Case("in-programs", "ok", net.with_inside(GOOD, "gpu2", lacks=["mpirun", "horovodrun", "torchrun"])),
    Case("in-programs", "not checked", net.without_looks(GOOD), "no test program"),
    Case("in-listen", "ok", GOOD),
    Case(
        "in-listen",
        "warning",
        net.with_inside(GOOD, "gpu2", faults={"master": "Address already in use"}, taken=["master"]),
        "cannot listen on 10.77.0.3 (MASTER_PORT): Address already in use",
    ),
    Case(
        "in-listen",
        "error",
        net.with_inside(GOOD, "gpu2", faults={"any": "Cannot assign requested address"}),
        "cannot listen on 10.77.0.3 (any port): Cannot assign",
    ),
    Case("in-listen", "not checked", net.without_looks(GOOD), "--quick"),
    Case("in-login", "ok", GOOD),
    Case(
        "in-login",
        "error",
        net.with_inside(GOOD, "gpu1", logins={"gpu2": {"error": "Connection refused"}}),
        "the main container cannot log in to the worker container: Connection refused",
    ),
    Case(
        "in-login",
        "not checked",
        net.without_looks(GOOD),
        "toolkit did not test logins between containers: --quick skips the test programs",
    ),
    Case("in-names", "ok", GOOD),
    Case(
        "in-names",
        "error",
        net.with_inside(GOOD, "gpu2", names={"gpu2": ["127.0.1.1"]}),
        "in the container, the name gpu2 resolves to 127.0.1.1 (loopback) instead of 10.77.0.3",
    ),
    Case(
        "in-names",
        "not checked",
        net.with_looked(GOOD, "gpu2", Looked(LookReport())),
        "the cluster has no running container on this host",
    ),
    Case("in-shm", "ok", GOOD),
    Case(
        "in-shm",
        "warning",
        net.with_inside(GOOD, "gpu2", shm=64 * 2**20),
        "/dev/shm in containers has 64 MiB",
    ),
    Case("in-shm", "not checked", net.without_looks(GOOD), "--quick"),
    Case("in-memlock", "ok", GOOD),
    Case(
        "in-memlock",
        "error",
        net.with_inside(GOOD, "gpu1", logins={"gpu2": {"memlock": 65536, "nofile": 4096}}),
        "ranks can lock only 64 KiB",
        fix="in hosts.yaml: set ulimits: {memlock: unlimited}  # then: toolkit up",
    ),
    Case("in-memlock", "not checked", net.without_looks(GOOD), "--quick"),
    Case("in-files", "ok", GOOD),
    Case(
        "in-files",
        "warning",
        net.with_inside(GOOD, "gpu1", logins={"gpu2": {"memlock": -1, "nofile": 256}}),
        "ranks can open only 256 files",
    ),
    Case("in-files", "not checked", net.without_looks(GOOD), "--quick"),
    Case("in-gpus", "ok", GOOD),
    Case(
        "in-gpus",
        "error",
        net.with_inside(with_host(GOOD, "gpu2", {"gpus": (gpu(0), gpu(1))}), "gpu2", gpus=["GPU 0: A100"]),
        "a container on the host should have 2 GPUs, but nvidia-smi in the container lists 1 GPU",
    ),
    # With a list of MIG devices, a container has only these, and the same GPUs.
    Case("in-gpus", "ok", _with_migs("GPU 0: A100", "MIG 1g.5gb Device 0:", "MIG 1g.5gb Device 1:")),
    Case(
        "in-gpus",
        "error",
        _with_migs("GPU 0: A100", "MIG 1g.5gb Device 0:"),
        "should have 2 MIG devices, but nvidia-smi in the container lists 1 MIG device",
    ),
    Case(
        "in-gpus",
        "error",
        _with_migs("GPU 0: A100"),
        "should have 2 MIG devices, but nvidia-smi in the container lists 1 GPU",
    ),
    Case("in-gpus", "not checked", with_file(GOOD, gpus=9), "hosts.yaml declares [gpu-count]"),
    Case("in-gpus", "not checked", net.without_looks(GOOD), "--quick", "gpu1"),
    Case(
        "in-gpus",
        "not checked",
        net.with_inside(
            with_host(GOOD, "gpu2", {"gpus": (gpu(0),)}), "gpu2", gpu_error="no answer within 8 s"
        ),
        "nvidia-smi in the container failed: no answer within 8 s",
    ),
    Case("in-versions", "ok", GOOD),
    Case(
        "in-versions",
        "error",
        net.with_inside(GOOD, "gpu2", versions={"python": "3.11.2", "torch": "2.12.0", "libmpi": "40.30.4"}),
        "torch differs: 2.13.0 on gpu1, cpu3; 2.12.0 on gpu2",
    ),
    Case("in-versions", "not checked", net.without_looks(GOOD), "no test program"),
    Case("in-variables", "ok", GOOD),
    Case("in-variables", "ok", with_nccl("2.30.3", NCCL_IB_OOO_RQ="1")),
    Case(
        "in-variables",
        "warning",
        with_nccl("2.29.7", NCCL_IB_OOO_RQ="1"),
        "only NCCL 2.30 or newer reads NCCL_IB_OOO_RQ, but the image has NCCL 2.29.7",
    ),
    Case(
        "in-variables",
        "warning",
        net.with_inside(
            with_nccl("2.30.3", NCCL_IB_OOO_RQ="1"), "gpu2", versions={"nvidia-nccl-cu12": "2.9.1"}
        ),
        "but the image has NCCL 2.9.1",
    ),
    Case("in-variables", "not checked", net.without_looks(GOOD), "no test program"),
    Case("in-mounts", "ok", GOOD),
    Case(
        "in-mounts",
        "warning",
        net.with_inside(GOOD, "gpu2", mounts={"/out": "write: Permission denied"}),
        "ranks run as user alice and cannot write to /scratch/out: write: Permission denied",
    ),
    Case("in-mounts", "not checked", net.without_looks(GOOD), "--quick"),
    Case("in-shared", "ok", GOOD),
    Case(
        "in-shared",
        "warning",
        net.with_inside(
            net.with_inside(GOOD, "gpu1", shared={"/out": ["cpu3", "gpu1"]}),
            "cpu3",
            shared={"/out": ["cpu3", "gpu1"]},
        ),
        "/scratch/out is one shared folder on gpu1, cpu3, but a separate folder on gpu2",
    ),
    Case("in-shared", "not checked", net.without_looks(GOOD), "no test program"),
    Case("in-clock", "ok", GOOD),
    Case(
        "in-clock",
        "warning",
        net.with_looked(GOOD, "gpu2", replace(GOOD.inside["gpu2"], ahead=-3600.0)),
        "3600.0 s behind the clock of the host",
    ),
    Case("in-clock", "not checked", net.without_looks(GOOD), "--quick"),
)
