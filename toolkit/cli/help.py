"""The help of verbs and groups as plain text: description, usage, examples, arguments and options."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from toolkit.cli.common import COMMON

Row = tuple[str, str]

_WIDEST = 100
_WIDEST_NAME = 26
_OWN_DEFAULT = re.compile(r"(.*?) \((default: [^()]*)\)", re.DOTALL)


def verb_help(command: Any, ctx: Any) -> str:
    """Return the help of a verb."""
    params = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    sections = [*_paragraphs(command.help or ""), _usage(ctx.command_path, usages(command))]
    if command.examples:
        sections.append(_heading("Examples") + "".join(f"  {line}\n" for line in command.examples))
    sections += _table("Arguments", [(argument_name(p), p.help) for p in _arguments(params) if p.help])
    panels: dict[str, list[Row]] = {}
    for option in _options(params):
        common = COMMON if option.name == "help" else "Options"
        title = getattr(option, "rich_help_panel", None) or common
        panels.setdefault(title, []).append((_option_names(option), option_text(option)))
    rest = panels.pop(COMMON)
    for title, rows in panels.items():
        sections += _table(title, rows)
    sections += _table(COMMON if panels else "Options", rest)
    return "\n".join(sections)


def group_help(command: Any, ctx: Any) -> str:
    """Return the help of a group of verbs."""
    sections = [*_paragraphs(command.help or ""), _usage(ctx.command_path, ["COMMAND [OPTIONS]"])]
    panels: dict[str, list[Row]] = {}
    for name, verb in command.commands.items():
        if not verb.hidden:
            # Only the root has panels; a verb can be listed by the root and by another group.
            title = (ctx.parent is None and verb.rich_help_panel) or "Commands"
            panels.setdefault(title, []).append((name, (verb.help or "").rstrip(".")))
    width = max(len(name) for rows in panels.values() for name, _ in rows)
    for title, rows in panels.items():
        sections += _table(title, rows, width)
    options = _options(command.get_params(ctx))
    sections += _table("Options", [(_option_names(option), option_text(option)) for option in options])
    return "\n".join([*sections, *_paragraphs(command.epilog or "")])


def usages(command: Any) -> list[str]:
    """Return the words that can follow a verb, one text for each form of the call."""
    words = " ".join(argument_name(param) for param in _arguments(command.params))
    return [f"[OPTIONS] {way}".strip() for way in words.split(" | ")]


def argument_name(param: Any) -> str:
    """Return an argument as usage lines show it."""
    return str(param.metavar or param.name.upper())


def option_text(option: Any) -> str:
    """Return the meaning of an option, with its default, its variable and whether it can be repeated."""
    text = (option.help or "").rstrip(".")
    notes = []
    if own := _OWN_DEFAULT.fullmatch(text):
        text = own[1]
        notes.append(own[2])
    elif default := default_text(option):
        notes.append(f"default: {default}")
    if isinstance(option.envvar, str):
        notes.append(f"variable: {option.envvar}")
    if option.multiple:
        notes.append("repeatable")
    return f"{text} ({'; '.join(notes)})" if notes else text


def default_text(option: Any) -> str:
    """Return the default of an option; empty if there is none, or if a flag is off by default."""
    has_opposite = bool(option.secondary_opts)
    if option.is_flag:
        # The default of a flag matters only if the flag has an opposite.
        return str(option.opts[0] if option.default else option.secondary_opts[0]) if has_opposite else ""
    return "" if option.default in (None, "", [], ()) else str(option.default)


def _option_names(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'TEXT'}"
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in (*option.opts, *option.secondary_opts) if name.startswith("--")]
    return (f"{short[0]}, " if short else "    ") + ", ".join(long) + value


def _arguments(params: Iterable[Any]) -> list[Any]:
    return [param for param in params if param.param_type_name == "argument"]


def _options(params: Iterable[Any]) -> list[Any]:
    return [param for param in params if param.param_type_name == "option"]


def _heading(title: str) -> str:
    return f"{_styled(f'{title}:', '1')}\n"


def _usage(path: str, ways: Sequence[str]) -> str:
    lines = [f"{path} {way}" for way in ways]
    return f"{_styled('Usage:', '1')} " + "\n       ".join(lines) + "\n"


def _table(title: str, rows: Sequence[Row], width: int = 0) -> list[str]:
    """Return a heading with names and meanings in two columns; nothing without rows."""
    if not rows:
        return []
    indent = width or min(max(len(name) for name, _ in rows), _WIDEST_NAME)
    return [_heading(title) + "".join(_row(name, text, indent) for name, text in rows)]


def _row(name: str, text: str, indent: int) -> str:
    lines = _wrapped(text, _columns() - indent - 4)
    shown = f"  {_styled(name, '36')}"
    if len(name) > indent:
        return f"{shown}\n" + "".join(f"{' ' * (indent + 4)}{line}\n" for line in lines)
    first, *rest = lines or [""]
    text = f"{shown}{' ' * (indent - len(name) + 2)}{first}".rstrip() + "\n"
    return text + "".join(f"{' ' * (indent + 4)}{line}\n" for line in rest)


def _paragraphs(text: str) -> Iterable[str]:
    """Yield the paragraphs of a text, filled to the terminal's width; lines of a list stay lines."""
    for part in text.strip().split("\n\n"):
        if not part:
            continue
        lines = part.splitlines()
        if any(line.startswith("- ") for line in lines):
            items = re.split(r"\n(?=- )", part)
            yield "".join(
                f"{line}\n"
                for item in items
                for line in _wrapped(item, _columns(), "  " if item.startswith("- ") else "")
            )
        else:
            yield "".join(f"{line}\n" for line in _wrapped(part, _columns()))


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        max(width, 20),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)


def _styled(text: str, code: str) -> str:
    """Return the text in bold (1) or cyan (36) if standard output is a terminal that shows it."""
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    stripped = text.lstrip()
    blank = text[: len(text) - len(stripped)]
    return text if plain else f"{blank}\x1b[{code}m{stripped}\x1b[0m"
