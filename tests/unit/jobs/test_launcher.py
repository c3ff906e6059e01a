"""The launcher of a job: as asked, or by the script's imports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit import cluster_world as world
from tests.unit.test_invariants import Recorder
from tests.unit.test_invariants import recorder as recorder
from toolkit.cli.app import app
from toolkit.errors import BadInput
from toolkit.jobs.launcher import Start, how_to_start, launcher_findings
from toolkit.jobs.request import Request, check_request

DDP, HVD = "import torch.distributed as dist\n", "import horovod.torch as hvd\n"
DEEPSPEED = "import deepspeed\nparser.add_argument('--local_rank', type=int, default=-1)\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    scripts = {"ddp.py": DDP, "hvd.py": HVD, "ds.py": DEEPSPEED, "plain.py": "import numpy\n"}
    scripts["rt.py"] = "from ray.train.torch import TorchTrainer\nimport torch.distributed\n"
    scripts["mpi.py"] = "from mpi4py import MPI\nimport torch\n"
    scripts |= {"pkg/__main__.py": "import torch\n", "pkg/hvd.py": HVD, "train.sh": "python ddp.py\n"}
    for name, text in scripts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "train.sh").chmod(0o755)
    return tmp_path


def start(
    words: tuple[str, ...], folder: Path, launcher: str = "auto", named: bool = True, alone: bool = False
) -> Start:
    return how_to_start(words, folder, launcher, named, alone)


@pytest.mark.parametrize(
    ("words", "launcher", "why"),
    [
        (("ddp.py", "--x"), "torchrun", "ddp.py imports torch"),
        (("hvd.py",), "horovodrun", "hvd.py imports horovod"),
        (("python", "hvd.py"), "horovodrun", "hvd.py imports horovod"),
        (("python3", "hvd.py"), "horovodrun", "hvd.py imports horovod"),
        (("ds.py",), "deepspeed", "ds.py imports deepspeed"),
        (("rt.py",), "ray", "rt.py imports ray"),
        (("mpi.py",), "mpirun", "mpi.py imports mpi4py"),
        (("plain.py",), "python", "plain.py imports no library for distributed training"),
        (("python", "-u", "-X", "dev", "ddp.py"), "torchrun", "ddp.py imports torch"),
        (("/usr/bin/python3.12", "-Werror", "hvd.py"), "horovodrun", "hvd.py imports horovod"),
        (("python", "-m", "ddp"), "torchrun", "ddp.py imports torch"),
        (("python", "-um", "pkg"), "torchrun", "pkg/__main__.py imports torch"),
        (("python", "-m", "pkg.hvd", "-c"), "horovodrun", "pkg/hvd.py imports horovod"),
        (("python", "-c", HVD), "horovodrun", "the code after -c imports horovod"),
        (
            ("python", "-uc", "print(1)"),
            "python",
            "the code after -c imports no library for distributed training",
        ),
        *(
            (words, "python", "the command is not a Python script in the code folder")
            for words in (
                ("nvidia-smi",),
                ("train.sh",),
                ("sh", "-c", "python ddp.py"),
                ("python",),
                ("python", "-"),
                ("python", "-m", "torch.utils.collect_env"),
                ("python", "/opt/train.py"),
                ("python", "ddp"),
            )
        ),
    ],
)
def test_auto_gives_its_choice_and_reason(
    code: Path, words: tuple[str, ...], launcher: str, why: str
) -> None:
    chosen = start(words, code)
    assert (chosen.launcher, chosen.why) == (launcher, why)


def test_a_named_launcher_is_used_without_a_reason(code: Path) -> None:
    assert start(("hvd.py", "3"), code, "torchrun") == Start("torchrun", ("python", "hvd.py", "3"))


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
def test_scripts_that_declare_an_option_for_the_local_rank_receive_it(code: Path, launcher: str) -> None:
    declared = "import torch\nparser.add_argument({}, type=int, default=-1)\n"
    for name, options in (("hyphen", "'--local-rank'"), ("both", "'--local-rank', '--local_rank'")):
        (code / f"{name}.py").write_text(declared.format(options))
    (code / "imports.py").write_text("import hyphen\n")
    expected = {
        "ds": "--local_rank",
        "hyphen": "--local-rank",
        "both": "--local_rank",
        "imports": "--local-rank",
    }
    for name, option in {**expected, "ddp": ""}.items():
        assert start((f"{name}.py",), code, launcher).local_rank_word == option
    for words in (("python", "-m", "ds"), ("python", "-c", "import ds; '--local_rank'")):
        assert start(words, code, launcher).local_rank_word == ""
    for other in ("horovodrun", "mpirun", "python"):
        assert start(("ds.py",), code, other).local_rank_word == ""


@pytest.mark.parametrize(("launcher", "named"), [("auto", True), ("accelerate", True), ("horovodrun", False)])
def test_accelerates_own_command_is_understood(code: Path, launcher: str, named: bool) -> None:
    words = ("accelerate", "launch", "--mixed_precision", "bf16", "ddp.py")
    chosen = start(words, code, launcher, named)
    assert (chosen.launcher, chosen.command) == ("accelerate", words)
    assert bool(chosen.why) == (launcher != "accelerate")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("torchrun", "--nproc-per-node", "2", "ddp.py"), "toolkit run --launcher torchrun SCRIPT"),
        (("mpiexec", "-n", "2", "./a"), "toolkit run --launcher mpirun SCRIPT"),
        (("python3", "-m", "torch.distributed.run", "ddp.py"), "toolkit run --launcher torchrun SCRIPT"),
        (("deepspeed", "ds.py"), "toolkit run --launcher deepspeed SCRIPT"),
        (("accelerate", "launch", "ddp.py"), "toolkit run --launcher accelerate -- accelerate launch"),
    ],
)
def test_a_launcher_within_a_launcher_is_refused(code: Path, words: tuple[str, ...], fix: str) -> None:
    with pytest.raises(BadInput, match="would start all ranks again") as caught:
        start(words, code, "horovodrun")
    assert fix in str(caught.value.problems[0])
    assert start(words, code, "mpirun", alone=True).command == words


def test_programs_that_only_look_like_one_are_not_refused(code: Path) -> None:
    for words in (("python", "-m", "torch.utils.collect_env"), ("accelerate", "env"), ("torchrunner",)):
        assert start(words, code, "horovodrun").command == words


def refused(folder: Path, **changes: Any) -> list[str]:
    request = Request(**{"words": ("ddp.py",), "workdir": folder, "secrets": False, **changes})
    try:
        check_request(world.inventory(), request)
    except BadInput as error:
        return [str(problem) for problem in error.problems]
    return []


def test_auto_is_asked_before_elastic_is_judged(code: Path) -> None:
    elastic = {"launcher": "auto", "elastic": True, "max_restarts": 1}
    assert refused(code, **elastic) == []
    (said,) = refused(code, words=("plain.py",), **elastic)
    assert "python (plain.py imports no library for distributed training) cannot restart ranks itself" in said
    (said,) = refused(code, **elastic | {"max_restarts": 0, "launcher": ""})
    assert said == "--elastic: this option requires a limit on restarts; add --max-restarts N"


def test_elastic_is_not_judged_while_the_launcher_is_unknown(code: Path) -> None:
    elastic = Request(("plain.py",), code, elastic=True, max_restarts=1)
    assert check_request(None, elastic).start.launcher == "python"  # the hosts file may name torchrun
    with pytest.raises(BadInput, match="cannot restart ranks itself"):
        check_request(None, replace(elastic, launcher="python"))


@pytest.mark.parametrize(
    ("transport", "in_file", "asked", "words", "used"),
    [
        ("ssh", "", "", "ddp.py", "torchrun"),
        ("ssh", "", "", "hvd.py", "horovodrun"),
        ("exec", "", "", "hvd.py", "mpirun"),
        ("exec", "", "", "ds.py", "torchrun"),
        ("exec", "", "", "plain.py", "python"),
        ("ssh", "mpirun", "", "hvd.py", "mpirun"),
        ("ssh", "mpirun", "python", "hvd.py", "python"),
        ("ssh", "mpirun", "auto", "hvd.py", "horovodrun"),
        ("exec", "python", "", "ddp.py", "python"),
    ],
)
def test_the_command_line_wins_over_the_file_and_the_file_over_auto(
    transport: str, in_file: str, asked: str, words: str, used: str, code: Path
) -> None:
    text = world.HOSTS + (world.EXEC if transport == "exec" else "")
    inventory = world.inventory(text + (f"launcher: {in_file}\n" if in_file else ""))
    checked = check_request(inventory, Request((words,), code, launcher=asked, secrets=False))
    assert checked.start.launcher == used
    assert bool(checked.start.why) == (asked == "auto" or not (asked or in_file))


def test_horovod_with_gloo_warns_of_both_cves() -> None:
    job = world.job("horovodrun-gloo", world.job("mpirun").hosts)
    (finding,) = launcher_findings(replace(job, command=("python", "a b.py", "--token", "s3cret")))
    assert finding.verdict == "warning" and "read and replace" in finding.what
    assert "CVE-2024-10190" in finding.what and "CVE-2026-31234" in finding.what
    assert finding.fix == "toolkit run --launcher horovodrun 'a b.py'"


def test_ranks_that_no_library_connects_are_warned_of(code: Path) -> None:
    job = replace(world.job("python", world.job("mpirun").hosts), command=("python", "plain.py"))
    (finding,) = launcher_findings(job, start(("plain.py",), code))
    assert "each of the" in finding.what and finding.verdict == "warning"
    assert finding.fix == "toolkit run --np 1 plain.py"
    module = replace(job, command=("python3", "-u", "-m", "my.module", "--token", "s3cret"))
    (finding,) = launcher_findings(module, start(("plain.py",), code))
    assert finding.fix == "toolkit run --np 1 -- python3 -u -m my.module"
    assert launcher_findings(job, start(("plain.py",), code, "python")) == ()
    assert launcher_findings(job, start(("train.sh",), code)) == ()  # it can connect them


# Options after the script

_READS = {
    "plain.py": "import numpy as np\nimport options\nprint(np.zeros(3), -d)\n",
    "options.py": "class Options:\n    timeout: int = 3\n",
    "own.py": "add_argument('--np'); DEFINE_bool('share', 0); add('-d')\ndef main(min_hosts=1): ...\n",
}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("plain.py --np 2", "plain.py receives --np, which"),
        ("plain.py --np=2", "run --np N plain.py ..."),
        (
            "python plain.py --lr 1 --np 2 --env A=s3cret --share --np 3",
            "--np N --env NAME[=VALUE] --share plain.py",
        ),
        ("-- python plain.py --no-fold", "run --no-fold plain.py ..."),
        ("plain.py --min-hosts 1", "run --min-hosts N plain.py ..."),
        ("plain.py --timeout 3 --lr 1 --npx --n --help -h", ""),
        ("plain.py -d", ""),
        ("plain.py -- --np 2", ""),
        ("--np 2 plain.py", ""),
        ("own.py --np 2 --min-hosts 1 --share -d", ""),
        ("own.py --json", "run --json own.py ..."),
        ("-- hostname --np 2", ""),
        ("gone.py --np 2", ""),
    ],
)
def test_an_option_after_the_script_gets_a_hint(
    words: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in _READS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for verb in ("run", "bench scaling") if hint.startswith("run --json") else ("run",):
        done = CliRunner().invoke(app, [*verb.split(), "--hosts", "gone.yaml", *words.split()])
        assert isinstance(done.exception, BadInput) and "s3cret" not in done.stderr
        told = [line for line in done.stderr.splitlines() if line.startswith("hint: ")]
        assert len(told) == bool(hint)
        assert hint.replace("run", verb) in "".join(told)


def test_a_hint_changes_nothing_else(recorder: Recorder) -> None:
    given = ("run", "--detach", "train.py", "--np", "2")
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0 and done.stderr.startswith("hint: train.py receives --np, which")
    assert recorder.ran
