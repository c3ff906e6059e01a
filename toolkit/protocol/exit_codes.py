"""Exit codes of programs in containers."""

from __future__ import annotations

EXIT_USAGE = 64  # the numbers of sysexits.h: a wrong call or a wrong world size
EXIT_STARTED = 65  # this job has been started before
EXIT_NO_INPUT = 66  # there is no such job on this host
EXIT_LOST = 69  # a host of the job is gone
EXIT_BROKEN = 70  # toolkit failed, not the job
EXIT_NO_LOG = 73  # a log cannot be written
