#!/bin/sh
# The Docker engine of this machine, for `make demo` and `make test`.
#   ensure  do nothing if an engine answers; otherwise, as root on Debian or Ubuntu, install and start one
#   status  print whether an engine answers, and whether `ensure` started it
#   stop    stop the engine that `ensure` started, and no other; its images are kept
#   wake    restart an engine that `ensure` had started; otherwise do nothing
#   clean   stop this engine, and remove its data if no data existed before and the user has nothing in it
set -eu

state=${XDG_STATE_HOME:-${HOME:-/root}/.local/state}/toolkit/engine
data=/var/lib/docker
seconds=60

say() { printf 'engine: %s\n' "$*" >&2; }
fail() { say "$1"; [ -z "${2:-}" ] || printf '  fix: %s\n' "$2" >&2; exit 4; }
have() { command -v "$1" > /dev/null 2>&1; }
answers() { have docker && docker version --format '{{.Server.Version}}' 2> /dev/null; }
# From here on `docker` asks the engine of this machine, which can be another one than that of the user's variables
# or Docker context.
local_engine() {
    unset DOCKER_CONTEXT DOCKER_TLS DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_API_VERSION
    export DOCKER_HOST=unix:///var/run/docker.sock
}

# A process id alone may belong to another process by now; with its start time it cannot. A zombie has ended.
born() { sed 's/.*) //' "/proc/$1/stat" 2> /dev/null | sed '/^Z/d' | cut -d' ' -f20; }
ours() {
    [ -f "$state/started" ] || return 1
    read -r pid when < "$state/started"
    [ -n "$when" ] && [ "$(born "$pid")" = "$when" ]
}

ensure() {
    if version=$(answers); then
        say "Docker engine $version answers"
        return
    fi
    [ -z "${DOCKER_HOST:-}" ] || fail "no engine answers at DOCKER_HOST=$DOCKER_HOST" "start the engine, or unset DOCKER_HOST"
    if (local_engine; answers > /dev/null); then
        fail "the engine of your machine answers, but the engine of your Docker context does not" \
             "unset DOCKER_CONTEXT; docker context use default"
    fi
    # A second dockerd would take the socket and the records of the first one, which can still be starting.
    if ours; then
        log="less $state/dockerd.log  # to stop this engine with its containers: kill $pid"
        wait_for_answer
        return
    fi
    if [ "$(id -u)" != 0 ]; then
        if [ -S /var/run/docker.sock ] && [ ! -w /var/run/docker.sock ]; then
            fail "user $(id -un) cannot write to the Docker socket /var/run/docker.sock" \
                 "sudo usermod -aG docker $(id -un)  # then log in again"
        fi
        fail "no Docker engine answers, and only root can install or start one" \
             "sudo sh $0 ensure"
    fi
    mkdir -p "$state"
    remember
    if ! have dockerd || ! have docker; then install_packages; fi
    if [ -d /run/systemd/system ]; then
        # From here on it is the machine's own engine, and so is its data.
        rm -f "$state/before"
        say "starting the Docker engine with systemctl"
        systemctl start docker
        log='journalctl -u docker'
        wait_for_answer
    else
        start_by_hand
    fi
}

remember() {
    # Only before the first start: later, what is there is what we made.
    [ ! -f "$state/before" ] || return 0
    {
        [ -n "$(ls -A $data 2> /dev/null)" ] || echo made_data=yes
        [ -e /etc/docker ] || echo made_etc=yes
    } > "$state/before"
}

install_packages() {
    have apt-get || fail "Docker is not installed, and your machine has no apt-get" \
                         "install Docker: https://docs.docker.com/engine/install/"
    say "Docker is not installed: installing the packages docker.io and iptables with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    packages="docker.io iptables"
    {
        apt-get update
        # Newer releases have the command line in a package of its own.
        ! apt-cache show docker-cli || packages="$packages docker-cli"
        apt-get install -y --no-install-recommends $packages
    } > "$state/apt.log" 2>&1 || {
        tail -n 8 "$state/apt.log" >&2
        fail "apt-get failed; its output is in $state/apt.log" \
             "install Docker: https://docs.docker.com/engine/install/"
    }
}

start_by_hand() {
    say "your machine has no systemd: starting dockerd directly; its log is $state/dockerd.log"
    # For `stop`: dockerd changes these and does not change them back.
    forward=$(iptables -S FORWARD 2> /dev/null | sed -n 's/^-P FORWARD //p')
    printf 'forward=%s\nip_forward=%s\n' "${forward:-ACCEPT}" "$(cat /proc/sys/net/ipv4/ip_forward)" > "$state/net"
    # A session of its own: it must outlive this terminal and its Ctrl-C.
    setsid dockerd --pidfile "$state/docker.pid" > "$state/dockerd.log" 2>&1 < /dev/null &
    echo "$! $(born $!)" > "$state/started"
    log="less $state/dockerd.log"
    wait_for_answer
}

