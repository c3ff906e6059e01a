#!/bin/sh
# Run the acceptance items of toolkit on this machine. Needs Python 3.10 or later, and torch for most items.
# usage: gpu-acceptance.sh [OPTION]...    PYTHON names the interpreter that has torch; --help lists the options
set -eu

cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m scripts.acceptance "$@"
