"""toolkit top: what hosts, GPUs and ranks are doing, as it happens."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, put_json, put_text, say
from toolkit.cli.line import CommandLine
from toolkit.cluster.gauges import Gauges
from toolkit.core.files import write_whole
from toolkit.core.printable import printable_line
from toolkit.monitor.prometheus import prometheus_text
from toolkit.monitor.top import Cell, tables, top_json, top_text


def top(
    hosts: HostsFile = DEFAULT_HOSTS,
    interval: Annotated[
        str, typer.Option(metavar="SECONDS", help="From one reading to the next, at least 0.2.")
    ] = "2",
    once: Annotated[bool, typer.Option("--once", help="Print one reading and end.")] = False,
    prometheus: Annotated[
        str,
        typer.Option(metavar="FILE", help="Write it there for Prometheus, at every reading."),
    ] = "",
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show processors, memory, network, disks and GPUs of all hosts, and how fast the jobs' ranks go.

    On a terminal until Ctrl-C, elsewhere once. Needs the cluster's containers; changes nothing.
    """
    line = CommandLine()
    seconds = line.seconds("--interval", interval, least=0)
    if seconds is not None and seconds < 0.2:
        line.refuse("--interval", f"should be 0.2 or more, found {interval}")
    for option, given in {"--once": once, "--json": as_json}.items():
        if prometheus and given:
            line.refuse(option, "is one reading; --prometheus goes on")
    if prometheus and not Path(prometheus).absolute().parent.is_dir():
        line.refuse("--prometheus", f"there is no folder {Path(prometheus).absolute().parent}")
    inventory = line.accept(line.hosts(hosts))
    with connect(inventory, verbose) as session:
        session.require_some()
        with Gauges(session, seconds or 2.0) as gauges:
            live = sys.stdout.isatty() and not once and not as_json
            if live or prometheus:
                _go_on(gauges, inventory.cluster, seconds or 2.0, live, prometheus)
                return
            gauges.wait_for_rates()
            found, silent = gauges.now()
    if as_json:
        put_json({"cluster": inventory.cluster, **top_json(found, silent)})
    else:
        put_text(top_text(found, silent))
    if not found:
        raise typer.Exit(3)


def _go_on(gauges: Gauges, cluster: str, seconds: float, live: bool, file: str) -> None:
    """Show and write what comes until Ctrl-C, which is the way out and no failure."""
    screen = _Screen(cluster) if live else None
    if file:
        say(f"writing to {file} at every reading; Ctrl-C ends it")
    try:
        while True:
            time.sleep(seconds)  # not at each host's reading: many hosts would make it many times a second
            found, silent = gauges.now()
            if screen is not None:
                screen.show(found, silent)
            if file:
                write_whole(Path(file), prometheus_text(cluster, found, silent))
    except KeyboardInterrupt:
        return
    finally:
        if screen is not None:
            screen.close()


class _Screen:
    """The whole terminal, given back at the end."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._live = Live(console=Console(), screen=True, auto_refresh=False)
        self._live.start()

    def show(self, found: Any, silent: Any) -> None:
        self._live.update(_screen(self._cluster, found, silent), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _text(cell: Cell) -> Any:
    """A cell as it is, and no markup: a rank may print brackets."""
    return Text(printable_line(cell.text), style="bold red" if cell.alarm else "", no_wrap=True)


def _screen(cluster: str, found: Any, silent: Any) -> Any:
    there = f"{len(found)} of {len(found) + len(silent)} hosts"
    head = f"{cluster}   {time.strftime('%H:%M:%S')}   {there}   Ctrl-C ends"
    parts: list[Any] = [Text(head, style="bold"), Text("")]
    for one in tables(found, silent):
        made = Table(*one.head, box=None, header_style="dim", pad_edge=False)
        for row in one.rows:
            made.add_row(*map(_text, row))
        parts += [made, Text("")]
    return Group(*parts)
