"""Verdict about a job from the evidence of its hosts: which rank blocks the others, why, and the fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.diagnose.evidence import Connection, Evidence
from toolkit.diagnose.rank_activity import Doing, doing, lead
from toolkit.protocol.states import FINAL_STATES

# This number of retransmissions takes more than half a second: it is no random packet loss.
_RETRIES = 2
_KILLED = 137
FINAL = (*FINAL_STATES, "lost")


@dataclass(frozen=True)
class Verdict:
    """The cause that blocks a job or ended it.

    Args:
        kind: see ``Doing``; also link, apart (different collectives), host, end, runs, unclear.
        what: in one line, with rank and host.
        fix: what to do next.
        ranks, hosts: the ones to blame; empty for none.
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
    "sleep": "look at why it waits at this line",
    "lock": "look at who should release or fill it: a thread or process of that rank, dead or waiting too",
    "child": "look for a kill for want of memory (dmesg on HOST), and give the queue a timeout",
    "file": "look at that file on HOST: a full or silent share, a pipe without a reader or writer",
    "network": "look at whom it connects to; toolkit check tells whether hosts reach each other",
    "spin": "an endless loop, or much more work than other ranks have: look at this line",
    "code": "look at this line, and at its stack in the bundle",
    "gpu": "its GPU works on; look at nvidia-smi on HOST and at dmesg for Xid",
    "collective": "look at this line",
    "apart": "all ranks have to make the same calls in the same order: look for an if that asks for the rank",
    "link": "toolkit check tries every pair of hosts; look at cable, switch and firewall between the two",
    "host": "toolkit status; look at HOST itself (power, network, load), then toolkit up",
}


def doings(evidence: Evidence) -> dict[int, Doing]:
    """Return the activity of each rank of the job."""
    found = {}
    for rank, name in enumerate(evidence.placed):
        host, seen = evidence.host(name), evidence.rank(rank)
        if host.error:
            found[rank] = Doing("silent", f"unknown: {name} {host.silence}")
        elif seen is None:
            found[rank] = Doing("absent", "has not been started yet")
        else:
            found[rank] = doing(seen)
    return found


def judge(evidence: Evidence) -> Verdict:
    """Return the best explanation of why the job does not continue, or why it has ended.

    What is certain comes before what is likely: a host that does not answer, a rank that is stopped or dead,
    a link over which nothing comes, then the rank that is elsewhere than those that wait for it.
    """
    if evidence.state in FINAL:
        return _end(evidence)
    found = doings(evidence)
    for kind in ("silent", "stopped", "failed", "gone"):
        if blamed := [rank for rank, one in found.items() if one.kind == kind]:
            return _silent(evidence, blamed) if kind == "silent" else _one(evidence, found, blamed)
    if any(host.error for host in evidence.hosts):
        return _silent(evidence, [])
    if verdict := _link(evidence):
        return verdict
    waiting = [rank for rank, one in found.items() if one.waits]
    if moving := [rank for rank in waiting if _moved(evidence, rank)]:
        what = (
            f"the job goes on: {where_text(evidence, moving)} waited for others and went on within the look"
        )
        return Verdict("runs", what, "run toolkit why again when it stalls")
    for kind in ("ended", "absent", "disk", "handler", "child"):
        blamed = [rank for rank, one in found.items() if one.kind == kind]
        # Near the end of a job some ranks finish before others.
        if blamed and len(blamed) < len(found) and (waiting or kind != "ended"):
            return _one(evidence, found, blamed)
    others = [rank for rank in found if rank not in waiting]
    if waiting and others:
        return _one(evidence, found, others)
    if waiting:
        return _all_wait(evidence, found)
    return _nobody_waits(evidence, found)


def _moved(evidence: Evidence, rank: int) -> bool:
    seen = evidence.rank(rank)
    process = lead(seen) if seen else None
    return process is not None and process.moved


