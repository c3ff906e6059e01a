#!/bin/sh
# Start two hosts on this machine that share its GPUs: namespaces with an own network, host name, sshd and Docker
# engine. NCCL accepts two ranks on one GPU if their host names differ, so that one GPU is enough for a job of two
# hosts. Needs root, iproute2, util-linux, Docker, sshd and, for the GPUs, the NVIDIA Container Toolkit.
# usage: gpu-hosts.sh up FOLDER | down FOLDER    SSHD=PATH names another sshd
set -eu

SSHD=${SSHD:-/usr/sbin/sshd}
HOSTS="gpu1 gpu2"

stop() { echo "gpu-hosts: $1" >&2; exit 1; }

# The first process of a host, in its namespaces.
if [ "${1-}" = host ]; then
    base=$2 name=$3
    exec 3> "$base/$name/sshd.log" 4> "$base/$name/dockerd.log"
    hostname "$name"
    mount --make-rprivate /
    mount -t proc proc /proc
    mount --rbind "$base/cgroup" /sys/fs/cgroup # `ip netns exec` has mounted another /sys
    umount -R "$base/cgroup"
    mount -t tmpfs tmpfs /run
    mkdir -p /run/sshd /run/lock
    for pair in docker:/var/lib/docker ssh:/etc/ssh; do
        mount --bind "$base/$name/${pair%%:*}" "${pair#*:}"
    done
    cd "$base/$name" # these two can hide it
    mount --bind tmp /tmp
    mount --bind root /root
    cd /
    ip link set lo up
    "$SSHD" -D -e 2>&3 &
    exec dockerd --bridge=none --iptables=false --ip6tables=false --exec-opt native.cgroupdriver=cgroupfs >&4 2>&1
fi

[ $# -eq 2 ] || stop "usage: gpu-hosts.sh up|down FOLDER"
[ "$(id -u)" = 0 ] || stop "this script needs root, which creates namespaces"
mkdir -p "$2"
base=$(realpath "$2")

down() {
    for name in $HOSTS; do
        # The end of the first process ends all processes of its PID namespace, and its mounts.
        [ ! -e "$base/$name/pid" ] || kill -KILL "$(cat "$base/$name/pid")" 2> /dev/null || true
        ip netns del "toolkit-$name" 2> /dev/null || true
    done
    while mountpoint -q "$base/cgroup"; do umount -R "$base/cgroup" || sleep 0.2; done
    rm -rf "$base"
}

if [ "$1" = down ]; then
    down
    exit
fi
[ "$1" = up ] || stop "usage: gpu-hosts.sh up|down FOLDER"
for program in ip unshare dockerd "$SSHD" ssh-keygen; do
    command -v "$program" > /dev/null || stop "$program is missing"
done
[ ! -e "$base/gpu1" ] || stop "$base has hosts already: sh scripts/gpu-hosts.sh down $base"
trap 'down' EXIT

mkdir -p "$base/cgroup" /var/lib/docker /etc/ssh
mount --rbind /sys/fs/cgroup "$base/cgroup"
mount --make-rslave "$base/cgroup"
ssh-keygen -q -t ed25519 -N '' -f "$base/user_key"
number=0
for name in $HOSTS; do
    number=$((number + 1))
    for folder in root/.ssh docker ssh tmp; do mkdir -p "$base/$name/$folder"; done
    chmod 700 "$base/$name/root" "$base/$name/root/.ssh"
    chmod 1777 "$base/$name/tmp"
    cp "$base/user_key.pub" "$base/$name/root/.ssh/authorized_keys"
    ssh-keygen -q -t ed25519 -N '' -f "$base/$name/ssh/host_key"
    printf '%s\n' 'HostKey /etc/ssh/host_key' 'PermitRootLogin prohibit-password' 'UsePAM no' 'MaxStartups 100' \
        > "$base/$name/ssh/sshd_config"
    # A network of this machine and the host for SSH, and one of the two hosts for ranks. Neither needs forwarding.
    ip netns add "toolkit-$name"
    ip link add "toolkit$number" type veth peer name ssh0 netns "toolkit-$name"
    ip addr add "10.79.$number.1/30" dev "toolkit$number"
    ip link set "toolkit$number" up
    ip -n "toolkit-$name" addr add "10.79.$number.2/30" dev ssh0
    ip -n "toolkit-$name" link set ssh0 up
    echo "10.79.$number.2 $(cut -d ' ' -f 1,2 "$base/$name/ssh/host_key.pub")" >> "$base/known_hosts"
done
ip -n toolkit-gpu1 link add data0 type veth peer name data0 netns toolkit-gpu2
number=0
for name in $HOSTS; do
    number=$((number + 1))
    ip -n "toolkit-$name" addr add "10.79.0.$number/24" dev data0
    ip -n "toolkit-$name" link set data0 up
    ip netns exec "toolkit-$name" unshare --uts --mount --pid --fork --kill-child \
        sh "$0" host "$base" "$name" > "$base/$name/init.log" 2>&1 &
    echo $! > "$base/$name/pid"
done
cat > "$base/hosts.yaml" << END
cluster: gpu-hosts
image: toolkit:gpu
known_hosts: $base/known_hosts
hosts:
  gpu1: {address: 10.79.1.2, user: root, identity_file: $base/user_key}
  gpu2: {address: 10.79.2.2, user: root, identity_file: $base/user_key}
END
for number in 1 2; do
    tries=0
    until ssh -o BatchMode=yes -o ConnectTimeout=2 -o "UserKnownHostsFile=$base/known_hosts" -i "$base/user_key" \
        "root@10.79.$number.2" docker version > /dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 60 ] || { tail -n 5 "$base/gpu$number/"*.log >&2; stop "gpu$number does not answer"; }
        sleep 0.5
    done
done
trap - EXIT
echo "next: toolkit up --hosts $base/hosts.yaml"
