"""Wheels of an image: exact pins, wheel tags for its Python and architecture, and pip commands."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from toolkit.core.command import Command, command, quoted
from toolkit.core.printable import counted
from toolkit.errors import BadInput, Problem
from toolkit.image.build_values import Fetch, Locked, without_logins

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_INDEX_VARIABLE = "TOOLKIT_TORCH_INDEX"

_GLIBC_MINOR = 36  # the image has glibc 2.36, as Debian 12 does

# Short time-outs: without access to the public index the command fails within seconds.
_SHORT = ("--retries", "1", "--timeout", "15")

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)={2,3}([A-Za-z0-9.+!_-]+)$")


@dataclass(frozen=True)
class Pin:
    """A package in exactly one version, as pinned by a line of a requirements file."""

    name: str
    version: str
    line: str

    @property
    def key(self) -> str:
        """Its normalized name, for comparisons; see https://peps.python.org/pep-0503/."""
        return _normal(self.name)

    def is_in(self, filename: str) -> bool:
        """Return whether a wheel or sdist with this file name is this package in this version."""
        return file_key(filename) == (self.key, self.version)


@dataclass(frozen=True)
class Target:
    """Target of the wheels: a Python version such as 3.11 and an architecture as ``uname -m`` prints it."""

    python: str
    arch: str

    @property
    def abi(self) -> str:
        return "cp" + self.python.replace(".", "")

    @property
    def folder(self) -> str:
        """Part of the wheelhouse's name: each Python version and architecture has a folder of its own."""
        return f"py{self.python}-{self.arch}"

    @property
    def markers(self) -> dict[str, str]:
        """Values of environment markers; as for pip, Python 3.11 is 3.11.0.

        See https://peps.python.org/pep-0508/#environment-markers.
        """
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def __str__(self) -> str:
        return f"Python {self.python} on {self.arch}"


class PipOptions(NamedTuple):
    """Options of pip that set package sources.

    Args:
        words: options for the command line.
        lines: options for a requirements file, which pip reads from standard input: ``ps`` shows the command
            line to every user, and the URL of an index can contain a password.
    """

    words: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


# The configuration of pip sets the sources.
CONFIGURED = PipOptions()


@dataclass(frozen=True)
class Source:
    """A package that is compiled from its released source.

    Args:
        name: name on PyPI.
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
        BadInput: a line is not an exact pin, or refers to a version that is unknown or empty.
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
    """Return the pip options that select wheels for the image's Python instead of pip's own."""
    return (
        *("--only-binary", ":all:", "--python-version", target.python, "--implementation", "cp"),
        *(token for tag in (target.abi, "abi3", "none") for token in ("--abi", tag)),
        *(t for platform in wheel_platforms(target.arch) for t in ("--platform", platform)),
    )


def runs_on(filename: str, target: Target) -> bool:
    """Return True if a wheel of this name can be installed on the target; see https://peps.python.org/pep-0425/.

    >>> runs_on("psutil-7.2.2-cp36-abi3-manylinux2010_x86_64.whl", Target("3.11", "x86_64"))
    True
    """
    pythons, abis, platforms = (tag.split(".") for tag in filename.removesuffix(".whl").split("-")[-3:])
    own = target.abi
    # abi3: compiled for this Python, and for every newer one.
    older = any(int(each[3:]) <= int(own[3:]) for each in pythons if re.fullmatch(r"cp3\d+", each))
    return (
        own in abis or ("abi3" in abis and older) or ("none" in abis and bool({"py3", own} & {*pythons}))
    ) and ("any" in platforms or bool({*wheel_platforms(target.arch)} & {*platforms}))


def wheel_fetches(
    missing: Collection[Pin],
    target: Target,
    wheelhouse: str,
    python: str,
    torch_index: str,
    about: str = "",
    locked: Collection[Locked] = (),
    options: Collection[str] = (),
) -> tuple[Fetch, ...]:
    """Return the fetches of the missing wheels, with torch's CPU wheel as a separate fetch.

    pip accepts only files with the digests of the locked wheels, and from their URLs if they have one.

    Args:
        wheelhouse: absolute path.
        python: interpreter whose pip fetches the wheels.
        torch_index: see ``torch_sources``.
        about: purpose of the wheels, if it is not the image itself.
        options: lines of a requirements file with package sources.
    """
    base = (
        *(python, "-m", "pip", "download", "--no-input", "--no-deps"),
        *wheel_tags(target),
        *("--dest", wheelhouse),
    )
    digests = {(each.name, each.version): each.digests for each in locked if each.digests}
    urls = {(each.name, each.version): f"{each.name} @ {each.url}" for each in locked if each.url}

    def requirement(pin: Pin) -> str:
        return urls.get((pin.name, pin.version), pin.line)

    def download(pins: Collection[Pin], source: PipOptions = CONFIGURED) -> Command:
        known = [(pin, digests.get((pin.name, pin.version), ())) for pin in pins]
        hashed = all(hashes for _, hashes in known)
        sources = (*options, *source.lines)
        plain = [requirement(pin) for pin in pins]
        if not hashed and not sources and list(map(without_logins, plain)) == plain:
            return command(*base, *source.words, *plain)
        lines = [" ".join((requirement(pin), *(f"--hash=sha256:{each}" for each in h))) for pin, h in known]
        words = (*(("--require-hashes",) if hashed else ()), "--requirement", "/dev/stdin")
        stdin = "".join(f"{line}\n" for line in (*sources, *lines)).encode()
        return command(*base, *source.words, *words, stdin=stdin)

    # torch's CPU wheels are not on PyPI, so that one package has sources of its own.
    apart = [pin for pin in missing if pin.version.endswith("+cpu")]
    rest = [pin for pin in missing if pin not in apart]
    with_hash = [pin for pin in rest if (pin.name, pin.version) in digests]
    fetches = []
    for group in (with_hash, [pin for pin in rest if pin not in with_hash]):
        if not group:
            continue
        fetches.append(
            Fetch(
                f"{counted(len(group), 'wheel')} for {about or target}",
                (download(group),),
                "pip cannot fetch the wheels of the image",
                "python3 -m pip config list  # check index, proxy and certificate; or "
                f"put the wheels into {wheelhouse}",
            )
        )
    for pin in apart:
        sources = torch_sources(torch_index)
        fetches.append(
            Fetch(
                f"{pin.name} {pin.version} for {target}",
                tuple(download((pin,), source) for source in sources),
                f"pip cannot fetch the wheel of {pin.name} {pin.version} for {target}, and "
                "toolkit does not use the much larger CUDA build instead",
                f"set {TORCH_INDEX_VARIABLE} to an index URL such as {TORCH_CPU_INDEX}, or to a folder that "
                f"contains {pin.name}-{pin.version}-{target.abi}-{target.abi}-*.whl",
            )
        )
    return tuple(fetches)


def torch_sources(setting: str) -> tuple[PipOptions, ...]:
    """Return the options for each source of torch's CPU wheel, in order."""
    if "://" in setting:
        return (PipOptions(lines=(f"--index-url {quoted(setting)}",)),)
    if setting:
        return (PipOptions(("--no-index", "--find-links", setting)),)
    return (CONFIGURED, PipOptions(_SHORT, (f"--index-url {TORCH_CPU_INDEX}",)))


