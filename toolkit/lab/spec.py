"""Requested settings of a practice cluster: number of hosts, engines, link rates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from toolkit.core.printable import counted
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile import fields

DOCKER_DATA = "/var/lib/docker"
CONTAINERD_DATA = "/var/lib/containerd"
# Podman is rootless on a practice host: its data is in the home of the ssh user.
PODMAN_DATA = "/home/trainer/.local/share/containers"
MANAGEMENT = "-management"  # suffix of the second network's name
SSH_USERS = ("trainer", "root")
MOST_CABLES = 4
MOST_HOSTS = 200  # addresses .11 to .210 of the lab's /24

_RATE = re.compile(r"([1-9][0-9]{0,5})(kbit|mbit|gbit)")
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


@dataclass(frozen=True)
class EngineKind:
    """Container engine of a practice host: Debian release, packages, image store."""

    suite: str
    packages: tuple[str, ...]
    store: Literal["overlay2", "containerd", "podman"]

    @property
    def base(self) -> str:
        """The base image's reference."""
        return f"debian:{self.suite}-slim"

    @property
    def data(self) -> tuple[str, ...]:
        """The folders that are kept when the host's container is recreated."""
        if self.store == "podman":
            return (PODMAN_DATA,)
        return (DOCKER_DATA, CONTAINERD_DATA) if self.store == "containerd" else (DOCKER_DATA,)


_NEW = ("docker.io", "docker-cli", "docker-compose")
ENGINES: dict[str, EngineKind] = {
    "old": EngineKind("bookworm", ("docker.io", "docker-compose"), "overlay2"),
    "new": EngineKind("trixie", _NEW, "overlay2"),
    "containerd": EngineKind("trixie", _NEW, "containerd"),
    # runc: crun fails on machines with both versions of control groups mounted.
    "podman": EngineKind("trixie", ("podman", "uidmap", "runc", "catatonit", "netavark", "passt"), "podman"),
}


def lab_name(text: str) -> str:
    """Return a lab's name.

    Raises:
        ValueError: the text is not a valid lab name.
    """
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?", text):
        raise ValueError(
            "should be 1 to 24 characters of a-z, 0-9 and '-', "
            f"with a letter or digit at both ends, found {text!r}"
        )
    return text


@dataclass(frozen=True)
class LabSpec:
    """Requested settings of a lab.

    Args:
        hosts: number of hosts.
        engines: keys of ENGINES, assigned to the hosts in turn.
        rate: maximum rate of each host's link, such as ``100mbit``; empty for no limit.
        management: rate of a second network interface for ssh; empty for no such interface.
        interfaces: ``differ`` gives the hosts' data interfaces different names, ``same`` calls all eth0.
        user: SSH user; ``trainer`` (uid 1000, in group docker) or ``root``.
        image: the cluster's image, written to hosts.yaml.
        cables: number of direct links between the two hosts, each a /30 network with MTU 9000.
        folder: absolute path for hosts.yaml and the ssh files.
    """

    name: str
    folder: str
    hosts: int = 2
    engines: tuple[str, ...] = ("new",)
    rate: str = ""
    interfaces: str = "differ"
    user: str = "trainer"
    slots: int = 1
    image: str = "toolkit:cpu"
    management: str = ""
    cables: int = 0

    def __post_init__(self) -> None:
        problems = tuple(self._problems())
        if problems:
            raise BadInput("lab", problems)

    def _problems(self) -> Iterable[Problem]:
        try:
            lab_name(self.name)
        except ValueError as error:
            yield Problem("name", str(error))
        try:
            fields.image(self.image)
        except ValueError as error:
            yield Problem("image", str(error))
        if not self.folder.isprintable():  # hosts.yaml cannot contain such a path
            what = f"should contain only printable characters, found {self.folder!r}"
            yield Problem("folder", f"{what}; set --folder to another folder")
        if not 1 <= self.hosts <= MOST_HOSTS:
            yield Problem("count", f"should be 1 to {MOST_HOSTS}, found {self.hosts}")
        if not self.engines:
            yield Problem("engine", f"should be one or more of {', '.join(ENGINES)}")
        for engine in self.engines:
            if engine not in ENGINES:
                yield Problem("engine", f"should be one or more of {', '.join(ENGINES)}, found {engine!r}")
        if "podman" in self.engines and not self.is_podman:
            yield Problem("engine", "should be podman for all hosts or for no host")
        if self.is_podman and self.user == "root":
            yield Problem(
                "user",
                "should be trainer if the engine is podman, because Podman is rootless on practice hosts",
            )
        for field, rate in (("rate", self.rate), ("management", self.management)):
            if rate and not _RATE.fullmatch(rate):
                yield Problem(field, f"should be a number with kbit, mbit or gbit, found {rate!r}")
        if self.interfaces not in ("same", "differ"):
            yield Problem("interfaces", f"should be same or differ, found {self.interfaces!r}")
        if self.user not in SSH_USERS:
            yield Problem("user", f"should be one of {', '.join(SSH_USERS)}, found {self.user!r}")
        if not 1 <= self.slots <= 64:
            yield Problem("slots", f"should be 1 to 64, found {self.slots}")
        if not 0 <= self.cables <= MOST_CABLES:
            yield Problem("cables", f"should be 0 to {MOST_CABLES}, found {self.cables}")
        if self.cables and self.hosts != 2:
            what = f"should be 0 unless the practice cluster has 2 hosts, found {counted(self.hosts, 'host')}"
            yield Problem("cables", what)

    @property
    def is_podman(self) -> bool:
        """True if the hosts run Podman."""
        return set(self.engines) == {"podman"}

    @property
    def network(self) -> str:
        """The name of the lab's docker network."""
        return f"toolkit-lab-{self.name}"

    @property
    def networks(self) -> tuple[str, ...]:
        """The docker networks of the lab: data cards first, then management cards, then cables."""
        management = (self.network + MANAGEMENT,) if self.management else ()
        return (self.network, *management, *self.cable_networks)

    @property
    def cable_networks(self) -> tuple[str, ...]:
        """The docker networks that simulate cables."""
        return tuple(f"{self.network}-cable{number}" for number in range(1, self.cables + 1))


def rate_bits(rate: str) -> int:
    """Return a rate such as ``100mbit`` in bits per second.

    Raises:
        ValueError: the text is not a rate.
    """
    match = _RATE.fullmatch(rate)
    if match is None:
        raise ValueError(rate)
    return int(match[1]) * _UNITS[match[2]]
