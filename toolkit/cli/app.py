"""The `toolkit` command: every verb in one table, errors printed in one place."""

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
from toolkit.cli.common import put_text
from toolkit.cli.lazy import Verb, VerbGroup, group
from toolkit.cli.signals import Signals
from toolkit.errors import Interrupted, ToolkitError

# click's, which typer has inside or beside it, by its age.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_SCRIPT = "script_command:ScriptCommand"

# fmt: off
# These two are listed twice: `bench` has all that measures or predicts.
_PREDICT = Verb("predict", "predict:predict",
                "Predict seconds per step, throughput and scaling efficiency for 1 … N hosts.")
_TUNE = Verb("tune", "network:tune",
             "Measure how all-reduce is quickest on this network, "
             "and give it to every later job on the same ranks.",
             old={"--engine": "--backend"})
# fmt: on
# The order is that of `toolkit --help`.
VERBS: tuple[Verb | VerbGroup, ...] = (
    Verb(
        "init",
        "init:init",
        "Write a commented hosts.yaml: in a short conversation, or for the hosts that are named or found.",
    ),
    Verb(
        "trust",
        "trust:trust",
        "Show the fingerprints of hosts' ssh keys and record them once you have compared them.",
    ),
    Verb(
        "check",
        "check:check",
        "Look for what would stop, spoil or slow a job, and change nothing; 1 means an error.",
        old={"--only": "--check"},
    ),
    Verb(
        "up",
        "up:up",
        "Bring image, keys and containers to every host, and prove that main reaches all workers.",
    ),
    Verb(
        "smoke",
        "smoke:smoke",
        "Run nvidia-smi in a fresh container on every host, then one checked all-reduce across all slots.",
    ),
    Verb(
        "run",
        "run:run",
        "Run SCRIPT of the working directory, or a COMMAND, on all slots; ends with the job's exit code.",
        passes_on=True,
        cls=_SCRIPT,
    ),
    Verb(
        "status",
        "status:status",
        "Show hosts, services, GPUs with their holders, and jobs; exits with 3 when the cluster is not up.",
    ),
    Verb(
        "top",
        "top:top",
        "Show processors, memory, network, disks and GPUs of all hosts, and how fast the jobs' ranks go.",
    ),
    Verb(
        "jobs",
        "jobs:jobs",
        "List the cluster's jobs, newest last: whose, how they stand, where, since when, how they ended.",
    ),
    Verb(
        "attach",
        "jobs:attach",
        "Watch a running job as if `run` had never been left; ends with the job's exit code.",
    ),
    Verb(
        "logs",
        "logs:logs",
        "Print a job's output, merged of all ranks or of one, or a service's; Ctrl-C leaves it alone.",
    ),
    Verb("wait", "jobs:wait", "Wait in silence until a job has ended; ends with the job's exit code."),
    Verb(
        "why",
        "why:why",
        "Say which rank holds a job up, or what ended it: asks all hosts at once, changes nothing there.",
    ),
    Verb(
        "report",
        "report:report",
        "Write one page about a job: what ran where, where the time went, pace, gauges, restarts, versions.",
    ),
    Verb("stop", "jobs:stop", "End a job on every host, and only that job."),
    Verb(
        "get",
        "get:get",
        "Bring files that a job wrote; what is here already, equal in size and time, does not travel again.",
    ),
    Verb(
        "forward", "forward:forward", "Open services at 127.0.0.1 of this machine, through ssh, until Ctrl-C."
    ),
    Verb(
        "shell",
        "enter:shell",
        "Open a shell in the container of main or of HOST; without a terminal it runs what it reads.",
    ),
    Verb(
        "exec",
        "enter:execute",
        "Run a command in the container of main, of HOST, or with --all of every host.",
        passes_on=True,
    ),
    _PREDICT,
    Verb(
        "down",
        "down:down",
        "End the cluster's jobs and remove its containers, keys and files from every host; images stay.",
    ),
    Verb(
        "gc",
        "gc:gc",
        "Remove what dead runs of yours left on the hosts, of whatever cluster; running jobs stay.",
    ),
    Verb(
        "schema",
        "schema:schema",
        "Print the JSON Schema of hosts.yaml: editors that know it complete keys and mark what is wrong.",
        hidden=True,
    ),
    Verb(
        "version",
        "version:version",
        "Print the versions of the toolkit, of Python, of the libraries it uses, and of ssh and Docker here.",
    ),
    group(
        "image",
        "Build the image on this machine, send it to the hosts, see who has what.",
        Verb(
            "build",
            "image:build",
            "Build the image: Open MPI, PyTorch, Horovod and sshd, from packages fetched by this machine.",
            old={"--flavour": "--flavor"},
        ),
        Verb(
            "send",
            "image:send",
            "Bring the image to every host: the layers that it lacks, or its own pull. "
            "`up` does this by itself.",
        ),
        Verb(
            "ls",
            "image:list_",
            "Show which host has the image, what it lacks of it, and what else of ours it keeps.",
        ),
        Verb(
            "prune",
            "image:prune",
            "Remove images of ours that nobody needs: parts that were left, "
            "and all but the two newest of a name.",
        ),
    ),
    group(
        "data",
        "Stage the data of the hosts file to the hosts, see who has what, remove it.",
        Verb(
            "send",
            "data:send",
            "Bring every host what it lacks of the data, hosts from each other. `up` does this by itself.",
        ),
        Verb(
            "ls",
            "data:list_",
            "Show which host has which data, and whether it is what this machine has now. Changes nothing.",
        ),
        Verb(
            "rm",
            "data:remove",
            "Remove the data from the hosts: what was sent there, if nobody has changed it since.",
        ),
    ),
    group(
        "network",
        "Which network ranks use, and how.",
        Verb(
            "explain",
            "network:explain",
            "Show what was chosen for each host, why, why nothing else, "
            "and the settings that ranks get by it.",
        ),
        _TUNE,
    ),
    group(
        "render",
        "Print the cluster for docker, compose or OpenSSH, or a job for Slurm or Kubernetes.",
        Verb(
            "compose",
            "render:compose",
            "Print a compose file for each host, with the containers that `up` starts there.",
        ),
        Verb(
            "docker",
            "render:docker",
            "Print a script with the `docker run` line for each container that `up` starts.",
        ),
        Verb("ssh", "render:ssh", "Print the configurations of ssh and sshd that `up` works with."),
        Verb(
            "slurm",
            "render_slurm:slurm",
            "Print a script for sbatch that runs SCRIPT, or a COMMAND, on as many nodes with the same image.",
            passes_on=True,
            cls=_SCRIPT,
        ),
        Verb(
            "kubernetes",
            "render_kubernetes:kubernetes",
            "Print an MPIJob (horovodrun, mpirun) or a TrainJob (torchrun) that runs SCRIPT, or a COMMAND.",
            passes_on=True,
            cls=_SCRIPT,
        ),
    ),
    group(
        "bench",
        "Measure a cluster that is up.",
        Verb(
            "network",
            "bench:network",
            "Bandwidth and latency of every ordered pair of hosts, "
            "then all-reduce from 1 KiB up over all slots.",
            old={"--engine": "--backend"},
        ),
        Verb(
            "scaling",
            "scaling:scaling",
            "Run SCRIPT on 1, 2, … hosts, each time until its pace is known, "
            "and say what more hosts are worth.",
            passes_on=True,
            cls=_SCRIPT,
        ),
        _PREDICT,
        _TUNE,
    ),
    group(
        "lab",
        "A practice cluster on one machine: containers that behave as hosts.",
        Verb(
            "up",
            "lab:up",
            "Make the lab, or start again what has stopped; a second time changes nothing.",
            old={"--hosts": "--count"},
        ),
        Verb("down", "lab:down", "Remove the lab and everything that it made."),
        Verb(
            "status",
            "lab:status",
            "Show the lab's hosts: state, engine, image store, and whether ssh lets us in.",
        ),
    ),
)  # fmt: skip


