#!/bin/sh
# Installs the extras into /opt/more, offline. Runs in the image's builder stage.
# usage: install-more.sh WHEEL_FOLDER NAME,NAME...    each with its list in /image/with
set -eu
wheels=$1 names=$2
mkdir -p /opt/more
[ -n "$names" ] || exit 0
site="/opt/more/lib/python$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages"
# What is installed here is needed to build what comes after it.
export PYTHONPATH="$site" PATH="/opt/more/bin:$PATH"

for name in $(echo "$names" | tr , ' '); do
    pip install --no-index --find-links "$wheels" --no-deps --no-compile --prefix /opt/more \
        -r "/image/with/$name.txt"
done

case ",$names," in *,deepspeed,*) sh /image/build-deepspeed.sh "$wheels" ;; esac

# Some packages carry files of other Pythons, which do not compile and are never imported.
python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s /opt/more -p /opt/venv -x '/tests?/' \
    /opt/more/lib || true
find /opt/more -exec touch --no-dereference --date=@0 {} +
