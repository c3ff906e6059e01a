"""What the commands do, as a typed Python API; the command line is built on it.

with Session.open(load_inventory("hosts.yaml")) as session:
    report = session.execute(session.plan_up())
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from toolkit.core.facts import Facts
from toolkit.core.names import LABEL_CLUSTER, container_name
from toolkit.core.report import Outcome, Report
from toolkit.effects.engine import Engine
from toolkit.effects.fanout import fan_out
from toolkit.effects.runner import ContainerRunner
from toolkit.effects.ssh import SshRunner, Trace
from toolkit.errors import NotReady, ToolkitError
from toolkit.execute import Listener, execute
from toolkit.explore import settle_network
from toolkit.inputs import choose_hosts, inside_programs, load_inventory, target_of
from toolkit.network.choose import DataPath, choose
from toolkit.network.evidence import Evidence
from toolkit.plan.down import plan_down
from toolkit.plan.layout import Layout, make_layout, refuse_foreign
from toolkit.plan.probe import parse_facts, probe_command
from toolkit.plan.steps import Phase, Plan
from toolkit.plan.up import image_steps, plan_up
from toolkit.spec.inventory import Inventory

_PROBE_SECONDS = 60.0

__all__ = ["HostState", "Session", "choose_hosts", "load_inventory"]


@dataclass(frozen=True)
class HostState:
    """One host as `status` shows it; ``state`` is running, no container, unreachable, or Docker's word."""

    host: str
    role: str
    state: str
    address: str = ""
    image: str = ""
    docker: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class Reply:
    """What a host's probe printed, and this machine's clock in seconds when it was sent and had come back."""

    text: str
    sent: float
    received: float


