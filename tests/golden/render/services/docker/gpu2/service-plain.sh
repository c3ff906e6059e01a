#!/bin/sh
# Run this script on gpu2 after `toolkit up --prepare`, which provides the image and configuration files.
# Then run `toolkit up`. With transport: ssh, `toolkit up` tests the SSH logins from the main container.
# `toolkit down` removes the container.
# To change the container, change hosts.yaml and render the script again.
set -eu
exec docker run \
    --detach \
    --name toolkit-demo-service-plain \
    --hostname plain \
    --network bridge \
    --init \
    --user 1000:1000 \
    --group-add 44 \
    --group-add 997 \
    --workdir /home/alice \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --pids-limit 65536 \
    --shm-size 4294967296 \
    --stop-timeout 10 \
    --env 'COLOUR=it'"'"'s $5' \
    --env HOME=/home/alice \
    --env LOGNAME=alice \
    --env TOOLKIT_CLUSTER=demo \
    --env USER=alice \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu2/services/plain,target=/home/alice \
    --mount type=bind,source=/data/digits,target=/data,readonly \
    --mount type=bind,source=/scratch/out,target=/out \
    --label toolkit.cluster=demo \
    --label toolkit.digest=5a2d95ad2955ce32 \
    --label toolkit.host=gpu2 \
    --label toolkit.owner=alice \
    --label toolkit.role=service \
    --label toolkit.service=plain \
    --label toolkit.version=0.1.0 \
    toolkit.local/verified:0123456789abcdef sleep infinity
