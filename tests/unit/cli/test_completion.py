"""Completion in a real bash: what --install-completion writes, called as bash calls it at TAB."""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.unit.conftest import Run
from toolkit.cli.app import app
from toolkit.cli.lazy import loaded

COMMAND = typer.main.get_command(app)

BIN = Path(sys.executable).parent
HOSTS = (
    "cluster: demo\nimage: toolkit:cpu\nhosts:\n  gpu1: {slots: 2}\n  gpu2: {}\n  head:\n"
    "services:\n  board: {command: x}\n"
)
JOBS = ["20260102-030405-train-b", "20260101-030405-train-a"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "other.yaml").write_text("hosts: [box1, box2]\n")
    (tmp_path / "elsewhere.yaml").write_text("cluster: ../demo\n")
    (tmp_path / ".cache" / "toolkit" / "jobs").mkdir(parents=True)
    (tmp_path / ".cache" / "toolkit" / "jobs" / "demo").write_text("".join(f"{job}\n" for job in JOBS))
    (tmp_path / "broken.yaml").write_text("hosts: [gpu1\n\tx: {")
    (tmp_path / "odd.yaml").write_text("hosts: {1: x, no: y, gpu1: z}\ncluster: [\n")
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder), "PATH": f"{BIN}:{os.environ['PATH']}", **more}


