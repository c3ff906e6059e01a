"""What `why` has found out, as a value, and the words in which it is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.diagnose.evidence import Evidence


@dataclass(frozen=True)
class Verdict:
    """What holds a job up, or what ended it.

    Args:
        kind: see ``Doing``; also link, apart (different collectives), host, end, runs, unclear.
        what: in one line, with rank and host.
        fix: what to do next.
        ranks, hosts: those to blame; empty for nobody.
    """

    kind: str
    what: str
    fix: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


FIXES: Mapping[str, str] = {
    "stopped": "find who stopped it; toolkit exec HOST -- kill -CONT PID lets it go on",
    "disk": "look at that disk or share on HOST (dmesg, df, mount); such a process cannot even be killed",
    "failed": "toolkit logs --rank RANK has its last words; the others wait for it in vain: toolkit stop",
    "gone": "toolkit logs --rank RANK has its last words; dmesg on HOST tells of kills for want of memory",
    "ended": "every rank has to make as many steps as the others: look at how data are divided (drop_last)",
    "absent": "toolkit logs shows how far the launcher came; toolkit status shows the containers",
    "handler": "what it says is in its own exception: let it be raised before any collective or clean-up",
    "sleep": "the line that it stands at keeps it from its step; look at why it waits there",
    "lock": "look at who should release or fill it: a thread or process of that rank, dead or waiting too",
    "child": "look for a kill for want of memory (dmesg on HOST), and give the queue a timeout",
    "file": "look at that file on HOST: a full or silent share, a pipe that nobody reads or writes",
    "network": "look at whom it connects to; toolkit check tells whether hosts reach each other",
    "spin": "a loop without an end, or much more work than others have: look at the line that it stands at",
    "code": "look at the line that it stands at, and at its stack in the bundle",
    "gpu": "its GPU works on; look at nvidia-smi on HOST and at dmesg for Xid",
    "collective": "look at the line that it stands at",
    "apart": "all ranks have to make the same calls in the same order: look for an if that asks for the rank",
    "link": "toolkit check tries every pair of hosts; look at cable, switch and firewall between the two",
    "host": "toolkit status; look at HOST itself (power, network, load), then toolkit up",
}


def ended(state: str) -> str:
    """How a job that is over has ended, as in "the job has been stopped"."""
    words = {"failed": "failed", "stopped": "been stopped", "timeout": "run out of time", "lost": "been lost"}
    return words.get(state, state)


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks in words.

    >>> ranks_text([3]), ranks_text([0, 2]), ranks_text([0, 1, 2, 3])
    ('rank 3', 'ranks 0, 2', 'ranks 0–3')
    """
    rows = sorted(ranks)
    if len(rows) == 1:
        return f"rank {rows[0]}"
    if len(rows) > 2 and rows == list(range(rows[0], rows[-1] + 1)):
        return f"ranks {rows[0]}–{rows[-1]}"
    shown = ", ".join(map(str, rows[:8]))
    return f"ranks {shown}" + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")


def of_several(what: str) -> str:
    """What one rank does, said of several.

    >>> of_several("waits in barrier"), of_several("has ended"), of_several("is stopped")
    ('wait in barrier', 'have ended', 'are stopped')
    """
    verb, blank, rest = what.partition(" ")
    return {"is": "are", "has": "have"}.get(verb, verb.removesuffix("s")) + blank + rest


def where_text(evidence: Evidence, ranks: Sequence[int]) -> str:
    """Ranks in words, with their hosts."""
    hosts = list(dict.fromkeys(evidence.placed[rank] for rank in ranks))
    return f"{ranks_text(ranks)} on {', '.join(hosts[:3])}" + (" and others" if len(hosts) > 3 else "")
