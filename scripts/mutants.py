"""Change the acting modules at random, one place at a time, and count the changes that unit tests notice.

    python scripts/mutants.py [-n NUMBER] [--seed SEED] [--only FILE] [--results FILE]

A change turns a comparison, removes `not`, swaps `and` and `or`, or adds 1 to a number. It is made in a copy
of the tree. There the test files run that are nearest to the module by imports, and then all unit tests. A
run continues where another with the same results file was interrupted. Tests that compare source text are
left out: those that fail when each module only has one more comment, and those of the broken builds.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("toolkit/inside", "toolkit/executors", "toolkit/effects", "toolkit/cli", "toolkit/render")
TURNED: dict[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Eq: (b"==", b"!="),
    ast.NotEq: (b"!=", b"=="),
    ast.Lt: (b"<", b">="),
    ast.LtE: (b"<=", b">"),
    ast.Gt: (b">", b"<="),
    ast.GtE: (b">=", b"<"),
    ast.Is: (b"is", b"is not"),
    ast.IsNot: (b"is not", b"is"),
    ast.In: (b"in", b"not in"),
    ast.NotIn: (b"not in", b"in"),
}
KINDS = ("comparison", "not", "and/or", "number")
NEAREST = 5  # test files that run first
RUN_S = 900.0  # for one run of tests; a test that waits forever has noticed the change


class Mutant(NamedTuple):
    """One change: bytes of a file from `start` to `end` become `new`."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}: {self.old} -> {self.new} ({self.start})"


