"""The `toolkit` command: every verb in one table, errors printed in one place."""

from __future__ import annotations

import sys

import typer

from toolkit.cli import check, down, enter, image, jobs, lab, network, render, run, smoke, status, trust, up

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Multi-node training on plain GPU boxes: SSH and Docker, nothing else.",
    epilog="Exit codes: 0 done, 1 failed on a host, 2 bad input, 3 cluster not up, 4 tool missing here, "
    "130 interrupted; `run` ends with the job's own code once the job has started.",
)

app.add_typer(image.app, name="image")
app.command()(trust.trust)
app.command()(check.check)
app.add_typer(network.app, name="network")
app.command()(up.up)
app.command()(smoke.smoke)
app.command(context_settings=run.CONTEXT)(run.run)
app.command()(status.status)
app.command()(jobs.logs)
app.command()(jobs.stop)
app.command()(enter.shell)
app.command("exec", context_settings=enter.CONTEXT)(enter.execute)
app.command()(render.render)
app.command()(down.down)
app.add_typer(lab.app, name="lab")


def main() -> None:
    """Run the command line; every error of ours becomes a message and an exit code, never a traceback."""
    from toolkit.errors import ToolkitError

    try:
        app()
    except ToolkitError as error:
        _print(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        sys.exit(130)


def _print(error: Exception) -> None:
    from toolkit.execute import PlanInterrupted

    if isinstance(error, PlanInterrupted):
        from toolkit.show import report_text

        sys.stderr.write("\n" + report_text(error.report))
    sys.stderr.write(f"toolkit: {error}\n")


if __name__ == "__main__":
    main()
