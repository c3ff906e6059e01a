"""DeepSpeed's launcher for the ranks of one host, started on every host at the same time.

DeepSpeed's launcher for several hosts requires pdsh and passwordless SSH, and then starts the same processes.
"""

from __future__ import annotations

import base64
import json

from toolkit.launchers.job import Job, Launch


def deepspeed(job: Job) -> tuple[Launch, ...]:
    """Return one launch per host.

    ``--world_info`` has the form of deepspeed/launcher/runner.py (0.19): URL-safe base64 of a JSON object
    that maps host names, in rank order, to device numbers.
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
                "warning",  # otherwise it lists every variable and process
                "--no_local_rank",  # rank.py adds it for scripts that accept it
                "--no_python",
                *job.rank_argv,
            ),
            # DeepSpeed sets only LOCAL_SIZE.
            (("LOCAL_WORLD_SIZE", str(host.slots)),),
        )
        for index, host in enumerate(job.hosts)
    )
