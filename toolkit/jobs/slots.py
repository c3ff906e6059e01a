"""Assignment of slots, and of the GPUs that belong to them, to a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.core.printable import counted
from toolkit.errors import NotReady
from toolkit.launchers.job import JobHost
from toolkit.protocol.host_list import host_list

# With the value 1, NCCL 2.30 or newer accepts several ranks on one GPU:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-multi-rank-gpu-enable
SEVERAL_RANKS = "NCCL_MULTI_RANK_GPU_ENABLE"


@dataclass(frozen=True)
class Room:
    """The slots and GPUs of a host for ranks.

    Args:
        address: its data address.
        slots: how many there are.
        gpus: for each GPU that its container is given, in the order in which ranks count them, its UUID, or
            the UUIDs of its parts if it is split by MIG.
    """

    name: str
    address: str
    slots: int
    gpus: tuple[tuple[str, ...], ...] = ()

    def gpus_of(self, taken: Sequence[int]) -> tuple[str, ...]:
        """Return the GPUs of these slots: one each, or several, or one for several slots, as numbers fall.

        With more slots than GPUs, the parts of split GPUs are divided as well.
        """
        gpus = self.gpus
        if self.slots > len(gpus):
            gpus = tuple((uuid,) for gpu in gpus for uuid in gpu)
        count = len(gpus)
        found: dict[str, None] = {}
        for slot in taken if count else ():
            first = slot * count // self.slots
            last = max(first + 1, (slot + 1) * count // self.slots)
            found |= dict.fromkeys(uuid for gpu in gpus[first:last] for uuid in gpu)
        return tuple(found)

    def visible_to(self, taken: Sequence[int]) -> str:
        """Return CUDA_VISIBLE_DEVICES for the ranks of these slots; see ``JobHost.visible``."""
        gpus = self.gpus_of(taken)
        if any(uuid.startswith("MIG-") for uuid in gpus):
            return ",".join(self.gpus_of((slot,))[0] for slot in taken)
        every = {uuid for gpu in self.gpus for uuid in gpu}
        return ",".join(gpus) if set(gpus) != every else ""


@dataclass(frozen=True)
class Taken:
    """A job that runs, and the slots that it has; ``slots`` by host name."""

    job: str
    owner: str
    slots: Mapping[str, Sequence[int]]


def take_slots(rooms: Sequence[Room], ranks: int | None, jobs: Sequence[Taken] = ()) -> tuple[JobHost, ...]:
    """Return the hosts with their slots for ``ranks`` ranks, filled in order; all slots when None.

    Args:
        rooms: in rank order.
        jobs: running jobs, whose slots are taken.

    Raises:
        ValueError: the hosts have fewer slots than ranks, or zero ranks are requested.
        NotReady: they have enough, but other jobs hold them; or no host has a slot.
    """
    total = sum(room.slots for room in rooms)
    if not total:
        names = [room.name for room in rooms]
        what = f"{host_list(names)} {'has' if len(names) == 1 else 'have'} no slot for a rank"
        raise NotReady(
            what, "run the same command again with other hosts, or in hosts.yaml: set slots: to 1 or more"
        )
    wanted = total if ranks is None else ranks
    if wanted < 1:
        raise ValueError("a job needs at least one rank")
    if wanted > total:
        raise ValueError(too_few_slots(wanted, total))
    held = {room.name: {slot for job in jobs for slot in job.slots.get(room.name, ())} for room in rooms}
    free = {room.name: [s for s in range(room.slots) if s not in held[room.name]] for room in rooms}
    left = sum(map(len, free.values()))
    if wanted > left:
        raise _too_few(rooms, jobs, wanted, left)
    taken = []
    for room in rooms:
        slots = tuple(free[room.name][:wanted])
        wanted -= len(slots)
        if slots:
            gpus, visible = room.gpus_of(slots), room.visible_to(slots)
            taken.append(JobHost(room.name, room.address, len(slots), slots, gpus, visible))
    return tuple(taken)


def _too_few(rooms: Sequence[Room], jobs: Sequence[Taken], wanted: int, left: int) -> NotReady:
    holding, holders = [], []
    for job in jobs:
        if where := [
            f"{counted(len(slots), 'slot')} of {r.name}"
            for r in rooms
            if (slots := job.slots.get(r.name, ()))
        ]:
            holding.append(f"job {job.job} of {job.owner} uses {', '.join(where)}")
            holders.append(job.job)
    needs = f"the job needs {counted(wanted, 'slot')}, but the hosts have only {counted(left, 'free slot')}"
    what = f"{needs}: {'; '.join(holding)}"
    fix = f"toolkit stop {holders[-1]}  # or share the slots with `toolkit run --share`"
    if left:
        fix = f"{fix}, or use the free slots with `toolkit run --np {left}`"
    return NotReady(what, fix)


def too_few_slots(ranks: int, slots: int) -> str:
    """Return the message for a job that requests more ranks than its hosts have slots."""
    return f"the job requests {counted(ranks, 'rank')}, but its hosts have {counted(slots, 'slot')}"
