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
    --userns keep-id \
    --entrypoint env \
    --user 1000:1001 \
    --group-add 44 \
    --group-add 998 \
    --workdir /home/alice \
    --cap-drop ALL \
    --cap-add SETGID \
    --cap-add SETUID \
    --security-opt no-new-privileges \
    --pids-limit 4096 \
    --shm-size 1073741824 \
    --ulimit memlock=-1:-1 \
    --device nvidia.com/gpu=all \
    --device /dev/infiniband/uverbs0 \
    --stop-timeout 7 \
    --env 'GREETING=it'"'"'s $5' \
    --env USER=alice \
    --mount type=bind,source=/data,target=/data,readonly \
    --mount type=bind,source=/out,target=/out \
    --label toolkit.cluster=demo \
    --label toolkit.port=12345 \
    toolkit.local/verified:0123456789abcdef /usr/sbin/sshd -D -f '/a b'
