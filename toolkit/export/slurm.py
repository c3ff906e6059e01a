"""A job as a script for sbatch (https://slurm.schedmd.com/sbatch.html)."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from toolkit.cluster.docker import docker_run_args
from toolkit.core.container import Container, Mount
from toolkit.core.templates import render_template
from toolkit.export.bash_words import as_lines, env_words, joined, var
from toolkit.export.job import BY_MPI, CODE, FOLDER, BatchJob, network_lines, rank_text
from toolkit.export.slurm_launches import SLURM_LAUNCHES
from toolkit.launchers.openmpi import openmpi_daemons

# Seconds until all containers run.
_START_WITHIN = 300


def script(job: BatchJob, runtime: str, sbatch: Sequence[str] = ()) -> str:
    """Return a script for sbatch.

    Args:
        runtime: one of RUNTIMES.
        sbatch: more of sbatch's options, such as ``--partition=gpu``.
    """
    return _by_docker(job, sbatch) if runtime == "docker" else _by_srun(job, runtime, sbatch)


def _by_docker(job: BatchJob, sbatch: Sequence[str]) -> str:
    """Return a script in which each node runs one container of docker."""
    launch = SLURM_LAUNCHES[job.launcher](job)
    # Not detached: its standard input is what it lives by.
    words = [word for word in docker_run_args(_container(job))[2:-1] if word != "--detach"]
    options = [*as_lines(words), *(f"--env {name}" for name in job.passed)]
    return render_template(
        "scripts/slurm-docker.sh.j2",
        job=job,
        sbatch=(*_about(job), *sbatch),
        rank=rank_text(job),
        network=network_lines(job),
        own=[(node.name, joined(env_words(node.env))) for node in job.nodes if node.env],
        options=options,
        image=shlex.quote(job.image),
        before=launch.before,
        launch=as_lines((*env_words(launch.env), var("name"), *launch.argv)),
        places=launch.places,
        start_within=_START_WITHIN,
        code=CODE,
        folder=FOLDER,
        mpi=job.launcher in BY_MPI,
        rdma=job.network != "ethernet",
    )


def _by_srun(job: BatchJob, runtime: str, sbatch: Sequence[str]) -> str:
    """Return a script in which srun starts every rank in a container of its own.

    By options of pyxis (https://github.com/NVIDIA/pyxis), or by apptainer.
    """
    start, image, elsewhere = _STARTS[runtime](job)
    env = {
        "PYTHONUNBUFFERED": "1",
        **({"ACCELERATE_USE_CPU": "true"} if not job.gpus else {}),
        **dict(job.env),
    }
    return render_template(
        "scripts/slurm-srun.sh.j2",
        job=job,
        runtime=runtime,
        sbatch=(*_about(job, each_rank=True), *sbatch),
        rank=rank_text(job, by_srun=True),
        network=network_lines(job),
        own=[(node.name, joined(map("=".join, node.env))) for node in job.nodes if node.env],
        env=[shlex.join(("=".join(pair),)) for pair in sorted(env.items())],
        image=image,
        elsewhere=elsewhere,
        start=as_lines(start),
        command=joined(job.command),
        mpi=job.launcher in BY_MPI,
    )


def _pyxis(job: BatchJob) -> tuple[list[str], str, str]:
    mounts = [Mount(var("code"), CODE), *job.mounts]
    # enroot's own flags for a bind mount come behind the second colon.
    texts = [f"{each.source}:{each.target}{':ro' if each.read_only else ''}" for each in mounts]
    words = [f"--container-image={var('image')}", f"--container-mounts={','.join(texts)}"]
    words += [f"--container-workdir={CODE}", "--no-container-mount-home"]
    # enroot wants "#" between a registry and the image's name.
    registry, slash, rest = job.image.partition("/")
    owned = slash and ("." in registry or ":" in registry)
    image = f"{registry}#{rest}" if owned else job.image
    return words, image, "registry#name:tag, or a file.sqsh that every node sees"


def _apptainer(job: BatchJob) -> tuple[list[str], str, str]:
    mounts = [Mount(var("code"), CODE), *job.mounts]
    words = ["apptainer", "exec", *(["--nv"] if job.gpus else []), "--pwd", CODE]
    for each in mounts:
        words += ["--bind", f"{each.source}:{each.target}{':ro' if each.read_only else ''}"]
    return [*words, var("image")], f"docker://{job.image}", "a file.sif that every node sees, made once"


_STARTS = {"pyxis": _pyxis, "apptainer": _apptainer}
RUNTIMES = ("docker", *_STARTS)


def _about(job: BatchJob, each_rank: bool = False) -> list[str]:
    tasks = job.slots if each_rank else 1
    lines = [f"--job-name={job.name}", f"--nodes={len(job.nodes)}", f"--ntasks-per-node={tasks}"]
    if not job.slots:
        # Nodes differ, and who runs how many ranks is known by their names.
        lines.append(f"--nodelist={','.join(node.name for node in job.nodes)}")
    if job.gpus:
        lines.append(f"--gpus-per-node={job.gpus}")
    if not each_rank:
        # docker's containers are outside of what Slurm gives to a job, so the whole node is to be the job's.
        lines.append("--exclusive")
    if job.timeout is not None:
        lines.append(f"--time={math.ceil(job.timeout / 60)}")
    return [*lines, "--output=%x-%j.log"]


def _container(job: BatchJob) -> Container:
    home = f"{FOLDER}/home"
    env = {
        "HOME": home,
        **({"ACCELERATE_USE_CPU": "true"} if not job.gpus else {}),
        "MASTER_ADDR": var("master"),
        "MASTER_PORT": var("port"),
        "PYTHONUNBUFFERED": "1",
        **dict(job.env),
    }
    if job.launcher in BY_MPI:
        # Each node's own: daemons are not given the first one's.
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
