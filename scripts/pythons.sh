#!/bin/sh
# Runs the unit tests with every installed Python from 3.10 on, each in a separate environment. usage: pythons.sh [3.N...]
set -eu

versions=${*:-3.10 3.11 3.12 3.13}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
say() { printf 'pythons: %s\n' "$*" >&2; }

# python3.N on PATH, else pyenv's newest 3.N: its shims answer for versions that are not chosen with an error.
find_python() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c "import sys, ensurepip, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2> /dev/null; then
            found=$candidate
        fi
    done
}

failed=
tested=
for version in $versions; do
    found=
    find_python "$version"
    if [ -z "$found" ]; then
        say "$version SKIPPED: there is no python$version with venv on your machine"
        continue
    fi
    tested="$tested $version"
    "$found" -m venv "$folder/$version"
    # The versions that pip chooses for this Python, as for a user who installs the package.
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check --editable '.[dev,docs]'
    say "$version: $("$folder/$version/bin/python" --version), typer $("$folder/$version/bin/python" -c 'import typer; print(typer.__version__)')"
    "$folder/$version/bin/python" -m pytest tests/unit -q -p no:cacheprovider || failed="$failed $version"
done
[ -z "$failed" ] || { say "the unit tests FAILED with Python$failed"; exit 1; }
[ -n "$tested" ] || { say "no Python was tested, because none of these versions is installed: $versions"; exit 1; }
say "the unit tests passed with Python$tested"
