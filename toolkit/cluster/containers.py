"""The Container of each host, made from the layout, and the text of the files that are mounted in it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from toolkit import __version__
from toolkit.cluster.gpus import CAPABILITIES, gpu_access, gpu_failures
from toolkit.cluster.layout import Layout, Place
from toolkit.core.container import ENTRYPOINT, Container, Mount, Ulimit
from toolkit.core.engines import DOCKER, NONE_VISIBLE, PODMAN
from toolkit.core.facts import Facts
from toolkit.core.templates import render_template, word
from toolkit.hostsfile.fields import ULIMITS, UNLIMITED
from toolkit.network.choose import DataPath
from toolkit.plan.steps import Failure
from toolkit.protocol.names import (
    CONF,
    INSIDE,
    JOBS,
    LABEL_CLUSTER,
    LABEL_CONFIG,
    LABEL_HOST,
    LABEL_OWNER,
    LABEL_PORT,
    LABEL_ROLE,
    LABEL_VERSION,
    container_name,
)

# Capabilities that sshd as root needs to become the session's user and to confine its unprivileged part.
_SSHD_AS_ROOT = ("SETGID", "SETUID", "SYS_CHROOT")
# The folder to which sshd as root confines that part. Images with Debian's package have none: on hosts, the
# service creates the folder.
_CONFINED = "/run/sshd"

# A folder of the cluster on a host that stays empty.
EMPTY = "empty"
_SSH_CONFIG = "/etc/ssh/ssh_config.d/10-toolkit.conf"
IDLE_ARGV = ("sleep", "infinity")
SSHD_ARGV = ("/usr/sbin/sshd", "-D", "-e", "-f", str(CONF / "sshd_config"))


def cluster_container(layout: Layout, place: Place) -> Container:
    """Return the container for this host, with its digest among the labels."""
    inventory, facts, state = layout.inventory, place.facts, place.state
    home = home_of(place.user, facts.uid)
    sshd = layout.has_sshd(place)
    as_root = runs_sshd_as_root(layout, place)
    gpus, cdi = gpu_access(place.gpus, facts)
    labels = dict(inventory.labels) | {
        LABEL_CLUSTER: inventory.cluster,
        LABEL_ROLE: place.role,
        LABEL_HOST: place.name,
        LABEL_OWNER: facts.user,
        LABEL_VERSION: __version__,
    }
    if sshd:
        labels[LABEL_PORT] = str(layout.port)
        # sshd reads its configuration once, so another configuration requires another container.
        labels[LABEL_CONFIG] = hashlib.sha256(worker_sshd_config(layout, place).encode()).hexdigest()[:16]
    own = (
        Mount(f"{state}/conf", str(CONF), read_only=True),
        Mount(f"{state}/inside", str(INSIDE), read_only=True),
        Mount(f"{state}/jobs", str(JOBS)),
        Mount(f"{state}/home", home),
        Mount(f"{state}/etc/hosts", "/etc/hosts", read_only=True),
        Mount(f"{state}/etc/passwd", "/etc/passwd", read_only=True),
        Mount(f"{state}/etc/group", "/etc/group", read_only=True),
        *((Mount(f"{state}/etc/ssh_config", _SSH_CONFIG, read_only=True),) if layout.port else ()),
        Mount(f"{state}/inside/kubexec.sh", "/etc/mpi/kubexec.sh", read_only=True),
        *((Mount(f"{state}/{EMPTY}", _CONFINED, read_only=True),) if as_root else ()),
    )
    return Container(
        name=container_name(inventory.cluster, place.role),
        hostname=place.name,
        image=layout.reference,
        argv=SSHD_ARGV if sshd else IDLE_ARGV,
        entrypoint=ENTRYPOINT,
        user=f"{facts.uid}:{facts.gid}",
        userns=facts.userns,
        # A separate user namespace has none of the host's groups.
        groups=() if facts.userns else tuple(sorted(gid for gid, _ in facts.groups if gid != facts.gid)),
        workdir=home,
        env=(
            ("HOME", home),
            ("LOGNAME", place.user),
            *gpu_env(place.gpus, facts),
            ("TOOLKIT_CLUSTER", inventory.cluster),
            ("USER", place.user),
        ),
        mounts=(*own, *inventory.all_mounts),
        labels=tuple(sorted(labels.items())),
        gpus=gpus,
        cdi=cdi,
        devices=(*facts.infiniband, *(facts.imex if place.gpus else ())),
        shm_bytes=inventory.shm_bytes,
        ulimits=_ulimits(layout, place),
        cap_add=_SSHD_AS_ROOT if as_root else (),
        security=gpu_security(place.gpus, facts),
        pids=65536,
    ).labelled()


def runs_sshd_as_root(layout: Layout, place: Place) -> bool:
    """Return True if the container of this host runs sshd, and the SSH user is root."""
    return layout.has_sshd(place) and place.facts.uid == 0


def gpu_env(given: Sequence[str], facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return the variables that NVIDIA's runtime reads in a container with these GPUs."""
    if given:
        return (CAPABILITIES,)
    return (NONE_VISIBLE,) if facts.gpus or facts.nvidia_runtime else ()


