"""What an image can carry beside PyTorch and Horovod: frameworks, each a closed list of packages."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from toolkit.core.command import Command, command
from toolkit.errors import BadInput, ImageError, Problem
from toolkit.image.wheelhouse import Pin, Target, parse_pins, wheel_tags

# The name of a person's own requirements among them.
OWN = "own"


@dataclass(frozen=True)
class Extra:
    """One that can be asked for by name; the name is that of the module, too.

    Args:
        about: one line for people.
        flavours: of the image that can have it.
        source: the package that is built from its released source, with a compiler; its ARGs are
            NAME_VERSION and NAME_SHA256.
        into: the folder of the context in which its wheels stand.
    """

    name: str
    about: str
    flavours: tuple[str, ...] = ("cpu", "gpu")
    source: str = ""
    into: str = "more"

    @property
    def file(self) -> str:
        """Its requirements, as a path in the source folder and in the context alike."""
        return f"image/with/{self.name}.txt"


_ALL = (
    Extra("accelerate", "Hugging Face Accelerate"),
    Extra("deepspeed", "DeepSpeed, its operators built beforehand", source="deepspeed"),
    Extra("jupyterlab", "JupyterLab"),
    Extra("lightning", "PyTorch Lightning"),
    Extra("ray", "Ray with Ray Train"),
    Extra("tensorboard", "TensorBoard"),
    # torch and TensorFlow want different releases of the same CUDA libraries.
    Extra("tensorflow", "TensorFlow and Keras 2, with Horovod built for them", ("cpu",), into="tensorflow"),
    Extra("transformers", "Hugging Face Transformers, with Accelerate"),
)
EXTRAS: Mapping[str, Extra] = {extra.name: extra for extra in _ALL}


def extra_problems(names: Collection[str], flavour: str) -> list[Problem]:
    """Return what is wrong with a choice of extras."""
    problems = []
    for name in names:
        extra = EXTRAS.get(name)
        if extra is None:
            problems.append(Problem("--with", f"is among {', '.join(EXTRAS)}, found {name}"))
        elif flavour not in extra.flavours:
            known = " or ".join(extra.flavours)
            problems.append(Problem("--with", f"{name} goes with flavour {known} alone, found {flavour}"))
    return problems


# Compiled against one build of torch: PyPI has those for CUDA, which do not load beside another.
_BESIDE_TORCH = ("torchaudio", "torchvision")


def of_another_torch(pins: str) -> list[str]:
    """Return which of these pins do not go with torch's CPU build."""
    return [
        pin.line for pin in parse_pins(pins, {}) if pin.key in _BESIDE_TORCH and "+cpu" not in pin.version
    ]


def resolve_command(
    requirements: str,
    held: Collection[Pin],
    target: Target,
    wheelhouse: str,
    python: str,
    more: Collection[str] = (),
) -> Command:
    """Return the command that finds exact versions for a person's requirements; it prints pip's report.

    See https://pip.pypa.io/en/stable/reference/installation-report/ for what it prints.

    Args:
        requirements: path of a requirements file.
        held: what the image has already; another version of it is refused.
        wheelhouse: where the wheels of those are, as far as they have been fetched.
        more: pip's options for further places to look.
    """
    return command(
        *(python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"),
        *wheel_tags(target),
        *("--target", "/nowhere", "--find-links", wheelhouse, *more),
        *("--constraint", "/dev/stdin", "--requirement", requirements),
        stdin="".join(f"{pin.line}\n" for pin in held).encode(),
    )


def resolved_pins(report: str, held: Collection[Pin]) -> str:
    """Return the pins of a pip report as text, without what the image has already.

    Raises:
        ImageError: that is no report.
    """
    try:
        found = [each["metadata"] for each in json.loads(report)["install"]]
        pins = [Pin(each["name"], each["version"], f"{each['name']}=={each['version']}") for each in found]
    except (ValueError, KeyError, TypeError) as error:
        raise ImageError("pip printed no installation report", "pip 23 or newer prints one") from error
    own = {pin.key for pin in held}
    return "".join(f"{pin.line}\n" for pin in sorted(pins, key=lambda pin: pin.key) if pin.key not in own)


def extra_pins(
    names: Collection[str], sources: Mapping[str, str], arguments: Mapping[str, str]
) -> dict[str, tuple[Pin, ...]]:
    """Return the pins of each extra by its name.

    Raises:
        BadInput: two of them want different versions of a package.
    """
    found = {name: parse_pins(sources[EXTRAS[name].file], arguments) for name in names}
    versions: dict[str, tuple[str, str]] = {}
    problems = []
    for name, pins in found.items():
        for pin in pins:
            other, version = versions.setdefault(pin.key, (name, pin.version))
            if version != pin.version:
                both = f"{other} wants {pin.name} {version}, {name} wants {pin.version}"
                problems.append(Problem("--with", both))
    if problems:
        raise BadInput("image build", tuple(problems))
    return found
