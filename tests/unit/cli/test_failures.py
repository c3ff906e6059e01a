"""A command that fails: with --json one object on standard output, for people the text on standard error."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import typer.main

import toolkit.init.trust
from tests.unit.conftest import Run, handlers_kept
from tests.unit.each import for_each
from toolkit.bench.scaling_report import Point, Scaling
from toolkit.cli import app as cli
from toolkit.cli import bench as cli_bench
from toolkit.cli import network as cli_network
from toolkit.cli import run as cli_run
from toolkit.cli import scaling as cli_scaling
from toolkit.cli import smoke as cli_smoke
from toolkit.cli.failure import asks_for_json
from toolkit.cli.progress import Progress
from toolkit.core.report import Outcome, Report
from toolkit.errors import BadInput, Detached, MissingTool, NotReady, Problem, ToolkitError, Unreachable
from toolkit.hostsfile.parse import parse_inventory
from toolkit.lab.status import LabHostStatus, LabStatus
from toolkit.network.measured import Measured
from toolkit.plan.execute import PlanInterrupted, StepEnded

COMMAND = typer.main.get_command(cli.app)
HOSTS = "cluster: demo\nimage: toolkit:cpu\nhosts:\n  gpu1: {slots: 2}\n  gpu2: {slots: 3}\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(HOSTS)
    return path


@for_each("verb", ("run", "smoke", "bench", "tune", "scaling"))
def test_the_reason_of_a_failed_step_is_printed_once(verb: str) -> None:
    """The error after the steps contains it."""
    failed = StepEnded(
        Outcome("code", "send the code", "gpu1", "failed", detail="the disk is full", fix="df -h")
    )

    def execute(*given: Any) -> NoReturn:
        next(each for each in given if isinstance(each, Progress))(failed)
        raise ToolkitError("the job was not started:\n  gpu1: the disk is full", "df -h")

    session = SimpleNamespace(require_some=lambda: None, inventory=parse_inventory(HOSTS, "hosts.yaml"))
    prepared = SimpleNamespace(session=session, job=None, execute=execute)
    words = {
        "run": ["run", "true"],
        "smoke": ["smoke"],
        "bench": ["bench", "network"],
        "tune": ["network", "tune"],
        "scaling": ["bench", "scaling", "--on", "1", "true"],
    }[verb]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        path = Path(folder, "hosts.yaml")
        path.write_text(HOSTS)
        patch.setenv("TOOLKIT_HOSTS", str(path))
        patch.setattr(cli_run, "prepare_run", lambda *_: nullcontext(prepared))
        patch.setattr(cli_smoke, "prepare_smoke", lambda *_: nullcontext(prepared))
        for module in (cli_bench, cli_network, cli_scaling):
            patch.setattr(module, "connect", lambda *_, **__: nullcontext(session))
        patch.setattr(cli_bench, "run_bench", execute)
        patch.setattr(cli_network, "tune_network", execute)
        patch.setattr("toolkit.bench.scaling.measure", execute)
        patch.setattr(sys, "stderr", output := StringIO())
        patch.setattr(sys, "stdout", output)
        error = ""
        try:
            COMMAND.main(words, standalone_mode=False)
        except ToolkitError as raised:
            error = str(raised)
    printed = output.getvalue() + error
    assert "gpu1: send the code" in printed
    assert printed.count("the disk is full") == printed.count("df -h") == 1, printed


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--json", "--np", "9", "true"),
        ("run", "--json", "--no-such-option"),
        ("run", "--json"),
        ("up", "--json", "--hosts", "gone.yaml"),
        ("up", "extra", "--json"),
        ("exec", "--json", "gpu9", "--", "true"),
        ("trust", "--json", "gpu9"),
        ("render", "ssh", "--json", "helm"),
        ("stop", "--json", "--hosts", "gone.yaml"),
        ("smoke", "--launcher", "x", "--json"),
        ("image", "build", "--json", "--flavor", "x"),
        ("image", "build", "--json", "--onto", "trainer:1", "--torch-index", "."),
        ("image", "inspect", "--json", "--", "--help"),
        ("lab", "up", "--json", "--count", "0"),
        ("lab", "down", "--json", "--name", "../x"),
        ("lab", "status", "--json", "--name", ""),
        ("init", "--json", "a:b"),
    ],
)
def test_refused_input_is_one_json_object(run: Run, hosts: Path, words: tuple[str, ...]) -> None:
    status, out, err = run(*words)
    told = json.loads(out)
    assert status == 2 and set(told) == {"ok", "error"} and told["ok"] is False
    assert set(told["error"]) == {"what", "fix", "more", "host", "exit_code", "problems"}
    assert told["error"]["exit_code"] == 2
    assert told["error"]["problems"] and all(p["message"] for p in told["error"]["problems"])
    # What people read stays, and says the same.
    assert err.startswith("toolkit: ")
    assert all(p["message"] in err for p in told["error"]["problems"])


def test_an_error_names_the_command_that_explains_it(run: Run, hosts: Path) -> None:
    status, out, err = run("up", "--json", "--hosts", "gone.yaml")
    place = "toolkit --explain no-hosts-file"
    assert (status, json.loads(out)["error"]["more"]) == (2, place)
    assert err.endswith(f"\n  more: {place}\n") and err.count("more:") == 1
    status, out, err = run("up", "--json", "extra")
    assert (status, json.loads(out)["error"]["more"], "more:" in err) == (2, "", False)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ToolkitError("it broke", "mend it", "gpu1"), 1),
        (Unreachable("no answer", "ssh gpu1", "gpu1"), 1),
        (BadInput("hosts.yaml", (Problem("hosts/gpu1", "is odd", 3),)), 2),
        (NotReady("not up", "toolkit up"), 3),
        (MissingTool("no docker"), 4),
        (KeyboardInterrupt(), 130),
        (PlanInterrupted(Report("up", (Outcome("p", "s", "gpu1", "not run"),))), 130),
    ],
)
def test_every_error_is_told_in_json_when_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    def fails(hosts: str) -> None:
        raise error

    monkeypatch.setattr("toolkit.cli.up.load", fails)
    found, out, err = run("up", "--json")
    told = json.loads(out)
    assert (found, told["error"]["exit_code"]) == (status, status) and told["ok"] is False
    if isinstance(error, ToolkitError):
        expected = (error.what, error.fix, error.host)
        assert (told["error"]["what"], told["error"]["fix"], told["error"]["host"]) == expected
    if isinstance(error, PlanInterrupted):
        assert told["report"]["outcomes"][0]["host"] == "gpu1"
    if isinstance(error, BadInput):
        problem = {"path": "hosts/gpu1", "message": "is odd", "line": 3}
        assert told["error"]["problems"] == [problem]
    # Without --json standard output stays empty.
    without = run("up")
    # The fix of an interrupted plan is the command line itself.
    assert (without[0], without[1]) == (status, "") and without[2] == err.replace(
        "toolkit up --json ", "toolkit up "
    )


def test_detaching_is_reported_without_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    error = Detached("the-job", "detached")

    def fails(hosts: str) -> None:
        raise error

    monkeypatch.setattr("toolkit.cli.up.load", fails)
    assert run("up") == (
        130,
        "",
        "\ndetached; the-job continues\n"
        "  follow the job: toolkit attach the-job\n  stop the job:   toolkit stop the-job\n",
    )
    error = Detached("the-job", "cannot print the output: No space left on device", 1)
    status, _, err = run("up")
    assert status == 1 and err.startswith("toolkit: cannot print the output") and "fix:" in err


@for_each(
    ("line", "asked"),
    [
        ("up --json", True),
        ("up --hosts --json", False),
        ("up --hosts x --json", True),
        ("up --hosts=x --json", True),
        ("run --json train.py", True),
        ("run train.py --json", False),
        ("run --np 2 train.py --json", False),
        ("run --np --json", False),
        ("run -d --json x", True),
        ("run -- x --json", False),
        ("exec gpu1 -- x --json", False),
        ("exec --json gpu1 -- x", True),
        ("lab up --json", True),
        ("lab --json", False),
        ("nonsense --json", False),
        ("--json", False),
        ("", False),
        ("trust gpu1 --json gpu2", True),
        ("shell gpu1", False),
    ],
)
def test_whose_json_it_is(line: str, asked: bool) -> None:
    assert asks_for_json(COMMAND, line.split()) is asked


def test_a_command_line_is_refused_once_with_every_fault(run: Run, hosts: Path) -> None:
    words = ("--np", "x", "--timeout", "nan", "--env", "RANK=s3cret", "--env", "NOT_SET", "--launcher", "y")
    more = ("--on-interrupt", "z", "--only", "gpu8", "--exclude", "gpu9", "gone.py")
    status, out, err = run("run", *words, *more)
    assert (status, out) == (2, "")
    head, *lines = err.splitlines()
    assert head == "toolkit: command line: 9 problems"
    for start in (
        *("--np: ", "--timeout: ", "--env RANK: ", "--env NOT_SET: ", "--launcher: ", "--on-interrupt: "),
        *("gpu8 is not a host", "gpu9 is not a host", "gone.py: does not exist in"),
    ):
        assert sum(line.strip().startswith(start) for line in lines) == 1, start
    assert "s3cret" not in err


def test_faults_of_command_line_and_hosts_file_come_together(run: Run, hosts: Path) -> None:
    hosts.write_text("cluster: demo\nimage: X\nhosts: [gpu1]\n")
    status, _, err = run("run", "--np", "x", "gone.py")
    assert status == 2
    assert err.startswith("toolkit: command line and hosts.yaml: 3 problems\n")
    assert all(text in err for text in ("--np: ", "gone.py: ", "line 2: image: "))
    hosts.unlink()
    assert "hosts.yaml: No such file" in run("exec", "--timeout", "0", "true")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("exec", "--timeout", "x", "true"),
            "--timeout: should be a number of seconds, 1 or more, found 'x'",
        ),
        (("exec", "--timeout", "1e300", "true"), "--timeout: should be"),
        (("exec", "--timeout", "1_0", "true"), "--timeout: should be"),
        (("exec", "--all", "gpu1", "--", "true"), "--all: selects every host; remove gpu1"),
        (("run", "--np", "1e3", "true"), "--np: should be a whole number"),
        (("run", "--np", "9" * 5000, "true"), "--np: should be a whole number"),
        (("run", "--timeout", "inf", "true"), "--timeout: should be"),
        (("render", "ssh", "-o", "hosts.yaml"), "--output: should be a folder, found hosts.yaml"),
        (("image", "build", "--tag", "A B"), "--tag: should be an image"),
        (("image", "build", "--flavor", "cpu", "--cuda", "13"), "--cuda: this option is available only for"),
        (("image", "build", "--certificate", "gone.pem"), "--certificate: there is no file gone.pem"),
        (("image", "build", "--build-arg", "=x"), "--build-arg =x: should be NAME=VALUE"),
        (("logs", "--save", "d", "--rank", "0"), "--rank: cannot be combined with --save"),
        (("logs", "--save", "d", "--follow"), "--follow: cannot be combined with --save"),
        (("lab", "up", "--count", "two"), "--count: should be a whole number"),
        (("lab", "up", "--image", "A B"), "image: should be an image"),
        (("lab", "down", "--name", "../x"), "--name: should be 1 to 24 characters"),
        (("init", "a", "--from-hostfile", "gone"), "--from-hostfile: cannot be combined with a"),
        (("bench", "scaling", "--report", "gone/a.html", "true"), "the folder gone does not exist"),
        (("bench", "network", "--report", "gone/a.html"), "the folder gone does not exist"),
    ],
)
def test_more_that_is_refused(run: Run, hosts: Path, words: tuple[str, ...], message: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "") and message in err


@pytest.mark.parametrize(
    "words",
    [
        ("run", "train.py"),
        ("bench", "scaling", "train.py"),
        ("render", "slurm", "train.py"),
        ("top", "--prometheus", "x.prom"),
    ],
    ids=" ".join,
)
def test_a_working_directory_that_was_removed_is_no_traceback(
    run: Run, hosts: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TOOLKIT_HOSTS", str(hosts))
    gone = hosts.parent / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    status, out, err = run(*words)
    monkeypatch.chdir(hosts.parent)
    assert (status, out) == (2, "") and "the current folder: No such file or directory" in err


def test_a_file_for_prometheus_in_a_folder_with_an_impossible_name_is_refused(run: Run, hosts: Path) -> None:
    status, _, err = run("top", "--prometheus", f"{'x' * 300}/x.prom")
    assert status == 2 and "--prometheus: there is no folder" in err


@for_each("verb", ("network", "scaling"))
@for_each("as_json", (False, True))
def test_a_measurement_is_printed_although_its_page_cannot_be_written(verb: str, as_json: bool) -> None:
    """The folder disappears during the measurement."""
    session = SimpleNamespace(require_some=lambda: None, inventory=parse_inventory(HOSTS, "hosts.yaml"))
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        page = Path(folder, "pages", "page.html")
        page.parent.mkdir()

        def measured(*given: Any) -> Any:
            page.parent.rmdir()
            if verb == "scaling":
                return Scaling((Point(1, 1, 2.0, 20.0, 40), Point(2, 2, 1.9, 20.0, 38)))
            return Measured(("gpu1", "gpu2"), (), (), "mpi", ("slow",))

        path = Path(folder, "hosts.yaml")
        path.write_text(HOSTS)
        for module in (cli_bench, cli_scaling):
            patch.setattr(module, "connect", lambda *_, **__: nullcontext(session))
        patch.setattr(cli_bench, "run_bench", measured)
        patch.setattr(cli_scaling, "measure_all", measured)
        patch.setattr(sys, "stdout", output := StringIO())
        patch.setattr(sys, "stderr", StringIO())
        words = ["bench", verb, "--hosts", str(path), "--report", str(page), *(["--json"] if as_json else [])]
        patch.setattr(sys, "argv", ["toolkit", *words, *(["true"] if verb == "scaling" else [])])
        with handlers_kept(), pytest.raises(SystemExit) as end:
            cli.main()
    assert end.value.code == 2
    if as_json:
        found = json.loads(output.getvalue())
        assert ("rows" in found or "hosts" in found) and found["error"]["exit_code"] == 2
    else:
        assert ("1.9" if verb == "scaling" else "not measured: slow") in output.getvalue()


def test_hosts_file_without_an_end_and_homes_that_nobody_has(run: Run, hosts: Path) -> None:
    assert "exceeds the maximum" in run("up", "--hosts", "/dev/zero")[2]
    hosts.write_text(HOSTS.replace("{slots: 2}", "{identity_file: ~no-such-user/key}"))
    assert "hosts/gpu1/identity_file: there is no file ~no-such-user/key" in run("up")[2]
    hosts.write_text(HOSTS + "known_hosts: ~no-such-user/known_hosts\n")
    assert "known_hosts: toolkit cannot resolve the home folder in ~no-such-user" in run("up")[2]


def test_trust_as_a_dry_run_records_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, hosts: Path, tmp_path: Path
) -> None:
    target = toolkit.init.trust.Target("gpu1", "10.0.0.1", known_hosts=(str(tmp_path / "known"),))
    findings = [
        toolkit.init.trust.ShownKey("gpu1", target, "ssh-ed25519", "SHA256:new"),
        toolkit.init.trust.ShownKey("gpu2", target, "ssh-ed25519", "SHA256:same", "SHA256:same", "good"),
    ]
    monkeypatch.setattr("toolkit.cli.trust.shown_keys", lambda inventory, names: findings)
    status, _, err = run("trust", "--dry-run", "--yes", "-v")
    assert status == 0 and f"would be recorded in {tmp_path / 'known'}" in err
    assert f"queried 10.0.0.1 port 22; recorded keys are in {tmp_path / 'known'}" in err
    assert not (tmp_path / "known").exists()
    findings.append(
        toolkit.init.trust.ShownKey("gpu2", target, "ssh-ed25519", "SHA256:new", "SHA256:old", "changed")
    )
    assert run("trust", "--dry-run", "--yes")[0] == 1
    none = replace(target, known_hosts=())
    findings[:] = [toolkit.init.trust.ShownKey("gpu1", none, "ssh-ed25519", "SHA256:new")]
    status, out, err = run("trust", "--dry-run", "--json")
    assert status == 1 and "not recorded: the SSH configuration sets UserKnownHostsFile none" in err
    assert json.loads(out)[0]["fix"] == "in hosts.yaml: set known_hosts: FILE"
    findings[:] = [
        toolkit.init.trust.ShownKey("gpu2", target, failure=Unreachable("it is off", "ssh gpu2", "gpu2"))
    ]
    status, out, err = run("trust", "--json")
    assert (status, err) == (1, "gpu2: it is off\n    fix: ssh gpu2\n")
    assert [(row["error"], row["fix"]) for row in json.loads(out)] == [("it is off", "ssh gpu2")]


def test_trust_reports_a_key_that_cannot_be_recorded_and_records_the_others(
    run: Run, monkeypatch: pytest.MonkeyPatch, hosts: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    places = {"gpu1": tmp_path / "file" / "known", "gpu2": tmp_path / "folder", "cpu3": tmp_path / "known"}
    key = SimpleNamespace(get_name=lambda: "ssh-ed25519", get_base64=lambda: "AAAA")
    findings = [
        toolkit.init.trust.ShownKey(
            host,
            toolkit.init.trust.Target(host, "10.0.0.1", known_hosts=(str(place),)),
            "ssh-ed25519",
            "SHA256:new",
            key=key,
        )
        for host, place in places.items()
    ]
    monkeypatch.setattr("toolkit.cli.trust.shown_keys", lambda inventory, names: findings)
    status, out, err = run("trust", "--yes", "--json")
    assert status == 1 and "Traceback" not in err
    assert f"not recorded: cannot use {places['gpu1']} as the file for SSH host keys: File exists" in err
    assert f"not recorded: {places['gpu2']} is the file for SSH host keys, but not a regular" in err
    assert f"recorded in {places['cpu3']}" in err
    assert places["cpu3"].read_text() == "10.0.0.1 ssh-ed25519 AAAA\n"
    assert [bool(row["error"]) for row in json.loads(out)] == [True, True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "hosts.yaml", "known"]


_INTERRUPTED_IMPORT = """
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            raise KeyboardInterrupt

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupts())
from toolkit.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["yaml.tokens", "yaml._yaml", "toolkit.api.up"])
@pytest.mark.parametrize("json_too", [False, True])
def test_an_interrupt_during_an_import(module: str, json_too: bool) -> None:
    """PyYAML cannot be imported again after an interrupt during its import."""
    argv = [sys.executable, "-c", _INTERRUPTED_IMPORT, module, "up", *(["--json"] if json_too else [])]
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=root, check=False)
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")
    assert json.loads(done.stdout)["error"]["exit_code"] == 130 if json_too else not done.stdout


