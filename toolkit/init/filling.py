"""Completion of a draft of a hosts file with facts about its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolkit.checks.model import Scene
from toolkit.core.facts import Remembered
from toolkit.core.printable import counted
from toolkit.image.cuda import CPU_BUILD, CPU_IMAGE, CUDA_VARIANTS, CudaVariant
from toolkit.init.draft import Draft, DraftHost, named
from toolkit.init.survey import SurveyedHost
from toolkit.network.choose import Choice, Evidence, choose


def build_of(image: str) -> str:
    """Return the command that builds a toolkit image, empty for another image."""
    if image == CPU_IMAGE:
        return CPU_BUILD
    return next((variant.build for variant in CUDA_VARIANTS if variant.image == image), "")


def image_for(surveyed: Sequence[SurveyedHost], fits: CudaVariant | None) -> str:
    """Return the image that these hosts need: a GPU image if one of them has a GPU.

    Args:
        fits: the CUDA variant that fits drivers and GPUs; None if no variant does.
    """
    return (fits or CUDA_VARIANTS[0]).image if any(one.gpus for one in surveyed) else CPU_IMAGE


def choice_of(draft: Draft, scene: Scene, surveyed: Mapping[str, SurveyedHost], evidence: Evidence) -> Choice:
    """Return which addresses a new cluster of the draft's usable hosts would take, and why."""
    names = [host.name for host in named(draft.hosts) if host.name in surveyed and surveyed[host.name].usable]
    # Addresses that another cluster has kept under the same name do not count.
    facts = {n: replace(f, remembered=Remembered()) for n, f in scene.facts.items() if n in names}
    hosts = tuple(host for host in scene.inventory.hosts if host.name in facts)
    if not hosts:
        return Choice()
    return choose(replace(scene.inventory, hosts=hosts, main=hosts[0].name), facts, evidence)


def filled(draft: Draft, surveyed: Mapping[str, SurveyedHost], choice: Choice) -> Draft:
    """Return the draft with slots, notes and addresses of its hosts; existing values stay.

    A data address becomes a setting only if toolkit cannot choose the address.

    Args:
        surveyed: by host; those of the draft that are absent, or that cannot be used, stay as they are.
        choice: of ``choice_of``.
    """
    hosts = tuple(_filled(h, surveyed.get(h.name), choice) for h in named(draft.hosts))
    if all(host.slots == 0 for host in hosts):
        # The hosts with slots are left out, so the remaining hosts get the default.
        hosts = tuple(replace(host, slots=None) for host in hosts)
    return replace(draft, hosts=hosts)


def gpus_text(surveyed: SurveyedHost) -> str:
    """Return the GPUs of a host in a few words."""
    counts = {name: surveyed.gpus.count(name) for name in surveyed.gpus}
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no GPU"


def machine_text(surveyed: SurveyedHost) -> str:
    """Return processors and memory of a host in a few words; empty if both are unknown."""
    parts = [counted(surveyed.processors, "processor")] if surveyed.processors else []
    parts += [f"{surveyed.memory / 2**30:.0f} GiB"] if surveyed.memory else []
    return ", ".join(parts)


def _filled(host: DraftHost, surveyed: SurveyedHost | None, choice: Choice) -> DraftHost:
    if surveyed is None or not surveyed.usable:
        why = () if surveyed is None else (f"toolkit init could not use this host: {surveyed.what}",)
        return replace(host, notes=(*host.notes, *why))
    parts = (gpus_text(surveyed), machine_text(surveyed), surveyed.engine)
    notes = [", ".join(part for part in parts if part)]
    path = choice.paths.get(host.name)
    address = host.data_address
    if path is not None:
        notes.append(f"ranks reach this host at {path.address} ({path.interface}): {path.reason}")
    elif not address and (open_ones := [c for c in choice.candidates.get(host.name, ()) if not c.barred]):
        address = open_ones[0].address
        others = ", ".join(f"{c.address} ({c.interface})" for c in open_ones)
        notes.append(
            "toolkit init could not verify which address the other hosts reach, and selected the first of: "
            f"{others}"
        )
    # GPUs that are split by MIG are counted differently: their slots keep the default.
    slots = len(surveyed.gpus) if host.slots is None and surveyed.gpus and not surveyed.split else host.slots
    return replace(host, slots=slots, data_address=address, notes=(*host.notes, *notes))
