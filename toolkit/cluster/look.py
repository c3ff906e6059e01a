"""Start of container/check/container_probe.py on a host, what it is told, and its answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolkit.cluster.containers import cluster_container
from toolkit.cluster.docker import docker_run_args
from toolkit.cluster.layout import Layout, Place
from toolkit.cluster.ownership import running
from toolkit.cluster.ports import FIRST_MASTER_PORT, free_port
from toolkit.core.command import Command, script
from toolkit.core.container import Container
from toolkit.launchers import NEEDS
from toolkit.protocol.decode import DecodeError, decode, load_json
from toolkit.protocol.looks import Listening, LookReport
from toolkit.protocol.names import MAIN, container_name
from toolkit.protocol.transport import SSH, needs_of

# Seconds after which the program ends by itself, and after which whoever holds it is killed.
LIFE_SECONDS, KILL_SECONDS = 25, 30

# The program comes on standard input, so that nothing is written anywhere.
_LOADER = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"
# The last line tells that it is over even while standard input is still open.
_WRAPPED = r"""timeout -k 2 "$@"; printf '\nended %s\n' "$?" """
ENDED = "ended "


@dataclass(frozen=True)
class Look:
    """One host's part.

    Args:
        command: starts the program, with the first part of its standard input.
        head: that part: the programs, then what this host is told.
        address: where others reach it.
        up: whether it runs in the cluster's own container.
    """

    host: str
    command: Command
    head: bytes
    address: str
    up: bool


@dataclass(frozen=True)
class Looked:
    """What one host's program found.

    Args:
        report: what it said, without values when it did not come so far; then ``error`` says why.
        ahead: seconds by which its clock is ahead of this machine's; ``doubt`` how wrong that may be.
        up: as in Look.
        status: the program's exit status, or the engine's if the program could not start.
    """

    report: LookReport = field(default_factory=LookReport)
    error: str = ""
    ahead: float = 0.0
    doubt: float = 0.0
    up: bool = False
    status: int = 0


def plan_looks(layout: Layout, program: str, token: str) -> tuple[Look, ...]:
    """Return what is to be started on each host that holds the image.

    Args:
        program: the text of container_probe.py with all that it imports.
        token: 32 hexadecimal digits; whoever knows it may talk to the programs while they live.
    """
    text = program.encode()
    there = [p for p in layout.places if _runs(layout, p) or _image_id(layout, p)]
    names = {path.host: path.address for path in layout.paths}
    workers = [p.name for p in layout.workers if layout.has_sshd(p) and _runs(layout, p)]
    # Those of every launcher: if one is missing, `check` names a launcher that the image has.
    programs_of_image = sorted({*needs_of(SSH, 2), *(name for names in NEEDS.values() for name in names)})
    looks = []
    for place in there:
        up = _runs(layout, place)
        told = {
            "host": place.name,
            "address": place.path.address,
            "ports": _ports(layout, place, up),
            "token": token,
            "limit": LIFE_SECONDS,
            "mounts": [m.target for m in layout.inventory.mounts if not m.read_only],
            # Before `up` has written the containers' own files, names say nothing about them.
            "names": sorted(names) if up else [],
            "gpus": bool(place.gpus),
            "programs": programs_of_image,
            "logins": workers if up and place.role == MAIN else [],
        }
        head = text + json.dumps(told).encode() + b"\n"
        python = ("python3", "-I", "-c", _LOADER, str(len(text)))
        argv = _exec_args(layout, place, python) if up else _run_args(layout, place, python, token)
        command = script(_WRAPPED, str(KILL_SECONDS), *argv)
        looks.append(Look(place.name, command, head, place.path.address, up))
    return tuple(looks)


def targets_line(host: str, looks: Sequence[Look], ports: Mapping[str, Mapping[str, int]]) -> bytes:
    """Return what a program is told once the others listen; ``ports`` are those that each listens on."""
    targets = [
        {"host": other.host, "address": other.address, "ports": ports[other.host]}
        for other in looks
        if other.host != host and other.host in ports
    ]
    return json.dumps({"targets": targets}).encode() + b"\n"


def parse_line(line: bytes) -> Listening | LookReport | None:
    """Return one answer of the program, None when the line is none: a banner, or words of the engine.

    Raises:
        DecodeError: it is an answer that cannot be read.
    """
    try:
        value = load_json(line)
    except DecodeError:
        return None
    if isinstance(value, dict) and "pairs" in value:
        return decode(LookReport, value)
    return decode(Listening, value) if isinstance(value, dict) and "ports" in value else None


def last_words(lines: Sequence[str]) -> str:
    """Return the line that says best why a program or its container ended."""
    said = [line.strip() for line in lines if line.strip()]
    # docker's own message stands before its advice to read the help.
    docker = [line.removeprefix("docker: ") for line in said if line.startswith("docker: ")]
    return (docker or said or ["it ended without a word"])[-1]


def _runs(layout: Layout, place: Place) -> bool:
    return running(layout.inventory.cluster, place.role, place.facts) is not None


def _image_id(layout: Layout, place: Place) -> str:
    return next((i.id for i in place.facts.images if i.identity == layout.image.identity), "")


def _ports(layout: Layout, place: Place, up: bool) -> dict[str, int]:
    # Where the cluster's own sshd listens, main's login tells more than a connection would.
    own = {} if (up and layout.has_sshd(place)) or not layout.port else {"worker": layout.port}
    master = free_port(FIRST_MASTER_PORT, place.facts, place.path.address)
    return {**own, "master": master, "any": 0}


def _exec_args(layout: Layout, place: Place, argv: Sequence[str]) -> tuple[str, ...]:
    return ("docker", "exec", "--interactive", container_name(layout.inventory.cluster, place.role), *argv)


def _run_args(layout: Layout, place: Place, argv: Sequence[str], token: str) -> tuple[str, ...]:
    """A container as ranks get it: its user, limits, devices, mounts; without what `up` has yet to write."""
    like: Container = cluster_container(layout, place)
    mine = replace(
        like,
        name=f"toolkit-{layout.inventory.cluster}-check-{hashlib.sha256(token.encode()).hexdigest()[:8]}",
        image=_image_id(layout, place),
        argv=tuple(argv),
        workdir="/",
        env=(("HOME", "/tmp"),),
        mounts=layout.inventory.mounts,
        labels=(),
        cap_add=(),
    )
    words = docker_run_args(mine)
    at = words.index("--detach")
    return (*words[:at], "--rm", "--interactive", *words[at + 1 :])
