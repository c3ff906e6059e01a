"""toolkit predict: predict step time, throughput and scaling before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, load, put_json, put_text
from toolkit.cli.predict_text import as_value, text
from toolkit.cli.progress import Progress
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.measured import Measured, parse_measured
from toolkit.predict.ask import Options, parse_options, predict_training
from toolkit.predict.model import MODELS, Probed

_NET, _LOAD = "Network", "Model"


def predict(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS...]", help="Arguments of the --probe script")
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[HOST=]RATE",
            help="Link rate, such as 1gbit for every host or gpu2=10mbit for one host",
            rich_help_panel=_NET,
            autocompletion=complete.rates,
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Read network measurements from FILE, the output of `toolkit bench network --json`",
            rich_help_panel=_NET,
        ),
    ] = None,
    latency: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="One-way latency, such as 200us (default: the value in the --from file, otherwise 100us)",
            rich_help_panel=_NET,
        ),
    ] = "",
    overhead: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Fixed overhead per network message (default: the value in the --from file, otherwise 30us)",
            rich_help_panel=_NET,
        ),
    ] = "",
    mtu: Annotated[
        int,
        typer.Option(metavar="BYTES", help="Packet size (MTU) in bytes, such as 9000", rich_help_panel=_NET),
    ] = 1500,
    inside_rate: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="Data rate between two ranks on one host (default: 64gbit)",
            rich_help_panel=_NET,
        ),
    ] = "",
    up_to: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Predict for 1 to N hosts. The default is the number of hosts in hosts.yaml that have at "
            "least 1 slot. Spare hosts count only if the --from file contains them. Without hosts.yaml, the "
            "default is the number of hosts in the --from file, or 8. If N is more than 16, toolkit predicts "
            "only for 1 to 8 hosts, powers of two, and N hosts",
            rich_help_panel=_NET,
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Ranks per host, for hosts without slots in hosts.yaml (default: the number of GPUs in "
            "hosts.yaml, or 1)",
            rich_help_panel=_NET,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of a built-in model, such as resnet50",
            rich_help_panel=_LOAD,
            autocompletion=complete.one_of(*MODELS),
        ),
    ] = "",
    params: Annotated[
        str,
        typer.Option(metavar="COUNT", help="Number of parameters, such as 25.6M", rich_help_panel=_LOAD),
    ] = "",
    probe: Annotated[
        str,
        typer.Option(
            metavar="SCRIPT",
            help="Run SCRIPT on one slot of the cluster, measure the step time, and count the parameters "
            "that receive gradients",
            rich_help_panel=_LOAD,
        ),
    ] = "",
    workdir: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder that contains the --probe script and its modules",
            rich_help_panel=_LOAD,
        ),
    ] = Path(),
    dtype: Annotated[
        str,
        typer.Option(
            metavar="fp32|fp16|bf16",
            help="Data type of the gradients (default: fp32, or the type that --probe finds)",
            rich_help_panel=_LOAD,
            autocompletion=complete.one_of("fp32", "fp16", "bf16"),
        ),
    ] = "",
    step_time: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time to compute one step on one slot, such as 0.25s (default: the time that --probe "
            "measures, or the published time for some built-in models)",
            rich_help_panel=_LOAD,
        ),
    ] = "",
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Samples per slot and step; with this option, toolkit predicts samples/s instead of "
            "batches/s",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(
            metavar="ring|hierarchical|halving-doubling|open-mpi",
            help="All-reduce algorithm",
            rich_help_panel=_LOAD,
            autocompletion=complete.one_of("ring", "hierarchical", "halving-doubling", "open-mpi"),
        ),
    ] = "ring",
    bucket: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Gradient bucket size, such as 25MiB; `ddp` or `horovod` selects the library's default",
            rich_help_panel=_LOAD,
        ),
    ] = "ddp",
    hosts: HostsFile = DEFAULT_HOSTS,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Predict step time and scaling for 1 to N hosts.

    If the compute time per step on one slot is unknown (see --step-time), toolkit predicts the communication
    time, but no step time, throughput or scaling efficiency.
    Describe the network with --rate or --from. Describe the model with --model, --params or --probe. toolkit
    contacts hosts only for --probe, to run a few steps of your script. For the formulas, see
    docs/explanation/prediction.md.

    Examples:
        toolkit predict --rate 10gbit --model resnet50 --step-time 250ms
        toolkit predict --rate 1gbit --params 25.6M --up-to 8
        toolkit bench predict --from network.json --probe train.py -- --epochs 1
    """
    if arguments and not probe:
        problem = Problem(arguments[0], "is not an option; arguments of a script need --probe SCRIPT")
        raise BadInput("command line", (problem,))
    options = Options(
        rate=tuple(rate or ()),
        latency=latency,
        overhead=overhead,
        inside_rate=inside_rate,
        mtu=mtu,
        params=params,
        model=model,
        probe=probe,
        dtype=dtype,
        step_time=step_time,
        batch=batch,
        up_to=up_to,
        slots=slots,
        algorithm=algorithm,
        bucket=bucket,
        measured=measured is not None,
    )
    parse_options(options)  # reports problems of the options before problems of files
    # Without a hosts file, the prediction is about hosts that do not exist yet.
    named = hosts != DEFAULT_HOSTS or bool(probe) or Path(hosts).exists()
    inventory = load(hosts) if named else None
    found = _read(measured) if measured else None

    def run_probe(cluster: Inventory, script: str) -> Probed:
        return _probe(cluster, script, arguments or [], workdir.resolve(), verbose)

    made = predict_training(inventory, options, found, run_probe)
    about = (made.network, made.load, made.prediction, made.source)
    if as_json:
        put_json(as_value(*about, made.ask.compute_from))
    else:
        put_text(text(*about, made.ask, made.note, made.probed))


def _read(path: Path) -> Measured:
    try:
        data = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not a text file"
        raise BadInput(str(path), (Problem("", why),)) from error
    return parse_measured(data, str(path))


def _probe(inventory: Inventory, script: str, arguments: list[str], workdir: Path, verbose: bool) -> Probed:
    from toolkit.bench.step_time import probe_request, probe_step

    request = probe_request(inventory, script, arguments, workdir)
    with connect(inventory, verbose) as session:
        session.require_some()
        with Progress(verbose, brief=True) as listener:
            return probe_step(session, request, listener)
