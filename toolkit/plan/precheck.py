"""Precheck of a plan: one command per host that queries for all steps whether they are done.

Without the precheck each step asks on its own, and a plan of ten phases with nothing to do costs ten round
trips. The answers are valid until the plan changes something.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from toolkit.core.command import Command, script
from toolkit.plan.context import Context, Verdict
from toolkit.plan.executors import (
    run_question,
    run_verdict,
    upload_question,
    upload_verdict,
    wait_question,
    wait_verdict,
)
from toolkit.plan.steps import Run, Step, Upload, WaitFor
from toolkit.protocol.frames import FrameError, framed_script, read_frames

# The functions that build the query and read the answer. Steps of other kinds are planned only if there is
# something to do, or take too long to check, such as data; these are always executed.
_KINDS: dict[type, tuple[Callable[..., Command | None], Callable[..., Verdict | None]]] = {
    Run: (run_question, run_verdict),
    Upload: (upload_question, upload_verdict),
    WaitFor: (wait_question, wait_verdict),
}
_LIMIT_S = 60.0


def known_answers(steps: Mapping[int, Step], context: Context) -> dict[int, str]:
    """Return the answers that the facts contain, by step number; they cost no query."""
    known = {number: _known(step) for number, step in steps.items()} if context.recent else {}
    return {number: answer for number, answer in known.items() if answer is not None}


def precheck_host(host: str, steps: Mapping[int, Step], context: Context) -> dict[int, str]:
    """Return the host's answers by step number, for steps that might have nothing to do.

    Args:
        steps: of this host, by their numbers.

    Raises:
        ToolkitError: the host cannot be reached any more.
    """
    answers = known_answers(steps, context)
    questions = (
        (number, _question(step, context)) for number, step in steps.items() if number not in answers
    )
    queries = {number: question for number, question in questions if question is not None}
    if not queries:
        return answers
    nonce = secrets.token_hex(8)
    result = context.runners[host].run(_all_of(queries, nonce), _LIMIT_S)
    try:
        frames = read_frames(result.raw, nonce)
    except FrameError:  # then each step queries its host
        return answers
    return answers | {number: frames[str(number)] for number in queries if str(number) in frames}


def precheck_verdict(step: Step, context: Context, answer: str) -> Verdict | None:
    """Return the outcome of a step from the host's answer, None if there is something to do."""
    verdict: Verdict | None = _KINDS[type(step)][1](step, context, answer)
    return verdict


def _known(step: Step) -> str | None:
    """Return the answer that follows from the facts, None if the host must be queried."""
    if isinstance(step, Run | Upload):
        return step.known
    return "" if isinstance(step, WaitFor) and step.known else None


def _question(step: Step, context: Context) -> Command | None:
    ask: Any = _KINDS.get(type(step))
    return None if ask is None else ask[0](step, context)


def _all_of(questions: Mapping[int, Command], nonce: str) -> Command:
    """Return one script that prints a section for each query that succeeds."""
    lines = (
        f'said=$({query.shell()} </dev/null 2>/dev/null) && say {number} "$said"'
        for number, query in questions.items()
    )
    return Command(script(framed_script("\n".join(lines), nonce)).argv, translated=True)
