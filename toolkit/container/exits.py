"""Exit codes of the programs in containers, and the one way in which they fail."""

from __future__ import annotations

import sys
from typing import NoReturn

EXIT_USAGE = 64  # the numbers of sysexits.h: a wrong call or a wrong world size


EXIT_STARTED = 65  # this job has been started before


EXIT_NO_INPUT = 66  # there is no such job on this host


EXIT_LOST = 69  # a host of the job is gone


EXIT_BROKEN = 70  # we failed, not the job


EXIT_NO_LOG = 73  # a log cannot be written


def fail(code: int, message: str) -> NoReturn:
    """Print `message` as ours to stderr and exit with `code`."""
    sys.stderr.write(f"[toolkit] {message}\n")
    sys.stderr.flush()
    sys.exit(code)


def exit_code_of(returncode: int) -> int:
    """A subprocess return code as a shell would give it: 128+n for signal n."""
    return 128 - returncode if returncode < 0 else returncode
