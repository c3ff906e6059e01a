"""toolkit render slurm, kubernetes: the same job for those who schedule by themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.cli import complete
from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, put_json, say
from toolkit.cli.render import Output, check_folder, put_files
from toolkit.cli.run import variable

if TYPE_CHECKING:
    from toolkit.batch import Away
    from toolkit.cli.line import CommandLine
    from toolkit.render.batch import BatchJob
    from toolkit.spec.inventory import Inventory

Words = Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]... | -- COMMAND...")]
Launcher = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="What starts the ranks; else the file's.", autocompletion=complete.launchers
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[=VALUE]", help="A variable; without a value it is given there; repeatable."),
]
Workdir = Annotated[str, typer.Option(metavar="DIR", help="Folder in which SCRIPT is.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST", help="These hosts only; repeatable.", autocompletion=complete.hosts),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST", help="Not these hosts; repeatable.", autocompletion=complete.hosts),
]
Timeout = Annotated[str | None, typer.Option(metavar="SECONDS", help="Seconds until the job is ended.")]
Grace = Annotated[
    str, typer.Option(metavar="SECONDS", help="Seconds that ranks have between SIGTERM and SIGKILL.")
]
Image = Annotated[str, typer.Option(metavar="NAME", help="The image as it is called there; else the file's.")]
Slots = Annotated[str | None, typer.Option(metavar="N", help="Ranks of every node; else as on the hosts.")]
Gpus = Annotated[
    str | None, typer.Option(metavar="N", help="GPUs of every node; else the file's, or as on the hosts.")
]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="A part of the hosts file that may be missing there; repeatable."),
]
Check = Annotated[
    bool, typer.Option("--check", help="Check it, and print that; two ranks are tried where sbatch is.")
]


def slurm(
    words: Words,
    hosts: HostsFile = DEFAULT_HOSTS,
    runtime: Annotated[
        str,
        typer.Option(
            metavar="docker|pyxis|apptainer",
            help="What runs containers on the nodes.",
            autocompletion=complete.one_of("docker", "pyxis", "apptainer"),
        ),
    ] = "docker",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="One more of sbatch's, as --partition=gpu; repeatable."),
    ] = None,
    launcher: Launcher = "",
    env: Env = None,
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
    check: Check = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print a script for sbatch that runs SCRIPT, or a COMMAND, on as many nodes with the same image.

    Asks the hosts only where nothing says how many GPUs they have.
    """
    from toolkit.batch import SLURM, Away
    from toolkit.cli.line import CommandLine
    from toolkit.render.slurm import RUNTIMES, script

    line = CommandLine()
    line.one_of("--runtime", runtime, RUNTIMES)
    for option in sbatch or ():
        if not option.startswith("--") or not option.isprintable():
            line.refuse("--sbatch", f"should be an option as --partition=gpu, found {option!r}")
    request, passed = _request(line, words, launcher, env, workdir, only, exclude, timeout, grace)
    away = Away(
        request,
        passed,
        _image(line, image),
        line.whole("--slots", slots),
        line.whole("--gpus", gpus, least=0),
        tuple(leave_out or ()),
        runtime,
    )
    job = _job(line, hosts, away, SLURM, output, verbose)
    name, text = f"{job.name}.sh", script(job, runtime, sbatch or ())
    result: dict[str, Any] = {}
    if check:
        from toolkit.rehearsal import rehearse_slurm

        result = _checked(rehearse_slurm(job, text, lambda two: script(two, runtime, sbatch or ())))
    _put(name, text, result, output, as_json)


