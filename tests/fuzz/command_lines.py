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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer.main

from tests.fuzz import hosts_files
from tests.fuzz.sandbox import Contact, Sandbox
from toolkit.cli import app as cli
from toolkit.cli.failure import asks_for_json

# Made anew for every call, the tree of commands would take most of the time.
typer.main.get_command = functools.cache(typer.main.get_command)  # type: ignore[assignment]
COMMAND = typer.main.get_command(cli.app)
# What verbs import late: some packages open a socket at that moment, only to see whether there is IPv6.
for _name in ("images", "lab.preview", "smoke", "trust"):
    importlib.import_module(f"toolkit.{_name}")
SECONDS = 10

GOOD_HOSTS = b"cluster: demo\nimage: toolkit:cpu\nhosts:\n  gpu1: {slots: 2}\n  gpu2: {slots: 3}\n"
FILES = {
    "hosts.yaml": GOOD_HOSTS,
    "bad.yaml": b"cluster: No!\nimage: X\nhosts: {}\n",
    "not.yaml": b"hosts: [gpu1\n\t}",
    "mpi": b"gpu1 slots=8\ngpu2\n",
    "bad-mpi": b"gpu1 slots=x\n+e\n",
    "train.py": b"",
    "folder/x": b"",
}

# Right as they stand. Each verb is in here (a test looks), with most of its options somewhere.
RIGHT: tuple[tuple[str, ...], ...] = (
    ("init", "gpu1:8", "gpu2=alice@10.0.0.2", "--user", "bob", "--output", "new.yaml"),
    ("init", "--from-hostfile", "mpi", "--cluster", "x", "--image", "a:b", "-o", "new.yaml", "--json"),
    ("init", "--force", "--dry-run"),
    ("image", "build", "--flavour", "cpu", "--tag", "x:y", "--dry-run", "--json"),
    (
        "image",
        "build",
        "--build-arg",
        "TORCH_VERSION=2.13.0",
        "--no-cache",
        "--base-image",
        "debian:x",
        "--torch-index",
        "x",
    ),
    ("image", "send", "--json", "-v"),
    ("trust", "gpu1", "gpu2", "--yes", "--replace", "--json"),
    ("trust", "--dry-run"),
    ("up", "--prepare", "--force", "--json"),
    ("up", "--hosts", "hosts.yaml", "--dry-run", "-v"),
    ("smoke", "--launcher", "torchrun", "--dry-run", "--json"),
    (
        "run",
        "--np",
        "2",
        "--only",
        "gpu1",
        "--env",
        "A=b",
        "--launcher",
        "mpirun",
        "train.py",
        "--epochs",
        "3",
    ),
    (
        "run",
        "--exclude",
        "gpu2",
        "--timeout",
        "60",
        "--on-interrupt",
        "detach",
        "--share",
        "-d",
        "--",
        "true",
    ),
    ("run", "--workdir", "folder", "--json", "--dry-run", "x"),
    ("status", "--json"),
    ("logs", "20260102-030405-x-a1b2", "--no-follow"),
    ("stop", "x", "--dry-run", "--json"),
    ("shell", "gpu2", "-v"),
    ("exec", "gpu1", "--", "ls", "-l"),
    ("exec", "--all", "--timeout", "5", "--json", "hostname"),
    ("render", "compose", "-o", "out", "--json"),
    ("down", "--no-save", "--dry-run", "--json"),
    ("lab", "up", "--name", "x", "--hosts", "3", "--engine", "old,new", "--rate", "1mbit", "--slots", "2"),
    ("lab", "up", "--interfaces", "same", "--user", "root", "--image", "a:b", "--folder", "f", "--dry-run"),
    ("lab", "down", "--all", "--keep-images", "--folder", "f", "--json"),
    ("lab", "status", "--json"),
    ("schema", "-o", "s.json"),
    ("version", "--no-engine", "--json"),
)

