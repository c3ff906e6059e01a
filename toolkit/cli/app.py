"""The `toolkit` command: every verb in one table, errors printed in one place."""

from __future__ import annotations

import atexit
import copy
import gc as gc_module
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from toolkit.cli import (
    bench,
    check,
    data,
    down,
    enter,
    forward,
    gc,
    get,
    image,
    init,
    jobs,
    lab,
    logs,
    network,
    predict,
    render,
    render_kubernetes,
    render_slurm,
    report,
    run,
    scaling,
    schema,
    smoke,
    status,
    top,
    trust,
    up,
    version,
    why,
)
from toolkit.cli.signals import Signals

if TYPE_CHECKING:
    from typer.models import CommandInfo

    from toolkit.errors import ToolkitError

# click's, which typer has inside or beside it, by its age.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Verbs(TyperGroup):
    """All verbs; Ctrl-C in one of them is an error like others, so that it too is told in JSON.

    SIGTERM and a closed terminal are the same to them: what is under way is cut off, and told.
    """

    def invoke(self, ctx: Any) -> Any:
        from toolkit.errors import Interrupted

        with Signals() as signals:
            try:
                return super().invoke(ctx)
            except (KeyboardInterrupt, Interrupted) as error:
                told = error if isinstance(error, Interrupted) else Interrupted()
                if signals.got:
                    told.exit_code = 128 + signals.got
                raise told from None


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed on a host, 2 bad input, 3 cluster not up, 4 tool missing here, "
    "130 interrupted, 143 by SIGTERM, 129 by a closed terminal; `run` ends with the job's own code once the "
    "job has started.",
)


@app.callback()
def options(
    show: Annotated[
        bool, typer.Option("--version", callback=version.show, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Multi-node training on plain GPU boxes: SSH and Docker, nothing else."""


app.command()(init.init)
app.add_typer(image.app, name="image")
app.add_typer(data.app, name="data")
app.command()(trust.trust)
app.command()(check.check)
app.add_typer(network.app, name="network")
app.command()(up.up)
app.command()(smoke.smoke)
app.command(cls=run.ScriptCommand, context_settings=run.CONTEXT)(run.run)
app.command()(status.status)
app.command()(top.top)
app.command()(jobs.jobs)
app.command()(jobs.attach)
app.command()(logs.logs)
app.command()(jobs.wait)
app.command()(why.why)
app.command()(report.report)
app.command()(jobs.stop)
app.command()(get.get)
app.command()(forward.forward)
app.command()(enter.shell)
app.command("exec", context_settings=enter.CONTEXT)(enter.execute)
app.command()(predict.predict)
app.add_typer(render.app, name="render")
render.app.command("slurm", cls=run.ScriptCommand, context_settings=run.CONTEXT)(render_slurm.slurm)
render.app.command("kubernetes", cls=run.ScriptCommand, context_settings=run.CONTEXT)(
    render_kubernetes.kubernetes
)
app.command()(down.down)
app.command()(gc.gc)
app.add_typer(bench.app, name="bench")
bench.app.command("scaling", cls=run.ScriptCommand, context_settings=run.CONTEXT)(scaling.scaling)
app.add_typer(lab.app, name="lab")
app.command()(schema.schema)
app.command()(version.version)


def main() -> None:
    """Run the command line; every error of ours becomes a message and an exit code, never a traceback."""
    # What imports leave is never garbage: looking through it again and again makes up a sixth of their time.
    gc_module.set_threshold(50_000)
    # Nor is it worth a search at the end, when all memory goes back: that takes as long as a connection.
    atexit.register(gc_module.freeze)
    from toolkit.errors import Interrupted, ToolkitError

    words = sys.argv[1:]
    try:
        # Not standalone: a refused command line is told like every other error, and in JSON if asked for.
        sys.exit(only_verb(words)(prog_name="toolkit", standalone_mode=False))
    except ToolkitError as error:
        fail(error, words)
    except (KeyboardInterrupt, typer.Abort):
        fail(Interrupted(), words)
    except UsageError as error:
        from toolkit.cli.failure import as_bad_input

        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(2)  # typer has printed the help
        fail(as_bad_input(error), words)


def only_verb(words: Sequence[str]) -> typer.Typer:
    """Return the command line with the verb alone that its first word names, all of it where it names none.

    Typer looks at every function of every verb before it reads a word: that takes as long as to connect.
    """
    verb = words[0] if words else ""
    commands = [each for each in app.registered_commands if _name_of(each) == verb]
    groups = [each for each in app.registered_groups if each.name == verb]
    if not commands and not groups:
        return app
    found = copy.copy(app)
    found.registered_commands, found.registered_groups = commands, groups
    return found


def _name_of(command: CommandInfo) -> str:
    return command.name or getattr(command.callback, "__name__", "").replace("_", "-")


def fail(error: ToolkitError, words: list[str]) -> NoReturn:
    """Say what went wrong, in JSON too if the command line asks for it, and exit."""
    from toolkit.cli.failure import asks_for_json, tell
    from toolkit.errors import Interrupted

    end_at_once(error.exit_code)
    if isinstance(error, Interrupted) and hasattr(error, "report"):
        error.fix = f"{shlex.join(('toolkit', *words))}    # continues from what is there"
    tell(error, asks_for_json(typer.main.get_command(only_verb(words)), words))
    sys.exit(error.exit_code)


def end_at_once(exit_code: int) -> None:
    """Let a further Ctrl-C end us without a word: all is told or being told, and threads may take long."""

    def leave(_number: int, _frame: object) -> NoReturn:
        os._exit(exit_code)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, leave)
