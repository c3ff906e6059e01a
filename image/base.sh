#!/bin/sh
# Provides the base image in this machine's engine: an existing image, one from a registry, or one from debootstrap.
# usage: base.sh [SUITE [TAG]]      default: bookworm debian:SUITE-slim
set -eu

suite=${1:-bookworm}
tag=${2:-debian:$suite-slim}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
answer_seconds=${ANSWER_SECONDS:-20}

say() { echo "base: $*"; }
die() { echo "base: $*" >&2; exit 1; }

command -v docker > /dev/null || die "docker is not installed on this machine"
docker version > /dev/null 2>&1 || die "no Docker engine answers; start an engine, or set DOCKER_HOST"

if docker image inspect "$tag" > /dev/null 2>&1; then
    say "$tag already exists"
    exit 0
fi

# pull: no time limit once the registry answers, because a slow link needs minutes for one layer. Before that, an
# unreachable registry costs at most $answer_seconds s.
pull() {
    docker pull "$tag" > "$work/pull" 2>&1 &
    puller=$!
    waited=0
    while kill -0 "$puller" 2> /dev/null; do
        if [ "$waited" -ge "$answer_seconds" ] && ! grep -q 'Pulling from' "$work/pull"; then
            kill "$puller" 2> /dev/null || true
            echo "the registry did not answer within $answer_seconds s" >> "$work/pull"
            break
        fi
        sleep 1
        waited=$((waited + 1))
    done
    status=0
    wait "$puller" 2> /dev/null || status=$?
    puller=  # its number can belong to another process from now on
    return "$status"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/toolkit-base.XXXXXX")
puller=
trap '[ -z "$puller" ] || kill "$puller" 2> /dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

say "pulling $tag"
if pull; then
    say "$tag was pulled"
    exit 0
fi
say "docker pull $tag failed: $(tail -n 1 "$work/pull")"

say "creating $tag with debootstrap from $mirror instead"
[ "$(id -u)" -eq 0 ] || die "debootstrap needs root: run this command as root; or run docker pull $tag and docker save $tag on a machine that can reach a registry, and docker load on this machine"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if ! command -v debootstrap > /dev/null || ! [ -e "$keyring" ]; then
    command -v apt-get > /dev/null || die "debootstrap or Debian's keyring is missing, and this machine has no apt-get to install them"
    say "installing debootstrap and debian-archive-keyring with apt"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends debootstrap debian-archive-keyring > /dev/null
fi

root=$work/root

# --variant=minbase: Essential packages and apt, as in the slim image of the registry.
# --force-check-gpg: without a keyring it would only warn and take any archive.
debootstrap --variant=minbase --keyring="$keyring" --force-check-gpg "$suite" "$root" "$mirror" > "$work/log" 2>&1 || {
    tail -n 5 "$work/log" >&2
    die "debootstrap failed; to use another mirror, set DEBIAN_MIRROR"
}

# dpkg omits in later layers the files that are removed below. Licenses are kept.
cat > "$root/etc/dpkg/dpkg.cfg.d/slim" <<'CONF'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/linda/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
CONF
# A container that is stopped during an installation is discarded, so dpkg need not sync.
echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/container"
# Packages start no daemons in a container.
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 0755 "$root/usr/sbin/policy-rc.d"

find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type l ! -name copyright -delete
find "$root/usr/share/doc" -mindepth 1 -type d -empty -delete
for folder in groff info linda lintian locale man; do
    rm -rf "$root/usr/share/$folder"
    mkdir -p "$root/usr/share/$folder"
done
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
rm -rf "$root"/var/log/*.log "$root"/var/log/apt "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
# debootstrap copies these files from the building machine.
rm -f "$root/etc/resolv.conf" "$root/etc/hostname"
: > "$root/etc/machine-id"
# Not the mirror of the building machine: users of the image have their own.
{
    echo "deb http://deb.debian.org/debian $suite main"
    echo "deb http://deb.debian.org/debian $suite-updates main"
    echo "deb http://deb.debian.org/debian-security $suite-security main"
} > "$root/etc/apt/sources.list"

tar -C "$root" --numeric-owner -c . | docker import --change 'CMD ["bash"]' --change 'LABEL toolkit.base=1' - "$tag" > /dev/null
docker image inspect "$tag" > /dev/null 2>&1 || die "docker import did not create $tag"
size=$(docker image inspect --format '{{.Size}}' "$tag")
say "$tag was created: $((size / 1000000)) MB"
