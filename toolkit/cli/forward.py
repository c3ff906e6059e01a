"""toolkit forward: open services on this machine, through ssh."""

from __future__ import annotations

import threading
import webbrowser
from dataclasses import asdict
from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, put_json, say
from toolkit.cli.line import CommandLine
from toolkit.errors import ToolkitError
from toolkit.hostsfile.inventory import Inventory, Service
from toolkit.services.forward import Door, Doors


def forward(
    services: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SERVICE]...", help="All if absent.", autocompletion=complete.services),
    ] = None,
    hosts: HostsFile = DEFAULT_HOSTS,
    port: Annotated[
        str | None,
        typer.Option(metavar="N", help="The port here; its own, or a free one, if absent."),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the first one in a browser.")] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Open services at 127.0.0.1 of this machine, through ssh, until Ctrl-C."""
    line = CommandLine()
    number = line.whole("--port", port, least=1, most=65535) or 0
    inventory = line.hosts(hosts)
    wanted = _wanted(line, inventory, services or [])
    if number and len(wanted) != 1:
        line.refuse("--port", "is for one service; name it")
    inventory = line.accept(inventory)
    names = list(dict.fromkeys(service.host for service in wanted))
    with connect(inventory, verbose, names) as session:
        doors = Doors(session, say)
        opened: list[Door] = []
        failed: list[ToolkitError] = []
        try:
            for service in wanted:
                try:
                    opened += doors.open(service, number)
                except ToolkitError as error:
                    failed.append(error)
            if not opened:
                raise failed[0]
            for one in failed:
                say(str(one))
            if as_json:
                put_json([{**asdict(door), "address": door.address} for door in opened])
            for door in opened:
                say(f"{door.service} on {door.host}, port {door.leads_to}: http://{door.address}/")
            say("Ctrl-C closes " + ("it" if len(opened) == 1 else "them"))
            if browser:
                webbrowser.open(f"http://{opened[0].address}/")
            threading.Event().wait()
        except KeyboardInterrupt:
            pass  # how it is meant to end
        finally:
            doors.close()


def _wanted(line: CommandLine, inventory: Inventory | None, names: list[str]) -> list[Service]:
    """The services of these names, all of the file where there are none."""
    if inventory is None:
        return []
    known = {service.name: service for service in inventory.services}
    for name in names:
        if name not in known:
            there = (
                f"there are: {', '.join(known)}"
                if known
                else "it has none, see services: in docs/how-to/services.md"
            )
            line.refuse(name, f"is not a service of the file; {there}")
    if not known and not names:
        line.refuse("", "the hosts file has no services; see docs/how-to/services.md")
    chosen = [known[name] for name in dict.fromkeys(names or known) if name in known]
    for service in chosen:
        if not service.ports and service.name in names:
            line.refuse(service.name, f"has no ports; write them at services/{service.name}/ports")
    return [service for service in chosen if service.ports]
