"""Run container/check/image_probe.py in an image, and choose the transport for ``transport: auto``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from toolkit.cluster.applied import with_recorded_transport
from toolkit.cluster.layout import Layout
from toolkit.cluster.probe_containers import (
    InspectedImage,
    last_words,
    look_name,
    parse_image_look,
    plan_image_look,
)
from toolkit.core.answers import answer_of
from toolkit.core.causes import cause_of, misses_python, words_of
from toolkit.core.command import Command, Result, command
from toolkit.core.engines import DOCKER, ENGINE_FAILED
from toolkit.core.host_programs import packed
from toolkit.core.image import ImageFacts, image_facts, obtain_command
from toolkit.core.runner import Runner, is_here, run_here
from toolkit.errors import BadInput, ImageError, MissingTool, Problem, ToolkitError
from toolkit.hostsfile.checks import without_ssh
from toolkit.hostsfile.errors import path_text
from toolkit.hostsfile.inventory import Inventory
from toolkit.protocol.decode import DecodeError, decode_json
from toolkit.protocol.engine import ImageInspect
from toolkit.protocol.frames import FrameError
from toolkit.protocol.probes import ImageReport
from toolkit.protocol.transport import AUTO, EXEC, NO_SSH, NOT_FOUND, SSH, transport_for
from toolkit.remote.local_image import built_images

# The oldest Python that runs toolkit's programs in containers.
LEAST_PYTHON = (3, 10)
_SECONDS = 60.0
# A variable of images that toolkit builds. Images made from them inherit it, but can be without sshd.
_OWN_IMAGE = "TOOLKIT_OPENMPI"

Run = Callable[[Command, float], Result]


def image_report(
    name: str, image: str, user: Sequence[str], run: Run, host: str = "", engine: str = DOCKER
) -> ImageReport:
    """Return the report of an image.

    Args:
        name: name of the image in messages; ``image`` is its reference or Id.
        user: options of `docker run` for the user of the container.
        run: runs a command where the image is.
        host, engine: where the image is, for messages; this machine by default.

    Raises:
        ImageError: the container fails, or its Python is missing or too old.
    """
    nonce = secrets.token_hex(8)
    look = plan_image_look(image, user, packed("check.image_probe"), nonce)
    done = _run_look(look, nonce, run)
    if done.status in ENGINE_FAILED and done.status != NOT_FOUND:
        done = _run_look(look, nonce, run)
    if done.status == NOT_FOUND and misses_python(done.stderr):
        what = (
            f"the image {name} has no python3 on its PATH, but toolkit needs python3 in main and worker "
            "containers"
        )
        raise ImageError(what, "toolkit image build  # or use an image with Python 3.10 or newer", host)
    by_hand = f"{engine} run -it --rm --entrypoint sh {name}  # then run: python3 --version"
    if host:
        by_hand = f"on {host}: {by_hand}"
    if not done.ok:
        words = last_words(done.stderr.split("\n"))
        known = cause_of(done.stderr, host) if host else None
        what = f"the probe of the image {name} failed: {known.what if known else words}"
        raise ImageError(what, known.fix if known else by_hand, host)
    try:
        report = parse_image_look(done.raw or done.stdout.encode(), nonce)
    except (FrameError, KeyError, DecodeError) as error:
        what = f"the probe of the image {name} printed no valid report: {error}"
        raise ImageError(what, by_hand, host) from error
    if report.python[:2] < LEAST_PYTHON:
        found, least = (".".join(map(str, version)) for version in (report.python, LEAST_PYTHON))
        what = f"python3 in the image {name} is version {found}, but toolkit requires {least} or newer"
        fix = "toolkit image build  # or put a newer python3 first on the PATH of the image"
        raise ImageError(what, fix, host)
    return report


def _run_look(look: Command, nonce: str, run: Run) -> Result:
    """Run the probe; if it does not succeed, remove its container, whose program can ignore signals."""
    done = Result(1)
    try:
        done = run(look, _SECONDS)
    finally:
        if not done.ok:
            with suppress(ToolkitError):
                run(command("docker", "rm", "--force", look_name(nonce)), _SECONDS)
    return done


def image_here(name: str) -> ImageFacts:
    """Return the facts of an image in the engine of this machine.

    Raises:
        MissingTool: docker is not installed, or cannot be used.
        ImageError: the engine does not have the image.
    """
    if not is_here(DOCKER):
        raise MissingTool(
            "docker is not on the PATH of your machine",
            "install Docker, or add the folder that contains docker to the PATH",
        )
    done = run_here((DOCKER, "image", "inspect", name))
    if not done.ok:
        usable = run_here((DOCKER, "ps", "--quiet"))
        if not usable.ok:
            what = f"toolkit cannot use docker on your machine: {words_of(usable.stderr)}"
            raise MissingTool(what, "sudo systemctl start docker  # your user must be in the group docker")
        what = f"your machine does not have the image {name}: {words_of(done.stderr)}"
        raise ImageError(what, obtain_command(name))
    with answer_of("", f"the description of the image {name}"):
        (found,) = decode_json(tuple[ImageInspect, ...], done.stdout)[:1]
    return image_facts(found)


def inspect_here(name: str) -> InspectedImage:
    """Inspect an image in the engine of this machine.

    Raises:
        ToolkitError: see ``image_here`` and ``image_report``.
    """
    facts = image_here(name)
    return InspectedImage(name, facts, _report_here(name, facts.id))


def _report_here(name: str, image: str) -> ImageReport:
    user = ("--user", f"{os.getuid()}:{os.getgid()}")
    return image_report(name, image, user, _run_here)


def _run_here(command: Command, seconds: float) -> Result:
    return run_here([str(token) for token in command.argv], (command.stdin or b"").decode(), seconds)


def choose_transport(
    inventory: Inventory, layout: Layout, here: bool, runners: Mapping[str, Runner]
) -> Inventory:
    """Return the inventory with the transport for the image of the layout, if the hosts file sets auto.

    The choice of the last `up` for the same image stays. An image that toolkit built on this machine has
    ssh. Other images are probed, on a host that has the image or on this machine. If the probe fails, the
    variables of the image decide.

    Args:
        here: the engine of this machine has the image.

    Raises:
        ImageError: the image cannot be probed.
        BadInput: the hosts file has a key that needs SSH, and the image does not have it.
    """
    if inventory.transport != AUTO or len(inventory.hosts) == 1:
        return inventory
    facts = {place.name: place.facts for place in layout.places}
    known = with_recorded_transport(inventory, facts, layout.image.identity)
    if not known.chosen_transport:
        known = replace(inventory, chosen_transport=_transport_of(inventory.image, layout, here, runners))
    if known.chosen_transport == EXEC:
        faults = tuple(without_ssh(inventory.launcher, inventory.worker_port_fixed, bool(inventory.spares)))
        fix = f"run `toolkit image build --onto {inventory.image}`"
        why = f"transport: auto selects {EXEC}, because {NO_SSH}"
        problems = tuple(Problem(path_text(path), f"{what}, or {fix} ({why})") for path, what in faults)
        if problems:
            raise BadInput(inventory.source, problems)
    return known


def _transport_of(name: str, layout: Layout, here: bool, runners: Mapping[str, Runner]) -> str:
    is_own = bool(dict(layout.image.env).get(_OWN_IMAGE))
    if is_own and layout.image.id in built_images():
        return SSH
    try:
        return transport_for(_report(name, layout, here, runners).lacks)
    except ImageError:
        # An image made from one of toolkit has its variables, but can be without its programs.
        if not is_own:
            raise
        return SSH


def _report(name: str, layout: Layout, here: bool, runners: Mapping[str, Runner]) -> ImageReport:
    for place in layout.places:
        held = _held(layout.image, place.facts.images)
        if held and place.name in runners:
            facts = place.facts
            return image_report(name, held, facts.as_user, runners[place.name].run, place.name, facts.engine)
    if here and not is_here(DOCKER):
        what = (
            f"toolkit cannot probe the image {name}: no usable host has the image, "
            "and your machine has no docker command"
        )
        raise ImageError(
            what, "in hosts.yaml: set transport: to exec or ssh  # or install docker on your machine"
        )
    if not here:
        raise ImageError(
            f"no usable host has the image {name}",
            "toolkit check  # lists the fix for each host; then: toolkit up",
        )
    return _report_here(name, layout.image.id)


def _held(wanted: ImageFacts, images: Sequence[ImageFacts]) -> str:
    return next((image.id for image in images if image.identity == wanted.identity), "")
