"""Start a program of toolkit.container: ``run.py job.lease JOB``.

`up` installs this file on each host, next to the packages that the program imports.
"""

from __future__ import annotations

import os
import sys


def main() -> int | None:
    """Run the program named by the first argument, and return its exit code."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if sys.path[:1] != [folder]:  # PYTHONSAFEPATH and links keep it out
        sys.path.insert(0, folder)
    name = sys.argv[1]
    sys.argv[:2] = [name]
    module = __import__(f"toolkit.container.{name}", fromlist=["main"])
    code: int | None = module.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
