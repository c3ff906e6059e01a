"""Requests that are refused or accepted before any host is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit import cluster_world as world
from tests.unit.each import for_each
from toolkit.bench.step_time import probe_request
from toolkit.core.host_programs import container_programs
from toolkit.errors import BadInput
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import choose_hosts, load_inventory, read_secrets
from toolkit.jobs.launcher import how_to_start, rank_command
from toolkit.jobs.request import Request, check_request

SLOTS = "cluster: demo\nimage: toolkit:cpu\nhosts:\n  gpu1: {slots: 2}\n  gpu2: {slots: 3}\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder of code, with a script outside it."""
    folder = tmp_path / "code"
    (folder / "lib").mkdir(parents=True)
    for name in ("train.py", "lib/tool.py", "run.sh", "program", "../outside.py"):
        (folder / name).write_text("")
    for name in ("run.sh", "program"):
        (folder / name).chmod(0o755)
    (folder / "data.txt").write_text("")
    return folder


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("train.py", "--epochs", "3"), ("python", "train.py", "--epochs", "3")),
        (("lib/tool.py",), ("python", "lib/tool.py")),
        (("./lib/tool.py",), ("python", "lib/tool.py")),
        (("lib/../train.py",), ("python", "train.py")),
        (("run.sh", "a b"), ("./run.sh", "a b")),
        (("program",), ("./program",)),
        (("python", "-m", "lib.tool"), ("python", "-m", "lib.tool")),
        (("hostname",), ("hostname",)),
        (("lib",), ("lib",)),
        # A program of the image, whether or not this machine has one there too.
        (("/bin/sh", "-c", "true"), ("/bin/sh", "-c", "true")),
        (("/opt/no/such/program",), ("/opt/no/such/program",)),
        (("/data/train.py",), ("/data/train.py",)),
    ],
)
def test_what_each_rank_executes(code: Path, words: tuple[str, ...], command: tuple[str, ...]) -> None:
    assert rank_command(words, code) == command


def test_the_name_of_a_script_is_no_option_of_python(tmp_path: Path) -> None:
    (tmp_path / "-x.py").write_text("import torch.distributed")
    assert rank_command(("-x.py", "-a"), tmp_path) == ("python", "./-x.py", "-a")
    assert how_to_start(("-x.py",), tmp_path, "auto", True, False).launcher == "torchrun"


def test_a_script_by_its_absolute_path(code: Path) -> None:
    assert rank_command((str(code / "lib" / "tool.py"),), code) == ("python", "lib/tool.py")
    assert rank_command((str(code / "program"), "x"), code) == ("./program", "x")
    with pytest.raises(BadInput, match="outside"):
        rank_command((str(code.parent / "outside.py"),), code)


