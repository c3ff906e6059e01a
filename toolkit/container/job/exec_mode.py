"""What of a job is this host's own, where no host reaches another (`transport: exec`).

Each host has a supervisor of its own then, which sees a job of one host: its ranks, what starts them here,
and itself as main. Whoever started the job holds the parts against each other.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.files import content

EXEC = "exec"
# In the job's folder on a host where the launcher on main wants a daemon of its own: that daemon's command.
DAEMON = "daemon.json"
# There while a job is being ended: the ranks here are over; those everywhere are, and launchers may end.
RANKS_ENDED, ALL_ENDED = "ranks-ended", "all-ended"
# Why another host's part has failed, where that says more than its own status: the host is gone.
PEER = "peer"


def own_part(job: dict[str, Any], host: str, folder: Path) -> dict[str, Any]:
    """The job as it is on this host; `folder` is the job's."""
    own = [each for each in job["hosts"] if each["name"] == host]
    launches = [each for each in job["launches"] if each["host"] == host]
    part = {**job, "main": host, "hosts": own, "launches": launches, "spares": []}
    with suppress(OSError):
        command = json.loads(content(folder / DAEMON))["command"]
        name = f"the daemon of {job['launcher']}"
        # As ssh has it on the other side: read by a shell.
        daemon = {"host": host, "argv": ["sh", "-c", command], "env": {}, "serves": False, "name": name}
        # What its ranks say is heard on main alone, so that nobody here can tell silence.
        part |= {"launches": [*launches, daemon], "stall_after": None}
    return part
