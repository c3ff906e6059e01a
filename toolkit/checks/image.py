"""Checks of the image: somebody has it, those who lack it can get it, and what runs is made from it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks.engine import engine_info
from toolkit.checks.leftovers import own_containers
from toolkit.checks.model import Check, Scene, Seen, error, fine, unchecked, warning
from toolkit.core.causes import words_of
from toolkit.core.finding import Finding
from toolkit.core.image import ImageFacts
from toolkit.image.pull import pull_failures, pulling

_BUILD = "build it here: make image (or toolkit image build), or correct image: in the hosts file"


def _held(seen: Seen, tag: str) -> ImageFacts | None:
    """The image that the host knows under this name."""
    images = seen.facts.images if seen.facts else ()
    return next((image for image in images if tag in image.tags), None)


def _one(scene: Scene) -> Iterator[Finding]:
    tag = scene.inventory.image
    held = {name: image for name, seen in scene.seen.items() if (image := _held(seen, tag))}
    identities = {image.identity for image in held.values()}
    if scene.inventory.pull != "never":
        return  # hosts pull it before `up` goes on, which says what came of that
    if scene.image is None:
        if scene.facts:
            yield error(f"neither this machine nor any host has the image {tag}", _BUILD)
        else:
            yield unchecked("no host answered")
    elif not scene.sendable and len(identities) > 1:
        who = ", ".join(f"{name} has {image.identity}" for name, image in held.items())
        what = f"the hosts hold different images under {tag}, and this machine has none to decide: {who}"
        yield error(what, "load or build it here, then: toolkit image send")


def _there(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    tag, wanted = scene.inventory.image, scene.image
    if scene.inventory.pull != "never":
        yield fine(f"`up` lets it pull {tag}")
        return
    if not seen.facts.docker or wanted is None:
        yield unchecked("docker cannot be used" if wanted else "nobody has the image")
        return
    held = _held(seen, tag)
    if any(image.identity == wanted.identity for image in seen.facts.images):
        return
    if held is not None and not scene.sendable:
        yield unchecked(f"which image is meant by {tag} is not clear")
    elif not scene.sendable:
        what = f"it lacks the image {tag}, and this machine's engine has none to send"
        yield error(what, f"{_BUILD}; or on {seen.host}: docker load")
    elif held is not None:
        yield fine(f"{tag} is another image here ({held.identity}); `up` sends the one of this machine")
    else:
        yield fine(f"`up` sends {tag} here")


def _pull(seen: Seen, scene: Scene) -> Iterator[Finding]:
    answer, tag = scene.registry.get(seen.host), scene.inventory.image
    if answer is None or answer.ok:
        if answer is None and seen.facts in pulling(scene.inventory, scene.facts):
            yield unchecked("the host did not ask the registry")
        return
    words = words_of(answer.output) or "its registry did not answer in time"
    about = engine_info(seen)
    mirrors = about.registries.mirrors if about.registries else None
    if mirrors or about.https_proxy or about.http_proxy:
        yield unchecked(f"its engine pulls by a mirror or proxy; without these: {words}")
        return
    for way in pull_failures(seen.host, tag):
        if re.search(way.says, answer.output):
            yield error(f"it cannot pull {tag}: {way.what} ({words})", way.fix)
            return
    yield unchecked(f"whether it can pull {tag} is not known: {words}")


def _running(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    if scene.image is None:
        yield unchecked("nobody has the image")
        return
    by_id = {image.id: image.identity for image in seen.facts.images}
    for container in own_containers(seen, scene):
        made_from = by_id.get(container.image, "")
        if container.state == "running" and made_from and made_from != scene.image.identity:
            now = f"{scene.inventory.image} is {scene.image.identity} now"
            what = f"{container.name} runs from {made_from}; {now}"
            yield warning(what, "toolkit up makes it anew from the image of today")


CHECKS = (
    Check("image", "there is one image", whole=_one),
    Check("image-there", "the image is there or can be sent", host=_there),
    Check("image-pull", "the registry has the image for hosts that pull it", host=_pull, stage="pairs"),
    Check("image-running", "what runs is made from the image", host=_running),
)
