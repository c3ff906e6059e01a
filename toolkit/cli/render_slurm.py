"""toolkit render slurm: print a job as an sbatch script."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from toolkit.cli import complete
from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, say
from toolkit.cli.line import CommandLine
from toolkit.cli.render import Output
from toolkit.cli.render_batch import (
    Exclude,
    Gpus,
    Grace,
    Image,
    Launcher,
    LeaveOut,
    Only,
    Slots,
    Timeout,
    Words,
    Workdir,
    checked,
    image_of,
    job_of,
    put,
    request_of,
)
from toolkit.export.prepare import SLURM, BatchRequest
from toolkit.export.slurm import RUNTIMES, script
from toolkit.export.verify import rehearse_slurm


def slurm(
    words: Words,
    hosts: HostsFile = DEFAULT_HOSTS,
    runtime: Annotated[
        str,
        typer.Option(
            metavar="docker|pyxis|apptainer",
            help="Container runtime on the nodes",
            autocompletion=complete.one_of("docker", "pyxis", "apptainer"),
        ),
    ] = "docker",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Add an sbatch option, such as --partition=gpu"),
    ] = None,
    launcher: Launcher = "",
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Set an environment variable for all ranks. Without VALUE, use the value in the environment "
            "of sbatch",
        ),
    ] = None,
    workdir: Workdir = ".",
    only: Only = None,
    exclude: Exclude = None,
    timeout: Timeout = None,
    grace: Grace = "10",
    image: Image = "",
    slots: Slots = None,
    gpus: Gpus = None,
    leave_out: LeaveOut = None,
    output: Output = "",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Verify the script instead of printing the script. If sbatch is installed and accepts the "
            "script, run an all-reduce on at most two nodes",
        ),
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print an sbatch script that runs a job on Slurm.

    By default, the script uses the image in hosts.yaml, and one node for each host except spare hosts and
    hosts with 0 slots.

    Examples:
        toolkit render slurm --gpus 8 train.py --epochs 10
        toolkit render slurm --runtime pyxis --sbatch=--partition=gpu --gpus 8 train.py
        toolkit render slurm --gpus 8 --check train.py
    """
    line = CommandLine()
    line.one_of("--runtime", runtime, RUNTIMES)
    for option in sbatch or ():
        if not option.startswith("--") or not option.isprintable():
            line.refuse("--sbatch", f"should be an option such as --partition=gpu, found {option!r}")
    request, passed = request_of(line, words, launcher, env, workdir, only, exclude, timeout, grace)
    batch = BatchRequest(
        request,
        passed,
        image_of(line, image),
        line.whole("--slots", slots),
        line.whole("--gpus", gpus, least=0),
        tuple(leave_out or ()),
        runtime,
    )
    job = job_of(line, hosts, batch, SLURM, output, verbose)
    name, text = f"{job.name}.sh", script(job, runtime, sbatch or ())
    result: dict[str, Any] = {}
    if check:
        result = checked(rehearse_slurm(job, text, lambda two: script(two, runtime, sbatch or ()), say))
    put(name, text, result, output, as_json)
