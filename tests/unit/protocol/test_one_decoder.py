"""One module decodes what comes from hosts, and one writes it to files."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


# What comes from a host, an image or an archive is written by toolkit/core/local_writer.py alone.
WRITES = {
    "core/local_writer.py": "the writer of what hosts send",
    "core/files.py": "a file that the user names, or a page of a job that replaces no link",
    "jobs/code.py": "the cache of checksums",
    "image/build.py": "the build context",
    "remote/local_image.py": "ids of images that toolkit built here",
}
ARCHIVES = {
    "image/export_reader.py": "headers with limits; nothing gets a name of the archive",
    "image/build.py": "whether a wheel of the user's machine is complete",
    "core/files.py": "an archive that toolkit writes",
}
_WRITERS = frozenset((
    *("write_text", "write_bytes", "symlink_to", "hardlink_to", "os.symlink", "os.link", "rename", "mkstemp"),
    *("NamedTemporaryFile", "copyfile", "copy2", "copytree", "move", "O_CREAT"),
))  # fmt: skip
_READERS = frozenset(("extract", "extractall", "extractfile", "unpack_archive", "TarFile", "ZipFile"))


def writes(tree: ast.AST) -> Iterator[str]:
    """Yield each call that creates or changes a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _WRITERS.isdisjoint((node.attr, ast.unparse(node))):
            yield f"line {node.lineno}: {node.attr}"
        elif isinstance(node, ast.Call) and "open" in (name := ast.unparse(node.func)).split("."):
            words = [*node.args, *(word.value for word in node.keywords)]
            modes = [word.value for word in words if isinstance(word, ast.Constant)]
            if any(
                isinstance(mode, str) and re.fullmatch("r?[wax+][bt+]*|r[bt]*[+][bt]*", mode)
                for mode in modes
            ):
                yield f"line {node.lineno}: {name}"


def archives(tree: ast.AST) -> Iterator[str]:
    """Yield each use of an archive's content."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (node.attr in _READERS or ast.unparse(node) == "tarfile.open"):
            yield f"line {node.lineno}: {node.attr}"


@pytest.mark.parametrize(("find", "known"), [(writes, WRITES), (archives, ARCHIVES)])
def test_what_comes_from_elsewhere_is_written_by_the_local_writer_alone(
    find: Callable[[ast.AST], Iterator[str]], known: dict[str, str]
) -> None:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if not name.startswith("container/") and (uses := list(find(ast.parse(path.read_text())))):
            found[name] = uses
    assert {name: uses for name, uses in found.items() if name not in known} == {}
    assert set(known) <= set(found), "an entry that is no longer needed"


def test_the_check_sees_every_way_to_write_and_to_unpack() -> None:
    for text in (
        "open(p, 'wb')",
        "p.open('a')",
        "os.open(p, os.O_CREAT)",
        "p.write_bytes(b)",
        "shutil.move(a, b)",
    ):
        assert list(writes(ast.parse(text))), text
    assert not list(writes(ast.parse("open(p); open(p, 'rb'); p.open(); os.open(p, os.O_RDONLY)")))
    for text in ("tarfile.open(p)", "tar.extractfile(m)", "tar.extractall()", "tarfile.TarFile(p)"):
        assert list(archives(ast.parse(text))), text
