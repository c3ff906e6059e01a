"""A job as a script for sbatch (https://slurm.schedmd.com/sbatch.html)."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from toolkit.core.container import ENTRYPOINT, Container, Mount, docker_run_args
from toolkit.core.templates import render_template
from toolkit.export.job import BY_MPI, CODE, FOLDER, BatchJob, network_lines, rank_text, rank_variables
from toolkit.launchers.mpirun import mpirun_words
from toolkit.launchers.openmpi import openmpi_daemons
from toolkit.protocol.names import WITHOUT_NUMA_CALLS

# Maximum seconds until the next container runs; the second number includes a pull of the image.
_START_WITHIN, _PULL_WITHIN = 300, 3600
# Prefixes of variables that srun, pyxis, enroot or Apptainer reads before a container starts.
_ON_NODE = ("APPTAINER", "ENROOT_", "MELLANOX_", "NVIDIA_", "PYXIS_", "SINGULARITY", "SLURM_", "SRUN_")
_RANK = ("sh", f"{FOLDER}/rank")
_SLOTS = 'local slots; slots=$(slots_of "$SLURMD_NODENAME")'


def script(job: BatchJob, runtime: str, sbatch: Sequence[str] = ()) -> str:
    """Return a script for sbatch.

    Args:
        runtime: one of RUNTIMES.
        sbatch: additional options of sbatch, such as ``--partition=gpu``.
    """
    return _by_docker(job, sbatch) if runtime == "docker" else _by_srun(job, runtime, sbatch)


def _by_docker(job: BatchJob, sbatch: Sequence[str]) -> str:
    """Return a script in which each node runs one Docker container."""
    launch = SLURM_LAUNCHES[job.launcher](job)
    # Not detached: the container ends when its standard input is closed.
    words = [word for word in docker_run_args(_container(job))[2:-1] if word != "--detach"]
    options = [*as_lines(words), *(f"--env {name}" for name in job.passed)]
    return render_template(
        "scripts/slurm-docker.sh.j2",
        job=job,
        sbatch=(*_about(job), *sbatch),
        rank=rank_text(job),
        network=network_lines(job),
        own=_own_variables(job),
        defaults=WITHOUT_NUMA_CALLS if job.gpus else {},
        options=options,
        image=shlex.quote(job.image),
        before=launch.before,
        launch=as_lines((*env_words(launch.env), var("name"), *launch.argv)),
        places=launch.places,
        start_within=_START_WITHIN if job.pull == "never" else _PULL_WITHIN,
        code=CODE,
        folder=FOLDER,
        mpi=job.launcher in BY_MPI,
        rdma=job.network != "ethernet",
    )


def _by_srun(job: BatchJob, runtime: str, sbatch: Sequence[str]) -> str:
    """Return a script in which srun starts every rank in its own container.

    The container is started by options of pyxis (https://github.com/NVIDIA/pyxis), or by apptainer.
    """
    start, image, elsewhere = _STARTS[runtime](job)
    env = [shlex.join(("=".join(pair),)) for pair in sorted(rank_variables(job).items())]
    own, end = _own_variables(job), "END-OF-RANK"
    # A line of a value must not end the lines of a rank.
    while any(end in words for words in (*env, *(node[1] for node in own))):
        end += "-"
    return render_template(
        "scripts/slurm-srun.sh.j2",
        job=job,
        runtime=runtime,
        sbatch=(*_about(job, each_rank=True), *sbatch),
        rank=rank_text(job, by_srun=True),
        network=network_lines(job),
        own=own,
        env=env,
        on_node=[each for each in env if each.lstrip("'").startswith(_ON_NODE)],
        end=end,
        image=image,
        elsewhere=elsewhere,
        start=as_lines(start),
        command=joined(job.command),
        mpi=job.launcher in BY_MPI,
    )


def _pyxis(job: BatchJob) -> tuple[list[str], str, str]:
    mounts = [Mount(var("code"), CODE), *job.mounts]
    # The flags of enroot for a bind mount follow the second colon.
    texts = [f"{each.source}:{each.target}{':ro' if each.read_only else ''}" for each in mounts]
    words = [f"--container-image={var('image')}", f"--container-mounts={','.join(texts)}"]
    words += [f"--container-workdir={CODE}", "--no-container-mount-home"]
    # enroot requires "#" between a registry and the image's name.
    registry, slash, rest = job.image.partition("/")
    owned = slash and ("." in registry or ":" in registry)
    image = f"{registry}#{rest}" if owned else job.image
    return words, image, "registry#name:tag, or a .sqsh file on a file system that all nodes share"


def _apptainer(job: BatchJob) -> tuple[list[str], str, str]:
    mounts = [Mount(var("code"), CODE), *job.mounts]
    words = ["apptainer", "exec", *(["--nv"] if job.gpus else []), "--pwd", CODE]
    for each in mounts:
        words += ["--bind", f"{each.source}:{each.target}{':ro' if each.read_only else ''}"]
    return (
        [*words, var("image")],
        f"docker://{job.image}",
        "a .sif file on a file system that all nodes share",
    )


_STARTS = {"pyxis": _pyxis, "apptainer": _apptainer}
RUNTIMES = ("docker", *_STARTS)


def _about(job: BatchJob, each_rank: bool = False) -> list[str]:
    tasks = job.slots if each_rank else 1
    lines = [f"--job-name={job.name}", f"--nodes={len(job.nodes)}", f"--ntasks-per-node={tasks}"]
    gpus = [node.gpus for node in job.nodes]
    if not job.slots or len(set(gpus)) > 1 or any(node.env for node in job.nodes):
        # Nodes differ, and the script finds the ranks and the variables of a node by its name.
        lines.append(f"--nodelist={','.join(node.name for node in job.nodes)}")
    if len(set(gpus)) > 1:
        lines.append(f"--gpus={sum(gpus)}")  # on all nodes together
    elif job.gpus:
        lines.append(f"--gpus-per-node={job.gpus}")
    if not each_rank:
        # Slurm does not control Docker containers, so the job requests complete nodes.
        lines.append("--exclusive")
    if job.timeout is not None:
        lines.append(f"--time={math.ceil(job.timeout / 60)}")
    return [*lines, "--output=%x-%j.log"]


def _own_variables(job: BatchJob) -> list[tuple[str, str, str]]:
    """Return the name of each node with own variables, and these as words for ``export`` and for Docker."""
    return [
        (node.name, joined(map("=".join, node.env)), joined(env_words(node.env)))
        for node in job.nodes
        if node.env
    ]


def _container(job: BatchJob) -> Container:
    home = f"{FOLDER}/home"
    env = {
        "HOME": home,
        "MASTER_ADDR": var("master"),
        "MASTER_PORT": var("port"),
        **rank_variables(job),
    }
    if job.launcher in BY_MPI:
        # Each node has its own settings: daemons do not receive those of the first node.
        own = {"OMPI_MCA_plm_rsh_pass_environ_mca_params": "0"}
        env = {**openmpi_daemons(f"{FOLDER}/agent", len(job.nodes)), **own, **env}
    mounts = [Mount(var("folder"), FOLDER), Mount(var("code"), CODE)]
    mounts += [
        Mount(f"{var('folder')}/{name}", f"/etc/{name}", True) for name in ("hosts", "passwd", "group")
    ]
    return Container(
        name=var("name"),
        hostname=var("SLURMD_NODENAME"),
        image="",
        argv=(),
        entrypoint=ENTRYPOINT,
        user=f"{var('uid')}:{var('gid')}",
        workdir=CODE,
        env=tuple(sorted(env.items())),
        mounts=(*mounts, *job.mounts),
        labels=tuple(sorted({**dict(job.labels), "toolkit.slurm": var("SLURM_JOB_ID")}.items())),
        shm_bytes=job.shm_bytes,
        ulimits=job.ulimits,
        pids=65536,
        stop_seconds=job.grace,
    )


class Launch(NamedTuple):
    """The command that starts the ranks once the containers run.

    Args:
        argv: command that Docker executes: once for mpirun, otherwise on every node.
        env: variables for the command.
        places: lines of the script that run once before the command, on the node of the script.
        before: lines that run on each node before the command.
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


SLURM_LAUNCHES = {
    "deepspeed": _deepspeed,
    "horovodrun": _mpi,
    "mpirun": _mpi,
    "python": _python,
    "torchrun": _torchrun,
}


def env_words(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return Docker's options for variables."""
    return [word for name, value in pairs for word in ("--env", f"{name}={value}")]


def var(name: str) -> str:
    """Return a placeholder for a variable of the script, which ``quoted`` replaces."""
    return f"\0{name}\0"


def quoted(word: str) -> str:
    """Return a word quoted for bash."""
    # A word with a NUL is quoted by single quotes, which end at the start of a variable.
    text = re.sub("\0(.*?)\0", r"""'"$\1"'""", shlex.quote(word))
    return re.sub(r"^''(?=\")|(?<=\")''$", "", text).replace("\"''\"", '""')


def joined(words: Iterable[str]) -> str:
    """Return quoted words in one line."""
    return " ".join(map(quoted, words))


def as_lines(words: Sequence[str]) -> list[str]:
    """Return quoted words as lines, each with an option and its value."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines or not lines[-1].startswith("-") or " " in lines[-1]:
            lines.append(quoted(word))
        else:
            lines[-1] += " " + quoted(word)
    return lines
