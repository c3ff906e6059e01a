#!/bin/sh
# Train across two practice hosts. Needs a Docker engine and a virtual environment. usage: demo.sh TOOLKIT
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

step "Build the image that the hosts run" "$toolkit" image build --flavor cpu
step "Create two practice hosts, each with its own address, SSH server and Docker engine" \
    "$toolkit" lab up --name demo --count 2 --folder "$folder"
export TOOLKIT_HOSTS=$folder/hosts.yaml
step "Copy the image to both hosts, generate keys, and start containers" "$toolkit" up
step "Check that all ranks reach each other" "$toolkit" smoke
step "Train a model of handwritten digits on both hosts" \
    "$toolkit" run --workdir examples/digits train_horovod.py

cat <<END

The demo trained a model on two hosts over SSH: in one main container and one worker container.
The demo took $(($(date +%s) - begin)) s. To use and then remove the practice cluster, run:

    . $(dirname "$toolkit")/activate && export TOOLKIT_HOSTS=$folder/hosts.yaml
    toolkit status
    toolkit run --workdir examples/digits train_ddp.py
    toolkit down && toolkit lab down --name demo && unset TOOLKIT_HOSTS

On your own hosts: toolkit init HOST HOST, toolkit trust, toolkit check, toolkit up, toolkit run train.py.
Next: the tutorial docs/tutorials/practice-cluster.md. All commands: docs/reference/cli.md.
END
