"""What starts a job's ranks: as asked, or as the script expects."""

from __future__ import annotations

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
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def start(
    words: tuple[str, ...], folder: Path, launcher: str = "auto", named: bool = True, alone: bool = False
) -> Start:
    return how_to_start(words, folder, launcher, named, alone)


@pytest.mark.parametrize(
    ("words", "launcher", "why"),
    [
        (("ddp.py", "--x"), "torchrun", "ddp.py imports torch.distributed"),
        (("hvd.py",), "horovodrun", "hvd.py imports horovod"),
        (("python", "hvd.py"), "horovodrun", "hvd.py imports horovod"),
        (("python3", "hvd.py"), "horovodrun", "hvd.py imports horovod"),
        (("ds.py",), "deepspeed", "ds.py imports deepspeed"),
        (("rt.py",), "ray", "rt.py imports ray"),
        (("plain.py",), "python", "nothing that plain.py imports lets ranks work together"),
        (("nvidia-smi",), "python", "no script to read"),
        (("python", "-m", "ddp"), "python", "no script to read"),
    ],
)
def test_auto_says_what_it_chose(code: Path, words: tuple[str, ...], launcher: str, why: str) -> None:
    chosen = start(words, code)
    assert (chosen.launcher, chosen.why) == (launcher, why)


def test_what_is_named_is_taken_without_a_word(code: Path) -> None:
    assert start(("hvd.py", "3"), code, "torchrun") == Start("torchrun", ("python", "hvd.py", "3"))


def test_deepspeeds_word_goes_to_scripts_that_take_it_alone(code: Path) -> None:
    assert start(("ds.py",), code, "deepspeed").local_rank_word
    assert not start(("ddp.py",), code, "deepspeed").local_rank_word
    assert not start(("ds.py",), code, "torchrun").local_rank_word


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
    with pytest.raises(BadInput, match="once for every rank") as caught:
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
    assert "python cannot start ranks again by itself" in said


def test_horovod_with_gloo_warns_and_so_does_what_nothing_holds_together(code: Path) -> None:
    job = world.job("horovodrun-gloo", world.job("mpirun").hosts)
    (finding,) = launcher_findings(job)
    assert finding.verdict == "warning" and "CVE-2024-10190" in finding.what
    assert "--launcher horovodrun" in finding.fix
    job = world.job("python", job.hosts)
    (finding,) = launcher_findings(job, start(("plain.py",), code))
    assert "each of the" in finding.what and finding.verdict == "warning"
    assert launcher_findings(job, start(("plain.py",), code, "python")) == ()


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
