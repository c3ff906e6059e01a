#!/bin/bash
# 4 ranks on 2 nodes by python, with one Docker container on each node. Rendered by `toolkit render slurm`.
#
#   sbatch demo-train.sh
#
# Run this command in the folder with your code, because ranks start in this folder. All nodes must share the
# folder. For another folder, run: CODE=/another/folder sbatch demo-train.sh
#
# Each node needs iproute2 and Docker, which you must be able to use.
#SBATCH --job-name=demo-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --nodelist=gpu1,gpu2
#SBATCH --gpus=4
#SBATCH --exclusive
#SBATCH --time=2
#SBATCH --output=%x-%j.log
#SBATCH --partition=gpu
set -u -o pipefail

export code=${CODE:-$SLURM_SUBMIT_DIR}
# After a requeue, the container of the attempt before can still be stopping.
export name=toolkit-job-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
export folder=/tmp/$name
# Below the ports that Linux assigns to connections automatically.
export port=$((20000 + SLURM_JOB_ID % 10000))
uid=$(id -u) gid=$(id -g)
export uid gid
: "${HF_TOKEN:?set this variable before you submit the script; the script passes it on and does not contain its value}"
export HF_TOKEN

fail() {
    echo "${SLURMD_NODENAME:-$(hostname)}: $1" >&2
    exit "${2:-1}"
}

slots_of() {
    case $1 in
    gpu1) echo 1 ;;
    gpu2) echo 3 ;;
    *) fail "this script does not contain node $1; render the script again from a hosts.yaml that contains this node" ;;
    esac
}

# Address of a node for ranks: from hosts.yaml, or from its name as other nodes resolve it.
address_of() {
    case $1 in
    gpu1) echo 10.0.0.11 ;;
    *) getent ahostsv4 "$1" | awk '$1 !~ /^127/ { print $1; exit }' ;;
    esac
}

# Files that are equal on all nodes, written on each.
furnish() {
    umask 077
    # Folders of attempts that Slurm or a crash of the node killed.
    rm -rf "/tmp/toolkit-job-$SLURM_JOB_ID-"* 2> /dev/null
    mkdir "$folder" || fail "cannot create the folder $folder"
    mkdir "$folder/home" "$folder/ask"
    mkfifo "$folder/life"
    {
        echo "root:x:0:0:root:/root:/bin/sh"
        [ "$(id -u)" = 0 ] || echo "$(id -un):x:$(id -u):$(id -g)::/run/toolkit/home:/bin/sh"
    } > "$folder/passwd"
    {
        echo "root:x:0:"
        [ "$(id -g)" = 0 ] || echo "$(id -gn):x:$(id -g):"
    } > "$folder/group"
    { echo "127.0.0.1 localhost"; printf '%s\n' "$names"; } > "$folder/hosts"
    cat > "$folder/rank" << 'END-OF-RANK'
. /run/toolkit/network
# A default, because Docker refuses NUMA calls of NCCL. A value of the image or of the job has priority.
: "${NCCL_CUMEM_HOST_ENABLE=0}"
export NCCL_CUMEM_HOST_ENABLE
# Every rank starts through these lines: they set the variables that frameworks read, and exit if the world
# size differs from the world size of the job.
if [ -n "${OMPI_COMM_WORLD_SIZE:-}" ]; then
    RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
    LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE
fi
export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
if [ "${WORLD_SIZE:-0}" -ne 4 ]; then
    echo "rank ${RANK:-?} on $(hostname): the launcher set the world size to ${WORLD_SIZE:-0}, but the job requires 4" >&2
    exit 64
fi
# An image can have python3 without python.
command -v python > /dev/null || { shift; set -- python3 "$@"; }
"$@" &
child=$!
trap 'kill -TERM "$child" 2> /dev/null' TERM INT
wait "$child" 2> /dev/null
ended=$?
while kill -0 "$child" 2> /dev/null; do
    wait "$child" 2> /dev/null
    ended=$?
done
# The first rank that fails on a node records its exit code, because launchers have their own codes.
[ "$ended" -eq 0 ] || (set -C; echo "$ended" > /run/toolkit/code) 2> /dev/null
exit "$ended"
END-OF-RANK
    cat > "$folder/ranks" << 'END-OF-RANKS'
#!/bin/bash
# ranks FIRST COUNT COMMAND...: run this node's ranks in parallel; the first rank that fails ends the other ranks.
first=$1 count=$2
shift 2
for ((i = 0; i < count; i++)); do
    RANK=$((first + i)) LOCAL_RANK=$i LOCAL_WORLD_SIZE=$count sh /run/toolkit/rank "$@" &
done
for ((i = 0; i < count; i++)); do
    wait -n || { ended=$?; kill $(jobs -p) 2> /dev/null; wait; exit "$ended"; }
done
END-OF-RANKS
    chmod -R u+rwX,go= "$folder"
}

