"""One attempt of a job: its leases and launches, its cause of end, and its end on every host."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from toolkit.container.conventions import HEARTBEAT_S, LEASE_S, exit_code_of, job_folder
from toolkit.container.job.exec_mode import ALL_ENDED, EXEC, RANKS_ENDED
from toolkit.container.job.launch import Running
from toolkit.container.job.lease_client import BLAMED_S, Leases
from toolkit.container.job.rank_records import End, blame, blames_another, first_cause, words
from toolkit.container.job.regroup import Regroup
from toolkit.container.job.threads import Owned
from toolkit.container.job_file import Host, Job, grace_of
from toolkit.protocol.outcomes import EXIT_LOST, EXIT_NO_LOG

TICK_S = 0.05
DRAIN_S = 0.5  # time that a process can hold the pipe of its exited launch open
# Grace of ranks whose peers are gone: they wait in vain and cannot save a checkpoint together.
FAILED_GRACE_S = 2.0


class State(Enum):
    """State of an attempt, in order; an attempt can skip states."""

    RUNNING = "launches run"
    ENDING_RANKS = "ranks received SIGTERM and have a grace period; launches have not received a signal yet"
    STOPPING = "launches received the request to stop"
    KILLING = "every process of the job is killed immediately"
    OVER = "every launch has exited, except daemons that serve other launches"


class Progress(NamedTuple):
    """Facts that determine the next state.

    Args:
        under_way: a launch runs that does not only serve others.
        ends: the cause of the end is known.
        at_once: the user requested an end without grace.
        ranks_ended: launches no longer have to wait for ranks.
    """

    under_way: bool
    ends: bool = False
    at_once: bool = False
    ranks_ended: bool = False


def next_state(state: State, seen: Progress) -> State:
    """Return the next state, or the same one if nothing changes it.

    Ranks receive TERM before an attempt is over, even if no launch runs any more.
    """
    if state is State.RUNNING and seen.ends:
        return State.KILLING if seen.at_once else State.ENDING_RANKS
    if state in (State.ENDING_RANKS, State.STOPPING) and seen.at_once:
        return State.KILLING
    if state is State.ENDING_RANKS and seen.ranks_ended:
        return State.STOPPING
    return state if seen.under_way else State.OVER


def _blames_another(end: End) -> bool:
    return bool(end.record) and blames_another(end.record)


class Attempt:
    """An attempt, from the start of the launches to the orphan cleanup of all hosts.

    Args:
        write: receives output of the ranks.
        say: receives a line of toolkit: the reason of the end, as soon as it is known.
        over: returns the reason of an end from outside, None while there is none.
        may_go_on: whether an elastic launcher can continue after this end of some ranks, on these hosts; if
            so, it takes their slots and reports that to the user.
    """

    def __init__(
        self,
        job: Job,
        leases: Leases,
        write: Callable[[bytes], None],
        say: Callable[[str], None],
        over: Callable[[], End | None],
        may_go_on: Callable[[End, Sequence[Host]], bool],
    ) -> None:
        self.job = job
        self.leases = leases
        self._write = write
        self._say = say
        self._over = over
        self._running: list[Running] = []
        self._regroup: Regroup | None = None
        if job["elastic"]:
            self._regroup = Regroup(job, leases, self._launch, self._running, may_go_on)
        self._selector = selectors.DefaultSelector()
        self._state = State.RUNNING
        self._end: End | None = None
        self._threads: list[Owned] = []  # threads that end ranks while output is still copied
        self._ranks_end: Owned | None = None  # the thread that gives ranks their grace
        self._grace_over = 0.0
        self._told_launches = 0.0  # time of the order to stop the launches
        self._launcher_failed = False  # if so, it is ending its ranks already

    def start(self) -> None:
        if self._regroup is not None:
            if error := self._regroup.start():
                self._ends(End("failed", EXIT_NO_LOG, error))
        else:
            for index in range(len(self.job["launches"])):
                self._launch(index)

    def _launch(self, index: int) -> None:
        running = Running(self.job, index)
        self._running.append(running)
        assert running.process.stdout is not None
        os.set_blocking(running.process.stdout.fileno(), False)
        self._selector.register(running.process.stdout, selectors.EVENT_READ, running)

    def run(self, again: Callable[[End], bool]) -> tuple[End, dict[str, str | None]]:
        """Run to the end; return it, and for each host None or the reason why its cleanup is unknown.

        Args:
            again: whether another attempt follows such an end; if so, hosts keep what it needs.
        """
        while self._state is not State.OVER:
            self._step()
        end = self._end or End("succeeded", 0, "")
        grace = self._grace()
        for running in self._running:
            running.stop(grace)
        if self._ranks_end is not None and not end.wanted:
            self._ranks_end.join()
        if self._told_launches:  # they received TERM and used some of the grace
            grace = max(min(1.0, grace), self._told_launches + grace - time.monotonic())
        grace = self._rest(grace)
        left = self.leases.end(grace, keep=again(end))
        if self._regroup is not None:
            left = {**self._regroup.left, **left}
        for running in self._running:
            self._drain(running)
        self._selector.close()
        for running in self._running:
            running.close()
        return end, left

    @property
    def cause(self) -> End | None:
        """Return the end of this attempt; None while it continues."""
        return self._end

    def abandon(self) -> None:
        """Stop the launches after an error of the supervisor."""
        for running in self._running:
            running.stop(0.0)

    def _is_under_way(self) -> bool:
        return any(running.code is None for running in self._running if not running.launch["serves"])

    def _grace(self) -> float:
        grace = grace_of(self.job)
        return grace if self._end is None or self._end.wanted else min(grace, FAILED_GRACE_S)

    def _rest(self, grace: float) -> float:
        """Return the grace of the remaining processes after the ranks have had theirs.

        In a failed job they have nothing to save. If Open MPI 4.1 receives TERM while it is about to exit, it
        crashes with a trace in the log.
        """
        failed = self._end is not None and not self._end.wanted
        return 0.0 if failed and self._ranks_end is not None else grace

    def _step(self) -> None:
        for key, _ in self._selector.select(TICK_S):
            self._read(key.data)
        now = time.monotonic()
        for running in self._running:
            if running.code is not None:
                continue
            returncode = running.process.poll()
            if returncode is None:
                continue
            running.ended = running.ended or now
            if self._is_open(running) and now < running.ended + DRAIN_S:
                continue
            running.code = exit_code_of(returncode)
            # A launch that serves the others must not end before them, not even with exit code 0.
            failed = running.code != 0 or (running.launch["serves"] and self._is_under_way())
            if failed and self._end is None and not running.out:
                over = self._over()
                # A requested end is the cause, also if a launch has ended at the same time.
                end = over if over is not None and over.wanted else self._failed(running, running.code)
                if self._regroup is None and _blames_another(end) and now < running.ended + BLAMED_S:
                    running.code = None  # the report of the blamed rank can still arrive
                    continue
                goes_on = (
                    self._regroup is not None
                    and not end.wanted
                    and self._regroup.survives_launch(end, running, running.code)
                )
                if not goes_on:
                    self._ends(end)
                    self._launcher_failed = True
        if self._end is None and (cause := self._over() or self._lost() or self._died()) is not None:
            cause = cause if cause.wanted else self._stood_still() or cause
            if cause.wanted or self._regroup is None or not self._regroup.survives(cause):
                self._ends(cause)
        while (state := next_state(self._state, self._progress())) is not self._state:
            self._enter(state, now)
        if self._end is not None:
            self._end_late_launches(now)

    def _failed(self, running: Running, code: int) -> End:
        """Return the failure of a launch, by its first known cause."""
        # A launcher also notices a lost host, but it reports neither the reason nor the host.
        if lost := self._stood_still() or self._lost():
            return lost
        if self._regroup is None:
            records = self.leases.records()
            reported = any(each["exit_code"] for each in records if each["host"] == running.launch["host"])
            # ssh can exit shortly before the lease next to it does; by now the lease has been queried, too.
            if not reported and (lost := self._lost()):
                return lost
        else:
            records = self._regroup.latest(running.launch["host"])
            if lost := self._lost():
                return lost
        code, reason, record = blame(self.job, records, running.launch["host"], running.name, code)
        return End("failed", code, reason, record.get("host", running.launch["host"]), record)

    def _ends(self, end: End) -> None:
        self._end = end
        self._say(end.reason)

    def _stood_still(self) -> End | None:
        """Return the end if main stalled so long that hosts have ended their ranks."""
        seconds = self.leases.stood_still()
        if seconds < LEASE_S - 2 * HEARTBEAT_S:
            return None
        main = self.job["main"]
        reason = f"{main} stalled for {seconds:.0f} s, so the hosts have stopped the job's ranks"
        return End("failed", EXIT_LOST, reason, main)

    def _lost(self) -> End | None:
        lost = self.leases.lost(self._regroup.names if self._regroup else ())
        if not lost:
            return None
        return End("failed", EXIT_LOST, f"{lost[0]} is lost: {lost[1]}", lost[0], lost_host=lost[0])

    def _died(self) -> End | None:
        """Return the end if a rank has failed; launchers notice that late, or never if another rank hangs."""
        deaths = self.leases.deaths(self._regroup.since) if self._regroup else self.leases.deaths()
        record = first_cause(self.job, deaths)
        if record is None:
            return None
        return End("failed", int(record["exit_code"]), words(record), record["host"], record)

    def _progress(self) -> Progress:
        if self._end is None:
            return Progress(self._is_under_way())
        for thread in self._threads:
            thread.check()
        at_once = self._end.wanted and self._grace() == 0
        ranks_ended = self._state is State.ENDING_RANKS and self._ranks_have_ended()
        return Progress(self._is_under_way(), True, at_once, ranks_ended)

    def _enter(self, state: State, now: float) -> None:
        """Perform the first action of a new state: end the ranks first, then the launches."""
        self._state = state
        grace = self._grace()
        if state is State.ENDING_RANKS:
            self._ranks_end = self._in_background(lambda: self.leases.end(grace, ranks=True))
            self._grace_over = time.monotonic() + grace
        elif state is State.KILLING:
            self._in_background(lambda: self.leases.end(0.0))
        if state in (State.STOPPING, State.KILLING) and not self._told_launches:
            self._told_launches = now
            for running in self._running:
                running.stop(self._rest(grace))

    def _in_background(self, work: Callable[[], object]) -> Owned:
        thread = Owned(work)
        self._threads.append(thread)
        thread.start()
        return thread

    def _end_late_launches(self, now: float) -> None:
        """Kill launches that do not follow the order to stop, or that cannot receive it."""
        assert self._end is not None
        # launch.py enforces the grace itself, but might be unreachable through ssh
        patience = 5.0 if self._end.wanted else 1.0
        is_late = bool(self._told_launches) and now > self._told_launches + self._grace() + patience
        for running in self._running:
            # The connection to a lost host is dead: its local process would wait forever.
            astray = self.leases.is_lost(running.launch["host"])
            if (is_late or astray) and running.process.poll() is None:
                running.process.kill()

    def _ranks_have_ended(self) -> bool:
        """Return whether the launches can receive the order to stop.

        If the launcher received it first, ranks would get less than their grace: Open MPI gives them one
        second, and torchrun sends a TERM of its own.
        """
        # A failed launcher ends the ranks that it can still reach. With one launch for
        # each host, the ranks of other hosts are not affected.
        if self._launcher_failed and len(self.job["launches"]) == 1:
            return True
        assert self._ranks_end is not None
        return not (self._ranks_end.is_alive() or self._others_have_grace())

    def _others_have_grace(self) -> bool:
        """Return whether ranks of other parts of the job can still use their grace, unknown to this host.

        The launcher ends them on all hosts after its order to stop.
        """
        if self.job["transport"] != EXEC or self._end is None or not self._end.wanted:
            return False
        folder = job_folder(self.job["id"])
        with suppress(OSError):  # on a full disk the time limit decides
            (folder / RANKS_ENDED).touch()
        return not (folder / ALL_ENDED).exists() and time.monotonic() < self._grace_over

    def _is_open(self, running: Running) -> bool:
        return running.process.stdout in self._selector.get_map()

    def _read(self, running: Running) -> bool:
        stdout = running.process.stdout
        assert stdout is not None
        try:
            data = os.read(stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self._write(running.merger.feed(data))
        else:
            self._selector.unregister(stdout)
            self._write(running.merger.close())
            with suppress(subprocess.TimeoutExpired):  # the process exits shortly after the end of its output
                running.process.wait(TICK_S)
        return bool(data)

    def _drain(self, running: Running) -> None:
        until = time.monotonic() + DRAIN_S  # a process that could not be ended can print forever
        while self._is_open(running) and self._read(running) and time.monotonic() < until:
            pass
        self._write(running.merger.close())
