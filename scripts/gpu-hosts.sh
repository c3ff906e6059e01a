#!/bin/sh
# Start two hosts on this machine that share its GPUs: namespaces with an own network, host name, sshd and Docker
# engine. NCCL accepts two ranks on one GPU if their host names differ, so that one GPU is enough for a job of two
# hosts. Needs root, iproute2, util-linux, Docker, sshd and, for the GPUs, the NVIDIA Container Toolkit.
# usage: gpu-hosts.sh up FOLDER | down FOLDER
# SSHD=PATH names another sshd. SSH_USER=NAME is the user of SSH and of the ranks; by default root. Another user exists
# only on the two hosts.
set -eu

SSHD=${SSHD:-/usr/sbin/sshd}
SSH_USER=${SSH_USER:-root}
HOSTS="gpu1 gpu2"
user_id=1500

stop() { printf 'gpu-hosts: %s\n%s' "$1" "${2:+  fix: $2
}" >&2; exit 1; }

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
    if [ "$SSH_USER" = root ]; then
        mount --bind home /root
    else
        for file in passwd group; do mount --bind "$file" "/etc/$file"; done
        mount -t tmpfs tmpfs /home
        mkdir "/home/$SSH_USER"
        mount --bind home "/home/$SSH_USER"
    fi
    cd /
    ip link set lo up
    "$SSHD" -D -e 2>&3 &
    exec dockerd --group="$SSH_USER" --bridge=none --iptables=false --ip6tables=false --exec-opt native.cgroupdriver=cgroupfs >&4 2>&1
fi

[ $# -eq 2 ] || stop "usage: gpu-hosts.sh up|down FOLDER"
[ "$(id -u)" = 0 ] || stop "this script needs root, which creates namespaces" "sudo sh scripts/gpu-hosts.sh $*"
[ "$1" != up ] || [ "$SSH_USER" = root ] || ! getent passwd "$SSH_USER" > /dev/null ||
    stop "the user $SSH_USER exists on your machine" "set SSH_USER to root or to another name"

# Names a network namespace and the boot of the machine in which it exists.
mark() { echo "$1 $(stat -Lc %d:%i "/run/netns/toolkit-$1" 2> /dev/null) $(cat /proc/sys/kernel/random/boot_id)"; }

down() {
    for name in $HOSTS; do
        grep -qxF "$(mark "$name")" "$base/.gpu-hosts" || continue # another folder's
        tries=0
        while pids=$(ip netns pids "toolkit-$name" 2> /dev/null) && [ -n "$pids" ]; do
            [ $tries -lt 100 ] || stop "processes of $name do not end: $(echo $pids)" "cat /proc/PID/stack"
            tries=$((tries + 1))
            kill -KILL $pids 2> /dev/null || true # their mounts end with them
            sleep 0.2
        done
        ip netns del "toolkit-$name" 2> /dev/null || true
    done
    tries=0
    while mountpoint -q "$base/cgroup"; do
        [ $tries -lt 100 ] || stop "cannot unmount $base/cgroup" "umount -R $base/cgroup"
        tries=$((tries + 1))
        umount -R "$base/cgroup" || sleep 0.2
    done
    rmdir "$base/cgroup" 2> /dev/null || true
    for name in $HOSTS user_key user_key.pub known_hosts hosts.yaml .gpu-hosts; do
        rm -rf --one-file-system "${base:?}/$name"
    done
    rmdir "$base" 2> /dev/null || true
}

case $1 in
down)
    [ -f "$2/.gpu-hosts" ] || stop "$2 has no hosts of this script" "pass the folder of gpu-hosts.sh up"
    base=$(realpath "$2")
    down
    exit
    ;;
up) ;;
*) stop "usage: gpu-hosts.sh up|down FOLDER" ;;
esac
for program in ip unshare dockerd "$SSHD" ssh-keygen; do
    command -v "$program" > /dev/null || stop "$program is missing" "sudo apt-get install docker.io iproute2 openssh-server util-linux"
done
for name in $HOSTS; do
    [ ! -e "/run/netns/toolkit-$name" ] || stop "the network namespace toolkit-$name exists: one cluster at a time" \
        "sudo sh scripts/gpu-hosts.sh down FOLDER  # after a failure without a folder: ip netns del toolkit-$name"
done
mkdir -p "$2"
base=$(realpath "$2")
[ -z "$(ls -A "$base")" ] || stop "$base is not empty" "pass a new folder"
touch "$base/.gpu-hosts"
trap down EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$base/cgroup" /var/lib/docker /etc/ssh
mount --rbind /sys/fs/cgroup "$base/cgroup"
mount --make-rslave "$base/cgroup"
ssh-keygen -q -t ed25519 -N '' -f "$base/user_key"
number=0
for name in $HOSTS; do
    number=$((number + 1))
    for folder in home/.ssh docker ssh tmp; do mkdir -p "$base/$name/$folder"; done
    chmod 700 "$base/$name/home" "$base/$name/home/.ssh"
    chmod 1777 "$base/$name/tmp"
    cp "$base/user_key.pub" "$base/$name/home/.ssh/authorized_keys"
    if [ "$SSH_USER" != root ]; then
        cp /etc/passwd /etc/group "$base/$name"
        echo "$SSH_USER:*:$user_id:$user_id::/home/$SSH_USER:/bin/sh" >> "$base/$name/passwd"
        echo "$SSH_USER:*:$user_id:" >> "$base/$name/group"
        chown -R "$user_id:$user_id" "$base/$name/home"
    fi
    ssh-keygen -q -t ed25519 -N '' -f "$base/$name/ssh/host_key"
    printf '%s\n' 'HostKey /etc/ssh/host_key' 'PermitRootLogin prohibit-password' 'UsePAM no' 'MaxStartups 100' \
        > "$base/$name/ssh/sshd_config"
    # A network of this machine and the host for SSH, and one of the two hosts for ranks. Neither needs forwarding.
    ip netns add "toolkit-$name"
    mark "$name" >> "$base/.gpu-hosts"
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
    ip netns exec "toolkit-$name" unshare --uts --mount --pid --fork \
        sh "$0" host "$base" "$name" > "$base/$name/init.log" 2>&1 &
done
cat > "$base/hosts.yaml" << END
cluster: gpu-hosts
image: toolkit:gpu
known_hosts: $base/known_hosts
hosts:
  gpu1: {address: 10.79.1.2, user: $SSH_USER, identity_file: $base/user_key}
  gpu2: {address: 10.79.2.2, user: $SSH_USER, identity_file: $base/user_key}
END
for number in 1 2; do
    tries=0
    until ssh -o BatchMode=yes -o ConnectTimeout=2 -o "UserKnownHostsFile=$base/known_hosts" -i "$base/user_key" \
        "$SSH_USER@10.79.$number.2" docker version > /dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 60 ] || { tail -n 5 "$base/gpu$number/"*.log >&2; stop "gpu$number does not answer"; }
        sleep 0.5
    done
done
trap - EXIT
echo "next: toolkit up --hosts $base/hosts.yaml"
