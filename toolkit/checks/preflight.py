"""The part of `toolkit check` that `up` and `run` include."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from toolkit.checks.machine import clock_offset
from toolkit.checks.model import Scene, Seen
from toolkit.checks.mounts import restart_findings
from toolkit.checks.registry import host_probes, judge
from toolkit.cluster.layout import reference_image
from toolkit.cluster.probe import parse_facts
from toolkit.cluster.session import Session
from toolkit.core.facts import Facts
from toolkit.core.finding import Finding, alarms, graver_first
from toolkit.core.image import ImageFacts, listed_name
from toolkit.errors import ImageError, NotReady, ToolkitError
from toolkit.hostsfile.inventory import Inventory
from toolkit.launchers.job import Job
from toolkit.network.choose import choose
from toolkit.protocol.host_list import host_list


def questions() -> tuple[tuple[str, str], ...]:
    """Return the probes that a session needs for the other functions of this module."""
    return tuple((probe.name, probe.text) for probe in host_probes())


def first_look(session: Session, running: bool = False) -> Scene:
    """Return the scene with the answers that the hosts gave while the session connected.

    Args:
        running: use the image of the running cluster, not the image that `up` uses.
    """
    inventory = session.inventory
    seen = {name: _seen(session, name) for name in inventory.names}
    facts = {name: one.facts for name, one in seen.items() if one.facts is not None}
    choice = choose(inventory, facts, session.settled)
    pulled = inventory.pull != "never"
    local = None if pulled else session.find_local_image()
    wanted = _image(inventory, facts, local, by_name=pulled)
    return Scene(
        inventory,
        seen,
        _image(inventory, facts, None, by_name=False) if running else wanted,
        choice.paths,
        inventory.worker_port,
        sendable=local is not None,
        local_silence=session.local_silence,
        choice=choice,
        next_image=wanted,
    )


def preflight(session: Session, hosts: Collection[str], running: bool = False) -> tuple[Finding, ...]:
    """Return errors and warnings about hosts that a command will use; runs no further probe.

    Reasons that make a host unusable are not among them: ``session.errors`` has them.

    Args:
        session: opened with ``questions()``.
        running: see ``first_look``.
    """
    scene = first_look(session, running)
    # All hosts that answered are judged together, because some checks compare them.
    usable = {name: seen for name, seen in scene.seen.items() if name in session.facts}
    found = judge(replace(scene, seen=usable), ("host",))
    return graver_first(f for f in alarms(found) if not f.host or f.host in hosts)


def restart_warnings(session: Session, job: Job) -> tuple[Finding, ...]:
    """Return a warning if a restart of the job could not find its checkpoints on other hosts.

    Args:
        session: opened with ``questions()``; otherwise less is known.
    """
    if not job.max_restarts:
        return ()
    return restart_findings(first_look(session), [host.name for host in (*job.hosts, *job.spares)])


def raise_if_errors(findings: Iterable[Finding], told: bool = True) -> None:
    """Raise an error if a job would fail.

    Args:
        told: each finding was printed already; otherwise the error lists them all.

    Raises:
        NotReady: contains the number of errors, and their hosts.
    """
    errors = [finding for finding in findings if finding.verdict == "error"]
    if errors:
        what = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        hosts = host_list(dict.fromkeys(finding.host for finding in errors if finding.host))
        # Some errors belong to no host, such as a missing image.
        where = f" on {hosts}" if all(finding.host for finding in errors) else ""
        what = f"{what}{where} would break or corrupt a job"
        if told:
            raise NotReady(what, "apply the fixes above, or skip the checks with --no-check")
        raise NotReady(
            f"{what}{''.join(map(_line, errors))}", "apply these fixes, or skip the checks with check=False"
        )


def _line(finding: Finding) -> str:
    about = "".join(f"{word}: " for word in (finding.host, finding.subject) if word)
    return f"\n  {about}{finding.what}; fix: {finding.fix}"


def _seen(session: Session, name: str) -> Seen:
    reply, error = session.replies.get(name), session.errors.get(name)
    if reply is None:
        return Seen(name, error=error)
    answers, file = reply.sections, session.inventory
    try:
        facts = parse_facts(name, file.cluster, answers, need_docker=False, engine=file.engine)
    except ToolkitError as fault:
        return Seen(name, answers, error=fault)
    ahead, doubt = clock_offset(
        reply.sent, reply.received, answers.get("begun", ""), answers.get("ended", "")
    )
    return Seen(name, answers, facts, error, ahead, doubt)


def _image(
    inventory: Inventory, facts: Mapping[str, Facts], local: ImageFacts | None, by_name: bool
) -> ImageFacts | None:
    """Return the image of ``reference_image``; if hosts have different images, that of the first host."""
    try:
        return reference_image(inventory, facts, local, by_name)
    except ImageError:
        images = (i for f in facts.values() for i in f.images)
        return next((i for i in images if listed_name(inventory.image, i.tags)), None)
