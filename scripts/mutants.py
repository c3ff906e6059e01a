"""Change the acting modules at random, one place at a time, and count the changes that unit tests notice.

    python scripts/mutants.py [-n NUMBER] [--seed SEED] [--only FILE] [--results FILE]

A change turns a comparison, removes `not`, swaps `and` and `or`, or adds 1 to a number. It is made in a copy
of the tree. First, one run of all unit tests records which tests enter the function of each change, also in
programs that tests start. For a change, only these tests run, the nearest to the module by imports first. All
unit tests run if the change is outside functions, or if something other than a test entered the function. A
run continues where another with the same results file was interrupted. Tests that compare source text are
left out: those that fail when each module only has one more comment, and those of the broken builds.

This file is also the plugin of pytest that does its part of this.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("toolkit/container", "toolkit/remote", "toolkit/api", "toolkit/cli", "toolkit/html")
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
FEW = 50  # tests that run in one process
NEAREST = 5  # files of tests that run before all
RUN_S = 900.0  # for one run of tests; a test that waits forever has noticed the change
FIRST_S = 3600.0  # for the run that records
ALL = "tests/unit"
# For the plugin: files with a test on each line, those that run (absent to record) and those that failed.
CHOSEN, FAILED = "MUTANTS_CHOSEN", "MUTANTS_FAILED"
CACHES: weakref.WeakSet[Any] = weakref.WeakSet()


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
    sys.path.insert(0, str(ROOT))
    from tests.unit.layers import ACTING

    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found += [ROOT / "toolkit" / f"{name.replace('.', '/')}.py" for name in sorted(ACTING)]
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


def entry_of(text: str, line: int) -> int:
    """Return the line of the first statement of the function that contains a line, 0 outside functions."""
    found = 0
    for node in ast.walk(ast.parse(text)):  # outer functions come before inner ones
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if body:
                start = min(
                    [body[0].lineno, *(word.lineno for word in getattr(body[0], "decorator_list", ()))]
                )
                found = start if start <= line <= (node.end_lineno or 0) else found
    return found


def imports() -> dict[str, set[str]]:
    """Return for every file of toolkit and tests the files that it names by imports or as programs."""
    files = {
        str(path.relative_to(ROOT)) for top in ("toolkit", "tests") for path in (ROOT / top).rglob("*.py")
    }
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
        # Programs are started, and imported in texts, by their dotted names.
        dotted = re.findall(r"\btoolkit\.container\.([\w.]+)|[\"']((?:\w+\.)?\w+)[\"']", text)
        paths |= {f"toolkit/container/{(one or two).replace('.', '/')}.py" for one, two in dotted}
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
    inside = path.startswith("toolkit/container/")

    def rank(name: str) -> tuple[int, int, int, str]:
        base = Path(name).name
        named_so = inside and name.startswith("tests/unit/container/")
        order = 0 if base == twin else 1 if inside and base == "test_schedules.py" else 3 - named_so
        return order, distance[name], (ROOT / name).stat().st_size, name

    return sorted(tests, key=rank)


def mutants_entered(prefix: str) -> None:
    """Write the name of the test that runs into a file. Functions get this for the run that records."""
    import os
    import posix  # tests replace functions of os
    import zlib

    test = os.environ.get("PYTEST_CURRENT_TEST", "").encode()
    try:
        file = posix.open(f"{prefix}-{zlib.crc32(test)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    posix.write(file, test)
    posix.close(file)


def pytest_configure() -> None:
    """In the run that records, keep a list of the project's caches."""
    if CHOSEN in os.environ:
        return
    real: Any = functools.lru_cache

    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
        if callable(maxsize):
            return lru_cache()(maxsize)

        def decorate(function: Any) -> Any:
            cached = real(maxsize, typed)(function)
            if str(getattr(function, "__module__", "")).startswith(("toolkit.", "tests.")):
                CACHES.add(cached)
            return cached

        return decorate

    vars(functools).update(lru_cache=lru_cache, cache=lru_cache(None))


