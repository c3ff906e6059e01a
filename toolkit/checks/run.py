"""`toolkit check`: run the probes on the hosts, and judge the results."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.checks.model import STAGES, Check, Scene
from toolkit.checks.preflight import first_look
from toolkit.checks.registry import CHECKS, host_probes, judge
from toolkit.cluster.connect import try_networks, try_ways
from toolkit.cluster.container_probe import look_inside
from toolkit.cluster.layout import Layout, Observed, make_layout
from toolkit.cluster.pairs import path_ways, together
from toolkit.cluster.probe_containers import plan_looks
from toolkit.cluster.session import Session
from toolkit.core.command import Result
from toolkit.core.facts import Facts
from toolkit.core.finding import Finding, graver_first
from toolkit.core.host_programs import packed
from toolkit.core.image import pull_name
from toolkit.core.runner import Runner
from toolkit.errors import BadInput, Problem, ToolkitError
from toolkit.hostsfile.errors import meant
from toolkit.hostsfile.inventory import Inventory
from toolkit.image.pull import ask_registry, pulling
from toolkit.network.choose import Evidence, choose
from toolkit.remote.fanout import fan_out

if TYPE_CHECKING:
    from toolkit.remote.ssh import Trace

_REGISTRY_SECONDS = 40.0
_QUICK = "--quick skips the test programs"


def choose_checks(only: Collection[str]) -> tuple[Check, ...]:
    """Return the checks of these ids, or all checks if none is named.

    Raises:
        BadInput: no check has one of the ids.
    """
    known = {check.id: check for check in CHECKS}
    if unknown := [name for name in only if name not in known]:
        problems = (
            Problem("--check", f"no check is called {name}; {meant(name, known)}") for name in unknown
        )
        raise BadInput("command line", tuple(problems))
    return tuple(check for check in CHECKS if not only or check.id in only)


def run_checks(
    inventory: Inventory,
    checks: Iterable[Check] = CHECKS,
    trace: Trace | None = None,
    quick: bool = False,
) -> tuple[Finding, ...]:
    """Query all hosts at once and return the findings of the checks, errors first.

    Changes no file and no setting of the hosts. Starts no test program or container if ``quick`` is set.
    The reason why a host does not answer is a finding too.

    Args:
        quick: start no containers; findings that need one are "not checked".
    """
    checks = tuple(checks)
    questions = [(probe.name, probe.text) for probe in host_probes(checks)]
    stages = {check.stage for check in checks}
    local = inventory.pull == "never"
    with Session.open(inventory, trace=trace, questions=questions, local_image=local) as session:
        scene = first_look(session)
        if stages - {"host"}:
            scene = second_look(session, scene, quick)
    return graver_first(judge(scene, STAGES, checks))


def second_look(session: Session, scene: Scene, quick: bool = False) -> Scene:
    """Return the scene extended by connections between hosts, from containers on hosts with the image."""
    inventory, facts = scene.inventory, scene.facts
    runners = {name: session.runners[name] for name in facts}
    settled = try_networks(inventory, facts, runners)
    choice = choose(inventory, facts, settled)
    scene = replace(scene, paths=choice.paths, choice=choice)
    layout, why = _layout(session, scene, settled)
    looks = (
        plan_looks(layout, packed("check.container_probe"), secrets.token_hex(16))
        if layout and not quick
        else ()
    )
    port = layout.port if layout else scene.port
    ways = path_ways(choice.paths, facts, port, [look.host for look in looks])
    with ThreadPoolExecutor(2) as pool:
        # In parallel: connections from hosts wait for the network, containers for processors.
        tried = pool.submit(try_ways, ways, runners)
        answers = pool.submit(_ask_registry, inventory, facts, runners)
        inside = look_inside(looks, runners)
        evidence = together((settled, tried.result()))
        registry = answers.result()
    absent = dict.fromkeys(facts, why or "the host does not have the image")
    absent |= {name: error.what for name, error in session.errors.items()}
    return replace(
        scene,
        port=port,
        evidence=evidence,
        registry=registry,
        inside=inside,
        outside=dict.fromkeys(facts, _QUICK) if quick else absent,
    )


def _ask_registry(
    inventory: Inventory, facts: Mapping[str, Facts], runners: Mapping[str, Runner]
) -> dict[str, Result]:
    """Query the image's registry from the hosts that pull the image; a lost host has no answer."""
    asked = [f.host for f in pulling(inventory, facts) if f.docker]
    line = ask_registry(pull_name(inventory.image, inventory.engine))
    return fan_out(asked, lambda host: runners[host].run(line, _REGISTRY_SECONDS))[0]


def _layout(session: Session, scene: Scene, evidence: Evidence) -> tuple[Layout | None, str]:
    """Return the layout of the hosts with a usable engine, or the reason why there is none."""
    try:
        session.require_some()
        return make_layout(scene.inventory, Observed(session.facts, scene.image, evidence=evidence)), ""
    except ToolkitError as error:
        return None, error.what
