"""CUDA variants of the GPU image, and the choice of the image that fits drivers and GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

Version = tuple[int, ...]


@dataclass(frozen=True)
class CudaVariant:
    """One variant of the GPU image: CUDA libraries of one major version, and a torch release built with them.

    Args:
        major: major version of CUDA.
        driver: branch of the oldest NVIDIA driver that runs programs of this major version.
        oldest: compute capability of the oldest GPU that torch's wheel for x86_64 contains code for.
        oldest_arm64: the same of the wheel for aarch64; empty if it is equal.
        newest: major compute capability of the newest such GPU.
        arguments: values of Dockerfile ARGs that differ from their defaults.
        requirements: files that replace others in the build context, by the replaced path.
        arches: processor architectures that have CUDA wheels of this torch release on PyPI.
    """

    major: int
    driver: int
    oldest: Version
    newest: int
    arguments: Mapping[str, str] = field(default_factory=dict)
    requirements: Mapping[str, str] = field(default_factory=dict)
    arches: tuple[str, ...] = ("x86_64", "aarch64")
    oldest_arm64: Version = ()

    @property
    def kind(self) -> str:
        """The flavor of the image with its CUDA version, if it is not the default: gpu or gpu-cuda12."""
        return "gpu" if self.major == DEFAULT_CUDA else f"gpu-cuda{self.major}"

    @property
    def image(self) -> str:
        """The default reference of the image."""
        return f"toolkit:{self.kind}"

    @property
    def build(self) -> str:
        """The command that builds the image."""
        option = "--flavor gpu" if self.major == DEFAULT_CUDA else f"--cuda {self.major}"
        return f"toolkit image build {option}"

    def oldest_on(self, arch: str) -> Version:
        """Return the compute capability of the oldest GPU for hosts of this processor architecture."""
        return self.oldest_arm64 or self.oldest if arch == "aarch64" else self.oldest

    def runs_on(self, capability: Version, arch: str = "") -> bool:
        """Return True if the image contains code for GPUs of this compute capability."""
        return self.oldest_on(arch) <= capability and capability[0] <= self.newest


DEFAULT_CUDA = 13

# The image for hosts without GPUs, and the command that builds it.
CPU_IMAGE = "toolkit:cpu"
CPU_BUILD = "toolkit image build --flavor cpu"

# driver: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
# oldest, newest: the -gencode flags in libtorch_cuda.so of the wheel, as torch.cuda.get_arch_list() reports.
# Code for sm_XY runs on GPUs of the same major compute capability with an equal or higher minor one.
CUDA_VARIANTS: tuple[CudaVariant, ...] = (
    # torch 2.13.0+cu130: sm_75 sm_80 sm_86 sm_90 sm_100 sm_120.
    # For aarch64, PyTorch builds no code below 8.0 (.ci/aarch64_linux/aarch64_ci_build.sh of 2.9).
    CudaVariant(major=13, driver=580, oldest=(7, 5), newest=12, oldest_arm64=(8, 0)),
    # torch 2.7.1+cu126: sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90. The wheel for aarch64 is a CPU build.
    CudaVariant(
        major=12,
        driver=525,
        oldest=(5, 0),
        newest=9,
        arguments={
            "TORCH_VERSION": "2.7.1",
            "CUDA_REQUIRED": "12.0",
            "CUDA_NVCC_VERSION": "12.6.85",
            "CUDA_CCCL_VERSION": "12.6.77",
            "CUDA_ARCHS": "50,60,70,75,80,86,90",
            "NCCL_VERSION": "2.26.2",
        },
        requirements={
            "image/requirements-gpu.txt": "image/requirements-gpu-cuda12.txt",
            "image/requirements-gpu-build.txt": "image/requirements-gpu-cuda12-build.txt",
        },
        arches=("x86_64",),
    ),
)

CUDA_NAMES = tuple(str(variant.major) for variant in CUDA_VARIANTS)


def cuda_variant(major: int) -> CudaVariant | None:
    """Return the variant of a CUDA major version, None if there is none."""
    return next((variant for variant in CUDA_VARIANTS if variant.major == major), None)


def fitting_cuda(
    drivers: Collection[Version], capabilities: Collection[Version], arches: Collection[str] = ()
) -> CudaVariant | None:
    """Return the newest variant that runs on all these drivers and GPUs, None if there is none.

    Args:
        drivers: versions of the NVIDIA drivers; an empty version is unknown and excludes no variant.
        capabilities: compute capabilities of the GPUs; an empty one is unknown and excludes no variant.
        arches: processor architectures of the hosts, as ``uname -m`` prints them.
    """
    for variant in CUDA_VARIANTS:
        if (
            all(arch in variant.arches for arch in arches if arch)
            and all(driver[0] >= variant.driver for driver in drivers if driver)
            # One image is for one architecture.
            and all(variant.runs_on(c, arch) for c in capabilities if c for arch in arches or ("",))
        ):
            return variant
    return None
