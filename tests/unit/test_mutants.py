"""scripts/mutants.py: the function of a change, and the tests that enter it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mutants.py"
MUTANTS: dict[str, Any] = runpy.run_path(str(SCRIPT))
SOURCE = '''\
"""A module."""

from __future__ import annotations

LIMIT = 1


class Each:
    most = 2

    def first(
        self,
        number: int = 3,
    ) -> int:
        """Return a number."""

        @cached
        def inner() -> int:
            return 4

        return 5
'''


@pytest.mark.parametrize(("number", "entry"), [(1, 0), (2, 0), (3, 0), (4, 19), (5, 17)])
def test_where_the_function_of_a_line_begins(number: int, entry: int) -> None:
    (line,) = [at for at, text in enumerate(SOURCE.splitlines(), 1) if str(number) in text]
    assert MUTANTS["entry_of"](SOURCE, line) == entry


def test_programs_name_the_test_that_started_them(tmp_path: Path) -> None:
    """Each test once, and what is started without its name too."""
    entered = MUTANTS["mutants_entered"]
    tests = [f"tests/unit/test_a.py::test_b[{word}] (call)" for word in ("x", "a/b", "x")]
    for name in (*tests, ""):
        entered_by(name, f"{tmp_path}/7")
    entered(f"{tmp_path}/8")
    assert sorted(path.read_text() for path in tmp_path.glob("7-*")) == sorted({*tests, ""})
    assert [path.read_text() for path in tmp_path.glob("8-*")] == [os.environ["PYTEST_CURRENT_TEST"]]


def entered_by(test: str, prefix: str) -> None:
    text = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import mutants"
    text += f"; mutants.mutants_entered({prefix!r})"
    env = {"PYTEST_CURRENT_TEST": test} if test else {}
    subprocess.run([sys.executable, "-c", text], env=env, check=True)
