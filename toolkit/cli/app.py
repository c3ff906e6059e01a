"""The `toolkit` command: a table of all verbs, and one function that reports errors."""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import signal
import sys
import threading
from typing import Annotated, Any, NoReturn

import typer

from toolkit import __version__
from toolkit.cli.common import (
    EXIT_CLOSED_PIPE,
    StdoutLost,
    as_lost_output,
    can_flush,
    put_file,
    put_text,
    reporting_lost_output,
)
from toolkit.cli.lazy import Verb, VerbGroup, group, panel
from toolkit.cli.signals import Signals
from toolkit.errors import Interrupted, ToolkitError

# The class of click, which some versions of typer contain and others import.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_SCRIPT = "script_command:ScriptCommand"

# fmt: off
# `bench` lists these two as well, with the other verbs that measure or predict.
_PREDICT = Verb("predict", "predict:predict", "Predict step time and scaling for 1 to N hosts.")
_TUNE = Verb("tune", "network:tune", "Find and save the fastest all-reduce settings.",
             old={"--engine": "--backend"})
# `toolkit --help` lists the verbs in this order.
VERBS: tuple[Verb | VerbGroup, ...] = (
    *panel(
        "Set up",
        Verb("init", "init:init", "Write a commented hosts.yaml."),
        Verb("trust", "trust:trust", "Show and record the SSH host keys of the hosts."),
        Verb("check", "check:check", "Find problems that would break, corrupt or slow a job.",
             old={"--only": "--check"}),
        group("image", "Build, inspect, send, list and remove images.",
              Verb("build", "image:build", "Build the image on your machine.", old={"--flavour": "--flavor"}),
              Verb("inspect", "image:inspect", "Show the launchers, libraries and compilers of an image."),
              Verb("send", "image:send", "Copy the image to every host, or let hosts pull it."),
              Verb("ls", "image:list_", "Show which host has which image."),
              Verb("prune", "image:prune", "Remove old images that toolkit sent to the hosts.")),
        group("lab", "Run a practice cluster in containers on your machine.",
              Verb("up", "lab:up", "Start or repair the practice cluster.", old={"--hosts": "--count"}),
              Verb("down", "lab:down", "Remove the practice cluster with its hosts and files."),
              Verb("status", "lab:status", "Show the hosts of the practice cluster.")),
        Verb("schema", "schema:schema", "Print the JSON Schema of hosts.yaml for editors.", hidden=True),
        Verb("version", "version:version", "Print the versions of toolkit, libraries, SSH and Docker."),
    ),
    *panel(
        "Cluster",
        Verb("up", "up:up", "Start or repair the cluster."),
        Verb("smoke", "smoke:smoke", "Test the GPUs, and test the network with an all-reduce."),
        Verb("status", "status:status", "Show hosts, services, GPUs and jobs."),
        Verb("forward", "forward:forward", "Make services available at 127.0.0.1 on your machine."),
        Verb("down", "down:down", "Stop all jobs and remove the cluster from the hosts."),
        Verb("gc", "gc:gc", "Remove leftovers of interrupted runs from the hosts."),
    ),
    *panel(
        "Jobs",
        Verb("run", "run:run", "Run a script or a command on the slots of the cluster.", passes_on=True,
             cls=_SCRIPT),
        Verb("jobs", "jobs:jobs", "List the jobs of the cluster."),
        Verb("attach", "jobs:attach", "Follow the output of a running job, as `toolkit run` does."),
        Verb("logs", "logs:logs", "Print the output of a job, a rank or a service."),
        Verb("wait", "jobs:wait", "Wait until a job ends, and print only its result."),
        Verb("stop", "jobs:stop", "Stop a job on every host."),
    ),
    *panel(
        "Debug",
        Verb("why", "why:why", "Explain which rank blocks a job, or why the job ended."),
        Verb("top", "top:top", "Show live load of hosts and GPUs, and step rates of ranks."),
        Verb("report", "report:report", "Write an HTML page about a job."),
        Verb("shell", "enter:shell", "Open a shell in a host's container."),
        Verb("exec", "enter:execute", "Run a command in the container of one host or all hosts.",
             passes_on=True),
    ),
    *panel(
        "Performance",
        group("network", "Explain the network between ranks, and tune all-reduces.",
              Verb("explain", "network:explain", "Show and explain the data address of each host."),
              _TUNE),
        _PREDICT,
        group("bench", "Measure and predict the speed of the cluster.",
              Verb("network", "bench:network", "Measure bandwidth, latency and all-reduce time.",
                   old={"--engine": "--backend"}),
              Verb("scaling", "scaling:scaling", "Measure how throughput grows with the number of hosts.",
                   passes_on=True, cls=_SCRIPT),
              _PREDICT,
              _TUNE),
    ),
    *panel(
        "Data",
        group("data", "Copy, list and remove data sets on the hosts.",
              Verb("send", "data:send", "Copy the data sets in hosts.yaml to every host."),
              Verb("ls", "data:list_", "Show which host has which data set."),
              Verb("rm", "data:remove", "Remove the data sets from the hosts.")),
        Verb("get", "get:get", "Download files that a job wrote."),
    ),
    *panel(
        "Export",
        group("render", "Export the cluster or a job to other tools.",
              Verb("compose", "render:compose", "Print a Compose file for each host."),
              Verb("docker", "render:docker", "Print a `docker run` script for each container."),
              Verb("ssh", "render:ssh", "Print the ssh and sshd configuration of the cluster."),
              Verb("slurm", "render_slurm:slurm", "Print an sbatch script that runs a job on Slurm.",
                   passes_on=True, cls=_SCRIPT),
              Verb("kubernetes", "render_kubernetes:kubernetes",
                   "Print a Kubernetes MPIJob or TrainJob for a script.",
                   passes_on=True, cls=_SCRIPT)),
    ),
)
# fmt: on