def beside_torch(setting: str) -> PipOptions:
    """Return the options that add the source of packages compiled against torch's CPU build."""
    if "://" in setting or not setting:
        return PipOptions(_SHORT, (f"--extra-index-url {quoted(setting or TORCH_CPU_INDEX)}",))
    return PipOptions(("--find-links", setting))


def source_fetches(source: Source, wheelhouse: str, python: str, tools_from: str) -> tuple[Fetch, ...]:
    """Return the fetches of a package's source.

    Args:
        tools_from: a wheelhouse that already contains setuptools, wheel and packaging.
    """
    name, version, digest = source.name, source.version, source.digest
    # pip runs the setup.py of an sdist to read its metadata. It imports setuptools and packaging,
    # which can be missing on this machine; the wheelhouse has both as pure Python wheels.
    tools = str(PurePosixPath(wheelhouse) / "build-tools")
    requirement = f"{name}=={version} --hash=sha256:{digest}\n"
    fix = f"download {name}-{version}.tar.gz from PyPI and put it into {wheelhouse}"
    return (
        Fetch(
            f"setuptools, wheel and packaging, to read the metadata of {name}",
            (
                command(
                    *(python, "-m", "pip", "install", "--no-index", "--find-links", tools_from),
                    *("--no-deps", "--upgrade", "--target", tools),
                    *("setuptools", "wheel", "packaging"),
                ),
            ),
            "pip cannot unpack setuptools, wheel and packaging from the wheelhouse",
            fix,
        ),
        Fetch(
            f"the source of {name} {version}",
            (
                command(
                    *("env", f"PYTHONPATH={tools}", python, "-m", "pip", "download", "--no-input"),
                    *("--no-deps", "--no-binary", ":all:", "--no-build-isolation"),
                    *("--require-hashes", "--dest", wheelhouse, "--requirement", "/dev/stdin"),
                    stdin=requirement.encode(),
                ),
            ),
            f"pip cannot fetch the source of {name} {version} with SHA-256 {digest}",
            fix,
        ),
    )


def file_key(filename: str) -> tuple[str, str]:
    """Return the normalized package name and the version in the name of a wheel or sdist."""
    stem = filename.removesuffix(".tar.gz").removesuffix(".whl")
    name, _, rest = stem.partition("-")
    return _normal(name), rest.partition("-")[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
