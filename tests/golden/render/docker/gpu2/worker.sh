#!/bin/sh
# Run this script on gpu2 after `toolkit up --prepare`, which provides the image and configuration files.
# Then run `toolkit up`. With transport: ssh, `toolkit up` tests the SSH logins from the main container.
# `toolkit down` removes the container.
# To change the container, change hosts.yaml and render the script again.
set -eu
exec docker run \
    --detach \
    --name toolkit-demo-worker \
    --hostname gpu2 \
    --network host \
    --init \
    --entrypoint env \
    --user 1000:1000 \
    --group-add 44 \
    --group-add 997 \
    --workdir /home/alice \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --pids-limit 65536 \
    --shm-size 4294967296 \
    --ulimit memlock=-1:-1 \
    --device /dev/infiniband/rdma_cm \
    --device /dev/infiniband/uverbs0 \
    --stop-timeout 10 \
    --env HOME=/home/alice \
    --env LOGNAME=alice \
    --env TOOLKIT_CLUSTER=demo \
    --env USER=alice \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/conf,target=/run/toolkit/conf,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/inside,target=/run/toolkit/inside,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/jobs,target=/run/toolkit/jobs \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/home,target=/home/alice \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/etc/hosts,target=/etc/hosts,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/etc/passwd,target=/etc/passwd,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/etc/group,target=/etc/group,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/etc/ssh_config,target=/etc/ssh/ssh_config.d/10-toolkit.conf,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/inside/kubexec.sh,target=/etc/mpi/kubexec.sh,readonly \
    --mount type=bind,source=/data/digits,target=/data,readonly \
    --mount type=bind,source=/scratch/out,target=/out \
    --label toolkit.cluster=demo \
    --label toolkit.config=799c2355464b5ae3 \
    --label toolkit.digest=fbd558f12665945a \
    --label toolkit.host=gpu2 \
    --label toolkit.owner=alice \
    --label toolkit.port=12345 \
    --label toolkit.role=worker \
    --label toolkit.version=0.1.0 \
    toolkit.local/verified:0123456789abcdef /usr/sbin/sshd -D -e -f /run/toolkit/conf/sshd_config
