"""Connections to the hosts of a cluster, one per host: their facts, and their connections to each other."""

from __future__ import annotations

import resource
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, TypeVar

from toolkit.cluster.gpus import SMI_SECONDS
from toolkit.cluster.pairs import Ways, network_ways, parse_ways, together, unanswered, ways_command
from toolkit.cluster.probe import parse_facts, probe_command, read_probe
from toolkit.cluster.state_folders import refuse_unsafe_state
from toolkit.core.command import quoted
from toolkit.core.facts import Facts
from toolkit.core.report import Outcome
from toolkit.core.runner import Runner
from toolkit.errors import NotReady, ToolkitError, Unreachable, UnreachableCause
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import target_of
from toolkit.network.choose import Evidence, undecided_networks
from toolkit.plan.context import Executors
from toolkit.plan.execute import Stopwatch
from toolkit.protocol.frames import FrameError
from toolkit.protocol.host_list import host_list
from toolkit.protocol.names import container_name
from toolkit.remote.container_session import ContainerSessions
from toolkit.remote.fanout import fan_out

if TYPE_CHECKING:
    from toolkit.remote.connect import Gateways
    from toolkit.remote.ssh import SshRunner, Trace

# The probe, and the probes of checks, query the GPUs once each.
_PROBE_SECONDS = 40.0 + 2 * SMI_SECONDS
_WAYS_SECONDS = 20.0  # for the connections of a host to others
# Open files of this process: at most for a connection, and for everything else. With few open files a command
# needs at least one for each connection, and _LEAST_OTHERS.
_FILES_PER_HOST, _OTHER_FILES, _LEAST_OTHERS = 4, 256, 48

# As (name, shell text); see ``toolkit.cluster.probe``.
Questions = Sequence[tuple[str, str]]

# The executors of a session that runs no plan.
NO_EXECUTORS: Executors = MappingProxyType({})

Own = TypeVar("Own", bound="Connected")


@dataclass(frozen=True)
class Reply:
    """Sections of a host's probe by name.

    Args:
        sent, received: this machine's clock in seconds.
    """

    sections: Mapping[str, str]
    sent: float
    received: float


