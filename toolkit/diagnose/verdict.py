"""Verdict about a job from the evidence of its hosts: which rank blocks the others, why, and the fix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.diagnose.evidence import Connection, Evidence
from toolkit.diagnose.rank_activity import GPU_WORK, Doing, doing, lead
from toolkit.jobs.status import exception_of, last_line_of
from toolkit.protocol.host_list import host_list
from toolkit.protocol.outcomes import FINAL_STATES

# This number of retransmissions takes more than half a second, so random packet loss is not the cause.
_RETRIES = 2
_KILLED = 137
FINAL = (*FINAL_STATES, "lost")


@dataclass(frozen=True)
class Verdict:
    """The cause that blocks a job or ended it.

    Args:
        kind: see ``Doing``; also link, apart (different collectives), host, end, runs, unclear.
        what: the cause in one line, with rank and host.
        fix: a command, or an instruction if no command fixes the cause.
        ranks, hosts: the ranks and hosts that cause the problem; empty if none is known.
    """

    kind: str
    what: str
    fix: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


FIXES: Mapping[str, str] = {
    "stopped": "toolkit exec HOST -- kill -CONT PID"
    "  # continues the process; if a debugger stopped the process, detach the debugger",
    "disk": "on HOST: sudo dmesg | tail; df -h  # then check the disk or network file system; "
    "even SIGKILL usually cannot end a process that hangs in the kernel",
    "failed": "toolkit logs --rank RANK  # shows the error of the rank; toolkit stop stops the other ranks",
    "gone": "toolkit logs --rank RANK  # on HOST, sudo dmesg shows whether the host ran out of memory",
    "ended": "give every rank the same number of steps, for example with torch's DistributedSampler",
    "absent": "toolkit logs  # shows the output of the launcher; toolkit status shows the containers",
    "handler": "change the exception handler to raise the exception again before the handler calls "
    "a collective or waits",
    "sleep": "check the line at which the rank sleeps",
    "lock": "check which thread or process of the rank should release the lock or fill the queue",
    "child": "on HOST: sudo dmesg | grep -i 'out of memory'  # shows processes that the kernel killed",
    "file": "check whether HOST has a full disk, a network file system that does not respond, or a pipe "
    "without a reader or writer",
    "network": "toolkit check  # tests whether hosts reach each other; if they do, check the address that "
    "your code uses",
    "spin": "check whether the rank runs an endless loop, or has more work than the other ranks",
    "code": "check the stack of the rank in the bundle that toolkit why writes",
    "gpu": "on HOST: nvidia-smi; sudo dmesg | grep -i xid  # shows the load and the errors of the GPU",
    "apart": "call the same collectives in the same order on all ranks; check each `if` that uses the rank",
    "link": "toolkit check  # tests each pair of hosts; check cable, switch and firewall between the hosts",
    "host": "toolkit up  # restarts a stopped container; if up fails, check power, network and load of HOST",
}
_COMPARE = "toolkit why  # run this command again after a minute, and compare the two outputs"


def doings(evidence: Evidence) -> dict[int, Doing]:
    """Return the activity of each rank of the job."""
    found = {}
    for rank, name in enumerate(evidence.placed):
        host, seen = evidence.host(name), evidence.rank(rank)
        if host.error:
            found[rank] = Doing("silent", f"is in an unknown state: {name} {host.silence}")
        elif seen is None:
            what = "did not start" if evidence.state in FINAL else "has not started yet"
            found[rank] = Doing("absent", what)
        else:
            found[rank] = doing(seen, host.is_gpu_busy(rank))
    return found


def judge(evidence: Evidence) -> Verdict:
    """Return the best explanation of why the job does not continue, or why it has ended.

    Certain causes precede likely causes. Certain causes are a host that does not answer, a stopped or dead
    rank, and a link that transmits no data. A likely cause is a rank that is not where the other ranks wait.
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
        moved = where_text(evidence, moving)
        what = f"the job runs: {moved} waited for other ranks and continued during the inspection"
        return Verdict("runs", what, "toolkit why  # run this command again if the job stalls")
    for kind in ("ended", "absent", "disk", "handler", "child"):
        blamed = [rank for rank, one in found.items() if one.kind == kind]
        # Near the end of a job some ranks finish before others.
        if blamed and len(blamed) < len(found) and (waiting or kind != "ended"):
            return _one(evidence, found, blamed)
    others = [rank for rank in found if rank not in waiting]
    if waiting and others:
        return _one(evidence, found, others)
    # Ranks that use their GPUs can have work that the other ranks do not have.
    uses_gpu = [rank for rank in waiting if found[rank].op == GPU_WORK]
    rest = [found[rank] for rank in waiting if rank not in uses_gpu]
    in_one = all(one.kind == "collective" for one in rest) and len({one.op for one in rest}) == 1
    if uses_gpu and in_one and len(uses_gpu) <= len(rest):
        return replace(_one(evidence, found, uses_gpu), kind="spin", fix=FIXES["spin"])
    if waiting:
        return _all_wait(evidence, found)
    return _no_rank_waits(evidence, found)


