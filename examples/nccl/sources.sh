#!/bin/sh
# Downloads what Dockerfile.tests and Dockerfile.efa need: sources at fixed commits, and wheels with CUDA's compiler.
# usage: sources.sh
set -eu
cd "$(dirname "$0")"

checkout() {  # REPOSITORY COMMIT
    folder="sources/${1##*/}"
    git init --quiet "$folder"
    git -C "$folder" fetch --quiet --depth 1 "https://github.com/$1" "$2"
    git -C "$folder" checkout --quiet --force --detach "$2"
}

# Releases: 2.19.6, 64.0, 2.6.0, 1.21.1.
checkout NVIDIA/nccl-tests a0b82b2260cf5152b9f8c061bbf7eaf0ba096432
checkout linux-rdma/rdma-core f272237493ef309984036f7b85655e11104c61c8
checkout ofiwg/libfabric 5de2d6a2df83595bcc38531cb91bf59495559495
checkout aws/aws-ofi-nccl 2475c4c736907e68ebeadb3848f31231ee4a44d0
echo 1.21.1 > sources/aws-ofi-nccl/.release_version  # its build does not start without a version

python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes --dest wheels -r requirements.txt
