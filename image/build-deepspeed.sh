#!/bin/sh
# Builds DeepSpeed with its operators into /opt/more, and fails if they are not those of the image's flavor.
# Runs in the image's builder stage. The GPU image sets CUDA_HOME, and CUDA_ARCHS such as 75,80.
# usage: build-deepspeed.sh WHEEL_FOLDER
set -eu
archive="$1/deepspeed-$DEEPSPEED_VERSION.tar.gz" source="/src/deepspeed-$DEEPSPEED_VERSION"

fail() { echo "build-deepspeed: $1" >&2; exit 1; }

# edit FILE OLD NEW: replaces a fixed text, which must be there before.
edit() {
    grep -qF -- "$2" "$source/$1" || fail "'$2' is not in $1: this edit no longer applies"
    sed -i "s/$2/$3/" "$source/$1"
}

echo "$DEEPSPEED_SHA256  $archive" | sha256sum -c -
mkdir -p /src
tar -xf "$archive" -C /src
# Fixed, because DeepSpeed would otherwise build for the processor of the building machine. Only what the build
# compiles: DeepSpeed's copy of this file in the image compiles for the processor of the host.
case "$(uname -m)" in
    x86_64) march=-march=x86-64-v3 simd=-D__AVX256__ ;;
    *) march= simd=-D__NEON__ ;;
esac
edit op_builder/cpu/builder.py 'self.cpu_arch()' "'$march'"
edit op_builder/cpu/builder.py 'self.simd_width()' "'$simd'"
# If this package is installed, DeepSpeed reads CUDA_VISIBLE_DEVICES as numbers, and fails with the UUIDs of a job's GPUs.
edit setup.py "install_requires.append('nvidia-ml-py')" pass

# The machine that builds has no GPU, so DeepSpeed would choose the processor in both flavors. Without these operators
# each host would compile them at their first use, and CUDA's need nvcc, which is not there.
export DS_BUILD_FUSED_ADAM=1 DS_BUILD_CPU_ADAM=1
if [ -n "${CUDA_HOME:-}" ]; then
    # 75,120 becomes 7.5;12.0. DeepSpeed has no list of its own for CUDA 13.
    TORCH_CUDA_ARCH_LIST="$(echo "$CUDA_ARCHS" | sed -E 's/([0-9]+)([0-9])/\1.\2/g; s/,/;/g')"
    export TORCH_CUDA_ARCH_LIST DS_ACCELERATOR=cuda DS_BUILD_UTILS=1
    wanted="cuda cpu_adam fused_adam utils"
else
    export DS_ACCELERATOR=cpu DS_BUILD_SHM_COMM=1
    wanted="cpu cpu_adam deepspeed_shm_comm fused_adam"
fi
pip install --no-index --no-build-isolation --no-deps --no-compile --prefix /opt/more "$source"
rm -r "$source"

built="$(python3 -c '
import runpy, sys
found = runpy.run_path(sys.argv[1])
print(found["accelerator_name"], *sorted(name for name, there in found["installed_ops"].items() if there))
' "$(find /opt/more -name git_version_info_installed.py)")"
[ "$built" = "$wanted" ] || fail "DeepSpeed was built with '$built', expected '$wanted'"
for operator in $(find /opt/more -path '*/deepspeed/ops/*_op.*.so'); do
    strip --strip-debug "$operator"
    case "$DS_ACCELERATOR $operator" in
        # It contains code for AVX-512, and asks the processor before it runs it.
        *shm_comm*) continue ;;
        "cuda "*/fused_adam_op*)
            archs="$(grep -aoE 'arch sm_[0-9]+' "$operator" | sort -u | sed 's/.*_//' | sort -n | paste -sd , -)"
            [ "$archs" = "$CUDA_ARCHS" ] || fail "$operator is for CUDA architectures '$archs', expected '$CUDA_ARCHS'" ;;
    esac
    # x86-64-v3 is AVX2: it has neither the registers of AVX-512 nor its masks.
    if objdump -d "$operator" | grep -E '%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])' | head -n 3 | grep .; then
        fail "$operator contains instructions beyond x86-64-v3"
    fi
done
echo "DeepSpeed has $built"
