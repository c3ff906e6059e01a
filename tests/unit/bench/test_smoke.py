"""The launcher of the smoke test: the hosts file's, or another one with the reason."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import toolkit.cluster.session
from tests.unit import cluster_world as world
from tests.unit.test_invariants import Recorder
from tests.unit.test_invariants import recorder as recorder
from toolkit.cli.app import app
from toolkit.core.command import Command, Result
from toolkit.errors import NotReady


class Main:
    """Runs commands in a shell that knows these programs alone."""

    def __init__(self, folder: Path, programs: tuple[str, ...]) -> None:
        self.path = folder
        folder.mkdir()
        for name in programs:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)

    def run(self, command: Command, timeout: float) -> Result:
        argv = ["/bin/sh", *map(str, command.argv[1:])]
        done = subprocess.run(argv, env={"PATH": str(self.path)}, capture_output=True, text=True, check=False)
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def image(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str, tuple[str, ...]], None]:
    """Write a hosts file with a launcher, and let the image have these programs."""

    def make(launcher: str, programs: tuple[str, ...]) -> None:
        text = world.HOSTS + (f"launcher: {launcher}\n" if launcher else "")
        (tmp_path / "hosts.yaml").write_text(text)
        main = Main(tmp_path / "programs", programs)
        monkeypatch.setattr(toolkit.cluster.session.Session, "main", main)

    return make


ALL = ("torchrun", "mpirun", "horovodrun", "python3")


@pytest.mark.parametrize(
    ("launcher", "programs", "words", "used", "why"),
    [
        ("torchrun", ALL, (), "torchrun", ""),
        ("horovodrun", ALL, (), "horovodrun", ""),
        ("", ALL, (), "mpirun", ""),
        ("auto", ALL, (), "mpirun", ""),
        ("", ("torchrun", "python3"), (), "torchrun", "toolkit:cpu has no mpirun"),
        ("horovodrun", ALL, ("--launcher", "auto"), "mpirun", ""),
        ("", ALL, ("--launcher", "horovodrun"), "horovodrun", ""),
        ("horovodrun-gloo", ALL, (), "horovodrun-gloo", ""),
        ("torchrun", ALL, ("--launcher", "mpirun"), "mpirun", ""),
        ("torchrun", ("mpirun",), ("--launcher", "torchrun"), "torchrun", ""),
        ("horovodrun", ("mpirun", "torchrun"), (), "mpirun", "toolkit:cpu has no horovodrun"),
        ("horovodrun", ("torchrun",), (), "torchrun", "toolkit:cpu has no horovodrun"),
        ("torchrun", ("python3",), (), "python", "toolkit:cpu has no torchrun"),
        ("ray", ("ray", *ALL), (), "mpirun", "ray"),
        ("mpirun", ("ray", *ALL), ("--launcher", "ray"), "mpirun", "ray"),
        ("torchrun", (), (), "torchrun", ""),  # no other one is better: its own failure is reported
    ],
)
def test_smoke_follows_the_hosts_file(
    launcher: str,
    programs: tuple[str, ...],
    words: tuple[str, ...],
    used: str,
    why: str,
    image: Callable[[str, tuple[str, ...]], None],
) -> None:
    image(launcher, programs)
    done = CliRunner().invoke(app, ["smoke", "--dry-run", *words], catch_exceptions=False)
    assert done.exit_code == 0 and f"start the job with {used}\n" in done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith("smoke uses ")]
    why = (
        "ray starts one driver process instead of one process per rank"
        if why == "ray"
        else why and f"the image {why}"
    )
    assert said == ([f"smoke uses {used}, because {why}"] if why else [])


def test_smoke_plans_a_job_if_the_main_container_does_not_run(
    image: Callable[[str, tuple[str, ...]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    image("torchrun", ALL)

    def gone(session: object) -> None:
        raise NotReady("container toolkit-demo-main is not running", "toolkit up", "gpu1")

    monkeypatch.setattr(toolkit.cluster.session.Session, "main", property(gone))
    done = CliRunner().invoke(app, ["smoke", "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0 and "start the job with torchrun\n" in done.stdout