def _one(evidence: Evidence, found: Mapping[int, Doing], blamed: Sequence[int]) -> Verdict:
    """Return the verdict about ranks that are not where the others wait; the most conclusive kind counts."""
    first = found[blamed[0]]
    waiting = [rank for rank, one in found.items() if one.waits and rank not in blamed]
    ops = Counter(found[rank].op for rank in waiting)
    rest = ""
    if waiting:
        op = ops.most_common(1)[0][0]
        verb = "waits" if len(waiting) == 1 else "wait"
        rest = f"; {ranks_text(waiting)} {verb} for it in {op or 'a collective'}"
        rest = rest.replace("for it", "for them") if len(blamed) > 1 else rest
    alike = [rank for rank in blamed if (found[rank].kind, found[rank].place) == (first.kind, first.place)]
    more = [rank for rank in blamed if rank not in alike]
    where = where_text(evidence, alike)
    also = "".join(f"; {where_text(evidence, [rank])} {found[rank].what}" for rank in more[:2])
    hosts = tuple(dict.fromkeys(evidence.placed[rank] for rank in blamed))
    fix = FIXES[first.kind].replace("HOST", hosts[0]).replace("RANK", str(blamed[0]))
    what = of_several(first.what) if len(alike) > 1 else first.what
    return Verdict(first.kind, f"{where} {what}{also}{rest}", fix, tuple(blamed), hosts)


def _silent(evidence: Evidence, blamed: Sequence[int]) -> Verdict:
    silent = [host.name for host in evidence.hosts if host.error]
    hosts = tuple(dict.fromkeys([*(evidence.placed[rank] for rank in blamed), *silent]))
    first = evidence.host(hosts[0])
    words = [f"{first.name} {first.silence}"]
    words += [first.container] if first.container else []
    words += [f"nor does {name}: {evidence.host(name).error}" for name in hosts[1:3]]
    if blamed:
        own = [rank for rank in blamed if evidence.placed[rank] == first.name]
        words.append(f"its {ranks_text(own)} cannot be seen")
    fix = FIXES["host"].replace("HOST", first.name)
    return Verdict("host", "; ".join(words), fix, tuple(blamed), hosts)


def _link(evidence: Evidence) -> Verdict | None:
    stuck = [c for host in evidence.hosts for c in host.connections if c.retries >= _RETRIES]
    if not stuck:
        return None
    pairs = Counter(tuple(sorted((c.host, c.other))) for c in stuck)
    (one, other), _ = pairs.most_common(1)[0]
    worst = max((c for c in stuck if {c.host, c.other} == {one, other}), key=lambda c: (c.retries, c.unsent))
    tries = f"{worst.retries + 1} times without an answer"
    how = (
        f"{worst.host} has asked {worst.other} for a connection {tries}"
        if worst.state == "SYN_SENT"
        else f"{worst.host} has sent {worst.unsent} bytes {tries}"
    )
    ranks = tuple(rank for rank, host in enumerate(evidence.placed) if host in (one, other))
    more = f"; so it is between {len(pairs)} pairs of hosts" if len(pairs) > 1 else ""
    what = f"nothing comes through between {one} and {other}: {how}{_of_rank(worst)}{more}"
    return Verdict("link", what, FIXES["link"], ranks, (one, other))


def _of_rank(connection: Connection) -> str:
    return f" (rank {connection.rank})" if connection.rank >= 0 else ""


def _all_wait(evidence: Evidence, found: Mapping[int, Doing]) -> Verdict:
    ops: dict[str, list[int]] = {}
    for rank, one in found.items():
        ops.setdefault(one.op, []).append(rank)
    if len(ops) > 1:
        return _apart(evidence, found, ops, "another collective than the others")
    places: dict[str, list[int]] = {}
    for rank, one in found.items():
        places.setdefault(one.place, []).append(rank)
    op = next(iter(ops))
    if len(places) > 1:
        return _apart(evidence, found, places, "another call of it than the others")
    idle = f"all ranks wait in {op}, at {next(iter(places)) or 'an unknown line'}, and no connection is stuck"
    if len(found) == 1:
        return Verdict("runs", f"the only rank is in {op}", "toolkit why again in a minute")
    fix = "toolkit why again in a minute: if all is as now, the network library is stuck (NCCL_DEBUG=INFO)"
    return Verdict("unclear", idle, fix)


