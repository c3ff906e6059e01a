"""Login with keys: the keys offered to a host, their order, and the result of each."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import paramiko

from toolkit.core.printable import printable_line
from toolkit.remote.ssh_config import Target

_OPENSSH_HEAD, _OPENSSH_TAIL = "-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"
_OPENSSH_MAGIC = b"openssh-key-v1\0"
_MOST_WORDS = 200  # characters of the names of login methods


class NotLetIn(paramiko.AuthenticationException):
    """The host accepted no key.

    Args:
        tried: each key with its result, as text.
        locked: key files whose passphrase is missing.
        refused: whether the host has refused at least one key.
        more: further methods that the host requires after an accepted key, such as ``keyboard-interactive``.
        hung_up: whether the host closed the connection after a number of keys.
        silent: whether the SSH agent did not answer.
        no_keys: whether the host accepts no keys.
    """

    def __init__(
        self,
        tried: list[str],
        locked: list[str],
        refused: bool,
        more: tuple[str, ...] = (),
        hung_up: bool = False,
    ) -> None:
        self.tried, self.locked, self.refused, self.more = tried, locked, refused, more
        self.hung_up, self.silent, self.no_keys = hung_up, False, False
        super().__init__("; ".join(tried))


class Agent(paramiko.agent.AgentSSH):
    """The keys of the SSH agent behind a socket; empty if no agent answers."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.silent = ""
        if not path or path == "none":
            return
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            conn.settimeout(10)
            conn.connect(path)
            # The user might have to touch a security key before the agent signs.
            conn.settimeout(60)
            self._connect(conn)  # type: ignore[attr-defined]  # paramiko's own Agent knows SSH_AUTH_SOCK alone
        except (OSError, paramiko.SSHException) as error:
            conn.close()
            self.silent = f"the SSH agent at {path} does not answer: {error}"

    def _send_message(self, message: Any) -> Any:
        kind, answer = super()._send_message(message)  # type: ignore[misc]
        # Of the comments of keys, which can have another encoding than the UTF-8 that paramiko expects.
        answer.get_text = lambda: answer.get_string().decode(errors="replace")
        return kind, answer

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


