"""One test over many cases that cost next to nothing each: it runs all of them and names each that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

LONGEST = 200  # characters of a case in the list of failures


def for_each(
    names: str | Sequence[str], cases: Iterable[Any], ids: Callable[[Any], object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with every case, like pytest.mark.parametrize, as one test that lists all failures.

    pytest takes some milliseconds for a test of its own, more than most checks of a text or a value.
    Fixtures that the test has besides are the same for all of its cases.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    every = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            assert every, "there are no cases"
            failed = []
            for case in every:
                values = case.values if hasattr(case, "marks") else case if len(wanted) > 1 else (case,)
                assert len(values) == len(wanted), case
                try:
                    test(**dict(zip(wanted, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{_name(case, ids)}: {_what(error)}")
            if failed:
                lines = "\n".join(failed)
                pytest.fail(f"{len(failed)} of {len(every)} cases\n{lines}", pytrace=False)

        whole = inspect.signature(test)
        rest = [one for name, one in whole.parameters.items() if name not in wanted]
        all_cases.__signature__ = whole.replace(parameters=rest)  # type: ignore[attr-defined]
        return all_cases

    return decorate


def _name(case: Any, ids: Callable[[Any], object] | None) -> str:
    if getattr(case, "id", None) and hasattr(case, "marks"):
        return str(case.id)
    text = str(ids(case)) if ids else repr(case)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _what(error: BaseException) -> str:
    """Return the line of the test where it failed, and the error, indented."""
    trace, line = error.__traceback__, 0
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith("each.py"):
            line = trace.tb_next.tb_lineno if trace.tb_next else 0
        trace = trace.tb_next
    kind = "" if isinstance(error, AssertionError | pytest.fail.Exception) else f"{type(error).__name__}: "
    return f"line {line}: {kind}" + str(error).replace("\n", "\n    ")
