"""The choice of the network as text for people; nothing here prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.core.links import rate_text
from toolkit.plan.explain import Explanation, HostSaid

_ANSWERS = {"open": "answers", "refused": "answers", "timeout": "NO ANSWER", "unreachable": "UNREACHABLE"}


def explanation_text(said: Explanation) -> str:
    """Return the explanation host by host: addresses, ways to the others, RDMA ports, settings of ranks."""
    head = f"{said.cluster}: ranks talk on {', '.join(said.networks) or 'no network'}"
    lines = [head, f"beside TCP: {said.fabric} ({said.fabric_why})"]
    for host in said.hosts:
        lines += ["", *_host(host)]
    lines += ["", "Open MPI's launcher on main is told"]
    lines += [f"    {name}={value}" for name, value in said.launcher.items()]
    return "\n".join(lines) + "\n"


def _host(said: HostSaid) -> Iterator[str]:
    where = f"{said.address} on {said.interface}" if said.interface else said.address or "no data address"
    yield f"{said.host}: {where}: {said.why}"
    rows = [
        (
            "taken" if a.taken else "not",
            a.address,
            a.interface,
            rate_text(a.rate) if a.rate or a.taken else "",
            "" if a.taken else a.why,
        )
        for a in sorted(said.addresses, key=lambda a: not a.taken)
    ]
    yield from _columns("addresses", rows)
    yield from _columns(
        "to the others",
        [(w.to, w.address, f"by {w.interface or '?'}", _ANSWERS.get(w.answer, w.answer)) for w in said.ways],
    )
    yield from _columns(
        "RDMA ports",
        [(p.name, p.layer, p.state, f"{p.rate:g} Gb/s", "used" if p.used else "not used") for p in said.rdma],
    )
    yield from _columns(
        "every rank there gets",
        [(f"{s.name}={s.value}", "the hosts file says so" if s.file else s.why) for s in said.settings],
    )


def _columns(title: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield f"  {title}"
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            yield "    " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
