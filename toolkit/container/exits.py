"""Exit of a program in a container."""

from __future__ import annotations

import sys
from typing import NoReturn


def fail(code: int, message: str) -> NoReturn:
    """Print `message` with toolkit's prefix to stderr and exit with `code`."""
    sys.stderr.write(f"[toolkit] {message}\n")
    sys.stderr.flush()
    sys.exit(code)


def exit_code_of(returncode: int) -> int:
    """Return a subprocess return code as a shell reports it: 128+n for signal n."""
    return 128 - returncode if returncode < 0 else returncode