def acting() -> list[Path]:
    """Return the modules that act: they start processes, talk to hosts, write files or print."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found += [path for path in sorted((ROOT / "toolkit").glob("*.py")) if not path.name.startswith("show")]
    return [path for path in found if path.name != "__init__.py"]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Return every change that can be made in a file."""
    text = path.read_bytes()
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    name = str(path.relative_to(ROOT))

    def first(node: ast.expr) -> int:
        return begins[node.lineno - 1] + node.col_offset

    def last(node: ast.expr) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return begins[node.end_lineno - 1] + node.end_col_offset

    def between(kind: str, left: ast.expr, right: ast.expr, old: bytes, new: bytes) -> Iterator[Mutant]:
        gap = text[last(left) : first(right)]
        found = re.search(rb"(?<![\w=<>!])" + re.escape(old).replace(rb"\ ", rb"\s+") + rb"(?![\w=])", gap)
        if found and b"#" not in gap:
            start, end = last(left) + found.start(), last(left) + found.end()
            yield Mutant(name, left.lineno, kind, start, end, old.decode(), new.decode())

    for node in _own_code(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, right, how in zip(sides, sides[1:], node.ops, strict=False):
                yield from between("comparison", left, right, *TURNED[type(how)])
        elif isinstance(node, ast.BoolOp):
            words = (b"and", b"or") if isinstance(node.op, ast.And) else (b"or", b"and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between("and/or", left, right, *words)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Mutant(name, node.lineno, "not", first(node), first(node) + len(b"not"), "not", "")
        elif isinstance(node, ast.Constant) and _is_number(node.value):
            old = text[first(node) : last(node)].decode()
            yield Mutant(
                name,
                node.lineno,
                "number",
                first(node),
                last(node),
                old,
                str(complex(old).real + 1 if "." in old or "e" in old else int(old, 0) + 1),
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _own_code(tree: ast.AST) -> Iterator[ast.AST]:
    """Return the nodes without annotations and without what runs only as a program."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and any(
            isinstance(each, ast.Name) and each.id in ("__name__", "TYPE_CHECKING")
            for each in ast.walk(node.test)
        ):
            continue
        yield node
        yield from _own_code(node)


def sample(count: int, seed: int, only: str = "") -> list[Mutant]:
    """Return this many changes, the four kinds equally likely; the same ones for the same seed and source."""
    rng = random.Random(seed)
    every = [each for path in acting() for each in mutants_of(path) if not only or each.path == only]
    by_kind = {kind: [each for each in every if each.kind == kind] for kind in KINDS}
    chosen: dict[str, Mutant] = {}
    while len(chosen) < min(count, len(every)):
        of_kind = by_kind[rng.choice(KINDS)]
        if of_kind:
            each = rng.choice(of_kind)
            chosen[each.name] = each
    return list(chosen.values())


def imports() -> dict[str, set[str]]:
    """Return for every file of toolkit and tests the files that it names by imports or as programs."""
    files = {
        str(path.relative_to(ROOT)) for top in ("toolkit", "tests") for path in (ROOT / top).rglob("*.py")
    }
    inside = {Path(name).name for name in files if name.startswith("toolkit/inside/")}
    found: dict[str, set[str]] = {}
    for name in files:
        text = (ROOT / name).read_text()
        named = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                named |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(Path(name).parts[: -node.level]) if node.level else ""
                module = ".".join(filter(None, (base, node.module)))
                named |= {module, *(f"{module}.{each.name}" for each in node.names)}
        paths = {f"{module.replace('.', '/')}.py" for module in named}
        # Programs of toolkit/inside import each other by bare name; others name them as files.
        programs = {f"{module}.py" for module in named} | set(re.findall(r"\b\w+\.py\b", text))
        if name.startswith(("toolkit/inside/", "tests/")):
            paths |= {f"toolkit/inside/{program}" for program in programs & inside}
        found[name] = (paths & files) - {name}
    return found


def nearest_tests(path: str, named: dict[str, set[str]]) -> list[str]:
    """Return the unit tests that can notice a change of a file, the nearest first."""
    users: dict[str, set[str]] = {}
    for name, others in named.items():
        for other in others:
            users.setdefault(other, set()).add(name)
    distance, waiting = {path: 0}, deque([path])
    while waiting:
        name = waiting.popleft()
        for user in users.get(name, ()):
            if user not in distance:
                distance[user] = distance[name] + 1
                waiting.append(user)
    tests = [name for name in distance if re.fullmatch(r"tests/unit/(.*/)?test_\w+\.py", name)]
    twin = f"test_{Path(path).stem}.py"
    # Any text that names a program counts as a use of it; tests of programs are named after them.
    inside = path.startswith("toolkit/inside/")

    def rank(name: str) -> tuple[int, int, int, str]:
        base = Path(name).name
        named_so = inside and base.startswith("test_inside_")
        order = 0 if base == twin else 1 if inside and base == "test_schedules.py" else 3 - named_so
        return order, distance[name], (ROOT / name).stat().st_size, name

    return sorted(tests, key=rank)[:NEAREST]


class Copy:
    """A copy of the tree in which one change at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left_out: list[str] = []
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, names.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def prepare(self) -> None:
        """Find the tests that fail although nothing is changed but source text."""
        paths = [self.folder / path.relative_to(ROOT) for path in acting()]
        right = [path.read_bytes() for path in paths]
        for path, text in zip(paths, right, strict=True):
            path.write_bytes(text + b"# One more line.\n")
        try:
            self.left_out = self.failures("tests/unit")
        finally:
            for path, text in zip(paths, right, strict=True):
                path.write_bytes(text)
        for test in self.left_out:
            print(f"left out, as it compares source text: {test}", flush=True)

    def failures(self, *words: str) -> list[str]:
        """Run tests; return those that failed, or one line about a run that did not end properly."""
        argv = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
        argv += ["-n", str(2 * (os.cpu_count() or 1)), "--dist", "worksteal", "-p", "no:randomly"]
        argv += ["-k", "not broken_build", *(f"--deselect={test}" for test in self.left_out)]
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        with subprocess.Popen(
            [*argv, *words],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        ) as process:
            try:
                out, _ = process.communicate(timeout=RUN_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return [f"no end within {RUN_S:.0f} s"]
        found = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", out, re.MULTILINE)
        # 5 means that no test was chosen.
        return found or ([] if process.returncode in (0, 5) else [f"pytest exited with {process.returncode}"])

    def noticed_by(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """Return the test that fails with a change, empty when none does."""
        path = self.folder / mutant.path
        right = path.read_bytes()
        path.write_bytes(right[: mutant.start] + mutant.new.encode() + right[mutant.end :])
        try:
            for words in (tests, ["tests/unit"]):
                failed = self.failures("-x", *words) if words else []
                # Again, as a busy machine may fail a test too.
                if failed and self.failures("-x", *words):
                    return failed[0]
            return ""
        finally:
            path.write_bytes(right)


def main() -> int:
    """Try the changes; print those that no test notices, and the share of the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=60, help="how many changes (default: 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="changes of this file alone")
    parser.add_argument("--results", type=Path, help="default: runs/mutants-SEED.jsonl")
    given = parser.parse_args()
    results = given.results or ROOT / "runs" / f"mutants-{given.seed}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    chosen = sample(given.n, given.seed, given.only)
    done: dict[str, str] = {}
    if results.exists():
        told = [json.loads(line) for line in results.read_text().splitlines()]
        done = {each["mutant"]: each["by"] for each in told}
    with tempfile.TemporaryDirectory(prefix="toolkit-mutants-") as folder:
        copy, named = Copy(Path(folder)), imports()
        copy.prepare()
        for each in chosen:
            if each.name in done:
                continue
            by = done[each.name] = copy.noticed_by(each, nearest_tests(each.path, named))
            with results.open("a") as file:
                file.write(json.dumps({"mutant": each.name, "by": by}) + "\n")
            print(f"{'noticed by ' + by if by else 'NOT NOTICED'}: {each.name}", flush=True)
    missed = [each for each in chosen if not done[each.name]]
    for each in missed:
        print(f"not noticed: {each.name}")
    noticed = len(chosen) - len(missed)
    share = 100 * noticed / len(chosen)
    print(f"mutants: seed {given.seed}, {noticed} of {len(chosen)} noticed ({share:.0f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
