"""Programs for hosts are sent whole, and those that hosts run by their own Python suit an old one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.core.host_programs import container_programs, imports_of, packed

# Programs that hosts run with their own Python, which is 3.8 or newer.
ON_HOSTS = ("check.engine_api", "transfer.data_set", "transfer.relay")


def texts_of(name: str) -> dict[str, str]:
    """Return the modules in a packed program."""
    loop = ast.parse(packed(name)).body[1]
    assert isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call)
    assert isinstance(loop.iter.func, ast.Attribute)
    texts: dict[str, str] = ast.literal_eval(loop.iter.func.value)
    return texts


def too_new(text: str) -> list[str]:
    """Return what Python 3.8 cannot evaluate: a subscript of a built-in type outside of annotations."""
    tree = ast.parse(text, feature_version=(3, 8))
    annotations: set[int] = set()
    for node in ast.walk(tree):
        typed = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            typed += node.body
        annotations |= {id(inner) for one in typed if one is not None for inner in ast.walk(one)}
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        if node.value.id in ("list", "dict", "tuple", "set", "frozenset", "type", "Callable", "Iterator")
        if id(node) not in annotations
    ]


@pytest.mark.parametrize("name", ON_HOSTS)
def test_programs_of_hosts_suit_python_3_8(name: str) -> None:
    texts = texts_of(name)
    assert f"toolkit.container.{name}" in texts
    assert {module: found for module, text in texts.items() if (found := too_new(text))} == {}
    # Without this line annotations are evaluated, and 3.8 cannot evaluate `int | None`.
    assert [m for m, text in texts.items() if "from __future__ import annotations\n" not in text] == []


def test_what_is_too_new_for_python_3_8_is_found() -> None:
    assert too_new("Entry = list[int]\ndef f(x: list[int]) -> dict[str, int]: ...") == ["list[int]"]
    with pytest.raises(SyntaxError):
        too_new("match x:\n    case 1: pass")


@pytest.mark.parametrize("name", [*ON_HOSTS, "check.container_probe", "job_list"])
def test_a_packed_program_has_each_module_after_those_that_it_imports(name: str) -> None:
    seen: list[str] = []
    for module, text in texts_of(name).items():
        assert set(imports_of(text)) <= set(seen)
        seen.append(module)


def test_a_packed_program_runs_without_files(tmp_path: Path) -> None:
    (tmp_path / "job-1").mkdir()
    argv = [sys.executable, "-I", "-S", "-", str(tmp_path)]
    done = subprocess.run(argv, input=packed("job_list"), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_program_starts_with_what_is_sent(tmp_path: Path) -> None:
    """No module imports one that stays behind; the image's own packages are not there either."""
    programs = container_programs()
    for name, text in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    names = sorted(
        name.removesuffix(".py").replace("/", ".")
        for name in programs
        if name.startswith(("toolkit/container/", "toolkit/launchers/")) and not name.endswith("__init__.py")
    )
    code = "import importlib, sys; sys.path.insert(0, sys.argv[1])\n" + (
        "for name in sys.argv[2:]: importlib.import_module(name)"
    )
    argv = [sys.executable, "-I", "-S", "-c", code, str(tmp_path), *names]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(names) > 40


def test_the_imports_of_every_program_are_found_without_a_parser() -> None:
    for name, text in container_programs().items():
        if name.endswith(".py"):
            parsed = [
                node.module
                for node in ast.parse(text).body
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toolkit.")
            ]
            assert list(imports_of(text)) == parsed, name


def test_packing_uses_no_parser_that_fails_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 can raise SystemError if several threads build syntax trees (python/cpython#106905)."""

    def fail(*_args: object, **_options: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=60, after=59)")

    packed.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", fail)
        text = packed("transfer.relay")
    assert "toolkit.container.transfer.relay" in text
