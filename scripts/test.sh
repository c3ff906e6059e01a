#!/bin/sh
# Unit, integration and end-to-end tests, on practice clusters of their own. usage: test.sh BIN [pytest's words]
# Without words of their own all but the rare ones.
set -eu

bin=$1
shift
start=$(date +%s)
"$bin/toolkit" image build --flavor cpu
printf 'test: image ready after %d s\n' $(($(date +%s) - start)) >&2
[ $# -gt 0 ] || set -- -m 'not rare'
sh scripts/unit.sh "$bin"

# The others wait much of the time: for hosts, deadlines and jobs. So two shares of them run side by side, each
# in order and on practice clusters of its own (tests/e2e/conftest.py).
lab=${TOOLKIT_TEST_LAB:-ci}
log=$(mktemp)
set -- -p no:randomly tests/integration tests/e2e --durations=15 "$@"
env TOOLKIT_TEST_SHARE=beside TOOLKIT_TEST_LAB="$lab-2" "$bin/pytest" "$@" >"$log" 2>&1 &
beside=$!
# Each share removes its own labs, also after Ctrl-C.
trap 'kill -INT "$beside" 2>/dev/null; wait "$beside"; rm -f "$log"; exit 130' INT TERM
first=0 second=0
env TOOLKIT_TEST_SHARE=first TOOLKIT_TEST_LAB="$lab" "$bin/pytest" "$@" || first=$?
wait "$beside" || second=$?
printf '\ntest: the other share, which ran at the same time\n'
cat "$log"
rm -f "$log"
printf 'test: all shares after %d s\n' $(($(date +%s) - start)) >&2
# 5: no test of this share was asked for.
[ "$first" = 0 ] || [ "$first" = 5 ] || exit "$first"
[ "$second" = 0 ] || [ "$second" = 5 ] || exit "$second"
[ "$first" = 0 ] || [ "$second" = 0 ] || exit 5
