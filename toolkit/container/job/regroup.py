"""What an elastic launcher is told, and done for it, when ranks or hosts of an attempt are gone."""

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
from toolkit.container.job.rank_records import End, Record
from toolkit.container.job.sweep import hang_up
from toolkit.container.job_file import Host, Job
from toolkit.protocol.exit_codes import EXIT_LOST

TICK_S = 0.05
LATEST_S = 1.0  # how long a launcher that fails is ahead of what is heard of its ranks


class Regroup:
    """The side of an attempt that is elastic.

    Args:
        launch: starts the launch of this number.
        running: the launches that have been started.
        may_go_on: whether the launcher may go on after this end of some ranks, on these hosts; then it is
            told to everybody.
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
        self.left: dict[str, str | None] = {}  # why nobody can say that hosts that are out have nothing left
        self.since = -math.inf  # when ranks were last started again

    @property
    def names(self) -> list[str]:
        """The hosts that take part."""
        return self._members.names

    def start(self) -> None:
        """Start the launches of those that take part at first."""
        say_who_is_there(self._job, self._members.hosts)
        reserve = {host["name"] for host in reserve_of(self._job)}
        for index, launch in enumerate(self._job["launches"]):
            if launch["host"] not in reserve:
                self._launch(index)

    def survives_launch(self, end: End, running: Running, code: int) -> bool:
        """Whether all goes on after the end of a launch, without its host."""
        return launcher_goes_on(self._job, code) and self._goes_on(end, running.launch["host"])

    def survives(self, end: End) -> bool:
        """Whether all goes on after the death of a rank or the loss of a host."""
        return self._goes_on(end, host_that_goes(self._job, end.host, end.code == EXIT_LOST))

    def latest(self, host: str) -> list[Record]:
        """The ranks that have failed since ranks were last started again; waits until they are heard of.

        Args:
            host: of the launch that has failed; those of other hosts fail for its sake.
        """
        several = len(self._job["launches"]) > 1
        until = time.monotonic() + LATEST_S
        while True:
            found = self._leases.deaths(self.since)
            own = [record for record in found if record["host"] == host or not several]
            if own or self._leases.is_lost(host) or time.monotonic() > until:
                return own
            time.sleep(TICK_S)

    def _goes_on(self, end: End, gone: str) -> bool:
        """Let the launcher start its ranks again, without the host that is gone if one is, where it can."""
        before = self._members
        members = before.without(gone, self._leases.there()) if gone else before
        if members is None or not self._may_go_on(end, members.hosts):
            return False
        self._members, self.since = members, time.monotonic()
        if gone:
            self._leave_out(gone)
            for host in members.hosts:
                if host not in before.hosts:
                    self._take_in(host["name"])
            say_who_is_there(self._job, members.hosts)
            # Those of torchrun would wait for the ones that are gone as long as Gloo or NCCL does; those of
            # Horovod are not to be killed, for they keep what they have learned.
            if self._job["launcher"] == "torchrun":
                self._leases.interrupt(set(before.names) - {gone})
        return True

    def _leave_out(self, host: str) -> None:
        for running in self._running:
            if running.launch["host"] == host and self._job["launcher"] == "torchrun":
                running.out = True
                running.process.kill()
        hang_up(self._job["id"], host)
        if self._leases.is_lost(host):
            self.left[host] = "it was lost and left out"
            self._leases.leave(host)
        else:
            self._leases.interrupt([host])

    def _take_in(self, host: str) -> None:
        for index, launch in enumerate(self._job["launches"]):
            if launch["host"] == host:
                self._launch(index)
