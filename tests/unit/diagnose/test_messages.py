"""Messages with an explanation: each is still in the source, leads to its own entry, and can be looked up."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.cli.explain import explanation
from toolkit.cli.failure import explained_by
from toolkit.diagnose.known_errors import known_errors
from toolkit.diagnose.messages import by_name, message_of, topics
from toolkit.errors import BadInput, NotReady, Problem, ToolkitError, Unreachable, together

ROOT = Path(__file__).resolve().parents[3]
GAP = "\0"  # a value that is filled in when the message is made
NEXT = "\1"  # between two strings of the source


def python_strings(text: str) -> Iterator[str]:
    """Yield the strings of a module except docstrings, with a GAP for every value."""
    tree = ast.parse(text)
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
    for node in ast.walk(tree):  # from the outside in: what is part of a larger string is not one on its own
        if id(node) not in parts and isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
            text = _flat(node, parts)
            if text.strip(GAP):
                yield text


def _flat(node: ast.AST, parts: set[int]) -> str:
    parts.add(id(node))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\{\w+\}", GAP, node.value)  # to be filled in later
    if isinstance(node, ast.JoinedStr):
        return "".join(_flat(value, parts) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _flat(node.left, parts) + _flat(node.right, parts)
    return GAP


def shell_text(text: str) -> str:
    """Return a script or Dockerfile with a GAP for each of its variables."""
    return re.sub(r"\$\{[^}]*\}|\$\([^)]*\)|\$\w+", GAP, text)


@functools.cache
def corpus() -> str:
    """Return all strings of the source as one text, which a pattern searches at once."""
    found = [s for path in (ROOT / "toolkit").rglob("*.py") for s in python_strings(path.read_text())]
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("image/*.sh"), *ROOT.glob("Dockerfile.*")]
    found += [shell_text(path.read_text()) for path in [*scripts, *(ROOT / "toolkit").rglob("*.sh")]]
    return NEXT.join(" ".join(text.split()) for text in found)


def pattern(message: str) -> re.Pattern[str]:
    """Return a pattern that finds a message in the source: ``…`` is any value or text of one string."""
    return re.compile(f"[^{NEXT}]*".join(map(re.escape, message.split("…"))), re.DOTALL)


def is_in_source(message: str) -> bool:
    return pattern(message).search(corpus()) is not None


WAYS = [(message.name, way) for message in by_name().values() for way in message.says]


@for_each(("name", "way"), WAYS)
def test_an_explained_message_is_in_the_source(name: str, way: str) -> None:
    assert is_in_source(way), name


def test_names_are_unique() -> None:
    names = [message.name for topic in topics().values() for message in topic.messages]
    names += [*topics(), *(error.name for error in known_errors())]
    assert [name for name in names if names.count(name) > 1] == []
    assert [name for name in names if not re.fullmatch("[a-z0-9-]+", name)] == []


@pytest.mark.parametrize(
    ("message", "there"),
    [
        ("user … can log in but cannot run commands", True),
        ("the SSH host key has CHANGED", True),
        ("did not finish within … s", True),
        ("… free of … on …", True),
        ("user … can log in there, and runs every command", False),
        ("The toolkit's own words for nothing", False),
        ("Every message that docs explain", False),
    ],
)
def test_the_check_detects_words_of_the_source(message: str, there: bool) -> None:
    assert is_in_source(message) == there


def test_strings_of_python_and_of_shells() -> None:
    source = '"""Doc."""\nsay(f"a {b} c" " d" + e + "f")\nx = "alone"\ndef g():\n    "doc too"\n'
    assert sorted(python_strings(source)) == [f"a {GAP} c d{GAP}f", "alone"]
    assert list(python_strings('say("x" + ("" if y else "z"))')) == [f"x{GAP}", "z"]
    assert shell_text('echo "$a is ${b:-c} of $(d)"') == f'echo "{GAP} is {GAP} of {GAP}"'


# Looking up an error

REFUSED = "the SSH login of a@gpu1 failed:"


@for_each(("name", "way"), WAYS)
def test_a_message_leads_to_its_entry(name: str, way: str) -> None:
    text = f"gpu1: {way.replace('…', '/some thing')} x-7\n  fix: none"
    same = {other for other, words in WAYS if words == way}
    found = message_of(text)
    assert found is not None and found.name in same


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (BadInput("hosts.yaml", (Problem("gpus", "unknown key; did you mean x?", 3),)), "unknown-key"),
        (
            Unreachable("the SSH host key is not recorded yet", "toolkit trust gpu1", "gpu1"),
            "ssh-key-unknown",
        ),
        (
            together(
                [
                    NotReady("docker is not on the PATH", "install it", "gpu1"),
                    NotReady("the docker engine is not running", "start it", "gpu2"),
                ]
            ),
            "docker-stopped",
        ),
        (ToolkitError("port 12345 on 192.0.2.1 is held by sshd"), "worker-port-in-use"),
        (ToolkitError("GPU 3 is held by alice"), "gpu-in-use"),
        (Unreachable(f"{REFUSED} sshd refused /home/a/.ssh/id_rsa", "", "gpu1"), "ssh-login-refused"),
        (Unreachable(f"{REFUSED} sshd accepts no keys, only password", "", "gpu1"), "ssh-no-key-login"),
        (Unreachable(f"{REFUSED} /home/a/.ssh/k is not a usable private key", "", "gpu1"), "ssh-key-format"),
        (ToolkitError("[gpu1 0] [toolkit] cannot start train: Permission denied"), "cannot-start"),
        (ToolkitError("the main container cannot log in to gpu2: cannot start ssh: Permission denied"), ""),
        (ToolkitError("your machine cannot start ssh: Too many open files"), "ssh-not-started"),
        (ToolkitError("rank 1 on gpu2 exited with code 1"), "rank-failed"),
        (ToolkitError("mpirun on gpu1 exited with code 1"), "rank-failed"),
        (ToolkitError("gpu2 is lost: the lease process exited with code 255"), "host-lost"),
        (ToolkitError("withheld by nobody; this held bytes"), ""),
        (BadInput("", (Problem("--min-hosts", "has no effect, because the job has no restarts"),)), ""),
        (ToolkitError("a message without an entry"), ""),
        (ToolkitError(""), ""),
    ],
    ids=str,
)
def test_the_entry_of_an_error(error: ToolkitError, name: str) -> None:
    message = message_of(str(error))
    assert (message.name if message else "") == name
    assert explained_by(str(error)) == (f"toolkit --explain {name}" if name else "")


# toolkit --explain


@for_each("name", [*by_name(), *(error.name for error in known_errors())])
def test_every_name_is_explained(name: str) -> None:
    text = explanation(name)
    assert text.startswith(f"{name}\n  message: ") and "\n  cause: " in text and "\n  fix: " in text


def test_the_line_below_an_error_is_a_valid_command(run: Run) -> None:
    status, _, printed = run("up", "--hosts", "gone.yaml")
    command = re.search(r"^  more: toolkit (--explain [\w-]+)$", printed, re.MULTILINE)
    assert status == 2 and command
    status, out, err = run(*command[1].split())
    assert (status, err) == (0, "")
    assert out == explanation("no-hosts-file") + "\n"


def test_explained_by_text_or_topic(run: Run) -> None:
    assert run("--explain", "gpu1: docker is not on the PATH")[1].startswith("docker-missing\n")
    assert run("--explain", "Call to posix_fallocate failed: No space left")[1].startswith("nccl-shm\n")
    listed = run("--explain", "ssh")[1].splitlines()
    assert listed[0] == "SSH to the hosts" and "  ssh-key-unknown: the SSH host key" in listed[1]
    status, out, err = run("--explain", "no such words")
    assert (status, out) == (2, "")
    assert "no message, known error or topic matches 'no such words'" in err
    assert all(topic in err for topic in topics())


def quoted_lines(page: str) -> Iterator[tuple[str, str]]:
    """Yield each message that a section quotes before its cause or in a list, with the section's title."""
    for section in re.split("^## ", page, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        seen = text.split("**Cause.**")[0].splitlines()
        lines = [line.strip() for line in seen if line.startswith("    ")]
        for line in (*lines, *re.findall("^- `([^`]+)`:", text, re.MULTILINE)):
            yield title, line


# Quoted, but a prompt and not a message with a cause.
PROMPT = "is running.  s: stop the job   d: detach (the job continues)   Enter: continue"


@for_each(("title", "line"), list(quoted_lines((ROOT / "docs" / "troubleshooting.md").read_text())))
def test_a_message_that_troubleshooting_quotes_can_be_looked_up(title: str, line: str) -> None:
    prompt = " ".join(PROMPT.split())
    assert is_in_source(prompt) if line.endswith(PROMPT) else explanation(line), title
