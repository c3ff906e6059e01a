"""Probe of an image: the programs and libraries that ranks can use.

It is sent over standard input and never written to disk. It imports no package of the image, so a package
that does not load cannot end it, and it also runs with a Python that is too old for jobs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "horovod", "mpi4py", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
LIBMPI = ("usr/lib/*/libmpi.so.*.*.*", "usr/local/lib/libmpi.so.*.*.*")
LIBNCCL = (
    "usr/lib/*/libnccl.so.*.*.*",
    "usr/local/lib/libnccl.so.*.*.*",
    "usr/local/nccl*/lib/libnccl.so.*.*.*",
)
COMPILERS = ("cc", "gcc", "clang")
# Seconds that mpirun can take to print its version.
VERSION_S = 10.0
_CUDA = re.compile(r"^cuda\b[^=\n]*= *'([0-9.]+)'", re.MULTILINE)


def versions() -> dict[str, str]:
    """Return the versions that must match between ranks; missing software is omitted."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    # libmpi.so.40.30.4: the library that ranks load is more reliable than a program of another MPI.
    if libmpi := of_library(LIBMPI):
        found["libmpi"] = libmpi
    return found


def of_library(patterns: tuple[str, ...]) -> str:
    """Return the version in the file name of a library; empty if the image does not have it."""
    paths = sorted(path for pattern in patterns for path in Path("/").glob(pattern))
    return paths[-1].name.partition(".so.")[2] if paths else ""


def lacking(names: list[str]) -> list[str]:
    """Return the programs, and the Python packages as ``python:NAME``, that are missing in this image."""
    missing = []
    for name in names:
        package = name.removeprefix("python:")
        found = shutil.which(name) if package == name else importlib.util.find_spec(package)
        missing += [] if found else [name]
    return missing


def first_line(*argv: str) -> str:
    """Return the first line that a program prints; empty if it fails."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_S,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0][:200]


def cuda_of_torch() -> str:
    """Return the CUDA version of torch's build, from its file; empty for a CPU build or without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return ""
    with contextlib.suppress(OSError):
        found = _CUDA.search(Path(spec.origin).with_name("version.py").read_text(errors="replace"))
        return found[1] if found else ""
    return ""


def look(programs: list[str]) -> dict[str, Any]:
    """Return the facts of the image.

    Args:
        programs: programs, and Python packages as ``python:NAME``, to search for.
    """
    found = versions()
    nccl = [found[name] for name in PACKAGES if name.startswith("nvidia-nccl") and name in found]
    return {
        "executable": sys.executable,
        "python": list(sys.version_info[:3]),
        "versions": found,
        "lacks": lacking(programs),
        "mpirun": first_line("mpirun", "--version") if shutil.which("mpirun") else "",
        "cuda": cuda_of_torch(),
        "nccl": nccl[0] if nccl else of_library(LIBNCCL),
        "compiler": next(filter(None, map(shutil.which, COMPILERS)), None) or "",
        "headers": Path(sysconfig.get_path("include"), "Python.h").is_file(),
    }


def main() -> None:
    config = json.loads(sys.stdin.buffer.readline())
    text = json.dumps(look(config["programs"]))
    nonce = config["nonce"]
    # Framed, because the image's own Python files can print when Python starts.
    sys.stdout.write(f"\n{nonce} image {len(text)}\n{text}\n{nonce} end 0\n")
    sys.stdout.flush()
