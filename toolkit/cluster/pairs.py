"""Test connections between hosts: their choice, the command that a host runs, and its output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.cluster.ports import FIRST_MASTER_PORT, free_port
from toolkit.core.command import Command, script
from toolkit.core.facts import Facts
from toolkit.network.choose import Answer, DataPath, Evidence, Shared
from toolkit.protocol.decode import whole
from toolkit.protocol.frames import lines_of

# Seconds. TCP sends its first packet again after 1 s, so one lost packet causes no false alarm.
CONNECT_SECONDS = 1.5
# Inside Linux' ephemeral range, from which the kernel assigns ports to NCCL, Gloo and Open MPI.
FIRST_EPHEMERAL_PORT = 45000


@dataclass(frozen=True)
class Ways:
    """The tests of one host: routes to these addresses, connections to these (address, port)."""

    addresses: tuple[str, ...] = ()
    targets: tuple[tuple[str, int], ...] = ()


# $1 seconds, then addresses, "--", and targets as address:port. bash can open TCP connections; without bash,
# python3 does. All at once: a target without a line at the end did not answer. No process outlives the
# command, and standard output is closed with it.
_SCRIPT = r"""
limit=$1; shift
routes=
while [ "$1" != -- ]; do routes="${routes}route get $1
"; shift; done
shift
PATH="$PATH:/usr/sbin:/sbin"
# Without an answer, `ip` of BusyBox, or one that cannot load its libraries, would look like a missing route.
if ip -V >/dev/null 2>&1; then
  echo asked
  printf %s "$routes" | ip -4 -o -force -batch - 2>/dev/null | sed 's/^/route /'
fi
if [ $# -eq 0 ]; then
  :
elif command -v bash >/dev/null 2>&1; then
  bash -c '
    limit=$1; shift; pids=
    for t; do ( exec 3<>"/dev/tcp/${t%:*}/${t#*:}" && echo "open $t" ) & pids="$pids $!"; done
    ( sleep "$limit" & s=$!; trap "kill $s; exit" TERM; wait $s; kill $pids ) >/dev/null 2>&1 & w=$!
    wait $pids; kill $w; wait $w' bash "$limit" "$@" 2>&1
  echo tried
elif command -v python3 >/dev/null 2>&1; then
  python3 -c '
import os, select, socket, sys, time
waiting = {}
for t in sys.argv[2:]:
    host, port = t.split(":")
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex((host, int(port)))
    waiting[s.fileno()] = s, host, port
poll, end = select.poll(), time.monotonic() + float(sys.argv[1])
for number in waiting:
    poll.register(number, select.POLLOUT)
while waiting:
    ready = poll.poll(max(0, end - time.monotonic()) * 1000)
    for number, _ in ready:
        poll.unregister(number)
        s, host, port = waiting.pop(number)
        error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        print(f"/dev/tcp/{host}/{port}: {os.strerror(error)}" if error else f"open {host}:{port}")
    if not ready:
        break' "$limit" "$@"
  echo tried
fi
exit 0
"""
_REFUSED = re.compile(r"/dev/tcp/([0-9.]+)/(\d+): (.+)$")
_OPEN = re.compile(r"^open ([0-9.]+):(\d+)$")
_ROUTE = re.compile(r"^route (?:\w+ )?([0-9.]+) .*?dev (\S+)")
# strerror of ECONNREFUSED and ETIMEDOUT; every other error is from a network or a firewall that rejects.
_WORDS: dict[str, Answer] = {"Connection refused": "refused", "Connection timed out": "timeout"}


def ways_command(ways: Ways) -> Command:
    """Return the command that tries them; it sends nothing over a connection and changes nothing."""
    targets = (f"{address}:{port}" for address, port in ways.targets)
    return script(f"LC_ALL=C; export LC_ALL{_SCRIPT}", str(CONNECT_SECONDS), *ways.addresses, "--", *targets)


def parse_ways(host: str, ways: Ways, text: str) -> Evidence:
    """Return the results of a host; tests without a program on the host have none."""
    lines = [line.strip() for line in lines_of(text)]
    routes = {}
    if "asked" in lines:
        found = {m[1]: m[2] for line in lines if (m := _ROUTE.match(line))}
        routes = {(host, address): found.get(address, "") for address in ways.addresses}
    tries: dict[tuple[str, str, int], Answer] = {}
    if "tried" in lines:
        tries = {(host, address, port): "timeout" for address, port in ways.targets}
        for line in lines:
            m = _OPEN.match(line) or _REFUSED.search(line)
            port = whole(m[2], 65535) if m else None
            if m and port is not None:
                is_open = m.re is _OPEN
                tries[host, m[1], port] = "open" if is_open else _WORDS.get(m[3], "unreachable")
    return Evidence(tries, routes)


def together(found: Iterable[Evidence]) -> Evidence:
    """Return all evidence as one; the later of two results for the same test is used."""
    tries: dict[tuple[str, str, int], Answer] = {}
    routes: dict[tuple[str, str], str] = {}
    for one in found:
        tries |= one.tries
        routes |= one.routes
    return Evidence(tries, routes)


def unanswered(evidence: Evidence) -> dict[str, Ways]:
    """Return the connections without an answer, for a second try, because a busy host can be late."""
    late: dict[str, list[tuple[str, int]]] = {}
    for (host, address, port), answer in evidence.tries.items():
        if answer == "timeout":
            late.setdefault(host, []).append((address, port))
    return {host: Ways((), tuple(targets)) for host, targets in late.items()}


def network_ways(networks: Sequence[Shared], facts: Mapping[str, Facts]) -> dict[str, Ways]:
    """Return the tests that decide between several networks: every ordered pair in each of them.

    Only ports without a listener are tried: a connection that is opened and closed leaves a trace in the
    log of the listener, and an sshd can penalize its client.
    """
    members = [
        (m.host, m.address, _ephemeral(facts[m.host], m.address))
        for shared in networks
        for m in shared.members
    ]
    found: dict[str, Ways] = {}
    for name in facts:
        targets = tuple((address, port) for host, address, port in members if host != name)
        found[name] = Ways(tuple(address for address, _ in targets), targets)
    return found


def path_ways(
    paths: Mapping[str, DataPath], facts: Mapping[str, Facts], port: int, known: Iterable[str] = ()
) -> dict[str, Ways]:
    """Return routes and connections of every ordered pair on the data paths.

    Args:
        port: of the workers' sshd, 0 for none; omitted if a program listens on it, see ``network_ways``.
        known: hosts between which connections are tried otherwise; their routes are queried anyway.
    """
    known = frozenset(known)
    reached = [
        (p.host, p.address, _free_ports(facts[p.host], p.address, port))
        for p in paths.values()
        if p.host in facts
    ]
    found: dict[str, Ways] = {}
    for name in facts:
        if name in paths:
            others = [one for one in reached if one[0] != name]
            targets = tuple(
                (address, number)
                for host, address, numbers in others
                if not {name, host} <= known
                for number in numbers
            )
            found[name] = Ways(tuple(address for _, address, _ in others), targets)
    return found


def _free_ports(facts: Facts, address: str, port: int) -> tuple[int, ...]:
    own = (port,) if port and free_port(port, facts, address) == port else ()
    return (*own, free_port(FIRST_MASTER_PORT, facts, address), _ephemeral(facts, address))


def _ephemeral(facts: Facts, address: str) -> int:
    return free_port(FIRST_EPHEMERAL_PORT, facts, address)
