"""Reaction of an elastic attempt to lost ranks or hosts: updates for its launcher."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from toolkit.container.job.elastic import (
    host_that_goes,
    launcher_goes_on,
    members_of,
    reserve_of,
    say_who_is_there,
)
from toolkit.container.job.launch import Running
from toolkit.container.job.lease_client import Leases
from toolkit.container.job.orphans import hang_up
from toolkit.container.job.rank_records import End, Record
from toolkit.container.job.restarts import slot_lock, taken_by_another
from toolkit.container.job_file import Host, Job
from toolkit.protocol.outcomes import EXIT_LOST

TICK_S = 0.05
LATEST_S = 1.0  # a failing launcher is at most this far ahead of the reports about its ranks


class Regroup:
    """Elastic part of an attempt.

    Args:
        launch: function that starts the launch with this number.
        running: the launches that have been started.
        may_go_on: whether the launcher can continue after this end of some ranks, on these hosts; if so, it
            takes their slots and reports that to the user.
    """

    def __init__(
        self,
        job: Job,
        leases: Leases,
        launch: Callable[[int], None],
        running: Sequence[Running],
        may_go_on: Callable[[End, Sequence[Host]], bool],
    ) -> None:
        self._job = job
        self._leases = leases
        self._launch = launch
        self._running = running
        self._may_go_on = may_go_on
        self._members = members_of(job)
        self.left: dict[str, str | None] = {}  # reasons why the cleanup of excluded hosts is unknown
        self.since = -math.inf  # time of the last restart of ranks

    @property
    def names(self) -> list[str]:
        """Return the hosts that take part."""
        return self._members.names

    def start(self) -> str:
        """Start the launches of the initial hosts; return the error, empty on success."""
        if error := say_who_is_there(self._job, self._members.hosts):
            return error
        reserve = {host["name"] for host in reserve_of(self._job)}
        for index, launch in enumerate(self._job["launches"]):
            if launch["host"] not in reserve:
                self._launch(index)
        return ""

    def survives_launch(self, end: End, running: Running, code: int) -> bool:
        """Return whether the attempt continues after the end of a launch, without its host."""
        return launcher_goes_on(self._job, code) and self._goes_on(end, running.launch["host"])

    def survives(self, end: End) -> bool:
        """Return whether the attempt continues after the death of a rank or the loss of a host."""
        return self._goes_on(end, host_that_goes(self._job, end.host, end.code == EXIT_LOST))

    def latest(self, host: str) -> list[Record]:
        """Return the ranks that failed since the last restart of ranks, by the clock of this host.

        Wait for their reports.

        Args:
            host: host of the failed launch; ranks of other hosts fail as a consequence.
        """
        several = len(self._job["launches"]) > 1
        until = time.monotonic() + LATEST_S
        while True:
            found = self._leases.deaths(self.since)
            own = [record for record in found if record["host"] == host or not several]
            if own or self._leases.is_lost(host) or time.monotonic() > until:
                return self._leases.by_own_clock(own)
            time.sleep(TICK_S)

    def _goes_on(self, end: End, gone: str) -> bool:
        """Let the launcher restart its ranks, without a lost host, if it can."""
        before = self._members
        with slot_lock():  # until the status lists the spare host, so that no other job takes its slots
            members = before.without(gone, self._usable()) if gone else before
            if members is None or (gone and say_who_is_there(self._job, members.hosts)):
                return False
            if not self._may_go_on(end, members.hosts):
                return False
        self._members, self.since = members, time.monotonic()
        if gone:
            self._leave_out(gone)
            for host in members.hosts:
                if host not in before.hosts:
                    self._take_in(host["name"])
            # Ranks of torchrun would wait for lost ranks until Gloo or NCCL times out; ranks of
            # Horovod must not be killed, because they keep their training state.
            if self._job["launcher"] == "torchrun":
                self._leases.interrupt(set(before.names) - {gone})
        return True

    def _usable(self) -> set[str]:
        """Return the hosts that answer and whose slots no other job has taken."""
        return set(self._leases.there()) - taken_by_another(self._job, self._members.reserve).keys()

    def _leave_out(self, host: str) -> None:
        for running in self._running:
            if running.launch["host"] == host and self._job["launcher"] == "torchrun":
                running.out = True
                running.process.kill()
        hang_up(self._job["id"], host)
        if self._leases.is_lost(host):
            self.left[host] = "the host was lost and excluded"
            self._leases.leave(host)
        else:
            self._leases.interrupt([host])

    def _take_in(self, host: str) -> None:
        for index, launch in enumerate(self._job["launches"]):
            if launch["host"] == host:
                self._launch(index)
