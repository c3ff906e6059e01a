"""The image in this machine's engine: from its socket, or from Docker's SDK."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine_here import recorded, served
from toolkit.core.image import image_facts
from toolkit.protocol.decode import decode
from toolkit.protocol.engine import ImageInspect

# Prints the image's id, "none" or the error, and whether Docker's SDK was imported.
PROGRAM = """
import sys
import toolkit.remote.local_image as here
here._SECONDS = float(sys.argv[2])
if here._SECONDS == 1:
    import toolkit.remote.engine
    toolkit.remote.engine._SAYS_S = 1
try:
    found = here.local_image(sys.argv[1], "docker")
    print(found.identity if found else "none", end=" ")
except Exception as error:
    print(type(error).__name__, str(getattr(error, "what", error)).replace(" ", "_"), end=" ")
print("docker" in sys.modules)
"""
NAME = "toolkit:cpu"


def asked(name: str, seconds: float = 30.0, **env: str) -> list[str]:
    argv = [sys.executable, "-c", PROGRAM, name, str(seconds)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DOCKER_")}
    done = subprocess.run(argv, env={**kept, **env}, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("name", ["docker-20.10", "docker-26.1", "docker-26.1-containerd"])
def test_images_are_read_through_the_socket_without_the_sdk(tmp_path: Path, name: str) -> None:
    answers = recorded(name)
    body: Any = answers["api"][f"/images/{NAME}/json"][1]
    with served(tmp_path, answers) as engine:
        env = {"HOME": str(tmp_path), "DOCKER_HOST": engine.address}
        assert asked(NAME, **env) == [image_facts(decode(ImageInspect, body)).identity, "False"]
        assert asked("absent:1", **env) == ["none", "False"]


def test_with_a_context_the_sdk_is_used(tmp_path: Path) -> None:
    folder = tmp_path / ".docker"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"currentContext": "elsewhere"}))
    with served(tmp_path, recorded("docker-26.1")) as engine:
        # Docker's SDK prefers DOCKER_HOST. The served engine has no /version, which the SDK asks first.
        found = asked(NAME, HOME=str(tmp_path), DOCKER_HOST=engine.address)
        assert found == ["none", "True"] and "/version" in engine.requests


def test_docker_context_selects_the_engine(tmp_path: Path) -> None:
    """As for the docker command, which builds the image in this engine."""
    (tmp_path / "config.json").write_text('{"currentContext": "current"}')
    answers = recorded("docker-26.1")
    answers["api"] |= {"/version": [200, {"ApiVersion": "1.45"}]}
    identity = image_facts(decode(ImageInspect, answers["api"][f"/images/{NAME}/json"][1])).identity
    with served(tmp_path, answers) as engine:
        for name, host in (("elsewhere", engine.address), ("current", f"unix://{tmp_path}/none.sock")):
            folder = tmp_path / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
            folder.mkdir(parents=True)
            about = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}
            (folder / "meta.json").write_text(json.dumps(about))
        env = {"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path)}
        assert asked(NAME, **env) == ["none", "True"]
        assert asked(NAME, DOCKER_CONTEXT="elsewhere", **env) == [identity, "True"]
        before = engine.requests
        assert asked(NAME, DOCKER_CONTEXT="absent", **env) == ["none", "True"]
        assert engine.requests == before


def test_without_an_engine_there_is_no_image(tmp_path: Path) -> None:
    assert asked(NAME, HOME=str(tmp_path), DOCKER_HOST=f"unix://{tmp_path}/none.sock") == ["none", "True"]


@pytest.mark.parametrize(("path", "command"), [("/_ping", "info"), (f"/images/{NAME}/json", "image inspect")])
@pytest.mark.parametrize("how", ["silent", "slow"])
def test_an_engine_that_hangs_is_not_one_without_the_image(
    tmp_path: Path, path: str, command: str, how: str
) -> None:
    answers = recorded("docker-26.1")
    answers["api"] |= {path: [how, ""]}
    with served(tmp_path, answers) as engine:
        name, text, imported = asked(NAME, 0.5, HOME=str(tmp_path), DOCKER_HOST=engine.address)
    assert (name, imported) == ("LateEngine", "False")
    assert f"did not answer `docker {command}` within 0.5 s" in text.replace("_", " ")


@pytest.mark.parametrize("path", ["/version", f"/images/{NAME}/json"])
def test_the_limit_of_the_sdk_is_no_absence_of_the_image_either(tmp_path: Path, path: str) -> None:
    (tmp_path / "config.json").write_text('{"HttpHeaders": {"X": "1"}}')
    answers = recorded("docker-26.1")
    answers["api"] |= {"/version": [200, {"ApiVersion": "1.45"}], path: ["silent", ""]}
    with served(tmp_path, answers) as engine:
        env = {"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path), "DOCKER_HOST": engine.address}
        name, text, imported = asked(NAME, 1.0, **env)
    assert (name, imported) == ("LateEngine", "True") and "within_1_s" in text


@pytest.mark.parametrize("config", ["[]", '"x"', "5", "null"])
def test_a_configuration_that_is_no_object_is_ignored(tmp_path: Path, config: str) -> None:
    """As by the docker command, which prints a warning."""
    (tmp_path / "config.json").write_text(config)
    with served(tmp_path, recorded("docker-26.1")) as engine:
        env = {"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path), "DOCKER_HOST": engine.address}
        assert asked(NAME, **env)[1:] == ["False"] and asked("absent:1", **env) == ["none", "False"]


@pytest.mark.parametrize(
    ("config", "host"),
    [("[]", ""), ('{"currentContext": 5}', ""), ("{}", "tcp://gpu1:99999"), ("{}", "tcp://[::1")],
)
def test_a_configuration_that_the_sdk_cannot_use_is_an_ordinary_error(
    tmp_path: Path, config: str, host: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    code = "from toolkit.remote.engine import Engine, MissingTool as error\n"
    code += "try: Engine.connect()\nexcept error as caught: print(caught)"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path)}
    env |= {"DOCKER_HOST": host} if host else {}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.startswith("Docker's Python library cannot use your Docker configuration: ")


def test_an_invalid_answer_is_left_to_the_sdk(tmp_path: Path) -> None:
    answers = recorded("docker-26.1")
    answers["api"] |= {f"/images/{NAME}/json": [200, '{"Id": 5}']}
    with served(tmp_path, answers) as engine:
        assert asked(NAME, HOME=str(tmp_path), DOCKER_HOST=engine.address) == ["none", "True"]
