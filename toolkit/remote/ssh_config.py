"""Address and user of SSH connections: ``ssh -G`` resolves aliases, Include, Match and ProxyJump."""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.errors import Unreachable

_GLOBAL = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_MOST_HOPS = 8
# Login methods of ssh that toolkit does not support; not GSSAPIAuthentication, which Debian enables for all.
_UNSUPPORTED = {
    "hostbasedauthentication": "HostbasedAuthentication",
    "pkcs11provider": "PKCS11Provider",
    "knownhostscommand": "KnownHostsCommand",
}
_UNSET = ("no", "none", "")
# `ssh -G` at a time: each takes open files of this process, see ``toolkit.cluster.connect.allow_open_files``.
_PROGRAMS = threading.BoundedSemaphore(16)


@dataclass(frozen=True)
class Target:
    """Destination of a connection.

    Args:
        identities_only: of the agent's keys, offer only those that ``identity_files`` name.
        certificates: user certificates, in addition to those next to their keys.
        agent: the agent's socket; empty for SSH_AUTH_SOCK's, ``none`` for no agent.
        known_hosts: the user's files; the first is where new keys are recorded.
        alias: the name that known_hosts lists the host by, in place of address and port.
        revoked_keys: file with host keys that are never accepted, empty for none.
        proxy: a command whose standard input and output lead to the host, empty for none.
        jump: the chain of jump hosts, the nearest to this machine first.
        is_jump: whether it is a jump host of the host that ``name`` begins with.
        unsupported: options of the SSH configuration for this host that toolkit does not support.
    """

    name: str
    host: str
    user: str = ""
    port: int = 22
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    certificates: tuple[str, ...] = ()
    agent: str = ""
    known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    alias: str = ""
    revoked_keys: str = ""
    proxy: str = ""
    jump: tuple[Target, ...] = ()
    unsupported: tuple[str, ...] = ()
    is_jump: bool = False

    @property
    def known_as(self) -> str:
        """The name under which known_hosts lists the host."""
        return self.alias or (self.host if self.port == 22 else f"[{self.host}]:{self.port}")

    @property
    def login(self) -> str:
        """User, host and port as one word."""
        return f"{self.user}@{self.host}:{self.port}"


def resolve_target(
    name: str,
    address: str,
    user: str = "",
    port: int = 0,
    identity_file: str = "",
    jump: str = "",
    known_hosts: str = "",
) -> Target:
    """Return the target of a connection; the arguments override ``~/.ssh/config``.

    Without an ssh program on this machine only the arguments count.

    Raises:
        Unreachable: ssh cannot read its configuration, or the configuration needs an unsupported feature.
    """
    return _resolve(name, address, user, port, identity_file, jump, known_hosts, 0)


def _resolve(
    name: str,
    address: str,
    user: str,
    port: int,
    identity_file: str,
    jump: str,
    known_hosts: str,
    depth: int,
) -> Target:
    options = _ssh_g(name, address, user, port)
    target = target_of_options(name, address, options, user, port)
    if identity_file:
        files = (str(Path(identity_file).expanduser()),)
        target = replace(target, identity_files=files, identities_only=True)
    if known_hosts:
        target = replace(target, known_hosts=(str(Path(known_hosts).expanduser()),))
    via = jump or expand(one(options, "proxyjump", "none"), _tokens(target, address))
    if via == "none":
        if jump == "none":
            return replace(target, proxy="")
        if target.proxy and one(options, "proxyusefdpass", "no") == "yes":
            what = f"the SSH configuration of {address} sets ProxyUseFdpass, which toolkit does not support"
            fix = "in ~/.ssh/config: use ProxyJump, or a ProxyCommand that forwards the data"
            raise Unreachable(what, fix, name)
        return target
    hops = _hops(name, via, known_hosts, identity_file, depth)
    return replace(target, proxy="", jump=hops)


