"""A test over many cases names each that fails, and nothing that passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.each import for_each


def failures(test: object, **fixtures: object) -> str:
    with pytest.raises(pytest.fail.Exception) as caught:
        test(**fixtures)  # type: ignore[operator]
    return str(caught.value)


def test_every_case_that_fails_is_named_with_what_was_wrong() -> None:
    @for_each(("word", "size"), [("a", 1), ("bb", 3), pytest.param("ccc", 4, id="the third"), ("", 0)])
    def check(word: str, size: int) -> None:
        assert len(word) == size

    first, *lines = failures(check).splitlines()
    assert first == "2 of 4 cases"
    named = [line for line in lines if not line.startswith(" ")]
    assert [line.partition(": line ")[0] for line in named] == ["('bb', 3)", "the third"]
    assert "assert 2 == 3" in named[0] and "assert 3 == 4" in named[1]


def test_cases_can_be_multiplied_and_fixtures_reach_each(tmp_path: Path) -> None:
    met = []

    @for_each("one", [1, 2])
    @for_each("two", "ab")
    def check(one: int, two: str, tmp_path: Path) -> None:
        met.append((one, two, tmp_path))
        if (one, two) == (2, "a"):
            raise ValueError("not this")

    text = failures(check, tmp_path=tmp_path)
    assert met == [(one, two, tmp_path) for one in (1, 2) for two in "ab"]
    assert text.startswith("1 of 2 cases\n2: ") and "'a': line " in text and "ValueError: not this" in text


def test_no_cases_is_a_failure_and_ids_name_a_case() -> None:
    with pytest.raises(AssertionError, match="there are no cases"):
        for_each("x", [])(lambda x: None)()

    @for_each("x", [3], ids=lambda x: f"number {x}")
    def check(x: int) -> None:
        assert x < 3

    assert "number 3: line " in failures(check)


@for_each("word", ["a", "b"])
def test_pytest_sees_the_fixtures_alone(word: str, tmp_path: Path) -> None:
    (tmp_path / word).touch(exist_ok=False)
    assert len(list(tmp_path.iterdir())) == "ab".index(word) + 1
