"""Images on the hosts, listed or removed: the sessions of `image ls` and `image prune`, see ``on_hosts``."""

from __future__ import annotations

from toolkit.cluster.layout import reference_image
from toolkit.cluster.session import Session
from toolkit.core.answers import answer_of
from toolkit.core.image import ImageFacts
from toolkit.errors import ImageError, ToolkitError
from toolkit.image.on_hosts import HeldImage, ImageRow, image_rows, parse_held, plan_prune
from toolkit.plan.steps import Plan


def list_images(session: Session) -> tuple[ImageRow, ...]:
    """Return the images on every host that toolkit created; the session was opened with ``QUESTIONS``."""
    wanted, name = _wanted(session), session.inventory.image
    identity, diff_ids = (wanted.identity, wanted.diff_ids) if wanted else ("", ())
    held = _held(session)
    rows: list[ImageRow] = []
    for host in session.inventory.names:
        if host in held:
            rows += image_rows(host, held[host], name, identity, diff_ids)
        elif host in session.errors:
            rows.append(
                ImageRow(host, "wanted", (name,), identity, "unreachable", note=session.errors[host].what)
            )
    return tuple(rows)


def prune_plan(session: Session) -> Plan:
    """Return the plan that removes unneeded images; the session was opened with ``QUESTIONS``."""
    session.require_some()
    wanted = _wanted(session)
    return plan_prune(_held(session), wanted.identity if wanted else "", session.inventory.engine)


def _held(session: Session) -> dict[str, tuple[HeldImage, ...]]:
    found: dict[str, tuple[HeldImage, ...]] = {}
    for host in session.facts:
        try:
            with answer_of(host, "the image list"):
                found[host] = parse_held(session.replies[host].sections)
        except ToolkitError as error:
            session.errors[host] = error
    return found


def _wanted(session: Session) -> ImageFacts | None:
    """Return the image that the hosts file names, None if it is unknown."""
    pulled = session.inventory.pull != "never"
    try:
        local = None if pulled else session.find_local_image()
        return reference_image(session.inventory, session.facts, local, by_name=pulled)
    except ImageError:
        return None
