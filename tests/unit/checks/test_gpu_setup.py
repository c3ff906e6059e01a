"""Drivers, CUDA versions and the conditions of images."""

from __future__ import annotations

import pytest

from tests.unit.each import for_each
from toolkit.checks.gpu_setup import (
    BRANCHES,
    _kernel,
    dotted,
    first_driver,
    image_cuda,
    newest_cuda,
    required,
    satisfied,
    version,
)


def test_the_table_rises() -> None:
    assert list(BRANCHES) == sorted(BRANCHES)
    assert [cuda for _, cuda in BRANCHES] == sorted({cuda for _, cuda in BRANCHES})


@for_each(
    ("driver", "cuda"),
    [
        ("390.157", ""),
        ("418.226.00", "10.1"),
        ("470.256.02", "11.4"),
        ("535.183.01", "12.2"),
        ("550.54.14", "12.4"),
        ("580.65.06", "13.0"),
        # A branch between two rows, one after the last, and nothing at all.
        ("546.01", "12.3"),
        ("700.1", dotted(BRANCHES[-1][1])),
        ("[N/A]", ""),
    ],
)
def test_a_driver_supports_a_cuda(driver: str, cuda: str) -> None:
    assert dotted(newest_cuda(driver)) == cuda


@pytest.mark.parametrize(
    ("cuda", "branch"), [((13, 0), 580), ((12, 9, 1), 525), ((11, 8), 450), ((10, 2), 440)]
)
def test_the_oldest_driver_for_a_cuda(cuda: tuple[int, ...], branch: int) -> None:
    assert first_driver(cuda) == branch


_DATA_CENTRE = "cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536"


@for_each(
    ("condition", "driver", "answer"),
    [
        ("cuda>=12.4", "550.54.14", True),
        ("cuda>=12.5", "550.54.14", False),
        ("cuda>=12.4,driver!=550.54.14", "550.54.14", False),
        ("driver<550 cuda>=12.4", "550.54.14", True),
        ("driver=550.54", "550.54.0", True),
        (_DATA_CENTRE, "570.26", True),
        (_DATA_CENTRE, "550.54.14", False),
        (_DATA_CENTRE, "535.183.01", None),
        ("cuda>=15.0", "900.1", None),
        ("arch>=8.0", "550.54.14", None),
        ("cuda>=9.0", "390.157", False),
        ("nonsense", "550.54.14", None),
    ],
)
def test_conditions_of_images(condition: str, driver: str, answer: bool | None) -> None:
    assert satisfied(condition, driver) is answer


def test_the_declared_cuda_of_an_image() -> None:
    assert required({"NVIDIA_REQUIRE_CUDA": " cuda>=12.8 "}) == "cuda>=12.8"
    assert required({"NVIDIA_REQUIRE_CUDA": "cuda>=12.8", "NVIDIA_DISABLE_REQUIRE": "1"}) == ""
    assert image_cuda({"NVIDIA_REQUIRE_CUDA": "brand=tesla cuda>=12.8"}) == (12, 8)
    assert image_cuda({"CUDA_VERSION": "12.4.1", "NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}) == (12, 4, 1)
    assert image_cuda({}) == ()


@pytest.mark.parametrize("long", ["9" * 5000, "550." + "9" * 5000, "9" * 5000 + ".1"])
def test_a_host_gives_a_version_that_is_too_long_to_count(long: str) -> None:
    assert version(long) in ((), (550,))
    assert _kernel(f"6.1.{long}-amd64")[0][:2] == (6, 1)


@for_each(
    ("running", "newer"),
    [
        ("6.8.0-45-generic", "6.8.0-51-generic"),
        ("6.8.0-1015-nvidia-64k", "6.8.0-1016-nvidia-64k"),
        ("6.8.0-1015-aws", "6.8.0-1016-aws"),
        ("6.1.0-0.deb11.13-amd64", "6.1.0-18-amd64"),
        ("6.1.0-18-cloud-amd64", "6.12.48+deb13-cloud-amd64"),
        ("5.14.21-150500.55.39-default", "6.4.0-150600.21-default"),
        ("4.18.0-80.el8.x86_64", "4.18.0-80.1.2.el8_0.x86_64"),
        ("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64"),
        ("5.14.0-427.13.1.el9_4.x86_64+rt", "5.14.0-503.11.1.el9_5.x86_64+rt"),
        ("5.15.0-206.153.7.el9uek.x86_64", "5.15.0-300.163.18.el9uek.x86_64"),
        ("6.8.5-201.fc39.x86_64", "6.8.5-301.fc40.x86_64"),
        ("5.10.199-190.747.amzn2.x86_64", "5.10.230-223.885.amzn2.x86_64"),
        ("6.1.66-91.160.amzn2023.x86_64", "6.1.72-96.166.amzn2023.x86_64"),
    ],
)
def test_the_next_kernel_of_the_same_flavor(running: str, newer: str) -> None:
    assert _kernel(running)[0] < _kernel(newer)[0]
    assert _kernel(running)[1] == _kernel(newer)[1] != ""


@for_each(
    ("running", "other"),
    [
        ("6.8.0-45-generic", "6.8.0-99-lowlatency"),
        ("6.1.0-18-amd64", "6.1.0-18-cloud-amd64"),
        ("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-427.13.1.el9_4.x86_64+rt"),
        ("5.14.0-427.13.1.el9_4.x86_64", "5.15.0-206.153.7.el9uek.x86_64"),
        ("5.14.0-427.13.1.el9_4.aarch64", "5.14.0-427.13.1.el9_4.aarch64+64k"),
    ],
)
def test_kernels_of_different_flavors(running: str, other: str) -> None:
    assert _kernel(running)[1] != _kernel(other)[1]
