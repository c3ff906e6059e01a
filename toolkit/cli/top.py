"""toolkit top: show live load and GPU use of hosts, and step rates of ranks."""

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
from toolkit.errors import ToolkitError
from toolkit.hostsfile.load import is_folder
from toolkit.monitor.prometheus import prometheus_text
from toolkit.monitor.top import Cell, tables, top_json, top_text


def top(
    hosts: HostsFile = DEFAULT_HOSTS,
    interval: Annotated[
        str, typer.Option(metavar="SECONDS", help="Time between two readings, at least 0.2 s")
    ] = "2",
    once: Annotated[bool, typer.Option("--once", help="Print one reading and exit")] = False,
    prometheus: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Write each reading to FILE in the Prometheus text format until Ctrl-C; each reading "
            "replaces the previous reading",
        ),
    ] = "",
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show live load of hosts and GPUs, and step rates of ranks.

    toolkit shows the CPU, memory, network, disk and GPU load of every host. If a rank prints step numbers or
    steps per second, toolkit shows the steps per second of the rank. On a terminal, toolkit updates the
    tables until you press Ctrl-C, unless you use --once or --json. If standard output is not a terminal,
    toolkit prints one reading, unless you use --prometheus.

    Examples:
        toolkit top
        toolkit top --once --json
        toolkit top --prometheus /var/lib/node_exporter/toolkit.prom
    """
    line = CommandLine()
    seconds = line.seconds("--interval", interval, least=0)
    if seconds is not None and seconds < 0.2:
        line.refuse("--interval", f"should be 0.2 or more, found {interval}")
    for option, given in {"--once": once, "--json": as_json}.items():
        if prometheus and given:
            line.refuse(option, "cannot be combined with --prometheus")
    folder = line.folder("--prometheus", str(Path(prometheus).parent)) if prometheus else None
    if folder is not None and not is_folder(folder):
        line.refuse("--prometheus", f"there is no folder {folder}")
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
    """Show and write readings until Ctrl-C, which is the normal end."""
    screen = _Screen(cluster) if live else None
    written = failed = False
    if file:
        say(f"replacing {file} with each new reading; to stop: Ctrl-C")
    try:
        while True:
            time.sleep(
                seconds
            )  # not at every reading of a host: many hosts would cause many updates per second
            found, silent = gauges.now()
            if screen is not None:
                screen.show(found, silent)
            if file:
                try:
                    write_whole(Path(file), prometheus_text(cluster, found, silent))
                    written, failed = True, False
                except ToolkitError as error:
                    if not written:
                        raise
                    if not failed:
                        say(f"warning: {error.what}; toolkit tries again with each new reading")
                    failed = True
    except KeyboardInterrupt:
        return
    finally:
        if screen is not None:
            screen.close()


class _Screen:
    """The full screen of the terminal, restored by ``close``."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._live = Live(console=Console(), screen=True, auto_refresh=False)
        self._live.start()

    def show(self, found: Any, silent: Any) -> None:
        self._live.update(_screen(self._cluster, found, silent), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _text(cell: Cell) -> Any:
    """Return a cell without markup, because ranks can print brackets."""
    return Text(printable_line(cell.text), style="bold red" if cell.alarm else "", no_wrap=True)


def _screen(cluster: str, found: Any, silent: Any) -> Any:
    there = f"{len(found)} of {len(found) + len(silent)} hosts"
    head = f"{cluster}   {time.strftime('%H:%M:%S')}   {there}   to stop: Ctrl-C"
    parts: list[Any] = [Text(head, style="bold"), Text("")]
    for one in tables(found, silent):
        made = Table(*one.head, box=None, header_style="dim", pad_edge=False)
        for row in one.rows:
            made.add_row(*map(_text, row))
        parts += [made, Text("")]
    return Group(*parts)
