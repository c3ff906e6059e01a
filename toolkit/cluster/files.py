"""Files of a container: hosts, passwd and group, and the OpenSSH configurations from ``ssh/*.j2``."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from toolkit.core.facts import Facts
from toolkit.core.templates import render_template, word
from toolkit.network.choose import DataPath
from toolkit.protocol.names import CONF


def home_of(user: str, uid: int) -> str:
    """Return the home folder inside the container."""
    return "/root" if uid == 0 else f"/home/{user}"


def hosts_file(paths: Sequence[DataPath]) -> str:
    """Return /etc/hosts, in which every name resolves to its data address and not to 127.0.1.1.

    Raises:
        ToolkitError: a name or an address is not one word.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    return "\n".join([*lines, *(f"{word(p.address)} {word(p.host)}" for p in paths)]) + "\n"


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


def known_hosts_line(path: DataPath, port: int, key: str) -> str:
    """Return a host's line; ``key`` is the public half as ``ssh-ed25519 AAAA…``."""
    return render_template("ssh/known_hosts.j2", path=path, port=port, key=key)


def authorized_keys_line(main_address: str, key: str) -> str:
    """Return the line that admits main, only from main's address."""
    return render_template("ssh/authorized_keys.j2", address=main_address, key=key)
