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

case ",$names," in *,deepspeed,*)
    archive="$wheels/deepspeed-$DEEPSPEED_VERSION.tar.gz"
    echo "$DEEPSPEED_SHA256  $archive" | sha256sum -c -
    # Otherwise every host would compile its operators at their first use, and CUDA's need nvcc, which is not there.
    if [ -n "${CUDA_HOME:-}" ]; then
        export DS_BUILD_FUSED_ADAM=1 DS_BUILD_CPU_ADAM=1 DS_BUILD_UTILS=1
    else
        export DS_ACCELERATOR=cpu DS_BUILD_SHM_COMM=1
    fi
    pip install --no-index --no-build-isolation --no-deps --no-compile --prefix /opt/more "$archive"
    python3 -c '
from deepspeed.git_version_info import installed_ops
built = [name for name, there in installed_ops.items() if there]
assert built, "DeepSpeed was built without its operators"
print("DeepSpeed has", *built)'
esac

# Some packages carry files of other Pythons, which do not compile and are never imported.
python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s /opt/more -p /opt/venv -x '/tests?/' \
    /opt/more/lib || true
find /opt/more -exec touch --no-dereference --date=@0 {} +
