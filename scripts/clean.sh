#!/bin/sh
# Removes the images, practice clusters, caches and folders that the project created on this machine. usage: clean.sh TOOLKIT
set -eu

toolkit=$1
say() { printf 'clean: %s\n' "$*" >&2; }

# Images and practice clusters can be in an engine that `ensure` created and that is stopped.
sh scripts/engine.sh wake
if command -v docker > /dev/null && docker version > /dev/null 2>&1; then
    if [ -x "$toolkit" ]; then "$toolkit" lab down --all; fi
    # By name as well as by label: an image that a user built on top of it inherits the label.
    for name in 'toolkit:*' 'toolkit.local/verified:*' 'toolkit-lab-host:*'; do
        docker images --filter "reference=$name" --filter label=toolkit.image --format '{{.Repository}}:{{.Tag}}'
        docker images --filter "reference=$name" --filter label=toolkit.lab.image --format '{{.Repository}}:{{.Tag}}'
    done | sort -u | while read -r image; do
        if docker rmi "$image" > /dev/null; then say "removed image $image"; else say "kept image $image, which is in use"; fi
    done
    # Unnamed images of builds; every stage of the Dockerfiles has the label.
    docker image prune --force --filter label=toolkit.image > /dev/null
    # Base images that image/base.sh created; pulled ones have no such label and are kept.
    for base in debian:bookworm-slim debian:trixie-slim; do
        made=$(docker image inspect --format '{{index .Config.Labels "toolkit.base"}}' "$base" 2> /dev/null) || made=
        [ "$made" != 1 ] || docker rmi "$base" > /dev/null || say "kept image $base: another image uses it"
    done
fi
say "removing caches and the virtual environment"
rm -rf "${XDG_CACHE_HOME:-$HOME/.cache}/toolkit" .lab .venv site .mypy_cache .ruff_cache .pytest_cache
sh scripts/engine.sh clean
say "done; installed system packages remain"
