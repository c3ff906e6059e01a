"""Queries of `gc` beyond those of `check`, and leftovers of this user, of any cluster, in the answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from toolkit.checks.leftovers import (
    ADDRESS_IN,
    MARKS,
    Stray,
    abandoned,
    former_states,
    is_elsewhere,
    is_name,
    marked,
    state_base,
    supervised,
)
from toolkit.checks.model import Probe, Scene, Seen
from toolkit.cleanup.plan import QUIET, Leftovers, OldJob, State
from toolkit.core.command import quoted
from toolkit.core.facts import ContainerFacts
from toolkit.core.printable import counted
from toolkit.image.on_hosts import QUESTIONS, HeldImage, parse_held
from toolkit.protocol.decode import DecodeError
from toolkit.protocol.frames import ROW, rows
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER, LABEL_ROLE, MAIN
from toolkit.protocol.outcomes import FINAL_STATES

# State and end of each job from its status, which only the main host has. Hosts send names, not paths: your
# machine builds the paths to remove.
STATES = Probe(
    "states",
    ROW
    + ADDRESS_IN
    + r"""
mine="${XDG_STATE_HOME:-$HOME/.local/state}/toolkit"
printf 'now|%s\n' "$(date +%s)"
newest() { for f; do stat -c %Z "$f" 2>/dev/null; done | sort -n | tail -n 1; }
for d in "$mine"/*/*; do
  [ -d "$d" ] || continue
  cluster=${d%/*}; cluster=${cluster##*/}
  row state "$(newest "$d" "$d"/* "$d"/conf/*)" "$(address_in "$d")" "$cluster" "${d##*/}"
  for job in "$d"/jobs/*; do
    [ -d "$job" ] || continue
    sent=no; [ ! -e "$job/.sent" ] || sent=yes
    state=; ended=; status=
    # A rank can replace this file by a pipe or a link.
    [ ! -f "$job/status.json" ] || [ -L "$job/status.json" ] ||
      status=$(timeout -s KILL 5 head -c 65536 "$job/status.json" 2>/dev/null | tr -d '\0\n')
    case $status in *'"state": "'*) state=${status#*'"state": "'}; state=${state%%'"'*} ;; esac
    case $status in *'"ended": '[0-9]*) ended=${status#*'"ended": '}; ended=${ended%%[!0-9]*} ;; esac
    row job "$sent" "$state" "$ended" "$(newest "$job" "$job"/*)" "$cluster" "${d##*/}" "${job##*/}"
  done
done
halves() { find "$mine" -name '*.toolkit-new' -type f -cmin +@quiet@ -print0 2>/dev/null; }
printf 'halves|%s\n' "$(halves | tr -dc '\0' | wc -c)"
""".replace("@quiet@", str(QUIET)),
)
# Hours without a new layer after which a partial image transfer counts as interrupted. The processes of
# another user's transfer are hidden, and one large layer can take hours.
PART_QUIET_H = 24
PROBES = (MARKS, STATES, *(Probe(*question) for question in QUESTIONS))


@dataclass(frozen=True)
class Kept:
    """A possible leftover that is kept, with the reason and the command that removes it."""

    host: str
    what: str
    why: str
    fix: str = ""


@dataclass(frozen=True)
class Folder:
    """A job's folder as a host reported it."""

    cluster: str
    job: str
    path: str
    sent: bool
    state: str
    ended: float
    changed: float


@dataclass(frozen=True)
class Told:
    """One host's answer: its clock, state directories by cluster, job folders, old unfinished files."""

    clock: float = 0.0
    states: dict[str, State] = field(default_factory=dict)
    jobs: tuple[Folder, ...] = ()
    halves: int = 0


def reported(seen: Seen) -> Told:
    """Parse a host's answer about its folders; in a shared home, only those of this host."""
    now, states, jobs, halves = 0.0, {}, [], 0
    base = state_base(seen)
    for word, cells in rows(seen.answer(STATES)):
        names = cells[{"state": 2, "job": 4}.get(word, len(cells)) :]
        if not all(map(is_name, names)):
            continue
        if word == "now" and len(cells) == 1:
            now = _seconds(cells[0])
        elif word == "halves" and len(cells) == 1:
            halves = int(_seconds(cells[0]))
        elif word == "state" and len(names) == 2 and names[1] == seen.host:
            changed = _seconds(cells[0])
            path = f"{base}/{names[0]}/{names[1]}"
            elsewhere = cells[1] if is_elsewhere(seen, cells[1]) else ""
            quiet = max(0.0, now - changed)
            states[names[0]] = State(seen.host, names[0], path, changed, 0, quiet, elsewhere)
        elif word == "job" and len(names) == 3 and names[1] == seen.host:
            sent, state, ended, newest = cells[:4]
            cluster, host, job = names
            when = (_seconds(ended), _seconds(newest))
            jobs.append(
                Folder(cluster, job, f"{base}/{cluster}/{host}/jobs/{job}", sent == "yes", state, *when)
            )
    for cluster, known in states.items():
        records = sum(1 for job in jobs if job.cluster == cluster)
        states[cluster] = replace(known, records=records)
    return Told(now, states, tuple(jobs), halves)


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0.0


@dataclass(frozen=True)
class Remains:
    """Leftovers in a scene; a job's folder is one ``days`` after the job's end, or never with None."""

    scene: Scene
    days: float | None = None

    def leftovers(self, states: tuple[State, ...], granted: tuple[State, ...]) -> Leftovers:
        """Return all leftovers to remove.

        Args:
            states: the ones of ``states()`` to remove.
            granted: those of ``states`` to remove even if they changed recently.
        """
        looked = {n: s for n, s in self.scene.seen.items() if s.facts and "looked" in s.answer(MARKS)}
        return Leftovers(
            containers={name: abandoned(seen) for name, seen in looked.items()},
            strays=tuple(self._strays()),
            jobs=tuple(self._jobs()),
            states=states,
            granted=granted,
            halves={name: state_base(seen) for name, seen in looked.items() if reported(seen).halves},
            parts={name: tuple(_dead_parts(seen)) for name, seen in looked.items()},
        )

    def states(self) -> tuple[State, ...]:
        """Return the state directories of clusters without a container of any user on their host."""
        found = []
        for seen in self.scene.seen.values():
            if seen.facts is not None and seen.facts.docker and "looked" in seen.answer(MARKS):
                there = {c.labels.get(LABEL_CLUSTER) for c in seen.facts.containers}
                work = {one.cluster for one in marked(seen)}
                found += [s for n, s in reported(seen).states.items() if n not in there and n not in work]
        return tuple(found)

    def _main_of(self, cluster: str) -> str:
        """Return the host of this cluster's main container of this user; empty for any other cluster.

        The hosts file decides, because any host can claim to be the main host of a cluster.
        """
        name = self.scene.inventory.main
        if cluster != self.scene.inventory.cluster:
            return ""
        found = _own_running(self.scene.seen.get(name, Seen(name)), cluster)
        return name if any(c.labels.get(LABEL_ROLE) == MAIN for c in found) else ""

    def _witness(self, cluster: str, host: str) -> str:
        """Return the host that knows the running jobs of a cluster on a host; empty if none does."""
        seen = self.scene.seen[host]
        if cluster == self.scene.inventory.cluster and self.scene.inventory.in_parts:
            # Each host has its own supervisor.
            return host if any(_own_running(seen, cluster)) else ""
        return self._main_of(cluster)

    def _strays(self) -> Iterator[Stray]:
        alive = supervised(self.scene)
        for seen in self.scene.seen.values():
            found: dict[tuple[str, str], list[int]] = {}
            for one in marked(seen):
                if one.job and one.job not in alive:
                    found.setdefault((one.cluster, one.job), []).append(one.pid)
            for (cluster, job), pids in found.items():
                witness = self._witness(cluster, seen.host)
                if witness or not _runs(seen, cluster):
                    yield Stray(seen.host, job, tuple(pids), witness, cluster)

    def _ages(self) -> Iterator[tuple[Seen, Folder, float | None]]:
        """Yield the folders of jobs without a supervisor, with the days since the end; None if unknown."""
        alive = supervised(self.scene)
        ended = {
            (seen.host, folder.cluster, folder.job): (reported(seen).clock - folder.ended) / 86400
            for seen in self.scene.seen.values()
            for folder in reported(seen).jobs
            if folder.state in FINAL_STATES and folder.ended
        }
        in_parts = self.scene.inventory.in_parts
        for seen in self.scene.seen.values():
            for folder in reported(seen).jobs:
                main = self._main_of(folder.cluster)
                if main and folder.job not in alive:
                    # Only the main host decides, or each host if each has its own supervisor.
                    decides = seen.host if in_parts else main
                    yield seen, folder, ended.get((decides, folder.cluster, folder.job))

    def _jobs(self) -> Iterator[OldJob]:
        for seen, folder, age in self._ages():
            about, main = (seen.host, folder.job, folder.path), self._main_of(folder.cluster)
            if not folder.sent and reported(seen).clock - folder.changed > QUIET * 60:
                why = "the job never started, because the transfer of its code did not finish"
                yield OldJob(*about, why, main, folder.cluster, quiet=True)
            elif self.days is not None and age is not None and age > self.days:
                yield OldJob(*about, f"the job ended {counted(round(age), 'day')} ago", main, folder.cluster)

    def _unknown_ends(self) -> Iterator[Kept]:
        """Yield the old folders of jobs whose end no supervisor recorded, or whose record is gone."""
        if self.days is None:
            return
        paths: dict[str, list[str]] = {}
        for seen, folder, age in self._ages():
            decides = self._witness(folder.cluster, seen.host)
            if age is not None or not folder.sent or not decides:
                continue
            # If the host that decides does not list its jobs, the record can exist.
            listed = reported(self.scene.seen[decides]).clock > 0
            works = any(one.job == folder.job for one in marked(seen))
            quiet = reported(seen).clock - folder.changed
            if listed and not works and quiet > max(self.days * 86400, QUIET * 60):
                paths.setdefault(seen.host, []).append(folder.path)
        for host, found in paths.items():
            decides = "the host" if self.scene.inventory.in_parts else "the main host"
            why = f"toolkit finds no supervisor, and {decides} has no record of the end"
            fix = f"on {host}: {quoted('rm', '-rf', *found)}  # deletes the records, logs and results"
            yield Kept(host, counted(len(found), "old job folder"), why, fix)

    def kept(self, states: tuple[State, ...]) -> tuple[Kept, ...]:
        """Return possible leftovers that are kept.

        Args:
            states: the ones of ``states()`` to remove.
        """
        rows = []
        for state in self.states():
            if state not in states:
                what = f"the state directory of cluster {state.cluster} (unchanged for {_age(state.quiet)})"
                why = (
                    f"the state directory contains {jobs_text(state.records)}"
                    if state.records
                    else f"the state directory changed in the last {QUIET} minutes"
                )
                fix = (
                    "toolkit down --hosts FILE  # downloads the job records; FILE: the hosts.yaml of the "
                    "cluster. To remove all old state directories without a download, run: toolkit gc --state"
                )
                if state.elsewhere:
                    why = (
                        f"{state.elsewhere} is not an address of {state.host}: another host might use the "
                        "directory"
                    )
                    remove = quoted("rm", "-rf", state.path)
                    fix = f"on {state.host}: {remove}  # if no other host uses the directory"
                rows.append(Kept(state.host, what, why, fix))
        doomed = {(stray.host, stray.job) for stray in self._strays()}
        alive = supervised(self.scene)
        for seen in self.scene.seen.values():
            for name, _, fix in former_states(seen, self.scene.inventory):
                cluster = self.scene.inventory.cluster
                what = f"the state directory of cluster {cluster} for the former name {name}"
                rows.append(Kept(seen.host, what, "the host has another name in hosts.yaml", fix))
            unsure = {(o.job, o.cluster) for o in marked(seen) if o.job and o.job not in alive}
            for job, cluster in sorted(unsure):
                if (seen.host, job) not in doomed:
                    why = f"cannot query the main host of cluster {cluster} about the job"
                    own = cluster == self.scene.inventory.cluster
                    fix = (
                        "toolkit up && toolkit gc"
                        if own
                        else "toolkit gc --hosts FILE  # FILE: the hosts.yaml of this cluster"
                    )
                    rows.append(Kept(seen.host, f"processes of job {job}", why, fix))
        rows += self._unknown_ends()
        return tuple(rows)


def _own_running(seen: Seen, cluster: str) -> Iterator[ContainerFacts]:
    """Yield the running containers of this user's cluster on a host whose processes are known."""
    if seen.facts is not None and "looked" in seen.answer(MARKS):
        for c in seen.facts.containers:
            own = c.labels.get(LABEL_OWNER) == seen.facts.user and c.labels.get(LABEL_CLUSTER) == cluster
            if own and c.state == "running":
                yield c


def _runs(seen: Seen, cluster: str) -> bool:
    found = seen.facts.containers if seen.facts else ()
    if any(c.labels.get(LABEL_CLUSTER) == cluster and c.state == "running" for c in found):
        return True
    # The containers of another engine are not listed, but their first processes have no job tag.
    return any(one.cluster == cluster and not one.job for one in marked(seen))


def _dead_parts(seen: Seen) -> Iterator[HeldImage]:
    """Yield layers of partial image transfers without a recent addition; they do not name their owner."""
    try:
        images = parse_held(seen.answers)
    except DecodeError:  # a malformed answer of the container engine contains no removable image
        return
    newest: dict[str, float] = {}
    for image in images:
        if image.part_of:
            newest[image.part_of] = max(newest.get(image.part_of, 0.0), image.since)
    for image in images:
        quiet = reported(seen).clock - newest[image.part_of] if image.part_of else 0.0
        if quiet > PART_QUIET_H * 3600 and not image.users:
            yield image


def jobs_text(number: int) -> str:
    """Return a number of job records in words."""
    return "the record of 1 job" if number == 1 else f"the records of {number} jobs"


def removable(state: State) -> bool:
    """Return True for a folder to remove without a question: of this host, without job records, and old."""
    return not (state.elsewhere or state.records) and state.quiet > QUIET * 60


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
