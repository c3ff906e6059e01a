"""Verbs that are imported when they are called: `toolkit --help` lists all verbs and imports none."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperCommand, TyperGroup

_EXAMPLES = "\n\nExamples:\n"


class VerbCommand(TyperCommand):
    """A command whose help is plain text; ``examples`` are command lines, each with a comment or without."""

    examples: tuple[str, ...] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from toolkit.cli.help import verb_help

        formatter.write(verb_help(self, ctx))


class Verb(TyperCommand):
    """A verb as its group lists it; ``loaded`` is the command itself, with options.

    Args:
        place: its function, ``module:name`` below ``toolkit.cli``.
        line: the first paragraph of the function's docstring.
        passes_on: words from its first argument on belong to another program.
        cls: the class of the command, named like its function.
        old: former names of options, each with its present name; they work, and no help shows them.
        hidden: not listed in help.
    """

    def __init__(
        self,
        name: str,
        place: str,
        line: str,
        passes_on: bool = False,
        cls: str = "",
        old: Mapping[str, str] | None = None,
        hidden: bool = False,
    ) -> None:
        super().__init__(name, help=line, hidden=hidden)
        self.place, self._passes_on, self._cls, self._old = place, passes_on, cls, old or {}

    @cached_property
    def loaded(self) -> Any:
        """The command with its options; imports its module."""
        alone = typer.Typer(add_completion=False)
        settings = {"allow_interspersed_args": False} if self._passes_on else None
        cls = _named(self._cls) if self._cls else VerbCommand
        alone.command(self.name, cls=cls, context_settings=settings)(_named(self.place))
        command: Any = typer.main.get_command(alone)
        command.help, _, examples = command.help.partition(_EXAMPLES)
        command.examples = tuple(line.strip() for line in examples.splitlines())
        for old, new in self._old.items():
            option = copy.copy(next(param for param in command.params if new in param.opts))
            # Both options write to one value, so that a list takes from both.
            option.opts, option.hidden = [old], True
            command.params.append(option)
        return command


class VerbGroup(TyperGroup):
    """Verbs below one name. Only the verb that is called is loaded."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, loaded(command), rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from toolkit.cli.help import group_help

        formatter.write(group_help(self, ctx))


def group(name: str, line: str, *verbs: Verb) -> VerbGroup:
    """Return a group of verbs; without a verb it prints its help."""
    return VerbGroup(name=name, help=line, no_args_is_help=True, commands={str(v.name): v for v in verbs})


def panel(title: str, *rows: Verb | VerbGroup) -> tuple[Verb | VerbGroup, ...]:
    """Return the rows, listed in help below this title."""
    for row in rows:
        row.rich_help_panel = title
    return rows


def loaded(command: Any) -> Any:
    """Return a command with its options: a verb is imported, a group is returned unchanged."""
    return command.loaded if isinstance(command, Verb) else command


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"toolkit.cli.{module}"), name)
