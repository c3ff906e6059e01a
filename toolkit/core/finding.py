"""Findings: results of checks of hosts, files or measurements, and their text; notices before a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from toolkit.core.printable import counted, printable_line, table
from toolkit.protocol.host_list import host_list

# "not checked" means that a check could not run; it is never "ok".
Verdict = Literal["ok", "warning", "error", "not checked"]
_WORST_FIRST: tuple[Verdict, ...] = ("error", "warning", "not checked", "ok")
_VERDICT = {"error": "ERROR", "warning": "warning", "not checked": "not checked", "ok": "ok"}
# Replaces the host's name while equal fixes of several hosts are grouped.
_HOST = "\0"


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

    ENVIRONMENT = "variables of the ranks"
    CHANGES = "keys of hosts.yaml that changed since `up`"
    VERSION = "hosts on which a newer toolkit created the cluster"
    LAUNCHER = "choice of the launcher"
    CODE = "files that toolkit does not send"
    JOB = "problems of the job"
    HOSTS = "problems of the hosts"
    TRANSPORT = "choice of the transport"
    PULL = "hosts that pull the image before the plan runs"
    ENDING = "a running job that toolkit stops before the removal"


@dataclass(frozen=True)
class Notice:
    """Findings or a text about one topic."""

    topic: Topic
    findings: tuple[Finding, ...] = ()
    text: str = ""


def findings_text(findings: Iterable[Finding], hosts: Sequence[str], everything: bool = False) -> str:
    """Return findings as text: the most severe first, equal ones as one, then a count by host.

    Args:
        hosts: all hosts, in the order in which they are to be counted.
        everything: also what is in order, and why something was not checked.
    """
    findings = tuple(findings)
    lines = _finding_lines(findings if everything else alarms(findings))
    rows = [(name, *_counts([f for f in findings if f.host == name])) for name in hosts]
    rows.append(("cluster", *_counts([f for f in findings if not f.host])))
    skipped = any(f.verdict == "not checked" for f in findings) and not everything
    more = "; -v lists the skipped checks and their reasons" if skipped else ""
    conclusion = {"error": "not ready", "warning": "ready, with warnings"}.get(worst(findings), "ready")
    head = "\n".join(lines) + "\n\n" if lines else ""
    return f"{head}{table(('host', 'errors', 'warnings', 'not checked', 'ok'), rows)}\n{conclusion}{more}\n"


def alarms_text(findings: Iterable[Finding]) -> str:
    """Return errors and warnings alone, equal ones as one; empty when there are none."""
    return "".join(f"{line}\n" for line in _finding_lines(alarms(findings)))


def warnings_text(findings: Iterable[Finding], everything: str, at_most: int = 5) -> str:
    """Return the first warnings, equal ones as one, and a line that counts the others.

    Args:
        everything: the command that prints all of them.
    """
    entries = _finding_entries(finding for finding in findings if finding.verdict == "warning")
    lines = [line for entry in entries[:at_most] for line in entry]
    if (more := len(entries) - at_most) > 0:
        lines.append(f"{counted(more, 'more warning')}: {everything}")
    return "".join(f"{line}\n" for line in lines)


def _finding_lines(findings: Iterable[Finding]) -> list[str]:
    return [line for entry in _finding_entries(findings) for line in entry]


def _finding_entries(findings: Iterable[Finding]) -> list[tuple[str, ...]]:
    """Return the lines of each finding; findings that differ only in the host share one entry."""
    together: dict[tuple[str, str, str, str, str], list[str]] = {}
    for one in findings:
        key = (one.verdict, one.check, one.what, without_host(one.fix, one.host), one.subject)
        together.setdefault(key, []).append(one.host)
    entries: list[tuple[str, ...]] = []
    for (verdict, check, what, fix, subject), names in together.items():
        where = host_list(name for name in names if name)
        who = f"{where}: " if where else ""
        about = f"{subject}: " if subject and subject not in what else ""
        line = printable_line(f"{_VERDICT[verdict]:>11}  {who}{about}{what}  [{check}]")
        shown = printable_line(with_hosts(fix, names))
        entries.append((line, f"             fix: {shown}") if fix else (line,))
    return entries


def without_host(fix: str, host: str) -> str:
    """Return a fix with a placeholder for its host, which is equal for all hosts with this fix."""
    return fix.replace(f"on {host}:", f"on {_HOST}:") if host else fix


def with_hosts(fix: str, hosts: Iterable[str]) -> str:
    """Return the result of ``without_host`` with a list of hosts in it."""
    return fix.replace(_HOST, host_list(hosts))


def _counts(findings: Sequence[Finding]) -> tuple[str, ...]:
    verdicts = [finding.verdict for finding in findings]
    return tuple(str(verdicts.count(v) or "") for v in ("error", "warning", "not checked", "ok"))
