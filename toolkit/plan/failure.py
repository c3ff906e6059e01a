"""Ways to fail that a step knows of beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.core.report import FailureCause


@dataclass(frozen=True)
class Failure:
    """A way to fail that is known beforehand.

    Args:
        says: regular expression that is looked for in the command's output.
        what, fix: what to tell a person then, in place of a general hint.
        cause: of the outcome, where code decides on that.
    """

    says: str
    what: str
    fix: str
    cause: FailureCause = FailureCause.OTHER
