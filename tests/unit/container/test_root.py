"""The folder of toolkit on a host: read from the environment at each call, never fixed by an import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unit.container_world import INSIDE
from toolkit.container import conventions
from toolkit.container.code import store
from toolkit.container.job import restarts


def test_the_root_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for root in ("/first", "/second"):
        with monkeypatch.context() as patch:
            patch.setenv("TOOLKIT_ROOT", root)
            assert conventions.job_folder("x") == Path(root, "jobs", "x")
            assert conventions.program("job.rank") == [f"{root}/inside/run.py", "job.rank"]
            assert restarts.root() == Path(root)
            assert store.jobs_folder() == f"{root}/jobs"


def test_no_program_reads_its_environment_while_it_is_imported() -> None:
    found = []
    for path in sorted((INSIDE / "toolkit" / "container").rglob("*.py")):
        left: list[ast.AST] = [ast.parse(path.read_text())]
        while left:
            node = left.pop()
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
                found.append(f"{path.name}:{node.lineno}")
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                left += ast.iter_child_nodes(node)
    assert found == []
