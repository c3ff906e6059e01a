"""Plans for a session: what its hosts file and its hosts say together, handed to the planners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.core.host_programs import container_programs
from toolkit.image.pull import plan_pull
from toolkit.lifecycle.down import plan_down
from toolkit.lifecycle.up import image_steps, plan_up
from toolkit.plan.steps import Phase, Plan

if TYPE_CHECKING:
    from toolkit.cluster.session import Session
    from toolkit.hostsfile.inventory import DataSet
    from toolkit.protocol.shards import Content


def pull_plan(session: Session) -> Plan:
    """Return the plan by which hosts pull the image; see ``toolkit.image.pull``."""
    session.require_some()
    return plan_pull(session.inventory, session.facts)


def up_plan(
    session: Session, prepare: bool = False, data: Sequence[tuple[DataSet, str, Content]] = ()
) -> Plan:
    """Return the plan that makes the cluster be there; see ``toolkit.lifecycle.up``."""
    return plan_up(session.layout(), container_programs(), prepare, data)


def image_send_plan(session: Session) -> Plan:
    """Return the plan that brings the image to every host."""
    layout = session.layout()
    steps = tuple(step for place in layout.places for step in image_steps(layout, place))
    return Plan(f"image send {session.inventory.image}", (Phase("image", steps),))


def down_plan(session: Session, save_to: str = "") -> Plan:
    """Return the plan that removes the cluster; see ``toolkit.lifecycle.down``."""
    session.require_own()
    here = (session.local_image.identity,) if session.local_image else ()
    return plan_down(session.inventory, session.facts, save_to, here)