def _moved(evidence: Evidence, rank: int) -> bool:
    seen = evidence.rank(rank)
    process = lead(seen) if seen else None
    return process is not None and process.moved


def _one(evidence: Evidence, found: Mapping[int, Doing], blamed: Sequence[int]) -> Verdict:
    """Return the verdict about ranks that do not wait like the other ranks; the first rank sets the kind."""
    first = found[blamed[0]]
    waiting = [rank for rank, one in found.items() if one.waits and rank not in blamed]
    ops = Counter(found[rank].op for rank in waiting)
    rest = ""
    if waiting:
        op = ops.most_common(1)[0][0]
        verb = "waits" if len(waiting) == 1 else "wait"
        rest = f"; {ranks_text(waiting)} {verb} for {ranks_text(blamed)} in {op or 'a collective'}"
    alike = [rank for rank in blamed if (found[rank].kind, found[rank].place) == (first.kind, first.place)]
    more = [rank for rank in blamed if rank not in alike]
    where = where_text(evidence, alike)
    also = "".join(f"; {where_text(evidence, [rank])} {found[rank].what}" for rank in more[:2])
    hosts = tuple(dict.fromkeys(evidence.placed[rank] for rank in blamed))
    fix = _fix(evidence, first.kind, blamed[0])
    what = of_several(first.what) if len(alike) > 1 else first.what
    return Verdict(first.kind, f"{where} {what}{also}{rest}", fix, tuple(blamed), hosts)


def _fix(evidence: Evidence, kind: str, rank: int) -> str:
    """Return the fix for a kind of problem, with the rank, its host and its stopped process filled in."""
    seen = evidence.rank(rank)
    pid = next((process.pid for process in seen.processes if process.state in "Tt"), None) if seen else None
    fix = FIXES[kind].replace("HOST", evidence.placed[rank]).replace("RANK", str(rank))
    return fix if pid is None else fix.replace("PID", str(pid))


def _silent(evidence: Evidence, blamed: Sequence[int]) -> Verdict:
    silent = [host.name for host in evidence.hosts if host.error]
    hosts = tuple(dict.fromkeys([*(evidence.placed[rank] for rank in blamed), *silent]))
    first = evidence.host(hosts[0])
    words = [f"{first.name} {first.silence}"]
    words += [first.container] if first.container else []
    words += [f"{name} {evidence.host(name).silence}" for name in hosts[1:3]]
    if blamed:
        own = [rank for rank in blamed if evidence.placed[rank] == first.name]
        words.append(f"the state of {ranks_text(own)} is unknown")
    fix = FIXES["host"].replace("HOST", first.name)
    return Verdict("host", "; ".join(words), fix, tuple(blamed), hosts)


def _link(evidence: Evidence) -> Verdict | None:
    stuck = [c for host in evidence.hosts for c in host.connections if c.retries >= _RETRIES]
    if not stuck:
        return None
    pairs = Counter(tuple(sorted((c.host, c.other))) for c in stuck)
    (one, other), _ = pairs.most_common(1)[0]
    worst = max((c for c in stuck if {c.host, c.other} == {one, other}), key=lambda c: (c.retries, c.unsent))
    tries = f"{worst.retries + 1} times without a reply"
    how = (
        f"{worst.host} requested a connection to {worst.other} {tries}"
        if worst.state == "SYN_SENT"
        else f"{worst.host} sent {worst.unsent} bytes {tries}"
    )
    ranks = tuple(rank for rank, host in enumerate(evidence.placed) if host in (one, other))
    more = f"; {len(pairs)} pairs of hosts have this problem" if len(pairs) > 1 else ""
    what = f"the network between {one} and {other} transmits no data: {how}{_of_rank(worst)}{more}"
    return Verdict("link", what, FIXES["link"], ranks, (one, other))