# Run one container while this script runs. The container ends when the pipe that it reads has no writer,
# so that even kill -9 leaves no container behind.
node() {
    local peer device network container ending='' told='' rdma=() more=() own=()
    trap 'echo ended' EXIT
    [ -d "$code" ] || fail "the folder $code does not exist on this node; submit the job from a folder that all nodes share" 66
    command -v docker > /dev/null || fail "docker is not installed" 69
    furnish
    trap 'leave; echo ended' EXIT
    trap 'ending=yes' TERM INT
    peer=$master
    [ "$SLURMD_NODENAME" = "$first" ] && peer=${second:-127.0.0.1}
    device=$(ip -o -4 route get "$peer" | sed -n 's/.* dev \([^ ]*\).*/\1/p')
    network=$(ip -o -4 addr show dev "$device" | sed -n '1s/.* inet \([^ ]*\).*/\1/p')
    [ -n "$network" ] || fail "this node has no route to $peer or no iproute2; to check, run: ip route get $peer"
    # Interfaces differ from node to node, so each node sets its own variables.
    cat > "$folder/network" << END-OF-NETWORK
export GLOO_SOCKET_IFNAME=$device
export HOROVOD_GLOO_IFACE=$device
export NCCL_SOCKET_IFNAME==$device
export OMPI_MCA_btl_tcp_if_include=$network
export TP_SOCKET_IFNAME=$device
END-OF-NETWORK
    # Variables of one node override the lines above. Docker and the launcher read some of them too.
    case $SLURMD_NODENAME in
    gpu2) printf '%s\n' 'export OMP_NUM_THREADS=4' >> "$folder/network"; own=(--env OMP_NUM_THREADS=4) ;;
    esac
    for each in /dev/infiniband/*; do
        [ -c "$each" ] && rdma+=(--device "$each")
    done
    # RDMA pins memory.
    [ -n "${rdma[*]-}" ] && more=("${rdma[@]}" --ulimit memlock=-1:-1)
    [ -n "${rdma[*]-}" ] || more=(--env NCCL_IB_DISABLE=1)
    for each in $(id -G); do
        [ "$each" = 0 ] || more+=(--group-add "$each")
    done
    # Slurm's numbers of the GPUs of this job on this node.
    more+=(--gpus "\"device=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:?Slurm assigned no GPU to the job}}\"")
    docker image inspect registry.example.com:5000/team/trainer:1.0 > /dev/null 2>&1 || docker pull --quiet registry.example.com:5000/team/trainer:1.0 >&2 || fail 'cannot pull the image registry.example.com:5000/team/trainer:1.0' 69
    # Docker uses the last value of a variable or limit, so the options of the job follow those of the node.
    docker run \
        "${more[@]}" \
        --interactive \
        --rm \
        --name "$name" \
        --hostname "$SLURMD_NODENAME" \
        --network host \
        --init \
        --entrypoint env \
        --user "$uid"':'"$gid" \
        --workdir /workspace \
        --cap-drop ALL \
        --security-opt no-new-privileges \
        --pids-limit 65536 \
        --shm-size 4294967296 \
        --ulimit memlock=-1:-1 \
        --stop-timeout 10 \
        --env HOME=/run/toolkit/home \
        --env 'MASTER_ADDR='"$master" \
        --env 'MASTER_PORT='"$port" \
        --env 'MOTTO=it'"'"'s $(5) $5' \
        --env NCCL_DEBUG=WARN \
        --env PYTHONUNBUFFERED=1 \
        --mount 'type=bind,source='"$folder"',target=/run/toolkit' \
        --mount 'type=bind,source='"$code"',target=/workspace' \
        --mount 'type=bind,source='"$folder"'/hosts,target=/etc/hosts,readonly' \
        --mount 'type=bind,source='"$folder"'/passwd,target=/etc/passwd,readonly' \
        --mount 'type=bind,source='"$folder"'/group,target=/etc/group,readonly' \
        --mount 'type=bind,source=/data/my set,target=/data,readonly' \
        --mount type=bind,source=/scratch,target=/out \
        --label team=vision \
        --label 'toolkit.slurm='"$SLURM_JOB_ID" \
        --env HF_TOKEN \
        ${own[@]+"${own[@]}"} \
        registry.example.com:5000/team/trainer:1.0 sh -c 'trap "" TERM; exec cat' < "$folder/life" > /dev/null &
    container=$!
    exec 8> "$folder/life"
    until docker exec "$name" true 2> /dev/null; do
        kill -0 "$container" 2> /dev/null || fail "the container of the job stopped during its start" 69
        sleep 0.1 8>&-
    done
    echo ready
    while [ -z "$ending" ] && [ ! -e "$folder/end" ] && kill -0 "$container" 2> /dev/null; do
        if [ -z "$told" ] && [ -s "$folder/code" ]; then
            told=yes
            echo "code $(cat "$folder/code")"
        fi
        sleep 0.2 8>&- &
        wait $!
    done
}

# Ranks get SIGTERM and 10 seconds; then the container and all its processes end.
leave() {
    trap '' TERM INT
    if docker exec "$name" sh -c 'kill -TERM -1' 2> /dev/null; then
        for ((i = 0; i < 50; i++)); do
            # These three lines remain: the headline, Docker's init and the reader of the pipe.
            [ "$(docker top "$name" -o pid 2> /dev/null | wc -l)" -le 3 ] && break
            sleep 0.2 8>&-
        done
    fi
    exec 8>&-
    wait
    docker rm --force "$name" > /dev/null 2>&1
    rm -rf "$folder"
}

launch() {
    local before
    read -ra before <<< "$firsts"
    local rank0=${before[$SLURM_NODEID]}
    local slots; slots=$(slots_of "$SLURMD_NODENAME")
    docker exec \
        --env WORLD_SIZE=4 \
        "$name" \
        bash \
        /run/toolkit/ranks \
        "$rank0" \
        "$slots" \
        python \
        train.py \
        --note 'it'"'"'s $5'
}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export first=${nodes[0]} second='' master='' names='' count=$SLURM_JOB_NUM_NODES
[ "$count" -gt 1 ] && second=$(address_of "${nodes[1]}")
for each in "${nodes[@]}"; do
    address=$(address_of "$each")
    # A node might resolve its own name to 127.0.1.1, so use the source address of the route to another node.
    if [ -z "$address" ] && [ "$each" = "$first" ]; then
        address=$(ip -o -4 route get "${second:-127.0.0.1}" | sed -n 's/.* src \([^ ]*\).*/\1/p')
    fi
    [ -n "$address" ] || fail "the address of node $each is unknown; set data_address in hosts.yaml, and render the script again"
    [ "$each" = "$first" ] && master=$address
    names+="$address $each"$'\n'
