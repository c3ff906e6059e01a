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
# Unit tests on all cores at once; the others share a practice cluster, and with it the cores.
sh scripts/unit.sh "$bin"
# These keep their order: a practice cluster goes from one to the next.
exec "$bin/pytest" -p no:randomly tests/integration tests/e2e --durations=15 "$@"
