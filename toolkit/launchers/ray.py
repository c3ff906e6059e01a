"""Ray: a cluster of the job's own on its hosts, and the command once, as what Ray calls the driver.

Ray Train, Tune or whatever else the script uses starts the workers. They are Ray's, so that the one rank of
ours is the driver: its end is the job's, and Ray's nodes go with it.
"""

from __future__ import annotations

from toolkit.launchers.job import Job, Launch
from toolkit.protocol.names import program


def ray(job: Job) -> tuple[Launch, ...]:
    """Return the driver's launch on the first host, and one for a node of Ray on every host."""
    words = (*program("job.ray"), job.id)
    driver = Launch(job.hosts[0].name, (*words, "driver", *job.rank_argv), name="the driver of Ray")
    nodes = (Launch(host.name, (*words, "node"), serves=True, name="Ray") for host in job.hosts)
    return (driver, *nodes)
