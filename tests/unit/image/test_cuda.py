"""The CUDA variant of the GPU image that fits drivers and GPUs."""

from __future__ import annotations

from tests.unit.each import for_each
from toolkit.image.cuda import CUDA_VARIANTS, DEFAULT_CUDA, cuda_variant, fitting_cuda

PASCAL, VOLTA, TURING, HOPPER, BLACKWELL = (6, 1), (7, 0), (7, 5), (9, 0), (12, 0)


def test_the_newest_variant_comes_first_and_is_the_default() -> None:
    majors = [variant.major for variant in CUDA_VARIANTS]
    assert majors == sorted(majors, reverse=True) and majors[0] == DEFAULT_CUDA
    assert not CUDA_VARIANTS[0].arguments and not CUDA_VARIANTS[0].requirements
    assert [variant.image for variant in CUDA_VARIANTS] == ["toolkit:gpu", "toolkit:gpu-cuda12"]
    assert cuda_variant(12) is CUDA_VARIANTS[1] and cuda_variant(11) is None


@for_each(
    ("drivers", "capabilities", "arches", "major"),
    [
        ([(580, 65, 6)], [TURING], ["x86_64"], 13),
        ([(580, 65, 6)], [BLACKWELL, TURING], ["x86_64"], 13),
        ([(580, 65, 6)], [VOLTA], ["x86_64"], 12),
        ([(580, 65, 6)], [PASCAL, HOPPER], ["x86_64"], 12),
        ([(535, 183)], [HOPPER], ["x86_64"], 12),
        # One image serves all hosts: the oldest driver decides.
        ([(580, 65, 6), (525, 60, 13)], [HOPPER], ["x86_64"], 12),
        ([(520, 61)], [HOPPER], ["x86_64"], 0),
        ([(580, 65, 6)], [(3, 7)], ["x86_64"], 0),
        # No torch has code for both.
        ([(580, 65, 6)], [VOLTA, BLACKWELL], ["x86_64"], 0),
        ([(570, 86)], [BLACKWELL], ["x86_64"], 0),
        ([(580, 65, 6)], [HOPPER], ["aarch64"], 13),
        ([(550, 54)], [HOPPER], ["aarch64"], 0),
        # torch for aarch64 has no code for it.
        ([(580, 65, 6)], [TURING], ["aarch64"], 0),
        # An old driver does not report the compute capability.
        ([(525, 60, 13)], [()], ["x86_64"], 12),
        ([()], [()], [""], 13),
        ([], [], [], 13),
    ],
)
def test_a_variant_fits_all_drivers_and_gpus(
    drivers: list[tuple[int, ...]], capabilities: list[tuple[int, ...]], arches: list[str], major: int
) -> None:
    found = fitting_cuda(drivers, capabilities, arches)
    assert (found.major if found else 0) == major
