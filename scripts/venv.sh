#!/bin/sh
# Creates the virtual environment from the lock file. usage: venv.sh PYTHON FOLDER
set -eu

python=$1
folder=$2
say() { printf 'venv: %s\n' "$*" >&2; }

works() { "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2> /dev/null; }

if ! works; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        say "$python is missing, is older than 3.10, or does not have the modules venv and ensurepip"
        printf '  fix: install Python 3.10 or newer with its venv module, or select another Python: make PYTHON=python3.12\n' >&2
        exit 4
    fi
    say "installing python3 and python3-venv with apt"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3 python3-venv > /dev/null
    works || { say "$python still cannot create a virtual environment"; exit 4; }
fi

start=$(date +%s)
say "installing toolkit and its development tools into $folder"
if ! "$folder/bin/python" -m pip --version > /dev/null 2>&1; then
    # An interrupted creation leaves a virtual environment without pip. Only a virtual environment is cleared.
    clear=
    [ ! -f "$folder/pyvenv.cfg" ] || clear=--clear
    "$python" -m venv $clear "$folder"
fi
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.lock
# The lock contains all packages: no second resolution, and no other build tools.
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
touch "$folder/.ready"
say "ready ($(($(date +%s) - start)) s)"
