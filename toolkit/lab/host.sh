#!/bin/bash
# Programs of a practice host; they run in its container.
#   start          boot: name the network interfaces, start sshd and dockerd, and run until SIGTERM
#   ready SECONDS  wait for both; read the user's public key from stdin; print the engine's version, then the host key
#   report         print version and storage driver of the engine, and the status lines of the driver
set -u

run=/run/toolkit-lab
host_key=/etc/ssh/ssh_host_ed25519_key
runtime=/run/user/1000
# Each interface as ADDRESS,NAME,RATE,BURST,PREFIX. Rate and burst are empty for an interface without a limit. Prefix
# is empty on the network of the engine.
read -ra cards <<< "${TOOLKIT_LAB_CARDS:-}"

name_cards() {
    gateway=$(ip -4 route show default | sed -n 's/.* via \([0-9.]*\).*/\1/p')
    number=0
    # The engine decides which interface is eth0, so the address identifies each one. An interface must be down to be
    # renamed, which removes its routes. Two interfaces can swap their names, so all get temporary names first.
    for card in "${cards[@]}"; do
        IFS=, read -r address _ <<< "$card"
        now=$(ip -o -4 addr show to "$address/32" | awk '{ print $2; exit }')
        [ -n "$now" ] || continue
        ip link set dev "$now" down
        ip link set dev "$now" name "lab$number"
        names[$number]=$card
        number=$((number + 1))
    done
    for i in "${!names[@]}"; do
        IFS=, read -r address name rate burst prefix <<< "${names[$i]}"
        ip link set dev "lab$i" name "$name"
        if [ -n "$prefix" ]; then
            ip -4 addr flush dev "$name"
            ip addr add "$address/$prefix" dev "$name"
        fi
        ip link set dev "$name" up
        [ -z "$rate" ] || tc qdisc replace dev "$name" root tbf rate "$rate" burst "$burst" latency 50ms
    done
    [ -z "$gateway" ] || ip route replace default via "$gateway"
}

own_cgroup() {
    # With its own cgroup namespace, this process is in the root cgroup. In cgroup v2, a cgroup passes controllers to
    # its children only if it contains no processes.
    [ -z "${TOOLKIT_LAB_CGROUP:-}" ] && [ -f /sys/fs/cgroup/cgroup.controllers ] || return
    mkdir -p /sys/fs/cgroup/host
    # Again until it is empty: the list changes while processes move, and `docker exec` starts processes in it.
    for _ in $(seq 100); do
        for pid in $(cat /sys/fs/cgroup/cgroup.procs); do
            echo "$pid" > /sys/fs/cgroup/host/cgroup.procs
        done 2> /dev/null
        sed -e 's/ / +/g' -e 's/^/+/' /sys/fs/cgroup/cgroup.controllers 2> /dev/null \
            > /sys/fs/cgroup/cgroup.subtree_control && return
        sleep 0.1
    done
    echo "the engine cannot limit resources of containers: the root cgroup still contains processes"
}

start_sshd() {
    [ -f $host_key ] || ssh-keygen -q -t ed25519 -N '' -C "$(hostname)" -f $host_key
    cat > /etc/ssh/sshd_config.d/toolkit-lab.conf <<EOF
HostKey $host_key
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
EOF
    # On other hosts systemd sets the runtime folder of a login; without the second variable every command of Podman warns.
    [ "${TOOLKIT_LAB_STORE:-}" != podman ] ||
        echo "SetEnv XDG_RUNTIME_DIR=$runtime PODMAN_IGNORE_CGROUPSV1_WARNING=1" >> /etc/ssh/sshd_config.d/toolkit-lab.conf
    mkdir -p /run/sshd
    /usr/sbin/sshd -D -E /var/log/sshd.log &
    sshd=$!
}

# Podman has no daemon: images and containers belong to the user.
prepare_podman() {
    mount --make-rshared / 2> /dev/null
    # crun fails on machines that mount both versions of control groups.
    mkdir -p /etc/containers
    printf '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' > /etc/containers/containers.conf
    chown trainer: /home/trainer/.local /home/trainer/.local/share /home/trainer/.local/share/containers
    install -d -m 700 -o trainer -g trainer "$runtime"
}

