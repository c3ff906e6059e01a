#!/bin/sh
# Makes nvidia/cuda, a folder with nvcc, headers and libraries, out of the wheels. Runs in the image's builder stage.
# usage: cuda-compiler.sh
set -eu
cd "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia"

if [ -d cu13 ]; then
    ln -s cu13 cuda
else
    # The wheels of CUDA 12 have one folder for each library.
    ln -s cuda_runtime cuda
    cp -r cuda_nvcc/include/. cuda_cccl/include/. cuda/include/
    # They contain ptxas but not nvcc. Debian's nvcc is of CUDA 11.8: it compiles for compute capabilities 3.5 to 9.0,
    # and takes the headers of CUDA 12 and g++ 12. Only its programs are unpacked, not the 3 GB that its package needs.
    find /etc/apt -name '*.sources' -o -name '*.list' | while read -r file; do
        sed -i -E '/^(deb |Components:)/ { /non-free( |$)/! s/ main/ main non-free/ }' "$file"
    done
    apt-get update
    mkdir /tmp/nvcc
    if ! (cd /tmp/nvcc && apt-get download nvidia-cuda-toolkit); then
        echo "nvcc cannot be installed: the apt sources of the base image have no nvidia-cuda-toolkit (Debian: non-free)." >&2
        exit 1
    fi
    dpkg-deb -x /tmp/nvcc/*.deb /tmp/nvcc/files
    mkdir -p cuda/bin cuda/nvvm
    debian=/tmp/nvcc/files/usr
    for name in bin2c cudafe++ fatbinary nvlink ptxas; do cp "$debian/bin/$name" cuda/bin/; done
    cp -r "$debian/lib/nvidia-cuda-toolkit/bin/nvcc" "$debian/lib/nvidia-cuda-toolkit/bin/cicc" \
        "$debian/lib/nvidia-cuda-toolkit/bin/crt" cuda/bin/
    cp -r "$debian/lib/nvidia-cuda-toolkit/libdevice" cuda/nvvm/
    # Debian's own profile names Debian's folders and g++ 11.
    printf '%s\n' 'TOP = $(_HERE_)/..' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' 'PATH += $(TOP)/bin:' \
        'INCLUDES += "-I$(TOP)/include"' 'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib"' > cuda/bin/nvcc.profile
    # nvcc links the static runtime unless CMake disables it: both names lead to the shared library that torch loads.
    echo 'INPUT(-lcudart)' > cuda/lib/libcudart_static.a
    ar rcs cuda/lib/libcudadevrt.a
    rm -r /tmp/nvcc
    rm -rf /var/lib/apt/lists/*
fi

# The wheels have only the versioned names of the libraries.
ln -s lib cuda/lib64
(cd cuda/lib && ln -s libcudart.so.1? libcudart.so)
ln -s libnccl.so.2 nccl/lib/libnccl.so