class Toolkit(VerbGroup):
    """All verbs. Ctrl-C, SIGTERM and a closed terminal become an error that JSON can report like others."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": {str(verb.name): verb for verb in VERBS}})

    def invoke(self, ctx: Any) -> Any:
        with Signals() as signals:
            try:
                result = super().invoke(ctx)
            except (KeyboardInterrupt, Interrupted) as error:
                reported = error if isinstance(error, Interrupted) else Interrupted()
                if signals.got:
                    reported.exit_code = 128 + signals.got
                raise reported from None
            except typer.Exit as end:
                if signals.got and end.exit_code == Interrupted.exit_code:
                    raise typer.Exit(128 + signals.got) from None
                raise
            if signals.got:  # a verb that Ctrl-C ends without an error
                raise typer.Exit(128 + signals.got)
            return result


app = typer.Typer(
    cls=Toolkit,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="First steps: `toolkit lab up` starts a practice cluster, and `toolkit init` writes your hosts to "
    "hosts.yaml. "
    "`toolkit COMMAND --help` shows options and examples.\n\n"
    "Exit codes: 0 success, 1 failure, 2 invalid input, 3 unmet precondition such as a cluster that is not "
    "up, 4 program or service missing on your machine, 129 terminal closed, 130 Ctrl-C, 141 output pipe "
    "closed, 143 SIGTERM. After the end of a job, `run`, `attach` and `wait` exit with the exit code of "
    "the job.",
)


def _show_version(requested: bool) -> None:
    if requested:
        put_text(f"toolkit {__version__}")
        raise typer.Exit


def _explain(words: str) -> None:
    if words:
        from toolkit.cli.explain import explanation

        put_text(explanation(words))
        raise typer.Exit


@app.callback()
def options(
    show: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version of toolkit"),
    ] = False,
    explain: Annotated[
        str,
        typer.Option(
            callback=_explain,
            is_eager=True,
            metavar="MESSAGE",
            help="Print the cause and the fix of the message whose name or text is MESSAGE. If "
            "MESSAGE is a topic such as `ssh`, list the messages about the topic.",
        ),
    ] = "",
) -> None:
    """Run multi-node training on GPU hosts over SSH and Docker."""


def main() -> None:
    """Run the command line. Each ToolkitError becomes a message and an exit code, without a traceback."""
    # Objects made by imports are no garbage; collecting them repeatedly takes a sixth of the import time.
    gc.set_threshold(50_000)
    # A collection at exit would take as long as a connection, and the process frees its memory anyway.
    atexit.register(gc.freeze)
    words = sys.argv[1:]
    try:
        # Not standalone: a refused command line is reported like every other error, in JSON if requested.
        sys.exit(app(prog_name="toolkit", standalone_mode=False))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # click exits with 1
            sys.exit(EXIT_CLOSED_PIPE)
        raise
    except ToolkitError as error:
        fail(error, words)
    except StdoutLost as error:
        fail(as_lost_output(error), words)
    except (KeyboardInterrupt, typer.Abort):
        fail(Interrupted(), words)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            with reporting_lost_output():
                put_file(f"{error}\n")  # the help of toolkit or of a group of verbs
            sys.exit(2)
        fail(error, words)
    except OSError as error:  # the help of a verb, which click prints
        if can_flush():
            raise
        fail(as_lost_output(error), words)


def fail(error: Exception, words: list[str]) -> NoReturn:
    """Print the error, as JSON too if the command line requests JSON, and exit.

    Args:
        error: a ToolkitError, or the exception of click that refuses the command line.
    """
    end_at_once(getattr(error, "exit_code", 1))
    from toolkit.cli.failure import as_bad_input, asks_for_json, tell

    reported = error if isinstance(error, ToolkitError) else as_bad_input(error)
    if isinstance(reported, Interrupted) and hasattr(reported, "report"):
        reported.fix = f"{shlex.join(('toolkit', *words))}    # continues where the interrupted run stopped"
    tell(reported, asks_for_json(typer.main.get_command(app), words))
    sys.exit(reported.exit_code)


def end_at_once(exit_code: int) -> None:
    """Make a further Ctrl-C exit silently: the report is already being printed, and threads can take long."""

    def leave(_number: int, _frame: object) -> NoReturn:
        os._exit(exit_code)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, leave)