def test_the_state_of_a_missing_practice_cluster_is_an_error_as_json_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.cli.lab.lab_status", lambda name: LabStatus(name, "", ()))
    for words in ((), ("--json",)):
        status, out, err = run("lab", "status", "--name", "gone", *words)
        assert status == 3 and "your machine has no practice cluster gone" in err
    assert json.loads(out)["ok"] is False


def test_the_line_for_the_shell_quotes_the_folder_of_a_practice_cluster(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("toolkit.cli.lab.lab_up", lambda spec, progress: Report("lab lab", ()))
    out = run("lab", "up", "--folder", "my lab")[1]
    assert out == f"export TOOLKIT_HOSTS='{tmp_path}/my lab/hosts.yaml'\n"
    host = LabHostStatus("box1", "10.77.0.11", "eth0", "trainer", "running", "26.1", "overlay2", True)
    lab = LabStatus("lab", f"{tmp_path}/my lab", (host,))
    monkeypatch.setattr("toolkit.cli.lab.lab_status", lambda name: lab)
    assert run("lab", "status")[1].endswith(out)


@pytest.mark.parametrize("named", [True, False])
def test_a_variable_that_names_a_removed_practice_cluster_is_to_be_unset(
    named: bool, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    removed, other = tmp_path / "lab/hosts.yaml", tmp_path / "hosts.yaml"
    removed.parent.mkdir()
    for file in (removed, other):
        file.touch()

    def down(name: str, *rest: Any) -> Report:
        removed.unlink()
        return Report(f"lab down {name}", ())

    monkeypatch.setattr("toolkit.cli.lab.lab_down", down)
    monkeypatch.setenv("TOOLKIT_HOSTS", str(removed if named else other))
    status, _, err = run("lab", "down")
    assert status == 0 and ("unset TOOLKIT_HOSTS" in err) == named


@pytest.mark.parametrize("there", [True, False])
def test_kept_images_are_reported_only_if_something_else_was_removed(
    there: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = (Outcome("hosts", "container removed", "box1", "ok"),) if there else ()
    monkeypatch.setattr("toolkit.cli.lab.lab_down", lambda name, *rest: Report(f"lab down {name}", outcomes))
    status, _, err = run("lab", "down", "--keep-images")
    done = (
        "removed the hosts and files except the volumes with the hosts' images"
        if there
        else "nothing to remove"
    )
    assert (status, err) == (0, f"lab lab: {done} (0.0 s)\n")