def test_without_a_folder_every_word_is_a_command() -> None:
    assert rank_command(("python3", "/run/toolkit/inside/run.py", "bench.allreduce"), None)[0] == "python3"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "a script or a command is missing"),
        (("gone.py",), "does not exist in"),
        (("lib/gone.sh",), "does not exist in"),
        (("../outside.py",), "outside"),
        ((".",), "is a folder; specify a script"),
        (("./lib",), "is a folder; specify a script"),
        (("lib/",), "is a folder; specify a script"),
        (("data.txt",), "is not executable; run chmod \\+x .*/code/data.txt, or"),
    ],
)
def test_what_cannot_be_run(code: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        rank_command(words, code)


def refused(text: str = SLOTS, **changes: Any) -> list[str]:
    request = Request(**{"words": ("true",), **changes})
    try:
        check_request(world.inventory(text), request)
    except BadInput as error:
        return [str(problem) for problem in error.problems]
    return []


@for_each(
    ("wrong", "path"),
    [
        ({"ranks": 0}, "--np"),
        ({"ranks": -1}, "--np"),
        ({"timeout": 0.0}, "--timeout"),
        ({"timeout": float("nan")}, "--timeout"),
        ({"stall_after": -5.0}, "--stall-after"),
        ({"max_restarts": -1}, "--max-restarts"),
        ({"min_hosts": -1}, "--min-hosts"),
        ({"min_hosts": 1}, "--min-hosts"),
        ({"env": (("A B", "s3cret"),)}, "--env A B"),
        ({"env": (("A=s3cret", ""),)}, "--env A"),
        ({"env": (("TOOLKIT_JOB", "s3cret"),)}, "--env TOOLKIT_JOB"),
        ({"env": (("A", "s3cret\0"),)}, "--env A"),
    ],
)
def test_what_the_command_line_would_refuse_is_refused_to_python_too(wrong: Any, path: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_request(world.inventory(SLOTS), Request(words=("hostname",), **wrong))
    assert [problem.path for problem in caught.value.problems] == [path]
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (("train.py",), "train.py"),
        (("./lib/tool.py",), "lib/tool.py"),
        (("python", "-u", "train.py"), "train.py"),
        (("accelerate", "launch", "--num_processes", "2", "train.py"), "train.py"),
        (("run.sh",), "./run.sh"),
        (("python", "train.py", "--config", "ignored.py"), ""),
        (("python", "-m", "ignored"), ""),
        (("accelerate", "launch", "-m", "lib.tool", "ignored.py"), ""),
        (("python", "/opt/train.py"), ""),
        (("nvidia-smi",), ""),
    ],
)
def test_a_script_that_is_not_sent_is_refused(code: Path, words: tuple[str, ...], script: str) -> None:
    assert not refused(words=words, workdir=code)
    (code / "ignored.py").write_text("")
    (code / ".gitignore").write_text(f"{script.removeprefix('./')}\nignored.py\n")
    problems = refused(words=words, workdir=code)
    assert len(problems) == bool(script)
    for problem in problems:
        assert problem.startswith(f"{script}: is not sent to the hosts, because .gitignore excludes ")
    check_request(world.inventory(SLOTS), Request(words=words, workdir=code), sent=False)


def test_a_step_of_a_script_that_is_not_sent_is_not_measured(code: Path) -> None:
    assert probe_request(world.inventory(SLOTS), "train.py", (), code).words[-1] == "train.py"
    (code / ".gitignore").write_text("train.py\n")
    with pytest.raises(BadInput, match=r"train\.py: is not sent to the hosts"):
        probe_request(world.inventory(SLOTS), "train.py", (), code)


def test_what_is_right_passes() -> None:
    assert refused() == refused(ranks=5) == refused(launcher="torchrun", only=("gpu2",), ranks=3) == []


def test_hosts_can_be_given_as_a_list_in_brackets() -> None:
    assert refused(ranks=3, only=("gpu[1-1]",)) == [
        "--np: the job requests 3 ranks, but its hosts have 2 slots"
    ]
    (unknown,) = refused(only=("gpu[2-3]",))
    assert unknown.startswith("gpu3 is not a host in hosts.yaml")


def test_all_faults_are_named_at_once(code: Path) -> None:
    faults = refused(words=("gone.py",), workdir=code, launcher="mpiexec", ranks=99, exclude=("gpu7",))
    assert len(faults) == 3
    assert faults[0].startswith("gpu7 is not a host in hosts.yaml, which lists gpu1, gpu2")
    assert faults[1].startswith("--launcher: should be one of accelerate, auto, ")
    assert faults[1].endswith(", torchrun, found mpiexec")
    assert faults[2].startswith("gone.py: does not exist in")


def test_more_ranks_than_slots() -> None:
    assert refused(ranks=6) == ["--np: the job requests 6 ranks, but its hosts have 5 slots"]
    assert refused(ranks=3, only=("gpu1",)) == ["--np: the job requests 3 ranks, but its hosts have 2 slots"]
    # Slots that the hosts are still to be asked for cannot be counted here.
    assert refused(SLOTS.replace("{slots: 2}", ""), ranks=99) == []


def test_hosts_are_chosen_in_the_files_order() -> None:
    inventory = world.inventory()
    assert choose_hosts(inventory, (), ()) == ("gpu1", "gpu2", "cpu3")
    assert choose_hosts(inventory, ("cpu3", "gpu1"), ()) == ("gpu1", "cpu3")
    assert choose_hosts(inventory, (), ("gpu1",)) == ("gpu2", "cpu3")
    with pytest.raises(BadInput, match="leave no host"):
        choose_hosts(inventory, ("gpu1",), ("gpu1",))
    with pytest.raises(BadInput, match="2 problems"):
        choose_hosts(inventory, ("a",), ("b",))


