"""The commented hosts.yaml that says what a Draft knows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from toolkit.core.container import Mount
from toolkit.core.engines import DOCKER
from toolkit.hostsfile.yaml import plain
from toolkit.init.draft import Draft, DraftHost, named

# What may stand in YAML without quotes, if `plain` has nothing to say against it.
_BARE = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./:@+-]*[A-Za-z0-9_./@+-])?")
_EXAMPLE = (DraftHost("gpu1"), DraftHost("gpu2"))
_LONGEST = 200


def hosts_file(draft: Draft) -> str:
    """Return the text of a hosts.yaml: what the draft says, and the keys that come next as comments."""
    hosts = named(draft.hosts or _EXAMPLE)
    return _TEXT.format(
        cluster=_scalar(draft.cluster),
        image=_scalar(draft.image),
        advice="" if draft.hosts else "# These two stand for your own.\n",
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
    return "".join(["mounts:", *(f"\n  - {json.dumps(word)}" for word in words)]) if words else _NO_MOUNTS


def _comment(text: str) -> str:
    """The text as one line of a comment; hosts choose some of the words, and must not end the comment."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _scalar(text: str) -> str:
    """The text as a YAML scalar: bare where every reader takes it for text, else in JSON's quotes."""
    return text if _BARE.fullmatch(text) and plain(text) == (text, "") else json.dumps(text)


_NO_MOUNTS = "# mounts: [/data:/data:ro]"
_ENGINE = """\
# What runs containers on the hosts: docker or podman.
engine: {engine}

"""
_TEXT = """\
# The machines of one cluster, and what the containers on them are like. Take the '# ' from what you need;
# `toolkit schema` prints every key there is, in a form by which editors check this file.

# Part of the names of containers and folders on the hosts. Two clusters on the same hosts need two names.
cluster: {cluster}

# What every container is made from. `toolkit image build` makes toolkit:gpu or toolkit:cpu.
image: {image}

# The machines, under the names by which ranks find each other.
{advice}# A name without settings is what `ssh NAME` reaches. A host has a slot per GPU, one if it has no GPU.
hosts:
{hosts}
{left_out}  # example:
  #   address: 192.0.2.11        # where ssh connects to: a name, an IPv4 address, an alias of ~/.ssh/config
  #   user: alice
  #   port: 22
  #   identity_file: ~/.ssh/id_ed25519
  #   jump: alice@gate.example.com
  #   data_address: 10.0.0.11    # where ranks reach this host, when that is another network than ssh's
  #   slots: 8
  #   gpus: 8                    # how many the host must have

# Where the launcher runs. The first host if absent.
# main: {main}

# The port of the workers' sshd. Absent, it is 12345 and moves when that is busy; written, it never moves.
# worker_port: 12345

{engine}\
# What ranks see of the hosts' files: /source:/target, read-only with :ro. The source is a path on every host.
{mounts}

# For all ranks. Values are text: numbers, true and false need quotes.
# env: {{NCCL_DEBUG: WARN}}

# The size of /dev/shm, which data loaders share.
# shm_size: 8g

# What starts the ranks: horovodrun, mpirun, torchrun, accelerate, deepspeed, python; auto reads the script.
# launcher: horovodrun

# How ranks are started on workers: ssh, or exec, with which no container has an sshd or a key.
# transport: ssh

# The hosts' ssh keys; `toolkit trust` records them here.
# known_hosts: ~/.ssh/known_hosts
"""
