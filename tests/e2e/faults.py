"""Faults on practice hosts: each a block in which something is broken, and mended when the block ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.world import on, outer, sh, wait_until

STATE_PARENT = "/home/trainer/.local/state"
IMAGES = "/var/lib/docker"


def engine_is_up(host: str) -> bool:
    return "Server Version" in sh(host, "timeout 5 docker info 2>/dev/null")


@contextmanager
def firewall(host: str, verdict: str) -> Iterator[None]:
    """sshd's port drops packets (`DROP`) or refuses them (`REJECT --reject-with tcp-reset`)."""
    rule = f"INPUT -p tcp --dport 22 -j {verdict}"
    assert sh(host, f"iptables -I {rule}") == ""
    try:
        yield
    finally:
        assert sh(host, f"iptables -D {rule}") == ""


@contextmanager
def without_docker(host: str) -> Iterator[None]:
    assert sh(host, "mv /usr/bin/docker /usr/bin/docker.away") == ""
    try:
        yield
    finally:
        assert sh(host, "mv /usr/bin/docker.away /usr/bin/docker") == ""


@contextmanager
def without_permission(host: str, user: str = "trainer") -> Iterator[None]:
    sh(host, f"gpasswd -d {user} docker")
    try:
        yield
    finally:
        assert sh(host, f"usermod -aG docker {user}") == ""


@contextmanager
def engine_stopped(host: str) -> Iterator[None]:
    stop_engine(host)
    try:
        yield
    finally:
        start_engine(host)


def stop_engine(host: str) -> None:
    """End dockerd, and keep its command line for start_engine."""
    sh(
        host,
        "tr '\\0' '\\n' </proc/$(pidof dockerd)/cmdline >/run/dockerd.args; kill $(pidof dockerd);"
        " while pidof dockerd; do sleep 0.1; done",
    )


def start_engine(host: str) -> None:
    start = 'IFS="\n"; exec $(cat /run/dockerd.args) >>/var/log/dockerd.log 2>&1'
    subprocess.run(["docker", "exec", "-d", outer(host), "sh", "-c", start], check=True)
    wait_until(lambda: engine_is_up(host), 60)


@contextmanager
def small_disk(host: str, folder: str, size: str, owner: str = "root") -> Iterator[None]:
    """A file system of a few bytes in the folder's place; what it hides comes back."""
    # As its owner would make it, where it is not there yet: it stays when the disk has gone.
    made = f"[ -d {folder} ] || install -d -o {owner} -g {owner} {folder}"
    assert sh(host, f"{made}; mount -t tmpfs -o size={size} small {folder}") == ""
    assert sh(host, f"chown {owner} {folder}") == ""
    try:
        yield
    finally:
        assert sh(host, f"umount {folder}") == ""


@contextmanager
def small_engine(host: str, size: str) -> Iterator[None]:
    """An engine with no image, whose data fit into a few bytes."""
    stop_engine(host)
    try:
        with small_disk(host, IMAGES, size):
            start_engine(host)
            try:
                yield
            finally:
                stop_engine(host)
    finally:
        start_engine(host)


def power_off(host: str) -> None:
    """The host dies: no process of it gets to say a word."""
    subprocess.run(["docker", "kill", outer(host)], check=True, capture_output=True)


def power_on(host: str) -> None:
    subprocess.run(["docker", "start", outer(host)], check=True, capture_output=True)
    wait_until(lambda: engine_is_up(host), 60)
    wait_until(lambda: ":22 " in on(host, "ss", "-ltnH"), 20)


def something_of(cluster: str, host: str) -> str:
    """What there is of a cluster on a host, seen past the toolkit: containers, files, docker's clients."""
    ids = on(host, "docker", "ps", "-aq", "--filter", f"label=toolkit.cluster={cluster}")
    files = sh(host, f"find {STATE_PARENT} -path '*toolkit/{cluster}*' 2>/dev/null")
    loading = sh(host, "pgrep -a -x docker || true")
    return f"{ids}{files}{loading}".strip()


def forget_image(tag: str, *hosts: str) -> None:
    """Remove an image under all of its names."""
    for host in hosts:
        sh(host, f"docker images -q {tag} | sort -u | xargs -r docker rmi -f")
