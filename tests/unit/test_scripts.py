"""Scripts of the Makefile: the Docker engine of this machine, and the virtual environment."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
Done = subprocess.CompletedProcess[str]

# The engine of this machine has the content of files; every other engine is empty, or does not answer.
DOCKER = """\
engine=${DOCKER_HOST:-${DOCKER_CONTEXT:-unix://@/var/run/docker.sock}}
case $engine in
    unix://@/var/run/docker.sock) ;;
    *empty*) exit 0 ;;
    *) echo "cannot connect" >&2; exit 1 ;;
esac
[ "$1" != "$(cat @/broken)" ] || { echo "error from daemon" >&2; exit 1; }
case $* in
    version*) echo >> @/asked; [ "$(wc -l < @/asked)" -ge "$(cat @/answers)" ] && echo 26.1 ;;
    info*) cat @/root ;;
    'ps -q') cat @/running ;;
    'ps -aq') cat @/containers ;;
    volume*) cat @/volumes ;;
    image*) cat @/images ;;
esac
"""
CONTENT = ("broken", "running", "containers", "volumes", "images")


class Engine:
    """scripts/engine.sh with an engine that it started, all paths below a folder, and stubs of programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        text = (SCRIPTS / "engine.sh").read_text()
        self.script = re.sub(r"(?<![\w.$}])/(var|run|etc|sys|proc/sys)\b", rf"{folder}/\1", text)
        left = re.findall(r"(?<![\w.$}:/*])/\w[\w/]*", re.sub(rf"{folder}[\w/]*", "", self.script))
        # /root is only for a missing HOME, and /br is a part of an expression for sed.
        assert set(left) <= {"/bin/sh", "/dev/null", "/proc/", "/root", "/br"}
        self.data, self.state = folder / "var/lib/docker", folder / "state/toolkit/engine"
        for each in (self.data / "volumes", self.state, folder / "bin", folder / "proc/sys/net/ipv4"):
            each.mkdir(parents=True)
        stubs = {"docker": DOCKER, "dockerd": "echo >> @/dockerd-ran; exit 1", "id": "echo 0"}
        for name in ("docker", "dockerd", "id", "ip", "iptables", "ip6tables", "umount", "apt-get"):
            (folder / "bin" / name).write_text(
                f"#!/bin/sh\n{stubs.get(name, '').replace('@', str(folder))}\n"
            )
            (folder / "bin" / name).chmod(0o755)
        self.set(**dict.fromkeys(CONTENT, ""), answers="1", root=str(self.data))
        self.process = subprocess.Popen(["sleep", "600"])
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2]
        (self.state / "started").write_text(f"{self.process.pid} {stat.split()[19]}\n")
        (self.state / "before").write_text("made_data=yes\n")
        (self.state / "net").write_text("forward=ACCEPT\nip_forward=0\n")

    def set(self, **content: str) -> None:
        for name, text in content.items():
            (self.folder / name).write_text(f"{text}\n" if text else "")

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def started_another(self) -> bool:
        return (self.folder / "dockerd-ran").exists()

    def run(self, verb: str, **environ: str) -> Done:
        return subprocess.run(
            ["sh", "-c", self.script, "scripts/engine.sh", verb],
            env={
                "PATH": f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "XDG_STATE_HOME": f"{self.folder}/state",
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    if not Path("/proc/self/stat").exists():
        pytest.skip("the script needs Linux")
    made = Engine(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


# Variables with which `docker` talks to another engine than the one that the script started.
ELSEWHERE: tuple[dict[str, str], ...] = (
    {},
    {"DOCKER_HOST": "tcp://empty:2375"},
    {"DOCKER_HOST": "tcp://dead"},
    {"DOCKER_CONTEXT": "empty"},
)
elsewhere = pytest.mark.parametrize("environ", ELSEWHERE, ids=str)


@elsewhere
@pytest.mark.parametrize("verb", ["stop", "clean"])
def test_an_engine_with_a_running_container_is_kept_whatever_docker_talks_to(
    engine: Engine, verb: str, environ: dict[str, str]
) -> None:
    engine.set(running="c0ffee", containers="c0ffee")
    done = engine.run(verb, **environ)
    assert "was not stopped, because it runs containers: 1" in done.stderr
    assert engine.runs and engine.data.exists() and (engine.state / "started").exists()


@elsewhere
@pytest.mark.parametrize(
    "content",
    [{"containers": "c0ffee"}, {"volumes": "mine"}, {"images": "debian:bookworm-slim\nmine:1"}],
    ids=str,
)
def test_data_of_the_user_is_kept_whatever_docker_talks_to(
    engine: Engine, content: dict[str, str], environ: dict[str, str]
) -> None:
    engine.set(**content)
    done = engine.run("clean", **environ)
    assert done.returncode == 0 and (engine.data / "volumes").exists()
    assert f"kept {engine.data}, which has other containers, volumes or images" in done.stderr
    assert not engine.runs and not engine.state.exists()


@elsewhere
def test_the_data_of_an_engine_with_base_images_only_is_removed(
    engine: Engine, environ: dict[str, str]
) -> None:
    engine.set(images="debian:bookworm-slim\ndebian:trixie-slim\n<none>:<none>")
    done = engine.run("clean", **environ)
    assert done.returncode == 0 and not engine.data.exists() and not engine.state.exists()
    assert not engine.runs


@pytest.mark.parametrize("broken", ["info", "ps", "volume", "image"])
def test_an_engine_whose_content_is_unknown_is_not_an_empty_one(engine: Engine, broken: str) -> None:
    engine.set(broken=broken)
    done = engine.run("clean")
    assert done.returncode == 4 and engine.runs and (engine.data / "volumes").exists()
    assert "the engine was not stopped, because docker cannot list its containers" in done.stderr
    assert f"  fix: DOCKER_HOST=unix://{engine.folder}/var/run/docker.sock docker ps -a" in done.stderr
    assert (engine.state / "started").exists()


def test_an_engine_with_its_data_in_another_folder_loses_no_data(engine: Engine) -> None:
    engine.set(root="/mnt/docker")
    assert engine.run("clean").returncode == 0
    assert (engine.data / "volumes").exists() and not engine.runs


@elsewhere
def test_no_second_engine_is_started_beside_one_that_runs(engine: Engine, environ: dict[str, str]) -> None:
    before = (engine.state / "net").read_text()
    assert engine.run("wake", **environ).returncode == 0
    engine.set(answers="999")
    assert engine.run("wake", **environ).returncode == 0
    assert not engine.started_another and engine.runs
    assert (engine.state / "started").exists() and (engine.state / "net").read_text() == before


def test_ensure_waits_for_an_engine_that_is_starting(engine: Engine) -> None:
    engine.set(answers="4")
    done = engine.run("ensure")
    assert done.returncode == 0 and not engine.started_another and engine.runs
    assert "Docker engine 26.1 started" in done.stderr


def test_ensure_starts_no_engine_because_a_context_does_not_answer(engine: Engine) -> None:
    (engine.state / "started").unlink()
    done = engine.run("ensure", DOCKER_CONTEXT="far")
    assert done.returncode == 4 and not engine.started_another
    assert "the engine of your machine answers, but the engine of your Docker context does not" in done.stderr


# Records each call, and creates a virtual environment with the file `pip` as its Python.
PYTHON = """\
echo "$*" >> @/log
case "$*" in
    "-m venv"*)
        for folder; do :; done
        [ "$3" != --clear ] || rm -rf "$folder"
        mkdir -p "$folder/bin"
        touch "$folder/pyvenv.cfg"
        cp @/pip "$folder/bin/python" ;;
esac
"""


@pytest.mark.parametrize(
    ("files", "creation"),
    [
        ((), ["-m venv {}"]),
        (("pyvenv.cfg", "bin/python"), ["-m venv --clear {}"]),
        (("mine", "bin/python"), ["-m venv {}"]),
    ],
    ids=["new", "interrupted", "other folder"],
)
def test_an_interrupted_creation_of_the_virtual_environment_is_repeated(
    tmp_path: Path, files: tuple[str, ...], creation: list[str]
) -> None:
    folder = tmp_path / "venv"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\necho No module named pip >&2; exit 1\n")
        (folder / name).chmod(0o755)
    for name, text in {"python": PYTHON.replace("@", str(tmp_path)), "pip": "echo pip"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for _ in range(2):  # the second run finds a complete one
        argv = ["sh", str(SCRIPTS / "venv.sh"), str(tmp_path / "python"), str(folder)]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    calls = (tmp_path / "log").read_text().splitlines()
    assert [call for call in calls if "-m venv" in call] == [each.format(folder) for each in creation]
    assert (folder / "mine").exists() == ("mine" in files) and (folder / ".ready").exists()
