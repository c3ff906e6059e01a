#!/bin/sh
# All tests: unit, integration and end to end, on a practice cluster of their own. usage: test.sh BIN
set -eu

bin=$1
shift
start=$(date +%s)
"$bin/toolkit" image build --flavour cpu
printf 'test: image ready after %d s\n' $(($(date +%s) - start)) >&2
exec "$bin/pytest" tests --durations=15 "$@"
