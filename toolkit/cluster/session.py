"""The session of a command: connections to the hosts, and the answers of the hosts.

with Connection("hosts.yaml").connect() as session:  # toolkit.api.connection
    layout = observe_layout(session)
    report = session.execute(plan_up(layout, container_programs()))  # toolkit.lifecycle.up
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.cluster.applied import with_recorded_transport
from toolkit.cluster.connect import NO_EXECUTORS, Connected, Questions, try_networks
from toolkit.cluster.container_status import why_not_running
from toolkit.cluster.image_probe import choose_transport
from toolkit.cluster.layout import Layout, Observed, make_layout
from toolkit.cluster.ownership import refuse_foreign
from toolkit.core.command import Result, script
from toolkit.core.disk_space import size
from toolkit.core.finding import Finding
from toolkit.core.image import ImageFacts
from toolkit.core.report import PlanFailed, Report
from toolkit.core.runner import ContainerRunner, Sink
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import Evidence
from toolkit.plan.context import Executors
from toolkit.plan.execute import STALE_S, Listener, execute, reported_after
from toolkit.plan.steps import Plan
from toolkit.protocol.names import container_name
from toolkit.remote.fanout import Background
from toolkit.remote.local_image import LateEngine, local_image

if TYPE_CHECKING:
    from toolkit.remote.ssh import Trace

# Bytes of each output of a command that are kept in memory; all hosts can send theirs at the same time.
MOST_OUTPUT = 4 << 20


class _Kept:
    """One output of a command, up to ``MOST_OUTPUT`` bytes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.left_out = 0

    def __call__(self, data: bytes) -> None:
        taken = data[: MOST_OUTPUT - len(self.data)]
        self.data += taken
        self.left_out += len(data) - len(taken)


# Otherwise the error would contain the name of the program that limits the time. Arguments: host, command.
_IF_FOUND = """
host=$1; shift
command -v -- "$1" >/dev/null 2>&1 || { echo "$1: not found on $host" >&2; exit 127; }
exec "$@"
"""