podman_of_trainer() {
    runuser -u trainer -- env HOME=/home/trainer XDG_RUNTIME_DIR="$runtime" PODMAN_IGNORE_CGROUPSV1_WARNING=1 podman "$@"
}

start_engine() {
    if [ "${TOOLKIT_LAB_STORE:-}" = podman ]; then
        prepare_podman
        return
    fi
    # After SIGKILL these files contain the ids of ended processes, and dockerd would not start.
    find /run /var/run -maxdepth 3 \( -name docker.pid -o -name containerd.pid \) -delete 2> /dev/null
    set -- dockerd
    if [ "${TOOLKIT_LAB_STORE:-}" = containerd ]; then
        echo '{"features": {"containerd-snapshotter": true}}' > /etc/docker/daemon.json
        # Packages install containerd as a separate service with its data in /var/lib/containerd.
        containerd --log-level warn &
        for _ in $(seq 100); do
            [ -S /run/containerd/containerd.sock ] && break
            sleep 0.1
        done
        set -- "$@" --containerd=/run/containerd/containerd.sock
    fi
    # In the machine's cgroup namespace, each host needs its own cgroup, which `lab down` removes.
    [ -z "${TOOLKIT_LAB_CGROUP:-}" ] || set -- "$@" --cgroup-parent="$TOOLKIT_LAB_CGROUP"
    rm -f $run/engine-ended
    ("$@"; echo "dockerd ended with status $?" | tee $run/engine-ended) &
}

start() {
    mkdir -p $run
    echo "$(hostname): starting"
    own_cgroup
    name_cards
    # As on a shared scratch folder: every user can write, and only the owner of a file can remove it.
    chmod 1777 /srv/shared
    start_sshd
    start_engine
    # As a machine, the host continues to run if its engine or sshd ends.
    trap 'stop' TERM INT
    while :; do
        sleep 86400 &
        wait $!
    done
}

stop() {
    echo "$(hostname): stopping"
    engine=$(pidof dockerd) && kill -TERM $engine
    kill -TERM "$sshd" 2> /dev/null
    # dockerd stops its containers first; the stop command of the host sets the time limit.
    [ "${TOOLKIT_LAB_STORE:-}" != podman ] || podman_of_trainer stop --all --time 5 > /dev/null 2>&1
    while pidof dockerd > /dev/null; do sleep 0.1; done
    exit 0
}

engine_version() {
    if [ "${TOOLKIT_LAB_STORE:-}" = podman ]; then
        podman_of_trainer version --format '{{.Client.Version}}' 2> /dev/null
        return
    fi
    [ -S /run/docker.sock ] && timeout 10 docker version --format '{{.Server.Version}}' 2> /dev/null
}

ready() {
    deadline=$(($(date +%s) + $1))
    until version=$(engine_version) && [ -s $host_key.pub ] && (: < /dev/tcp/127.0.0.1/22) 2> /dev/null; do
        if [ -e $run/engine-ended ]; then
            cat $run/engine-ended >&2
            exit 3
        fi
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "sshd or the container engine did not start within $1 s: sshd $(pidof sshd || echo down)," \
                 "dockerd $(pidof dockerd || echo down)" >&2
            exit 4
        fi
        sleep 0.2
    done
    home=$(getent passwd "$TOOLKIT_LAB_USER" | cut -d: -f6)
    install -d -m 700 -o "$TOOLKIT_LAB_USER" -g "$TOOLKIT_LAB_USER" "$home/.ssh"
    cat > $run/authorized_keys
    cmp -s $run/authorized_keys "$home/.ssh/authorized_keys" ||
        install -m 600 -o "$TOOLKIT_LAB_USER" -g "$TOOLKIT_LAB_USER" $run/authorized_keys "$home/.ssh/authorized_keys"
    echo "$version"
    cut -d' ' -f1,2 $host_key.pub
}

report() {
    if [ "${TOOLKIT_LAB_STORE:-}" = podman ]; then
        podman_of_trainer info --format '{{.Version.Version}} podman "{{.Store.GraphDriverName}}"'
        return
    fi
    timeout 10 docker info --format '{{.ServerVersion}} {{.Driver}} {{json .DriverStatus}}'
}

case ${1:-start} in
    start) start ;;
    ready) ready "$2" ;;
    report) report ;;
    *) echo "usage: $0 start | ready SECONDS | report" >&2; exit 2 ;;
esac
