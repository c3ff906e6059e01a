"""Errors for failed SSH connections, each with the command that fixes it."""

from __future__ import annotations

import errno
import shlex
import socket
from pathlib import Path

import paramiko

from toolkit.core.causes import is_denied
from toolkit.errors import ToolkitError, Unreachable, UnreachableCause
from toolkit.remote.auth import NotLetIn
from toolkit.remote.known_hosts import Record, Verdict
from toolkit.remote.ssh_config import Target


class RefusedHostKey(paramiko.SSHException):
    """The host presented a key that known_hosts does not allow."""

    def __init__(self, verdict: Verdict, key: paramiko.PKey, known: Record) -> None:
        self.verdict, self.key, self.known = verdict, key, known
        super().__init__(f"host key {key.fingerprint} is {verdict}")


def explain(target: Target, error: Exception, proxy_said: str = "") -> ToolkitError:
    """Return the error to show for an exception of paramiko or the system.

    Args:
        proxy_said: the last line that the target's ProxyCommand wrote to standard error.
    """
    name, host, port = target.name, target.host, target.port
    named = name.partition(" ")[0]  # without the description of a jump host
    by_hand = f"ssh {_way(target)}"
    of_jump = "the port of the jump host in hosts.yaml or ~/.ssh/config"
    its_port = of_jump if target.is_jump else "port: in hosts.yaml"
    if isinstance(error, ToolkitError):
        return error
    if isinstance(error, RefusedHostKey):
        return _host_key(target, error)
    if isinstance(error, paramiko.AuthenticationException):
        return _login(target, error)
    if target.proxy:
        words = proxy_said or str(error) or type(error).__name__
        what = f"the ProxyCommand does not connect to an sshd: {words}"
        # The words of an ssh that a jump host refuses.
        cause = UnreachableCause.LOGIN_REFUSED if is_denied(words) else UnreachableCause.OTHER
        return Unreachable(what, target.proxy, name, cause)
    if isinstance(error, (socket.gaierror, UnicodeError)):  # of a name with an empty or too long label
        what = f"the name {host} cannot be resolved on your machine"
        key, which = ("jump:", "jump host") if target.is_jump else ("address:", "host")
        fix = (
            f"in hosts.yaml: set {key} to the IPv4 address of the {which}, or to a name that ssh can resolve"
        )
        if target.is_jump:
            fix += "; if ~/.ssh/config sets the jump host, correct ProxyJump or HostName in ~/.ssh/config"
        return Unreachable(what, fix, name, UnreachableCause.UNKNOWN_NAME)
    inner = getattr(error, "errors", None)  # paramiko's, one for each address of the name
    causes = list(inner.values()) if isinstance(inner, dict) else [error]
    if any(getattr(e, "errno", 0) == errno.ECONNREFUSED for e in causes):
        what = f"{host} port {port} refuses the connection"
        fix = f"{by_hand}  # then check that sshd runs and that {its_port} is correct"
        return Unreachable(what, fix, name)
    gone = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
    if isinstance(error, TimeoutError) or any(getattr(e, "errno", 0) in gone for e in causes):
        what = (
            f"{host} port {port} does not answer; the host might be off, disconnected, or behind a firewall"
        )
        return Unreachable(what, by_hand, name)
    # paramiko's words for a handshake that was not done in time, and for the first line of one.
    if str(error) == "No existing session" or isinstance(error.__context__, TimeoutError):
        what = (
            f"{host} port {port} accepts the connection but sends nothing; "
            "the host might be hung or overloaded"
        )
        return Unreachable(
            what,
            f"{by_hand}  # then check the console of the host; "
            f"to run a job without the host: toolkit run --exclude {named}",
            name,
        )
    if "banner" in str(error) or isinstance(error, EOFError):
        what = f"the program on {host} port {port} is not an sshd, or closes connections immediately: {error}"
        fix = f"{by_hand}  # then check that {its_port} is correct"
        return Unreachable(what.removesuffix(": "), fix, name)
    return Unreachable(
        f"cannot connect to {target.login}: {str(error) or type(error).__name__}", by_hand, name
    )


def _way(target: Target) -> str:
    """Return the arguments with which ssh and ssh-copy-id take the same way to the host as toolkit."""
    way = ["-p", str(target.port)]
    if target.jump:
        way += ["-o", "ProxyJump=" + ",".join(map(_hop, target.jump))]
    elif target.proxy:
        way += ["-o", "ProxyCommand=" + target.proxy.replace("%", "%%")]
    return shlex.join((*way, f"{target.user}@{target.host}"))


