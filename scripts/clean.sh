#!/bin/sh
# Removes what the project made on this machine: found by its labels and by its own folders. usage: clean.sh TOOLKIT
set -eu

toolkit=$1
say() { printf 'clean: %s\n' "$*" >&2; }

# Images and labs are in an engine that `ensure` made; it may have been stopped since.
sh scripts/engine.sh wake
if command -v docker > /dev/null && docker version > /dev/null 2>&1; then
    if [ -x "$toolkit" ]; then "$toolkit" lab down --all; fi
    # By name as well as by label: an image that a user built on top of it inherits the label.
    for name in 'toolkit:*' 'toolkit.local/verified:*' 'toolkit-lab-host:*'; do
        docker images --filter "reference=$name" --filter label=toolkit.image --format '{{.Repository}}:{{.Tag}}'
        docker images --filter "reference=$name" --filter label=toolkit.lab.image --format '{{.Repository}}:{{.Tag}}'
    done | sort -u | while read -r image; do
        if docker rmi "$image" > /dev/null; then say "removed image $image"; else say "$image is in use and stays"; fi
    done
    # What a build left without a name; every one of our stages carries the label.
    docker image prune --force --filter label=toolkit.image > /dev/null
    # The base images, where image/base.sh made them; those that were pulled carry no such label and stay.
    for base in debian:bookworm-slim debian:trixie-slim; do
        made=$(docker image inspect --format '{{index .Config.Labels "toolkit.base"}}' "$base" 2> /dev/null) || made=
        [ "$made" != 1 ] || docker rmi "$base" > /dev/null || say "$base is in use by another image and stays"
    done
fi
say "removing caches and the virtual environment"
rm -rf "${XDG_CACHE_HOME:-$HOME/.cache}/toolkit" .lab .venv site .mypy_cache .ruff_cache .pytest_cache
sh scripts/engine.sh clean
say "done; packages that were installed stay"
