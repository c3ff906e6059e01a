#!/bin/sh
# Edits Horovod's released source, and fails when an edit no longer applies.
# usage: edit-horovod.sh SOURCE_FOLDER CXX_STANDARD
set -eu
cd "$1"
standard=$2

# edit FILE OLD NEW: replaces a fixed text, which must be there before and gone after.
edit() {
    grep -qF -- "$2" "$1" || { echo "edit-horovod: '$2' is not in $1: this edit no longer applies" >&2; exit 1; }
    sed -i "s/$2/$3/" "$1"
    if grep -qF -- "$2" "$1" || ! grep -qF -- "$3" "$1"; then
        echo "edit-horovod: '$2' could not be replaced everywhere in $1" >&2
        exit 1
    fi
}

# torch's headers refuse the C++14 that these two files ask for.
for file in CMakeLists.txt horovod/torch/CMakeLists.txt; do
    edit "$file" 'CMAKE_CXX_STANDARD 14' "CMAKE_CXX_STANDARD $standard"
done
# Debug information makes the library 30 times as large.
edit setup.py "'RelWithDebInfo'" "'Release'"
# A header that this file includes is missing in TensorFlow's wheel; without the file, Horovod has no XLA support.
file=horovod/tensorflow/CMakeLists.txt
grep -qF xla_mpi_ops.cc "$file" || { echo "edit-horovod: $file names no xla_mpi_ops.cc: this edit no longer applies" >&2; exit 1; }
sed -i '/xla_mpi_ops[.]cc/d' "$file"
# GCC 13 and 14 (Ubuntu 24.04, Debian 13) refuse headers that use a name without its header, and an assignment
# to a constant, in an operator that nothing calls.
for pair in group_table.h:string common.h:stdexcept nvtx_op_range.h:cstdint; do
    sed -i "1i #include <${pair#*:}>" "horovod/common/${pair%:*}"
done
file=third_party/flatbuffers/include/flatbuffers/stl_emulation.h
edit "$file" 'count_ = other.count_;' 'static_cast<void>(other);'
# This constant is on horovodrun's own ssh command lines and beats every ssh_config: host keys
# would not be checked.
edit horovod/runner/util/remote.py 'StrictHostKeyChecking=no' 'StrictHostKeyChecking=yes'

if grep -rnE 'StrictHostKeyChecking[= ]*(no|off|accept-new)' --include='*.py' horovod; then
    echo "edit-horovod: another file of Horovod disables the check of SSH host keys" >&2
    exit 1
fi
