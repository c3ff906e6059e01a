"""Why an ssh connection failed, in words, with the command that cures it."""

from __future__ import annotations

import socket

import paramiko

from toolkit.effects.ssh_config import Target
from toolkit.errors import ToolkitError, Unreachable


class UnknownHostKey(paramiko.SSHException):
    """The host showed a key that is not recorded."""

    def __init__(self, hostname: str, key: paramiko.PKey) -> None:
        self.key = key
        super().__init__(f"no key of {hostname} is recorded")


def explain(target: Target, error: Exception) -> ToolkitError:
    """Return the error that people get to see for what paramiko or the system raised."""
    login, name = f"{target.user}@{target.host}:{target.port}", target.name
    host = name.partition(" ")[0]  # without the words that name a jump host on the way to it
    if isinstance(error, UnknownHostKey):
        fingerprint = error.key.fingerprint
        what = f"its ssh host key is not known yet ({error.key.get_name()} {fingerprint})"
        return Unreachable(what, f"toolkit trust {host}", name)
    if isinstance(error, paramiko.BadHostKeyException):
        was, now = error.expected_key.fingerprint, error.key.fingerprint
        what = f"its ssh host key has CHANGED: recorded {was}, shown now {now}"
        fix = f"if the host was reinstalled: toolkit trust --replace {host}; if not, suspect an intruder"
        return Unreachable(what, fix, name)
    if isinstance(error, (paramiko.AuthenticationException, paramiko.PasswordRequiredException)):
        keys = ", ".join(target.identity_files) or "the ssh agent's keys"
        copy = f"ssh-copy-id -p {target.port} {target.user}@{target.host}"
        fix = f"{copy}, or set user and identity_file in the hosts file"
        return Unreachable(f"ssh does not let us in as {login} with {keys}: {error}", fix, name)
    if isinstance(error, socket.gaierror):
        return Unreachable(f"the name {target.host} is not known here", "set address: in hosts.yaml", name)
    if isinstance(error, TimeoutError):
        what = f"no answer from {target.host} port {target.port}: off, cut off, or behind a firewall"
        return Unreachable(what, f"ssh -p {target.port} {target.user}@{target.host}", name)
    what = f"cannot connect to {login}: {error or type(error).__name__}"
    return Unreachable(what, f"ssh -p {target.port} {target.user}@{target.host}", name)
