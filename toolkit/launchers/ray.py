"""Ray: a Ray cluster for this job on its hosts, and the command once, as Ray's driver.

Ray Train, Tune or another library of Ray starts the workers. The job has one rank, the driver: when the
driver exits, the job ends and Ray's nodes are stopped.
"""

from __future__ import annotations

from toolkit.launchers.job import Job, Launch
from toolkit.protocol.names import program


def ray(job: Job) -> tuple[Launch, ...]:
    """Return the launch of the driver on the first host, and one of a Ray node on every host."""
    words = (*program("job.ray"), job.id)
    driver = Launch(job.hosts[0].name, (*words, "driver", *job.rank_argv), name="the Ray driver")
    nodes = (Launch(host.name, (*words, "node"), serves=True, name="Ray") for host in job.hosts)
    return (driver, *nodes)
