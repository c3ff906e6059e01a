"""Commands as values, the only place that quotes; their results; and types of values between hosts."""

from __future__ import annotations

import base64
import functools
import ipaddress
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

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
            # Types of saved values rule this out; see ``Kind``.
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
    return f"the command did not finish within {seconds:g} s"


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


# The SSH wire format (RFC 8709, section 4): the length and name of the key type, then the length of the key.
_ED25519 = "ssh-ed25519"
_HEAD = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"
_KEY_BYTES = len(_HEAD) + 32
_SHOWN = 60


class Kind(Enum):
    """Type of a value that one host sends and toolkit passes on to others; the text is its name in errors.

    Output of a host is untrusted. A value with a second line would become another host's line in a file that
    lists all hosts.
    """

    PUBLIC_KEY = "a public key in the form 'ssh-ed25519 BASE64'"
    CONTAINER_ID = "a container ID with 64 hexadecimal digits"
    ADDRESS = "an IPv4 or IPv6 address"
    ENDED_JOBS = "a line in the form 'over: /JOB//JOB/'"
    # For the report of the same plan alone, so any text will do. Later steps cannot name it.
    REPORT = "text"

    def parse(self, text: str) -> str:
        """Return the value without the whitespace around it.

        Raises:
            ValueError: the text is not exactly one value of this type; the message quotes the text.
        """
        value = text.strip()
        try:
            if _matches(self, value):
                return value
        except ValueError:
            pass
        # The quotation is escaped, because it can contain control characters.
        found = repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"
        raise ValueError(f"expected {self.value}, found {found}")

    def accepts(self, text: str) -> bool:
        """Return whether the text is one value of this type, without whitespace around it."""
        try:
            return _matches(self, text)
        except ValueError:
            return False


def _matches(kind: Kind, value: str) -> bool:
    if kind is Kind.PUBLIC_KEY:
        name, _, data = value.partition(" ")
        raw = base64.b64decode(data, validate=True)
        # Encoded again, because several texts decode to the same bytes.
        same = base64.b64encode(raw).decode() == data
        return name == _ED25519 and raw.startswith(_HEAD) and len(raw) == _KEY_BYTES and same
    if kind is Kind.CONTAINER_ID:
        return re.fullmatch(r"[0-9a-f]{64}", value) is not None
    if kind is Kind.ADDRESS:
        # A zone, as in fe80::1%eth0, is free text.
        return "%" not in value and bool(ipaddress.ip_address(value))
    if kind is Kind.ENDED_JOBS:
        return re.fullmatch(r"over:( (/[^/\x00-\x1f\x7f]+/)+)?", value) is not None
    return True
