"""Mutated hosts.yaml files: the parser returns an Inventory or raises BadInput with printable text."""

from __future__ import annotations

import functools
import random
from pathlib import Path

from tests.unit.spec_cases import CASES, GOOD
from toolkit.errors import BadInput
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.parse import parse_inventory

_EXAMPLE = Path(__file__).parents[2] / "examples" / "hosts.full.yaml"
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
    *(b"\x00", b"\x7f", b"\xc2\x85", b"\xef\xbb\xbf", b"\xff", b"\xe2\x80\xa8", b"\xed\xa0\x80"),
    *(b"\xf0\x9f\x98\x80", b"22:22", b"1e9", b"-1", b"9" * 30, b"null", b"[]", b"{}", b"env: ", b"hosts: "),
    *(b"gpu1: ", b"\\ud800"),
)


@functools.cache
def _seeds() -> list[bytes]:
    cases = [
        c if isinstance(c, bytes) else c.encode("utf-8", "surrogatepass") for c in (GOOD, *CASES.values())
    ]
    # The example as often as the small cases together would bury them; without its comments it is quick.
    lines = _EXAMPLE.read_bytes().splitlines(keepends=True)
    example = b"".join(line for line in lines if not line.strip().startswith(b"#"))
    return [case for case in cases if len(case) < 10_000] + [example] * 40


def mutant(rng: random.Random) -> bytes:
    """Return a hosts file, good or bad, with one to four changes."""
    text = bytearray(rng.choice(_seeds()))
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


def judge(text: bytes) -> str:
    """Return ``accepted`` or ``refused``.

    Raises:
        Exception: any other exception is a fault of toolkit.
    """
    try:
        assert isinstance(parse_inventory(text, "fuzz"), Inventory)
    except BadInput as error:
        assert error.problems and all(problem.message for problem in error.problems)
        assert str(error).replace("\n", "").isprintable()
        return "refused"
    return "accepted"
