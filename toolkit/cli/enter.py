"""toolkit exec and shell: inside the containers."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, load, put_json, say

CONTEXT = {"allow_interspersed_args": False}


def execute(
    words: Annotated[list[str], typer.Argument(metavar="[HOST] -- COMMAND...")],
    hosts: HostsFile = DEFAULT_HOSTS,
    everywhere: Annotated[bool, typer.Option("--all", help="On every host.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until it is ended.")] = 600.0,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a command in the container of main, of HOST, or with --all of every host.

    Ends with the command's own status; with --all with 1 when it failed anywhere.
    """
    from toolkit.core.command import Command
    from toolkit.effects.fanout import fan_out

    inventory = load(hosts)
    names, argv = _split(inventory.names, inventory.main, words, everywhere)
    with connect(inventory, verbose, names) as session:

        def one(name: str) -> tuple[int, str, str]:
            done = session.container(name).run(Command(tuple(argv)), timeout)
            return done.status, done.stdout, done.stderr

        results, errors = fan_out(names, one)
    if as_json:
        rows = [{"host": n, "status": r[0], "stdout": r[1], "stderr": r[2]} for n, r in results.items()] + [
            {"host": n, "error": e.what, "fix": e.fix} for n, e in errors.items()
        ]
        put_json(rows)
    else:
        for name, (_, out, err) in results.items():
            mark = f"[{name}] " if len(names) > 1 else ""
            sys.stdout.writelines(f"{mark}{line}\n" for line in out.splitlines())
            sys.stderr.writelines(f"{mark}{line}\n" for line in err.splitlines())
        for error in errors.values():
            say(str(error))
    if len(names) == 1 and names[0] in results:
        raise typer.Exit(results[names[0]][0])
    if errors or any(status for status, _, _ in results.values()):
        raise typer.Exit(1)


def _split(
    known: tuple[str, ...], main: str, words: list[str], everywhere: bool
) -> tuple[list[str], list[str]]:
    from toolkit.errors import BadInput, Problem

    if everywhere:
        return list(known), words
    if words[0] in known:
        argv = words[2:] if words[1:2] == ["--"] else words[1:]
        if not argv:
            raise BadInput("command line", (Problem("", f"say what to run: toolkit exec {words[0]} -- CMD"),))
        return [words[0]], argv
    if words[1:2] == ["--"]:
        problem = Problem(words[0], f"is not a host of the file; there are: {', '.join(known)}")
        raise BadInput("command line", (problem,))
    return [main], words


def shell(
    host: Annotated[str, typer.Argument(metavar="[HOST]", help="Main if absent.")] = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    verbose: Verbose = False,
) -> None:
    """Open a shell in the container of main or of HOST."""
    from toolkit.api import choose_hosts
    from toolkit.core.command import command

    inventory = load(hosts)
    name = choose_hosts(inventory, [host], [])[0] if host else inventory.main
    with connect(inventory, verbose, [name]) as session:
        container = session.container(name).container
        tty = ("-t",) if sys.stdin.isatty() else ()
        # Not a login shell: /etc/profile would put another PATH in place of the image's.
        best = "command -v bash >/dev/null && exec bash; exec sh"
        enter = command("docker", "exec", "-i", *tty, container, "sh", "-c", best)
        raise typer.Exit(session.runners[name].interactive(enter))
