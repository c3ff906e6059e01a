"""The lock of the repository covers the recipes; digest and architecture of the base image."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from scripts.lock import locked_targets, reported_files
from toolkit.image.build_plan import ImageRecipe
from toolkit.image.lock import LOCK_FILE, lock_text, locked_pins, parse_lock
from toolkit.image.make_build import base_digest, base_facts, make_build
from toolkit.image.wheelhouse import runs_on

TEXT = (Path(__file__).resolve().parents[3] / LOCK_FILE).read_text()
LOCK = parse_lock(TEXT)
# Packages without a wheel for arm64 on PyPI.
NO_ARM64 = {"tensorflow-cpu==2.21.0"}


def test_the_lock_covers_every_pin_of_every_recipe() -> None:
    targets = locked_targets()
    assert {target.arch for target in targets} == {"x86_64", "aarch64"}
    for target, pins in targets.items():
        assert len(pins) > 200
        known = {(each.name, each.version) for each in locked_pins(pins, LOCK, target)}
        missing = {pin.line for pin in pins if (pin.name, pin.version) not in known}
        assert missing == (NO_ARM64 if target.arch == "aarch64" else set()), target


def test_the_lock_has_no_entry_that_no_recipe_uses() -> None:
    wanted = {target: {(pin.key, pin.version) for pin in pins} for target, pins in locked_targets().items()}
    unused = {
        name
        for key, files in LOCK.items()
        for name in files
        if not any(key in keys and runs_on(name, target) for target, keys in wanted.items())
    }
    assert unused == set()


def test_the_lock_is_in_the_form_that_its_script_writes() -> None:
    assert lock_text({name: digest for files in LOCK.values() for name, digest in files.items()}) == TEXT


def test_files_are_read_from_a_report_of_pip() -> None:
    report = """{"version": "1", "install": [{"download_info": {
        "url": "https://example.com/whl/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "archive_info": {"hash": "sha256=12", "hashes": {"sha256": "12"}}}}]}"""
    assert reported_files(report) == {"torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl": "12"}


@pytest.mark.parametrize(
    ("answer", "digest"),
    [
        ("""[{"Id": "sha256:1", "RepoTags": ["d:1"], "RepoDigests": ["d@sha256:2"]}]""", "d@sha256:2"),
        ("""[{"Id": "sha256:1", "RepoTags": ["d:1"], "RepoDigests": []}]""", ""),  # made on this machine
        ("", ""),  # the engine does not have it
    ],
)
def test_the_base_image_by_the_digest_of_its_registry(
    answer: str, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n[ \"$*\" = 'image inspect d:1' ] && echo '{answer}' | grep .\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert base_digest(base_facts("d:1")) == digest


def test_without_docker_the_digest_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert base_facts("d:1") is None and base_digest(None) == ""


@pytest.mark.parametrize(
    ("here", "base", "arch", "words"),
    [
        ("x86_64", "arm64", "aarch64", ("--platform", "linux/arm64")),
        ("x86_64", "amd64", "x86_64", ()),
        ("x86_64", "", "x86_64", ()),  # this machine does not have the base image
        ("arm64", "", "aarch64", ()),  # macOS
    ],
)
def test_an_image_has_the_architecture_of_its_base_image(
    here: str,
    base: str,
    arch: str,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = f'[{{"Id": "sha256:1", "RepoTags": ["d:1"], "Architecture": "{base}"}}]' if base else ""
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n[ \"$*\" = 'image inspect d:1' ] && echo '{answer}' | grep .\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(platform, "machine", lambda: here)
    build = make_build(ImageRecipe("cpu", arguments=(("BASE_IMAGE", "d:1"),)))
    assert build.wheelhouses[0].folder.endswith(f"/cpu-py3.11-{arch}")
    assert tuple(word for word in build.command.argv if word in ("--platform", "linux/arm64")) == words
    assert ("HOROVOD_ARCH_FLAGS=" in build.command.argv) == (arch == "aarch64")
