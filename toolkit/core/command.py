"""Commands as values, the only place that quotes, and the result of a command."""

from __future__ import annotations

import base64
import functools
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.errors import ToolkitError


@dataclass(frozen=True)
class Ref:
    """The output that an earlier step of the same plan saved, as one token or a piece of text.

    If the step did not run because its host failed, ``otherwise`` replaces the output. Without ``otherwise``
    the piece is left out, ``before`` and ``after`` included: a lost host must not corrupt a file that lists
    the others.
    """

    host: str
    name: str
    before: str = ""
    after: str = ""
    otherwise: str = ""

    def resolve(self, outputs: Mapping[tuple[str, str], str]) -> str | None:
        """Return the text, or None if no text was saved under this host and name.

        Raises:
            ToolkitError: the value is more than one line.
        """
        value = outputs.get((self.host, self.name)) or self.otherwise
        if not value.isprintable():
            # Types of saved values rule this out; see ``toolkit.core.typed``.
            raise ToolkitError(f"the {self.name} of {self.host} contains a control character: {value!r}")
        return f"{self.before}{value}{self.after}" if value else None

    def __str__(self) -> str:
        return f"{self.before}<{self.name} of {self.host}>{self.after}"


Token = str | Ref


# Most words of a plan's commands are the same for all hosts.
_quoted = functools.lru_cache(maxsize=2048)(shlex.quote)


def quoted(*words: str) -> str:
    """Return words quoted for a shell, for a command line that a user pastes.

    >>> quoted("/data", "/my data")
    "/data '/my data'"
    """
    return " ".join(map(_quoted, words))


@dataclass(frozen=True)
class Command:
    """A program with its arguments and standard input.

    Args:
        argv: program and arguments. Never secrets: ``ps`` shows them to every user of a host.
        stdin: bytes for standard input, None for none. Not shown by ``repr`` or ``line``.
        translated: the command is already translated for the host's own engine, see ``toolkit.core.engines``.
    """

    argv: tuple[Token, ...]
    stdin: bytes | None = field(default=None, repr=False)
    translated: bool = field(default=False, compare=False, repr=False)

    def within(self, *prefix: str) -> Command:
        """Return the same command behind a prefix, such as ``docker exec NAME``."""
        return Command((*prefix, *self.argv), self.stdin, self.translated)

    def limited(self, seconds: float) -> Command:
        """Return the command behind a `timeout` that ends it after the seconds, rounded up.

        A command that ignores SIGTERM is killed 5 s later. The minimum is 1 s: `timeout` takes 0 as no limit.
        """
        return self.within("timeout", "-k", "5", str(max(1, math.ceil(seconds))))

    def resolved(self, outputs: Mapping[tuple[str, str], str]) -> Command:
        """Return the command with each Ref replaced by its output; tokens without an output are removed."""
        tokens = (t.resolve(outputs) if isinstance(t, Ref) else t for t in self.argv)
        return Command(tuple(t for t in tokens if t is not None), self.stdin, self.translated)

    def shell(self) -> str:
        """Return the command as one line for a POSIX shell.

        Raises:
            ValueError: a Ref is left unresolved.
        """
        if any(isinstance(t, Ref) for t in self.argv):
            raise ValueError(f"unresolved reference in {self.line()}")
        return shlex.join(str(t) for t in self.argv)

    def packed(self) -> Command:
        """Return an equivalent command of plain ASCII tokens, for programs that alter other bytes."""
        text = base64.b64encode(self.shell().encode(errors="surrogateescape")).decode()
        return Command(("sh", "-c", 'eval "exec $(printf %s "$1" | base64 -d)"', "sh", text), self.stdin)

    def line(self) -> str:
        """Return the command as readable text: references by their names, quoted for a shell."""
        return " ".join(str(t) if isinstance(t, Ref) else _quoted(t) for t in self.argv)


def command(*argv: Token, stdin: bytes | None = None) -> Command:
    """Build a Command from its tokens."""
    return Command(tuple(argv), stdin)


def script(text: str, *args: Token) -> Command:
    """Return a POSIX shell script as a command; ``args`` arrive as ``$1``, ``$2`` …, never pasted in."""
    return Command(("sh", "-c", text, "sh", *args))


# The status of `timeout` in coreutils, and of a command that toolkit ended at its time limit.
TIMED_OUT = 124


def timeout_text(seconds: float) -> str:
    """Return the message for a command that did not end within its time limit."""
    return f"the command did not end within {seconds:g} s"


@dataclass(frozen=True)
class Result:
    """Exit status and output of one command; ``seconds`` is wall-clock time.

    Args:
        raw: standard output byte for byte; ``stdout`` has U+FFFD in place of what is not UTF-8.
    """

    status: int
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    raw: bytes = field(default=b"", repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def output(self) -> str:
        """Both streams for the message of a failure, errors last."""
        return "\n".join(part for part in (self.stdout.strip(), self.stderr.strip()) if part)