class Toolkit(VerbGroup):
    """All verbs; Ctrl-C in one of them is an error like others, so that it too is told in JSON.

    SIGTERM and a closed terminal are the same to them: what is under way is cut off, and told.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": {str(verb.name): verb for verb in VERBS}})

    def invoke(self, ctx: Any) -> Any:
        with Signals() as signals:
            try:
                return super().invoke(ctx)
            except (KeyboardInterrupt, Interrupted) as error:
                told = error if isinstance(error, Interrupted) else Interrupted()
                if signals.got:
                    told.exit_code = 128 + signals.got
                raise told from None


app = typer.Typer(
    cls=Toolkit,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed on a host, 2 bad input, 3 cluster not up, 4 tool missing here, "
    "130 interrupted, 143 by SIGTERM, 129 by a closed terminal; `run` ends with the job's own code once the "
    "job has started.",
)


def _show_version(asked: bool) -> None:
    if asked:
        put_text(f"toolkit {__version__}")
        raise typer.Exit


@app.callback()
def options(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Multi-node training on plain GPU boxes: SSH and Docker, nothing else."""


def main() -> None:
    """Run the command line; every error of ours becomes a message and an exit code, never a traceback."""
    # What imports leave is never garbage: looking through it again and again makes up a sixth of their time.
    gc.set_threshold(50_000)
    # Nor is it worth a search at the end, when all memory goes back: that takes as long as a connection.
    atexit.register(gc.freeze)
    words = sys.argv[1:]
    try:
        # Not standalone: a refused command line is told like every other error, and in JSON if asked for.
        sys.exit(app(prog_name="toolkit", standalone_mode=False))
    except ToolkitError as error:
        fail(error, words)
    except (KeyboardInterrupt, typer.Abort):
        fail(Interrupted(), words)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(2)  # typer has printed the help
        fail(error, words)


def fail(error: Exception, words: list[str]) -> NoReturn:
    """Say what went wrong, in JSON too if the command line asks for it, and exit.

    Args:
        error: ours, or click's refusal of the command line.
    """
    end_at_once(getattr(error, "exit_code", 1))
    from toolkit.cli.failure import as_bad_input, asks_for_json, tell

    told = error if isinstance(error, ToolkitError) else as_bad_input(error)
    if isinstance(told, Interrupted) and hasattr(told, "report"):
        told.fix = f"{shlex.join(('toolkit', *words))}    # continues from what is there"
    tell(told, asks_for_json(typer.main.get_command(app), words))
    sys.exit(told.exit_code)


def end_at_once(exit_code: int) -> None:
    """Let a further Ctrl-C end us without a word: all is told or being told, and threads may take long."""

    def leave(_number: int, _frame: object) -> NoReturn:
        os._exit(exit_code)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, leave)