def gpu_security(given: Sequence[str], facts: Facts) -> tuple[str, ...]:
    """Return the security options of a container with these GPUs.

    Rootless Podman and NVIDIA's runtime mount the device nodes of the host, and SELinux denies labeled
    containers access to them. NVIDIA's guides disable the label, for Docker and Podman. The alternative, a
    boolean of the host's SELinux policy, requires root and affects all containers.
    """
    plain = ("no-new-privileges",)
    return (*plain, "label=disable") if given and facts.selinux else plain


def _ulimits(layout: Layout, place: Place) -> tuple[Ulimit, ...]:
    # RDMA pins memory; without RDMA devices the limit stays as the engine sets it.
    default = [Ulimit("memlock", -1, -1)] if place.facts.infiniband else []
    merged = {limit.name: limit for limit in (*default, *layout.inventory.ulimits)}
    return tuple(merged[name] for name in sorted(merged))


def start_failures(container: Container, host: str, engine: str = DOCKER) -> tuple[Failure, ...]:
    """Return the failures of a container start that the hosts file can cause."""
    # The limits of Podman, which has no daemon, are those of the SSH user.
    shows_limits = "ulimit -Ha" if engine == PODMAN else "cat /proc/$(pidof dockerd)/limits"
    limits = tuple(
        Failure(
            # runc reports the number of a limit, crun its name.
            rf"rlimit type {ULIMITS[limit.name]}\b|RLIMIT_{limit.name.upper()}\b",
            f"the engine cannot set the limit {limit.name} ({_ends(limit)})",
            f"on {host}: {shows_limits}"
            f"  # then set ulimits/{limit.name} in hosts.yaml to at most the printed limit",
        )
        for limit in container.ulimits
    )
    return (*limits, *(gpu_failures(host) if container.gpus or container.cdi else ()))


def _ends(limit: Ulimit) -> str:
    soft, hard = (UNLIMITED if end == -1 else str(end) for end in (limit.soft, limit.hard))
    return soft if soft == hard else f"soft {soft}, hard {hard}"


def worker_sshd_config(layout: Layout, place: Place) -> str:
    """Return the sshd configuration of a worker; the image's variables are passed on to sessions."""
    env = dict(layout.image.env) | {"TOOLKIT_CLUSTER": layout.inventory.cluster}
    # The image requests all GPUs, but the container can have a subset.
    env.pop(NONE_VISIBLE[0], None)
    return sshd_config(place.path.address, layout.port, place.user, tuple(sorted(env.items())))


def home_of(user: str, uid: int) -> str:
    """Return the home folder inside the container."""
    return "/root" if uid == 0 else f"/home/{user}"


def hosts_file(paths: Sequence[DataPath]) -> str:
    """Return /etc/hosts, in which every name resolves to its data address and not to 127.0.1.1.

    Raises:
        ToolkitError: a name or an address is not one word.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{word(p.address)} {word(p.host)}" for p in paths]
    # PyTorch looks up the name of each peer by its IPv4-mapped IPv6 address. Without a line here, it asks
    # DNS, which delays each connection by 10 s if no name server answers. The suffix keeps these addresses
    # out of the answers for the name of the host.
    lines += [f"::ffff:{p.address} {p.host}.ipv4" for p in paths if ":" not in p.address]
    return "\n".join(lines) + "\n"


def passwd_file(facts: Facts, user: str) -> str:
    """Return /etc/passwd: without the user's line ssh prints "No user exists for uid" and getpass fails.

    sshd as root also requires its own user for privilege separation.
    """
    lines = [
        "root:x:0:0:root:/root:/bin/bash",
        "sshd:x:101:65534::/run/sshd:/usr/sbin/nologin",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
    ]
    # If the user is root on some hosts only, the common name belongs to uid 0 there, because main uses it.
    if user != "root":
        lines.append(f"{user}:x:{facts.uid}:{facts.gid}::{home_of(user, facts.uid)}:/bin/bash")
    return "\n".join(lines) + "\n"


def group_file(facts: Facts, user: str) -> str:
    """Return /etc/group with the user's groups under the host's own ids."""
    lines = ["root:x:0:", "nogroup:x:65534:"]
    for gid, name in facts.groups:
        if gid not in (0, 65534):
            lines.append(f"{name}:x:{gid}:{user}")
    return "\n".join(lines) + "\n"


# `up` writes it, and its digest is a part of the container's digest.
@functools.lru_cache(maxsize=4096)
def sshd_config(address: str, port: int, user: str, env: tuple[tuple[str, str], ...]) -> str:
    """Return the configuration of a worker's sshd.

    Args:
        address: the data address, the only one on which sshd listens.
        env: the image's variables, which Docker does not pass to sessions over ssh.
    """
    return render_template(
        "ssh/sshd_config.j2", conf=str(CONF), address=address, port=port, user=user, env=list(env)
    )


def ssh_config(paths: Sequence[DataPath], port: int, user: str) -> str:
    """Return the client configuration for every container of the cluster."""
    return render_template("ssh/ssh_config.j2", conf=str(CONF), paths=list(paths), port=port, user=user)
