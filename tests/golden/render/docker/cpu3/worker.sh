#!/bin/sh
# Run this script on cpu3 after `toolkit up --prepare`, which provides the image and configuration files.
# Then run `toolkit up`. With transport: ssh, `toolkit up` tests the SSH logins from the main container.
# `toolkit down` removes the container.
# To change the container, change hosts.yaml and render the script again.
set -eu
exec docker run \
    --detach \
    --name toolkit-demo-worker \
    --hostname cpu3 \
    --network host \
    --init \
    --entrypoint env \
    --user 1000:1000 \
    --group-add 998 \
    --workdir /home/alice \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --pids-limit 65536 \
    --shm-size 4294967296 \
    --stop-timeout 10 \
    --env HOME=/home/alice \
    --env LOGNAME=alice \
    --env TOOLKIT_CLUSTER=demo \
    --env USER=alice \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/conf,target=/run/toolkit/conf,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/inside,target=/run/toolkit/inside,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/jobs,target=/run/toolkit/jobs \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/home,target=/home/alice \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/etc/hosts,target=/etc/hosts,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/etc/passwd,target=/etc/passwd,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/etc/group,target=/etc/group,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/etc/ssh_config,target=/etc/ssh/ssh_config.d/10-toolkit.conf,readonly \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/cpu3/inside/kubexec.sh,target=/etc/mpi/kubexec.sh,readonly \
    --mount type=bind,source=/data/digits,target=/data,readonly \
    --mount type=bind,source=/scratch/out,target=/out \
    --label toolkit.cluster=demo \
    --label toolkit.config=8b348dd996ae4040 \
    --label toolkit.digest=8920ea499962f83e \
    --label toolkit.host=cpu3 \
    --label toolkit.owner=alice \
    --label toolkit.port=12345 \
    --label toolkit.role=worker \
    --label toolkit.version=0.1.0 \
    toolkit.local/verified:0123456789abcdef /usr/sbin/sshd -D -e -f /run/toolkit/conf/sshd_config
