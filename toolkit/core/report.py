"""Report of a plan: one outcome for every step on every host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Literal

from toolkit.core.printable import counted
from toolkit.errors import ToolkitError
from toolkit.protocol.decode import DecodeError, decode

Status = Literal["ok", "skipped", "failed", "not run"]


class FailureCause(str, Enum):
    """A cause of a failure that code branches on, instead of the text of ``detail``."""

    OTHER = ""
    PORT_TAKEN = "port taken"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Outcome:
    """One step on one host.

    Args:
        detail: for users; for a step that was not run, why its targets are missing or what is unknown.
        output: output that the step was to read.
        amounts: transferred amounts. For an image: ``bytes`` received, ``from_here`` sent by this machine,
            ``layers`` received, ``of`` layers in total, and ``transfer_ms`` from the first
            connection to the last byte.
        proof: the step only checked, and changed nothing.
        id: names the step in every plan of one command; the title by default, see ``WaitFor``.
        cause: cause of the failure, if code branches on it.
    """

    phase: str
    step: str
    host: str
    status: Status
    seconds: float = 0.0
    detail: str = ""
    fix: str = ""
    output: str = ""
    amounts: tuple[tuple[str, int], ...] = ()
    proof: bool = False
    id: str = ""
    cause: FailureCause = FailureCause.OTHER

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the step on its host, the same in every plan of one command."""
        return self.phase, self.id or self.step, self.host

    @property
    def done(self) -> bool:
        """True if the step was done or had nothing to do."""
        return self.status in ("ok", "skipped")

    @property
    def changed(self) -> bool:
        """True if the step created, removed or changed something."""
        return self.status == "ok" and not self.proof


@dataclass(frozen=True)
class Report:
    """All outcomes of a plan, in plan order."""

    title: str
    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0

    def __repr__(self) -> str:
        result = "ok" if self.ok else "failed"
        steps, changes = counted(len(self.outcomes), "step"), counted(self.changes, "change")
        return f"Report({self.title!r}, {result}, {steps}, {changes})"

    @property
    def ok(self) -> bool:
        """True if every step was done or had nothing to do; a step that was not run counts as not done."""
        return all(o.done for o in self.outcomes)

    @property
    def changes(self) -> int:
        """The number of steps that changed something."""
        return sum(o.changed for o in self.outcomes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The failed outcomes, without the steps that were not run because of them."""
        return tuple(o for o in self.outcomes if o.status == "failed")

    def hosts(self) -> tuple[str, ...]:
        """Host names in the order in which they first appear."""
        return tuple(dict.fromkeys(o.host for o in self.outcomes))

    def of(self, host: str) -> tuple[Outcome, ...]:
        """Return the outcomes on one host."""
        return tuple(o for o in self.outcomes if o.host == host)

    def after(self, before: Report | None) -> Report:
        """Merge this report with that of the plan that was run before it.

        Every outcome of both is kept. If both have the same step on the same host, the later outcome
        replaces the earlier one, with two exceptions: a step that the second plan did not run stays
        failed, and a step that had nothing left to do stays done.
        """
        if before is None:
            return self
        later = dict(_numbered(self.outcomes))
        merged = [_settle(o, later.pop(key, None)) for key, o in _numbered(before.outcomes)]
        seconds = before.seconds + self.seconds
        return replace(self, outcomes=(*merged, *later.values()), seconds=seconds)

    def as_json(self) -> dict[str, Any]:
        """Return the form that ``--json`` prints."""
        return {
            "title": self.title,
            "ok": self.ok,
            "changes": self.changes,
            "seconds": round(self.seconds, 3),
            "outcomes": [_as_json(o) for o in self.outcomes],
        }


def _numbered(outcomes: Iterable[Outcome]) -> Iterable[tuple[object, Outcome]]:
    """Pair each outcome with its key; steps of one plan that share a key get different numbers."""
    seen: Counter[object] = Counter()
    for outcome in outcomes:
        seen[outcome.key] += 1
        yield (outcome.key, seen[outcome.key]), outcome


def _settle(before: Outcome, after: Outcome | None) -> Outcome:
    """Return the outcome that counts of two of the same step; see ``Report.after``."""
    if after is None or (before.status, after.status) in (("failed", "not run"), ("ok", "skipped")):
        return before
    return after


class PlanFailed(ToolkitError):
    """A plan failed on some host; ``report`` has the outcome of every step on every host."""

    def __init__(self, report: Report) -> None:
        self.report = report
        reported = [one for one in report.outcomes if one.status == "failed" or one.fix]
        lines = "".join(f"\n  {one.host}: {one.step}: {one.detail}" for one in reported)
        fixes = dict.fromkeys(one.fix for one in reported if one.fix)
        super().__init__(f"{report.title} failed{lines}", "\n".join(fixes))


def refuse_failed(report: Report) -> Report:
    """Return the report if every step succeeded.

    Raises:
        PlanFailed: a step failed on some host.
    """
    if not report.ok:
        raise PlanFailed(report)
    return report


def _as_json(outcome: Outcome) -> dict[str, Any]:
    found = asdict(outcome)
    del found["id"]
    for name in ("proof", "cause"):
        if not found[name]:
            del found[name]
    # Left out if empty: most steps transfer nothing.
    return {**found, "amounts": dict(outcome.amounts)} if found.pop("amounts") else found


_Row = tuple[str, str, float, float]
# In place of a host: the machine that the command runs on.
HERE = "your machine"


@dataclass(frozen=True)
class Span:
    """A time span of a host.

    Args:
        phase: name of the phase in the plan, or ``connect``.
        begin: seconds since the common start of all spans of the list.
        seconds: duration.
    """

    phase: str
    host: str
    begin: float
    seconds: float

    @property
    def end(self) -> float:
        return self.begin + self.seconds


def from_phase(spans: Iterable[Span], phase: str) -> tuple[Span, ...]:
    """Return the spans relative to the begin of this phase, or to the first span if the phase is missing."""
    rows = tuple(spans)
    zero = min((span.begin for span in rows if span.phase == phase), default=None)
    if zero is None:
        zero = min((span.begin for span in rows), default=0.0)
    return tuple(Span(span.phase, span.host, span.begin - zero, span.seconds) for span in rows)


def spans_json(spans: Iterable[Span]) -> list[list[Any]]:
    """Return rows for a file; ``parse_spans`` reads them."""
    return [[span.phase, span.host, round(span.begin, 3), round(span.seconds, 3)] for span in spans]


def parse_spans(value: object) -> tuple[Span, ...]:
    """Return the spans of such rows; empty for any other value, such as the rows of another version."""
    try:
        return tuple(Span(*row) for row in decode(tuple[_Row, ...], value))
    except DecodeError:
        return ()
