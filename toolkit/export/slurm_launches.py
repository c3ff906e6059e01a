"""How a script for sbatch starts the ranks once its containers run; one function per launcher."""

from __future__ import annotations

from typing import NamedTuple

from toolkit.export.bash_words import var
from toolkit.export.job import FOLDER, BatchJob
from toolkit.launchers.mpirun import mpirun_words

_RANK = ("sh", f"{FOLDER}/rank")


class Launch(NamedTuple):
    """How the ranks are started once the containers run.

    Args:
        argv: what docker executes: once for mpirun, else on every node.
        env: variables for that.
        places: lines of the script that are to be carried out before, where it runs itself.
        before: the same for each node.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    places: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


def _mpi(job: BatchJob) -> Launch:
    places = (
        "places=''",
        'for each in "${nodes[@]}"; do places+="${places:+,}$each:$(slots_of "$each")"; done',
    )
    argv = mpirun_words(str(job.world_size), ("-H", var("places")), (*_RANK, *job.command))
    return Launch(argv, places=places)


def _torchrun(job: BatchJob) -> Launch:
    argv = ["torchrun", "--nnodes", var("count"), "--node-rank", var("SLURM_NODEID")]
    argv += [
        "--nproc-per-node",
        var("slots"),
        "--master-addr",
        var("master"),
        "--master-port",
        var("port"),
    ]
    return Launch((*argv, "--no-python", *_RANK, *job.command), before=(_SLOTS,))


def _python(job: BatchJob) -> Launch:
    places = (
        "offset=0 firsts=''",
        'for each in "${nodes[@]}"; do firsts+="$offset "; offset=$((offset + $(slots_of "$each"))); done',
        "export firsts",
    )
    before = ("local before", 'read -ra before <<< "$firsts"', "local rank0=${before[$SLURM_NODEID]}", _SLOTS)
    argv = ("bash", f"{FOLDER}/ranks", var("rank0"), var("slots"), *job.command)
    return Launch(argv, (("WORLD_SIZE", str(job.world_size)),), places, before)


def _deepspeed(job: BatchJob) -> Launch:
    # As in toolkit/launchers/deepspeed.py: URL-safe base64 of the JSON object node -> numbers of its devices.
    places = (
        "world=''",
        'for each in "${nodes[@]}"; do',
        '    world+="${world:+, }\\"$each\\": [$(seq -s , 0 $(($(slots_of "$each") - 1)))]"',
        "done",
        "world=$(printf '{%s}' \"$world\" | base64 -w 0 | tr '+/' '-_')",
        "export world",
    )
    argv = ["python3", "-m", "deepspeed.launcher.launch", "--world_info", var("world")]
    argv += ["--node_rank", var("SLURM_NODEID"), "--master_addr", var("master")]
    argv += ["--master_port", var("port"), "--log_level", "warning", "--no_local_rank", "--no_python"]
    env = (("LOCAL_WORLD_SIZE", var("slots")),)
    return Launch((*argv, *_RANK, *job.command), env, places, (_SLOTS,))


_SLOTS = 'local slots; slots=$(slots_of "$SLURMD_NODENAME")'
SLURM_LAUNCHES = {
    "deepspeed": _deepspeed,
    "horovodrun": _mpi,
    "mpirun": _mpi,
    "python": _python,
    "torchrun": _torchrun,
}
