"""The command line: bad input ends with status 2 and the whole list of faults, and nothing is contacted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit.cluster.session
from tests.unit import cluster_world as world
from tests.unit import docs_check
from tests.unit.conftest import Run
from toolkit.core.report import Outcome, Report
from toolkit.errors import EXIT_CODES, BadInput, MissingTool, NotReady, ToolkitError, Unreachable
from toolkit.plan.execute import PlanInterrupted

VERBS = set(docs_check.verbs())


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "cluster: demo\nimage: toolkit:cpu\nhosts:\n"
        "  gpu1: {address: 10.77.0.2, slots: 2}\n  gpu2: {address: 10.77.0.3, slots: 3}\n"
    )
    return path


WITH_HOSTS = {
    "up": (),
    "down": (),
    "gc": (),
    "smoke": (),
    "bench network": (),
    "bench scaling": ("true",),
    "network tune": (),
    "bench tune": (),
    "bench predict": ("--params", "1M", "--rate", "1gbit"),
    "check": (),
    "status": (),
    "top": (),
    "jobs": (),
    "attach": (),
    "logs": (),
    "wait": (),
    "report": (),
    "why": (),
    "stop": (),
    "get": ("x",),
    "forward": (),
    "shell": (),
    "trust": (),
    "image send": (),
    "image inspect": (),
    "image ls": (),
    "image prune": (),
    "data send": (),
    "data ls": (),
    "data rm": (),
    "run": ("x",),
    "exec": ("x",),
    "render compose": (),
    "render docker": (),
    "render ssh": (),
    "render slurm": ("x",),
    "render kubernetes": ("x",),
    "predict": ("--params", "1M", "--rate", "1gbit"),
    "network explain": (),
}


def test_the_table_below_has_every_verb_that_takes_a_hosts_file() -> None:
    without = {"image build", "lab up", "lab down", "lab status", "init", "schema", "version"}
    assert set(WITH_HOSTS) == VERBS - without


@pytest.mark.parametrize("verb", WITH_HOSTS)
def test_every_verb_refuses_a_hosts_file_that_is_not_there(run: Run, verb: str) -> None:
    status, out, err = run(*verb.split(), "--hosts", "missing.yaml", *WITH_HOSTS[verb])
    assert (status, out) == (2, "")
    assert err.startswith("toolkit: missing.yaml: 1 problem\n  No such file")
    assert "fix: toolkit init" in err


@pytest.mark.parametrize("verb", WITH_HOSTS)
def test_every_verb_names_all_faults_of_a_hosts_file(run: Run, verb: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: Demo!\nimage: X\nhosts: {}\nfoo: 1\n")
    status, out, err = run(*verb.split(), *WITH_HOSTS[verb])
    assert (status, out) == (2, "")
    assert all(word in err for word in ("4 problems", "line 1: cluster", "line 2: image", "line 4: foo"))


def test_the_hosts_file_may_come_from_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLKIT_HOSTS", "elsewhere.yaml")
    named, given = run("up")[2], run("up", "--hosts", "given.yaml")[2]
    assert "elsewhere.yaml: 1 problem" in named and "fix: unset TOOLKIT_HOSTS" in named
    assert "given.yaml: 1 problem" in given and "fix: toolkit init" in given


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "gone.py"), "gone.py: does not exist in"),
        (("run", "--np", "6", "true"), "--np: the job requests 6 ranks, but its hosts have 5 slots"),
        (("run", "--np", "0", "true"), "--np"),
        (("run", "--launcher", "mpiexec", "true"), "--launcher: should be one of"),
        (("run", "--only", "gpu9", "true"), "gpu9 is not a host in hosts.yaml, which lists gpu1, gpu2"),
        (
            ("run", "--only", "gpu9, gpu1", "true"),
            "gpu9 is not a host in hosts.yaml, which lists gpu1, gpu2",
        ),
        (("run", "--only", "gpu1,gpu2", "--exclude", "gpu2,gpu1", "true"), "leave no host"),
        (("run", "--only", "gpu1", "--exclude", "gpu1", "true"), "leave no host"),
        (("check", "--check", "docker-version,no-such"), "no check is called no-such"),
        (
            ("run", "--env", "RANK=3", "true"),
            "--env RANK: this variable is reserved for toolkit and the launchers",
        ),
        (("run", "--env", "NOT_SET_HERE", "true"), "--env NOT_SET_HERE: is not set in your environment"),
        (("run", "--env", "1X=2", "true"), "--env 1X: a variable name consists of"),
        (
            ("run", "--on-interrupt", "kill", "true"),
            "--on-interrupt: should be one of ask, stop, detach, found 'kill'",
        ),
        (("run", "--workdir", "nowhere", "gone.py"), "1 problem --workdir: "),
        (("run", "--workdir", "nowhere", "true"), "is not a folder"),
        (("run", "--timeout", "0", "true"), "--timeout"),
        (("run",), "Missing argument"),
        (("smoke", "--launcher", "x"), "--launcher: should be one of"),
        (("exec", "gpu9", "--", "true"), "gpu9 is not a host in hosts.yaml"),
        (("exec", "gpu1", "--"), "a command is missing: toolkit exec gpu1 -- COMMAND"),
        (("shell", "gpu9"), "gpu9 is not a host in hosts.yaml"),
        (("trust", "gpu9"), "gpu9 is not a host in hosts.yaml"),
        (("render", "helm"), "No such command 'helm'"),
        (("image", "build", "--flavor", "x"), "--flavor: should be one of cpu, gpu, found 'x'"),
        (("image", "build", "--flavor", "cpu", "--build-arg", "X"), "--build-arg X: should be NAME=VALUE"),
        (("up", "--no-such-option"), "No such option"),
        (("run", "-m", "my.module"), "No such option: -m fix: toolkit run -- python -m MODULE"),
        (("no-such-verb",), "No such command"),
        (("up", "extra"), "unexpected extra argument"),
    ],
)
def test_bad_input_ends_with_2_before_anything_is_contacted(
    run: Run, hosts: Path, words: tuple[str, ...], message: str
) -> None:
    status, out, err = run(*words)
    assert status == 2, err
    assert out == ""
    assert message in " ".join(err.split())


def test_a_secret_is_not_repeated_by_a_message(run: Run, hosts: Path) -> None:
    _, out, err = run("run", "--env", "RANK=s3cret", "true")
    assert "s3cret" not in out + err


@pytest.mark.parametrize("verb", ["", "data", "image", "lab"])
def test_without_a_verb_there_is_help(run: Run, verb: str) -> None:
    status, out, err = run(*verb.split())
    assert status in (0, 2)
    assert "Usage" in out + err


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_explains_itself(run: Run, verb: str) -> None:
    status, out, _ = run(*verb.split(), "--help")
    assert status == 0
    text = " ".join(out.split())
    assert len(text) > 100
    if verb in WITH_HOSTS:
        assert "--hosts" in text
    if verb in (
        "up",
        "down",
        "gc",
        "run",
        "smoke",
        "image send",
        "image build",
        "image prune",
        "data send",
        "data rm",
    ):
        assert "--dry-run" in text and "--json" in text
    if verb in ("status", "trust", "lab status", "exec", "image ls", "data ls"):
        assert "--json" in text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ToolkitError("x", "y", "gpu1"), 1),
        (BadInput("x", ()), 2),
        (NotReady("x"), 3),
        (MissingTool("x"), 4),
        (KeyboardInterrupt(), 130),
        (PlanInterrupted(Report("up", (Outcome("p", "s", "gpu1", "not run"),))), 130),
    ],
)
def test_errors_become_messages_and_documented_statuses(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    def fails(hosts: str) -> None:
        raise error

    monkeypatch.setattr("toolkit.cli.up.load", fails)
    found, out, err = run("up")
    assert (found, out) == (status, "")
    assert found in EXIT_CODES
    assert "Traceback" not in err and err.endswith("\n")
    if isinstance(error, PlanInterrupted):
        assert "gpu1: stopped before s" in err
        assert err.endswith(
            "toolkit: interrupted\n  fix: toolkit up    # continues where the interrupted run stopped\n"
        )
    if error.args == ("x",) and isinstance(error, ToolkitError) and error.fix:
        assert err == "toolkit: gpu1: x\n  fix: y\n"


def test_a_host_that_fails_gives_status_1_and_json_says_why(
    run: Run, monkeypatch: pytest.MonkeyPatch, hosts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(inventory: object, *more: object) -> toolkit.cluster.session.Session:
        session = toolkit.cluster.session.Session(world.inventory(world.HOSTS + "transport: ssh\n"))
        session.errors = {"cpu3": NotReady("docker is not installed", "install it", "cpu3")}
        session.facts = {n: f for n, f in world.facts_when_up().items() if n != "cpu3"}
        return session

    monkeypatch.setattr(toolkit.cluster.session.Session, "open", opened)
    monkeypatch.setattr(toolkit.cluster.session.Session, "runners_in_use", lambda session: {})
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: None)
    monkeypatch.setattr("toolkit.jobs.control.running_jobs", lambda session: [])
    status, out, _ = run("down", "--json")
    assert status == 1
    told = json.loads(out)
    assert told["outcomes"][0] == {
        "phase": "connect",
        "step": "connect",
        "host": "cpu3",
        "status": "failed",
        "seconds": 0.0,
        "detail": "docker is not installed",
        "fix": "install it",
        "output": "",
    }
    status, out, err = run("down")
    assert (status, out) == (1, "")
    assert "cpu3: FAILED at connect: docker is not installed" in err
    # Reason and fix are printed once, with the report.
    assert err.count("docker is not installed") == err.count("fix: install it") == 1
    assert "  FAILED  cpu3: connect  0.0 s\n" in err
    assert run("down", "-v")[2].count("fix: install it") == 2


@pytest.mark.parametrize("target", ["compose", "docker", "ssh"])
def test_render_writes_what_it_prints(
    run: Run, monkeypatch: pytest.MonkeyPatch, hosts: Path, tmp_path: Path, target: str
) -> None:
    def opened(inventory: object, *more: object) -> toolkit.cluster.session.Session:
        session = toolkit.cluster.session.Session(world.inventory(world.HOSTS + "transport: ssh\n"))
        session.facts = world.cluster_facts()
        return session

    monkeypatch.setattr(toolkit.cluster.session.Session, "open", opened)
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: None)
    status, printed, _ = run("render", target)
    assert status == 0
    status, out, _ = run("render", target, "-o", "out")
    assert (status, out) == (0, "")
    files = {str(p.relative_to(tmp_path / "out")): p for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert files
    for name, path in files.items():
        assert f"# --- {name}\n{path.read_text()}" in printed
        assert bool(path.stat().st_mode & 0o111) == name.endswith(".sh")
    status, out, err = run("render", target, "-o", "hosts.yaml/sub", "--json")
    assert status == 2 and "the folder cannot be created: Not a directory" in err
    assert json.loads(out)["ok"] is False


@pytest.mark.parametrize("target", ["compose", "docker", "ssh"])
@pytest.mark.parametrize(
    "error", [Unreachable("no answer", "ssh cpu3", "cpu3"), NotReady("no docker", "install it", "cpu3")]
)
def test_render_reports_a_host_without_files_in_json_too(
    run: Run, monkeypatch: pytest.MonkeyPatch, hosts: Path, target: str, error: ToolkitError
) -> None:
    def opened(inventory: object, *more: object) -> toolkit.cluster.session.Session:
        session = toolkit.cluster.session.Session(world.inventory(world.HOSTS + "transport: ssh\n"))
        session.facts = {name: facts for name, facts in world.cluster_facts().items() if name != "cpu3"}
        session.errors = {"cpu3": error}
        return session

    monkeypatch.setattr(toolkit.cluster.session.Session, "open", opened)
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: None)
    status, out, err = run("render", target, "--json")
    found = json.loads(out)
    assert (status, found["ok"], found["error"]["host"]) == (error.exit_code, False, "cpu3")
    assert found["error"]["exit_code"] == status and f"cpu3: {error.what}" in err
    assert any("gpu2" in name for name in found), "the files of the other hosts"


def test_help_needs_none_of_the_heavy_packages() -> None:
    code = (
        "import sys; sys.argv = ['toolkit', '--help']\n"
        "from toolkit.cli.app import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'pydantic', 'paramiko', 'fabric', 'docker', 'jinja2', 'requests', 'rich', 'yaml'}\n"
        # Only an error needs this.
        "heavy |= {'toolkit.diagnose.messages'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_itself(tmp_path: Path) -> None:
    """As a program of its own: no traceback, the status that the table says."""
    root = Path(__file__).resolve().parents[3]
    argv = [sys.executable, "-m", "toolkit", "up", "--hosts", str(tmp_path / "missing.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=root, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing.yaml: 1 problem" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("closed", "words", "status", "found"),
    [
        ("<&-", "--version", 0, "toolkit 0"),
        (">&-", "--version", 0, ""),
        (">&-", "up --hosts missing.yaml", 2, "missing.yaml: 1 problem"),
        ("2>&-", "--version", 0, "toolkit 0"),
        ("<&- >&- 2>&-", "up --hosts missing.yaml", 2, ""),
    ],
)
def test_the_command_with_closed_standard_streams(closed: str, words: str, status: int, found: str) -> None:
    root = Path(__file__).resolve().parents[3]
    argv = ["sh", "-c", f'exec "$0" -m toolkit {words} {closed}', sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == status, done.stderr
    assert found in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_locale_without_unicode_breaks_no_command() -> None:
    code = (
        "from toolkit.__main__ import accept_all_characters; accept_all_characters()\n"
        "from toolkit.core.host_programs import container_programs\n"
        "from toolkit.cli.common import put_text\n"
        "assert any('\\u2026' in text for text in container_programs().values())\n"
        "put_text('jobs\\u2026')"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-X", "utf8=0", "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, b"jobs?\n"), done.stderr.decode()


def test_data_ls_without_data_sets_is_a_sentence(
    run: Run, hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.cli.data.DataPart.rows", lambda self: ())
    assert run("data", "ls") == (0, "", "hosts.yaml has no data sets; see docs/how-to/data.md\n")
    assert run("data", "ls", "--json")[:2] == (0, '{\n  "rows": []\n}\n')
