"""Command lines of every verb, changed at random: refused, helped, done alone, or ready to contact a host.

A spoiled one is wrong by construction, and must be refused before anything is contacted or changed. One with
noise may be wrong or right; then all that is asked is that nothing breaks.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import typer.main

from tests.fuzz import hosts_files
from tests.fuzz.sandbox import Contact, Sandbox
from tests.fuzz.words import COMPLETION, FILES, NASTY, REPEATABLE, RIGHT, SPOILERS, Spoiler, verb_of
from tests.unit import docs_check
from toolkit.cli import app as cli
from toolkit.cli.failure import asks_for_json

# Building the tree of commands for every call would take most of the time.
typer.main.get_command = functools.cache(typer.main.get_command)  # type: ignore[assignment]
COMMAND = typer.main.get_command(cli.app)
# What is imported late: some packages open a socket at that moment, only to see whether there is IPv6.
docs_check.verbs()
for _name in ("image.make_build", "bench.smoke"):
    importlib.import_module(f"toolkit.{_name}")
SECONDS = 10


def make(rng: random.Random) -> tuple[list[str], bool, bytes]:
    """Return a command line, whether it is wrong by construction, and the content of the file `mutant`."""
    words = list(rng.choice(RIGHT))
    text = b"cluster: X\n"
    if rng.random() < 0.5:
        name = " ".join(words[: verb_of(words)])
        spoil = rng.choice(SPOILERS[name])
        spoiled = spoil(rng, _without_clash(spoil, rng, words))
        if "mutant" in spoiled:
            text = _refused(rng)
        return spoiled, True, text
    for _ in range(rng.randint(1, 4)):
        _noise(rng, words)
    return words, False, text


def _without_clash(spoil: Spoiler, rng: random.Random, words: list[str]) -> list[str]:
    """Take out what would undo the spoiler: the same option again further on."""
    n = verb_of(words)
    state = rng.getstate()
    added = spoil(rng, list(words[:n]))[n:]
    rng.setstate(state)
    if not added or not added[0].startswith("--") or added[0] in REPEATABLE:
        return words
    kept = list(words)
    while added[0] in kept:
        at = kept.index(added[0])
        del kept[at : at + 2]
    if added[0] == "--output" and "-o" in kept:
        at = kept.index("-o")
        del kept[at : at + 2]
    return kept


def _refused(rng: random.Random) -> bytes:
    """Return a hosts file that the parser refuses."""
    while True:
        text = hosts_files.mutant(rng)
        if hosts_files.judge(text) == "refused":
            return text


def _noise(rng: random.Random, words: list[str]) -> None:
    kind = rng.randrange(6)
    at = rng.randrange(len(words) + 1)
    if kind == 0:
        words.insert(at, rng.choice(NASTY))
    elif kind == 1 and words:
        words[at - 1] = rng.choice(NASTY)
    elif kind == 2 and words:
        del words[at - 1]
    elif kind == 3 and words:
        words.insert(at, rng.choice(words))
    elif kind == 4 and words:
        word = words[at - 1]
        cut = rng.randrange(len(word) + 1)
        words[at - 1] = word[:cut] + rng.choice(NASTY)[:20] + word[cut + rng.randrange(2) :]
    else:
        words[at:at] = rng.choice(RIGHT)[1:3]


def check_right(box: Sandbox) -> None:
    """See that the command lines which all others are made from are right themselves.

    Raises:
        AssertionError: one is refused, so that what is made from it shows little.
    """
    for words in RIGHT:
        outcome = judge(list(words), False, b"", box)
        assert outcome in ("ready to contact", "done or helped"), (words, outcome)


def judge(words: list[str], spoiled: bool, text: bytes, box: Sandbox) -> str:
    """Run the command line; return how it ended.

    Raises:
        AssertionError: it did what no command line may do.
        BaseException: whatever else broke.
    """
    # An argument of a process cannot hold a byte 0, nor a surrogate that stands for no byte.
    words = [word.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for word in words]
    box.put("mutant", text)
    status, out, err = _call(words, box)
    assert "Traceback" not in err, err
    if status is None:
        assert not spoiled, f"went on to {box.contacts}"
        return "ready to contact"
    if spoiled:
        assert status == 2, (status, err)
    if status:
        assert not box.changes, box.changes
        assert err.strip() or out.strip(), "nothing was said"
    if status == 2 and asks_for_json(COMMAND, words):
        assert json.loads(out)["error"]["exit_code"] == 2
    elif status == 2 and words and _names_a_verb(words):
        assert not out, out
    if status == 0 and box.changes:
        assert words[0] in ("init", "schema", "render", *COMPLETION), box.changes
    # Only what needs no host may find out that a tool is missing here; and typer, that no shell calls it.
    missing = (status == 4 and words[0] in ("lab", "image")) or (status == 1 and words[0] in COMPLETION)
    assert status in (0, 2) or missing, (status, err)
    return {0: "done or helped", 2: "refused"}.get(status, "tool missing")


def _names_a_verb(words: list[str]) -> bool:
    return " ".join(words[: verb_of(words)]) in SPOILERS


def _call(words: list[str], box: Sandbox) -> tuple[int | None, str, str]:
    """Call the program's entry as a shell does; the status is None if it was about to contact a host."""
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["toolkit", *words]
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    sys.stdout = out = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True)
    sys.stderr = err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    status: Any = 0
    try:
        with box.watched(SECONDS):
            cli.main()
    except SystemExit as end:
        status = end.code or 0
    except Contact:
        status = None
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
    told, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return status, told, said


def sandbox(folder: Path) -> Sandbox:
    """Return the place where command lines run; HOME and the working directory are in it."""
    return Sandbox(folder, dict(FILES))
