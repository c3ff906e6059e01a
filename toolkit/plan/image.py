"""Decides how an image is built: which wheels for which Python and machine, and the docker command."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from toolkit.core.build import ImageBuild
from toolkit.core.command import Command, command
from toolkit.errors import BadInput, Problem
from toolkit.plan.wheelhouse import Pin, Target, horovod_fetches, parse_pins, wheel_fetches

Flavour = Literal["cpu", "gpu"]
FLAVOURS: tuple[Flavour, ...] = ("cpu", "gpu")

# What a build needs beside its Dockerfile, as paths in the source folder and in the context alike.
CONTEXT_FILES = (
    "image/edit-horovod.sh",
    "image/openmpi-mca-params.conf",
    "image/profile.sh",
    "image/requirements.txt",
    "image/requirements-cpu.txt",
    "image/requirements-gpu.txt",
    "image/requirements-gpu-build.txt",
    "image/ssh_config",
)

# Ceilings with a little air above what was measured; an image is sent to every host.
LIMIT_BYTES: Mapping[Flavour, int] = {"cpu": 1_200_000_000, "gpu": 6_200_000_000}

# Their values may hold a password, so docker is told the names only and reads the values itself.
PROXY_VARIABLES = (
    *("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"),
)

_ARGUMENT = re.compile(r'^ARG ([A-Z0-9_]+)="?([^"\n]*)"?$', re.MULTILINE)
_LEGACY_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")
_BUILDKIT_STEP = re.compile(r"^#\d+ \[\s*(\S+) +(\d+)/(\d+)\] (.*)")


@dataclass(frozen=True)
class ImageRecipe:
    """What a person asks for.

    Args:
        tag: empty means ``toolkit:<flavour>``, or ``toolkit:<target>`` when there is a target.
        arguments: values for ARGs of the Dockerfile in place of their defaults.
        arch: of the image, as ``uname -m`` says it: x86_64 or aarch64.
        torch_index: where the CPU wheel of torch comes from: an index URL, a folder, or empty for
            what pip itself is configured for and then PyTorch's public index.
        target: build only up to this stage.
    """

    flavour: Flavour
    tag: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    arch: str = "x86_64"
    torch_index: str = ""
    no_cache: bool = False
    target: str = ""

    @property
    def reference(self) -> str:
        """The reference under which the engine will know the image."""
        return self.tag or f"toolkit:{self.target or self.flavour}"


def parse_arguments(dockerfile: str) -> dict[str, str]:
    """Return the ARGs of a Dockerfile that have a default, by name, in order."""
    return {match[1]: match[2] for match in _ARGUMENT.finditer(dockerfile)}


def arguments_of(recipe: ImageRecipe, dockerfile: str) -> dict[str, str]:
    """Return the value of every ARG in this build.

    Raises:
        BadInput: the recipe names an ARG that the Dockerfile lacks, or an unknown architecture.
    """
    known = parse_arguments(dockerfile)
    problems = [
        Problem(name, f"is no ARG of Dockerfile.{recipe.flavour}; known: {', '.join(known)}")
        for name, _ in recipe.arguments
        if name not in known
    ]
    if recipe.arch not in ("x86_64", "aarch64"):
        problems.append(Problem("arch", f"should be x86_64 or aarch64, found '{recipe.arch}'"))
    if problems:
        raise BadInput("image build", tuple(problems))
    # The default flags name x86 instructions, which no other compiler accepts.
    foreign = {} if recipe.arch == "x86_64" else {"HOROVOD_ARCH_FLAGS": ""}
    return {**known, **foreign, **dict(recipe.arguments)}


def plan_image(
    recipe: ImageRecipe,
    sources: Mapping[str, str],
    present: Mapping[str, bool],
    *,
    cache: str,
    python: str,
    proxies: Collection[str] = (),
    certificate: str = "",
) -> ImageBuild:
    """Decide everything about one build.

    Args:
        sources: text of ``Dockerfile.<flavour>`` and of each of ``CONTEXT_FILES``, by path.
        present: files in the wheelhouse (``wheelhouse_of``) by name; False for a damaged one.
        cache: absolute folder for wheelhouses and contexts.
        python: interpreter on this machine whose pip does the fetching.
        proxies: names of the proxy variables that are set on this machine.

    Raises:
        BadInput: a wrong ARG name, architecture or requirements file.
    """
    dockerfile = sources[f"Dockerfile.{recipe.flavour}"]
    arguments = arguments_of(recipe, dockerfile)
    wheelhouse = wheelhouse_of(recipe, dockerfile, cache)
    pins = _pins(recipe, sources, arguments)
    horovod = Pin("horovod", arguments["HOROVOD_VERSION"], "")
    good = [name for name, intact in present.items() if intact]
    wanted = [name for name in good if any(pin.is_in(name) for pin in (*pins, horovod))]
    missing = tuple(pin for pin in pins if not any(pin.is_in(name) for name in wanted))
    target = Target(arguments["PYTHON_VERSION"], recipe.arch)
    fetches = wheel_fetches(missing, target, wheelhouse, python, recipe.torch_index)
    if not any(horovod.is_in(name) for name in wanted):
        digest = arguments["HOROVOD_SHA256"]
        fetches += horovod_fetches(horovod.version, digest, wheelhouse, python)
    if recipe.target == "tools":
        fetches = ()  # that stage installs no wheel
    context = str(PurePosixPath(cache) / f"context-{recipe.flavour}")
    files = (("Dockerfile", dockerfile), *((path, sources[path]) for path in CONTEXT_FILES))
    return ImageBuild(
        flavour=recipe.flavour,
        tag=recipe.reference,
        wheelhouse=wheelhouse,
        discard=tuple(sorted(set(present) - set(wanted))),
        fetches=fetches,
        context=context,
        files=files,
        certificate=certificate,
        command=build_command(recipe, arguments, parse_arguments(dockerfile), context, proxies),
        limit_bytes=0 if recipe.target else LIMIT_BYTES[recipe.flavour],
    )


def wheelhouse_of(recipe: ImageRecipe, dockerfile: str, cache: str) -> str:
    """Return the absolute path of the wheelhouse that this recipe uses."""
    target = Target(arguments_of(recipe, dockerfile)["PYTHON_VERSION"], recipe.arch)
    return str(PurePosixPath(cache) / "wheels" / f"{recipe.flavour}-{target.folder}")


def build_command(
    recipe: ImageRecipe,
    arguments: Mapping[str, str],
    defaults: Mapping[str, str],
    context: str,
    proxies: Collection[str] = (),
) -> Command:
    """Return the ``docker build`` line; ARGs that keep their default are not named in it."""
    changed = [(n, v) for n, v in arguments.items() if defaults.get(n) != v]
    return command(
        # Host networking: apt reaches what this machine reaches, a resolver on localhost included.
        *("docker", "build", "--network=host", "--tag", recipe.reference),
        *(token for name, value in changed for token in ("--build-arg", f"{name}={value}")),
        *(t for name in PROXY_VARIABLES if name in proxies for t in ("--build-arg", name)),
        *(("--no-cache",) if recipe.no_cache else ()),
        *(("--target", recipe.target) if recipe.target else ()),
        context,
    )


def build_progress(line: str) -> str:
    """Return the step that a line of docker's output begins, such as ``builder 3/9 RUN make``, or nothing.

    Understands the legacy builder and BuildKit's plain output.
    """
    if match := _LEGACY_STEP.match(line):
        return f"{match[1]}/{match[2]} {match[3]}"
    if match := _BUILDKIT_STEP.match(line):
        return f"{match[1]} {match[2]}/{match[3]} {match[4]}"
    return ""


def _pins(recipe: ImageRecipe, sources: Mapping[str, str], arguments: Mapping[str, str]) -> tuple[Pin, ...]:
    names = ["image/requirements.txt", f"image/requirements-{recipe.flavour}.txt"]
    if recipe.flavour == "gpu":
        names.append("image/requirements-gpu-build.txt")
    return tuple(pin for name in names for pin in parse_pins(sources[name], arguments))
