"""Opens connections through Fabric: strict host keys, jump hosts, one attempt, a cheap key exchange."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import fabric
import paramiko

from toolkit.effects.known_hosts import add_known_hosts
from toolkit.effects.ssh_config import Target
from toolkit.effects.ssh_errors import UnknownHostKey, explain

# 2 MiB in flight: paramiko's default window stalls a fast link at every round trip.
_WINDOW = 2**21
# Seconds between keepalives, and after which a silent host counts as gone.
_KEEPALIVE, _SILENCE = 15, 60
# Authenticated ciphers first: AES-GCM needs no second pass over the data for an HMAC, AES-CTR does.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


class _Strict(paramiko.MissingHostKeyPolicy):
    """Refuse hosts that no known_hosts file lists."""

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        raise UnknownHostKey(hostname, key)


def _transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock, default_window_size=_WINDOW, **options)
    security = transport.get_security_options()
    preferred = [c for c in _CIPHERS if c in security.ciphers]
    security.ciphers = (*preferred, *(c for c in security.ciphers if c not in preferred))
    # The post-quantum exchange takes more processor time; many hosts at once make it felt.
    cheap = [k for k in security.kex if k.startswith("curve25519")]
    security.kex = (*cheap, *(k for k in security.kex if k not in cheap))
    return transport


def gateway_socket(target: Target, connect_timeout: float = 10.0) -> Any:
    """Return a channel to the target through its jump hosts, None when it is reached directly.

    Raises:
        Unreachable: a jump host does not let us through; names it.
    """
    if not target.jump:
        return None
    gateway = make_connection(target.jump[-1], connect_timeout)
    open_connection(gateway, target.jump[-1])
    return gateway.transport.open_channel("direct-tcpip", (target.host, target.port), ("", 0))


def open_connection(connection: Any, target: Target) -> None:
    """Connect and authenticate, once, through the jump hosts.

    Raises:
        Unreachable: with the reason and the command that cures it.
    """
    # The way there first, so that an error names the host that it is about.
    if connection.gateway is not None:
        open_connection(connection.gateway, target.jump[-1])
    try:
        connection.open()
    except Exception as error:
        raise explain(target, error) from error
    connection.transport.set_keepalive(_KEEPALIVE)
    sock = connection.transport.sock
    if isinstance(sock, socket.socket) and hasattr(socket, "TCP_USER_TIMEOUT"):
        # paramiko does not look whether its keepalives are answered; unanswered, the kernel ends the
        # connection to a host that has lost its power after this time and not after 15 minutes.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000)


def _has_passphrase(path: str) -> bool:
    try:
        paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        return True
    except (OSError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType):
        return False
    return False


def make_connection(target: Target, connect_timeout: float) -> Any:
    """Return a Fabric connection to the target that is not open yet."""
    gateway = make_connection(target.jump[-1], connect_timeout) if target.jump else None
    existing = [f for f in target.identity_files if Path(f).is_file()]
    connection = fabric.Connection(
        target.host,
        user=target.user or None,
        port=target.port,
        # An empty configuration: what ~/.ssh/config says has come through `ssh -G` already.
        config=fabric.Config(ssh_config=paramiko.SSHConfig()),
        gateway=gateway,
        connect_timeout=connect_timeout,
        forward_agent=False,
        connect_kwargs={
            "key_filename": existing,
            # A key with a passphrase is the agent's to use, also where no other key may be tried.
            "allow_agent": not target.identities_only or any(_has_passphrase(f) for f in existing),
            "look_for_keys": False,
            "banner_timeout": connect_timeout,
            "auth_timeout": connect_timeout + 20,
            "transport_factory": _transport,
        },
    )
    connection.client.set_missing_host_key_policy(_Strict())
    add_known_hosts(connection.client.get_host_keys(), target.known_hosts)
    return connection
