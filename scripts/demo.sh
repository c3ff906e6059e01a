#!/bin/sh
# From an engine and a virtual environment to a training run across two practice hosts. usage: demo.sh TOOLKIT
set -eu

toolkit=$1
folder=$PWD/.lab/demo
begin=$(date +%s)
number=0

step() {
    number=$((number + 1))
    title=$1
    shift
    printf '\n== %d. %s\n   $ %s\n' "$number" "$title" "$*"
    start=$(date +%s)
    "$@"
    printf '   (%d s)\n' $(($(date +%s) - start))
}

step "The image that the hosts will run" "$toolkit" image build --flavor cpu
step "Two practice hosts, each with its own address, sshd and Docker engine" \
    "$toolkit" lab up --name demo --count 2 --folder "$folder"
export TOOLKIT_HOSTS=$folder/hosts.yaml
step "The cluster: image, keys and containers on both hosts" "$toolkit" up
step "Do all ranks reach each other?" "$toolkit" smoke
step "A model learns handwritten digits on both hosts" \
    "$toolkit" run --workdir examples/digits train_horovod.py

cat <<END

That was a real training run over ssh across two hosts: one main container, one worker.
It took $(($(date +%s) - begin)) s. The practice cluster is still up:

    . $(dirname "$toolkit")/activate && export TOOLKIT_HOSTS=$folder/hosts.yaml
    toolkit status
    toolkit run --launcher torchrun --workdir examples/digits train_ddp.py
    toolkit down && toolkit lab down --name demo

Your own machines: toolkit init HOST HOST writes hosts.yaml; toolkit check says what is in the way; then
toolkit trust, toolkit up, toolkit run train.py. The README says more.
END
