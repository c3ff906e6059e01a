"""Check the prose of docstrings, comments, messages, help texts and Markdown. usage: prose.py [PATH...]

Prints one line per problem, as `path:line: problem`, and exits with 1 if there is one. A text that quotes
another program, or needs a phrase for another reason, is listed in prose_allowed.txt as `path: text`, where
`text` is a part of the line that is allowed. A path that ends with a slash covers all files below it.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "scripts" / "prose_allowed.txt"

# A docstring names what a thing is or does; it does not begin like a question.
_QUESTION = re.compile(r"(What|How|Who|Whom|Whose|Whether|Where|Which|Why|When)\b")

# Each phrase and what to write in its place.
PHRASES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), better)
    for pattern, better in (
        (r"\banew\b", "again; or recreate"),
        (r"\bof late\b", "recently"),
        (r"\bso (long|many|often|much)(?! as| that)\b", "the duration, N, how often"),
        (r"\bby (itself|themselves)\b", "automatically; or name the actor"),
        (r"\bmay not\b", "cannot, must not or might not"),
        (r"\b(whoever|nobody|somebody|a stranger|strangers)\b", "the role: another user, no host, a client"),
        (r"\b(is|are|was|were|be|been|being) (said|told)\b", "is printed, is reported, receives"),
        (r"\bstands?\b(?!( in)? for\b)", "is, is stored, exists"),
        (r"; else\b", "a new sentence: Otherwise ..."),
        (r"\bof ours\b", "created by toolkit"),
        (r"\b(cure|mend)(s|d|ed)?\b", "fix"),
        (r"\b(bring|brings|brought|come|comes|came) home\b", "download"),
        (r"\ball the same\b", "anyway"),
        (r"\b(hold|held|holds) against\b", "compare with"),
        (r"\ba second time\b", "again"),
    )
)

# Docstrings and comments can call the machine that runs the code "this machine"; users know "your machine".
USER_PHRASES = (*PHRASES, (re.compile(r"\bthis machine\b", re.IGNORECASE), "your machine; or name the host"))

# In other Python files only docstrings and comments are prose: their strings are data of tests.
_MESSAGES_IN = "toolkit/"
_CODE_IN_MARKDOWN = re.compile(r"`[^`\n]+`|\]\([^)\s]*\)|<!--.*?-->", re.DOTALL)
_SHELL_PROSE = re.compile(r"(?:^|\s)#.*|'[^']*'|\"[^\"]*\"")
_FENCE = re.compile(r"^ *(```|~~~)")


@dataclass(frozen=True)
class Text:
    """A piece of prose: the line where it begins, its words, and whether it is a docstring or a comment."""

    line: int
    words: str
    docstring: bool = False
    comment: bool = False


def python_texts(source: str, messages: bool) -> Iterator[Text]:
    """Yield docstrings and comments, and the other strings that contain a blank if `messages` is set."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body) | ast.FunctionDef(body=body):
                match body:
                    case [ast.Expr(value=ast.Constant(value=str(words)), lineno=line), *_]:
                        docstrings.add(line)
                        yield Text(line, words, docstring=True)
    middle = getattr(tokenize, "FSTRING_MIDDLE", None)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type in (tokenize.STRING, middle) and token.start[0] not in docstrings
        if token.type == tokenize.COMMENT or (messages and is_text and " " in token.string):
            yield Text(token.start[0], token.string, comment=token.type == tokenize.COMMENT)


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield each line outside of code blocks, without inline code, link targets and HTML comments."""
    fenced = False
    blank = _CODE_IN_MARKDOWN.sub(lambda found: "\n" * found[0].count("\n"), source)
    for number, line in enumerate(blank.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not line.startswith(("    ", "\t")):
            yield Text(number, line)


def shell_texts(source: str) -> Iterator[Text]:
    """Yield the comment and the quoted words of each line of a shell script."""
    for number, line in enumerate(source.splitlines(), 1):
        for words in _SHELL_PROSE.findall(line):
            yield Text(number, words, comment=words.lstrip().startswith("#"))


def other_texts(source: str) -> Iterator[Text]:
    """Yield each line of any other file: templates, Dockerfiles, YAML."""
    for number, line in enumerate(source.splitlines(), 1):
        yield Text(number, line)


def problems(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the description of each problem in one file.

    Args:
        path: relative to the repository's root; decides how the file is read.
    """
    if path.endswith(".py"):
        texts = python_texts(source, path.startswith(_MESSAGES_IN))
    elif path.endswith(".md"):
        texts = markdown_texts(source)
    elif path.endswith(".sh"):
        texts = shell_texts(source)
    else:
        texts = other_texts(source)
    for text in texts:
        if text.docstring and (found := _QUESTION.match(text.words.lstrip())):
            yield text.line, f"docstring begins with {found[1]}: use a verb or a noun phrase"
        phrases = PHRASES if text.docstring or text.comment else USER_PHRASES
        for number, line in enumerate(text.words.splitlines() or [text.words]):
            for pattern, better in phrases:
                for found in pattern.finditer(line):
                    yield text.line + number, f'"{found[0]}": write {better}'


def allowed() -> dict[str, list[str]]:
    """Return the parts of lines that are allowed, by path."""
    entries: dict[str, list[str]] = {}
    for line in ALLOWED.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            path, _, text = line.partition(": ")
            entries.setdefault(path, []).append(text)
    return entries


def covers(known: str, name: str) -> bool:
    """Return whether an entry's path means this file: the file itself or a folder above it."""
    return name == known or (known.endswith("/") and name.startswith(known))


_KINDS = (".py", ".md", ".sh", ".j2", ".html", ".yaml", ".yml", ".toml")
_NAMES = ("Makefile", "Dockerfile.cpu", "Dockerfile.gpu")
_SKIPPED = ("tests/data/", "tests/unit/golden/", "LICENSE")


def files(chosen: list[str]) -> Iterator[Path]:
    """Yield the tracked files that contain prose, all of them or those below the chosen paths."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *chosen], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        path = ROOT / name
        if name == "scripts/prose.py" or name.startswith(_SKIPPED) or "golden" in path.parts:
            continue
        if path.is_file() and (path.suffix in _KINDS or path.name in _NAMES):
            yield path


def main(chosen: list[str]) -> int:
    """Print the problems of the chosen paths and return the exit status."""
    permitted, count = allowed(), 0
    for path in files(chosen):
        name, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        lines = source.splitlines()
        parts = [text for known, texts in permitted.items() if covers(known, name) for text in texts]
        for line, problem in problems(name, source):
            if any(text in lines[line - 1] for text in parts):
                continue
            print(f"{name}:{line}: {problem}")
            count += 1
    if count:
        print(f"prose: {count} problems; docs/glossary.md has the terms", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
