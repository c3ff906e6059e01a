"""Start of the command line. Ctrl-C during the imports is reported without a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Import the command line and run it."""
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
