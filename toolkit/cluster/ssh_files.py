"""OpenSSH configurations of a cluster, from ``ssh/*.j2``."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from toolkit.core.templates import render_template
from toolkit.network.choose import DataPath
from toolkit.protocol.names import CONF


# `up` writes it, and makes a container's digest of it.
@functools.lru_cache(maxsize=4096)
def sshd_config(address: str, port: int, user: str, env: tuple[tuple[str, str], ...]) -> str:
    """Return the configuration of a worker's sshd.

    Args:
        address: the data address; sshd listens there and nowhere else.
        env: the image's variables: sessions over ssh do not get them from Docker.
    """
    return render_template(
        "ssh/sshd_config.j2", conf=str(CONF), address=address, port=port, user=user, env=list(env)
    )


def ssh_config(paths: Sequence[DataPath], port: int, user: str) -> str:
    """Return the client configuration for every container of the cluster."""
    return render_template("ssh/ssh_config.j2", conf=str(CONF), paths=list(paths), port=port, user=user)


def known_hosts_line(path: DataPath, port: int, key: str) -> str:
    """Return a host's line; ``key`` is the public half as ``ssh-ed25519 AAAA…``."""
    return render_template("ssh/known_hosts.j2", path=path, port=port, key=key)


def authorized_keys_line(main_address: str, key: str) -> str:
    """Return the one line that lets main in, from main's address alone."""
    return render_template("ssh/authorized_keys.j2", address=main_address, key=key)