class Connected:
    """Connections to the hosts of one cluster, one per host, with the answers of the hosts."""

    def __init__(
        self, inventory: Inventory, trace: Trace | None = None, executors: Executors = NO_EXECUTORS
    ) -> None:
        self.inventory = inventory
        self.trace = trace
        self.executors = executors
        self.runners: dict[str, SshRunner] = {}
        self._gateways: Gateways = {}
        self.facts: dict[str, Facts] = {}
        self.errors: dict[str, ToolkitError] = {}
        self.timings: dict[str, float] = {}
        self.stopwatch = Stopwatch()
        self.replies: dict[str, Reply] = {}
        self.container_sessions = ContainerSessions()
        self.closed = False
        self.always: tuple[tuple[str, str], ...] = ()

    def meet(self, hosts: Iterable[str], questions: Questions = (), container_sessions: bool = False) -> None:
        """Connect to all hosts at once and probe each.

        Hosts that cannot be reached are in ``errors`` afterwards; the others are in ``facts``.

        Args:
            questions: further probes, see ``toolkit.cluster.probe``; their output is in ``replies``.
            container_sessions: open a session in each host's container as well, for a job.

        Raises:
            NotReady: this machine allows fewer open files than the connections need.
        """
        names = list(hosts)
        allow_open_files(_OTHER_FILES + _FILES_PER_HOST * len(names), _LEAST_OTHERS + len(names))
        facts, self.errors = fan_out(names, lambda name: self._meet(name, questions, container_sessions))
        self.facts = {name: facts[name] for name in names if name in facts}

    def _meet(self, name: str, questions: Questions, container_session: bool) -> Facts:
        start = time.monotonic()
        runner = self.runners[name] = self.runner(name)
        if self.closed:  # meanwhile: `close` possibly did not see this runner
            what = "toolkit closed the connection to the host"
            raise Unreachable(what, "run the same command again", name)
        runner.open()
        if container_session:
            # The container possibly does not exist: the facts will show that.
            self.container_sessions.open(
                runner, container_name(self.inventory.cluster, self.inventory.role(name))
            )
        facts = self._ask(name, questions)
        self.timings[name] = time.monotonic() - start
        self.stopwatch.met(name, self.timings[name])
        return facts

    def runner(self, name: str) -> SshRunner:
        """Return a runner for a host that is not connected yet."""
        from toolkit.remote.ssh import SshRunner

        return SshRunner(
            target_of(self.inventory, name),
            trace=self.trace,
            engine=self.inventory.engine,
            gateways=self._gateways,
        )

    def reconnect(self, name: str) -> SshRunner:
        """Connect to a host again, and use the new connection from now on.

        Raises:
            Unreachable: the host does not answer.
        """
        old, new = self.runners[name], self.runner(name)
        if not old.is_open:
            old.close()  # its proxy, and its place at a jump host
        try:
            new.open()
        except ToolkitError:
            new.close()
            raise
        self.runners[name] = new
        if self.closed:  # meanwhile
            new.close()
        return new

    def meet_again(self, name: str) -> SshRunner:
        """Connect to a host again, and probe a host that did not answer before; ``errors`` keeps its error.

        Raises:
            ToolkitError: the host does not answer, or its state directory is not safe.
        """
        if not self.runners[name].is_open:
            self.reconnect(name)
        self._ask(name)
        return self.runners[name]

    def _ask(self, name: str, questions: Questions = ()) -> Facts:
        sources = [mount.source for mount in self.inventory.mounts]
        file = self.inventory
        nonce = secrets.token_hex(8)
        asking = probe_command(
            file.image,
            file.cluster,
            name,
            nonce,
            (*questions, *self.always),
            sources,
            file.state_dir,
            file.engine,
        )
        sent = time.time()
        result = self.runners[name].run(asking, _PROBE_SECONDS)
        received = time.time()
        try:
            sections = read_probe(result.raw, nonce)
        except FrameError as error:
            what = f"the reply to the probe is truncated or corrupt: {error}"
            raise ToolkitError(what, "toolkit status -v", name) from error
        self.replies[name] = Reply(sections, sent, received)
        facts = parse_facts(name, file.cluster, sections, engine=file.engine)
        # Before any command reads or writes on the host; the reason for a refusal is in ``errors``.
        refuse_unsafe_state(facts)
        return facts

    def close(self) -> None:
        """End all connections, and the commands that still run over them."""
        self.closed = True
        self.container_sessions.leave()
        for runner in list(self.runners.values()):
            runner.close()

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def require_some(self) -> None:
        """Raise the first host's error if no host answered.

        Raises:
            ToolkitError: with the reason of every host.
        """
        if self.facts:
            return
        lines = "".join(f"\n  {name}: {e.what}" for name, e in self.errors.items())
        name, first = next(iter(self.errors.items()))
        fix = first.fix
        causes = {error.cause if isinstance(error, Unreachable) else None for error in self.errors.values()}
        if causes == {UnreachableCause.UNKNOWN_KEY}:
            # A shell expands brackets that are not quoted.
            fix = f"toolkit trust {quoted(*host_list(self.errors, ' ').split(' '))}"
        elif len({error.fix for error in self.errors.values()}) > 1:
            fix = "toolkit check  # lists the fix for each host" + (f"; for {name}: {fix}" if fix else "")
        raise ToolkitError(f"toolkit cannot use any host{lines}", fix)

    def all_facts(self) -> dict[str, Facts]:
        """Return the facts of the hosts, if every host answered.

        Raises:
            ToolkitError: the error of the first host that did not answer.
        """
        for error in self.errors.values():
            raise error
        return dict(self.facts)

    def probe_again(self, hosts: Sequence[str]) -> None:
        """Probe these hosts again; the others take no further part."""
        answers, silent = fan_out(hosts, self._ask)
        self.facts = {name: answers[name] for name in self.facts if name in answers}
        self.errors |= silent

    def runners_in_use(self) -> dict[str, SshRunner]:
        """Return the runners of the hosts that answered."""
        return {name: self.runners[name] for name in self.facts}

    def leave_out(self, refused: Iterable[ToolkitError]) -> None:
        """Treat hosts as unusable from now on; the report of each plan has their outcome."""
        self.errors |= {error.host: error for error in refused}

    def connect_outcomes(self) -> tuple[Outcome, ...]:
        """Return one failed outcome for each host that did not answer, or that was refused."""
        return tuple(
            Outcome("connect", "connect", name, "failed", 0.0, error.what, error.fix)
            for name, error in self.errors.items()
        )


def allow_open_files(number: int, least: int) -> None:
    """Raise the soft limit on open files to this number, or to the hard limit if that is lower.

    macOS begins with 256, and each host takes one connection.

    Raises:
        NotReady: the hard limit is lower than ``least``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < least:
        what = (
            f"your machine allows {hard} open files per process, "
            f"but the connections to the hosts need at least {least}"
        )
        raise NotReady(what, f"sudo prlimit --pid $$ --nofile={least}:{least}  # or use fewer hosts")
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def try_ways(ways: Mapping[str, Ways], runners: Mapping[str, Runner]) -> Evidence:
    """Try all connections at once, those without an answer again; a lost host has no result."""

    def ask(host: str) -> Evidence:
        result = runners[host].run(ways_command(queried[host]), _WAYS_SECONDS)
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
