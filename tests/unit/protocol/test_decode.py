"""Values that the decoder accepts, and its errors for everything else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from toolkit.protocol.decode import (
    DecodeError,
    Items,
    Key,
    Number,
    Text,
    decode,
    decode_json,
    load_first,
    load_json,
)


@dataclass(frozen=True)
class Part:
    name: Annotated[str, Text(8, r"[a-z]+")]
    size: Annotated[int, Number(0, 100)] = 0


@dataclass(frozen=True)
class Whole:
    id: Annotated[str, Key("Id")]
    parts: Annotated[tuple[Part, ...], Items(2)] = ()
    labels: Annotated[dict[str, str], Key("Labels"), Items(2)] = field(default_factory=dict)
    state: Literal["on", "off"] = "on"
    rate: Annotated[float, Number(0, 1)] = 0.0
    text: Annotated[str | None, Text(lines=True)] = None
    flag: bool = False


def test_what_is_right_becomes_a_value() -> None:
    given = {
        "Id": "x",
        "parts": [{"name": "a", "size": 1, "newer": [[[]]]}, {"name": "b"}],
        "Labels": {"k": "v"},
        "state": "off",
        "rate": 1,
        "text": "a\n\tb",
        "flag": True,
        "newer": {"a": 1},
    }
    assert decode_json(Whole, json.dumps(given)) == Whole(
        "x", (Part("a", 1), Part("b")), {"k": "v"}, "off", 1.0, "a\n\tb", True
    )
    assert decode(Whole, {"Id": "x", "text": None}).text is None


@pytest.mark.parametrize(
    ("more", "where", "why"),
    [
        ({"Id": 1}, "Id", "not a string: 1"),
        ({"Id": None}, "Id", "not a string: None"),
        ({"Id": "x" * 5000}, "Id", "has 5000 characters, but the limit is 4096"),
        ({"Id": "a\nb"}, "Id", r"contains the control character '\n'"),
        ({"Id": "\x1b[31m"}, "Id", r"contains the control character '\x1b'"),
        ({"Id": "\x9b31m"}, "Id", r"contains the control character '\x9b'"),
        ({"Id": "a\u202eb"}, "Id", r"contains the control character '\u202e'"),
        ({"text": "a\u2066b"}, "text", r"contains the control character '\u2066'"),
        ({"Id": "\ud800"}, "Id", r"contains the control character '\ud800'"),
        ({"text": "a\x1bb"}, "text", r"contains the control character '\x1b'"),
        ({"parts": {}}, "parts", "not a list: an object"),
        ({"parts": [{}, {}, {}]}, "parts", "contains 3 items, but the limit is 2"),
        ({"parts": [{"name": "a"}, {}]}, "parts[1].name", "is missing"),
        ({"parts": [{"name": "A"}]}, "parts[0].name", "does not match the pattern [a-z]+: 'A'"),
        ({"parts": [{"name": "a\n"}]}, "parts[0].name", r"contains the control character '\n'"),
        ({"parts": [{"name": "a", "size": -1}]}, "parts[0].size", "not in the range 0 to 100: -1"),
        ({"parts": [{"name": "a", "size": 101}]}, "parts[0].size", "not in the range 0 to 100: 101"),
        ({"parts": [{"name": "a", "size": True}]}, "parts[0].size", "not an integer: True"),
        ({"parts": [{"name": "a", "size": 1.0}]}, "parts[0].size", "not an integer: 1.0"),
        ({"parts": [{"name": "a", "size": "1"}]}, "parts[0].size", "not an integer: '1'"),
        ({"parts": ["a"]}, "parts[0]", "not an object: 'a'"),
        ({"Labels": []}, "Labels", "not an object: a list"),
        ({"Labels": {"a": 1}}, "Labels.'a'", "not a string: 1"),
        ({"Labels": {"a\0": "b"}}, "Labels key", r"contains the control character '\x00'"),
        ({"Labels": {"a": "", "b": "", "c": ""}}, "Labels", "contains 3 items, but the limit is 2"),
        ({"state": "away"}, "state", "not one of on, off: 'away'"),
        ({"state": ["on"]}, "state", "not one of on, off: a list"),
        ({"rate": "1"}, "rate", "not a number: '1'"),
        ({"rate": True}, "rate", "not a number: True"),
        ({"rate": 1.5}, "rate", "not in the range 0 to 1: 1.5"),
        ({"flag": 1}, "flag", "not true or false: 1"),
    ],
)
def test_what_is_wrong_is_refused_by_its_path(more: dict[str, Any], where: str, why: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(Whole, {"Id": "x", **more})
    assert (caught.value.path, caught.value.what) == (where, why)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1] 2", "not JSON"),
        (b"\xff", "not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5000, "an integer of 5000 characters, but the limit is 20"),
        ("-" + "1" * 20, "an integer of 21 characters, but the limit is 20"),
        ("1e999", "out of range: '1e999'"),
        ("NaN", "not a number: NaN"),
        ("[Infinity]", "not a number: Infinity"),
        ('"' + "x" * 2000 + '"', "has 2002 bytes, but the limit is 1000"),
    ],
)
def test_a_text_that_is_no_usable_json(text: str | bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        load_json(text, 1000 if "xx" in str(text) else 1 << 20)


def test_a_long_value_is_shown_by_its_beginning() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(int, "\x1b" * 10**6)
    assert len(str(caught.value)) < 100


def test_lists_of_a_fixed_length_and_any_json() -> None:
    assert decode(tuple[str, int], ["a", 1]) == ("a", 1)
    assert decode(tuple[str, ...], []) == ()
    assert decode(object, {"a": [None]}) == {"a": [None]}
    for kind, value, why in (
        (tuple[str, int], ["a"], "a list of length 1 instead of 2"),
        (tuple[str, int], [1, 1], r"\[0\]: not a string"),
        (object, load_json("[" * 100 + "]" * 100), "nested more than 64 levels"),
    ):
        with pytest.raises(DecodeError, match=why):
            decode(kind, value)


def test_output_of_ranks_can_contain_all_characters() -> None:
    kind: Any = Annotated[str, Text(any=True)]
    assert decode(kind, "\x1b[1m\0\n\u2028\ud800") == "\x1b[1m\0\n\u2028\ufffd"


@pytest.mark.parametrize("unit", ["[],", "{},", "0,", '"",'])
def test_a_small_text_does_not_become_large_in_memory(unit: str) -> None:
    text = "[" + unit * (5 << 20) + "0]"
    for given in (text, text.encode()):
        with pytest.raises(DecodeError, match="more than 2097152 items"):
            load_json(given, 1 << 26)
    assert len(load_json("[" + "0," * (1 << 20) + "0]")) == (1 << 20) + 1
    with pytest.raises(DecodeError, match="more than 2097152 items"):
        load_first("x" + text[: 15 << 20], 1)