done
offset=0 firsts=''
for each in "${nodes[@]}"; do firsts+="$offset "; offset=$((offset + $(slots_of "$each"))); done
export firsts

# Slurm sets SLURM_GPUS to the GPUs of all nodes, and srun would request this number for a step on one node too.
unset SLURM_GPUS
functions=$(declare -f fail slots_of furnish node leave launch)
exec 9< <(exec srun --input=none --kill-on-bad-exit=0 bash -c "$functions; node")
trap 'ended=143' TERM
ready=0 ended=0 code_of=''
while [ "$ended" -eq 0 ] && [ "$ready" -lt "$count" ]; do
    read -r -t 3600 -u 9 word code_of || word=late
    if [ "$word" = ready ]; then ready=$((ready + 1)); else ended=69; fi
done
if [ "$ended" -eq 0 ]; then
    srun --overlap --input=none --kill-on-bad-exit=1 bash -c "$functions; launch" &
    launched=$!
    wait "$launched"
    ended=$?
    # The exit code of a rank is more specific than the exit code of the launcher.
    while [ "$ended" -ne 0 ] && read -r -t 1 -u 9 word code_of; do
        [ "$word" = code ] && { ended=$code_of; break; }
    done
else
    echo "not all containers started: a node failed (see the lines above), a container needed more than 3600 s, or Slurm stopped the job" >&2
fi
# Without a signal to srun, which would kill its tasks before their cleanup.
srun --overlap --input=none --kill-on-bad-exit=0 touch "$folder/end" 2> /dev/null
while read -r -t 40 -u 9 word code_of; do :; done
exit "$ended"