def pytest_runtest_setup() -> None:
    """Empty the caches: no test's result hides from the next that it needs a function."""
    for cached in list(CACHES):
        cached.cache_clear()


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Run the chosen tests alone."""
    if path := os.environ.get(CHOSEN):
        chosen = set(Path(path).read_text().splitlines())
        without = [each for each in items if not {each.nodeid, _file(each.nodeid), ALL} & chosen]
        config.hook.pytest_deselected(items=without)
        items[:] = [each for each in items if each not in without]


def pytest_runtest_logreport(report: Any) -> None:
    """Name the tests that failed, in full."""
    if report.failed:
        with Path(os.environ[FAILED]).open("a") as file:
            file.write(f"{report.nodeid}\n")


class Copy:
    """A copy of the tree in which one change at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.entered = folder / "tree", folder / "entered"
        self.chosen, self.failed = folder / "chosen", folder / "failed"
        self.entered.mkdir()
        self.left_out: list[str] = []
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, names.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)

    def prepare(self, chosen: Sequence[Mutant]) -> dict[str, set[str]]:
        """Return the tests, or files of tests, that can notice each change.

        Leave out the tests that compare source text from then on.
        """
        paths = [self.folder / path.relative_to(ROOT) for path in acting()]
        right = {path: path.read_bytes() for path in paths}
        entries = {each.name: entry_of((self.folder / each.path).read_text(), each.line) for each in chosen}
        try:
            for path, text in right.items():
                path.write_bytes(text + b"# One more line.\n")
                self._record(path, chosen, entries)
            failed = self.failures(None, limit=FIRST_S)
            for path, text in right.items():
                path.write_bytes(text + b"# One more line.\n")
            if strange := [each for each in failed if "::" not in each]:
                sys.exit(f"mutants: the unit tests cannot run without a change: {strange[0]}")
            self.left_out = self.failures(failed) if failed else []
        finally:
            for path, text in right.items():
                path.write_bytes(text)
        for test in self.left_out:
            print(f"left out, as it compares source text: {test}", flush=True)
        found = {}
        for index, each in enumerate(chosen):
            names = {path.read_text() for path in self.entered.glob(f"{index}-*")}
            known = entries[each.name] and all((self.folder / _file(name)).is_file() for name in names)
            # Results of a test's setup can be shared by its file. A test that failed can have entered more.
            tests = {_file(name) if " (setup" in name else name.rpartition(" (")[0] for name in names}
            found[each.name] = tests.union(failed) if known else {ALL}
        return found

    def _record(self, path: Path, chosen: Sequence[Mutant], entries: dict[str, int]) -> None:
        """Let the functions of the changes of a file record the tests that enter them."""
        lines = path.read_text().splitlines(keepends=True)
        here = [index for index, each in enumerate(chosen) if self.folder / each.path == path]
        for line, index in sorted(((entries[chosen[index].name], index) for index in here), reverse=True):
            if line:
                indent = lines[line - 1][: -len(lines[line - 1].lstrip())]
                lines.insert(line - 1, f"{indent}mutants_entered({f'{self.entered}/{index}'!r})\n")
        if not here:
            return
        first = next(
            node.lineno
            for node in ast.parse("".join(lines)).body
            if not isinstance(node, ast.Expr) and getattr(node, "module", "") != "__future__"
        )
        lines.insert(first - 1, inspect.getsource(mutants_entered))
        path.write_text("".join(lines))

    def failures(self, tests: Collection[str] | None, *words: str, limit: float = RUN_S) -> list[str]:
        """Run tests or files of tests, in this order; return those that failed, or why the run did not end.

        Args:
            tests: None runs all and records.
        """
        few = tests is not None and len(tests) <= FEW and all("::" in test for test in tests)
        argv = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
        argv += ["-p", "no:randomly", "-p", "mutants", "-k", "not broken_build"]
        argv += [] if few else ["-n", str(2 * (os.cpu_count() or 1)), "--dist", "worksteal"]
        argv += [f"--deselect={test}" for test in self.left_out]
        self.failed.write_text("")
        env = {**os.environ, "PYTHONPATH": f"{self.folder}:{self.folder}/scripts", FAILED: str(self.failed)}
        if tests is not None:
            self.chosen.write_text("\n".join(tests))
            env[CHOSEN] = str(self.chosen)
        with subprocess.Popen(
            [*argv, *words, *dict.fromkeys(map(_file, tests or [ALL]))],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return [f"no end within {limit:.0f} s"]
        # A process of tests names a failed test too. 5 means that no test was chosen.
        found = list(dict.fromkeys(self.failed.read_text().splitlines()))
        return found or ([] if process.returncode in (0, 5) else [f"pytest exited with {process.returncode}"])

    def noticed_by(self, mutant: Mutant, *groups: Sequence[str]) -> str:
        """Return the test that fails with a change, empty when none does."""
        path = self.folder / mutant.path
        right = path.read_bytes()
        path.write_bytes(right[: mutant.start] + mutant.new.encode() + right[mutant.end :])
        try:
            # Again, as a busy machine may fail a test too.
            for tests in (group for group in groups if group):
                for _ in range(2):
                    failed = self.failures(tests, "-x")
                    named = [each for each in failed if "::" in each]
                    again = self.failures(named or tests) if failed else []
                    if again and (not named or any("::" in each for each in again)):
                        return failed[0]
                    if not failed:
                        break
            return ""
        finally:
            path.write_bytes(right)


def _file(test: str) -> str:
    return test.partition("::")[0]


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
        left = [each for each in chosen if each.name not in done]
        entered = copy.prepare(left) if left else {}
        for each in left:
            near, can = nearest_tests(each.path, named), entered[each.name]
            place = {name: number for number, name in enumerate(near)}
            tests = sorted(can, key=lambda test: (place.get(_file(test), len(place)), test))
            by = done[each.name] = copy.noticed_by(each, near[:NEAREST] if ALL in can else [], tests)
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