def complete(folder: Path, line: str, **more: str) -> list[str]:
    """Return the completions of bash at the end of this line; fail if standard error has output."""
    # As bash does it: the words so far, and the number of the one that is being written.
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    script = (
        f'source "$HOME/.bash_completions/toolkit.sh"; COMP_WORDS=({shlex.join(words)}); '
        f"COMP_CWORD={len(words) - 1}; _toolkit_completion toolkit; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.fixture
def installed(folder: Path) -> Path:
    """A home where `toolkit --install-completion` has run."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash on this machine")
    # typer detects the calling shell; pytest is none, so the test names one.
    env = environment(folder, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    argv = ["toolkit", "--install-completion", "bash"]
    subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True)
    return folder


def test_in_bash(installed: Path) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", 'source "$HOME/.bashrc"; complete -p toolkit'],
        env=environment(installed),
        capture_output=True,
        text=True,
    )
    # -o default: where we have nothing to offer, as for a script, bash offers files.
    assert done.stdout.strip() == "complete -o default -F _toolkit_completion toolkit"
    assert complete(installed, "toolkit run --only gpu1 --exclude h") == ["head"]
    assert complete(installed, "toolkit shell --hosts broken.yaml ") == []
    assert complete(installed, "toolkit shell ", TOOLKIT_HOSTS="other.yaml") == ["box1", "box2"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("toolkit run --only ", ["gpu1", "gpu2", "head"]),
        ("toolkit run --only gpu1 --exclude h", ["head"]),
        ("toolkit run --only head,g", ["head,gpu1", "head,gpu2"]),
        ("toolkit run --hosts other.yaml --only ", ["box1", "box2"]),
        ("toolkit run --hosts broken.yaml --only ", []),
        ("toolkit run --hosts odd.yaml --only ", []),
        ("toolkit run --hosts gone.yaml --only ", []),
        ("toolkit run --hosts . --only ", []),
        ("toolkit shell g", ["gpu1", "gpu2"]),
        ("toolkit exec ", ["gpu1", "gpu2", "head"]),
        ("toolkit exec gpu1 -- g", []),
        ("toolkit trust gpu1 h", ["head"]),
        ("toolkit smoke --launcher m", ["mpirun"]),
        ("toolkit run --on-interrupt ", ["ask", "stop", "detach"]),
        ("toolkit render ", ["compose", "docker", "ssh", "slurm", "kubernetes"]),
        ("toolkit image build --flavor ", ["cpu", "gpu"]),
        ("toolkit lab up --engine new,", ["new,old", "new,new", "new,containerd", "new,podman"]),
        ("toolkit lab up --user r", ["root"]),
        ("toolkit lab up --interfaces ", ["differ", "same"]),
        *((f"toolkit {verb} ", JOBS) for verb in ("attach", "logs", "wait", "why", "stop", "get --job")),
        ("toolkit attach 20260101", JOBS[1:]),
        ("toolkit attach --hosts other.yaml ", []),
        ("toolkit attach --hosts elsewhere.yaml ", []),
        ("toolkit attach --hosts broken.yaml ", []),
        ("toolkit check --check docker-v", ["docker-version"]),
        ("toolkit check --check clock,docker-v", ["clock,docker-version"]),
        ("toolkit predict --rate g", ["gpu1=", "gpu2="]),
        ("toolkit predict --model resnet5", ["resnet50"]),
        ("toolkit run train", []),
        ("toolkit lab ", ["up", "down", "status"]),
    ],
)
def test_what_is_offered(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_TOOLKIT_COMPLETE", "complete_bash")
    status, out, err = run()
    assert (status, out.split(), err) == (0, expected, "")


@pytest.mark.parametrize(
    ("shell", "line", "expected"),
    [
        ("zsh", "toolkit run --only gpu", '_arguments \'*: :(("gpu1"\n"gpu2"))\''),
        ("fish", "toolkit run --only gpu", "gpu1\ngpu2"),
    ],
)
def test_other_shells(folder: Path, shell: str, line: str, expected: str) -> None:
    def ask(action: str, **more: str) -> str:
        env = environment(folder, _TOOLKIT_COMPLETE=f"{action}_{shell}", **more)
        done = subprocess.run(["toolkit"], cwd=folder, env=env, capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout.strip()

    assert "toolkit" in ask("source") and "_TOOLKIT_COMPLETE" in ask("source")
    assert ask("complete", _TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="get-args") == expected


@pytest.mark.parametrize(
    ("line", "expected"), [("toolkit shell ", ["gpu1", "gpu2", "head"]), ("toolkit attach ", JOBS)]
)
def test_names_are_completed_without_the_heavy_packages(folder: Path, line: str, expected: list[str]) -> None:
    code = (
        "import sys, os\n"
        "from toolkit.cli.app import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        # typer can import pydantic; models of toolkit must not be imported.
        "heavy = {'toolkit.hostsfile.models', 'paramiko', 'fabric', 'docker', 'jinja2', 'requests'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    env = environment(folder, COMP_WORDS=line, COMP_CWORD="2", _TOOLKIT_COMPLETE="complete_bash")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, expected), done.stderr


def test_without_remembered_jobs_no_hosts_file_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "none"))
    monkeypatch.setattr("toolkit.cli.complete._read", lambda path: pytest.fail("it was read"))
    assert complete_words(parameter("attach", "job"), folder) == []


# Every parameter of every command


def parameters(command: Any = COMMAND, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, sub in getattr(command, "commands", {}).items():
        yield from parameters(loaded(sub), f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield from ((name, param) for param in command.params)


def parameter(verb: str, name: str) -> Any:
    return next(param for where, param in parameters() if (where, param.name) == (verb, name))


def complete_words(param: Any, folder: Path) -> list[str]:
    """Return the completions of an empty parameter with the hosts file of the folder."""
    context = typer.Context(COMMAND)
    context.params["hosts"] = str(folder / "hosts.yaml")
    return [item.value for item in param.shell_complete(context, "")]


# Words in the metavar, or the parameter's own name, and what must be among what is offered.
TAKES = {
    "HOST": "gpu1",
    "JOB": JOBS[0],
    "SERVICE": "board",
    "CHECK": "docker",
    "service": "board",
    "launcher": "torchrun",
    "model": "resnet50",
    "flavor": "cpu",
}
# No file contains its hosts yet.
NEW_NAMES = ("init",)


def lacking(verb: str, param: Any, folder: Path) -> str:
    """Return the completions that a parameter should offer and does not."""
    metavar = param.metavar or ""
    if verb in NEW_NAMES or getattr(param, "is_flag", False):
        return ""
    offered = complete_words(param, folder)
    if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", metavar):
        return "" if offered == metavar.split("|") else metavar
    for word, expected in TAKES.items():
        if word in re.findall("[A-Z]+", metavar) or word == param.name:
            return "" if {expected, f"{expected}="} & set(offered) else expected
    return ""


def test_every_parameter_that_takes_a_name_completes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    every = list(parameters())
    assert len({verb for verb, _ in every}) > 25
    lacks = {
        f"{verb} {param.name}": missing for verb, param in every if (missing := lacking(verb, param, folder))
    }
    assert lacks == {}


@pytest.mark.parametrize("metavar", ["HOST", "[HOST]...", "[JOB]", "ask|stop"])
def test_a_parameter_without_a_completer_is_seen(folder: Path, metavar: str) -> None:
    # A parameter without completion, with another name for its value.
    param = copy.copy(parameter("logs", "since"))
    assert lacking("logs", param, folder) == ""
    param.metavar = metavar
    assert lacking("logs", param, folder)
