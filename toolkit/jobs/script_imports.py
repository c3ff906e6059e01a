"""Imports of a Python script, the launcher that they select, and the options that the script mentions."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

# The first module of this list that a script imports decides. A library comes before those that it uses.
_EXPECTED = (
    ("ray", "ray"),
    ("horovod", "horovodrun"),
    ("accelerate", "accelerate"),
    ("deepspeed", "deepspeed"),
    # Before torch: torch.distributed also works under mpirun, but MPI has one rank only under torchrun.
    ("mpi4py", "mpirun"),
    ("lightning", "torchrun"),
    ("pytorch_lightning", "torchrun"),
    ("transformers", "torchrun"),
    # Not torch.distributed alone: `import torch` is enough to call torch.distributed.init_process_group().
    ("torch", "torchrun"),
)
# For everything else: each rank gets RANK, WORLD_SIZE and the other variables, and no launcher around it.
FALLBACK = "python"

# For a source that this Python's grammar rejects.
_IMPORT = re.compile(
    r"^[ \t]*(?:import[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)|from[ \t]+([\w.]+)[ \t]+import)", re.M
)
_LOCAL_RANK = re.compile(r"""["'](--local[-_]rank)["'=]""")
# Functions that declare an option: add_argument, add_option, click.option, typer.Option and similar names;
# add is ConfigArgParse's short name.
_DECLARES = re.compile(r"arg|option|^add$", re.IGNORECASE)


@dataclass(frozen=True)
class Choice:
    """A launcher and why it was chosen.

    Args:
        module: the imported module that decided; empty if none did.
    """

    launcher: str
    module: str = ""


def imports_of(source: str) -> frozenset[str]:
    """Return the dotted names that a Python source imports, relative ones with their dots in front.

    Of ``from a.b import c`` both ``a.b`` and ``a.b.c``, because ``c`` can be a module.
    """
    tree = _parsed(source)
    if tree is None:
        return frozenset(_by_lines(source))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            dot = "" if base.endswith(".") else "."
            found.add(base)
            found.update(f"{base}{dot}{alias.name}" for alias in node.names if alias.name != "*")
    return frozenset(found)


def _parsed(source: str) -> ast.Module | None:
    """Return the syntax tree of a Python source, None if this Python's grammar rejects it."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _by_lines(source: str) -> Iterator[str]:
    for several, one in _IMPORT.findall(source):
        yield from (name.strip() for name in several.split(",") if name.strip())
        if one:
            yield one


def files_of(name: str, folder: str) -> tuple[str, ...]:
    """Return the files next to a script that an imported name can refer to, as paths below the same root.

    Args:
        name: as ``imports_of`` gives it.
        folder: the importing file's own, ``""`` for the root.
    """
    level = len(name) - len(name.lstrip("."))
    parts = [part for part in name.split(".") if part]
    where = [part for part in folder.split("/") if part]
    if level > 1:
        where = where[: -(level - 1)]
    found = []
    for length in range(len(parts), 0, -1):
        base = "/".join((*where, *parts[:length]))
        found += [f"{base}.py", f"{base}/__init__.py"]
    return tuple(found)


def launcher_for(names: Collection[str]) -> Choice:
    """Return the launcher for a script that imports these."""
    for module, launcher in _EXPECTED:
        if any(name == module or name.startswith(f"{module}.") for name in names):
            return Choice(launcher, module)
    return Choice(FALLBACK)


def local_rank_option(sources: Iterable[str]) -> str:
    """Return the option for the local rank that scripts declare, empty for none.

    DeepSpeed's launcher passes ``--local_rank``, as did torch.distributed.launch before torch 2.0, which now
    passes ``--local-rank``. A parser that declares only one of the two rejects the other.
    """
    found = {option for source in sources for option in _declared(source)}
    return max(found, default="")  # an underscore sorts after a hyphen


def _declared(source: str) -> set[str]:
    """Return the options for the local rank that a source declares, and does not only mention."""
    mentioned = set(_LOCAL_RANK.findall(source))
    tree = _parsed(source) if mentioned else None
    if tree is None:
        return mentioned
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    declaring = [call for call in calls if _DECLARES.search(_name_of(call.func))]
    given: list[ast.AST] = [word for call in declaring for word in call.args]
    # A keyword can be a list, such as aliases=["--local_rank"].
    given += [word for call in declaring for each in call.keywords for word in ast.walk(each.value)]
    return mentioned & {word.value for word in given if isinstance(word, ast.Constant)}


def _name_of(function: ast.expr) -> str:
    """Return the last name of what is called, empty if there is none."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return str(name)


def mentions(source: str, option: str) -> bool:
    """Return True if a script appears to read an option such as ``--np``.

    A dataclass field or a parameter of that name counts, as several parsers make options from these; an
    alias such as ``numpy as np`` does not.
    """
    name = re.escape(option.lstrip("-"))
    if not option.startswith("--"):
        return bool(re.search(rf"(?<![\w-])-{name}(?![\w-])", source))
    plain = name.replace(r"\-", "_")
    return bool(
        re.search(
            rf"""(?<![\w-])--{name}(?![\w-])|["'](?:{name}|{plain})["']|\b{plain}\s*(?::|=(?!=))""", source
        )
    )
