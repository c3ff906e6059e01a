"""Run container/check/container_probe.py on many hosts: all listen before any connects, and end together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from toolkit.cluster.probe_containers import ENDED, Look, Looked, last_words, parse_line, targets_line
from toolkit.core.answers import LineStream, answer_of
from toolkit.core.engines import ENGINE_FAILED
from toolkit.core.runner import Runner
from toolkit.errors import ToolkitError
from toolkit.protocol.decode import whole
from toolkit.protocol.probes import LookReport

# Seconds for a container to start and for all connections; a program exits some time after both.
_LISTEN_SECONDS, _REPORT_SECONDS = 12.0, 10.0
# Seconds after that until a program has exited, and the last lines of other output that are kept.
_EXIT_SECONDS, _LINES = 60.0, 100


def look_inside(looks: Sequence[Look], runners: Mapping[str, Runner]) -> dict[str, Looked]:
    """Run the programs and return the report of each, or its error."""
    if not looks:
        return {}
    round_ = _Round(looks)
    # One thread for each program, because every one of them waits for all others.
    pool = ThreadPoolExecutor(len(looks), thread_name_prefix="look")
    try:
        futures = {look.host: pool.submit(round_.hold, look, runners[look.host]) for look in looks}
        found = {host: future.result() for host, future in futures.items()}
    except BaseException:
        round_.abandon()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(wait=True)
    return found


class _Round:
    """The state of one run: hosts that listen, hosts that have reported, hosts that are gone."""

    def __init__(self, looks: Sequence[Look]) -> None:
        self.looks = looks
        self.changed = threading.Condition()
        self.ports: dict[str, Mapping[str, int]] = {}
        self.reports: dict[str, LookReport] = {}
        self.times: dict[str, tuple[float, float]] = {}
        self.gone: set[str] = set()
        self.statuses: dict[str, int] = {}
        self.listen_by = time.monotonic() + _LISTEN_SECONDS
        self.report_by = self.listen_by + _REPORT_SECONDS

    def abandon(self) -> None:
        with self.changed:
            self.gone.update(look.host for look in self.looks)
            self.changed.notify_all()

    def hold(self, look: Look, runner: Runner) -> Looked:
        lines: deque[str] = deque(maxlen=_LINES)
        came = LineStream(look.host)

        def sink(data: bytes) -> None:
            if time.monotonic() > self.report_by + _EXIT_SECONDS:
                fix = "toolkit image inspect  # also fails if Python in the image is the cause"
                raise ToolkitError("the test program in the container does not stop printing", fix, look.host)
            for line in came.take(data):
                with answer_of(look.host, "the report of the test program"):
                    self._hear(look.host, line, lines)

        try:
            result = runner.stream(look.command, sink, self._words(look))
            if look.host not in self.ports and self.statuses.get(look.host) in ENGINE_FAILED:
                with self.changed:
                    self.gone.discard(look.host)
                lines.clear()
                result = runner.stream(look.command, sink, self._words(look))
        except ToolkitError as error:
            return Looked(error=error.what, up=look.up)
        finally:
            with self.changed:
                self.gone.add(look.host)
                self.changed.notify_all()
        if look.host not in self.reports:
            words = last_words([*lines, *result.stderr.splitlines()])
            return Looked(error=words, up=look.up, status=self.statuses.get(look.host, 0))
        report = self.reports[look.host]
        sent, answered = self.times[look.host]
        ahead = report.now - (sent + answered) / 2
        return Looked(report, "", ahead, (answered - sent) / 2, look.up)

    def _hear(self, host: str, data: bytes, lines: deque[str]) -> None:
        with self.changed:
            answer = parse_line(data)
            if answer is None:
                line = data.decode(errors="replace")
                if line.startswith(ENDED):
                    self.gone.add(host)
                    status = whole(line.removeprefix(ENDED).strip(), 255)
                    self.statuses[host] = 1 if status is None else status
                else:
                    lines.append(line)
            elif isinstance(answer, LookReport):
                self.reports[host] = answer
                self.times[host] = (self.times.get(host, (0.0, 0.0))[0], time.time())
            else:
                self.ports[host] = answer.ports
            self.changed.notify_all()

    def _words(self, look: Look) -> Iterator[bytes]:
        """Yield the standard input of a host's program; the program exits at its end."""
        yield look.head
        self._wait(self.ports, self.listen_by)
        with self.changed:
            self.times[look.host] = (time.time(), 0.0)
            words = targets_line(look.host, self.looks, self.ports)
        yield words
        self._wait(self.reports, self.report_by)

    def _wait(self, done: Mapping[str, object], deadline: float) -> None:
        hosts = {look.host for look in self.looks}
        with self.changed:
            self.changed.wait_for(lambda: hosts <= done.keys() | self.gone, deadline - time.monotonic())
