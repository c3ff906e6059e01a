#!/bin/sh
# Installed as /etc/mpi/kubexec.sh in every container: Horovod hands its own ssh checks to an agent of
# this name, so that everything that is started on another host goes through the program job.ssh_agent.
exec python3 /run/toolkit/inside/run.py job.ssh_agent "$@"
