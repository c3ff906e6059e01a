#!/bin/sh
# Run this script on gpu1 after `toolkit up --prepare`, which provides the image and configuration files.
# Then run `toolkit up`. With transport: ssh, `toolkit up` tests the SSH logins from the main container.
# `toolkit down` removes the container.
# To change the container, change hosts.yaml and render the script again.
set -eu
exec docker run \
    --detach \
    --name toolkit-demo-service-board \
    --hostname board \
    --network bridge \
    --init \
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
    --env NVIDIA_VISIBLE_DEVICES=void \
    --env TOOLKIT_CLUSTER=demo \
    --env USER=alice \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu1/services/board,target=/home/alice \
    --mount type=bind,source=/data/digits,target=/data,readonly \
    --mount type=bind,source=/scratch/out,target=/out \
    --label toolkit.cluster=demo \
    --label toolkit.digest=12b1db6009bc3996 \
    --label toolkit.host=gpu1 \
    --label toolkit.owner=alice \
    --label toolkit.role=service \
    --label toolkit.service=board \
    --label toolkit.version=0.1.0 \
    toolkit.local/verified:0123456789abcdef tensorboard --logdir /out/runs --host 0.0.0.0 --port 6006
