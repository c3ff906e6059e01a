"""`toolkit check`: asks the hosts what the checks want to know, and has it judged."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from toolkit.api import Session
from toolkit.checks import CHECKS, host_probes, judge
from toolkit.checks.clock import clock_offset
from toolkit.checks.model import Check, Scene, Seen, Stage
from toolkit.core.finding import Finding, graver_first
from toolkit.core.image import ImageFacts
from toolkit.effects.ssh import Trace
from toolkit.errors import BadInput, Problem, ToolkitError
from toolkit.network.choose import choose_paths
from toolkit.plan.probe import parse_facts, probe_answers
from toolkit.spec.inventory import Inventory
from toolkit.spec.words import meant


def choose_checks(only: Collection[str]) -> tuple[Check, ...]:
    """Return the checks of these ids, or all of them when none is named.

    Raises:
        BadInput: an id that no check has.
    """
    known = {check.id: check for check in CHECKS}
    if unknown := [name for name in only if name not in known]:
        problems = (Problem("--only", f"no check is called {name}; {meant(name, known)}") for name in unknown)
        raise BadInput("command line", tuple(problems))
    return tuple(check for check in CHECKS if not only or check.id in only)


def look(
    inventory: Inventory, checks: Iterable[Check] = CHECKS, trace: Trace | None = None
) -> tuple[Finding, ...]:
    """Ask all hosts at once and return what the checks find, the gravest first.

    Changes nothing on the hosts; a host that does not answer has a finding that says why.
    """
    checks = tuple(checks)
    questions = [(probe.name, probe.text) for probe in host_probes(checks)]
    with Session.open(inventory, trace=trace, questions=questions) as session:
        scene = first_look(session)
    stages: tuple[Stage, ...] = ("host",)
    return graver_first(judge(scene, stages, checks))


def first_look(session: Session) -> Scene:
    """Return what the hosts said when they were met."""
    inventory = session.inventory
    seen = {name: _seen(session, name) for name in inventory.names}
    facts = {name: one.facts for name, one in seen.items() if one.facts is not None}
    try:
        paths = choose_paths(inventory, facts)
    except ToolkitError:
        paths = {}  # a check says why
    local = session.local_image
    image = local or _held_image(inventory, seen)
    return Scene(inventory, seen, image, paths, inventory.worker_port, sendable=local is not None)


def _seen(session: Session, name: str) -> Seen:
    reply, error = session.replies.get(name), session.errors.get(name)
    if reply is None:
        return Seen(name, error=error)
    answers = probe_answers(reply.text)
    try:
        facts = parse_facts(name, session.inventory.cluster, reply.text, need_docker=False)
    except ToolkitError as fault:
        return Seen(name, answers, error=fault)
    ahead, doubt = clock_offset(
        reply.sent, reply.received, answers.get("begun", ""), answers.get("ended", "")
    )
    return Seen(name, answers, facts, error, ahead, doubt)


def _held_image(inventory: Inventory, seen: dict[str, Seen]) -> ImageFacts | None:
    held = (i for one in seen.values() if one.facts for i in one.facts.images if inventory.image in i.tags)
    return next(held, None)
