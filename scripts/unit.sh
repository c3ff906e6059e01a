#!/bin/sh
# Runs the unit tests on all cores, in random order. usage: unit.sh BIN [pytest arguments]
# SEED selects the order. By default the commit selects it, so that all tests of one commit have the same order.
set -eu

bin=$1
shift
commit=$(git rev-parse --verify --quiet --short=8 HEAD 2> /dev/null | cut -c1-8) || commit=
seed=${SEED:-$(printf '%d' "0x${commit:-1}")}
printf 'unit: random order, seed %s; to repeat this order: make unit SEED=%s\n' "$seed" "$seed" >&2
# Twice as many processes as cores: many tests wait for programs that they have started.
workers=$((2 * $(getconf _NPROCESSORS_ONLN)))
exec "$bin/pytest" tests/unit -q -n "$workers" --dist worksteal -p randomly --randomly-seed="$seed" "$@"
