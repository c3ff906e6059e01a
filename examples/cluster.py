"""A whole session from Python, in cells: run it as it is, or cell by cell in an editor or a notebook."""

# %% The cluster, and problems that would break a job
import os
from pathlib import Path

from toolkit import Cluster

cluster = Cluster(os.environ.get("TOOLKIT_HOSTS", "hosts.yaml"))
for finding in cluster.check(quick=True):
    if finding.verdict == "error":
        print(f"{finding.host}: {finding.what}; {finding.fix}")

# %% Containers on all hosts; the second time there is nothing to change
report = cluster.up()
print(f"{report.changes} changes in {report.seconds:.1f} s")
for state in cluster.status():
    print(state.host, state.role, state.state)

# %% A job, followed
folder = Path(__file__).resolve().parent / "digits"
job = cluster.run("train_ddp.py", workdir=folder, launcher="torchrun")
for line in job.lines():
    print(line)
status = job.wait()
print(job.id, status.state, status.exit_code)

# %% What is known of it afterwards
found = job.report()
print(f"{found.seconds:.1f} s in all, the first output of rank 0 after {found.ranks[0].first_output:.1f} s")
for host in found.hosts:
    for curve in host.curves:
        if curve.name == "CPU":
            print(f"{host.name}: {curve.top:.1f} of {curve.most} cores at most")

# %% Nothing is left there; what is known of its jobs is in runs/ here
cluster.down()
