"""toolkit render kubernetes: print a job as an MPIJob or a TrainJob."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose
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
        str,
        typer.Option(
            metavar="NAME",
            help="Namespace of the job (default: the namespace of the current kubectl context)",
        ),
    ] = "",
    host_network: Annotated[
        bool,
        typer.Option("--host-network", help="Use the host network (hostNetwork) for each pod of an MPIJob"),
    ] = False,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="Request a Kubernetes resource, such as rdma/hca=1, for every pod with ranks",
        ),
    ] = None,
    node_selector: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=VALUE", help="Use only Kubernetes nodes with the label LABEL=VALUE"),
    ] = None,
    runtime: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the ClusterTrainingRuntime that a TrainJob uses")
    ] = "torch-distributed",
    crd: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="File that contains the CustomResourceDefinition (CRD) for --check (default: the definition "
            "in the Kubernetes cluster that kubectl uses)",
        ),
    ] = "",
    launcher: Launcher = "",
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Set an environment variable for all ranks. Without VALUE, use the value in the Secret "
            "CLUSTER-secrets",
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
            help="Validate the manifest against its CustomResourceDefinition (CRD) instead of printing the "
            "manifest. If kubectl reaches a Kubernetes cluster, also do a server-side dry run",
        ),
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print a Kubernetes MPIJob or TrainJob for a script.

    With the launcher horovodrun or mpirun, toolkit prints an MPIJob. With the launcher torchrun, toolkit
    prints a TrainJob.

    Examples:
        toolkit render kubernetes --gpus 8 --launcher torchrun train.py --epochs 10
        toolkit render kubernetes --gpus 8 --namespace research --check train.py
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
        line.refuse("--crd", "needs --check")
    given = line.read(definition_of, crd) if crd else None
    job = job_of(line, hosts, batch, KUBERNETES, output, verbose)
    made = manifest(job, pods)
    text = manifest_text(made)
    result: dict[str, Any] = {}
    if check:
        result = checked(rehearse_kubernetes(made, text, given))
    put(f"{job.name}.yaml", text, result, output, as_json)
