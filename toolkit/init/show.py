"""The findings of ``toolkit init`` as text; this module does not print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from toolkit.image.cuda import CUDA_VARIANTS, CudaVariant
from toolkit.init.filling import gpus_text, machine_text
from toolkit.init.shares import CommonShare
from toolkit.init.survey import SurveyedHost
from toolkit.protocol.host_list import host_list


def aliases_text(usable: Sequence[tuple[str, str]], barred: Iterable[tuple[str, str]]) -> str:
    """Return the aliases of ~/.ssh/config as a numbered list.

    Args:
        usable: names and the places that they lead to.
        barred: names that cannot be hosts, with the reasons.
    """
    lines = _numbered(usable)
    left = [f"{name} ({why})" for name, why in barred]
    return "\n".join(lines + ([f"  left out: {', '.join(left)}"] if left else []))


def survey_text(surveyed: Mapping[str, SurveyedHost]) -> str:
    """Return one line for each host, followed by its problems with fixes."""
    wide = max(map(len, surveyed), default=0)
    lines: list[str] = []
    for name, one in surveyed.items():
        if not one.usable:
            lines += [f"  {name.ljust(wide)}  CANNOT BE USED: {_more(one.what)}", *_fix(one.fix, wide)]
            continue
        parts = [part for part in (one.engine, gpus_text(one), machine_text(one)) if part]
        lines.append(f"  {name.ljust(wide)}  {', '.join(parts)}")
        for fault in one.faults:
            lines += [f"  {' ' * wide}  problem: {_more(fault.what)}", *_fix(fault.fix, wide)]
    return "\n".join(lines)


def mixed_text(surveyed: Sequence[SurveyedHost]) -> str:
    """Return a text about differences between the hosts; empty if there are none."""
    bare = [one.host for one in surveyed if not one.gpus]
    lines = []
    if bare and len(bare) < len(surveyed):
        verb = "has" if len(bare) == 1 else "have"
        lines.append(
            f"  {host_list(bare)} {verb} no GPU, unlike the other hosts; to use only hosts with GPUs:"
            f" toolkit run --exclude {','.join(bare)} SCRIPT"
        )
    if len({one.arch for one in surveyed}) > 1:
        each = ", ".join(f"{one.host} {one.arch}" for one in surveyed)
        lines.append(
            f"  the hosts have different processor architectures ({each}), but all ranks use one image;"
            " create a cluster for each architecture"
        )
    return "\n".join(lines)


def variant_text(surveyed: Sequence[SurveyedHost], fits: CudaVariant | None) -> str:
    """Return a text about the CUDA version that these hosts need; empty for the default version.

    Args:
        fits: the CUDA variant that fits drivers and GPUs; None if no variant does.
    """
    newest = CUDA_VARIANTS[0]
    if fits is newest or not any(one.gpus for one in surveyed):
        return ""
    if fits is None:
        return (
            "  no toolkit GPU image fits the drivers and GPUs of all hosts; after the image build, toolkit"
            " check reports each host that does not fit"
        )
    oldest = ".".join(map(str, newest.oldest))
    return (
        f"  these hosts need the image {fits.image}, because CUDA {newest.major} requires driver"
        f" {newest.driver} or newer and compute capability {oldest} or higher on every host"
    )


def shares_text(shares: Sequence[CommonShare]) -> str:
    """Return the file systems that all hosts have in common, as a numbered list."""
    texts = [f"{s.type} from {s.source}{', read-only' if s.mount.read_only else ''}" for s in shares]
    return "\n".join(_numbered([(s.mount.source, text) for s, text in zip(shares, texts, strict=True)]))


def _numbered(rows: Sequence[tuple[str, str]]) -> list[str]:
    wide = max((len(name) for name, _ in rows), default=0)
    return [f"  {i:>2}  {name.ljust(wide)}  {text}".rstrip() for i, (name, text) in enumerate(rows, 1)]


def _more(text: str) -> str:
    """The text with its further lines set in."""
    return text.replace("\n", "\n      ")


def _fix(fix: str, wide: int) -> list[str]:
    return [f"  {' ' * wide}    fix: {_more(fix)}"] if fix else []


def essence(text: str) -> str:
    """Return the lines of a hosts file that describe its cluster, without the general comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "  #"))]
    return "\n".join(["", *lines, ""])
