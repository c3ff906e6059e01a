"""Containers that run container_probe.py or image_probe.py: their commands, input and output."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolkit.cluster.containers import cluster_container, gpu_env
from toolkit.cluster.layout import Layout, Place
from toolkit.cluster.ownership import running
from toolkit.cluster.ports import FIRST_MASTER_PORT, free_port
from toolkit.core.command import Command, script
from toolkit.core.container import CONFINED, Container, docker_run_args
from toolkit.core.image import ImageFacts
from toolkit.launchers import NEEDS
from toolkit.protocol.decode import DecodeError, decode, decode_json, load_json
from toolkit.protocol.frames import read_frames
from toolkit.protocol.names import MAIN, container_name
from toolkit.protocol.probes import ImageReport, Listening, LookReport
from toolkit.protocol.transport import SSH, needs_of

# Seconds after which the program exits, and after which the process that runs it is killed.
LIFE_SECONDS, KILL_SECONDS = 25, 30

# The program arrives on standard input, so that no file is written.
_LOADER = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"
# The last line shows the end even while standard input is still open.
# The end of `docker run` does not end a program in the container that ignores signals.
_WRAPPED = r"""
container=$1; shift
timeout -k 2 "$@"; status=$?
case $status in 124|137) [ -z "$container" ] || docker rm --force "$container" >/dev/null 2>&1 ;; esac
printf '\nended %s\n' "$status"
"""
ENDED = "ended "
# The programs of every launcher: if one is missing, `check` names a launcher that the image has.
_PROGRAMS = sorted({*needs_of(SSH, 2), *(name for names in NEEDS.values() for name in names), "py-spy"})


@dataclass(frozen=True)
class Look:
    """The test program of one host.

    Args:
        command: starts the program, with the first part of its standard input.
        head: that part: the programs, then the settings of this host.
        address: the address for connections of other hosts.
        up: it runs in the cluster's own container.
    """

    host: str
    command: Command
    head: bytes
    address: str
    up: bool


@dataclass(frozen=True)
class Looked:
    """The result of one host's program.

    Args:
        report: its report, empty if it failed earlier; then ``error`` has the reason.
        ahead: seconds by which its clock is ahead of this machine's; ``doubt`` is the error bound.
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
    """Return the program to start on each host that has the image.

    Args:
        program: the text of container_probe.py with all of its imports.
        token: 32 hexadecimal digits; a client with this token can connect to the programs while they run.
    """
    text = program.encode()
    there = [p for p in layout.places if _runs(layout, p) or _image_id(layout, p)]
    names = {path.host: path.address for path in layout.paths}
    workers = [p.name for p in layout.workers if layout.has_sshd(p) and _runs(layout, p)]
    looks = []
    for place in there:
        up = _runs(layout, place)
        settings = {
            "host": place.name,
            "address": place.path.address,
            "ports": _ports(layout, place, up),
            "token": token,
            "limit": LIFE_SECONDS,
            "mounts": [m.target for m in layout.inventory.mounts if not m.read_only],
            # Before `up` has written the containers' own files, names do not resolve.
            "names": sorted(names) if up else [],
            "gpus": bool(place.gpus),
            "programs": _PROGRAMS,
            "logins": workers if up and place.role == MAIN else [],
        }
        head = text + json.dumps(settings).encode() + b"\n"
        python = ("python3", "-I", "-c", _LOADER, str(len(text)))
        own = "" if up else _test_container(layout, token)
        argv = _exec_args(layout, place, python) if up else _run_args(layout, place, python, own)
        command = script(_WRAPPED, own, str(KILL_SECONDS), *argv)
        looks.append(Look(place.name, command, head, place.path.address, up))
    return tuple(looks)


@dataclass(frozen=True)
class InspectedImage:
    """An image of this machine's engine: its name, the engine's facts, and the report of the probe."""

    name: str
    facts: ImageFacts
    report: ImageReport

    def __repr__(self) -> str:
        return f"InspectedImage({self.name!r}, {self.facts.identity!r})"


