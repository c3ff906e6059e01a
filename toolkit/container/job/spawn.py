"""Starts the ranks of one host in parallel, each with its rank and sizes in its environment.

    job.spawn COUNT FIRST COMMAND...

COUNT ranks from FIRST on. To end them, the complete process group of this program is signalled; the host's
lease reports a failed rank to main, which ends the job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from toolkit.container.conventions import exit_code_of, fail
from toolkit.protocol.outcomes import EXIT_USAGE


def main() -> int:
    if len(sys.argv) < 4:
        fail(EXIT_USAGE, "usage: job.spawn COUNT FIRST COMMAND...")
    count, first, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    # The ranks receive the signal as well; wait for their exit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    ranks: dict[int, subprocess.Popen[bytes]] = {}
    for local in range(count):
        place = {"RANK": first + local, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": count}
        env = {**os.environ, **{name: str(value) for name, value in place.items()}}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env)
        ranks[process.pid] = process
    code = 0
    while ranks:
        pid, status = os.wait()
        if ranks.pop(pid, None) is not None:
            code = code or exit_code_of(os.waitstatus_to_exitcode(status))
    return code