def _apart(
    evidence: Evidence, found: Mapping[int, Doing], groups: Mapping[str, list[int]], what: str
) -> Verdict:
    """Return the verdict about ranks that wait in different places: the smaller group, or both if equal."""
    sizes = sorted(groups.values(), key=len)
    equal = len(sizes[0]) == len(sizes[-1])
    most = sizes[-1]
    blamed = sorted(rank for group in sizes for rank in group if equal or group is not most)
    does = {group[0]: found[group[0]].what for group in sizes}
    lines = [
        f"{where_text(evidence, group)} {does[group[0]] if len(group) == 1 else of_several(does[group[0]])}"
        for group in sizes[:3]
    ]
    hosts = tuple(dict.fromkeys(evidence.placed[rank] for rank in blamed))
    head = "ranks are not in the same collective" if equal else f"{ranks_text(blamed)} called {what}"
    return Verdict("apart", f"{head}: {'; '.join(lines)}", FIXES["apart"], tuple(blamed), hosts)


def _nobody_waits(evidence: Evidence, found: Mapping[int, Doing]) -> Verdict:
    if not found:
        return Verdict("unclear", "nothing is known of its ranks", "toolkit logs; toolkit status")
    kinds = Counter((one.kind, one.place) for one in found.values())
    if len(kinds) > 1 and len(found) > 2:
        (_, count), *_ = kinds.most_common(1)
        common = kinds.most_common(1)[0][0]
        blamed = [rank for rank, one in found.items() if (one.kind, one.place) != common]
        if count > len(found) / 2 and common[0] not in ("spin", "code"):
            return _one(evidence, found, blamed)
    ages = [seen.age for rank in found if (seen := evidence.rank(rank)) and seen.age is not None]
    last = f"; the last line came {min(ages):.0f} s ago" if ages else ""
    first = next((rank for rank, one in found.items() if one.kind != "ended"), 0)
    what = f"no rank waits for another: {where_text(evidence, [first])} {found[first].what}{last}"
    fix = "run toolkit why again in a minute: ranks at the same line are stuck there"
    return Verdict("runs", what, fix)


def _end(evidence: Evidence) -> Verdict:
    """Return why a job has ended, with the reports of its hosts."""
    if evidence.state == "succeeded":
        return Verdict("end", "the job has succeeded", "")
    failed = [
        seen for rank in range(len(evidence.placed)) if (seen := evidence.rank(rank)) and seen.exit_code
    ]
    named = next((seen for seen in failed if seen.rank == evidence.failed_rank), None)
    words = [f"the job has {ended(evidence.state)}" + (f": {evidence.reason}" if evidence.reason else "")]
    hosts: tuple[str, ...] = tuple(h.name for h in evidence.hosts if h.name == evidence.lost_host)
    fix = "toolkit logs has the last words of all ranks"
    if named is not None:
        hosts = (named.host,)
        fix = f"toolkit logs --rank {named.rank} has its last words"
        if named.exit_code == _KILLED and evidence.host(named.host).oom_kills:
            words.append(f"the kernel killed it: {named.host} was out of memory")
            fix = "a smaller batch, fewer ranks or loader workers a host, or more memory"
        elif named.last_line:
            words.append(f"its last line: {named.last_line}")
    words += [f"{h.name}: {h.container}" for h in evidence.hosts if h.container]
    words += [f"{h.name} {h.silence}" for h in evidence.hosts if h.error and not h.container][:2]
    return Verdict("end", "; ".join(words), fix, (named.rank,) if named else (), hosts)


def ended(state: str) -> str:
    """Return how a job has ended, as in "the job has been stopped"."""
    words = {"failed": "failed", "stopped": "been stopped", "timeout": "run out of time", "lost": "been lost"}
    return words.get(state, state)


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks in words.

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
    """Return the activity of one rank as words about several ranks.

    >>> of_several("waits in barrier"), of_several("has ended"), of_several("is stopped")
    ('wait in barrier', 'have ended', 'are stopped')
    """
    verb, blank, rest = what.partition(" ")
    return {"is": "are", "has": "have"}.get(verb, verb.removesuffix("s")) + blank + rest


def where_text(evidence: Evidence, ranks: Sequence[int]) -> str:
    """Return ranks in words, with their hosts."""
    hosts = list(dict.fromkeys(evidence.placed[rank] for rank in ranks))
    return f"{ranks_text(ranks)} on {', '.join(hosts[:3])}" + (" and others" if len(hosts) > 3 else "")