def _of_rank(connection: Connection) -> str:
    return f" (rank {connection.rank})" if connection.rank >= 0 else ""


def _all_wait(evidence: Evidence, found: Mapping[int, Doing]) -> Verdict:
    ops: dict[str, list[int]] = {}
    for rank, one in found.items():
        ops.setdefault(one.op, []).append(rank)
    if len(ops) > 1:
        return _apart(evidence, found, ops, "different collectives", "a different collective than")
    places: dict[str, list[int]] = {}
    for rank, one in found.items():
        places.setdefault(one.place, []).append(rank)
    op = next(iter(ops))
    if len(places) > 1:
        apart = _apart(evidence, found, places, f"{op} at different lines", f"{op} at a different line than")
        if op != GPU_WORK:
            return apart
        # Ranks that compute on their GPUs look the same.
        fix = (
            "toolkit why  # run this command again after a minute; if the output is the same, check whether "
            "all ranks call the same collectives"
        )
        return replace(apart, kind="unclear", fix=fix, ranks=(), hosts=())
    if len(found) == 1:
        return Verdict(
            "runs",
            f"the only rank waits in {op}",
            _COMPARE,
        )
    at = next(iter(places)) or "an unknown line"
    what = f"all ranks wait in {op} at {at}, and toolkit found no blocked connection between hosts"
    fix = (
        "toolkit why  # run this command again after a minute; if the output is the same, "
        "restart the job with --env NCCL_DEBUG=INFO"
    )
    return Verdict("unclear", what, fix)


def _apart(
    evidence: Evidence, found: Mapping[int, Doing], groups: Mapping[str, list[int]], several: str, one: str
) -> Verdict:
    """Return the verdict about ranks that wait in different places: the smaller group, or both if equal.

    Args:
        several: the object of "the ranks called" if the groups have equal size.
        one: the object of "rank 1 called" if one group is smaller, to continue with "the other ranks".
    """
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
    if not equal and all(found[rank].kind == "gpu" for rank in blamed):
        # The GPU of the rank can run the same collective as the GPUs of the other ranks, or hang.
        verb = "waits for its GPU" if len(blamed) == 1 else "wait for their GPUs"
        head = f"{ranks_text(blamed)} {verb}, and the other ranks wait elsewhere"
        fix = _fix(evidence, "gpu", blamed[0])
        return Verdict("gpu", f"{head}: {'; '.join(lines)}", fix, tuple(blamed), hosts)
    head = f"the ranks called {several}" if equal else f"{ranks_text(blamed)} called {one} the other ranks"
    return Verdict("apart", f"{head}: {'; '.join(lines)}", FIXES["apart"], tuple(blamed), hosts)


def _no_rank_waits(evidence: Evidence, found: Mapping[int, Doing]) -> Verdict:
    if not found:
        fix = "toolkit status; toolkit logs  # show the containers, and the output of the job"
        return Verdict("unclear", "no host reported a rank of the job", fix)
    kinds = Counter((one.kind, one.place) for one in found.values())
    if len(kinds) > 1 and len(found) > 2:
        (_, count), *_ = kinds.most_common(1)
        common = kinds.most_common(1)[0][0]
        blamed = [rank for rank, one in found.items() if (one.kind, one.place) != common]
        if count > len(found) / 2 and common[0] not in ("spin", "code"):
            return _one(evidence, found, blamed)
    ages = [seen.age for rank in found if (seen := evidence.rank(rank)) and seen.age is not None]
    last = f"; the newest line of output is {min(ages):.0f} s old" if ages else ""
    unread = [rank for rank in found if _lacks_stack(evidence, rank)]
    if unread and len(found) > 1:
        return _without_stacks(evidence, found, unread, last)
    first = next((rank for rank, one in found.items() if one.kind != "ended"), 0)
    what = f"no rank waits for another rank: {where_text(evidence, [first])} {found[first].what}{last}"
    fix = (
        "toolkit why  # run this command again after a minute; a rank that is still at the same line "
        "probably hangs"
    )
    return Verdict("runs", what, fix)


