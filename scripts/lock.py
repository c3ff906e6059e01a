"""Write image/wheels.lock: the SHA-256 of each wheel that the recipes of the images fetch.

    make lock

pip selects the wheels for each architecture and reports their SHA-256. pip 26 reads only the metadata of the
wheels; older releases download the wheels, about 10 GB. pip uses its own configuration, and
TOOLKIT_TORCH_INDEX names an index or a folder with torch's CPU wheel. The lines of a wheel that no index has
stay as they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Collection, Iterator
from pathlib import Path

from toolkit.core.command import Command, command
from toolkit.core.printable import counted
from toolkit.image.build import read_sources, source_folder
from toolkit.image.build_plan import EXTRAS, FLAVOURS, SOURCE_FILES, ImageRecipe, held_pins
from toolkit.image.cuda import CUDA_VARIANTS, DEFAULT_CUDA
from toolkit.image.lock import LOCK_FILE, lock_text, parse_lock
from toolkit.image.wheelhouse import (
    CONFIGURED,
    TORCH_INDEX_VARIABLE,
    Pin,
    PipOptions,
    Target,
    runs_on,
    torch_sources,
    wheel_tags,
)

ARCHES = ("x86_64", "aarch64")
# ARGs that docs/how-to/images.md tells users to set.
DOCUMENTED = (("OPENMPI", "5.0.11"),)


def recipes() -> Iterator[ImageRecipe]:
    """Yield the recipes of the lock: each flavor and CUDA variant with all extras, on each architecture."""
    for arch in ARCHES:
        for flavor in FLAVOURS:
            for variant in CUDA_VARIANTS:
                if arch in variant.arches and (flavor == "gpu" or variant.major == DEFAULT_CUDA):
                    extras = tuple(
                        name
                        for name, extra in EXTRAS.items()
                        if flavor in extra.flavors and (flavor == "cpu" or variant.major in extra.cudas)
                    )
                    yield ImageRecipe(flavor, arch=arch, extras=extras, cuda=variant.major)
                    yield ImageRecipe(flavor, arguments=DOCUMENTED, arch=arch, cuda=variant.major)


def locked_targets() -> dict[Target, tuple[Pin, ...]]:
    """Return all pins of the recipes by target."""
    sources = read_sources(source_folder(), (*(f"Dockerfile.{name}" for name in FLAVOURS), *SOURCE_FILES))
    found: dict[Target, dict[Pin, None]] = {}
    for recipe in recipes():
        pins, target = held_pins(recipe, sources)
        found.setdefault(target, {}).update(dict.fromkeys(pins))
    return {target: tuple(pins) for target, pins in found.items()}


def report_command(pins: Collection[Pin], target: Target, source: PipOptions) -> Command:
    """Return the pip command that selects wheels and prints a report about them."""
    return command(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"),
        "--use-feature=fast-deps",  # reads the metadata in a wheel without the rest
        *("--report", "-", *wheel_tags(target), "--target", "/nowhere", *source.words),
        *("--requirement", "/dev/stdin"),
        stdin="".join(f"{line}\n" for line in (*source.lines, *(pin.line for pin in pins))).encode(),
    )


def reported_files(report: str) -> dict[str, str]:
    """Return the digests in a pip report by file name."""
    found = {}
    for package in json.loads(report)["install"]:
        name = urllib.parse.unquote(package["download_info"]["url"].rpartition("/")[2])
        found[name] = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return found


def find_files(pins: tuple[Pin, ...], target: Target) -> dict[str, str]:
    """Return the wheels of the pins with their digests; without those that no index has."""
    own = os.environ.get(TORCH_INDEX_VARIABLE, "")
    of_torch = all(pin.version.endswith("+cpu") for pin in pins)
    for source in torch_sources(own) if of_torch else (CONFIGURED,):
        asked = report_command(pins, target, source)
        argv = [str(token) for token in asked.argv]
        done = subprocess.run(argv, input=asked.stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode == 0:
            return reported_files(done.stdout.decode())
    # pip refuses all packages if one is missing: the halves find it.
    half = len(pins) // 2
    return {**find_files(pins[:half], target), **find_files(pins[half:], target)} if half else {}


def groups(pins: Collection[Pin]) -> Iterator[tuple[Pin, ...]]:
    """Yield the pins in groups without two versions of a package; torch's CPU wheel is a group."""
    left = list(pins)
    while left:
        apart = [pin for pin in left if pin.version.endswith("+cpu")][:1]
        group = apart or list({pin.key: pin for pin in left}.values())
        yield tuple(group)
        left = [pin for pin in left if pin not in group]


def main() -> None:
    file = source_folder() / LOCK_FILE
    before = parse_lock(file.read_text(encoding="utf-8")) if file.exists() else {}
    files: dict[str, str] = {}
    for target, pins in locked_targets().items():
        for group in groups(pins):
            print(f"{counted(len(group), 'wheel')} for {target}", flush=True)
            files |= (found := find_files(group, target))
            for pin in group:
                if not any(pin.is_in(name) for name in found):
                    known = before.get((pin.key, pin.version), {})
                    kept = {name: digest for name, digest in known.items() if runs_on(name, target)}
                    print(f"no index has {pin.line} for {target}: {'kept' if kept else 'no entry'}")
                    files |= kept
    file.write_text(lock_text(files), encoding="utf-8")
    print(f"{file.relative_to(Path.cwd())}: {len(files)} files")


if __name__ == "__main__":
    main()
