#!/bin/sh
# Unit, integration and end-to-end tests, on a practice cluster of their own. usage: test.sh BIN [pytest's words]
# Without words of their own all but the rare ones.
set -eu

bin=$1
shift
start=$(date +%s)
"$bin/toolkit" image build --flavour cpu
printf 'test: image ready after %d s\n' $(($(date +%s) - start)) >&2
[ $# -gt 0 ] || set -- -m 'not rare'
exec "$bin/pytest" tests --durations=15 "$@"
