"""torchrun with the settings of Accelerate: from the job's command, or from its configuration file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.container_world import JOB, World

# The part of Accelerate that accelerated.py calls; the package itself needs PyTorch. A configuration file
# sets use_cpu alone, --cpu sets cpu too.
LAUNCH = """\
import argparse, os

class Defaults:
    deepspeed_config = {"zero_stage": 2}

def launch_command_parser():
    parser = argparse.ArgumentParser()
    for name in ("--cpu", "--use_deepspeed", "--module", "--no_python"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--mixed_precision")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser

def _validate_launch_command(args):
    given = "CONFIGURED" in os.environ
    args.use_cpu = args.cpu or os.environ.get("CONFIGURED") == "use_cpu"
    return args, Defaults if given else None, False
"""
UTILS = """\
import os

def check_cuda_p2p_ib_support():
    return "OLD_DRIVER" not in os.environ

def prepare_multi_gpu_env(args):
    place = f"{args.num_processes} {args.num_machines} {args.main_process_port}"
    return {**os.environ, "PLACE": place, "ACCELERATE_MIXED_PRECISION": args.mixed_precision or "no"}

def prepare_deepspeed_cmd_env(args):
    fields = args.deepspeed_fields_from_accelerate_config
    return [], {**os.environ, "ACCELERATE_USE_DEEPSPEED": "true", "FIELDS": fields}
"""
SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in (
        ("__init__", ""),
        ("commands/__init__", ""),
        ("commands/launch", LAUNCH),
        ("utils", UTILS),
    ):
        path = tmp_path / "site" / "accelerate" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site"


def became(world: World, package: Path, *command: str, **env: str) -> tuple[dict[str, str], list[str]]:
    """Return the environment and the words of the program that it becomes."""
    world.job(command=list(command), world_size=4)
    words = ("job.accelerate", JOB, "python3", "-c", SHOW, "--nnodes=2")
    status, out, err = world.call(*words, PYTHONPATH=str(package), **env)
    assert status == 0, err
    found, rest = json.loads(out)
    return found, rest


def test_the_settings_of_a_command_and_the_place_of_the_job(world: World, package: Path) -> None:
    words = ("accelerate", "launch", "--mixed_precision", "bf16", "train.py", "--epochs", "2")
    env, argv = became(world, package, *words)
    assert argv == ["--nnodes=2", "python", "train.py", "--epochs", "2"]
    assert (env["PLACE"], env["ACCELERATE_MIXED_PRECISION"]) == ("4 1 0", "bf16")
    assert "ACCELERATE_USE_CPU" not in env and "ACCELERATE_USE_DEEPSPEED" not in env


@pytest.mark.parametrize(
    ("options", "start"),
    [(("--module",), ["python", "-m"]), (("--no_python",), []), ((), ["python"])],
)
def test_what_each_rank_executes(
    world: World, package: Path, options: tuple[str, ...], start: list[str]
) -> None:
    _, argv = became(world, package, "accelerate", "launch", *options, "train", "x")
    assert argv == ["--nnodes=2", *start, "train", "x"]


@pytest.mark.parametrize("command", [("python", "train.py"), ("accelerate", "test")])
def test_any_other_command_stays_as_it_is(world: World, package: Path, command: tuple[str, ...]) -> None:
    assert became(world, package, *command)[1] == ["--nnodes=2"]


@pytest.mark.parametrize(
    ("options", "configured"), [(("--cpu",), {}), ((), {"CONFIGURED": "use_cpu"})], ids=["option", "file"]
)
def test_processors_by_an_option_or_by_the_configuration_file(
    world: World, package: Path, options: tuple[str, ...], configured: dict[str, str]
) -> None:
    env, _ = became(world, package, "accelerate", "launch", *options, "train.py", **configured)
    assert env["ACCELERATE_USE_CPU"] == "true"


def test_gpus_without_peer_to_peer_get_the_variables_of_accelerate_launch(
    world: World, package: Path
) -> None:
    """GeForce RTX 40 with drivers before 550.40.07."""
    names = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")
    env, _ = became(world, package, "python", "train.py", OLD_DRIVER="yes", NCCL_IB_DISABLE="0")
    assert [env.get(name) for name in names] == ["1", "0"]


def test_gpus_with_peer_to_peer_keep_it(world: World, package: Path) -> None:
    assert "NCCL_P2P_DISABLE" not in became(world, package, "python", "train.py")[0]


def test_deepspeed_gets_the_fields_of_the_configuration_file(world: World, package: Path) -> None:
    words = ("accelerate", "launch", "--use_deepspeed", "train.py")
    assert became(world, package, *words, CONFIGURED="deepspeed")[0]["FIELDS"] == "zero_stage"


def test_on_processors_deepspeed_is_left_out(world: World, package: Path) -> None:
    env, _ = became(world, package, "accelerate", "launch", "--use_deepspeed", "--cpu", "train.py")
    assert "ACCELERATE_USE_DEEPSPEED" not in env and env["ACCELERATE_USE_CPU"] == "true"


def test_an_image_without_accelerate_is_refused(world: World) -> None:
    world.job()
    status, _, err = world.call("job.accelerate", JOB, "true")
    assert status == 127 and b"toolkit image build --with accelerate" in err
