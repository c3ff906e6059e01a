#!/bin/sh
# Run this script on gpu1 after `toolkit up --prepare`, which provides the image and configuration files.
# Then run `toolkit up`. With transport: ssh, `toolkit up` tests the SSH logins from the main container.
# `toolkit down` removes the container.
# To change the container, change hosts.yaml and render the script again.
set -eu
exec docker run \
    --detach \
    --name toolkit-demo-service-triton \
    --hostname triton \
    --network bridge \
    --init \
    --user 1000:1000 \
    --group-add 998 \
    --workdir /home/alice \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --pids-limit 65536 \
    --shm-size 4294967296 \
    --gpus '"device=0"' \
    --stop-timeout 10 \
    --env HOME=/home/alice \
    --env LOGNAME=alice \
    --env NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    --env TOOLKIT_CLUSTER=demo \
    --env USER=alice \
    --mount type=bind,source=/home/alice/.local/state/toolkit/demo/gpu1/services/triton,target=/home/alice \
    --mount type=bind,source=/data/digits,target=/data,readonly \
    --mount type=bind,source=/scratch/out,target=/out \
    --mount type=bind,source=/srv/models,target=/models,readonly \
    --label toolkit.cluster=demo \
    --label toolkit.digest=ff006f1e1d533e5e \
    --label toolkit.host=gpu1 \
    --label toolkit.owner=alice \
    --label toolkit.role=service \
    --label toolkit.service=triton \
    --label toolkit.version=0.1.0 \
    nvcr.io/nvidia/tritonserver:26.10-py3 tritonserver --model-repository /models
