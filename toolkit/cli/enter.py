"""toolkit exec and shell: inside the containers."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    HostsFile,
    Json,
    Raw,
    Verbose,
    connect,
    put_json,
    rank_output,
    say,
    to_stderr,
    to_stdout,
)
from toolkit.cli.line import CommandLine
from toolkit.cluster.session import choose_hosts
from toolkit.core.command import Result, command
from toolkit.hostsfile.inventory import Inventory
from toolkit.remote.fanout import fan_out

CONTEXT = {"allow_interspersed_args": False}


def execute(
    words: Annotated[
        list[str], typer.Argument(metavar="[HOST] -- COMMAND...", autocompletion=complete.first_host)
    ],
    hosts: HostsFile = DEFAULT_HOSTS,
    everywhere: Annotated[bool, typer.Option("--all", help="On every host.")] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", help="End the command after this many seconds (default: no time limit)."
        ),
    ] = None,
    raw: Raw = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a command in the container of main, of HOST, or with --all of every host.

    What it prints is passed on as it comes; with --all host by host, when all have ended, and with --json at
    the end, each up to 4 MiB of each output of a host. Ends with the command's own status; with --all with 1
    when it failed anywhere. The command reads nothing; for one that does: toolkit shell HOST < FILE.
    """
    line = CommandLine()
    seconds = line.seconds("--timeout", timeout)
    inventory = line.hosts(hosts)
    names, argv = _split(line, inventory, words, everywhere)
    with connect(line.accept(inventory), verbose, names) as session:
        session.require_own()
        if len(names) == 1 and not as_json:
            _end(session.run_inside(names[0], argv, seconds, rank_output(raw), rank_output(raw, errors=True)))
        results, errors = fan_out(names, lambda name: session.run_inside(name, argv, seconds))
    if as_json:
        told = ((name, done.status, done.stdout, done.stderr) for name, done in results.items())
        rows = [dict(zip(("host", "status", "stdout", "stderr"), row, strict=True)) for row in told]
        put_json(rows + [{"host": n, "error": e.what, "fix": e.fix} for n, e in errors.items()])
    else:
        for name, done in results.items():
            _put_named(name, done.stdout, raw)
            _put_named(name, done.stderr, raw, errors=True)
        for error in errors.values():
            say(str(error))
    if len(names) == 1 and names[0] in results:
        raise typer.Exit(results[names[0]].status)
    if errors or not all(done.ok for done in results.values()):
        raise typer.Exit(1)


def _put_named(host: str, text: str, raw: bool, errors: bool = False) -> None:
    """Print each line of a host's output behind the host's name."""
    for line in text.splitlines():
        # A sink for each line: colors of one line do not apply to the name in front of the next.
        rank_output(raw, errors)(f"[{host}] {line}\n".encode(errors="replace"))


def _split(
    line: CommandLine, inventory: Inventory | None, words: list[str], everywhere: bool
) -> tuple[list[str], list[str]]:
    """Names of hosts and the command; words that no host's name can be told from are the command."""
    known = inventory.names if inventory else ()
    first, rest = words[0], words[1:]
    if everywhere:
        if first in known or rest[:1] == ["--"]:
            line.refuse("--all", f"means every host; leave out {first}")
        return list(known), words
    if first in known or rest[:1] == ["--"]:
        if inventory and first not in known:
            line.refuse(first, f"is not a host of the file; there are: {', '.join(known)}")
        argv = rest[1:] if rest[:1] == ["--"] else rest
        if not argv:
            line.refuse("", f"say what to run: toolkit exec {first} -- CMD")
        return [first], argv
    return [inventory.main] if inventory else [], words


def shell(
    host: Annotated[
        str, typer.Argument(metavar="[HOST]", help="Main if absent.", autocompletion=complete.hosts)
    ] = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    verbose: Verbose = False,
) -> None:
    """Open a shell in the container of main or of HOST; without a terminal it runs what it reads."""
    line = CommandLine()
    inventory = line.hosts(hosts)
    if inventory and host:
        line.read(choose_hosts, inventory, [host], [])
    name = host or line.accept(inventory).main
    with connect(line.accept(inventory), verbose, [name]) as session:
        session.require_own()
        container = session.container(name).container
        at_terminal = sys.stdin.isatty()
        tty = ("-t",) if at_terminal else ()
        # Not a login shell: /etc/profile would put another PATH in place of the image's.
        best = "command -v bash >/dev/null && exec bash; exec sh"
        enter = command("docker", "exec", "-i", *tty, container, "sh", "-c", best)
        if at_terminal:
            raise typer.Exit(session.runners[name].interactive(enter))
        # What comes here ends, and its end is passed on; a terminal over there would wait for more.
        given = iter(lambda: os.read(0, 1 << 15), b"")
        _end(session.runners[name].follow(enter, to_stdout, to_stderr, given))


def _end(done: Result) -> NoReturn:
    """End as the command did, and say what befell it, if that was no doing of its own."""
    if done.stderr:
        say(done.stderr.strip())
    raise typer.Exit(done.status)