wait_for_answer() {
    end=$(($(date +%s) + seconds))
    until version=$(answers); do
        if [ -f "$state/started" ] && ! ours; then
            rm -f "$state/started"
            tail -n 8 "$state/dockerd.log" >&2
            fail "dockerd exited; its output is in $state/dockerd.log"
        fi
        [ "$(date +%s)" -lt "$end" ] || fail "the Docker engine did not answer within $seconds s" "$log"
        sleep 0.5
    done
    say "Docker engine $version started"
}

status() {
    version=$(answers) || { say "no Docker engine answers"; exit 4; }
    if ours; then whose="started by this script, pid $pid"; else whose="not started by this script"; fi
    say "Docker engine $version answers ($whose)"
}

# An engine that does not list its content is not an empty engine.
unknown() {
    fail "the engine was not stopped, because docker cannot list its containers, volumes and images" \
         "DOCKER_HOST=$DOCKER_HOST docker ps -a  # prints the reason"
}

stop() {
    ours || { say "nothing to stop: no engine that this script started still runs"; return 0; }
    running=$(docker ps -q) || unknown
    if [ -n "$running" ]; then
        say "the engine was not stopped, because it runs containers: $(echo "$running" | wc -l)"
        return 1
    fi
    bridges=$(docker network ls --filter driver=bridge --format '{{.ID}}' | sed 's/^/br-/')
    kill -TERM "$pid"
    end=$(($(date +%s) + seconds))
    while ours; do
        [ "$(date +%s)" -lt "$end" ] || fail "dockerd (process $pid) did not exit within $seconds s" "less $state/dockerd.log"
        sleep 0.2
    done
    for bridge in docker0 $bridges; do ip link delete "$bridge" 2> /dev/null || true; done
    rules
    # The mounts that hold network namespaces stay behind too.
    for mount in /run/docker/netns/*; do umount "$mount" 2> /dev/null || true; done
    rm -rf "$state/started" "$state/net" "$state/docker.pid" /run/docker.sock /run/docker
    find /sys/fs/cgroup -maxdepth 2 -type d -name docker -exec rmdir {} + 2> /dev/null || true
    say "stopped"
}

# Take away dockerd's packet filter rules: those that name its chains or its bridges.
rules() {
    names="DOCKER$(printf '|%s' docker0 $bridges)"
    for tool in iptables ip6tables; do
        have $tool || continue
        for table in nat filter; do
            all=$($tool -t $table -S 2> /dev/null) || continue
            printf '%s\n' "$all" | grep -E "^-A .*($names)" | sed 's/^-A/-D/' |
                while read -r rule; do eval "$tool -t $table $rule" || true; done
            printf '%s\n' "$all" | sed -n 's/^-N \(DOCKER.*\)/\1/p' |
                while read -r chain; do $tool -t $table -F "$chain"; $tool -t $table -X "$chain"; done
        done
    done 2> /dev/null || true
    forward='' ip_forward=''
    . "$state/net"
    iptables -P FORWARD "$forward"
    # Routing that another program turned on meanwhile looks the same as dockerd's; it was off before.
    echo "$ip_forward" > /proc/sys/net/ipv4/ip_forward
}

wake() {
    if [ -f "$state/before" ] && [ "$(id -u)" = 0 ] && have dockerd && ! ours && ! answers > /dev/null; then
        start_by_hand
    fi
}

clean() {
    made_data='' made_etc='' folder='' others=''
    [ ! -f "$state/before" ] || . "$state/before"
    if ours; then
        folder=$(docker info --format '{{.DockerRootDir}}') && others=$(docker ps -aq && docker volume ls -q) &&
            images=$(docker image ls --format '{{.Repository}}:{{.Tag}}') || unknown
        # What still exists belongs to the user: clean.sh has removed what toolkit created. Exceptions: base images,
        # which image/base.sh can have pulled, and images without a name, which an interrupted build leaves.
        others=$others$(echo "$images" | grep -vxE '(debian:(bookworm|trixie)-slim|<none>:<none>)?' || true)
    fi
    # Only an engine that runs can report that nothing in this folder belongs to the user.
    [ "$folder" = "$data" ] || made_data=''
    stop || return 0
    if [ "$made_data" = yes ] && [ -n "$others" ]; then
        say "kept $data, which has other containers, volumes or images; to use them, start the engine: sh $0 ensure"
    elif [ "$made_data" = yes ]; then
        find "$data" -mindepth 1 -delete
        rmdir "$data" 2> /dev/null || true
        say "removed $data, which was missing or empty before this script started the engine"
        # Key and configuration that the engine wrote for itself.
        [ "$made_etc" != yes ] || rm -rf /etc/docker/key.json
        [ "$made_etc" != yes ] || rmdir /etc/docker 2> /dev/null || true
    fi
    rm -rf "$state"
    rmdir "${state%/*}" 2> /dev/null || true
}

case ${1:-} in
    ensure) ensure ;;
    status) status ;;
    stop) local_engine; stop ;;
    wake) local_engine; wake ;;
    clean) local_engine; clean ;;
    *) echo "usage: $0 ensure | status | stop | wake | clean" >&2; exit 2 ;;
esac
