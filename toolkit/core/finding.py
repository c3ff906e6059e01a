"""Findings: results of checks of hosts, files or measurements; notices: reports before a command's plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

# "not checked" means that a check could not run; it is never "ok".
Verdict = Literal["ok", "warning", "error", "not checked"]
_WORST_FIRST: tuple[Verdict, ...] = ("error", "warning", "not checked", "ok")


@dataclass(frozen=True)
class Finding:
    """One result of one check.

    Args:
        check: id of the check, such as ``disk-space``.
        verdict: ``error`` would break or corrupt a job, ``warning`` would slow it or can corrupt it.
        what: the finding in plain words, one sentence.
        fix: the command or the change that fixes the problem; empty if no action is necessary.
        host: inventory name of the host concerned, empty for the cluster or its file.
        subject: what on that host, such as ``/data`` or ``env/NCCL_TIMEOUT`` or the name of another host.
    """

    check: str
    verdict: Verdict
    what: str
    fix: str = ""
    host: str = ""
    subject: str = ""

    @property
    def command(self) -> str:
        """The fix without its comment."""
        return self.fix.partition("  #")[0]


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the most severe verdict among them; ``ok`` if there is none."""
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), "ok")


def alarms(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the errors and warnings among them, in their order."""
    return tuple(finding for finding in findings if finding.verdict in ("error", "warning"))


def graver_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings with errors first; findings of one verdict keep their order."""
    return tuple(sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.verdict)))


class Topic(Enum):
    """The subject of a notice."""

    ENVIRONMENT = "variables that ranks would get"
    CHANGES = "keys of hosts.yaml that changed since up"
    VERSION = "hosts on which a newer toolkit created the cluster"
    LAUNCHER = "choice of the launcher"
    CODE = "files that are not sent"
    JOB = "problems of the job"
    HOSTS = "problems of the hosts"
    TRANSPORT = "choice of the transport"
    PULL = "hosts that pull the image first"
    ENDING = "a running job that toolkit stops first"


@dataclass(frozen=True)
class Notice:
    """Findings or a text about one topic."""

    topic: Topic
    findings: tuple[Finding, ...] = ()
    text: str = ""