def target_of_options(name: str, address: str, options: Options, user: str = "", port: int = 0) -> Target:
    """Return the target that the options of ``ssh -G`` describe, without the jump hosts."""
    target = Target(
        name=name,
        host=one(options, "hostname", address),
        user=user or one(options, "user", "") or _me(),
        port=port or int(one(options, "port", "22")),
        alias=one(options, "hostkeyalias", ""),
        identities_only=one(options, "identitiesonly", "no") == "yes",
        agent=_agent(one(options, "identityagent", "SSH_AUTH_SOCK")),
        unsupported=tuple(n for key, n in _UNSUPPORTED.items() if one(options, key, "no") not in _UNSET),
    )
    tokens = _tokens(target, address)

    def files(key: str) -> tuple[str, ...]:
        return tuple(str(Path(expand(f, tokens)).expanduser()) for f in options.get(key, ()) if set_of(f))

    def lists(key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = options.get(key, [" ".join(default)])[0]
        return tuple(str(Path(f).expanduser()) for f in split_paths(set_of(value)))

    return replace(
        target,
        identity_files=files("identityfile"),
        certificates=files("certificatefile"),
        known_hosts=lists("userknownhostsfile", ("~/.ssh/known_hosts",)),
        global_known_hosts=lists("globalknownhostsfile", _GLOBAL),
        revoked_keys=expand(set_of(one(options, "revokedhostkeys", "none")), tokens),
        proxy=expand(set_of(one(options, "proxycommand", "none")), tokens),
    )


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user database has no entry for this uid, as in some containers
        return str(os.getuid())


def _agent(value: str) -> str:
    if value.startswith("$"):  # the name of a variable that holds the path
        value = os.environ.get(value[1:].strip("{}"), "none")
    return "" if value == "SSH_AUTH_SOCK" else value if value == "none" else str(Path(value).expanduser())


def _tokens(target: Target, address: str) -> dict[str, str]:
    host = socket.gethostname()
    return {
        "%": "%",
        "d": str(Path.home()),
        "h": target.host,
        "i": str(os.getuid()),
        "k": target.alias or address,
        "L": host.partition(".")[0],
        "l": host,
        "n": address,
        "p": str(target.port),
        "r": target.user,
        "u": _me(),
    }


def _hops(name: str, via: str, known_hosts: str, identity_file: str, depth: int) -> tuple[Target, ...]:
    if depth >= _MOST_HOPS:
        what = f"the jump hosts form a loop, or there are more than {_MOST_HOPS} jump hosts: {via}"
        raise Unreachable(what, "in ~/.ssh/config: correct ProxyJump", name)
    hops: tuple[Target, ...] = ()
    for text in via.split(","):
        user, host, port = split_hop(text)
        # As with ssh's -J: the configuration of the first jump host decides how to reach it.
        further = "none" if hops else ""
        hop = _resolve(name, host, user, port, "", further, known_hosts, depth + 1)
        if identity_file:
            own = str(Path(identity_file).expanduser())
            hop = replace(hop, identity_files=(own, *(f for f in hop.identity_files if f != own)))
        way = hops or hop.jump
        hops = (*way, replace(hop, name=f"{name} (jump host {host})", jump=way, is_jump=True))
    return hops


def _ssh_g(name: str, address: str, user: str, port: int) -> Options:
    # User and port too: Match blocks and tokens can depend on them.
    given = (*(("-l", user) if user else ()), *(("-p", str(port)) if port else ()))
    line = ["ssh", "-G", *given, "--", address]
    try:
        with _PROGRAMS:
            done = subprocess.run(
                line, capture_output=True, text=True, timeout=10, check=False, errors="replace"
            )
    except FileNotFoundError:
        return {}
    except OSError as error:  # too many open files or processes
        what = f"your machine cannot start ssh: {error.strerror}"
        fix = "ulimit -a  # then raise the limit of open files or processes, or use fewer hosts"
        raise Unreachable(what, fix, name) from error
    except subprocess.TimeoutExpired:
        what = "ssh needs more than 10 s to read its configuration; a Match exec command might hang"
        raise Unreachable(what, " ".join(line), name) from None
    if done.returncode != 0:
        errors = " | ".join(s for s in done.stderr.splitlines() if not s.startswith("Pseudo-terminal"))
        raise Unreachable(f"ssh cannot read its configuration: {errors}", " ".join(line), name)
    return parse_ssh_g(done.stdout)


Options = Mapping[str, list[str]]


def parse_ssh_g(text: str) -> Options:
    """Return what ``ssh -G`` printed, by option in lower case; those that repeat in order."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    return options


def one(options: Options, key: str, default: str) -> str:
    """Return the first value of an option, the default when it is not given."""
    return next(iter(options.get(key, ())), default)


def set_of(value: str) -> str:
    """Return the value, an empty text for the word ``none``."""
    return "" if value.lower() == "none" else value


def split_paths(value: str) -> tuple[str, ...]:
    """Return the files in one line of ``ssh -G``, which parts them by blanks and quotes none."""
    return tuple(re.split(r" +(?=[/~])", value)) if value else ()


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Return the text with ssh_config(5)'s ``%`` tokens and ``${NAME}`` filled in; unknown ones stay."""

    def piece(match: re.Match[str]) -> str:
        if match[1]:
            return os.environ.get(match[1], match[0])
        return tokens.get(match[2], match[0])

    return re.sub(r"\$\{(\w+)\}|%(.)", piece, text)


def split_hop(text: str) -> tuple[str, str, int]:
    """Return user, host and port of one jump host as ``ssh -G`` and users write it; 0 for no port."""
    user, _, place = text.removeprefix("ssh://").rpartition("@")
    # ssh puts brackets around a host with a port, as around an IPv6 address.
    match = re.fullmatch(r"\[?([^\[\]]*?)\]?(?::([0-9]+))?", place)
    return (user, match[1], int(match[2] or 0)) if match else (user, place, 0)
