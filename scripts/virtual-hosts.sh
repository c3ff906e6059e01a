#!/bin/sh
# Virtual machines as hosts: kernels, systemd and cgroup v2 of their own, which practice hosts do not have.
#   up FOLDER [N]   build a Debian image, start N machines (default 2, at most 9), and write FOLDER/hosts.yaml
#   down FOLDER     stop the machines and remove their network; the image is kept
#   off FOLDER N    turn machine N off, as a power failure does
#   on FOLDER N     turn machine N on
# Needs root, debootstrap, qemu-system-x86_64 and qemu-img, and no download after the first run. SUITE (default
# bookworm) and PACKAGES (default docker.io and apparmor) select the system; for Podman: trixie, and podman crun
# catatonit netavark aardvark-dns. The default of ACCEL is tcg, which emulates the processor. ACCEL=kvm is fast, but
# needs hardware virtualization.
set -eu

net=toolkit-virtual
case ${ACCEL:-tcg} in kvm) accel=kvm cpu=host ;; *) accel=tcg,thread=multi cpu=max,la57=off ;; esac
say() { printf 'virtual-hosts: %s\n' "$*" >&2; }
fail() { say "$1"; printf '  fix: %s\n' "$2" >&2; exit 4; }
inside() { ip netns exec $net "$@"; }
shell_of() {
    inside ssh -n -i "$folder/key" -o UserKnownHostsFile="$folder/boot_hosts" -o StrictHostKeyChecking=accept-new \
        -o ConnectTimeout=10 -o BatchMode=yes "root@10.78.0.$((10 + $1))" "$2"
}

build() {
    say "building $folder/base.img with debootstrap"
    root=$folder/root
    rm -rf "$root"
    packages="systemd-sysv,dbus,udev,kmod,linux-image-cloud-amd64,openssh-server,python3,iproute2,iptables,procps"
    debootstrap --variant=minbase --include="$packages,$(echo "${PACKAGES:-docker.io apparmor}" | tr ' ' ,)" \
        "${SUITE:-bookworm}" "$root" > "$folder/debootstrap.log" ||
        fail "debootstrap failed, see $folder/debootstrap.log" "check the network and the mirror of your machine"
    [ -f "$folder/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$folder/key"
    chroot "$root" useradd -m -s /bin/bash trainer
    ! chroot "$root" getent group docker > /dev/null || chroot "$root" usermod -aG docker trainer
    for home in root home/trainer; do
        install -d -m 700 "$root/$home/.ssh"
        cp "$folder/key.pub" "$root/$home/.ssh/authorized_keys"
    done
    chroot "$root" chown -R trainer: /home/trainer/.ssh
    chroot "$root" systemctl --quiet enable systemd-networkd ssh
    for number in $(seq 9); do
        printf '[Match]\nMACAddress=52:54:00:78:00:0%d\n[Network]\nAddress=10.78.0.1%d/24\n' "$number" "$number" \
            > "$root/etc/systemd/network/10-vm$number.network"
    done
    # Each machine makes its own keys and id at its first start.
    rm -f "$root/etc/hostname" "$root"/etc/ssh/ssh_host_* "$root/etc/machine-id"
    mkdir -p "$root/etc/systemd/system/ssh.service.d"
    printf '[Service]\nExecStartPre=\nExecStartPre=/usr/bin/ssh-keygen -A\nExecStartPre=/usr/sbin/sshd -t\n' \
        > "$root/etc/systemd/system/ssh.service.d/keys.conf"
    echo 'LABEL=root / ext4 defaults 0 1' > "$root/etc/fstab"
    cp "$root"/boot/vmlinuz-* "$folder/kernel"
    cp "$root"/boot/initrd.img-* "$folder/initrd"
    mke2fs -q -t ext4 -L root -d "$root" "$folder/base.part" 20G
    rm -rf "$root"
    mv "$folder/base.part" "$folder/base.img"
}

network() {
    ! ip netns list | grep -qw $net || return 0
    ip netns add $net
    ip -n $net link set lo up
    ip -n $net link add br0 type bridge
    ip -n $net addr add 10.78.0.1/24 dev br0
    ip -n $net link set br0 up
}

turn_on() {
    inside ip link show "tap$1" > /dev/null 2>&1 || inside ip tuntap add "tap$1" mode tap
    inside ip link set "tap$1" master br0 up
    [ -f "$folder/vm$1.qcow2" ] || qemu-img create -q -f qcow2 -F raw -b "$folder/base.img" "$folder/vm$1.qcow2"
    inside qemu-system-x86_64 -daemonize -display none -serial "file:$folder/vm$1.log" -pidfile "$folder/vm$1.pid" \
        -accel "$accel" -cpu "$cpu" -smp 2 -m "${MEMORY:-3072}" \
        -kernel "$folder/kernel" -initrd "$folder/initrd" -device virtio-rng-pci \
        -append "root=LABEL=root rw console=ttyS0 systemd.hostname=vm$1" -drive "file=$folder/vm$1.qcow2,if=virtio" \
        -netdev "tap,id=n,ifname=tap$1,script=no,downscript=no" \
        -device "virtio-net-pci,netdev=n,mac=52:54:00:78:00:0$1"
}

wait_for() {
    deadline=$(($(date +%s) + 600))
    until shell_of "$1" true 2> /dev/null; do
        [ "$(date +%s)" -lt $deadline ] || fail "vm$1 did not start within 600 s" "tail $folder/vm$1.log"
        sleep 2
    done
}

turn_off() {
    [ ! -s "$folder/vm$1.pid" ] || kill -9 "$(cat "$folder/vm$1.pid")" 2> /dev/null || true
    rm -f "$folder/vm$1.pid"
}

up() {
    for program in debootstrap qemu-system-x86_64 qemu-img mke2fs ip ssh; do
        command -v $program > /dev/null || fail "$program is missing" "sudo apt-get install debootstrap qemu-system-x86 qemu-utils"
    done
    mkdir -p "$folder"
    [ -f "$folder/base.img" ] || build
    network
    printf 'cluster: virtual\nimage: toolkit:cpu\nknown_hosts: known_hosts\nhosts:\n' > "$folder/hosts.yaml"
    for number in $(seq "$1"); do
        turn_on "$number"
        printf '  vm%d: {address: 10.78.0.1%d, user: trainer, identity_file: %s/key}\n' "$number" "$number" "$folder" \
            >> "$folder/hosts.yaml"
    done
    for number in $(seq "$1"); do wait_for "$number"; done
    say "toolkit reaches the hosts only in their network namespace:"
    echo "ip netns exec $net env TOOLKIT_HOSTS=$folder/hosts.yaml $SHELL"
}

down() {
    for pid in "$folder"/vm*.pid; do
        [ -e "$pid" ] || continue
        number=${pid##*/vm}
        turn_off "${number%.pid}"
    done
    rm -f "$folder"/vm*.qcow2 "$folder/boot_hosts" "$folder/known_hosts"
    ip netns del $net 2> /dev/null || true
}

[ $# -ge 2 ] || { sed -n '2,10s/^# //p' "$0"; exit 2; }
folder=$(realpath -m "$2")
case $1 in
    up) up "${3:-2}" ;;
    down) down ;;
    on) turn_on "$3"; wait_for "$3" ;;
    off) turn_off "$3" ;;
    *) sed -n '2,10s/^# //p' "$0"; exit 2 ;;
esac
