"""A small cluster on paper: a hosts file, what three unlike hosts said, and the values made of both."""

from __future__ import annotations

import base64
import functools
import hashlib
import stat
from dataclasses import replace

from toolkit import __version__
from toolkit.checks.leftovers import Stray
from toolkit.cleanup.plan import Leftovers, plan_gc
from toolkit.cluster.containers import cluster_container
from toolkit.cluster.layout import Layout, Observed, make_layout
from toolkit.cluster.versions import programs_of
from toolkit.core.code import CodeTree, Entry
from toolkit.core.container import Container, Mount, Ulimit
from toolkit.core.facts import ContainerFacts, Facts, Gpu, Interface, StateFile
from toolkit.core.host_programs import container_programs
from toolkit.core.image import ImageFacts
from toolkit.data.plan import plan_remove
from toolkit.hostsfile.inventory import DataSet, Inventory
from toolkit.hostsfile.parse import parse_inventory
from toolkit.jobs.plan import plan_job, rooms
from toolkit.jobs.slots import take_slots
from toolkit.launchers.job import Job, JobHost
from toolkit.lifecycle.down import plan_down
from toolkit.lifecycle.up import plan_up
from toolkit.network.choose import cidrs
from toolkit.plan.show import plan_text
from toolkit.plan.steps import Plan
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER, LABEL_PORT, container_name, identity_reference
from toolkit.protocol.shards import Content, pack

HOSTS = """\
cluster: demo
image: toolkit:cpu
main: gpu1
hosts:
  gpu1:
    address: 10.77.0.2
  gpu2:
    address: 10.77.0.3
    slots: 3
    env: {OMP_NUM_THREADS: "4"}
  cpu3:
    address: 10.77.0.4
mounts:
  - /data/digits:/data:ro
  - /scratch/out:/out
env:
  EPOCHS: "3"
  MOTTO: it's $5
shm_size: 4g
"""

EXEC = "transport: exec\n"
DATA = "data: [{source: ./set, path: /scratch/set, target: /set}]\n"

IMAGE = ImageFacts(
    id="sha256:" + "1" * 64,
    identity="0123456789abcdef",
    diff_ids=("sha256:" + "a" * 64, "sha256:" + "b" * 64),
    tags=("toolkit:cpu",),
    env=(("PATH", "/opt/venv/bin:/usr/bin:/bin"), ("NOTE", "two words"), ("TOOLKIT_OPENMPI", "4.1")),
    size=900_000_000,
)
NAMED = replace(IMAGE, tags=("toolkit:cpu", identity_reference(IMAGE.identity)))
JOB_ID = "20261120-211300-digits-a1b2"
INSIDE = {
    "kubexec.sh": "#!/bin/sh\n",
    "run.py": "print('run')\n",
    "toolkit/container/job/rank.py": "print('rank')\n",
}
_STRAYS = (
    Stray("gpu2", JOB_ID, (811, 812), "gpu1", "demo"),
    Stray("cpu3", JOB_ID, (4711,), "gpu1", "demo"),
)
DOCKER0 = Interface("docker0", "172.17.0.1", 16)


@functools.cache
def inventory(text: str = HOSTS) -> Inventory:
    return parse_inventory(text, "hosts.yaml")


