"""Draft of a hosts.yaml: facts about the hosts, and the commented file with these facts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.core.container import Mount
from toolkit.core.engines import DOCKER
from toolkit.core.templates import yaml_text
from toolkit.hostsfile import fields
from toolkit.hostsfile.yaml import plain

MOST_SLOTS = 1024

_WORD = re.compile(r"(?:([^=@:]*)=)?(?:([^@]*)@)?([^@:]*)(?::([^:]*))?")
# Text that needs no quotes in YAML, unless `plain` reports a problem.
_BARE = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./:@+-]*[A-Za-z0-9_./@+-])?")
_LONGEST = 200


@dataclass(frozen=True)
class DraftHost:
    """The known facts about a host.

    Args:
        address: where ssh connects to.
        name: empty means: made from the address by ``named``.
        user, port, slots, data_address: empty, 0 or None means: not written, so that the file's defaults
            hold.
        notes: comments in the file about the host, a line each.
    """

    address: str
    name: str = ""
    user: str = ""
    port: int = 0
    slots: int | None = None
    data_address: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draft:
    """The content of a new hosts.yaml; without hosts it gets two as an example.

    Args:
        left_out: requested hosts that the file does not contain, as (host, reason), for a comment.
    """

    cluster: str = "demo"
    image: str = "toolkit:gpu"
    hosts: tuple[DraftHost, ...] = ()
    engine: str = DOCKER
    mounts: tuple[Mount, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def read_host(word: str) -> DraftHost:
    """Return the host that ``[NAME=][USER@]ADDRESS[:SLOTS]`` describes.

    Raises:
        ValueError: the text has another form; describes the error.
    """
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError("should be [NAME=][USER@]ADDRESS[:SLOTS]")
    name, user, address, slots = match.groups()
    return DraftHost(
        fields.address(address),
        fields.host_name(name) if name is not None else "",
        fields.user(user) if user is not None else "",
        slots=read_slots(slots, "; set an SSH port in hosts.yaml") if slots is not None else None,
    )


def read_slots(text: str, hint: str = "") -> int:
    """Return a number of slots.

    Raises:
        ValueError: it is none.
    """
    if not (re.fullmatch("[0-9]{1,9}", text) and int(text) <= MOST_SLOTS):
        raise ValueError(f"slots should be 0 to {MOST_SLOTS}, found {text!r}{hint}")
    return int(text)


def faults_between(hosts: Sequence[DraftHost]) -> Iterator[tuple[int, str]]:
    """Yield conflicts between hosts, with the index of the host at fault."""
    names: dict[str, int] = {}
    places: dict[tuple[str, int], int] = {}
    for index, host in enumerate(hosts):
        if places.setdefault((host.address.lower(), host.port or 22), index) != index:
            yield index, f"{host.address} is listed twice; list each host once"
        if host.name and names.setdefault(host.name, index) != index:
            yield index, f"two hosts have the name {host.name}; names must be unique"
        if host.slots == 0 and index > 0:
            yield index, "only the main host (the first host) can have 0 slots"
    if len(hosts) == 1 and hosts[0].slots == 0:
        yield 0, "no host has a slot"


def named(hosts: Sequence[DraftHost]) -> tuple[DraftHost, ...]:
    """Return the hosts, each with a name: its own, one made of its address, or ``host1`` and so on."""
    names = {index: host.name for index, host in enumerate(hosts) if host.name}
    # Addresses that hold a name choose first: what is made up for the others must not take theirs.
    for tries in (_short, _whole, _numbered):
        for index, host in enumerate(hosts):
            taken = set(names.values())
            name = names.get(index) or next((n for n in tries(host.address, index) if n not in taken), "")
            if name:
                names[index] = name
    return tuple(replace(host, name=names[index]) for index, host in enumerate(hosts))


def _short(address: str, index: int) -> Iterator[str]:
    return _label(address.partition(".")[0], address)


def _whole(address: str, index: int) -> Iterator[str]:
    return _label(address, address)


def _numbered(address: str, index: int) -> Iterator[str]:
    return (f"host{number}" for number in itertools.count(index + 1))


def _label(text: str, address: str) -> Iterator[str]:
    """The text as a host name; nothing when it cannot be one, or the address is made of numbers."""
    name = re.sub("[^a-z0-9]+", "-", text.lower())[:60].strip("-")
    try:
        if not re.fullmatch("[0-9.]+", address):
            yield fields.host_name(name)
    except ValueError:
        return


_EXAMPLE = (DraftHost("gpu1"), DraftHost("gpu2"))


def hosts_file(draft: Draft) -> str:
    """Return the text of a hosts.yaml: the keys of the draft, and further keys as comments."""
    hosts = named(draft.hosts or _EXAMPLE)
    return _TEXT.format(
        cluster=_scalar(draft.cluster),
        image=_scalar(draft.image),
        advice="" if draft.hosts else "# Replace these two examples with your hosts.\n",
        hosts="\n".join(_host_lines(host) for host in hosts),
        left_out="".join(f"  # left out: {_comment(f'{name}: {why}')}\n" for name, why in draft.left_out),
        main=_scalar(hosts[0].name),
        engine="" if draft.engine == DOCKER else _ENGINE.format(engine=draft.engine),
        mounts=_mounts(draft.mounts),
    )


def _host_lines(host: DraftHost) -> str:
    lines = [f"  {_scalar(host.name)}:"]
    lines += [f"    # {_comment(note)}" for note in host.notes]
    lines += [f"    address: {_scalar(host.address)}"] if host.address != host.name else []
    lines += [f"    user: {_scalar(host.user)}"] if host.user else []
    lines += [f"    port: {host.port}"] if host.port else []
    lines += [f"    data_address: {host.data_address}"] if host.data_address else []
    lines += [f"    slots: {host.slots}"] if host.slots is not None else []
    return "\n".join(lines)


def _mounts(mounts: Sequence[Mount]) -> str:
    words = [f"{m.source}:{m.target}{':ro' if m.read_only else ''}" for m in mounts]
    # Always in quotes: bare, a path with a '#' or a blank in it would be read as another.
    return "".join(["mounts:", *(f"\n  - {yaml_text(word)}" for word in words)]) if words else _NO_MOUNTS


def _comment(text: str) -> str:
    """The text as one line of a comment; hosts choose some of the words, and must not end the comment."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _scalar(text: str) -> str:
    """The text as a YAML scalar: bare where every reader takes it for text, else in JSON's quotes."""
    return text if _BARE.fullmatch(text) and plain(text) == (text, "") else yaml_text(text)


