#!/bin/bash
# 4 ranks on 2 nodes, each started by srun in a container of apptainer. Rendered by `toolkit render slurm`.
#
#   sbatch demo-train.sh
#
# Run this command in the folder with your code, because ranks start in this folder. All nodes must share the
# folder. For another folder, run: CODE=/another/folder sbatch demo-train.sh
#
# For another image, run: IMAGE=… sbatch demo-train.sh (a .sif file on a file system that all nodes share)
#SBATCH --job-name=demo-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=2
#SBATCH --output=%x-%j.log
set -u -o pipefail

code=${CODE:-$SLURM_SUBMIT_DIR}
image=${IMAGE:-docker://registry.example.com:5000/team/trainer:1.0}
: "${HF_TOKEN:?set this variable before you submit the script; the script passes it on and does not contain its value}"
export HF_TOKEN

fail() {
    echo "$1" >&2
    exit 1
}

# Address of a node for ranks: from hosts.yaml, or from its name as other nodes resolve it.
address_of() {
    case $1 in
    gpu1) echo 10.0.0.11 ;;
    *) getent ahostsv4 "$1" | awk '$1 !~ /^127/ { print $1; exit }' ;;
    esac
}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export SECOND='' MASTER_ADDR=''
unknown="set data_address in hosts.yaml, and render the script again, because no address is known for node"
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    SECOND=$(address_of "${nodes[1]}")
    [ -n "$SECOND" ] || fail "$unknown ${nodes[1]}"
fi
MASTER_ADDR=$(address_of "${nodes[0]}")
# A node might resolve its own name to 127.0.1.1, so use the source address of the route to another node.
[ -n "$MASTER_ADDR" ] ||
    MASTER_ADDR=$(ip -o -4 route get "${SECOND:-127.0.0.1}" | sed -n 's/.* src \([^ ]*\).*/\1/p')
[ -n "$MASTER_ADDR" ] || fail "$unknown ${nodes[0]}"
# Below the ports that Linux assigns to connections automatically.
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

rank=$(
    cat << 'END-OF-RANK'
# Every rank starts through these lines: they set the variables that frameworks read, and exit if the world
# size differs from the world size of the job.
if [ -n "${OMPI_COMM_WORLD_SIZE:-}" ]; then
    RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
    LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE
elif [ -z "${RANK:-}" ]; then
    RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
    LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
fi
export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
if [ "${WORLD_SIZE:-0}" -ne 4 ]; then
    echo "rank ${RANK:-?} on $(hostname): the launcher set the world size to ${WORLD_SIZE:-0}, but the job requires 4" >&2
    exit 64
fi
# An image can have python3 without python.
command -v python > /dev/null || { shift; set -- python3 "$@"; }
# Interfaces differ from node to node, so each node sets its own variables.
peer=$MASTER_ADDR
[ "$SLURM_NODEID" -ne 0 ] || peer=${SECOND:-127.0.0.1}
device=$(ip -o -4 route get "$peer" | sed -n 's/.* dev \([^ ]*\).*/\1/p')
network=$(ip -o -4 addr show dev "$device" | sed -n '1s/.* inet \([^ ]*\).*/\1/p')
if [ -z "$network" ]; then
    echo "$SLURMD_NODENAME: the node has no route to $peer, or the image does not contain iproute2" >&2
    exit 69
fi
export GLOO_SOCKET_IFNAME=$device
export HOROVOD_GLOO_IFACE=$device
export NCCL_SOCKET_IFNAME==$device
export OMPI_MCA_btl_tcp_if_include=$network
export TP_SOCKET_IFNAME=$device
# Only for the command in the container: srun and the lines above run with the variables of the system. Not
# exported, because a shell refuses variables of its own, such as UID.
exec env \
    'MOTTO=it'"'"'s $(5) $5' \
    NCCL_DEBUG=WARN \
    PYTHONUNBUFFERED=1 \
    "$@"
END-OF-RANK
)

srun --input=none --kill-on-bad-exit=1 --mpi=pmix \
    apptainer \
    exec \
    --nv \
    --pwd /workspace \
    --bind "$code"':/workspace' \
    --bind '/data/my set:/data:ro' \
    --bind /scratch:/out \
    "$image" \
    sh -c "$rank" rank \
    python train.py --note 'it'"'"'s $5'
