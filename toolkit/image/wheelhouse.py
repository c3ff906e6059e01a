"""The wheels of an image: exact pins, the tags that fit its Python and machine, and pip's command lines."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from toolkit.core.command import command
from toolkit.errors import BadInput, Problem
from toolkit.image.build_values import Fetch

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_INDEX_VARIABLE = "TOOLKIT_TORCH_INDEX"

_GLIBC_MINOR = 36  # the image has glibc 2.36, as Debian 12 does

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)={2,3}([A-Za-z0-9.+!_-]+)$")


@dataclass(frozen=True)
class Pin:
    """One package in exactly one version, as its line in a requirements file says it."""

    name: str
    version: str
    line: str

    @property
    def key(self) -> str:
        """Its name as indexes write it, for comparing; see https://peps.python.org/pep-0503/."""
        return _normal(self.name)

    def is_in(self, filename: str) -> bool:
        """Tell whether a wheel or sdist of this name is this package in this version."""
        stem = filename.removesuffix(".tar.gz").removesuffix(".whl")
        name, _, rest = stem.partition("-")
        return (_normal(name), rest.partition("-")[0]) == (_normal(self.name), self.version)


@dataclass(frozen=True)
class Target:
    """What the wheels are for: a Python version such as 3.11 and an architecture as ``uname -m`` says it."""

    python: str
    arch: str

    @property
    def abi(self) -> str:
        return "cp" + self.python.replace(".", "")

    @property
    def folder(self) -> str:
        """Part of the wheelhouse's name: wheels for another Python or machine get another folder."""
        return f"py{self.python}-{self.arch}"

    def __str__(self) -> str:
        return f"Python {self.python} on {self.arch}"


@dataclass(frozen=True)
class Source:
    """A package that is built from its released source.

    Args:
        name: as PyPI has it.
        digest: SHA-256 of its archive, hexadecimal.
    """

    name: str
    version: str
    digest: str

    @property
    def pin(self) -> Pin:
        return Pin(self.name, self.version, f"{self.name}=={self.version}")


def parse_pins(requirements: str, versions: Mapping[str, str]) -> tuple[Pin, ...]:
    """Return the pins of a requirements file, ``${NAME}`` filled in from ``versions``.

    Raises:
        BadInput: a line is not an exact pin, or names a version that is unknown or empty.
    """
    pins, problems = [], []
    for number, raw in enumerate(requirements.splitlines(), 1):
        if not (text := raw.split("#")[0].strip()):
            continue
        line = string.Template(text).safe_substitute(versions)
        if match := _REQUIREMENT.match(line):
            pins.append(Pin(match[1], match[2], line))
        else:
            problems.append(Problem("", f"should be NAME==VERSION, found '{line}'", number))
    if problems:
        raise BadInput("requirements of the image", tuple(problems))
    return tuple(pins)


def wheel_platforms(arch: str) -> tuple[str, ...]:
    """Return the platform tags whose wheels run on the image's glibc, best first.

    See https://peps.python.org/pep-0600/ for ``manylinux_2_N`` and the older names.
    """
    modern = tuple(f"manylinux_2_{minor}_{arch}" for minor in range(_GLIBC_MINOR, 4, -1))
    older = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
    return (*modern, *(f"{name}_{arch}" for name in older))


def wheel_tags(target: Target) -> tuple[str, ...]:
    """Return pip's options by which it takes wheels for the image's Python and not for its own."""
    return (
        *("--only-binary", ":all:", "--python-version", target.python, "--implementation", "cp"),
        *(token for tag in (target.abi, "abi3", "none") for token in ("--abi", tag)),
        *(t for platform in wheel_platforms(target.arch) for t in ("--platform", platform)),
    )


