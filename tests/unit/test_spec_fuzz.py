"""Whatever stands in hosts.yaml, the answer is an Inventory or BadInput; FUZZ_N, FUZZ_SEED go further."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.unit.spec_cases import CASES, GOOD
from toolkit.errors import BadInput
from toolkit.spec.inventory import Inventory
from toolkit.spec.parse import parse_inventory

_PIECES = (
    *(
        b"\t",
        b"\r",
        b"\n",
        b" ",
        b":",
        b": ",
        b"- ",
        b"? ",
        b"&a ",
        b"*a",
        b"!!x ",
        b"<<: ",
        b"#",
        b"'",
        b'"',
    ),
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b"|",
        b">",
        b"%",
        b"@",
        b"`",
        b",",
        b"\\",
        b"---\n",
        b"...\n",
        b"~",
        b"no",
        b"0x",
    ),
    *(
        b"\x00",
        b"\x7f",
        b"\xc2\x85",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\xe2\x80\xa8",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98\x80",
    ),
    *(b"22:22", b"1e9", b"-1", b"9" * 30, b"null", b"[]", b"{}", b"env: ", b"hosts: ", b"gpu1: ", b"\\ud800"),
)


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _mutant(rng: random.Random, seeds: list[bytes]) -> bytes:
    text = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 1, 1, 3, 20)))
        kind = rng.randrange(4)
        if kind == 0:
            text[at:end] = rng.choice(_PIECES)
        elif kind == 1:
            del text[at:end]
        elif kind == 2:
            text[at:at] = text[rng.randrange(len(text) + 1) :][: rng.randrange(40)]
        else:
            text[at:end] = bytes(rng.randrange(256) for _ in range(end - at))
    return bytes(text)


def test_mutants_give_an_inventory_or_bad_input() -> None:
    rng = random.Random(int(os.environ.get("FUZZ_SEED", "1")))
    example = Path(__file__).parents[2] / "examples" / "hosts.full.yaml"
    seeds = [b for b in map(_raw, [GOOD, *CASES.values()]) if len(b) < 10_000]
    # The example as often as the small cases together would bury them; without its comments it is quick.
    lines = example.read_bytes().splitlines(keepends=True)
    seeds += [b"".join(line for line in lines if not line.strip().startswith(b"#"))] * 40
    outcomes = {"inventory": 0, "refused": 0}
    for number in range(int(os.environ.get("FUZZ_N", "2000"))):
        text = _mutant(rng, seeds)
        try:
            assert isinstance(parse_inventory(text, "fuzz"), Inventory)
            outcomes["inventory"] += 1
        except BadInput as error:
            assert error.problems
            assert str(error).replace("\n", "").isprintable(), (number, text)
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(f"mutant {number}: {text!r}") from error
    assert min(outcomes.values()) > 0