class Session:
    """Connections to the hosts of one cluster, one per host, and what the hosts said."""

    def __init__(self, inventory: Inventory, trace: Trace | None = None) -> None:
        self.inventory = inventory
        self.trace = trace
        self.runners: dict[str, SshRunner] = {}
        self.facts: dict[str, Facts] = {}
        self.errors: dict[str, ToolkitError] = {}
        self.timings: dict[str, float] = {}
        self.replies: dict[str, Reply] = {}
        self._evidence: Evidence | None = None

    @classmethod
    def open(
        cls,
        inventory: Inventory,
        hosts: Iterable[str] | None = None,
        trace: Trace | None = None,
        questions: Sequence[tuple[str, str]] = (),
    ) -> Session:
        """Connect to the hosts (all of them by default) at once and ask each what it is.

        Hosts that cannot be reached are in ``errors``; the others go on.

        Args:
            trace: called with host and line for each command, before it is run.
            questions: further ones, see ``toolkit.plan.probe``; what was said to them is in ``replies``.
        """
        session = cls(inventory, trace)
        names = list(inventory.names if hosts is None else hosts)
        try:
            facts, session.errors = fan_out(names, lambda name: session._meet(name, questions))
        except BaseException:
            session.close()
            raise
        session.facts = {name: facts[name] for name in names if name in facts}
        return session

    def _meet(self, name: str, questions: Sequence[tuple[str, str]]) -> Facts:
        start = time.monotonic()
        runner = SshRunner(target_of(self.inventory, name), trace=self.trace)
        self.runners[name] = runner
        runner.open()
        asking = probe_command(self.inventory.image, self.inventory.cluster, name, questions)
        sent = time.time()
        result = runner.run(asking, _PROBE_SECONDS)
        self.replies[name] = Reply(result.stdout, sent, time.time())
        facts = parse_facts(name, self.inventory.cluster, result.stdout)
        self.timings[name] = time.monotonic() - start
        return facts

    def close(self) -> None:
        for runner in list(self.runners.values()):
            runner.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What is and what is to be

    def layout(self, local_image: bool = True) -> Layout:
        """Return what the hosts file and the facts say together.

        Args:
            local_image: let this machine's engine say which image is meant, if it has it.

        Raises:
            ToolkitError: no host answered, or see ``make_layout``.
        """
        self.require_some()
        engine = Engine.find() if local_image else None
        local = engine.image(self.inventory.image) if engine else None
        return make_layout(self.inventory, self.facts, local, self.evidence)

    @property
    def evidence(self) -> Evidence:
        """What connections between the hosts say where the choice of a network is open; tried once."""
        if self._evidence is None:
            self._evidence = settle_network(self.inventory, self.facts, self.runners)
        return self._evidence

    @property
    def settled(self) -> Evidence:
        """The same as far as it was tried already."""
        return self._evidence or Evidence()

    def require_some(self) -> None:
        """Raise the first host's error when no host answered at all.

        Raises:
            ToolkitError: with every host's reason in it.
        """
        if self.facts:
            return
        lines = "".join(f"\n  {name}: {e.what}" for name, e in self.errors.items())
        first = next(iter(self.errors.values()))
        raise ToolkitError(f"no host can be used{lines}", first.fix)

    # Plans

    def plan_up(self, prepare: bool = False) -> Plan:
        """Return the plan that makes the cluster be there; see ``toolkit.plan.up``."""
        return plan_up(self.layout(), inside_programs(), prepare)

    def plan_image_send(self) -> Plan:
        """Return the plan that brings the image to every host."""
        layout = self.layout()
        steps = tuple(step for place in layout.places for step in image_steps(layout, place))
        return Plan(f"image send {self.inventory.image}", (Phase("image", steps),))

    def plan_down(self, save_to: str = "") -> Plan:
        """Return the plan that removes the cluster; see ``toolkit.plan.down``."""
        for facts in self.facts.values():
            refuse_foreign(self.inventory.cluster, facts)
        return plan_down(self.inventory, self.facts, save_to)

    def execute(self, plan: Plan, listen: Listener = lambda event: None) -> Report:
        """Run a plan; the hosts that did not answer have their outcome in the report as well."""
        report = execute(plan, self.runners_in_use(), listen, self.close)
        return replace(report, outcomes=(*self.connect_outcomes(), *report.outcomes))

    def runners_in_use(self) -> dict[str, SshRunner]:
        """Return the runners of the hosts that answered."""
        return {name: self.runners[name] for name in self.facts}

    def connect_outcomes(self) -> tuple[Outcome, ...]:
        """Return one failed outcome for each host that did not answer."""
        return tuple(
            Outcome("connect", "connect", name, "failed", 0.0, error.what, error.fix)
            for name, error in self.errors.items()
        )

    # Containers

    def host_states(self) -> list[HostState]:
        """Return what is on every host of the file, those that did not answer included."""
        paths = choose(self.inventory, self.facts).paths
        return [self._host_state(name, paths.get(name)) for name in self.inventory.names]

    def _host_state(self, name: str, path: DataPath | None) -> HostState:
        role = self.inventory.role(name)
        if name in self.errors:
            return HostState(name, role, "unreachable", note=self.errors[name].what)
        facts = self.facts[name]
        wanted = container_name(self.inventory.cluster, role)
        found = next((c for c in facts.containers if c.name == wanted), None)
        image = next((i.identity for i in facts.images if found and i.id == found.image), "")
        image = image or next((i.identity for i in facts.images if self.inventory.image in i.tags), "absent")
        others = sum(c.labels.get(LABEL_CLUSTER) != self.inventory.cluster for c in facts.containers)
        note = f"{others} containers of other clusters" if others else ""
        if found is None:
            state = "no container"
        elif found.state == "running":
            state = "running"
        else:
            state = f"{found.state} ({found.exit_code})"
        address = path.address if path else ""
        return HostState(name, role, state, address, image, facts.docker, note)

    def container(self, host: str, user: str = "") -> ContainerRunner:
        """Return a runner inside a host's container.

        Raises:
            NotReady: the host did not answer, or no container of the cluster runs there.
        """
        if host in self.errors:
            raise self.errors[host]
        name = container_name(self.inventory.cluster, self.inventory.role(host))
        facts = self.facts[host]
        if not any(c.name == name and c.state == "running" for c in facts.containers):
            raise NotReady(f"container {name} does not run", "toolkit up", host)
        return ContainerRunner(self.runners[host], name, user)

    @property
    def main(self) -> ContainerRunner:
        """The runner inside main's container."""
        return self.container(self.inventory.main)