def wheel_fetches(
    missing: Collection[Pin], target: Target, wheelhouse: str, python: str, torch_index: str, about: str = ""
) -> tuple[Fetch, ...]:
    """Return what brings the missing wheels, torch's CPU wheel by itself.

    Args:
        wheelhouse: absolute folder.
        python: interpreter whose pip does the fetching.
        torch_index: see ``torch_sources``.
        about: for whom they are, where it is not the image as such.
    """
    base = (
        *(python, "-m", "pip", "download", "--no-deps"),
        *wheel_tags(target),
        *("--dest", wheelhouse),
    )
    # torch's CPU wheels are not on PyPI, so that one package has sources of its own.
    apart = [pin for pin in missing if pin.version.endswith("+cpu")]
    fetches = []
    if rest := [pin.line for pin in missing if pin not in apart]:
        fetches.append(
            Fetch(
                f"{len(rest)} wheels for {about or target}",
                (command(*base, *rest),),
                "pip cannot fetch the wheels of the image",
                "look at pip's configuration on this machine (index, proxy, certificate), or "
                f"put the wheels into {wheelhouse} yourself",
            )
        )
    for pin in apart:
        sources = torch_sources(torch_index)
        fetches.append(
            Fetch(
                f"{pin.name} {pin.version} for {target}",
                tuple(command(*base, *source, pin.line) for source in sources),
                f"no wheel of {pin.name} {pin.version} was found for {target}, and the much larger "
                "CUDA build is not taken in its place",
                f"set {TORCH_INDEX_VARIABLE} to an index URL or to a folder that holds "
                f"{pin.name}-{pin.version}-{target.abi}-{target.abi}-*.whl, for example {TORCH_CPU_INDEX}",
            )
        )
    return tuple(fetches)


def torch_sources(setting: str) -> tuple[tuple[str, ...], ...]:
    """Return pip's options for each place to look for torch's CPU wheel, in order."""
    if "://" in setting:
        return (("--index-url", setting),)
    if setting:
        return (("--no-index", "--find-links", setting),)
    # Short patience: a network that cannot reach the public index shall learn so in seconds.
    return ((), ("--retries", "1", "--timeout", "15", "--index-url", TORCH_CPU_INDEX))


def beside_torch(setting: str) -> tuple[str, ...]:
    """Return pip's options by which it looks there too, for what is compiled against torch's CPU build."""
    if "://" in setting or not setting:
        return ("--retries", "1", "--timeout", "15", "--extra-index-url", setting or TORCH_CPU_INDEX)
    return ("--find-links", setting)


def source_fetches(source: Source, wheelhouse: str, python: str, tools_from: str) -> tuple[Fetch, ...]:
    """Return what brings a package's source.

    Args:
        tools_from: a wheelhouse that holds setuptools, wheel and packaging by then.
    """
    name, version, digest = source.name, source.version, source.digest
    # pip asks an sdist for its metadata, which runs its setup.py. That imports setuptools and packaging,
    # and this machine may have neither; the wheelhouse has both as pure Python wheels.
    tools = str(PurePosixPath(wheelhouse) / "build-tools")
    requirement = f"{name}=={version} --hash=sha256:{digest}\n"
    fix = f"put {name}-{version}.tar.gz, as PyPI has it, into {wheelhouse} yourself"
    return (
        Fetch(
            f"build tools for the metadata of {name}",
            (
                command(
                    *(python, "-m", "pip", "install", "--no-index", "--find-links", tools_from),
                    *("--no-deps", "--upgrade", "--target", tools),
                    *("setuptools", "wheel", "packaging"),
                ),
            ),
            "pip cannot unpack setuptools from the wheelhouse",
            fix,
        ),
        Fetch(
            f"the source of {name} {version}",
            (
                command(
                    *("env", f"PYTHONPATH={tools}", python, "-m", "pip", "download"),
                    *("--no-deps", "--no-binary", ":all:", "--no-build-isolation"),
                    *("--require-hashes", "--dest", wheelhouse, "--requirement", "/dev/stdin"),
                    stdin=requirement.encode(),
                ),
            ),
            f"pip cannot fetch the source of {name} {version} with sha256 {digest}",
            fix,
        ),
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