class KeyLogin:
    """Offers keys one after another; replaces paramiko's AuthStrategy.

    Order: each identity file, through the agent if the agent holds the key (certificate first), otherwise
    from the file; then the other keys of the agent, unless the configuration sets IdentitiesOnly.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tried: list[str] = []
        self._locked: list[str] = []
        self._refused = False

    def authenticate(self, transport: paramiko.Transport) -> list[Any]:
        """Log in.

        Raises:
            NotLetIn: the host accepted no key, or requires more than a key.
            paramiko.SSHException: the connection broke.
        """
        path = self._target.agent or os.environ.get("SSH_AUTH_SOCK", "")
        agent = Agent(path)
        try:
            for label, key in self._offers(agent):
                if self._try(transport, label, key):
                    return []
        finally:
            agent.close()
        if agent.silent:
            self._tried.append(agent.silent)
        failed = self._failure()
        failed.silent = bool(agent.silent)
        raise failed

    def _failure(self, more: tuple[str, ...] = (), hung_up: bool = False) -> NotLetIn:
        return NotLetIn(self._tried, self._locked, self._refused, more, hung_up)

    def _try(self, transport: paramiko.Transport, label: str, key: Any) -> bool:
        try:
            more = transport.auth_publickey(self._target.user, key)
        except paramiko.BadAuthenticationType as error:
            self._tried.append(f"sshd accepts no keys, only {_listed(error.allowed_types)}")
            failed = self._failure()
            failed.no_keys = True
            raise failed from error
        except paramiko.AuthenticationException:
            self._refused = True
            self._tried.append(f"sshd refused {label}")
        except paramiko.SSHException as error:
            if transport.is_active():
                self._tried.append(f"{label} cannot be used: {error}")  # the agent does not sign
                return False
            raise
        else:
            if not more:
                return True
            self._tried.append(f"sshd accepted {label}, but also requires: {_listed(more)}")
            raise self._failure(tuple(more))
        if not transport.is_active():
            self._tried.append("sshd closed the connection, probably because toolkit offered too many keys")
            raise self._failure(hung_up=True)
        return False

    def _offers(self, agent: Agent) -> Iterator[tuple[str, Any]]:
        held = {key.blob: key for key in agent.get_keys()}
        for path in self._target.identity_files:
            for blob in public_blobs(path):
                if blob in held:
                    key = held.pop(blob)
                    if "-cert-" not in key.get_name():  # the key came into the agent before the certificate
                        beside = f"{path}-cert.pub"
                        yield from self._certified(path, key, (beside, *self._target.certificates))
                    yield f"{path} (from the agent)", key
                    break
            else:
                yield from self._from_file(path)
        if not self._target.identities_only:
            for key in held.values():
                yield f"the agent's key {key.comment or key.get_name()}", key

    def _from_file(self, path: str) -> Iterator[tuple[str, Any]]:
        key = self._load(Path(path))
        if key is None:
            return
        # paramiko has loaded the certificate next to the key, if it exists.
        if key.public_blob is not None:
            yield f"{path} with its certificate", key
        yield from self._certified(path, key, self._target.certificates)
        yield path, key

    def _certified(self, path: str, key: Any, certificates: Iterable[str]) -> Iterator[tuple[str, Any]]:
        for certificate in certificates:
            key.public_blob = None
            with contextlib.suppress(ValueError, OSError):  # it belongs to another key, or does not exist
                key.load_certificate(certificate)
            if key.public_blob is not None:
                yield f"{path} with {certificate}", key
        key.public_blob = None

    def _load(self, file: Path) -> Any:
        """Return the private key of a file, None if it is unusable; the reason is recorded."""
        if not file.is_file():
            return None  # most of ssh's default files do not exist
        try:
            if not is_locked(file.read_bytes()):
                return paramiko.PKey.from_path(file)
            self._locked.append(str(file))
            self._tried.append(f"{file} has a passphrase, and the SSH agent does not have the key")
        except OSError as error:
            self._tried.append(f"{file} cannot be read: {error.strerror}")
        except Exception:  # paramiko and cryptography raise what their decoders raise
            self._tried.append(f"{file} is not a usable private key")
        return None


def _listed(methods: Iterable[str]) -> str:
    """Return the login methods that a host names, as text for an error."""
    return printable_line(", ".join(methods))[:_MOST_WORDS]


def public_blobs(path: str) -> tuple[bytes, ...]:
    """Return the public keys that belong to an identity file: its certificate's, then its own.

    The sources are the files next to it, the file itself if it is a public key, or the unencrypted
    head of a private key in OpenSSH's format, so no passphrase is needed.
    """
    found = []
    for name in (f"{path}-cert.pub", f"{path}.pub", path):
        with contextlib.suppress(OSError):
            data = Path(name).read_bytes()
            words = data.split(maxsplit=2)
            blob = _openssh_parts(data)[1] if name == path else b""
            if not blob and len(words) > 1 and words[0].startswith((b"ssh-", b"ecdsa-", b"sk-")):
                with contextlib.suppress(binascii.Error):
                    blob = base64.b64decode(words[1])
            if blob:
                found.append(blob)
    return tuple(dict.fromkeys(found))


def is_locked(data: bytes) -> bool:
    """Return whether a private key file's content is encrypted."""
    head = data[:4096]
    if b"ENCRYPTED" in head:  # PEM, of either kind
        return True
    return _openssh_parts(data)[0] not in (b"", b"none")


def _openssh_parts(data: bytes) -> tuple[bytes, bytes]:
    """Cipher and public key of a private key in OpenSSH's format (PROTOCOL.key), empty for any other."""
    text = data.decode("ascii", errors="replace").strip()
    if not text.startswith(_OPENSSH_HEAD) or _OPENSSH_TAIL not in text:
        return b"", b""
    try:
        raw = base64.b64decode(text[len(_OPENSSH_HEAD) : text.index(_OPENSSH_TAIL)])
    except binascii.Error:
        return b"", b""
    if not raw.startswith(_OPENSSH_MAGIC):
        return b"", b""
    rest, strings = raw[len(_OPENSSH_MAGIC) :], []
    for _ in range(3):  # cipher, key derivation, its options
        size = int.from_bytes(rest[:4], "big")
        strings.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    size = int.from_bytes(rest[4:8], "big")  # behind the number of keys, which is 1
    return strings[0], rest[8 : 8 + size]
