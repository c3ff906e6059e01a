"""The wheel, in an empty environment far from the checkout: all that the toolkit needs travels in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import Toolkit, containers

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is made of the source archive, so that both have all that it takes."""
    folder = tmp_path_factory.mktemp("dist")
    make = "import sys, hatchling.build as h; print(h.build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", make, str(folder)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    source = folder / done.stdout.split()[-1]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(folder), str(source)], cwd=folder, check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def far(wheel: Path, lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    """The installed program, in a folder of its own, with nothing of this environment but the engine's."""
    folder = tmp_path_factory.mktemp("far")
    venv.create(folder / "env", with_pip=True)
    pip = [str(folder / "env/bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    # The lock's versions: they are in pip's cache already.
    subprocess.run([*pip, "-c", str(ROOT / "requirements.lock"), str(wheel)], cwd=folder, check=True)
    data = yaml.safe_load((lab / "hosts.yaml").read_text()) | {"cluster": "far", "main": "box1"}
    data["hosts"] = {name: data["hosts"][name] for name in ("box1", "box3")}
    hosts = folder / "hosts.yaml"
    hosts.write_text(yaml.safe_dump(data))
    tools = {str(Path(found).parent) for name in ("docker", "ssh") if (found := shutil.which(name))}
    env = {"PATH": ":".join([*sorted(tools), os.defpath]), "HOME": str(folder), "TOOLKIT_HOSTS": str(hosts)}
    env |= {name: value for name, value in os.environ.items() if name.startswith("DOCKER_")}
    return Toolkit(hosts, folder, str(folder / "env/bin/toolkit"), env)


def test_the_wheel_has_what_a_checkout_has(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    expected = {name for name in tracked if name.startswith("toolkit/")}
    expected |= {
        f"toolkit/_data/{name}"
        for name in tracked
        if name.startswith(("compose/", "image/", "ssh/", "Dockerfile."))
    }
    assert expected - held == set()
    assert not [name for name in held if name.startswith(("tests/", "examples/")) or ".pyc" in name]


@pytest.mark.rare
def test_what_needs_no_host(far: Toolkit) -> None:
    where = subprocess.run(
        [str(far.folder / "env/bin/python"), "-c", "import toolkit; print(toolkit.__file__)"],
        cwd=far.folder,
        env=far.env,
        check=True,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(far.folder / "env"))
    assert "multi-node training" in far.run("--help", check=True).out
    assert far.run("version", "--json", check=True).json["libraries"]["typer"]
    assert "cluster" in far.run("schema", check=True).json["properties"]
    assert far.run("init", "-o", "-", "gpu1", check=True).out.startswith("# The hosts of one cluster")
    failed = far.run("up", "--hosts", "gone.yaml")
    more = re.search(r"^  more: toolkit (.+)$", failed.err, re.MULTILINE)
    assert failed.status == 2 and more
    assert "cause: " in far.run(*more[1].split(), check=True).out
    for flavor in ("cpu", "gpu"):
        plan = far.run("image", "build", "--flavor", flavor, "--dry-run", "--json", check=True).json["plan"]
        assert any(f"--tag toolkit:{flavor} " in line for line in plan)
    assert far.run("lab", "up", "--name", "far-away", "--dry-run", "--json", check=True).json["plan"]


def test_a_cluster_s_life(far: Toolkit) -> None:
    for target, file in {
        "compose": "box3/compose.yaml",
        "docker": "box1/main.sh",
        "ssh": "ssh_config",
    }.items():
        assert file in far.run("render", target, "--json", check=True).json
    try:
        far.run("up", check=True)
        assert far.run("up", "--json", check=True).json["changes"] == 0
        assert "all-reduce over 2 ranks: sum 3 correct on all ranks" in far.run("smoke", check=True).out
        told = far.run("run", "--dry-run", "--json", "--", "true", check=True).json
        assert told["dry_run"] and told["title"].startswith("run ") and "phase start" in told["plan"]
        assert len(far.run("status", "--json", check=True).json["jobs"]) == 1  # the dry run made none
        assert far.run("stop", "--dry-run", "--json", check=True).json["dry_run"]
        refused = far.run("stop", "no-such-job", "--json")
        assert (
            refused.status == 3 and json.loads(refused.out)["error"]["what"] == "there is no job no-such-job"
        )
    finally:
        far.run("down", "--no-save", check=True)
    assert containers("box1", "far") == containers("box3", "far") == []
