"""The page about messages of toolkit, made of messages.yaml and of the errors in the source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import toolkit.errors
from toolkit.diagnose.messages import GAP, Message, message_of, topics
from toolkit.errors import EXIT_CODES, BadInput, ToolkitError

_ERRORS: dict[str, type[ToolkitError]] = {
    name: kind
    for name, kind in vars(toolkit.errors).items()
    if isinstance(kind, type) and issubclass(kind, ToolkitError)
}
# The text of an error is its first argument, except in these classes. The text of BadInput is its problems.
_TEXT_AT = {"BadInput": None, "CommandFailed": None, "Detached": 1}
_FIX_AT = {"BadInput": 2, "CommandFailed": None, "Detached": None}
_KINDS = frozenset((*_ERRORS, "Problem"))
Names = Mapping[str, Sequence[ast.expr]]
# Texts with fewer letters are values and names, not sentences.
_LEAST = 8


@dataclass(frozen=True)
class Raised:
    """One error that the source raises: its text and fix with values in capitals, and its exit code."""

    text: str
    fix: str
    exit_code: int


def message_page(package: Path, made: str) -> str:
    """Return the page.

    Args:
        package: the folder with the source of toolkit.
        made: the comment that marks a generated page.
    """
    lines = [
        *("# Messages of toolkit", "", made, ""),
        f"Every error of toolkit that its source contains as text. `{GAP}` and words in capitals are values.",
        "`toolkit --explain NAME` prints a row of the first tables, and so does `toolkit --explain` with the",
        "text of a message. The line `more:` below an error names the row.",
        "",
        "Start with [Troubleshooting](../troubleshooting.md) if you have a symptom and no message.",
        "[Known errors](known-errors.md) lists messages of NCCL, MPI, PyTorch, CUDA and the kernel.",
    ]
    for topic in topics().values():
        lines += ["", f"## {topic.title}", "", *((topic.about, "") if topic.about else ())]
        rows = [(_says(m), _cell(m.cause), _fix(m), _code(m.name)) for m in topic.messages]
        lines += _table(("Message", "Cause", "Fix", "Name"), rows)
    lines += ["", "## All other messages", ""]
    lines += ["These messages need no explanation beyond their text and the line `fix:` below it.", ""]
    others = [each for each in raised(package) if message_of(each.text) is None]
    for code in sorted({each.exit_code for each in others}):
        pairs = [(_code(each.text), _code(each.fix)) for each in others if each.exit_code == code]
        lines += [f"### Exit code {code}", "", f"{EXIT_CODES[code][0].upper()}{EXIT_CODES[code][1:]}.", ""]
        lines += [*_table(("Message", "Fix"), sorted(set(pairs))), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)]


def _says(message: Message) -> str:
    return "<br>".join(_code(way) for way in message.says)


def _fix(message: Message) -> str:
    # A fix without a full stop is a command.
    return _cell(message.fix) if message.fix.endswith(".") or "`" in message.fix else _code(message.fix)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    if not text:
        return ""
    return f"`` {_cell(text)} ``" if "`" in text else f"`{_cell(text)}`"


# Errors in the source


@functools.cache
def raised(package: Path) -> tuple[Raised, ...]:
    """Return each error that a module of the package makes, one for each of its texts."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py")))
    return tuple(error for text in texts for error in raised_by(text))


def raised_by(source: str) -> Iterator[Raised]:
    """Yield each error that the text of a module makes, if its words are in the same function or module."""
    if not any(f"{kind}(" in source for kind in _KINDS):
        return  # need not be parsed
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call) and _kind(node) in _KINDS]
    if not calls:
        return
    outer = _assigned(_below(tree.body))
    inside: dict[ast.AST, Names] = {}
    for node in nodes:  # from the outside in: the innermost function counts
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            below = _below(node.body)
            names = {**outer, **_assigned(below)}
            inside.update((each, names) for each in below if isinstance(each, ast.Call))
    before = 0
    for call in sorted(calls, key=lambda node: node.lineno):
        found = list(_errors_of(call, _recent(inside.get(call, outer), before, call.lineno)))
        yield from found
        before = call.lineno if found else before


def _recent(names: Names, after: int, until: int) -> Names:
    """Return what names mean at a line: of several assignments those since the error before it, if any."""
    recent = {}
    for name, values in names.items():
        recent[name] = [each for each in values if after < each.lineno <= until] or values
    return recent


def _errors_of(call: ast.Call, names: Names) -> Iterator[Raised]:
    kind = _kind(call)
    if kind == "Problem":
        text, fix, exit_code = _argument(call, 1, "message"), None, BadInput.exit_code
    else:
        text = _argument(call, _TEXT_AT.get(kind, 0), "what")
        fix, exit_code = _argument(call, _FIX_AT.get(kind, 1), "fix"), _ERRORS[kind].exit_code
    fixes = [] if fix is None else [way for way in _texts(fix, names) if _is_sentence(way)]
    for way in [] if text is None else _texts(text, names):
        if _is_sentence(way):
            yield Raised(way, fixes[0] if fixes else "", exit_code)


def _kind(call: ast.Call) -> str:
    name: str = getattr(call.func, "id", getattr(call.func, "attr", ""))
    return name


def _argument(call: ast.Call, place: int | None, name: str) -> ast.expr | None:
    if place is not None and place < len(call.args):
        return call.args[place]
    return next((word.value for word in call.keywords if word.arg == name), None)


def _below(body: Sequence[ast.stmt]) -> list[ast.AST]:
    return [each for statement in body for each in ast.walk(statement)]


def _assigned(nodes: Sequence[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the expressions that statements assign to each name, functions inside them included."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for name, value in zip(target.elts, node.value.elts, strict=False):
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, []).append(value)
    return found


def _texts(node: ast.expr, names: Names) -> Iterator[str]:
    """Yield each text that an expression can be, with the name of every value in capitals."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield " ".join(node.value.split())
    elif isinstance(node, ast.JoinedStr):
        yield " ".join(_joined(node).split())
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, names)
        yield from _texts(node.orelse, names)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield " ".join((_side(node.left) + _side(node.right)).split())
    elif isinstance(node, ast.Name):
        for value in names.get(node.id, []):
            if not isinstance(value, ast.Name):  # a name of another name might lead back to it
                yield from _texts(value, names)


def _side(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp):
        return _side(node.left) + _side(node.right)
    if isinstance(node, ast.JoinedStr):
        return _joined(node)
    return _part(node)


def _joined(node: ast.JoinedStr) -> str:
    text = ""
    for value in node.values:
        part = _part(value)
        # A value directly after a word is an addition, often empty. Its name would seem part of the word.
        glued = text[-1:].isalnum() and isinstance(value, ast.FormattedValue)
        text += GAP if glued and part[:1].isalnum() else part
    return text


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.FormattedValue):
        return _part(node.value) if not isinstance(node.value, ast.Constant) else str(node.value.value)
    name = getattr(node, "id", getattr(node, "attr", ""))
    return name.strip("_").upper() or GAP


def _is_sentence(text: str) -> bool:
    return sum(letter.islower() for letter in text) >= _LEAST