def kubernetes(
    words: Words,
    hosts: HostsFile = DEFAULT_HOSTS,
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Else the one that it is submitted to.")
    ] = "",
    host_network: Annotated[
        bool, typer.Option("--host-network", help="Pods stand on their node's network.")
    ] = False,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="One more of every worker, as rdma/hca=1; repeatable."),
    ] = None,
    node_selector: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=VALUE", help="Only on such nodes; repeatable.")
    ] = None,
    runtime: Annotated[
        str, typer.Option(metavar="NAME", help="The ClusterTrainingRuntime of a TrainJob.")
    ] = "torch-distributed",
    crd: Annotated[
        str, typer.Option(metavar="FILE", help="With --check: the definition that holds; else kubectl's.")
    ] = "",
    launcher: Launcher = "",
    env: Env = None,
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
    check: Check = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print an MPIJob (horovodrun, mpirun) or a TrainJob (torchrun) that runs SCRIPT, or a COMMAND.

    Asks the hosts only where nothing says how many GPUs they have.
    """
    from toolkit.batch import KUBERNETES, Away
    from toolkit.cli.line import CommandLine
    from toolkit.render.kubernetes import manifest, manifest_text
    from toolkit.render.pods import Pods

    line = CommandLine()
    request, passed = _request(line, words, launcher, env, workdir, only, exclude, timeout, grace)
    pods = Pods(
        namespace=namespace,
        host_network=host_network,
        resources=_pairs(line, "--resource", resource),
        node_selector=_pairs(line, "--node-selector", node_selector),
        runtime=runtime,
    )
    away = Away(
        request,
        passed,
        _image(line, image),
        line.whole("--slots", slots),
        line.whole("--gpus", gpus, least=0),
        tuple(leave_out or ()),
        resources=bool(pods.resources),
        host_network=host_network,
    )
    if crd and not check:
        line.refuse("--crd", "is for --check")
    definition = line.read(_definition, crd) if crd else None
    job = _job(line, hosts, away, KUBERNETES, output, verbose)
    made = manifest(job, pods)
    result: dict[str, Any] = {}
    if check:
        from toolkit.rehearsal import rehearse_kubernetes

        result = _checked(rehearse_kubernetes(made, definition))
    _put(f"{job.name}.yaml", manifest_text(made), result, output, as_json)


def _request(
    line: CommandLine,
    words: list[str],
    launcher: str,
    env: list[str] | None,
    workdir: str,
    only: list[str] | None,
    exclude: list[str] | None,
    timeout: str | None,
    grace: str,
) -> tuple[Any, tuple[str, ...]]:
    from toolkit.request import Request

    pairs = [variable(line, word) for word in env or ()]
    request = Request(
        words=tuple(words),
        workdir=Path(os.path.realpath(workdir)),
        launcher=launcher,
        env=tuple((name, value) for name, value in pairs if name and value is not None),
        only=tuple(only or ()),
        exclude=tuple(exclude or ()),
        timeout=line.seconds("--timeout", timeout),
        grace=line.seconds("--grace", grace) or 0.0,
        secrets=False,
    )
    return request, tuple(name for name, value in pairs if name and value is None)


def _image(line: CommandLine, name: str) -> str:
    from toolkit.spec.fields import image

    return line.value("--image", image, name) or "" if name else ""


def _pairs(line: CommandLine, option: str, words: list[str] | None) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals or not word.isprintable():
            line.refuse(f"{option} {word}", "is written NAME=VALUE")
        pairs.append((name, value))
    return tuple(pairs)


def _job(line: CommandLine, hosts: str, away: Away, target: str, output: str, verbose: bool) -> BatchJob:
    from toolkit.batch import batch_job, check_away, open_hosts

    check_folder(line, output)
    inventory: Inventory | None = line.hosts(hosts)
    if inventory is not None:
        line.read(check_away, inventory, away, target)
    inventory = line.accept(inventory)
    facts = {}
    if unknown := open_hosts(inventory, away):
        say(f"asking {', '.join(unknown)} how many GPUs they have; --gpus N says it")
        with connect(inventory, verbose, unknown) as session:
            for error in session.errors.values():
                raise error
            facts = dict(session.facts)
    return batch_job(inventory, away, target, facts)


def _definition(path: str) -> dict[str, Any]:
    from toolkit.inputs import read_yaml

    found: dict[str, Any] = read_yaml(path)
    return found


def _checked(steps: Any) -> dict[str, Any]:
    """Say each part of a check as it comes; return all for JSON."""
    found = []
    for step in steps:
        say(f"{step.verdict}: {step.what}" + (f"\n  {step.detail}" if step.detail else ""))
        found.append({"verdict": step.verdict, "what": step.what, "detail": step.detail})
    return {"check": found, "ok": all(step["verdict"] != "error" for step in found)}


def _put(name: str, text: str, result: dict[str, Any], output: str, as_json: bool) -> None:
    if as_json:
        put_files({name: text}, output, False) if output else None
        put_json({"files": {name: text}, **result})
    elif output or not result:
        put_files({name: text}, output, False)
    if not result.get("ok", True):
        raise typer.Exit(1)
