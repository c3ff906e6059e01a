"""What the commands do, as a typed Python API; the command line is built on it.

with Session.open(load_inventory("hosts.yaml")) as session:
    report = session.execute(up_plan(session))  # toolkit.lifecycle.planning
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from toolkit.cluster.connect import Connected, Questions, Reply
from toolkit.core.command import Command, Result
from toolkit.core.disk_space import size
from toolkit.core.host_programs import container_programs
from toolkit.core.report import PlanFailed, Report
from toolkit.core.runner import ContainerRunner, Sink
from toolkit.errors import ImageError, NotReady
from toolkit.hostsfile.load import choose_hosts, load_inventory
from toolkit.protocol.names import container_name
from toolkit.remote.ssh import Trace

# What makes plans and runs them is imported where it is used: to meet the hosts takes none of it, and while
# they answer there is time, see ``meanwhile``.
if TYPE_CHECKING:
    from toolkit.cluster.container_status import HostState
    from toolkit.cluster.layout import Layout
    from toolkit.core.finding import Finding
    from toolkit.core.image import ImageFacts
    from toolkit.hostsfile.inventory import Inventory
    from toolkit.network.evidence import Evidence
    from toolkit.plan.execute import Listener
    from toolkit.plan.steps import Plan, Step

# Bytes of each output of a command that are kept in memory; all hosts can send theirs at the same time.
MOST_OUTPUT = 4 << 20

__all__ = ["Questions", "Reply", "Session", "choose_hosts", "load_inventory"]


class _Kept:
    """One output of a command, up to ``MOST_OUTPUT`` bytes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.left_out = 0

    def __call__(self, data: bytes) -> None:
        taken = data[: MOST_OUTPUT - len(self.data)]
        self.data += taken
        self.left_out += len(data) - len(taken)


