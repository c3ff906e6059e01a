"""Checks of the image: existence, availability on every host, and use by running containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks.engine import UNUSABLE, engine_info
from toolkit.checks.leftovers import own_containers
from toolkit.checks.model import Check, Scene, Seen, error, fine, unchecked, warning
from toolkit.core.causes import words_of
from toolkit.core.finding import Finding
from toolkit.core.image import LATE_FIX, ImageFacts, listed_name, missing_fix, pull_name, unsendable
from toolkit.image.pull import pull_failures, pulling


def _held(seen: Seen, tag: str) -> ImageFacts | None:
    """Return the image with this tag on the host."""
    images = seen.facts.images if seen.facts else ()
    return next((image for image in images if listed_name(tag, image.tags)), None)


def _one(scene: Scene) -> Iterator[Finding]:
    tag = scene.inventory.image
    held = {name: image for name, seen in scene.seen.items() if (image := _held(seen, tag))}
    identities = {image.identity for image in held.values()}
    if scene.inventory.pull != "never":
        pull = scene.inventory.pull
        yield fine(f"with pull: {pull}, `toolkit up` compares the images of the hosts after the pull")
        return
    if scene.image is None:
        hosts = "host that answered" if scene.silent else "host"
        if scene.facts and scene.local_silence:
            yield error(f"no {hosts} has the image {tag}, and {scene.local_silence}", LATE_FIX)
        elif scene.facts:
            yield error(f"neither your machine nor any {hosts} has the image {tag}", missing_fix(tag))
        else:
            yield unchecked("no host answered")
    elif not scene.sendable and len(identities) > 1:
        who = ", ".join(f"{name} has {image.identity}" for name, image in held.items())
        fix = "toolkit image send  # after you build or load the image on your machine"
        why = scene.local_silence or "your machine has no image with this tag"
        what = f"the hosts have different images with the tag {tag} ({who}), and {why}"
        yield error(what, LATE_FIX if scene.local_silence else fix)


def _there(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    tag, wanted = scene.inventory.image, scene.image
    if scene.inventory.pull != "never":
        if seen.facts in pulling(scene.inventory, scene.facts):
            yield fine(f"`toolkit up` pulls {pull_name(tag, scene.inventory.engine)} on this host")
        return
    if not seen.facts.docker or wanted is None:
        yield unchecked(UNUSABLE if wanted else scene.no_image)
        return
    held = _held(seen, tag)
    if any(image.identity == wanted.identity for image in seen.facts.images):
        return
    if held is not None and not scene.sendable:
        yield unchecked(f"hosts have different images with the tag {tag} [image]")
    elif not scene.sendable:
        yield error(*unsendable(tag, seen.host, scene.inventory.engine, scene.local_silence))
    elif held is not None:
        yield fine(
            f"the image {tag} ({held.identity}) differs from the image on your machine, "
            "so `toolkit up` replaces the image on this host"
        )
    else:
        yield fine(f"`toolkit up` sends {tag} to this host")


def _pull(seen: Seen, scene: Scene) -> Iterator[Finding]:
    answer = scene.registry.get(seen.host)
    tag = pull_name(scene.inventory.image, scene.inventory.engine)
    if answer is None or answer.ok:
        if answer is None:
            pulls = seen.facts in pulling(scene.inventory, scene.facts)
            why = "toolkit did not query the registry from this host"
            yield unchecked(why) if pulls else fine("`toolkit up` pulls no image on this host")
        return
    words = words_of(answer.output) or "the registry did not answer in time"
    about = engine_info(seen)
    mirrors = about.registries.mirrors if about.registries else None
    if mirrors or about.https_proxy or about.http_proxy:
        what = "the engine pulls through a mirror or proxy, and a direct query to the registry failed"
        yield unchecked(f"{what}: {words}")
        return
    for way in pull_failures(seen.host, tag, scene.inventory.engine):
        if re.search(way.says, answer.output):
            yield error(f"the host cannot pull {tag}: {way.what} ({words})", way.fix)
            return
    yield unchecked(f"the registry query for {tag} failed: {words}")


def _running(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    wanted = scene.next_image or scene.image
    if wanted is None:
        yield unchecked(scene.no_image)
        return
    by_id = {image.id: image.identity for image in seen.facts.images}
    for container in own_containers(seen, scene):
        made_from = by_id.get(container.image, "")
        if container.state == "running" and made_from and made_from != wanted.identity:
            now = f"{scene.inventory.image} is now {wanted.identity}"
            what = f"container {container.name} was created from image {made_from}, but {now}"
            yield warning(what, "toolkit up  # recreates the container from the current image")


CHECKS = (
    Check("image", "all hosts can use the same image", whole=_one),
    Check("image-there", "the host has the image, or toolkit can send the image", host=_there),
    Check("image-pull", "the host can pull the image from the registry", host=_pull, stage="pairs"),
    Check("image-running", "running containers were created from the current image", host=_running),
)
