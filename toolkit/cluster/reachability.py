"""Test connections between hosts, run on the hosts over the existing SSH connections."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.cluster.pairs import Ways, network_ways, parse_ways, together, unanswered, ways_command
from toolkit.core.facts import Facts
from toolkit.core.runner import Runner
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import undecided_networks
from toolkit.network.evidence import Evidence
from toolkit.remote.fanout import fan_out

_LIMIT_SECONDS = 20.0


def try_ways(ways: Mapping[str, Ways], runners: Mapping[str, Runner]) -> Evidence:
    """Try all connections at once, those without an answer again; a lost host has no result."""

    def ask(host: str) -> Evidence:
        result = runners[host].run(ways_command(queried[host]), _LIMIT_SECONDS)
        return parse_ways(host, queried[host], result.stdout)

    queried = {host: way for host, way in ways.items() if way.addresses or way.targets}
    found = together(fan_out(queried, ask)[0].values())
    if queried := unanswered(found):
        found = together((found, *fan_out(queried, ask)[0].values()))
    return found


def try_networks(inventory: Inventory, facts: Mapping[str, Facts], runners: Mapping[str, Runner]) -> Evidence:
    """Return the results of connections if there is a choice between networks; otherwise nothing."""
    networks = undecided_networks(inventory, facts)
    return try_ways(network_ways(networks, facts), runners) if networks else Evidence()