class Session(Connected):
    """A cluster whose hosts have answered: what they are to be, as plans, and what is done about it."""

    def __init__(self, inventory: Inventory, trace: Trace | None = None) -> None:
        super().__init__(inventory, trace)
        self.lost_ports: set[int] = set()
        self._evidence: Evidence | None = None
        # The hosts of the jobs that were started from here, by job: see ``toolkit.jobs.exec_mode``.
        self.started: dict[str, tuple[str, ...]] = {}
        self.warn: Callable[[Finding], None] = lambda finding: None
        self._warned: set[tuple[str, str]] = set()

    # What is and what is to be

    def layout(self, local_image: bool = True) -> Layout:
        """Return what the hosts file and the facts say together; hosts it refuses are in ``errors`` then.

        Args:
            local_image: let the name in the hosts file say which image is meant, as this machine's engine
                understands it if it has it, or as the hosts do where they pull it themselves.

        Raises:
            ToolkitError: no host answered, or see ``make_layout``.
        """
        from toolkit.cluster.layout import make_layout
        from toolkit.cluster.ownership import ours

        self.require_some()
        pulled = self.inventory.pull != "never"
        local = self.local_image if local_image and not pulled else None
        by_name = local_image and pulled
        try:
            layout = make_layout(self.inventory, self.facts, local, by_name, self.evidence, self.lost_ports)
        except ImageError as error:
            mine = (c for facts in self.facts.values() for c in ours(self.inventory.cluster, facts))
            if local_image or any(mine):
                raise
            # Nobody has asked this machine, which may have it.
            raise NotReady("the cluster is not up", "toolkit up") from error
        self.errors |= {error.host: error for error in layout.refused}
        return layout

    @cached_property
    def local_image(self) -> ImageFacts | None:
        """The image as this machine's engine knows it, None when it does not, or when there is none."""
        # Docker's SDK takes a tenth of a second to import, and most commands never ask this machine.
        from toolkit.remote.engine import Engine

        engine = Engine.find()
        return engine.image(self.inventory.image, self.inventory.engine) if engine else None

    @property
    def evidence(self) -> Evidence:
        """What connections between the hosts say where the choice of a network is open; tried once."""
        from toolkit.cluster.reachability import settle_network

        if self._evidence is None:
            self._evidence = settle_network(self.inventory, self.facts, self.runners)
        return self._evidence

    @property
    def settled(self) -> Evidence:
        """The same as far as it was tried already."""
        from toolkit.network.evidence import Evidence

        return self._evidence or Evidence()

    def require_own(self) -> None:
        """Refuse to change anything where a cluster of this name is another user's; reading is free.

        Raises:
            NotReady: names that user.
        """
        from toolkit.cluster.ownership import refuse_foreign

        for facts in self.facts.values():
            refuse_foreign(self.inventory.cluster, facts)

    def warn_once(self, finding: Finding) -> None:
        """Pass on a finding unless one of this check on this host was passed on before."""
        key = finding.check, finding.host
        if key not in self._warned:
            self._warned.add(key)
            self.warn(finding)

    def refuse_newer(self) -> None:
        """Refuse to go on where a later toolkit was at work; see ``toolkit.cluster.versions``."""
        from toolkit.cluster.versions import refuse_newer

        refuse_newer(self.inventory.cluster, self.facts.values())

    def newer_hosts(self) -> dict[str, str]:
        """Return the hosts on which a later toolkit was at work, with its version."""
        from toolkit.cluster.versions import newer_hosts

        return newer_hosts(self.inventory.cluster, self.facts.values())

    @property
    def is_up(self) -> bool:
        """Whether the cluster's containers run on all hosts that answered: `up` has little to do then."""
        names = {
            f.host: container_name(self.inventory.cluster, self.inventory.role(f.host))
            for f in self.facts.values()
        }
        return all(
            any(c.name == names[f.host] and c.state == "running" for c in f.containers)
            for f in self.facts.values()
        )

    def execute(
        self,
        plan: Plan,
        listen: Listener = lambda event: None,
        foresee: bool = False,
        without: Collection[str] = (),
    ) -> Report:
        """Run a plan; the hosts that did not answer have their outcome in the report as well.

        Args:
            foresee: see ``toolkit.plan.execute.execute``.
            without: hosts that take no part, so that their steps are "not run".

        Raises:
            PlanInterrupted: Ctrl-C; its report has the hosts that did not answer as well.
        """
        from toolkit.plan.execute import execute, reported_after

        timed, engine = self.stopwatch.heard_by(listen), self.inventory.engine
        runners = {name: runner for name, runner in self.runners_in_use().items() if name not in without}
        silent = Report(plan.title, self.connect_outcomes())
        with reported_after(silent):
            report = execute(plan, runners, timed, self.close, self.desks, engine, foresee)
        return report.after(silent)

    def to_do(self, plan: Plan) -> tuple[Step, ...]:
        """Return the steps that have something to do as things are now; asks the hosts, changes nothing."""
        from toolkit.plan.execute import to_do

        return to_do(plan, self.runners_in_use(), self.inventory.engine)

    def pull(self, plan: Plan, listen: Listener = lambda event: None) -> Report:
        """Run a plan of ``toolkit.image.pull`` and ask the hosts anew; one that failed takes no further part.

        Merge the report with that of the next plan, see ``Report.after``.

        Raises:
            PlanFailed: no host is left for a next plan.
        """
        report = self.execute(plan, listen)
        lost = {outcome.host for outcome in report.failures}
        self.ask_anew([name for name in self.facts if name not in lost])
        report = report.after(Report(plan.title, self.connect_outcomes()))
        if not self.facts:
            raise PlanFailed(report)
        return report

    # Containers

    def changes(self) -> tuple[Finding, ...]:
        """Return a warning that names the keys of hosts.yaml which changed since `up`; none if none did."""
        from toolkit.cluster.applied import change_finding

        return change_finding(self.inventory, self.facts)

    def host_states(self) -> list[HostState]:
        """Return what is on every host of the file, those that did not answer included."""
        from toolkit.cluster.container_status import host_states

        return host_states(self.inventory, self.facts, self.errors, container_programs())

    def container(self, host: str, user: str = "") -> ContainerRunner:
        """Return a runner inside a host's container.

        Raises:
            NotReady: the host is not in the hosts file or did not answer, or no container of the cluster
                runs there.
        """
        from toolkit.cluster.container_status import why_not_running

        if host in self.errors:
            raise self.errors[host]
        if host not in self.inventory.names:  # a job's record can name any host
            raise NotReady(
                "it is not in the hosts file", "add it there, or look at another job: toolkit jobs", host
            )
        name = container_name(self.inventory.cluster, self.inventory.role(host))
        facts = self.facts[host]
        found = next((c for c in facts.containers if c.name == name), None)
        why = why_not_running(found, facts) if found else "there is none"
        if why:
            raise NotReady(f"container {name} does not run: {why}", "toolkit up", host)
        return ContainerRunner(self.runners[host], name, user)

    def run_inside(self, host: str, argv: Sequence[str], timeout: float | None, *sinks: Sink) -> Result:
        """Run a command in a host's container; it is ended there when the connection ends.

        Args:
            timeout: seconds after which it is ended there, with status 124; None for never.
            sinks: for standard output and standard error, as they come; without them the result has both,
                up to ``MOST_OUTPUT`` bytes each.

        Raises:
            NotReady: the host did not answer, or no container of the cluster runs there.
        """
        said = (_Kept(), _Kept())
        out, err = sinks or said
        done = self.container(host).follow(self.runners[host], Command(tuple(argv)), out, err, timeout)
        output, beside = (bytes(kept.data).decode(errors="replace") for kept in said)
        if left_out := sum(kept.left_out for kept in said):
            what = f"{host} printed {size(left_out)} more than toolkit keeps in memory"
            beside += f"\ntoolkit: {what}; to see all of it: toolkit exec {host} -- COMMAND\n"
        return replace(done, stdout=output, stderr=beside + done.stderr)

    @property
    def main(self) -> ContainerRunner:
        """The runner inside main's container."""
        return self.container(self.inventory.main)
