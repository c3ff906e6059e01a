"""Hashes of what users and other programs see, to compare before and after a change that must not alter it.

usage: python -m tests.baseline > FILE, twice, then: diff FILE FILE

One line each: SHA-256, then what it is of: the plans of a set of clusters, the golden files, the generated
references, the schema of hosts.yaml, and `--help` of every verb.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts import reference
from tests.unit import cluster_world
from tests.unit.docs_check import verbs

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"


def toolkit(*words: str) -> bytes:
    """Return what a command prints."""
    env = {"PATH": os.environ["PATH"], "COLUMNS": "100", "HOME": "/nonexistent"}
    argv = [sys.executable, "-m", "toolkit", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True).stdout


def everything() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each thing."""
    for name, plan in cluster_world.plans().items():
        yield f"plan {name}", cluster_world.everything({name: plan}).encode()
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file():
            yield f"golden {path.relative_to(GOLDEN)}", path.read_bytes()
    for path, text in reference.files().items():
        yield f"reference {path.name}", text.encode()
    yield "schema", toolkit("schema")
    for verb in ("", *sorted(verbs())):
        yield f"help {verb}".strip(), toolkit(*verb.split(), "--help")


def main() -> None:
    for name, content in everything():
        print(hashlib.sha256(content).hexdigest(), name)


if __name__ == "__main__":
    main()
