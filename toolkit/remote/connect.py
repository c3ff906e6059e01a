"""SSH connections through Fabric: strict host keys, jump hosts and proxies, a cheap key exchange."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import fabric
import paramiko
from paramiko.common import cMSG_CHANNEL_CLOSE

from toolkit.core.printable import printable_line
from toolkit.errors import ToolkitError, Unreachable
from toolkit.remote import keepalive
from toolkit.remote.auth import KeyLogin
from toolkit.remote.host_keys import judge, plain_socket, prefer_recorded, record
from toolkit.remote.known_hosts import Record
from toolkit.remote.ssh_config import Target
from toolkit.remote.ssh_errors import RefusedHostKey, explain

# 2 MiB in flight: paramiko's default window stalls a fast link at every round trip.
_WINDOW = 2**21
# Seconds without a TCP acknowledgment after which a host is lost; keepalive.py limits silence of its sshd.
_SILENCE = 60
# Seconds after which the thread of an idle connection wakes up. With paramiko's 0.1 s, 256 idle connections
# take 8 % of a processor.
_IDLE_S = 5.0
# Key exchanges and logins at a time: they need this machine's processor, and their time limits are for hosts.
_LOGINS = threading.BoundedSemaphore(64)
_MOST_WORDS = 200  # characters of the reason with which a host ends a connection
# Authenticated ciphers first: AES-GCM needs no second pass over the data for an HMAC, AES-CTR does.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


class _Strict(paramiko.MissingHostKeyPolicy):
    """Accept a host's key only if a known_hosts file lists it; paramiko itself knows no keys."""

    def __init__(self, target: Target, known: Record) -> None:
        self._target, self._known = target, known

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        verdict = judge(self._target, self._known, key)
        if verdict != "good":
            raise RefusedHostKey(verdict, key, self._known)


class _Proxy:
    """A running ProxyCommand: one end of a socket pair is its standard input and output."""

    def __init__(self, command: str) -> None:
        self.socket, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        with theirs:
            # `exec` and the user's own shell, as in ssh.
            self._process = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._said,
                start_new_session=True,  # toolkit handles Ctrl-C
            )

    def last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        self.socket.close()
        with contextlib.suppress(OSError):
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._said.close()


class _Sender:
    """The transport as one of its channels sees it: marks what the channel sends, see ``_Transport``."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport, self.is_closed = transport, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send_user_message(self, message: Any) -> None:
        message.sender = self
        self._transport._send_user_message(message)  # type: ignore[attr-defined]


class _Answer(threading.Event):
    """The answer to a request on a channel, for which paramiko itself waits without a limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def wait(self, timeout: float | None = None) -> bool:
        if super().wait(self._seconds if timeout is None else timeout):
            return True
        raise paramiko.SSHException(f"the host has not answered a request for {self._seconds:g} s")


class _Transport(paramiko.Transport):
    """A transport whose channels send nothing after their CLOSE, and that closes channels opened too late.

    paramiko composes a message under the lock of its channel and sends it later: an EOF or data can follow
    the CLOSE that another thread sends. sshd then ends the connection, with all other commands on it
    (paramiko/paramiko#1115).
    """

    last_words = ""  # of the host, when it ends the connection with a reason

    def get_exception(self) -> Any:
        """Return the error that ended the connection; paramiko raises it in calls that wait for the host.

        For a message of the host that is not valid, it is what paramiko's decoders raise: UnicodeDecodeError,
        struct.error, KeyError and others.
        """
        error = super().get_exception()
        if error is None or isinstance(error, (OSError, EOFError, paramiko.SSHException)):
            return error
        why = f"the host sent an SSH message that is not valid ({type(error).__name__})"
        invalid = paramiko.SSHException(why)
        invalid.__cause__ = error
        return invalid

    def open_channel(self, *args: Any, **options: Any) -> paramiko.Channel:
        try:
            channel = super().open_channel(*args, **options)
        except paramiko.SSHException as error:
            # The frames of the traceback would keep the channel, for which no caller waits any more.
            raise error.with_traceback(None)  # noqa: B904 - the same error
        channel.transport = _Sender(self)  # type: ignore[assignment]
        channel.event = _Answer(self.channel_timeout)
        return channel

    def _parse_channel_open_success(self, message: Any) -> None:
        own, theirs = message.get_int(), message.get_int()
        # Kept until the return: otherwise the caller could give the channel up in between, and paramiko would
        # ignore the confirmation. A channel that no caller uses closes itself when it is deleted.
        channel = self._channels.get(own)  # type: ignore[attr-defined]
        if channel is None:
            # The time limit of open_channel is over. For sshd, the channel would count towards MaxSessions.
            close = paramiko.Message()
            close.add_byte(cMSG_CHANNEL_CLOSE)
            close.add_int(theirs)
            self._send_message(close)
            return
        message.rewind()
        super()._parse_channel_open_success(message)  # type: ignore[misc]

    def _send_message(self, message: Any) -> None:
        # paramiko calls it for one message of a channel at a time.
        sender = getattr(message, "sender", None)
        if sender is not None:
            if sender.is_closed:
                return
            sender.is_closed = message.asbytes()[:1] == cMSG_CHANNEL_CLOSE
        super()._send_message(message)  # type: ignore[misc]

    def _parse_disconnect(self, message: Any) -> None:
        message.get_int()
        self.last_words = printable_line(message.get_string().decode(errors="replace"))[:_MOST_WORDS]