class Session(Connected):
    """A cluster whose hosts have answered: connections, facts, and plans that run over them."""

    def __init__(
        self, inventory: Inventory, trace: Trace | None = None, executors: Executors = NO_EXECUTORS
    ) -> None:
        super().__init__(inventory, trace, executors)
        self._evidence: Evidence | None = None
        self.local_silence = ""
        self._local_image: Background[ImageFacts | None] | None = None
        # The hosts of the jobs that this session started, by job: see ``toolkit.jobs.exec_mode``.
        self.started: dict[str, tuple[str, ...]] = {}
        self.warn: Callable[[Finding], None] = lambda finding: None
        self._warned: set[tuple[str, str]] = set()

    @classmethod
    def open(
        cls,
        inventory: Inventory,
        hosts: Iterable[str] | None = None,
        trace: Trace | None = None,
        questions: Questions = (),
        container_sessions: bool = False,
        always: tuple[tuple[str, str], ...] = (),
        executors: Executors = NO_EXECUTORS,
        local_image: bool = False,
    ) -> Session:
        """Connect to the hosts (all of them by default) at once and probe each.

        Hosts that cannot be reached are in ``errors``; the others continue.

        Args:
            trace: called with host and line for each command, before it is run.
            questions, container_sessions: see ``Connected.meet``.
            always: probes that depend on the hosts file; ``probe_again`` repeats them.
            executors: run the steps of plans, see ``toolkit.api.executors``; without them no plan can run.
            local_image: query this machine's engine for the image meanwhile, see ``find_local_image``.
        """
        session = cls(inventory, trace, executors)
        session.always = always
        try:
            if local_image:
                session._begin_local_image()
            names = tuple(inventory.names if hosts is None else hosts)
            session.meet(names, questions, container_sessions)
            session._know_transport(names, questions, container_sessions)
        except BaseException:
            session.close()
            raise
        return session

    def _know_transport(
        self, requested: tuple[str, ...], questions: Questions, container_sessions: bool
    ) -> None:
        """Set the transport that the last `up` chose for ``transport: auto``, as the hosts have recorded it.

        With exec all hosts report jobs, so the others are connected if only the reporting host was requested.
        """
        file = self.inventory
        self.inventory = with_recorded_transport(file, self.facts)
        others = tuple(name for name in file.names if name not in requested)
        if not others or set(requested) != set(file.answering):
            return
        if not self.facts or self.inventory.in_parts:
            facts, errors = dict(self.facts), dict(self.errors)
            self.meet(others, questions, container_sessions)
            known = with_recorded_transport(file, {**facts, **self.facts})
            # A host that only ssh would need reports no jobs.
            self.facts = {**facts, **self.facts} if known.in_parts else facts
            self.errors = {**errors, **self.errors} if known.in_parts else errors
            self.inventory = known

    # Observed and wanted state

    def observe(self, running: bool = False) -> Observed:
        """Return the input of a layout; hosts try connections to each other if the network is not decided.

        Args:
            running: use the image of the running cluster. Otherwise use the image of the name in the hosts
                file: from this machine's engine if it has it, or from the hosts if they pull it.

        Raises:
            ToolkitError: no host answered, or this machine's engine does not describe the image.
        """
        self.require_some()
        pulled = self.inventory.pull != "never"
        local = None if running or pulled else self.find_local_image()
        return Observed(
            dict(self.facts),
            local,
            by_name=pulled and not running,
            evidence=self.try_networks(),
            running=running,
            errors=dict(self.errors),
            local_silence="" if running or pulled else self.local_silence,
        )

    def find_local_image(self) -> ImageFacts | None:
        """Return the image in this machine's engine, None without the image or without an engine.

        None too if the engine did not respond in time; ``local_silence`` is a sentence about that then.

        Raises:
            ImageError: the answer of the engine is invalid.
        """
        try:
            return self._begin_local_image().result()
        except LateEngine as late:  # the hosts can have the image
            self.local_silence = late.what
            return None

    def _begin_local_image(self) -> Background[ImageFacts | None]:
        """Query this machine's engine once; its client limits the duration."""
        if self._local_image is None:
            self._local_image = Background(
                "local image", lambda: local_image(self.inventory.image, self.inventory.engine)
            )
        return self._local_image

    def try_networks(self) -> Evidence:
        """Return results of connections between hosts if there is a choice of networks; tried once."""
        if self._evidence is None:
            self._evidence = try_networks(self.inventory, self.facts, self.runners)
        return self._evidence

    @property
    def settled(self) -> Evidence:
        """The results of connections between hosts, empty before they were tried."""
        return self._evidence or Evidence()

    def require_own(self) -> None:
        """Refuse to change anything if a cluster of this name is another user's; reading is allowed.

        Raises:
            NotReady: names that user.
        """
        for facts in self.facts.values():
            refuse_foreign(self.inventory.cluster, facts)

    def warn_once(self, finding: Finding) -> None:
        """Pass on a finding unless one of this check on this host was passed on before."""
        key = finding.check, finding.host
        if key not in self._warned:
            self._warned.add(key)
            self.warn(finding)

    @property
    def is_up(self) -> bool:
        """True if the cluster's containers run on all hosts that answered."""
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
        precheck: bool = False,
        without: Collection[str] = (),
    ) -> Report:
        """Run a plan; the hosts that did not answer have their outcome in the report as well.

        Args:
            precheck: see ``toolkit.plan.execute.execute``.
            without: hosts that take no part, so that their steps are "not run".

        Raises:
            PlanInterrupted: Ctrl-C; its report has the hosts that did not answer as well.
        """
        timed, engine = self.stopwatch.heard_by(listen), self.inventory.engine
        runners = {name: runner for name, runner in self.runners_in_use().items() if name not in without}
        silent = Report(plan.title, self.connect_outcomes())
        now = time.time()
        recent = all(
            0 <= now - self.replies[name].received < STALE_S for name in runners if name in self.replies
        )
        beside = (self.close, self.container_sessions, engine, precheck, recent)
        with reported_after(silent):
            report = execute(plan, runners, self.executors, timed, *beside)
        return report.after(silent)

    def pull(self, plan: Plan, listen: Listener = lambda event: None) -> Report:
        """Run a plan of ``toolkit.image.pull`` and probe the hosts again; failed hosts are left out.

        Merge the report with that of the next plan, see ``Report.after``.

        Raises:
            PlanFailed: no host is left for a next plan.
        """
        report = self.execute(plan, listen)
        lost = {outcome.host for outcome in report.failures}
        self.probe_again([name for name in self.facts if name not in lost])
        report = report.after(Report(plan.title, self.connect_outcomes()))
        if not self.facts:
            raise PlanFailed(report)
        return report

    # Containers

    def container(self, host: str, user: str = "") -> ContainerRunner:
        """Return a runner inside a host's container.

        Raises:
            NotReady: the host is not in the hosts file or did not answer, or no container of the cluster
                runs on it.
        """
        if host in self.errors:
            raise self.errors[host]
        if host not in self.inventory.names:  # a job's record can name any host
            raise NotReady(f"{host} is not in hosts.yaml", f"in hosts.yaml: add the host {host}", host)
        name = container_name(self.inventory.cluster, self.inventory.role(host))
        facts = self.facts[host]
        found = next((c for c in facts.containers if c.name == name), None)
        if found is None:
            what = f"the cluster is not up on this host: the host has no container {name}"
            raise NotReady(what, "toolkit up", host)
        if why := why_not_running(found, facts):
            raise NotReady(f"container {name} is not running: {why}", "toolkit up", host)
        return ContainerRunner(self.runners[host], name, user)

    def run_inside(self, host: str, argv: Sequence[str], timeout: float | None, *sinks: Sink) -> Result:
        """Run a command in a host's container; it is killed when the connection ends.

        Args:
            timeout: seconds after which it is ended, with status 124, or 137 if it ignores SIGTERM; None for
                no limit.
            sinks: for standard output and standard error as they arrive; without them the result has both,
                up to ``MOST_OUTPUT`` bytes each.

        Raises:
            NotReady: the host did not answer, or no container of the cluster runs on it.
        """
        kept_output = (_Kept(), _Kept())
        out, err = sinks or kept_output
        checked = script(_IF_FOUND, host, *argv)
        done = self.container(host).follow(self.runners[host], checked, out, err, timeout)
        output, beside = (bytes(kept.data).decode(errors="replace") for kept in kept_output)
        if left_out := sum(kept.left_out for kept in kept_output):
            what = f"the command on {host} printed {size(left_out)} more than toolkit keeps in memory"
            beside += f"\ntoolkit: {what}; to print the complete output: toolkit exec {host} -- COMMAND\n"
        return replace(done, stdout=output, stderr=beside + done.stderr)

    @property
    def main(self) -> ContainerRunner:
        """The runner inside main's container."""
        return self.container(self.inventory.main)


def wanted_layout(session: Session, observed: Observed) -> Layout:
    """Return the layout of the hosts file, and choose the transport for ``transport: auto``.

    Raises:
        ToolkitError: see ``make_layout`` and ``choose_transport``.
    """
    layout = make_layout(session.inventory, observed)
    local = observed.local_image
    here = local is not None and local.identity == layout.image.identity
    chosen = choose_transport(session.inventory, layout, here, session.runners)
    same = chosen.in_parts == session.inventory.in_parts
    session.inventory = chosen
    return replace(layout, inventory=chosen) if same else make_layout(chosen, observed)


def observe_layout(session: Session, running: bool = False) -> Layout:
    """Observe the hosts, return their layout, and leave out the hosts that it refuses.

    Args:
        running: see ``Session.observe``.
    """
    observed = session.observe(running)
    layout = make_layout(session.inventory, observed) if running else wanted_layout(session, observed)
    session.leave_out(layout.refused)
    return layout
