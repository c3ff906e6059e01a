"""The page about the Python API, from the signatures and docstrings of what it names; for reference.py."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from toolkit.api.bench import BenchPart
from toolkit.api.cluster import Cluster
from toolkit.api.data import DataPart
from toolkit.api.image import ImagePart
from toolkit.api.job import ClusterJob
from toolkit.api.keys import KeysPart
from toolkit.api.network import NetworkPart
from toolkit.api.prepared import Prepared
from toolkit.api.services import ServicesPart

# Name in user code -> the object.
PARTS: dict[str, type] = {
    "cluster": Cluster,
    "cluster.keys": KeysPart,
    "cluster.services": ServicesPart,
    "cluster.image": ImagePart,
    "cluster.data": DataPart,
    "cluster.network": NetworkPart,
    "cluster.bench": BenchPart,
    "job": ClusterJob,
    "prepared": Prepared,
}


def api_page(made: str) -> str:
    """Return the page; ``made`` says that it was made."""
    lines = ["# Python API", "", made, ""]
    lines += ["[Use toolkit from Python](../how-to/python-api.md) shows examples.", ""]
    for name, kind in PARTS.items():
        lines += [f"## `{name}`", ""]
        if kind in (Cluster, ClusterJob):
            base = kind.__mro__[-2]
            lines += _entry(kind.__name__, vars(base)["__init__"], base.__doc__ or "")
        for method, function in _methods(kind):
            lines += _entry(f"{name}.{method}", function, function.__doc__ or "")
    return "\n".join(lines).rstrip() + "\n"


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for one in kind.__mro__[:-1]:
        for name, value in vars(one).items():
            if not name.startswith("_") and inspect.isfunction(value):
                yield name, inspect.unwrap(value)


def _signature(function: Any) -> tuple[list[str], str]:
    """Parameters in the form of a call, types as written, and the returned type."""
    signature = inspect.signature(function)
    rows = []
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        star = "*" if one.kind is one.VAR_POSITIONAL else ""
        default = (
            "" if one.default is one.empty else f" = {'...' if callable(one.default) else repr(one.default)}"
        )
        rows.append(f"{star}{one.name}: {one.annotation}{default}")
    return rows, "" if function.__name__ == "__init__" else f" -> {signature.return_annotation}"


def _entry(name: str, function: Any, doc: str) -> list[str]:
    """A signature, and a docstring whose Args and Raises become lists."""
    lines = ["```python", _call(name, *_signature(function)), "```", ""]
    for part in re.split(r"\n\s*\n", inspect.cleandoc(doc).replace("``", "`")):
        title, _, rest = part.partition("\n")
        if title in ("Args:", "Raises:"):
            rows = re.split(r"\n(?=    \S)", "\n" + rest.rstrip())
            pairs = [" ".join(row.split()).partition(": ") for row in rows if row.strip()]
            verb = "raises " if title == "Raises:" else ""
            lines += [f"- {verb}`{name}`: {text}" for name, _, text in pairs]
        else:
            lines += [" ".join(part.split())]
        lines.append("")
    return lines


def _call(name: str, rows: list[str], back: str) -> str:
    """A call, a parameter a line where it is long."""
    whole = f"{name}({', '.join(rows)}){back}"
    if len(whole) <= 90:
        return whole
    return f"{name}(\n" + "".join(f"    {row},\n" for row in rows) + f"){back}"