# Without a handler, paramiko prints errors that toolkit reports itself, with a trace, to standard error.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Link:
    """One SSH connection with its route to the host: jump hosts, or a ProxyCommand.

    Args:
        gateways: the connections to jump hosts, shared with other links; None for one of its own.
    """

    def __init__(
        self,
        target: Target,
        connect_timeout: float = 10.0,
        silence: float = keepalive.SILENCE_S,
        gateways: Gateways | None = None,
    ) -> None:
        self.target, self._timeout, self._silence = target, connect_timeout, silence
        self._pulse: keepalive.Pulse | None = None
        self._gateways: Gateways = {} if gateways is None else gateways
        self._through = self._closed = False
        self._proxy: _Proxy | None = None
        self._known = record(target)
        self.connection = fabric.Connection(
            target.host,
            user=target.user or None,
            port=target.port,
            # An empty configuration: `ssh -G` has already applied ~/.ssh/config.
            config=fabric.Config(ssh_config=paramiko.SSHConfig()),
            connect_timeout=connect_timeout,
            forward_agent=False,
            connect_kwargs={
                "auth_strategy": KeyLogin(target),
                "banner_timeout": connect_timeout,
                "auth_timeout": connect_timeout + 20,
                "transport_factory": self._transport,
            },
        )
        self.connection.client.set_missing_host_key_policy(_Strict(target, self._known))

    @property
    def transport(self) -> paramiko.Transport:
        """The transport of a link that is open."""
        transport: paramiko.Transport = self.connection.transport
        return transport

    def open(self) -> None:
        """Connect and authenticate once, by the configured route.

        Raises:
            Unreachable: with the reason and the command that fixes it.
        """
        if self.connection.is_connected:
            return
        sock = self._way()
        if sock is not None:
            self.connection.connect_kwargs["sock"] = sock
        with _LOGINS:
            if self._closed:
                raise Unreachable(
                    "toolkit closed the connection to the host",
                    "run the same command again",
                    self.target.name,
                )
            try:
                self.connection.open()
            except Exception as error:
                # Close it now: sshd counts connections without a login against the address of this machine.
                self.connection.client.close()
                raise explain(self.target, error, self._proxy_words()) from error
        self._pulse = keepalive.Pulse(self.transport, silence=self._silence)
        under = self.transport.sock
        if isinstance(under, socket.socket):
            under.settimeout(_IDLE_S)
        if self._proxy is None and isinstance(under, socket.socket) and hasattr(socket, "TCP_USER_TIMEOUT"):
            # Unanswered, the kernel ends the connection to a host that has lost its power after this time
            # and not after 15 minutes.
            under.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000)

    @property
    def lost(self) -> str:
        """The reason for the loss of the connection, empty if it is not lost or the reason is unknown."""
        if self._pulse is None:
            return ""
        words = getattr(self.transport, "last_words", "")
        return self._pulse.lost or (words and f"the sshd of the host closed the connection: {words}")

    def shown_key(self) -> Any:
        """Return the key that the host presents, without a login.

        Raises:
            Unreachable: the host does not answer or is not an sshd, or a jump host refuses the connection.
        """
        try:
            way = self._way()
            with _LOGINS:
                transport = self._transport(way or plain_socket(self.target, self._timeout))
                try:
                    transport.start_client(timeout=self._timeout)
                    return transport.get_remote_server_key()
                finally:
                    transport.close()
        except (OSError, EOFError, UnicodeError, paramiko.SSHException) as error:
            raise explain(self.target, error, self._proxy_words()) from error

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(Exception):
            # Ends the thread that reads, for which `close` of paramiko waits. With a jump host, `close` ends
            # the thread itself, because the thread sends a last message through the jump host.
            if isinstance(self.transport.sock, socket.socket):
                self.transport.sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            self.connection.close()
        if self._proxy is not None:
            self._proxy.close()
        self._leave()

    def _way(self) -> Any:
        """Return what leads to the host, None for a plain connection.

        Raises:
            Unreachable: a jump host is not reached, or does not lead on; names it.
        """
        if self.target.jump:
            hop, to = self.target.jump[-1], (self.target.host, self.target.port)
            self._leave()
            self._through = True
            gateway = _enter(self._gateways, hop, self._timeout)
            try:
                return gateway.transport.open_channel("direct-tcpip", to, ("", 0), timeout=self._timeout)
            except (OSError, EOFError, paramiko.SSHException) as error:
                what = f"the jump host cannot connect to {to[0]} port {to[1]}: {error}"
                fix = f"on the jump host: nc -vz {to[0]} {to[1]}  # sshd also needs AllowTcpForwarding yes"
                raise Unreachable(what, fix, hop.name) from error
        if self.target.proxy:
            try:
                self._proxy = _Proxy(self.target.proxy)
            except OSError as error:
                raise explain(self.target, error) from error
            return self._proxy.socket
        return None

    def _leave(self) -> None:
        if self._through:
            self._through = False
            _leave(self._gateways, self.target.jump[-1])

    def _proxy_words(self) -> str:
        return self._proxy.last_words() if self._proxy else ""

    def _transport(self, sock: Any, **options: Any) -> paramiko.Transport:
        transport = _Transport(sock, default_window_size=_WINDOW, **options)
        transport.channel_timeout = self._silence  # paramiko would wait for a channel for an hour
        security = transport.get_security_options()
        preferred = [c for c in _CIPHERS if c in security.ciphers]
        security.ciphers = (*preferred, *(c for c in security.ciphers if c not in preferred))
        # The post-quantum exchange takes more processor time; many hosts at once make it felt.
        cheap = [k for k in security.kex if k.startswith("curve25519")]
        security.kex = (*cheap, *(k for k in security.kex if k not in cheap))
        prefer_recorded(transport, self._known)
        return transport


