"""A complete session in Python, divided into cells: run the file, or each cell in an editor or notebook."""

# %% Open the cluster and check it for problems
import os
from pathlib import Path

from toolkit import Cluster

cluster = Cluster(os.environ.get("TOOLKIT_HOSTS", "hosts.yaml"))
for finding in cluster.check(quick=True):
    if finding.verdict == "error":
        print(f"{finding.host}: {finding.what}; {finding.fix}")

# %% Start containers on all hosts; a second run changes nothing
report = cluster.up()
print(f"{report.changes} changes in {report.seconds:.1f} s")
for state in cluster.status():
    print(state.host, state.role, state.state)

# %% Run a job and follow its output
folder = Path(__file__).resolve().parent / "digits"
job = cluster.run("train_ddp.py", workdir=folder)
for line in job.lines():
    print(line)
status = job.wait()
print(job.id, status.state, status.exit_code)

# %% Read the report of the job
found = job.report()
print(f"{found.seconds:.1f} s in total, the first output of rank 0 after {found.ranks[0].first_output:.1f} s")
for host in found.hosts:
    for curve in host.curves:
        if curve.name == "CPU":
            print(f"{host.name}: {curve.top:.1f} of {curve.most} cores at most")

# %% Remove the cluster from the hosts; records and results of its jobs are downloaded to runs/ first
cluster.down()