def plan_image_look(image: str, user: Sequence[str], program: str, nonce: str) -> Command:
    """Return the command that runs image_probe.py in a container of an image, called ``look_name(nonce)``.

    Args:
        image: reference or Id.
        user: options of `docker run` for the user of the container.
        program: the text of image_probe.py with all of its imports.
        nonce: 16 hexadecimal digits, see ``parse_image_look``.
    """
    text = program.encode()
    head = text + json.dumps({"programs": _PROGRAMS, "nonce": nonce}).encode() + b"\n"
    # Without a log: the engine would write all that the program prints to its disk.
    run = ("docker", "run", "--rm", "--interactive", "--network", "none", "--log-driver", "none")
    own = ("--name", look_name(nonce), *CONFINED, *user)
    return Command((*run, *own, image, "python3", "-I", "-c", _LOADER, str(len(text))), head)


def look_name(nonce: str) -> str:
    """Return the name of the container that ``plan_image_look`` starts."""
    return f"toolkit-look-{nonce}"


def parse_image_look(output: bytes, nonce: str) -> ImageReport:
    """Return the report of image_probe.py; other output of the container is ignored.

    Raises:
        FrameError, KeyError, DecodeError: the output contains no valid report.
    """
    return decode_json(ImageReport, read_frames(output, nonce)["image"])


def targets_line(host: str, looks: Sequence[Look], ports: Mapping[str, Mapping[str, int]]) -> bytes:
    """Return the line for a program once the others listen; ``ports`` are those that each listens on."""
    targets = [
        {"host": other.host, "address": other.address, "ports": ports[other.host]}
        for other in looks
        if other.host != host and other.host in ports
    ]
    return json.dumps({"targets": targets}).encode() + b"\n"


def parse_line(line: bytes) -> Listening | LookReport | None:
    """Return one answer of the program, None for another line, such as a banner or words of the engine.

    Raises:
        DecodeError: the answer is invalid.
    """
    try:
        value = load_json(line)
    except DecodeError:
        return None
    if isinstance(value, dict) and "pairs" in value:
        return decode(LookReport, value)
    return decode(Listening, value) if isinstance(value, dict) and "ports" in value else None


def last_words(lines: Sequence[str]) -> str:
    """Return the line that explains best why a program or its container exited."""
    words = [line.strip() for line in lines if line.strip()]
    # docker prints its message before its advice to read the help.
    docker = [line.removeprefix("docker: ") for line in words if line.startswith("docker: ")]
    return (docker or words or ["the process exited without a message"])[-1]


def _runs(layout: Layout, place: Place) -> bool:
    return running(layout.inventory.cluster, place.role, place.facts) is not None


def _image_id(layout: Layout, place: Place) -> str:
    return next((i.id for i in place.facts.images if i.identity == layout.image.identity), "")


def _ports(layout: Layout, place: Place, up: bool) -> dict[str, int]:
    # On hosts with the cluster's own sshd, the login of main is a better test than a connection.
    own = {} if (up and layout.has_sshd(place)) or not layout.port else {"worker": layout.port}
    master = free_port(FIRST_MASTER_PORT, place.facts, place.path.address)
    return {**own, "master": master, "any": 0}


def _exec_args(layout: Layout, place: Place, argv: Sequence[str]) -> tuple[str, ...]:
    return ("docker", "exec", "--interactive", container_name(layout.inventory.cluster, place.role), *argv)


def _test_container(layout: Layout, token: str) -> str:
    return f"toolkit-{layout.inventory.cluster}-check-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def _run_args(layout: Layout, place: Place, argv: Sequence[str], name: str) -> tuple[str, ...]:
    """Return a container with the user, limits, devices and mounts of ranks, without the files of `up`."""
    like: Container = cluster_container(layout, place)
    mine = replace(
        like,
        name=name,
        image=_image_id(layout, place),
        argv=tuple(argv),
        workdir="/",
        env=(("HOME", "/tmp"), *gpu_env(place.gpus, place.facts)),
        mounts=layout.inventory.mounts,
        labels=(),
        cap_add=(),
    )
    words = docker_run_args(mine)
    at = words.index("--detach")
    return (*words[:at], "--rm", "--interactive", *words[at + 1 :])
