"""Sound answers made odd: the same seed makes the same changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

# Put in place of a value; as text, because some cannot be written by json.dumps.
ODD = (
    *("null", "true", "0", "-1", "1.5", '""', '"x"', "[]", "{}", "[null]", '{"a": null}', '[["x"]]', "[{}]"),
    *(
        "NaN",
        "-Infinity",
        "1e999",
        "1e300",
        "9" * 19,
        "9" * 5000,
        f"-{'9' * 18}",
        "[" * 5000,
        "[" * 200 + "]" * 200,
    ),
    *('"\\u0000\\u001b[2J"', '"\\ud800"', '"\\u2028\\n"', '"../../etc"', f'"{"x" * 5000}"', '"9"', '"-1.5"'),
    *('{"": {"": {"": []}}}', "[0, 0, 0, 0, 0, 0, 0, 0]", '"1970-01-01T00:00:00Z"', '"99:99"', "x", ""),
)
_HOLE = "@hole@"


def odd_json(value: Any, rng: Random, count: int) -> Iterator[str]:
    """Yield texts of the value with one to three changes each."""
    for _ in range(count):
        copy, fillings = json.loads(json.dumps(value)), []
        for number in range(rng.choice((1, 1, 1, 2, 3))):
            copy = _changed(copy, rng, f"{_HOLE}{number}")
            fillings.append(rng.choice(ODD))
        text = json.dumps(copy)
        for number, filling in enumerate(fillings):
            text = text.replace(f'"{_HOLE}{number}"', filling)
        yield text if rng.random() > 0.02 else text[: rng.randrange(len(text) + 1)]


def _changed(value: Any, rng: Random, hole: str) -> Any:
    """Replace, remove or repeat something within a value."""
    if not isinstance(value, (list, dict)) or not value or rng.random() < 0.1:
        return hole
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if rng.random() < 0.75:
        value[key] = _changed(value[key], rng, hole)
    elif rng.random() < 0.5:
        del value[key]
    elif isinstance(value, list):
        value.insert(key, value[key])
    else:
        value[f"{key}x"] = value.pop(key)
    return value


# Ends of the ranges that fields have, and what is just outside of a date.
_ENDS = ("0", "-1", "1", "1e-320", "3e10", "-3e10", "1e12", "-1e12", "1e300", str(2**63 - 1), str(-(2**63)))
_TEXTS = ('""', '"9999-12-31T23:59:59-14:00"', '"0001-01-01T00:00:00+14:00"', '"\\u202e"', f'"{"9" * 5000}"')


def ends_of_ranges(value: Any) -> Iterator[str]:
    """Yield texts of the value with one number or text each at an end of its range."""
    copy = json.loads(json.dumps(value))
    for holder, key in list(_leaves(copy)):
        kept, holder[key] = holder[key], _HOLE
        text = json.dumps(copy)
        holder[key] = kept
        for filling in _TEXTS if isinstance(kept, str) else _ENDS:
            yield text.replace(f'"{_HOLE}"', filling)


def _leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        if isinstance(inner, (dict, list)):
            yield from _leaves(inner)
        else:
            yield value, key


_WORDS = (
    *("", "-1", "9" * 400, "1e999", "nan", "x", "\0", "\x1b[2J", "\u2028", "/", "::", "999.999.999.999/99"),
    *("FFFFFFFFFFFFFFFFFF", "zz", "²", "٣", "0x10", "|", "||||||||", "=", "\t", "[", "{", "00000000"),
)


def odd_lines(text: str, rng: Random, count: int) -> Iterator[str]:
    """Yield texts with one to three changed words, lines or ends."""
    for _ in range(count):
        lines = text.split("\n")
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(lines))
            words = lines[at].split(" ")
            place = rng.randrange(len(words))
            way = rng.randrange(5)
            if way == 0:
                words[place] = rng.choice(_WORDS)
            elif way == 1:
                cut = rng.randrange(len(words[place]) + 1)
                words[place] = words[place][:cut] + rng.choice(_WORDS) + words[place][cut + 1 :]
            elif way == 2:
                del words[place]
            elif way == 3:
                words = []
            else:
                words[place:place] = [rng.choice(_WORDS)] * rng.choice((1, 40))
            lines[at] = " ".join(words)
        yield "\n".join(lines)