@dataclass
class Gateway:
    """The connection to one jump host, with one channel for every host behind it.

    Args:
        users: links that use the connection, or wait for it.
        failures: number of attempts that failed.
        failure: the error of the last attempt, None after a success.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    link: Link | None = None
    users: int = 0
    failures: int = 0
    failure: ToolkitError | None = None


# One connection to each jump host. One for each host behind it would exceed MaxStartups of the jump host's
# sshd from about 12 hosts on.
Gateways = dict[Target, Gateway]
_gateways_lock = threading.Lock()


def _enter(gateways: Gateways, hop: Target, connect_timeout: float) -> Link:
    """Return the open connection to a jump host for one more user, who calls ``_leave`` in any case.

    Users that wait for the connection share the result of one attempt, also its failure. The next user
    after a failure, or after a loss of the connection, connects again.

    Raises:
        Unreachable: the jump host is not reached.
    """
    with _gateways_lock:
        gateway = gateways.setdefault(_place(hop), Gateway())
        gateway.users += 1
        failures = gateway.failures
    with gateway.lock:
        if gateway.link is not None and gateway.link.transport.is_active():
            return gateway.link
        if gateway.failure is not None and gateway.failures > failures:
            failure = copy.copy(gateway.failure)
            failure.host = hop.name
            raise failure
        if gateway.link is not None:
            gateway.link.close()
        gateway.link, gateway.failure = None, None
        link = Link(hop, connect_timeout, gateways=gateways)
        try:
            link.open()
        except ToolkitError as error:
            link.close()
            gateway.failures, gateway.failure = gateway.failures + 1, error
            raise
        gateway.link = link
        return link


def _leave(gateways: Gateways, hop: Target) -> None:
    """Close the connection to a jump host if this was its last user."""
    with _gateways_lock:
        gateway = gateways[_place(hop)]
        gateway.users -= 1
        if gateway.users:
            return
        del gateways[_place(hop)]
    if gateway.link is not None:
        gateway.link.close()


def _place(hop: Target) -> Target:
    """Return a jump host without the names of the hosts behind it, so that equal ones compare equal."""
    return replace(hop, name="", jump=tuple(map(_place, hop.jump)))