_NASTY = (
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "=",
        "--=",
        "-=x",
        "~",
        "~x/y",
        ".",
        "..",
        "../..",
        "/",
        "/etc/passwd",
        "/dev/null",
    ),
    *(
        "/dev/zero",
        "/dev/full",
        "\n",
        "\t",
        "\x7f",
        "\x1b[31m",
        "\u202e",
        "é",
        "日本",
        "\udcff",
        "\ud800",
        "🙂",
    ),
    *(
        "%s",
        "{}",
        "{0.__class__}",
        "$(id)",
        "`id`",
        "'",
        '"',
        "\\",
        ";",
        "|",
        "*",
        "a" * 300,
        "a" * 5000,
        "9" * 400,
    ),
    *(
        "0",
        "-1",
        "1e9",
        "nan",
        "inf",
        "0x10",
        "１",
        "٣",
        "true",
        "None",
        "null",
        "[]",
        "@",
        "a@b@c",
        ":",
        "a:b:c",
    ),
    *(
        "gpu1",
        "gpu9",
        "hosts.yaml",
        "bad.yaml",
        "not.yaml",
        "gone.yaml",
        "folder",
        "mpi",
        "bad-mpi",
        "train.py",
    ),
    *("--json", "--help", "-h", "--version", "--dry-run", "-v", "--hosts", "--np", "-o", "--show-completion"),
    *("up", "run", "lab", "image", "init"),
)

Spoiler = Callable[[random.Random, list[str]], list[str]]


def verb_of(words: tuple[str, ...] | list[str]) -> int:
    """How many words name the verb."""
    return 2 if words[0] in ("image", "lab") else 1


def _with(*choices: tuple[str, ...]) -> Spoiler:
    """A spoiler that puts one of these groups of words right behind the verb."""

    def spoil(rng: random.Random, words: list[str]) -> list[str]:
        n = verb_of(words)
        return [*words[:n], *rng.choice(choices), *words[n:]]

    return spoil


def _extra(rng: random.Random, words: list[str]) -> list[str]:
    return [*words, rng.choice(("extra", "gpu1", "x=y"))]


def _option(name: str, *values: str) -> Spoiler:
    return _with(*((name, value) for value in values))


_NUMBERS = ("0", "-1", "x", "1.5", "1e3", "", "9" * 400, "１", "+", " ")
_NO_HOSTS = _option(
    "--hosts", "gone.yaml", "bad.yaml", "not.yaml", "folder", "", "a" * 5000, "/dev/zero", "mutant"
)
_NO_NAME = _option("--name", "", "No!", "../x", "a" * 80, "-")
_UNKNOWN = _with(("--frobnicate",), ("--no-such=x",), ("--Json",))
_NO_TIME = _option("--timeout", "0", "-1", "x", "nan", "inf", "1e300", "", "9" * 400)
_NO_LAUNCHER = _option("--launcher", "mpiexec", "MPIRUN", "é", "a" * 300)

