"""Optional programs of this machine: sbatch, kubectl."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Sequence

from toolkit.core.command import TIMED_OUT, Result, timeout_text
from toolkit.errors import NotReady


def is_here(program: str) -> bool:
    """Return whether a program is found on PATH."""
    return shutil.which(program) is not None


def allow_open_files(number: int, least: int) -> None:
    """Raise the soft limit on open files to this number, or to the hard limit if that is lower.

    macOS begins with 256, and each host takes one connection.

    Raises:
        NotReady: the hard limit is lower than ``least``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < least:
        what = f"this machine allows {hard} open files in a process, but the connections need {least}"
        raise NotReady(what, f"sudo prlimit --pid $$ --nofile={least}:{least}  # or use fewer hosts")
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_here(argv: Sequence[str], stdin: str = "", timeout: float = 60.0, apart: bool = False) -> Result:
    """Run a program of this machine to its end; it is killed at the time limit.

    Args:
        apart: keep Ctrl-C on the terminal from the program.
    """
    began = time.monotonic()
    try:
        # Programs of an image can print any bytes.
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            start_new_session=apart,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        out = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
        return Result(TIMED_OUT, out, timeout_text(timeout), time.monotonic() - began)
    return Result(done.returncode, done.stdout, done.stderr, time.monotonic() - began)