def _lacks_stack(evidence: Evidence, rank: int) -> bool:
    seen = evidence.rank(rank)
    process = lead(seen) if seen else None
    return process is not None and not process.frames


def _without_stacks(
    evidence: Evidence, found: Mapping[int, Doing], unread: Sequence[int], last: str
) -> Verdict:
    """Return the verdict about ranks whose stacks are unknown: a wait for a rank can look like any activity.

    Args:
        last: words about the newest line of output.
    """
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, one in found.items():
        alike.setdefault((one.kind, one.place), []).append(rank)
    known = []
    for ranks in list(alike.values())[:3]:
        does = found[ranks[0]].what
        known.append(f"{where_text(evidence, ranks)} {of_several(does) if len(ranks) > 1 else does}")
    what = (
        "toolkit cannot determine whether a rank waits for another rank, because toolkit could not read "
        f"the {'stack' if len(unread) == 1 else 'stacks'} of {ranks_text(unread)}: {'; '.join(known)}"
    )
    fix = _COMPARE
    without = [host for host in evidence.hosts if not host.py_spy]
    if any(process.no_stack for host in without for rank in host.ranks for process in rank.processes):
        fix = "RUN pip install py-spy  # add this line to the Dockerfile, rebuild the image, run toolkit up"
    return Verdict("unclear", what + last, fix)


def _end(evidence: Evidence) -> Verdict:
    """Return the cause of a job's end, with the reports of its hosts."""
    if evidence.state == "succeeded":
        return Verdict("end", "the job succeeded", "")
    failed = [
        seen for rank in range(len(evidence.placed)) if (seen := evidence.rank(rank)) and seen.exit_code
    ]
    named = next((seen for seen in failed if seen.rank == evidence.failed_rank), None)
    words = [f"the job {ended(evidence.state)}" + (f": {evidence.reason}" if evidence.reason else "")]
    hosts: tuple[str, ...] = tuple(h.name for h in evidence.hosts if h.name == evidence.lost_host)
    fix = "toolkit logs  # shows the output of all ranks"
    if named is not None:
        hosts = (named.host,)
        fix = f"toolkit logs --rank {named.rank}  # shows the output of the rank that failed first"
        # The number of the host can be that of an earlier job in the same container.
        oom = bool(evidence.host(named.host).oom_kills) if named.oom is None else named.oom
        if named.exit_code == _KILLED and oom:
            words.append(
                f"the kernel killed rank {named.rank}, because the container or {named.host} "
                "ran out of memory"
            )
            fix = (
                "use a smaller batch, fewer ranks or data loader workers per host, or a host with more memory"
            )
        elif raised := exception_of(named.lines):
            words.append(f"the exception of rank {named.rank} is: {raised}")
        elif last := last_line_of(named.lines):
            words.append(f"the last line of rank {named.rank} is: {last}")
    words += [f"{h.name}: {h.container}" for h in evidence.hosts if h.container]
    words += [f"{h.name} {h.silence}" for h in evidence.hosts if h.error and not h.container][:2]
    return Verdict("end", "; ".join(words), fix, (named.rank,) if named else (), hosts)


def ended(state: str) -> str:
    """Return the end of a job as a predicate: "was stopped"."""
    words = {"stopped": "was stopped", "timeout": "exceeded its time limit", "lost": "was lost"}
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

    >>> of_several("waits in barrier"), of_several("has not started"), of_several("is busy with its GPU")
    ('wait in barrier', 'have not started', 'are busy with their GPU')
    """
    verb, blank, rest = re.sub(r" (for|with) its ", r" \1 their ", what).partition(" ")
    return {"is": "are", "has": "have"}.get(verb, verb.removesuffix("s")) + blank + rest


def where_text(evidence: Evidence, ranks: Sequence[int]) -> str:
    """Return ranks in words, with their hosts."""
    hosts = list(dict.fromkeys(evidence.placed[rank] for rank in ranks))
    return f"{ranks_text(ranks)} on {host_list(hosts)}"
