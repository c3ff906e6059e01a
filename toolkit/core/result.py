"""What came back from a command."""

from __future__ import annotations

from dataclasses import dataclass, field

# What `timeout` of coreutils returns, and what we return for a command that outlived its limit.
TIMED_OUT = 124


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
        """Both streams, errors last: what a person wants to see of a failure."""
        return "\n".join(part for part in (self.stdout.strip(), self.stderr.strip()) if part)