def test_a_hosts_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file") as caught:
        load_inventory(tmp_path / "hosts.yaml")
    assert "toolkit init" in caught.value.fix
    with pytest.raises(BadInput, match="directory"):
        load_inventory(tmp_path)


def test_a_key_that_is_not_there_is_named_with_its_host(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(SLOTS.replace("slots: 3", "identity_file: ~/.ssh/id_gone"))
    with pytest.raises(BadInput, match=r"hosts/gpu2/identity_file: there is no file ~/\.ssh/id_gone"):
        load_inventory(path)


# Secrets


def with_secrets(folder: Path, **files: str) -> Inventory:
    path = folder / "hosts.yaml"
    path.write_text(SLOTS + "secrets:\n" + "".join(f"  {name}: {where}\n" for name, where in files.items()))
    return load_inventory(path)


def secret(path: Path, data: bytes = b"s3cret\n", mode: int = 0o600) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_secrets_are_read_from_files_beside_the_hosts_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir("/")
    secret(tmp_path / "keys" / "a")
    secret(tmp_path / "home" / "b", b"two\nlines\n\n", 0o640)
    secret(tmp_path / "c", "ü $x'\r\n".encode(), 0o400)
    inventory = with_secrets(tmp_path, A="keys/a", B="~/b", C=str(tmp_path / "c"))
    assert read_secrets(inventory) == (("A", "s3cret"), ("B", "two\nlines\n"), ("C", "ü $x'"))
    assert "s3cret" not in repr(inventory)


def test_everything_that_a_secret_may_not_be_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    secret(tmp_path / "open to all", mode=0o604)
    secret(tmp_path / "large", b"x" * (64 * 1024 + 1))
    secret(tmp_path / "binary", b"\xff\xfe")
    secret(tmp_path / "nul", b"a\0b")
    secret(tmp_path / "empty", b"\n")
    names = ("gone", "folder", "open to all", "large", "binary", "nul", "empty")
    inventory = with_secrets(tmp_path, **{f"S{n}": name for n, name in enumerate(names)})
    with pytest.raises(BadInput) as caught:
        check_request(inventory, Request(words=("true",)))
    told = [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]
    assert caught.value.source == str(tmp_path / "hosts.yaml") and caught.value.exit_code == 2
    assert told == [
        "secrets/S0: there is no file gone",
        "secrets/S1: folder is not a regular file",
        "secrets/S2: other users of your machine can read or write open to all; run `chmod o= 'open to all'`",
        "secrets/S3: large has 65537 bytes, but a secret can have at most 65536 bytes",
        "secrets/S4: binary is not UTF-8 text, but a variable must be UTF-8 text",
        "secrets/S5: nul contains a NUL byte, which a variable cannot contain",
        "secrets/S6: empty is empty",
    ]


def test_only_what_starts_ranks_of_yours_needs_the_secrets(tmp_path: Path) -> None:
    inventory = with_secrets(tmp_path, A="gone")
    check_request(inventory, Request(words=("true",), secrets=False))
    with pytest.raises(BadInput) as caught:
        check_request(inventory, Request(words=("true",), ranks=99))
    assert caught.value.source == f"{tmp_path}/hosts.yaml and command line"
    assert [p.path for p in caught.value.problems] == ["--np", "secrets/A"]


def test_a_request_and_a_job_show_no_variable() -> None:
    assert "s3cret" not in repr(Request(words=("true",), env=(("A", "s3cret"),)))
    assert "s3cret" not in repr(world.job())


def test_the_programs_that_go_inside() -> None:
    programs = container_programs()
    assert {"run.py", "kubexec.sh", "toolkit/container/job/rank.py", "toolkit/protocol/names.py"} <= set(
        programs
    )
    assert not any(name.startswith("toolkit/container/run") or "__pycache__" in name for name in programs)
