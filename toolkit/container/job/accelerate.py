"""Replaces itself with torchrun and the settings of Accelerate.

    job.accelerate JOB torchrun [ARGS...]

The settings come from the job's own command if that is ``accelerate launch OPTIONS SCRIPT ARGUMENTS``, and
from Accelerate's configuration file. Hosts, ranks and rendezvous come from toolkit and override these
settings.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from toolkit.container.conventions import fail
from toolkit.container.job_file import load_job
from toolkit.protocol.outcomes import EXIT_USAGE

LAUNCH = ["accelerate", "launch"]


def main() -> int:
    if len(sys.argv) < 3:
        fail(EXIT_USAGE, "usage: job.accelerate JOB torchrun [ARGS...]")
    job, words = load_job(sys.argv[1]), sys.argv[2:]
    env, command = settings(job["command"], job["world_size"])
    os.execvpe(words[0], [*words, *command], {**os.environ, **env})


def settings(command: Sequence[str], size: int) -> tuple[dict[str, str], list[str]]:
    """Return the variables that Accelerate would set, and the command of each rank."""
    try:
        from accelerate import utils
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser
        from accelerate.utils import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
    except ImportError as error:
        fail(
            127,
            f"the image has no usable Accelerate ({error}); add Accelerate to the image (for example: "
            "`toolkit image build --with accelerate`), then run `toolkit up`",
        )
    asked = list(command)
    given = asked[:2] == LAUNCH
    args: Any = launch_command_parser().parse_args(asked[2:] if given else ["script"])
    # The hosts are known, so Accelerate must not guess, and its warnings are irrelevant.
    args.num_processes, args.num_machines, args.machine_rank = size, 1, 0
    args.gpu_ids, args.main_process_port = "all", 0
    args, defaults, _ = _validate_launch_command(args)
    by_deepspeed = args.use_deepspeed and not args.cpu
    if by_deepspeed:
        fields = list(defaults.deepspeed_config) if defaults else []
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    before = dict(os.environ)
    after = prepare_deepspeed_cmd_env(args)[1] if by_deepspeed else prepare_multi_gpu_env(args)
    env = {name: value for name, value in after.items() if before.get(name) != value}
    if not getattr(utils, "check_cuda_p2p_ib_support", lambda: True)():
        # As `accelerate launch` does for GeForce RTX 40 with old drivers; class Accelerator requires both.
        for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"):
            if name not in before:
                env[name] = "1"
    if args.cpu or getattr(args, "use_cpu", False):
        env["ACCELERATE_USE_CPU"] = "true"  # its multi-process launcher omits this variable
    return env, _plain(args) if given else []


def _plain(args: Namespace) -> list[str]:
    python = [] if args.no_python else ["python", "-m"] if args.module else ["python"]
    return [*python, args.training_script, *args.training_script_args]