_NO_MOUNTS = "# mounts: [/data:/data:ro]"
_ENGINE = """\
# Container engine of the hosts: docker or podman.
engine: {engine}

"""
_TEXT = """\
# The hosts of one cluster and the settings of their containers. Remove the '# ' from the settings you need.
# `toolkit schema` prints a JSON Schema for editors that check this file.

# Cluster name, part of container and folder names. Clusters on the same hosts need different names.
cluster: {cluster}

# Image of the main and worker containers, such as toolkit:gpu, or toolkit:cpu for hosts without GPUs.
# `toolkit image build` builds these images.
image: {image}

# The hosts, by name.
{advice}# toolkit connects to a host without settings as `ssh NAME` does. By default, slots is one per GPU,
# or 1 on a host without GPUs.
hosts:
{hosts}
{left_out}  # example:
  #   address: 192.0.2.11        # SSH address: a name, an IPv4 address, or an alias from ~/.ssh/config
  #   user: alice
  #   port: 22
  #   identity_file: ~/.ssh/id_ed25519
  #   jump: alice@gate.example.com
  #   data_address: 10.0.0.11    # address for training traffic, if it differs from the SSH address
  #   slots: 8
  #   gpus: 8                    # number of GPUs to use (default: all GPUs of the host)

# Host of the main container (default: the first host).
# main: {main}

# SSH port of worker containers (default: 12345, or a free port if 12345 is busy).
# worker_port: 12345

{engine}\
# Bind mounts: /source:/target, read-only with :ro. The source is a path on every host.
{mounts}

# Environment variables of all ranks. Values are strings: quote numbers, true and false.
# env: {{NCCL_DEBUG: WARN}}

# Size of /dev/shm, which data loaders use.
# shm_size: 8g

# Launcher, the program that starts the ranks. auto selects the launcher by the imports of the script.
# Other values: torchrun, horovodrun, horovodrun-gloo, mpirun, accelerate, deepspeed, ray, python.
# launcher: auto

# Method to start ranks on worker hosts: ssh, or exec (no sshd and no SSH key in containers). auto selects
# ssh if the image contains sshd and ssh, otherwise exec.
# transport: auto

# File with the SSH host keys. `toolkit trust` adds keys to this file.
# known_hosts: ~/.ssh/known_hosts
"""
