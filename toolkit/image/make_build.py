"""The build of an image on this machine: the recipe, resolved and completed with what this machine has."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from toolkit.cluster.image_probe import image_here, inspect_here
from toolkit.core.image import ImageFacts, machine_of
from toolkit.core.runner import run_here
from toolkit.errors import BadInput, ImageError, MissingTool, Problem
from toolkit.image.build import (
    has_hashes,
    read_sources,
    resolve,
    source_folder,
    source_options,
    stub_wheels,
    wheelhouse_files,
    with_logins,
)
from toolkit.image.build_plan import (
    BUILDER_VARIABLE,
    FLAVOURS,
    ONTO_FILES,
    PROXY_VARIABLES,
    SOURCE_FILES,
    Flavor,
    ImageRecipe,
    OntoRecipe,
    arguments_of,
    held_pins,
    of_another_torch,
    plan_image,
    plan_onto,
    resolve_command,
    resolved_pins,
    stub_pins,
    wheelhouses_of,
)
from toolkit.image.build_values import ImageBuild, Locked
from toolkit.image.lock import LOCK_FILE, parse_lock
from toolkit.image.wheelhouse import CONFIGURED, TORCH_CPU_INDEX, Pin, PipOptions, Target, beside_torch
from toolkit.remote.local_image import default_cache


def pick_flavor() -> str:
    """Return ``gpu`` if this machine's nvidia-smi lists a GPU, otherwise ``cpu``."""
    if shutil.which("nvidia-smi"):
        # nvidia-smi hangs if the driver is stuck.
        done = run_here(("nvidia-smi", "-L"), timeout=20)
        if done.ok and done.stdout.startswith("GPU "):
            return "gpu"
    return "cpu"


def known_flavor(name: str = "") -> Flavor:
    """Return the flavor of that name; without a name, the one that fits this machine.

    Raises:
        BadInput: no flavor has that name.
    """
    name = name or pick_flavor()
    for flavor in FLAVOURS:
        if flavor == name:
            return flavor
    raise BadInput("image", (Problem("flavor", f"should be one of {', '.join(FLAVOURS)}, found {name}"),))


def own_arch() -> str:
    """Return this machine's processor architecture as wheel tags name it."""
    machine = platform.machine()
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(machine, machine)


def make_build(recipe: ImageRecipe, certificate: str = "", requirements: str = "") -> ImageBuild:
    """Return the plan of a build, given the current content of the wheelhouses.

    The image has the architecture of its base image if this machine has the base image, otherwise that of
    this machine.

    Args:
        requirements: path of the user's requirements file; pip resolves its exact versions.

    Raises:
        BadInput: an ARG is not in the Dockerfile, or an extra cannot be added.
        MissingTool: pip must resolve requirements, but this Python has no pip.
        ImageError: pip finds no versions that are compatible with the image, or the connection to a package
            index failed.
    """
    name = f"Dockerfile.{recipe.flavor}"
    sources = read_sources(source_folder(), (name, *SOURCE_FILES))
    cache = default_cache(os.environ)
    base_image = base_facts(arguments_of(recipe, sources[name])["BASE_IMAGE"])
    arch = machine_of(base_image.arch) if base_image and base_image.arch else own_arch()
    recipe = replace(recipe, arch=arch, emulated=arch != own_arch())
    if requirements:
        held, target = held_pins(recipe, sources)
        stubs = stub_pins(recipe, sources)
        held = (*held, *(pin for pin in stubs if pin not in held))
        *others, last = wheelhouses_of(replace(recipe, own="requirements"), sources[name], cache)
        # With hashes, pip needs the files of the user, which include all dependencies.
        stubs = () if has_hashes(Path(requirements)) else stubs
        with stub_wheels(stubs, held, target) as (folder, constraints):
            there = [folder, *(each for each in others if Path(each).is_dir())]

            def resolved_from(folders: list[str], more: PipOptions) -> tuple[str, tuple[Locked, ...]]:
                asked = resolve_command(requirements, constraints, target, folders, sys.executable, more)
                return resolved_pins(resolve(asked, requirements, stubs), held, target, folders)

            def resolved(more: PipOptions = CONFIGURED) -> tuple[str, tuple[Locked, ...]]:
                try:
                    return resolved_from(there, more)
                except ImageError:
                    if not Path(last).is_dir():
                        raise
                    # The wheels of an earlier build are used only if their source is not available: pip could
                    # prefer such a wheel to one of the same version that the user has built again.
                    return resolved_from([*there, last], more)

            own, files = resolved()
            if recipe.flavor == "cpu" and of_another_torch(own):
                beside = beside_torch(recipe.torch_index)
                own, files = resolved(beside)
                if of_another_torch(own) and Path(last).is_dir():
                    # pip ignores the index of torch if the connection fails.
                    own, files = resolved_from([*there, last], beside)
                if wrong := of_another_torch(own):
                    names = ", ".join(wrong)
                    what = f"the image has the CPU build of torch, which is incompatible with {names}"
                    fix = (
                        f"add --torch-index INDEX  # INDEX: the URL {TORCH_CPU_INDEX}, or a folder that "
                        "contains these +cpu wheels"
                    )
                    raise ImageError(what, fix)
        options = tuple(source_options(Path(requirements)))
        files = with_logins(files, Path(requirements))
        recipe = replace(recipe, own=own, own_files=files, own_options=options)
    lock = parse_lock(sources[LOCK_FILE])
    # A wheel that the user has built again can have the version of the wheel in the wheelhouse.
    current = [
        each for each in recipe.own_files if (Pin(each.name, each.version, "").key, each.version) not in lock
    ]
    folders = wheelhouses_of(recipe, sources[name], cache)
    return plan_image(
        recipe,
        sources,
        {folder: wheelhouse_files(folder, current) for folder in folders},
        cache=cache,
        python=sys.executable,
        proxies=[name for name in PROXY_VARIABLES if os.environ.get(name)],
        certificate=certificate,
        other_builder=BUILDER_VARIABLE in os.environ,
        base_digest=base_digest(base_image),
    )


def base_facts(name: str) -> ImageFacts | None:
    """Return the base image; None if this machine has no docker, or not yet the image."""
    with contextlib.suppress(ImageError, MissingTool):
        return image_here(name)
    return None


def base_digest(image: ImageFacts | None) -> str:
    """Return a base image as NAME@DIGEST, by its digest in the registry that this machine pulled it from.

    Empty if the image was built on this machine, or if it is not there yet.
    """
    return next((tag for tag in image.tags if "@" in tag), "") if image else ""


def make_onto(
    image: str, tag: str = "", horovod: bool = False, certificate: str = "", no_cache: bool = False
) -> ImageBuild:
    """Return the plan of a build on an image of this machine that toolkit did not build; see ``plan_onto``.

    Raises:
        ToolkitError: the image is not on this machine; with Horovod also if its Python cannot run jobs.
    """
    target = None
    if horovod:
        found = inspect_here(image)
        facts, (major, minor, _) = found.facts, found.report.python
        target = Target(f"{major}.{minor}", own_arch())
    else:
        facts = image_here(image)
    recipe = OntoRecipe(image, facts.user, tag, target, no_cache)
    cache = default_cache(os.environ)
    return plan_onto(
        recipe,
        read_sources(source_folder(), ONTO_FILES),
        wheelhouse_files(recipe.wheelhouse(cache)) if recipe.horovod else {},
        cache=cache,
        python=sys.executable,
        proxies=[name for name in PROXY_VARIABLES if os.environ.get(name)],
        certificate=certificate,
        other_builder=BUILDER_VARIABLE in os.environ,
    )
