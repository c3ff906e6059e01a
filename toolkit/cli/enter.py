"""toolkit exec and toolkit shell: run programs in the containers."""

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
from toolkit.core.command import Result, command
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import choose_hosts
from toolkit.protocol.host_list import host_list
from toolkit.protocol.transport import NOT_FOUND
from toolkit.remote.fanout import fan_out

CONTEXT = {"allow_interspersed_args": False}


def execute(
    words: Annotated[
        list[str], typer.Argument(metavar="[HOST] -- COMMAND...", autocompletion=complete.first_host)
    ],
    hosts: HostsFile = DEFAULT_HOSTS,
    everywhere: Annotated[
        bool, typer.Option("--all", help="Run the command in the container of every host")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Stop the command after SECONDS (default: no time limit)"),
    ] = None,
    raw: Raw = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a command in the container of one host or all hosts.

    Without HOST and without --all, toolkit runs the command in the main container.

    - On one host without --json, toolkit prints the output immediately. On one host, toolkit exits with the
      exit code of the command.
    - On several hosts or with --json, toolkit prints the output after the command has exited on all hosts:
      at most 4 MiB of standard output and 4 MiB of standard error per host.
    - On several hosts, toolkit prints exit codes other than 0, and exits with 1 unless the command succeeded
      on every host.
    - The standard input of the command is empty. To run commands from a file, use
      `toolkit shell HOST < FILE`.

    Examples:
        toolkit exec nvidia-smi
        toolkit exec gpu2 -- ls -l /data
        toolkit exec --all --timeout 60 -- df -h /
    """
    line = CommandLine()
    seconds = line.seconds("--timeout", timeout)
    inventory = line.hosts(hosts)
    names, argv = _split(line, inventory, words, everywhere)
    accepted = line.accept(inventory)
    with connect(accepted, verbose, names) as session:
        session.require_own()
        if len(names) == 1 and not as_json:
            done = session.run_inside(
                names[0], argv, seconds, rank_output(raw), rank_output(raw, errors=True)
            )
            if done.status == NOT_FOUND and argv == words:
                known = host_list(accepted.names)
                all_hosts = "to run a command on every host, use --all"
                say(f"{words[0]} is not a host in hosts.yaml, which lists {known}; {all_hosts}")
            _end(done)
        results, errors = fan_out(names, lambda name: session.run_inside(name, argv, seconds))
    if as_json:
        entries = ((name, done.status, done.stdout, done.stderr) for name, done in results.items())
        rows = [dict(zip(("host", "status", "stdout", "stderr"), row, strict=True)) for row in entries]
        put_json(rows + [{"host": n, "error": e.what, "fix": e.fix} for n, e in errors.items()])
    else:
        for name, done in results.items():
            _put_named(name, done.stdout, raw)
            _put_named(name, done.stderr, raw, errors=True)
        for error in errors.values():
            say(str(error))
        if everywhere:
            for status in sorted({done.status for done in results.values()} - {0}):
                failed = [name for name, done in results.items() if done.status == status]
                say(f"{host_list(failed)}: exit code {status}")
    if len(names) == 1 and names[0] in results:
        raise typer.Exit(results[names[0]].status)
    if errors or not all(done.ok for done in results.values()):
        raise typer.Exit(1)


def _put_named(host: str, text: str, raw: bool, errors: bool = False) -> None:
    """Print each line of a host's output after the name of the host, which the line cannot overwrite."""
    for line in (text if raw else text.replace("\b", "")).splitlines():
        # One sink for each line, so that colors of a line do not apply to the next host name.
        rank_output(raw, errors)(f"[{host}] {line}\n".encode(errors="replace"))


def _split(
    line: CommandLine, inventory: Inventory | None, words: list[str], everywhere: bool
) -> tuple[list[str], list[str]]:
    """Return the names of the hosts and the command; a word that names no host belongs to the command."""
    known = inventory.names if inventory else ()
    first, rest = words[0], words[1:]
    if everywhere:
        if first in known or rest[:1] == ["--"]:
            line.refuse("--all", f"selects every host; remove {first}")
        return list(known), words
    if first in known or rest[:1] == ["--"]:
        if inventory and first not in known:
            line.refuse("", f"{first} is not a host in hosts.yaml, which lists {host_list(known)}")
        argv = rest[1:] if rest[:1] == ["--"] else rest
        if not argv:
            line.refuse("", f"a command is missing: toolkit exec {first} -- COMMAND")
        return [first], argv
    return [inventory.main] if inventory else [], words


def shell(
    host: Annotated[
        str,
        typer.Argument(
            metavar="[HOST]",
            help="Host of the container (default: the main host)",
            autocompletion=complete.hosts,
        ),
    ] = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    verbose: Verbose = False,
) -> None:
    """Open a shell in a host's container.

    If standard input is not a terminal, the shell runs the commands from standard input.

    Examples:
        toolkit shell
        toolkit shell gpu2
        toolkit shell gpu2 < commands.sh
    """
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
        # Not a login shell: /etc/profile would replace the PATH of the image.
        best = "command -v bash >/dev/null && exec bash; exec sh"
        enter = command("docker", "exec", "-i", *tty, container, "sh", "-c", best)
        if at_terminal:
            raise typer.Exit(session.runners[name].interactive(enter))
        # The end of the input is passed on. A terminal on the host would wait for more input.
        given = iter(lambda: os.read(0, 1 << 15), b"")
        _end(session.runners[name].follow(enter, to_stdout, to_stderr, given))


def _end(done: Result) -> NoReturn:
    """Exit with the status of the command; print the reason if the command did not end on its own."""
    if done.stderr:
        say(done.stderr.strip())
    raise typer.Exit(done.status)
