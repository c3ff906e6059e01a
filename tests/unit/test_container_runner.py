"""Commands in containers: what an accident of the engine's runtime does to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from toolkit.core.command import Command, command
from toolkit.core.result import Result
from toolkit.effects.runner import ContainerRunner, Sink

ACCIDENT = (
    "OCI runtime exec failed: exec failed: unable to start container process: waiting for init preliminary"
    " setup: read init-p: connection reset by peer: unknown"
)
ABSENT = (
    'OCI runtime exec failed: exec failed: unable to start container process: exec: "x": not found: unknown'
)


class Host:
    """Fails with these words first, then works. Engines say them where the command's output would come."""

    name = "gpu1"

    def __init__(self, *errors: str, place: str = "stdout") -> None:
        self.errors, self.calls, self.place = list(errors), 0, place

    def run(self, command: Command, timeout: float | None = None) -> Result:
        self.calls += 1
        return Result(126, **{self.place: self.errors.pop(0)}) if self.errors else Result(0, "fine")

    def stream(self, command: Command, sink: Sink, source: Iterable[bytes] | None = None) -> Result:
        result = self.run(command)
        for letter in result.stdout:
            sink(letter.encode())
        return Result(result.status, "", result.stderr)

    def follow(
        self,
        command: Command,
        out: Sink,
        err: Sink,
        source: Iterable[bytes] | None = None,
        timeout: float | None = None,
        hold: bool = False,
    ) -> Result:
        result = self.run(command, timeout)
        for sink, text in ((out, result.stdout), (err, result.stderr)):
            for letter in text:
                sink(letter.encode())
        return Result(result.status)


@pytest.mark.parametrize(
    ("errors", "calls", "status"),
    [((), 1, 0), ((ACCIDENT,), 2, 0), ((ACCIDENT, ACCIDENT), 2, 126), ((ABSENT,), 1, 126)],
)
def test_what_never_ran_for_an_accident_is_run_once_more(
    errors: tuple[str, ...], calls: int, status: int
) -> None:
    last = (*errors, "fine")[calls - 1]
    for way, place in itertools.product(("run", "limited", "stream", "follow"), ("stdout", "stderr")):
        host, heard = Host(*errors, place=place), []
        inside = ContainerRunner(host, "toolkit-demo-main")
        if way == "stream":
            result = inside.stream(command("true"), heard.append)
            assert b"".join(heard).decode() == (last if place == "stdout" or not status else "")
        elif way == "follow":
            beside: list[bytes] = []
            result = inside.follow(host, command("true"), heard.append, beside.append, 5.0)
            assert b"".join((*heard, *beside)).decode() == last
        else:
            result = inside.run(command("true"), 5.0 if way == "limited" else None)
            assert result.output == last
        assert (host.calls, result.status) == (calls, status), (way, place)


def test_what_was_fed_is_not_fed_again() -> None:
    host = Host(ACCIDENT)
    result = ContainerRunner(host, "toolkit-demo-main").stream(
        command("cat"), lambda data: None, iter([b"x"])
    )
    assert (host.calls, result.status) == (1, 126)
