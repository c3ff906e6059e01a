"""The part of `toolkit check` that `up` and `run` do by themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from toolkit.checks.mounts import restart_findings
from toolkit.checks.registry import host_probes, judge
from toolkit.checks.run import first_look
from toolkit.cluster.session import Session
from toolkit.core.finding import Finding, alarms, graver_first
from toolkit.errors import NotReady
from toolkit.launchers.job import Job


def questions() -> tuple[tuple[str, str], ...]:
    """Return what the hosts are to be asked when they are met, for the other functions here."""
    return tuple((probe.name, probe.text) for probe in host_probes())


def preflight(session: Session, hosts: Collection[str]) -> tuple[Finding, ...]:
    """Return errors and warnings about hosts that a command is going to use; asks nothing more.

    What keeps a host from being used at all is not among them: ``session.errors`` has it.

    Args:
        session: opened with ``questions()``.
    """
    scene = first_look(session)
    # All that answered are judged together, as some checks compare them.
    usable = {name: seen for name, seen in scene.seen.items() if name in session.facts}
    found = judge(replace(scene, seen=usable), ("host",))
    return graver_first(f for f in alarms(found) if not f.host or f.host in hosts)


def restart_warnings(session: Session, job: Job) -> tuple[Finding, ...]:
    """Return what a restart of the job would not find on other hosts.

    Args:
        session: opened with ``questions()``; otherwise less is known.
    """
    if not job.max_restarts:
        return ()
    return restart_findings(first_look(session), [host.name for host in (*job.hosts, *job.spares)])


def refuse_faults(findings: Iterable[Finding], told: bool = True) -> None:
    """Refuse to go on where a job would fail.

    Args:
        told: each finding was shown already; else the error says them all.

    Raises:
        NotReady: says how many faults there are, and on which hosts.
    """
    errors = [finding for finding in findings if finding.verdict == "error"]
    if errors:
        what = "1 fault" if len(errors) == 1 else f"{len(errors)} faults"
        hosts = ", ".join(dict.fromkeys(finding.host for finding in errors if finding.host))
        # Some may be nobody's, such as an image that is nowhere.
        where = f" on {hosts}" if all(finding.host for finding in errors) else ""
        what = f"{what}{where} would stop or spoil a job"
        if told:
            raise NotReady(what, "as said above; or go on all the same: --no-check")
        raise NotReady(
            f"{what}{''.join(map(_line, errors))}", "as said there; or go on all the same: check=False"
        )


def _line(finding: Finding) -> str:
    who = f"{finding.host}: " if finding.host else ""
    return f"\n  {who}{finding.subject}: {finding.what}; fix: {finding.fix}"
