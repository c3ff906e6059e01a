"""The model of a check: a probe that hosts run in a shell, and a pure function that judges the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from toolkit.cluster.probe_containers import Looked
from toolkit.core.command import Result
from toolkit.core.facts import Facts, Link
from toolkit.core.finding import Finding, Verdict
from toolkit.core.image import ImageFacts
from toolkit.errors import ToolkitError
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import Choice, DataPath, Evidence
from toolkit.network.fabric import Fabric, choose_fabric
from toolkit.protocol.host_list import host_list

# The input of a check: probes of the hosts over ssh; connections between hosts and to the image's registry;
# the report of a short-lived container from the image.
Stage = Literal["host", "pairs", "inside"]
STAGES: tuple[Stage, ...] = ("host", "pairs", "inside")


@dataclass(frozen=True)
class Probe:
    """A piece of shell that is run on every host and changes nothing there.

    It uses POSIX sh, coreutils and grep, runs as the SSH user with LC_ALL=C, and prints nothing if the
    requested information is missing. ``$1`` is the image's name, ``$3`` the cluster's, ``$4`` the host's,
    ``$5`` and the following are the sources of the mounts. ``$root`` is the engine's data root, empty if
    docker cannot be used; ``$seen`` has a line ``|PATH|`` for each mounted folder of a running container with
    a label of toolkit. A probe runs once, even if several checks share it. A probe without text is one that
    every command runs (``toolkit.cluster.probe``).
    """

    name: str
    text: str = ""


@dataclass(frozen=True)
class Seen:
    """The answers of one host.

    Args:
        answers: output by the probe's name; a probe that did not run is absent.
        facts: None if the host could not be reached, or its answers cannot be parsed.
        error: the reason for missing facts, or for an unusable docker on the host.
        ahead: seconds by which the host's clock is ahead of this machine's, None if it is not known.
        doubt: error bound of ``ahead`` in seconds, half of a round trip.
    """

    host: str
    answers: Mapping[str, str] = field(default_factory=dict)
    facts: Facts | None = None
    error: ToolkitError | None = None
    ahead: float | None = None
    doubt: float = 0.0

    def answer(self, probe: Probe) -> str:
        """Return the probe's output without blanks at the ends; empty if the probe did not run."""
        return self.answers.get(probe.name, "").strip()


@dataclass(frozen=True)
class Scene:
    """The complete input of all judges.

    Args:
        seen: every host of the inventory that was queried, in the file's order.
        image: the image of the cluster's containers, None if neither this machine nor a host has it.
        next_image: the image that `up` uses, if it can differ from ``image``.
        sendable: the engine of this machine has that image and can send it to hosts.
        local_silence: the reason why it is unknown if this machine has the image.
        paths: data path of each host that has a known one.
        port: the port of sshd in the worker containers.
        choice: the choice of the paths, with the result for every other address.
        evidence: results of connections between hosts, without a container.
        registry: response of the image's registry to each host that pulls the image.
        inside: report of the test program of each host; hosts without one are absent.
        outside: the reason for a missing test program, by host.
    """

    inventory: Inventory
    seen: Mapping[str, Seen]
    image: ImageFacts | None = None
    paths: Mapping[str, DataPath] = field(default_factory=dict)
    port: int = 0
    sendable: bool = False
    choice: Choice = field(default_factory=Choice)
    evidence: Evidence = field(default_factory=Evidence)
    registry: Mapping[str, Result] = field(default_factory=dict)
    inside: Mapping[str, Looked] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    local_silence: str = ""
    next_image: ImageFacts | None = None

    @cached_property
    def facts(self) -> Mapping[str, Facts]:
        """Facts of the hosts that answered, in the file's order."""
        return {name: seen.facts for name, seen in self.seen.items() if seen.facts is not None}

    @cached_property
    def fabric(self) -> Fabric:
        """The fabric that ranks use in addition to TCP."""
        return choose_fabric(self.inventory.network, self.facts, self.paths)

    @property
    def silent(self) -> list[str]:
        """Hosts that were queried and did not answer."""
        return [name for name, seen in self.seen.items() if seen.facts is None]

    @property
    def no_image(self) -> str:
        """The reason why ``image`` is None."""
        if not self.silent:
            return "no host has the image"
        who = f"{host_list(self.silent)} did not answer"
        return f"{who}, and no other host has the image" if self.facts else who

    def link(self, host: str) -> Link | None:
        """Return the interface of a host's data path, None if the host did not report it."""
        facts, path = self.facts.get(host), self.paths.get(host)
        return facts.link(path.interface) if facts and path else None

    def no_look(self, host: str) -> str:
        """Return the reason for a missing container report of a host, empty if there is a report."""
        looked = self.inside.get(host)
        if looked is None:
            return self.outside.get(host, "toolkit started no test program")
        return f"the test program failed: {looked.error}" if looked.error else ""


HostJudge = Callable[[Seen, Scene], Iterable[Finding]]
SceneJudge = Callable[[Scene], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One condition that a job needs, and the function that judges it by the answers of the hosts.

    Args:
        id: stable name in kebab-case, for ``--check`` and ``--json``.
        title: the condition in a few words, printed if it is met.
        host: judge of one host at a time; nothing yielded means ok.
        whole: judge of all hosts together; nothing yielded means ok.
        probes: the probes whose output it reads.
    """

    id: str
    title: str
    host: HostJudge | None = None
    whole: SceneJudge | None = None
    probes: tuple[Probe, ...] = ()
    stage: Stage = "host"

    def judged(self, scene: Scene) -> Iterator[Finding]:
        """Yield at least one finding for each host that answered, or one for the whole."""
        if self.host is not None:
            for seen in scene.seen.values():
                if seen.facts is not None:
                    yield from self._filled(self.host(seen, scene), seen.host)
        if self.whole is not None:
            yield from self._filled(self.whole(scene), "")

    def _filled(self, findings: Iterable[Finding], host: str) -> Iterator[Finding]:
        found = tuple(findings)
        for finding in found or (Finding(self.id, "ok", self.title),):
            yield replace(finding, check=self.id, host=finding.host or host)


def error(what: str, fix: str, host: str = "", subject: str = "") -> Finding:
    """Return a finding that breaks or corrupts a job; the check fills in its id and the host."""
    return _finding("error", what, fix, host, subject)


def warning(what: str, fix: str, host: str = "", subject: str = "") -> Finding:
    """Return a finding that slows a job or can corrupt it."""
    return _finding("warning", what, fix, host, subject)


def fine(what: str, host: str = "") -> Finding:
    """Return an `ok` finding with a reason."""
    return _finding("ok", what, "", host, "")


def unchecked(what: str, fix: str = "", host: str = "", subject: str = "") -> Finding:
    """Return a `not checked` finding with its reason."""
    return _finding("not checked", what, fix, host, subject)


def _finding(verdict: Verdict, what: str, fix: str, host: str, subject: str) -> Finding:
    return Finding("", verdict, what, fix, host, subject)


def grouped(values: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return, from pairs of host and word, the hosts of each word in their order."""
    groups: dict[str, list[str]] = {}
    for host, word in values:
        groups.setdefault(word, []).append(host)
    return groups


def groups_text(groups: Mapping[str, Sequence[str]]) -> str:
    """Return the groups in one line, such as ``550.54 on gpu1, gpu2; 535.183 on gpu3``."""
    return "; ".join(f"{word} on {host_list(hosts)}" for word, hosts in groups.items())
