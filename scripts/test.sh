#!/bin/sh
# Runs unit, integration and end-to-end tests on practice clusters that they create. usage: test.sh BIN [pytest arguments]
# Without arguments: all tests except those marked rare.
set -eu

bin=$1
shift
start=$(date +%s)
"$bin/toolkit" image build --flavor cpu
printf 'test: image ready after %d s\n' $(($(date +%s) - start)) >&2
[ $# -gt 0 ] || set -- -m 'not rare'
sh scripts/unit.sh "$bin"

# The other tests wait most of the time for hosts, deadlines and jobs. So two shares of them run in parallel, each
# in order and on its own practice clusters (tests/e2e/conftest.py).
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
printf '\ntest: output of the tests that ran in parallel\n'
cat "$log"
rm -f "$log"
printf 'test: all tests ended after %d s\n' $(($(date +%s) - start)) >&2
# 5: the arguments select no test of this share.
[ "$first" = 0 ] || [ "$first" = 5 ] || exit "$first"
[ "$second" = 0 ] || [ "$second" = 5 ] || exit "$second"
[ "$first" = 0 ] || [ "$second" = 0 ] || exit 5