# What makes a command line of this verb wrong, whatever else stands in it.
SPOILERS: dict[str, tuple[Spoiler, ...]] = {
    "init": (
        _UNKNOWN,
        _option("--cluster", "No!", "", "a" * 80),
        _option("--image", "X Y", "", "UP"),
        _option("--user", "-x", "a b"),
        _option("--from-hostfile", "gone", "bad-mpi", "folder"),
    ),
    "image build": (
        _UNKNOWN,
        _option("--flavour", "tpu", "CPU"),
        _option("--build-arg", "X", "=y", ""),
        _extra,
    ),
    "image send": (_UNKNOWN, _NO_HOSTS, _extra),
    "trust": (_UNKNOWN, _NO_HOSTS, lambda rng, words: [*words, rng.choice(("gpu9", "GPU1", "", "é"))]),
    "up": (_UNKNOWN, _NO_HOSTS, _extra),
    "smoke": (_UNKNOWN, _NO_HOSTS, _NO_LAUNCHER, _extra),
    "run": (
        *(_UNKNOWN, _NO_HOSTS, _NO_LAUNCHER, _NO_TIME),
        _option("--np", *_NUMBERS, "6"),
        _option("--env", "RANK=1", "1X=2", "NOT_SET_ANYWHERE", "", "A B=c"),
        _option("--only", "gpu9", "", "é"),
        _option("--exclude", "gpu9", ""),
        _option("--on-interrupt", "", "kill"),
        _option("--workdir", "gone", "train.py", "a" * 5000),
    ),
    "status": (_UNKNOWN, _NO_HOSTS, _extra),
    "logs": (_UNKNOWN, _NO_HOSTS, _extra),
    "stop": (_UNKNOWN, _NO_HOSTS, _extra),
    "shell": (_UNKNOWN, _NO_HOSTS, _extra),
    "exec": (_UNKNOWN, _NO_HOSTS, _NO_TIME, _with(("gpu9", "--", "x"), ("é", "--"))),
    "render": (_UNKNOWN, _NO_HOSTS, _extra, _option("--output", "hosts.yaml")),
    "down": (_UNKNOWN, _NO_HOSTS, _extra),
    "lab up": (
        *(_UNKNOWN, _NO_NAME, _extra),
        _option("--hosts", *_NUMBERS, "999"),
        _option("--slots", *_NUMBERS, "99"),
        _option("--engine", "newer", "", "new,,old"),
        _option("--rate", "1", "fast", "0mbit"),
        _option("--image", "X Y", ""),
        _option("--interfaces", "x", ""),
        _option("--user", "alice", ""),
    ),
    "lab down": (_UNKNOWN, _NO_NAME, _extra),
    "lab status": (_UNKNOWN, _NO_NAME, _extra),
    "schema": (_UNKNOWN, _extra),
    "version": (_UNKNOWN, _extra),
}
_COMPLETION = ("--install-completion", "--show-completion")
# Options that a later one of the same name would overrule, so that a spoiled one must be the last.
_REPEATABLE = ("--env", "--only", "--exclude", "--build-arg")


def make(rng: random.Random) -> tuple[list[str], bool, bytes]:
    """Return a command line, whether it is wrong by construction, and what stands in the file `mutant`."""
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
    if not added or not added[0].startswith("--") or added[0] in _REPEATABLE:
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
    """A hosts file that the parser by itself refuses."""
    while True:
        text = hosts_files.mutant(rng)
        if hosts_files.judge(text) == "refused":
            return text


def _noise(rng: random.Random, words: list[str]) -> None:
    kind = rng.randrange(6)
    at = rng.randrange(len(words) + 1)
    if kind == 0:
        words.insert(at, rng.choice(_NASTY))
    elif kind == 1 and words:
        words[at - 1] = rng.choice(_NASTY)
    elif kind == 2 and words:
        del words[at - 1]
    elif kind == 3 and words:
        words.insert(at, rng.choice(words))
    elif kind == 4 and words:
        word = words[at - 1]
        cut = rng.randrange(len(word) + 1)
        words[at - 1] = word[:cut] + rng.choice(_NASTY)[:20] + word[cut + rng.randrange(2) :]
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
        assert words[0] in ("init", "schema", *_COMPLETION), box.changes
    # Only what needs no host may find out that a tool is missing here; and typer, that no shell calls it.
    missing = (status == 4 and words[0] in ("lab", "image")) or (status == 1 and words[0] in _COMPLETION)
    assert status in (0, 2) or missing, (status, err)
    return {0: "done or helped", 2: "refused"}.get(status, "tool missing")


def _names_a_verb(words: list[str]) -> bool:
    return " ".join(words[: verb_of(words)]) in SPOILERS


def _call(words: list[str], box: Sandbox) -> tuple[int | None, str, str]:
    """Call the program's entry as a shell does; the status is None when it was about to contact somebody."""
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
