"""Start of the command line. Ctrl-C during the imports is reported without a traceback."""

from __future__ import annotations

import io
import os
import sys


def open_closed_streams() -> None:
    """Connect each standard stream that the caller has closed to the null device.

    Python has no object for such a stream, and the next connection would get its descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))


def accept_all_characters() -> None:
    """Print ``?`` for a character that the encoding of the locale does not have, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="replace")


def main() -> None:
    """Import the command line and run it."""
    open_closed_streams()
    accept_all_characters()
    try:
        from toolkit.cli.app import main as run
        from toolkit.cli.tracebacks import escape_tracebacks
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        sys.exit(130)
    escape_tracebacks()
    run()


if __name__ == "__main__":
    main()
