"""The folder and import rules of docs/internals/architecture.md, as functions of the modules' texts."""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import toolkit

PACKAGE = Path(toolkit.__file__).parent
# A folder imports only from folders to its left; `lab` does not import `api`.
ORDER = (
    "errors", "protocol", "core", "html", "remote", "plan", "hostsfile", "network", "env_lint", "launchers",
    "cluster", "transfer", "image", "data", "jobs", "services", "lifecycle", "checks", "cleanup", "diagnose",
    "predict", "bench", "monitor", "export", "init", "api", "lab", "cli",
)  # fmt: skip
# Imports against the order that are left: a module and what it imports. The list may only become shorter.
AGAINST: frozenset[tuple[str, str]] = frozenset()
# Modules that import each other in a circle, likewise.
CIRCLES: tuple[frozenset[str], ...] = ()
# The most modules of a folder; `cli` has one for each verb.
MOST_MODULES = 20
UNCOUNTED = ("toolkit.cli",)
# Folders in which every module may act: talk to hosts, read files and clocks, start threads.
ACTING_FOLDERS = ("remote", "api", "lab", "cli")
# Pure modules that read files of the package: templates, and tables of variables.
READS_PACKAGE = ("core.host_programs", "core.templates", "env_lint.variables")
# The modules of other folders that act, or import one that does. All others are pure: they decide.
_ACTING = {
    "bench": "network scaling smoke step_time tune",
    "checks": "preflight run",
    "cleanup": "gc",
    "cluster": "connect container_probe gauges image_probe session",
    "core": "files local_writer runner",
    "data": "data_sets send source",
    "diagnose": "why",
    "export": "prepare verify",
    "hostsfile": "load",
    "image": ("archive build export_reader layer_reader list_and_prune make_build send source"),
    "init": "probe_hosts ssh_aliases trust",
    "jobs": ("code control exec_mode executors get id_cache launcher logs make_job records request"),
    "lifecycle": "port_retry",
    "monitor": "report",
    "plan": "context execute executors fetch_files precheck",
    "protocol": "engine_socket",
    "services": "control forward",
    "transfer": "feeder host keys relay tee_reader",
}
ACTING = frozenset(f"{folder}.{name}" for folder, names in _ACTING.items() for name in names.split())
# What a pure module may import besides the toolkit.
_PURE_STDLIB = (
    "__future__ ast base64 codecs collections collections.abc contextlib dataclasses datetime difflib "
    "enum fnmatch functools hashlib ipaddress itertools json math posixpath re shlex stat "
    "statistics string struct types typing zlib"
)
PURE_STDLIB = frozenset(_PURE_STDLIB.split())
PURE_THIRD_PARTY = {
    "core": {"jinja2"},
    "hostsfile": {"pydantic", "pydantic_core", "yaml"},
    "init": {"yaml"},
    "export": {"yaml"},
    "diagnose": {"yaml"},
    "cluster": {"yaml"},
}
# Class names that several modules define. The list may only become shorter.
_SHARED_NAMES = (
    "Cause Choice Connection Entry Evidence Fetch Folder Found GpuUse HostsFile Kept "
    "Launch Line Link Member Place Point Record Room Setting Table Target Trial Verdict Way"
)
SHARED_NAMES = frozenset(_SHARED_NAMES.split())
# Modules that read words of other programs, where no status or field has the fact. The list may only become
# shorter; what our own programs and errors mean has a field, an enum or an exit status.
READS_WORDS = {
    "checks.image": "ways to fail that a step declares: the engine's words about GPUs",
    "cluster.gpus": "nvidia-smi's words, and those that the question about it prints",
    "core.causes": "words of the engines and of the kernel, for all other modules",
    "core.runner": "no words: the mark that a command has begun",
    "export.verify": "Slurm's words, and the log in which alone it keeps what ranks have printed",
    "image.layers": "docker's words about a layer that it misses",
    "image.make_build": "nvidia-smi's list of GPUs",
    "lab.build": "docker's words about a subnet that is taken",
    "lab.status": "docker's name of its storage driver",
    "plan.executors": "ways to fail that a step declares: sshd's words about a port",
    "remote.ssh_errors": "paramiko's words about a handshake",
}
# Imports inside functions that stay there, each with the reason: module and what it imports. All others are
# at the top of the file.
LATE = {
    ("toolkit", "toolkit.api.cluster"): "importing any module of the package would import the whole API",
    ("__main__", "toolkit.cli.app"): "Ctrl-C during this import is reported without a traceback",
    ("__main__", "toolkit.cli.tracebacks"): "Ctrl-C during this import is reported without a traceback",
    ("api.executors", "toolkit.data.send"): "only a plan with data needs it",
    ("api.executors", "toolkit.image.send"): "Docker SDK; only a plan that sends an image needs it",
    ("api.executors", "toolkit.jobs.executors"): "only a plan that starts a job needs it",
    ("api.executors", "toolkit.plan.fetch_files"): "only `down` needs it",
    ("cli.common", "toolkit.api.connection"): "the output functions beside it serve `--help` too",
    ("cli.common", "toolkit.hostsfile.load"): "PyYAML; the output functions beside it serve `--help` too",
    ("cli.complete", "toolkit.checks.registry"): "all verbs have completers, only TAB calls them",
    ("cli.complete", "toolkit.image.build_plan"): "all verbs have completers, only TAB calls them",
    ("cli.app", "toolkit.cli.failure"): "only an error needs it",
    ("cli.app", "toolkit.cli.explain"): "PyYAML; only `--explain` needs it",
    ("cli.lazy", "toolkit.cli.help"): "only --help needs it",
    (
        "cli.complete",
        "toolkit.hostsfile.yaml",
    ): "PyYAML; all verbs have completers, only TAB calls them",
    ("cli.failure", "toolkit.diagnose.messages"): "PyYAML, which an interrupted import can make unusable",
    ("cli.init", "toolkit.remote.engine"): "Docker SDK; only the hint after hosts were tried asks the engine",
    ("cli.predict", "toolkit.bench.step_time"): "only --probe runs a job",
    ("cli.progress", "rich.console"): "only bars on a terminal need it",
    ("cli.progress", "rich.progress"): "only bars on a terminal need it",
    ("cli.version", "toolkit.remote.engine"): "Docker SDK; --no-engine does without it",
    ("remote.local_image", "toolkit.remote.engine"): "Docker SDK; the engine's socket is usually enough",
    (
        "cluster.connect",
        "toolkit.remote.ssh",
    ): "paramiko and fabric; help, TAB and refused input do without",
    ("core.templates", "jinja2"): "only renderings need it; most verbs look at hosts",
    ("export.verify", "jsonschema"): "only --check against a definition needs it",
    ("hostsfile.parse", "toolkit.hostsfile.models"): "pydantic; only a hosts file that is read needs it",
}
# Modules that import others by name: the table of verbs alone.
BY_NAME = frozenset(("cli.lazy",))
# Folders that are sent to hosts, and the folders from which each may import besides itself.
SENT = {"protocol": (), "launchers": ("protocol",), "container": ("protocol", "launchers")}
# Programs in containers that try the image's own libraries; in a function, so that the rest starts without.
MEASURED = {
    "toolkit.container.job.accelerate": {"accelerate"},
    "toolkit.container.bench.allreduce": {"torch"},
    "toolkit.container.bench.algorithms": {"mpi4py"},
    "toolkit.container.bench.network": {"mpi4py", "numpy", "torch"},
    "toolkit.container.job.ray": {"ray"},
    "toolkit.container.bench.step_time": {"torch"},
}
# Names of variables, and more of attributes, whose values are text for people or a program's output.
_TEXT = "detail error fault fix message reason said stderr trouble why"
_TEXT_NAMES = frozenset(_TEXT.split())
_TEXT_ATTRIBUTES = _TEXT_NAMES | {"errors", "note", "output", "stdout", "what"}
_SAME_TEXT = frozenset(("casefold", "decode", "lower", "lstrip", "rstrip", "strip", "upper"))
_SEARCHES = frozenset(["endswith", "find", "index", "startswith"])
_PATTERNS = frozenset(["findall", "finditer", "fullmatch", "match", "search"])
# Imported in a function of a program in containers: only a restart needs the launchers.
LATE_IN_CONTAINERS = {"toolkit.container.job.restarts": "toolkit.launchers"}
_IMPURE_CALLS = frozenset(("open", "print", "input", "eval", "exec", "hash", "__import__"))
_CLOCKS = frozenset(("now", "utcnow", "today"))