def _hop(jump: Target) -> str:
    """Return a jump host as in ProxyJump, by its alias, which sets its key in ~/.ssh/config."""
    host = jump.name.partition("(jump host ")[2].removesuffix(")") or jump.host
    return f"{jump.user}@{f'[{host}]' if ':' in host else host}:{jump.port}"


def _host_key(target: Target, error: RefusedHostKey) -> ToolkitError:
    known, kind, shown = error.known, error.key.get_name(), error.key.fingerprint
    host = target.name.partition(" ")[0]  # without the description of a jump host
    if error.verdict == "revoked":
        marks = [e.where for e in known.revoked if e.key == error.key.get_base64()]
        what = f"the SSH host key is REVOKED ({', '.join(marks) or target.revoked_keys}): {shown}"
        return Unreachable(
            what,
            "ask the administrator of the host to create a new SSH host key",
            target.name,
            UnreachableCause.REVOKED_KEY,
        )
    if error.verdict == "changed":
        was = ", ".join(f"{e.kind} {e.fingerprint} ({e.where})" for e in known.compared(kind))
        what = f"the SSH host key has CHANGED: recorded {was}, received {kind} {shown}"
        fix = f"toolkit trust --replace {host}  # only if the host was reinstalled"
        changed = Unreachable(what, fix, target.name, UnreachableCause.CHANGED_KEY)
        changed.known_as = target.known_as
        return changed
    what = f"the SSH host key is not recorded yet ({kind} {shown})"
    if known.authorities:
        what += f"; {known.authorities[0].where} uses a @cert-authority, which toolkit does not support"
    if "KnownHostsCommand" in target.unsupported:
        what += "; toolkit does not support KnownHostsCommand"
    return Unreachable(what, f"toolkit trust {host}", target.name, UnreachableCause.UNKNOWN_KEY)


def _login(target: Target, error: paramiko.AuthenticationException) -> ToolkitError:
    tried = error.tried if isinstance(error, NotLetIn) else [str(error)]
    # Without -i, ssh-copy-id installs the keys of the agent, or the newest key in ~/.ssh.
    files = target.identity_files if target.identities_only else ()
    if tried:  # the default files of ssh begin with some that do not exist
        files = tuple(f for f in files if Path(f).is_file() or Path(f"{f}.pub").is_file())
    elif len(files) > 1:
        files = ()  # ssh-keygen and ssh-copy-id use the same default file
    key = shlex.quote(files[0]) if files else ""
    copy = f"ssh-copy-id {key and f'-i {key} '}{_way(target)}"
    user = "the user in jump:" if target.is_jump else "user:"
    fix = f"{copy}  # or set {user} and identity_file: in hosts.yaml"
    if not tried:
        tried = ["toolkit found no key in a file or in the SSH agent"]
        fix = f"ssh-keygen -t ed25519 {key and f'-f {key} '}&& {fix}"
    elif isinstance(error, NotLetIn):
        if error.silent:
            file = f" {shlex.quote(error.locked[0])}" if error.locked else ""
            fix = f"eval $(ssh-agent) && ssh-add{file}  # or authorize another key: {copy}"
        elif error.locked:
            fix = f"ssh-add {shlex.quote(error.locked[0])}" + (f"; {fix}" if error.refused else "")
        elif error.more:
            fix = (
                f"on {target.name}: set AuthenticationMethods publickey for {target.user} in sshd_config, "
                "then restart sshd"
            )
        elif error.hung_up:
            where = "in ~/.ssh/config: set IdentityFile and IdentitiesOnly yes for the jump host"
            where = where if target.is_jump else "in hosts.yaml: set identity_file:"
            fix = f"{where}  # toolkit then offers only the key in the identity file"
        elif error.no_keys:
            fix = (
                f"on {target.name}: set PubkeyAuthentication yes for {target.user} in sshd_config, "
                "then restart sshd"
            )
    unsupported = [name for name in target.unsupported if name != "KnownHostsCommand"]
    if unsupported:
        tried = [*tried, f"toolkit does not support {' or '.join(unsupported)} in the SSH configuration"]
    what = f"the SSH login of {target.login} failed: {'; '.join(tried)}"
    return Unreachable(what, fix, target.name, UnreachableCause.LOGIN_REFUSED)
