"""The one Container of each host, made from the layout; all renderings and `up` start from here."""

from __future__ import annotations

import hashlib

from toolkit.core.container import Container, Mount, Ulimit
from toolkit.core.names import (
    CONF,
    INSIDE,
    JOBS,
    LABEL_CLUSTER,
    LABEL_CONFIG,
    LABEL_HOST,
    LABEL_OWNER,
    LABEL_PORT,
    LABEL_ROLE,
    MAIN,
    container_name,
)
from toolkit.plan.layout import Layout, Place
from toolkit.render.etc import home_of
from toolkit.render.ssh import sshd_config

# What sshd as root needs to become the session's user and to lock up its unprivileged half.
_SSHD_AS_ROOT = ("SETGID", "SETUID", "SYS_CHROOT")

MAIN_ARGV = ("sleep", "infinity")
WORKER_ARGV = ("/usr/sbin/sshd", "-D", "-e", "-f", str(CONF / "sshd_config"))


def cluster_container(layout: Layout, place: Place) -> Container:
    """Return the container that this host is to run, with its digest among the labels."""
    inventory, facts, state = layout.inventory, place.facts, place.state
    home = home_of(layout.user, facts.uid)
    worker = place.role != MAIN
    labels = {
        LABEL_CLUSTER: inventory.cluster,
        LABEL_ROLE: place.role,
        LABEL_HOST: place.name,
        LABEL_OWNER: facts.user,
    }
    if worker:
        labels[LABEL_PORT] = str(layout.port)
        # sshd reads its configuration once: another one means another container.
        labels[LABEL_CONFIG] = hashlib.sha256(worker_sshd_config(layout, place).encode()).hexdigest()[:16]
    own = (
        Mount(f"{state}/conf", str(CONF), read_only=True),
        Mount(f"{state}/inside", str(INSIDE), read_only=True),
        Mount(f"{state}/jobs", str(JOBS)),
        Mount(f"{state}/home", home),
        Mount(f"{state}/etc/hosts", "/etc/hosts", read_only=True),
        Mount(f"{state}/etc/passwd", "/etc/passwd", read_only=True),
        Mount(f"{state}/etc/group", "/etc/group", read_only=True),
        Mount(f"{state}/etc/ssh_config", "/etc/ssh/ssh_config.d/10-toolkit.conf", read_only=True),
        Mount(f"{state}/inside/kubexec.sh", "/etc/mpi/kubexec.sh", read_only=True),
    )
    return Container(
        name=container_name(inventory.cluster, place.role),
        hostname=place.name,
        image=layout.reference,
        argv=WORKER_ARGV if worker else MAIN_ARGV,
        user=f"{facts.uid}:{facts.gid}",
        groups=tuple(sorted(gid for gid, _ in facts.groups if gid != facts.gid)),
        workdir=home,
        env=(
            ("HOME", home),
            ("LOGNAME", layout.user),
            ("TOOLKIT_CLUSTER", inventory.cluster),
            ("USER", layout.user),
        ),
        mounts=(*own, *inventory.mounts),
        labels=tuple(sorted(labels.items())),
        gpus=container_gpus(place),
        devices=facts.infiniband,
        shm_bytes=inventory.shm_bytes,
        # RDMA pins memory; without such devices the limit stays as the engine sets it.
        ulimits=(Ulimit("memlock", -1, -1),) if facts.infiniband else (),
        cap_add=_SSHD_AS_ROOT if worker and facts.uid == 0 else (),
        pids=65536,
    ).labelled()


def worker_sshd_config(layout: Layout, place: Place) -> str:
    """Return the sshd configuration of a worker; the image's variables are passed on to sessions."""
    env = dict(layout.image.env) | {"TOOLKIT_CLUSTER": layout.inventory.cluster}
    return sshd_config(place.path.address, layout.port, layout.user, sorted(env.items()))


def container_gpus(place: Place) -> str:
    """Return which GPUs a host's containers get: all of them, or the first that are declared."""
    if place.gpus and place.gpus == len(place.facts.gpus):
        return "all"
    return ",".join(str(gpu.index) for gpu in place.facts.gpus[: place.gpus])