def facts(
    host: str = "gpu1", address: str = "10.77.0.2", interface: str = "eth0", **changes: object
) -> Facts:
    """One host: user alice, an image, docker0 and one interface; ``changes`` are fields of Facts."""
    base = Facts(
        host=host,
        user="alice",
        uid=1000,
        gid=1000,
        groups=((1000, "alice"), (998, "docker")),
        home="/home/alice",
        state_dir=f"/home/alice/.local/state/toolkit/demo/{host}",
        hostname=host,
        arch="x86_64",
        docker="26.1.5",
        store="overlay2",
        rootless=False,
        ssh_address=address,
        interfaces=(Interface("lo", "127.0.0.1", 8), DOCKER0, Interface(interface, address, 24)),
        listening=(("0.0.0.0", 22), ("127.0.0.53", 53)),
        images=(NAMED,),
        free_bytes=50_000_000_000,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def public_key(name: str) -> str:
    """A public key that is valid in form, and different for each name."""
    raw = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + hashlib.sha256(name.encode()).digest()
    return f"ssh-ed25519 {base64.b64encode(raw).decode()}"


def gpu(index: int) -> Gpu:
    return Gpu(index, f"GPU-{index}", "NVIDIA GeForce RTX 3090", "550.54.14", 24576)


def cluster_facts() -> dict[str, Facts]:
    """Three hosts: GPUs on main, InfiniBand on the second, root and another interface on the third."""
    return {
        "gpu1": facts(gpus=(gpu(0), gpu(1))),
        "gpu2": facts(
            "gpu2",
            "10.77.0.3",
            "enp3s0",
            groups=((1000, "alice"), (997, "docker"), (44, "video")),
            infiniband=("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"),
        ),
        "cpu3": facts("cpu3", "10.77.0.4", "ens5", images=(), docker="20.10.24"),
    }


def layout(text: str = HOSTS) -> Layout:
    return make_layout(inventory(text), Observed(cluster_facts()))


def running(cluster: str, host: str, role: str, **labels: str) -> ContainerFacts:
    """Return a running container created by toolkit on that host."""
    own = {LABEL_CLUSTER: cluster, LABEL_OWNER: "alice", "toolkit.host": host, "toolkit.role": role}
    extra = {f"toolkit.{key}": value for key, value in labels.items()}
    return ContainerFacts("c" * 64, container_name(cluster, role), "running", {**own, **extra})


def as_started(layout: Layout) -> dict[str, Facts]:
    """Return the hosts of a layout with the containers, mounted files and programs that `up` creates."""
    started = {}
    for place in layout.places:
        wanted = cluster_container(layout, place)
        paths = (m.source.partition(f"{place.state}/")[2] for m in wanted.mounts)
        started[place.name] = replace(
            place.facts,
            containers=(ContainerFacts("c" * 64, wanted.name, "running", dict(wanted.labels)),),
            state_files=tuple(StateFile(path, stat.S_IFDIR | 0o700) for path in paths if path),
            programs=_programs(),
        )
    return started


@functools.cache
def _programs() -> tuple[tuple[str, str], ...]:
    """The container programs, which are read and summed once for all tests."""
    return programs_of(container_programs())


def facts_when_up() -> dict[str, Facts]:
    """The same hosts with the cluster's containers on them."""
    said = cluster_facts()
    held = {"gpu1": running("demo", "gpu1", "main")}
    held |= {name: running("demo", name, "worker", port="12345") for name in ("gpu2", "cpu3")}
    listening = {name: (("0.0.0.0", 22), (said[name].ssh_address, 12345)) for name in ("gpu2", "cpu3")}
    return {
        name: replace(
            f,
            containers=(held[name],),
            listening=listening.get(name, f.listening),
            version=__version__,
            programs=_programs(),
        )
        for name, f in said.items()
    }


def job(launcher: str = "horovodrun", hosts: tuple[JobHost, ...] | None = None, main: str = "gpu1") -> Job:
    """A job on the hosts of ``layout()``, or on others."""
    place = layout()
    own = hosts if hosts is not None else take_slots(rooms(place, place.inventory.names), None)
    return Job(
        id=JOB_ID,
        cluster="demo",
        owner="alice",
        launcher=launcher,
        command=("python", "train.py", "--epochs", "30"),
        hosts=own,
        main=main,
        master_port=29500,
        networks=cidrs({p.host: p for p in place.paths}),
        env=(("EPOCHS", "3"), ("TOKEN", "s3cret $x")),
        host_env=(("gpu2", (("OMP_NUM_THREADS", "4"),)),),
        override=(("OTHER_TOKEN", "s3cret too"),),
        timeout=3600.0,
    )


def container(**changes: object) -> Container:
    """A container in which every field has a value of its own."""
    base = Container(
        name="toolkit-demo-worker",
        hostname="gpu2",
        image="toolkit.local/verified:0123456789abcdef",
        argv=("/usr/sbin/sshd", "-D", "-f", "/a b"),
        entrypoint="env",
        user="1000:1001",
        userns="keep-id",
        groups=(44, 998),
        workdir="/home/alice",
        env=(("GREETING", "it's $5"), ("USER", "alice")),
        mounts=(Mount("/data", "/data", True), Mount("/out", "/out")),
        labels=(("toolkit.cluster", "demo"), (LABEL_PORT, "12345")),
        gpus="0,1",
        cdi=("vendor.com/net=eth0", "vendor.com/net=eth1"),
        devices=("/dev/infiniband/uverbs0",),
        shm_bytes=2**30,
        ulimits=(Ulimit("memlock", -1, -1),),
        cap_drop=("ALL",),
        cap_add=("SETGID", "SETUID"),
        security=("no-new-privileges",),
        pids=4096,
        network="host",
        init=True,
        stop_seconds=7,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def plans() -> dict[str, Plan]:
    """Every plan that is made of this cluster."""
    place = layout()
    up = make_layout(inventory(), Observed(facts_when_up()))
    files = [("lib/model.py", 1200), ("train.py", 800)]
    code = CodeTree(tuple(Entry(path, "f", 0o644, size, 0, "0" * 64) for path, size in files))
    return {
        "up": plan_up(place, INSIDE),
        "up-prepare": plan_up(place, INSIDE, prepare=True),
        "run": plan_job(up, job(), "/work/code", code),
        "up-exec": plan_up(layout(f"{HOSTS}{EXEC}"), INSIDE),
        "run-exec": plan_job(up, replace(job("mpirun"), transport="exec"), "/work/code", code),
        "run-exec-torchrun": plan_job(up, replace(job("torchrun"), transport="exec"), "/work/code", code),
        "down": plan_down(inventory(), facts_when_up(), "runs/demo"),
        "down-unsaved": plan_down(inventory(), facts_when_up()),
        "data": plan_up(layout(f"{HOSTS}{DATA}"), {}, data=_staged()),
        "data-rm": plan_remove(inventory(f"{HOSTS}{DATA}"), facts_when_up()),
        "gc": plan_gc(Leftovers({"gpu2": (running("old", "gpu2", "worker"),)}, _STRAYS)),
    }


def _staged() -> tuple[tuple[DataSet, str, Content], ...]:
    (one,) = inventory(f"{HOSTS}{DATA}").data
    return ((one, "/work/set", pack([["f", "x", 0o644, 10**18, 1_000]])),)


def everything(made: dict[str, Plan] | None = None) -> str:
    """The plans as people see them and as values, with what neither shows: files' contents and job files."""
    text = []
    for name, plan in (made or plans()).items():
        text += [name, plan_text(plan), repr(plan)]
        for step in plan.steps:
            text += [repr(file.content) for file in getattr(step, "files", ())]
            text += [getattr(step, "job", ""), repr(getattr(step, "tree", CodeTree()).entries)]
    return "\n".join(text)
