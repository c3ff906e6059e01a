"""toolkit render kubernetes: the same job as an MPIJob or a TrainJob."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose
from toolkit.cli.line import CommandLine
from toolkit.cli.render import Output
from toolkit.cli.render_batch import (
    Check,
    Env,
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
    definition_of,
    image_of,
    job_of,
    pairs_of,
    put,
    request_of,
)
from toolkit.export.kubernetes import Pods, manifest, manifest_text
from toolkit.export.prepare import KUBERNETES, BatchRequest
from toolkit.export.verify import rehearse_kubernetes


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
    line = CommandLine()
    request, passed = request_of(line, words, launcher, env, workdir, only, exclude, timeout, grace)
    pods = Pods(
        namespace=namespace,
        host_network=host_network,
        resources=pairs_of(line, "--resource", resource),
        node_selector=pairs_of(line, "--node-selector", node_selector),
        runtime=runtime,
    )
    batch = BatchRequest(
        request,
        passed,
        image_of(line, image),
        line.whole("--slots", slots),
        line.whole("--gpus", gpus, least=0),
        tuple(leave_out or ()),
        resources=bool(pods.resources),
        host_network=host_network,
    )
    if crd and not check:
        line.refuse("--crd", "is for --check")
    given = line.read(definition_of, crd) if crd else None
    job = job_of(line, hosts, batch, KUBERNETES, output, verbose)
    made = manifest(job, pods)
    result: dict[str, Any] = {}
    if check:
        result = checked(rehearse_kubernetes(made, given))
    put(f"{job.name}.yaml", manifest_text(made), result, output, as_json)
