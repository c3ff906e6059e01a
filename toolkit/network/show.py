"""The choice of the network as text. This module prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.core.facts import rate_text
from toolkit.core.printable import table
from toolkit.network.explain import Explanation, HostExplanation
from toolkit.network.measured import shown_bytes, shown_time
from toolkit.network.tuning import Tuning
from toolkit.protocol.host_list import slots_list

_ANSWERS = {"open": "reachable", "refused": "reachable", "timeout": "NO ANSWER", "unreachable": "UNREACHABLE"}


def explanation_text(choice: Explanation) -> str:
    """Return the explanation of each host: addresses, routes, RDMA ports, and variables of ranks."""
    head = f"ranks of cluster {choice.cluster} use {', '.join(choice.networks) or 'no network'}"
    lines = [head, f"RDMA fabric: {choice.fabric} ({choice.fabric_why})"]
    for host in choice.hosts:
        lines += ["", *_host(host)]
    lines += ["", "variables of Open MPI's launcher on the main host"]
    lines += [f"    {name}={value}" for name, value in choice.launcher.items()]
    for tuning in choice.tuned:
        lines += ["", *_tuned(tuning)]
    return "\n".join(lines) + "\n"


def tuning_text(tuning: Tuning) -> str:
    """Return the measured times as a table, then the choice."""
    ways = list(dict.fromkeys((t.trial, t.algorithm) for t in tuning.timings))
    sizes = sorted({t.size for t in tuning.timings})
    seconds = {(t.trial, t.algorithm, t.size): t.seconds for t in tuning.timings}
    rows = [
        (
            trial,
            str(algorithm),
            *(
                shown_time(seconds[key]) if (key := (trial, algorithm, size)) in seconds else "-"
                for size in sizes
            ),
        )
        for trial, algorithm in ways
    ]
    text = table(("settings", f"all-reduce ({tuning.engine})", *map(shown_bytes, sizes)), rows) + "\n"
    return text + "\n".join(_tuned(tuning)) + "\n"


def _tuned(tuning: Tuning) -> Iterator[str]:
    hosts = slots_list((name, slots) for name, _, slots in tuning.hosts)
    yield f"tuned settings of jobs on {hosts} ({tuning.engine}, measured {tuning.when})"
    for name, value in tuning.env:
        yield f"    {name}={value}"
    for rule in tuning.rules:
        yield f"    messages of {shown_bytes(rule.size)} or more: {rule.algorithm}"
    if not tuning.changes:
        yield "    toolkit changes no settings, so the backend uses its defaults"
    yield from (f"  {reason}" for reason in tuning.why)


def _host(host: HostExplanation) -> Iterator[str]:
    where = f"{host.address} on {host.interface}" if host.interface else host.address or "no data address"
    yield f"{host.host}: {where}: {host.why}"
    rows = [
        (
            "used" if a.taken else "unused",
            a.address,
            a.interface,
            rate_text(a.rate) if a.rate or a.taken else "",
            "" if a.taken else a.why,
        )
        for a in sorted(host.addresses, key=lambda a: not a.taken)
    ]
    yield from _columns("addresses", rows)
    yield from _columns(
        "routes to other hosts",
        [
            (w.to, w.address, f"through {w.interface or '?'}", _ANSWERS.get(w.answer, w.answer))
            for w in host.ways
        ],
    )
    yield from _columns(
        "RDMA ports",
        [(p.name, p.layer, p.state, f"{p.rate:g} Gb/s", "used" if p.used else "not used") for p in host.rdma],
    )
    yield from _columns(
        "variables of every rank on the host",
        [(f"{s.name}={s.value}", "set in hosts.yaml" if s.file else s.why) for s in host.settings],
    )


def _columns(title: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield f"  {title}"
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            yield "    " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
