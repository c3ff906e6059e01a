"""toolkit forward: make services available on this machine over SSH."""

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
        typer.Argument(
            metavar="[SERVICE]...",
            help="Name of a service in hosts.yaml (default: all services with ports)",
            autocompletion=complete.services,
        ),
    ] = None,
    hosts: HostsFile = DEFAULT_HOSTS,
    port: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Local port for the first port of the service (default: the port of the service, or a free "
            "port if your machine cannot open this port). With --port, toolkit must forward exactly one "
            "service: name the service if several services in hosts.yaml have ports",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the first service in a browser")] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make services available at 127.0.0.1 on your machine.

    toolkit forwards the ports of services in hosts.yaml over SSH until you press Ctrl-C.

    Examples:
        toolkit forward
        toolkit forward tensorboard --port 6006 --open
    """
    line = CommandLine()
    number = line.whole("--port", port, least=1, most=65535) or 0
    inventory = line.hosts(hosts)
    wanted = _wanted(line, inventory, services or [])
    if number and len(wanted) != 1:
        line.refuse("--port", "requires the name of one service")
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
            say("to close the " + ("connection" if len(opened) == 1 else "connections") + ": Ctrl-C")
            # Further ports of a service are often no web pages.
            pages = [door for door in opened if door.leads_to == inventory.service(door.service).ports[0]]
            if browser and pages:
                webbrowser.open(f"http://{pages[0].address}/")
            threading.Event().wait()
        except KeyboardInterrupt:
            pass  # the normal end of this command
        finally:
            doors.close()


def _wanted(line: CommandLine, inventory: Inventory | None, names: list[str]) -> list[Service]:
    """Return the services of these names; without names, all services in hosts.yaml."""
    if inventory is None:
        return []
    known = {service.name: service for service in inventory.services}
    for name in names:
        if name not in known:
            there = (
                f"the services are {', '.join(known)}"
                if known
                else "the file has no services; see docs/how-to/services.md"
            )
            line.refuse(name, f"is not a service in hosts.yaml; {there}")
    if not known and not names:
        line.refuse("", "hosts.yaml has no services; see docs/how-to/services.md")
    chosen = [known[name] for name in dict.fromkeys(names or known) if name in known]
    for service in chosen:
        if not service.ports and service.name in names:
            line.refuse(service.name, f"has no ports; set services/{service.name}/ports in hosts.yaml")
    found = [service for service in chosen if service.ports]
    if known and not names and not found:
        line.refuse("", "no service in hosts.yaml has ports; see docs/how-to/services.md")
    return found