@functools.cache
def parsed(text: str) -> ast.Module:
    """Return the tree of a module's text, made once for all rules."""
    return ast.parse(text)


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return a tree and all that it contains, listed once for all rules."""
    return tuple(ast.walk(tree))


def name_of(path: Path) -> str:
    """Return the name of the module in a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def texts() -> dict[str, str]:
    """Return the text of every module of the package by its name."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if "_data" not in path.parts)
    return {name_of(path): path.read_text(encoding="utf-8") for path in paths}


def folder_of(module: str) -> str:
    """Return the folder of ``toolkit.…`` in ``ORDER``, ``container``, or an empty text."""
    top = module.split(".")[1] if "." in module else ""
    top = "cli" if top == "__main__" else top
    return top if top in (*ORDER, "container") else ""


def violations(module: str, text: str, acting: Iterable[str] = ACTING) -> list[str]:
    """Return every way in which one module breaks a rule that can be judged by its text alone.

    Args:
        acting: the modules that may act, without ``toolkit.``.
    """
    tree = parsed(text)
    if module == "toolkit":
        allowed = {"__future__", "toolkit.api.cluster"}  # the last on access to Cluster
        return [f"imports {name}" for name, _ in _imports(tree) if name not in allowed]
    folder = folder_of(module)
    if not folder:
        return [f"{module} is in no folder of ORDER: give it one here and in docs/internals/architecture.md"]
    if folder == "container":
        return _container(module, tree)
    found = []
    found += [f"imports {name} inside a function" for _, name in late({module: text}) - LATE.keys()]
    if _short(module) not in BY_NAME and any(_calls(tree, "import_module")):
        found.append("imports by name")
    for target in targets(module, tree):
        if not target:
            found.append("imports relatively, which hides the folder")
        elif not _may_see(folder, folder_of(f"toolkit.{target}")) and (_short(module), target) not in AGAINST:
            found.append(f"{folder} imports {target}")
    if folder not in ACTING_FOLDERS and _short(module) not in acting:
        found += impure(module, tree)
        found += [
            f"is pure and imports {one}, which acts" for one in _acting(module, tree, frozenset(acting))
        ]
    return found


def _short(module: str) -> str:
    return module.removeprefix("toolkit.")


def _imports(tree: ast.AST, typed: bool = True) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each imported module of the file with the names taken from it, also in functions.

    Args:
        typed: those that only a type checker imports, too.
    """
    left_out = set() if typed else _only_typed(tree)
    for node in nodes(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "" if node.level else node.module or ""
            yield name, tuple(alias.name for alias in node.names)


def _only_typed(tree: ast.AST) -> set[int]:
    tests = (node for node in nodes(tree) if isinstance(node, ast.If))
    return {
        id(inner)
        for node in tests
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for one in node.body
        for inner in nodes(one)
    }


_MODULES = frozenset(_short(name_of(path)) for path in PACKAGE.rglob("*.py"))


def targets(module: str, tree: ast.AST, typed: bool = True) -> Iterator[str]:
    """Yield the modules that one imports, without ``toolkit.``; empty for a relative import."""
    for name, names in _imports(tree, typed):
        if not name:
            yield ""
        elif name == "toolkit":
            # `from toolkit import x` names a folder as much as `import toolkit.x` does.
            yield from (one for one in names if one not in ("__version__",))
        elif name.startswith("toolkit."):
            inner = [one for one in names if f"{_short(name)}.{one}" in _MODULES]
            yield from (f"{_short(name)}.{one}" for one in inner)
            if len(inner) < len(names) or not names:
                yield _short(name)


def _may_see(folder: str, other: str) -> bool:
    if other == folder:
        return True
    if folder in SENT:
        return other in SENT[folder]
    if (folder, other) == ("lab", "api"):  # neither is above the other
        return False
    return other in ORDER and ORDER.index(other) < ORDER.index(folder)


def impure(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield what a pure module must not do, and this one does."""
    folder, reads = folder_of(module), _short(module) in READS_PACKAGE
    for name, names in _imports(tree, typed=False):
        top = name.split(".")[0]
        if top in ("toolkit", "") or name in PURE_STDLIB or top in PURE_THIRD_PARTY.get(folder, ()):
            continue
        if name == "pathlib" and names and (reads or set(names) <= {"PurePosixPath"}):
            continue
        yield f"is pure and imports {name}"
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in _IMPURE_CALLS:
                yield f"is pure and calls {called.id}()"
        if isinstance(node, ast.Attribute) and node.attr in _CLOCKS:
            yield f"is pure and reads the clock: .{node.attr}"


def _acting(module: str, tree: ast.AST, acting: frozenset[str]) -> Iterator[str]:
    for target in targets(module, tree, typed=False):
        if target in acting or folder_of(f"toolkit.{target}") in ACTING_FOLDERS:
            yield target


def _container(module: str, tree: ast.Module) -> list[str]:
    found = []
    at_top = {node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))}
    typed = _only_typed(tree)
    for node in nodes(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for name, _ in _imports(ast.Module([node], [])):
            top = name.split(".")[0]
            late = name.startswith(LATE_IN_CONTAINERS.get(module, "-"))
            if top == "toolkit":
                right = folder_of(name) in ("container", *SENT["container"])
                right = right and (node in at_top or id(node) in typed) != late
            else:
                right = top in sys.stdlib_module_names
                right = right or (top in MEASURED.get(module, ()) and node not in at_top)
            if not right:
                found.append(f"container imports {name or 'relatively'}")
    return found


def decisions_on_words(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each comparison of text for people with other text, by which code could decide."""
    for node in nodes(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for operator, one, other in zip(node.ops, sides, sides[1:], strict=False):
                if isinstance(operator, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) and (
                    (_for_people(one) and _is_text(other)) or (_for_people(other) and _is_text(one))
                ):
                    yield node
        elif isinstance(node, ast.Match) and _for_people(node.subject):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            searched = node.func.attr in _SEARCHES and _for_people(node.func.value)
            if searched or (node.func.attr in _PATTERNS and any(map(_for_people, node.args))):
                yield node


def _for_people(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in _SAME_TEXT:
            return _for_people(called.value)
        return isinstance(called, ast.Name) and called.id == "str" and any(map(_for_people, node.args))
    if isinstance(node, ast.Subscript):
        return _for_people(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr in _TEXT_ATTRIBUTES
    return isinstance(node, ast.Name) and node.id in _TEXT_NAMES


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(map(_is_text, node.elts))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes)) and bool(node.value)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return (node.id if isinstance(node, ast.Name) else node.attr).isupper()
    return isinstance(node, ast.JoinedStr)


def reads_words(modules: Mapping[str, str]) -> set[str]:
    """Return the modules that decide on the words of text for people, or of another program's output."""
    return {_short(name) for name, text in modules.items() if any(decisions_on_words(parsed(text)))}


def against(modules: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the imports against the order of folders: module and target, without ``toolkit.``."""
    found = set()
    for module, text in modules.items():
        folder = folder_of(module)
        if folder and folder != "container" and module != "toolkit":
            for target in targets(module, parsed(text)):
                if target and not _may_see(folder, folder_of(f"toolkit.{target}")):
                    found.add((_short(module), target))
    return found


def late(modules: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the imports inside functions, programs in containers aside: module and what it imports."""
    found = set()
    for module, text in modules.items():
        if folder_of(module) == "container":
            continue
        for function in nodes(parsed(text)):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                found |= {(_short(module), name) for name, _ in _imports(function)}
    return found


def brought(module: str, modules: Mapping[str, str]) -> set[str]:
    """Return the third-party packages that importing a module imports, at the top of files only."""
    found: set[str] = set()
    seen, left = set(), [module]
    while left:
        name = left.pop()
        if name in seen or name not in modules:
            continue
        seen.add(name)
        top = _at_top(parsed(modules[name]))
        found |= {outside.split(".")[0] for outside, _ in _imports(top)}
        left += [f"toolkit.{target}" for target in targets(name, top)]
        left.append(name.rpartition(".")[0])  # the folder's __init__
    return found - {"toolkit", ""} - sys.stdlib_module_names


def _at_top(tree: ast.Module) -> ast.Module:
    """Return what runs when a module is imported, as far as that imports others."""

    def run(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
        for one in statements:
            if isinstance(one, (ast.Import, ast.ImportFrom)):
                yield one
            elif isinstance(one, ast.If) and not _only_typed(one):
                yield from run([*one.body, *one.orelse])

    return ast.Module(list(run(tree.body)), [])


def by_name(modules: Mapping[str, str]) -> set[str]:
    """Return the modules that import others by name."""
    return {_short(module) for module, text in modules.items() if any(_calls(parsed(text), "import_module"))}


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in nodes(tree):
        if isinstance(node, ast.Call) and name in (
            getattr(node.func, "id", ""),
            getattr(node.func, "attr", ""),
        ):
            yield node


def circles(modules: Mapping[str, str]) -> set[frozenset[str]]:
    """Return each set of modules that import each other in a circle (strongly connected components)."""
    graph = {
        _short(module): [one for one in targets(module, parsed(text), typed=False) if one in _MODULES]
        for module, text in modules.items()
        if folder_of(module)
    }
    # Modules that reach each other form one component.
    reached = {module: _reached(module, graph) for module in graph}
    components = {
        frozenset(other for other in reached[module] if module in reached.get(other, ())) for module in graph
    }
    return {component for component in components if len(component) > 1}


def _reached(start: str, graph: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for target in graph.get(left.pop(), ()):
            if target not in found:
                found.add(target)
                left.append(target)
    return found


def acting(modules: Mapping[str, str]) -> set[str]:
    """Return the modules outside of ``ACTING_FOLDERS`` that act, or import one that does."""
    found, imports = set(), {}
    for module, text in modules.items():
        folder = folder_of(module)
        if folder in ("", "container", *ACTING_FOLDERS):
            continue
        imports[_short(module)] = set(targets(module, parsed(text), typed=False))
        if any(impure(module, parsed(text))) or any(
            folder_of(f"toolkit.{target}") in ACTING_FOLDERS for target in imports[_short(module)]
        ):
            found.add(_short(module))
    while more := {module for module, seen in imports.items() if module not in found and seen & found}:
        found |= more
    return found


def crowded(modules: Iterable[str]) -> dict[str, int]:
    """Return the number of modules of each folder with more than ``MOST_MODULES``; subfolders count apart."""
    names = set(modules)
    folders = {name.rpartition(".")[0] for name in names}
    numbers = Counter(name.rpartition(".")[0] for name in names - folders)
    return {
        folder: number
        for folder, number in numbers.items()
        if number > MOST_MODULES and folder not in UNCOUNTED
    }


def shared_names(modules: Mapping[str, str]) -> set[str]:
    """Return the names of public classes that more than one module outside of ``container`` defines."""
    seen: dict[str, str] = {}
    found = set()
    for module, text in modules.items():
        if folder_of(module) in ("", "container"):
            continue
        for node in parsed(text).body:
            name = node.name if isinstance(node, ast.ClassDef) else "_"
            if not name.startswith("_") and seen.setdefault(name, module) != module:
                found.add(name)
    return found
