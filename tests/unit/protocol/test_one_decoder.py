"""JSON is read in one place: modules outside of toolkit/protocol load none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import toolkit

ROOT = Path(toolkit.__file__).parent
# Files of the user's own machine. What comes from a host or an image passes toolkit/protocol/decode.py.
LOCAL = {
    "cli/report.py": "a file that the user names with --scaling",
    "cli/scaling.py": "a file that the user names with --predicted",
    "jobs/code.py": "the cache of checksums that toolkit itself wrote",
    "data/source.py": "entries that toolkit itself listed a moment ago",
    "image/build_plan.py": "the report of pip on the user's machine",
    "lab/topology.py": "a label that toolkit lab itself set, in the local engine",
}


def loads(tree: ast.AST) -> Iterator[str]:
    """Yield each use of a loader of the json module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "json":
            if node.attr in ("loads", "load", "JSONDecoder", "decoder"):
                yield f"line {node.lineno}: json.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in ("json", "json.decoder"):
            yield f"line {node.lineno}: from {node.module} import"


def test_json_of_hosts_is_read_by_the_decoder_alone() -> None:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        # What does not contain the module's name need not be parsed.
        if name.startswith(("protocol/", "container/")) or "json" not in text:
            continue
        if uses := list(loads(ast.parse(text))):
            found[name] = uses
    assert {name: uses for name, uses in found.items() if name not in LOCAL} == {}
    assert set(LOCAL) <= set(found), "an entry that is no longer needed"


def test_the_check_sees_every_way_to_load() -> None:
    for text in ("json.loads(x)", "json.load(x)", "json.JSONDecoder()", "from json import loads as f"):
        assert list(loads(ast.parse(text))), text
    assert not list(loads(ast.parse("json.dumps(x); decode_json(int, x)")))
