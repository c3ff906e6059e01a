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


def buffer_stdout() -> None:
    """Give standard output its usual buffer, although PYTHONUNBUFFERED is set; each result is flushed anyway.

    Without a buffer, a full disk can cut off the end of an output without an error. Also, the command line
    recognizes a help text that click could not write by the text that is left in the buffer.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.RawIOBase):
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        sys.stdout = os.fdopen(sys.stdout.fileno(), "w", encoding=encoding, errors=errors, closefd=False)


def accept_all_characters() -> None:
    """Print ``?`` for a character that the encoding of the locale does not have, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="replace")


def main() -> None:
    """Import the command line and run it."""
    open_closed_streams()
    buffer_stdout()
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
