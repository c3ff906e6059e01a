"""DeepSpeed's own launcher of one host's ranks, started on every host side by side.

Its launcher of several hosts wants pdsh and passwordless ssh of its own, and does the same beyond that.
"""

from __future__ import annotations

import base64
import json

from toolkit.launchers.job import Job, Launch


def deepspeed(job: Job) -> tuple[Launch, ...]:
    """Return one launch per host.

    The world is told as DeepSpeed's runner tells it (deepspeed/launcher/runner.py, 0.19): URL-safe base64 of
    the JSON object host name -> numbers of its devices, hosts in rank order.
    """
    world = {host.name: list(range(host.slots)) for host in job.hosts}
    about = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    return tuple(
        Launch(
            host.name,
            (
                *("python3", "-m", "deepspeed.launcher.launch"),
                "--world_info",
                about,
                "--node_rank",
                str(index),
                "--master_addr",
                job.hosts[0].address,
                "--master_port",
                str(job.master_port),
                "--log_level",
                "warning",  # else it lists every variable and process
                "--no_local_rank",  # rank.py gives it, to scripts that take it
                "--no_python",
                *job.rank_argv,
            ),
            # It says LOCAL_SIZE instead.
            (("LOCAL_WORLD_SIZE", str(host.slots)),),
        )
        for index, host in enumerate(job.hosts)
    )
