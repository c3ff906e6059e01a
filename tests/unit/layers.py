"""The layer rule of docs/architecture.md as a function of one module's text."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import toolkit

ORDER = (
    "errors", "protocol", "core", "spec", "network", "launchers", "render", "plan", "checks", "show",
    "execute", "api", "lab", "cli",
)  # fmt: skip
PURE = ORDER[: ORDER.index("execute")]
# Modules at the top that belong to a layer of another name.
BELONGS = {
    "__main__": "cli",
    "executors": "execute",
    "show_data": "show",
    "show_gpus": "show",
    "show_init": "show",
    "show_jobs": "show",
    "show_network": "show",
    "show_prometheus": "show",
    "show_services": "show",
    "show_top": "show",
    "show_why": "show",
    **dict.fromkeys(("aliases", "batch", "meeting", "output", "rehearsal"), "api"),
    **dict.fromkeys(("bench", "check", "datasets", "explore", "gc", "get", "images", "inputs"), "api"),
    **dict.fromkeys(
        ("following", "forwarding", "gauges", "launching", "part_logs", "parts", "scaling", "services"), "api"
    ),
    **dict.fromkeys(
        (
            "connected",
            "jobs",
            "logs",
            "looking",
            "making",
            "meanwhile",
            "preflight",
            "race",
            "records",
            "request",
        ),
        "api",
    ),
    **dict.fromkeys(
        (
            "cluster",
            "cluster_connection",
            "cluster_elsewhere",
            "cluster_job",
            "cluster_parts",
            "cluster_runs",
            "prediction",
            "reports",
            "stopwatch",
        ),
        "api",
    ),
    **dict.fromkeys(("smoke", "steptime", "trust", "tune", "why"), "api"),
}

# What a pure module may import besides the toolkit: whoever needs more shows here that it is pure too.
PURE_STDLIB = frozenset(
    (
        *(
            "__future__",
            "ast",
            "base64",
            "codecs",
            "collections",
            "collections.abc",
            "contextlib",
            "dataclasses",
            "datetime",
            "difflib",
            "enum",
        ),
        *("functools", "hashlib", "html", "ipaddress", "itertools", "json", "math", "posixpath", "re"),
        *("fnmatch", "shlex", "stat", "statistics", "string", "struct", "types", "typing", "zlib"),
    )
)
PURE_THIRD_PARTY = {"spec": {"pydantic", "yaml"}, "render": {"jinja2", "jsonschema", "yaml"}}
# The pure modules that read files, the package's own: templates, and tables of variables.
READS_PACKAGE = ("toolkit.render.templates", "toolkit.network.variables")
# Modules of pure layers that act all the same. The writer of untrusted files is one place for effects,
# executors, api and cli; it sees nothing but names and values of `core`.
ACTS = ("toolkit.core.local_writer",)
# Programs inside that try the image's own libraries; inside a function, so that the rest starts without.
MEASURED = {
    "toolkit.inside.accelerated": {"accelerate"},
    "toolkit.inside.allreduce": {"torch"},
    "toolkit.inside.bench_algorithms": {"mpi4py"},
    "toolkit.inside.bench_network": {"mpi4py", "numpy", "torch"},
    "toolkit.inside.rayed": {"ray"},
    "toolkit.inside.steptime": {"torch"},
}
# `up` brings the launchers along (toolkit.inputs.inside_programs); only a job that starts again needs them.
BROUGHT = {"toolkit.inside.restarts": "toolkit.launchers"}
_IMPURE_CALLS = frozenset(("open", "print", "input", "eval", "exec", "hash", "__import__"))
_CLOCKS = frozenset(("now", "utcnow", "today"))
# Programs that measure PyTorch itself import it, though not before they run.
_INSIDE = Path(toolkit.__file__).with_name("inside")


def layer_of(module: str) -> str:
    """Return the layer of ``toolkit.…``, ``effects``, ``inside``, or an empty text when it has none."""
    top = module.split(".")[1] if "." in module else ""
    layer = BELONGS.get(top, top)
    return layer if layer in (*ORDER, "effects", "inside") else ""


def violations(module: str, text: str) -> list[str]:
    """Return every way in which a module's text breaks the rule; empty when it keeps it."""
    if module == "toolkit":
        allowed = {"__future__", "toolkit.cluster"}  # the last when somebody asks for Cluster
        return [f"imports {name}" for name, _ in _imports(ast.parse(text)) if name not in allowed]
    layer, tree = layer_of(module), ast.parse(text)
    if not layer:
        return [f"{module} has no layer: give it one here and in docs/architecture.md"]
    if layer == "inside":
        return _inside(module, tree)
    found = [
        fault
        for name, names in _imports(tree)
        for fault in (_of_ours(layer, name, names) if name.split(".")[0] in ("toolkit", "") else ())
    ]
    if layer in PURE and module not in ACTS:
        found += _impure(module, layer, tree)
    return found


def _imports(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each imported module with the names taken from it, wherever in the text it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "" if node.level else node.module or ""
            yield name, tuple(alias.name for alias in node.names)


def _of_ours(layer: str, name: str, names: tuple[str, ...]) -> Iterator[str]:
    if not name:
        yield "imports relatively, which hides the layer"
        return
    # `from toolkit import x` names a layer as much as `import toolkit.x` does.
    for target in [f"toolkit.{n}" for n in names] if name == "toolkit" else [name]:
        if target in ("toolkit", "toolkit.__version__"):
            continue
        if not _may_see(layer, layer_of(target)):
            yield f"{layer} imports {target}"


def _may_see(layer: str, other: str) -> bool:
    if other == layer:
        return True
    if layer == "effects":
        return other in ("errors", "protocol", "core")
    if other == "effects":
        return ORDER.index(layer) >= ORDER.index("execute")
    return other in ORDER and ORDER.index(other) < ORDER.index(layer)


def _impure(module: str, layer: str, tree: ast.AST) -> Iterator[str]:
    reads = module in READS_PACKAGE
    for name, names in _imports(tree):
        top = name.split(".")[0]
        if top in ("toolkit", "") or name in PURE_STDLIB or top in PURE_THIRD_PARTY.get(layer, ()):
            continue
        if name == "pathlib" and names and (reads or set(names) <= {"PurePosixPath"}):
            continue
        yield f"{layer} is pure and imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in _IMPURE_CALLS:
                yield f"{layer} is pure and calls {called.id}()"
        if isinstance(node, ast.Attribute) and node.attr in _CLOCKS:
            yield f"{layer} is pure and reads the clock: .{node.attr}"


def _inside(module: str, tree: ast.Module) -> list[str]:
    # These programs are uploaded alone: they see each other by their bare names, and nothing else.
    siblings = {path.stem for path in _INSIDE.glob("*.py")}
    found = []
    at_top = {node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for name, _ in _imports(ast.Module([node], [])):
            top = name.split(".")[0]
            measured = top in MEASURED.get(module, ()) and node not in at_top
            brought = name.startswith(BROUGHT.get(module, "-")) and node not in at_top
            if top not in sys.stdlib_module_names and top not in siblings and not measured and not brought:
                found.append(f"inside imports {name or 'relatively'}")
    return found
