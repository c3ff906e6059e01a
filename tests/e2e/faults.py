"""Faults on practice hosts: each a block in which something is broken, and repaired when the block ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e import waiting
from tests.e2e.world import on, outer, sh

STATE_PARENT = "/home/trainer/.local/state"
IMAGES = "/var/lib/docker"


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
    waiting.engine_answers(host)


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
    """Start the host; returns when its engine and its sshd answer."""
    subprocess.run(["docker", "start", outer(host)], check=True, capture_output=True)
    waiting.host_answers(host)


_REACHED = "/tmp/toolkit-held"  # where the user of ssh can write
_IN_FRONT = "/usr/local/bin/docker"  # ahead of the real one in every PATH
_HOLD = f"""#!/bin/sh
{{
    case " $* " in
    *WORDS*) ACT; touch {_REACHED}; sleep 600; exit 1 ;;
    esac
    exec /usr/bin/docker "$@"
}}
"""


@contextmanager
def held_docker(host: str, *words: str, after: bool) -> Iterator[None]:
    """Hold up the docker command with these words on the host, so that what follows meets it for certain.

    Args:
        words: in this order, others can be between them.
        after: True lets the container start and holds back the answer; False holds back the command itself.
    """
    pattern = "*".join(f'" {word} "' for word in words)
    text = _HOLD.replace("WORDS", pattern).replace("ACT", '/usr/bin/docker "$@"' if after else ":")
    argv = ["docker", "exec", "-i", outer(host), "sh", "-c", f"cat >{_IN_FRONT}; chmod 755 {_IN_FRONT}"]
    subprocess.run(argv, input=text, text=True, check=True)
    try:
        yield
    finally:
        assert sh(host, f"rm -f {_IN_FRONT} {_REACHED}") == ""


def docker_is_held(host: str) -> None:
    """Wait until the command of ``held_docker`` has begun."""
    waiting.on_host("docker is held", host, f"ls {_REACHED} 2>/dev/null", seconds=300)


def load_begins(host: str) -> None:
    """Wait until an image is being loaded on the host.

    The host itself looks, many times a second: a load of few bytes is over soon.
    """
    look = "for _ in $(seq 6000); do pgrep -a -x docker | grep 'docker load' && exit; sleep 0.05; done"
    assert "docker load" in sh(host, look), f"no `docker load` began on {host}"


def load_ends(host: str) -> None:
    """Wait until no image is being loaded on the host."""
    waiting.on_host(
        "`docker load` ends",
        host,
        "pgrep -a -x docker || true",
        lambda said: "docker load" not in said,
    )


def something_of(cluster: str, host: str) -> str:
    """Return what a host has of a cluster, without asking toolkit: containers, files, Docker clients."""
    ids = on(host, "docker", "ps", "-aq", "--filter", f"label=toolkit.cluster={cluster}")
    files = sh(host, f"find {STATE_PARENT} -path '*toolkit/{cluster}*' 2>/dev/null")
    loading = sh(host, "pgrep -a -x docker || true")
    return f"{ids}{files}{loading}".strip()


def forget_image(tag: str, *hosts: str) -> None:
    """Remove an image under all of its names."""
    for host in hosts:
        sh(host, f"docker images -q {tag} | sort -u | xargs -r docker rmi -f")
