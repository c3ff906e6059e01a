"""Reports of failed commands: text on standard error and, with --json, one object on standard output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from toolkit.cli.common import put_json, put_text, reporting_lost_output, say, say_job_commands
from toolkit.cli.lazy import loaded
from toolkit.core.report import Report
from toolkit.errors import BadInput, Detached, Interrupted, Problem, ToolkitError
from toolkit.plan.show import report_text


def as_bad_input(error: Any) -> BadInput:
    """Return click's error about a command line as a ToolkitError."""
    path = getattr(error.ctx, "command_path", "toolkit")
    text = " ".join(error.format_message().split())
    is_module = getattr(error, "option_name", "") == "-m" and path.endswith(" run")
    fix = f"{path} -- python -m MODULE" if is_module else f"{path} --help"
    return BadInput("command line", (Problem("", text),), fix)


def tell(error: ToolkitError, as_json: bool) -> None:
    """Print the error as text and, with ``as_json``, also as JSON."""
    report = _report(error)
    if report is not None:
        say("\n" + report_text(report))
    # Detaching by a key or a signal is no error, unlike an output that cannot be written.
    if isinstance(error, Detached) and error.exit_code > 128:
        say(f"\n{error.what}")
        say_job_commands(error.job)
    else:
        more = _more(error)
        text = f"toolkit: {error}\n" + (f"  more: {more}\n" if more else "")
        say("\ninterrupted" if _bare_interrupt(error) else text)
    if as_json:
        with reporting_lost_output():
            put_json(error_json(error))


def explained_by(text: str) -> str:
    """Return the command that explains the text of an error, empty if no message of the list matches."""
    from toolkit.diagnose.messages import message_of

    message = message_of(text)
    return f"toolkit --explain {message.name}" if message else ""


def _more(error: ToolkitError) -> str:
    # No message explains an interrupt, which can have made an import of the list's parser impossible.
    return "" if isinstance(error, Interrupted) else explained_by(str(error))


def _bare_interrupt(error: ToolkitError) -> bool:
    return type(error) is Interrupted and error.bare


def _report(error: ToolkitError) -> Report | None:
    """Return the report of an interrupted plan. Looked up by name, because the import takes long."""
    return getattr(error, "report", None)


def error_json(error: ToolkitError) -> dict[str, Any]:
    """Return the form in which ``--json`` prints an error; ``problems`` is empty unless input was wrong."""
    problems = error.problems if isinstance(error, BadInput) else ()
    about = {
        "what": error.what,
        "fix": error.fix,
        "more": _more(error),
        "host": error.host,
        "exit_code": error.exit_code,
        "problems": [asdict(problem) for problem in problems],
    }
    report = _report(error)
    return {"ok": False, "error": about} | ({"report": report.as_json()} if report is not None else {})


def put_result_and_page(
    result: dict[str, Any], text: str, as_json: bool, write: Callable[[], Path | None]
) -> None:
    """Print a result, and write its page; if the page cannot be written, the result is printed too.

    Args:
        write: writes the page and returns its path, or returns None without a page.
    """
    if not as_json:
        put_text(text)
    try:
        path = write()
    except ToolkitError as error:
        if not as_json:
            raise
        put_json(result | error_json(error))
        raise typer.Exit(error.exit_code) from error
    if path is not None:
        say(f"wrote {path}")
    if as_json:
        put_json(result)


def asks_for_json(command: Any, words: Sequence[str]) -> bool:
    """Return whether a command line contains ``--json``, also if click refuses the command line.

    Words after ``--``, or from the first argument of a verb that passes words on, belong to another program.
    """
    rest = list(words)
    while hasattr(command, "commands"):
        name = next((word for word in rest if not word.startswith("-")), None)
        if name is None or name not in command.commands:
            return False
        rest = rest[rest.index(name) + 1 :]
        try:
            command = loaded(command.commands[name])
        except Exception:  # an interrupt can make the import of a package impossible
            return "--json" in rest
    passes_on = not command.context_settings.get("allow_interspersed_args", True)
    valued = {o for p in command.params if not getattr(p, "is_flag", True) for o in p.opts}
    while rest:
        word = rest.pop(0)
        if word == "--json":
            return True
        if word == "--" or (passes_on and not word.startswith("-")):
            return False
        if word in valued and rest:
            rest.pop(0)
    return False
