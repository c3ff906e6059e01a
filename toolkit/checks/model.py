"""What a check is: a question to the hosts in shell, and a pure judge of their recorded answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from toolkit.cluster.look import Looked
from toolkit.core.command import Result
from toolkit.core.facts import Facts, Link
from toolkit.core.finding import Finding, Verdict
from toolkit.core.image import ImageFacts
from toolkit.errors import ToolkitError
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import Choice, DataPath
from toolkit.network.evidence import Evidence

# When a check can be judged: with what the hosts say over ssh; with connections that they try to each
# other and to the image's registry; with what a short-lived container from the image sees.
Stage = Literal["host", "pairs", "inside"]
STAGES: tuple[Stage, ...] = ("host", "pairs", "inside")


@dataclass(frozen=True)
class Probe:
    """A piece of shell that is run on every host and changes nothing there.

    It sees POSIX sh, coreutils and grep, runs as the ssh user with LC_ALL=C, and prints nothing when what
    it asks for is missing. ``$1`` is the image's name, ``$3`` the cluster's, ``$4`` the host's, ``$5`` and
    on are the sources of the mounts; ``$engine`` is what `docker info` said, as JSON. Probes of one name
    are asked once, whichever checks share them. One without text is among the questions that every
    command asks (``toolkit.cluster.probe``).
    """

    name: str
    text: str = ""


@dataclass(frozen=True)
class Seen:
    """What one host answered.

    Args:
        answers: output by the probe's name; a probe that was not asked is absent.
        facts: None when the host could not be reached, or what it said made no sense.
        error: why there are no facts, or why docker cannot be used there.
        ahead: seconds by which the host's clock is ahead of this machine's, None when it is not known.
        doubt: seconds by which ``ahead`` may be wrong, half of a round trip.
    """

    host: str
    answers: Mapping[str, str] = field(default_factory=dict)
    facts: Facts | None = None
    error: ToolkitError | None = None
    ahead: float | None = None
    doubt: float = 0.0

    def answer(self, probe: Probe) -> str:
        """Return the probe's output without blanks at the ends; empty when it was not asked."""
        return self.answers.get(probe.name, "").strip()


@dataclass(frozen=True)
class Scene:
    """Everything that judges may look at.

    Args:
        seen: every host of the inventory that was asked, in the file's order.
        image: what the cluster's containers are made from, None when nobody has it.
        sendable: this machine's own engine has that image, so that hosts which lack it can get it.
        paths: data path of each host for which one can be told.
        port: where the workers' sshd listens or will listen.
        choice: how the paths were chosen, and what came of every other address.
        evidence: what hosts found out about the ways to each other, without a container.
        registry: what the image's registry answered to the hosts that pull the image.
        inside: what the program in a container of each host found; hosts where none was started are absent.
        outside: why none was started there.
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

    @property
    def facts(self) -> dict[str, Facts]:
        """Facts of the hosts that answered, in the file's order."""
        return {name: seen.facts for name, seen in self.seen.items() if seen.facts is not None}

    def link(self, host: str) -> Link | None:
        """The interface of a host's data path, None when the host does not say."""
        facts, path = self.facts.get(host), self.paths.get(host)
        return facts.link(path.interface) if facts and path else None

    def no_look(self, host: str) -> str:
        """Why nothing is known of a host's containers, empty when something is."""
        looked = self.inside.get(host)
        if looked is None:
            return self.outside.get(host, "no container was started")
        return f"its container told nothing: {looked.error}" if looked.error else ""


HostJudge = Callable[[Seen, Scene], Iterable[Finding]]
SceneJudge = Callable[[Scene], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One thing that would stop, spoil or slow a job, and how it is told from what hosts answered.

    Args:
        id: stable, kebab-case; what ``--check`` and ``--json`` call it.
        title: what is right when it is ``ok``, in a few words.
        host: judge of one host at a time; nothing yielded means ok.
        whole: judge of all hosts together; nothing yielded means ok.
        probes: what it needs to have been asked.
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
    """A fault that stops or spoils a job; check and host are filled in by the check."""
    return _finding("error", what, fix, host, subject)


def warning(what: str, fix: str, host: str = "", subject: str = "") -> Finding:
    """Something that slows a job or may spoil it."""
    return _finding("warning", what, fix, host, subject)


def fine(what: str, host: str = "") -> Finding:
    """In order, for a reason that is worth saying."""
    return _finding("ok", what, "", host, "")


def unchecked(what: str, fix: str = "", host: str = "", subject: str = "") -> Finding:
    """What could not be looked at, and why."""
    return _finding("not checked", what, fix, host, subject)


def _finding(verdict: Verdict, what: str, fix: str, host: str, subject: str) -> Finding:
    return Finding("", verdict, what, fix, host, subject)
