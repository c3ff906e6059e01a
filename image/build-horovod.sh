#!/bin/sh
# Builds Horovod's wheel in an image that toolkit did not build, and puts it into /built with the wheels that it needs.
# It uses the image's own Python, torch, MPI, CUDA and NCCL. Does nothing if HOROVOD_VERSION is empty.
set -eu
mkdir -p /built
[ -n "${HOROVOD_VERSION}" ] || exit 0
export DEBIAN_FRONTEND=noninteractive PIP_BREAK_SYSTEM_PACKAGES=1 PYTHONDONTWRITEBYTECODE=1

fail() { echo "build-horovod: $1" >&2; exit 1; }
python3 -m pip --version || fail "the Python of the image has no pip, which installs Horovod"
torch="$(python3 -c 'import torch; print(torch.__version__)')" || fail "the Python of the image cannot import torch"

packages="make cmake"
command -v g++ > /dev/null || packages="$packages g++"
has_headers() { [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; }
has_headers || packages="$packages python3-dev"
# Only headers for the distribution's own Open MPI; another MPI has its own.
case "$(dpkg-query -W -f '${Status}' openmpi-bin 2> /dev/null)" in *" installed") packages="$packages libopenmpi-dev" ;; esac
apt-get update
apt-get install -y --no-install-recommends $packages
has_headers || fail "Python.h of $(command -v python3) is missing; python3-dev belongs to another Python"

export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
if echo '#include <mpi.h>' | mpicxx -x c++ -fsyntax-only -; then
    export HOROVOD_WITH_MPI=1
else
    echo "build-horovod: the image has no mpicxx that finds mpi.h: Horovod is built without MPI, for horovodrun-gloo"
    export HOROVOD_WITHOUT_MPI=1
fi
cuda="$(python3 -c 'import torch; print(torch.version.cuda or "")')"
if [ -n "$cuda" ]; then
    home="${CUDA_HOME:-/usr/local/cuda}"
    [ -x "$home/bin/nvcc" ] || fail "torch is built for CUDA $cuda, and $home/bin/nvcc is missing: use an image with nvcc"
    export CUDA_HOME="$home" HOROVOD_CUDA_HOME="$home" HOROVOD_GPU=CUDA HOROVOD_GPU_OPERATIONS=NCCL
    export HOROVOD_NCCL_LINK=SHARED
    # The distribution's NCCL, otherwise that of torch's wheels.
    nccl="$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/nccl"
    if [ ! -e /usr/include/nccl.h ] && [ -e "$nccl/include/nccl.h" ]; then
        # The wheel has the library only under the name that programs load, not under the one that linkers look for.
        mkdir -p /src/nccl
        ln -sf "$nccl/lib/libnccl.so.2" /src/nccl/libnccl.so
        export HOROVOD_NCCL_INCLUDE="$nccl/include" HOROVOD_NCCL_LIB=/src/nccl
    fi
fi

archive="/wheels/horovod-${HOROVOD_VERSION}.tar.gz"
echo "${HOROVOD_SHA256}  $archive" | sha256sum -c -
mkdir -p /src
tar -xf "$archive" -C /src
# torch before 2.14 builds with C++17, and older compilers do not know C++20.
standard="$(python3 -c 'import torch; print(17 if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14) else 20)')"
sh /image/edit-horovod.sh "/src/horovod-${HOROVOD_VERSION}" "$standard"
# CMAKE_POLICY_VERSION_MINIMUM: CMake 4 no longer takes the version that Horovod's Gloo declares.
export MAKEFLAGS="-j${BUILD_JOBS}" CMAKE_POLICY_VERSION_MINIMUM=3.5 HOROVOD_BUILD_ARCH_FLAGS="${HOROVOD_ARCH_FLAGS}"
# The build needs these, in this stage only. The image may have them.
for name in setuptools wheel packaging cffi cloudpickle psutil yaml; do
    python3 -c "import $name" 2> /dev/null && continue
    [ "$name" = yaml ] && name=pyyaml
    python3 -m pip install --no-index --find-links /wheels "$name"
done
log=/src/pip.log
if ! python3 -m pip wheel --no-index --no-build-isolation --no-deps --log "$log" --wheel-dir /built \
    "/src/horovod-${HOROVOD_VERSION}"; then
    # The reason is far above pip's last lines.
    grep -A 1 -E 'CMake Error|[Ee]rror: ' "$log" | grep -v -e '^--' -e subprocess | head -n 12 >&2
    fail "Horovod ${HOROVOD_VERSION} cannot be built in this image, see the errors above"
fi
cp /wheels/*.whl /built/
echo "build-horovod: built with torch $torch"
