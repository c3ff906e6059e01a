"""Random schedules of one job on simulated hosts, judged by what must hold of every job.

Supervisor, leases, launches, rank.py and the sweeps are the real programs (see programs.py); the ranks' own
command is simulated. Invariants:

1. A rank that ended is recorded: rank.py leaves its exit code, and its failure ends the job soon.
2. A job reaches a final state.
3. No rank survives its lease.
4. No healthy rank is killed.
5. The exit code is that of the first cause.
6. A rank has the variables of its host, and no host holds them once the job and its leases have ended.
"""

from __future__ import annotations

import json
import random
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fuzz.kernel import End, Host, Pipe, Process, Sim, end_workers
from tests.fuzz.programs import Cluster, program_of

PROGRAMS = Path(__file__).resolve().parents[2] / "toolkit" / "container"
JOB = "20261120-211300-digits-f022"
NAMES = ("gpu1", "gpu2", "gpu3", "gpu4")
# The promises, in seconds; not read from the source, so that a change of the source can break them.
LEASE_S, LOST_S = 10.0, 4.0
SURVIVAL_S = (
    1.5 * LEASE_S + LEASE_S / 2 + 3.0 + 5.0
)  # lease, its second watch after a standstill, grace, sweep
FINAL_S = 240.0
SOON_S = 9.0
TOGETHER_S = 2.5  # causes that are closer than this may be taken for each other
FINAL_STATES = frozenset({"succeeded", "failed", "stopped", "timeout"})
LOST, BROKEN, TIMED_OUT = 69, 70, 124
NOISE = (
    b"Warning: slow disk\n",
    b"\n",
    b"[1, 2]\n",
    b"null\n",
    b"{}\n",
    b'{"n": "x"}\n',
    b"\xff\xfe\n",
    b"7\n",
    b'{"n": 0, "death": 7}\n',
    b'{"n": 0, "death": {}}\n',
)
HARM = (
    *(
        "fails",
        "fails",
        "fails",
        "kill rank",
        "kill job.rank",
        "kill job.lease",
        "kill job.launch",
        "cut",
        "cut",
    ),
    *("reset", "power off", "freeze", "stop", "stop", "timeout", "kill job.supervisor", "noise", "noise"),
)
RECENT = 40
SECRET = "s3cret of "  # and the host's name


class Broken(AssertionError):
    """An invariant that a schedule has broken."""


@dataclass(frozen=True)
class Rank:
    """One rank in one attempt: it lasts some seconds, then exits with `code`, negative for a signal."""

    lasts: float
    code: int = 0
    term: tuple[Any, ...] = ("die",)  # or ("exit", CODE, DELAY), ("ignore",)
    peers: str = "hang"  # when a peer fails: hang, blame, free
    orphan: bool = False  # it leaves a process behind that holds its output open and prints


@dataclass(frozen=True)
class Event:
    at: float
    what: str
    host: str = ""
    value: Any = None


@dataclass
class Schedule:
    """One job and what happens to it."""

    seed: int  # of the interleaving
    hosts: tuple[str, ...]
    spares: tuple[str, ...] = ()
    slots: int = 1
    restarts: int = 0
    min_hosts: int = 0
    timeout: float | None = None
    grace: float = 1.0
    latency: float = 0.002
    preempt: float = 0.0
    ranks: dict[tuple[int, int], Rank] = field(default_factory=dict)  # by attempt and rank
    events: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        about = {name: value for name, value in vars(self).items() if name not in ("ranks", "events")}
        lines = [f"job: {about}"]
        lines += [f"rank {rank} of attempt {n}: {each}" for (n, rank), each in sorted(self.ranks.items())]
        lines += [f"at {event.at:.2f} s: {event}" for event in self.events]
        return "\n".join(lines)


def make(rng: random.Random) -> Schedule:
    """Return a random schedule: a third without any cause to end, a third with one, a third with several."""
    hosts = NAMES[: rng.choice((1, 2, 2, 3))]
    schedule = Schedule(
        seed=rng.getrandbits(32),
        hosts=hosts,
        slots=rng.choice((1, 1, 2)),
        grace=rng.choice((0.5, 1.0, 2.0)),
        latency=rng.choice((0.001, 0.01, 0.1)),
        preempt=rng.choice((0.0, 0.01, 0.1)),
    )
    if rng.random() < 0.35:
        schedule.restarts = rng.choice((1, 2))
        schedule.min_hosts = rng.choice((0, 1))
        if rng.random() < 0.5:
            schedule.spares = (NAMES[len(hosts)],)
    lasts = rng.uniform(0.3, 4.0)
    term = rng.choice((("die",), ("die",), ("ignore",), ("exit", 0, 0.2), ("exit", 9, 0.3)))
    peers = rng.choice(("hang", "blame", "blame", "free"))
    for attempt in range(schedule.restarts + 1):
        for rank in range(len(hosts) * schedule.slots):
            own = lasts + rng.uniform(0.0, 0.2 if peers != "free" else 2.0)
            schedule.ranks[attempt, rank] = Rank(own, 0, term, peers)
    harm = rng.choice((0, 1, 2)) and rng.choice((1, 1, 2, 3))
    calm = rng.choice((0, 1, 1, 2))
    everyone = (*hosts, *schedule.spares)
    events = [_harmful(rng, schedule, everyone, lasts) for _ in range(harm)]
    events += [_harmless(rng, everyone, lasts) for _ in range(calm)]
    schedule.events = tuple(sorted((each for each in events if each), key=lambda each: each.at))
    return schedule


def _harmful(rng: random.Random, schedule: Schedule, hosts: tuple[str, ...], lasts: float) -> Event | None:
    what = rng.choice(HARM)
    host, at = rng.choice(hosts), rng.uniform(0.0, lasts + 1.0)
    if what == "fails":
        key = rng.choice(sorted(schedule.ranks))
        code = rng.choice((1, 3, 7, 255, -11, -9, -6))
        at = rng.uniform(0.05, lasts)
        schedule.ranks[key] = replace(schedule.ranks[key], lasts=at, code=code, orphan=rng.random() < 0.15)
        return None
    if what == "timeout":
        schedule.timeout = rng.uniform(0.5, lasts + 1.0)
        return None
    if what == "noise":
        return Event(at, what, host, rng.choice(NOISE))
    if what in ("cut", "freeze"):
        return Event(
            at, what, host, rng.choice((5.0, 9.0, 40.0, 40.0) if what == "cut" else (5.0, 9.0, 14.0))
        )
    if what == "stop":
        return Event(at, what, hosts[0], (rng.choice(("SIGTERM", "SIGINT")), rng.choice((None, None, 0.0))))
    return Event(at, what, host)


def _harmless(rng: random.Random, hosts: tuple[str, ...], lasts: float) -> Event:
    what = rng.choice(("late", "freeze", "cut", "stale answer", "wall clock", "stop job.lease"))
    values = {
        "late": (0.3, 1.0, 1.4),
        "freeze": (0.5, 1.2, 2.0),
        "cut": (0.5, 2.0),
        "stale answer": (b'{"n": 999999}\n',),
        "wall clock": (-86400.0, -5.0, 5.0, 86400.0),
        "stop job.lease": (None,),
    }[what]
    return Event(rng.uniform(0.0, lasts + 0.5), what, rng.choice(hosts), rng.choice(values))


@dataclass(frozen=True)
class Cause:
    """Something that may end the job, or must."""

    begun: float
    over: float
    code: int
    why: str
    sure: bool


class World:
    """One schedule while it runs."""

    def __init__(self, schedule: Schedule, cluster: Cluster) -> None:
        self.schedule, self.cluster = schedule, cluster
        self.sim = Sim(random.Random(schedule.seed), schedule.preempt)
        names = list(NAMES[: len(schedule.hosts) + len(schedule.spares)])
        cluster.begin(self.sim, names, schedule.latency)
        cluster.commands = {"train": self.train, "chatter": lambda process: None}
        self.hosts = cluster.hosts
        self.main = self.hosts[NAMES[0]]
        self.begun = self.sim.now
        self.causes: list[Cause] = []
        self.broken: list[str] = []
        self.trace: list[str] = []
        self.ranks: list[Trainer] = []
        self.attempts: dict[int, float] = {}  # when the leases of each began
        self.launched: set[int] = set()
        disturbing = [each for each in schedule.events if each.what in ("late", "freeze", "cut")]
        self.disturbed = sum(each.value for each in disturbing)
        self.calm = not disturbing
        self.several = len(disturbing) > 1

    def note(self, text: str) -> None:
        self.trace.append(f"{self.sim.now - self.begun:8.3f} {text}")

    def cause(self, code: int, why: str, sure: bool, lasts: float = 0.0) -> None:
        self.note(f"cause: {why} ({code})")
        self.causes.append(Cause(self.sim.now, self.sim.now + lasts, code, why, sure))

    def breaks(self, number: int, why: str) -> None:
        self.note(f"BROKEN {number}: {why}")
        self.broken.append(f"invariant {number}: {why}")

    # The job

    def write_job(self) -> None:
        schedule = self.schedule

        def entry(name: str) -> dict[str, Any]:
            number = NAMES.index(name) + 1
            return {"name": name, "address": f"10.77.0.{number}", "slots": schedule.slots, "gpus": [],
                    "taken": list(range(schedule.slots)), "visible": ""}  # fmt: skip

        size = len(schedule.hosts) * schedule.slots
        run = str(self.cluster.root / NAMES[0] / "run" / "inside" / "run.py")
        launches = []
        for number, name in enumerate(schedule.hosts):
            argv = ["python3", run, "job.spawn", str(schedule.slots), str(number * schedule.slots),
                    "python3", run, "job.rank", JOB]  # fmt: skip
            launches.append(
                {"host": name, "argv": argv, "env": {"WORLD_SIZE": str(size)}, "serves": False, "name": ""}
            )
        for name, host in self.hosts.items():
            root = self.cluster.root / name / "run"
            folder = root / "jobs" / JOB
            (folder / "code").mkdir(parents=True)
            (folder / "logs").mkdir()
            about = {"cluster": "t", "host": name, "address": entry(name)["address"], "interface": "eth0"}
            (root / "conf" / "host.json").write_text(json.dumps({**about, "network": {}}))
            job = {
                "id": JOB, "cluster": "t", "owner": "alice", "world_size": size, "command": ["train"],
                "launcher": "python", "variables": True, "tuned": {}, "rules": "", "share": False,
                "workdir": str(folder / "code"), "hosts": [entry(each) for each in schedule.hosts],
                "log_bytes": 1 << 20, "main": NAMES[0], "master_address": "10.77.0.1", "master_port": 29500,
                "timeout": schedule.timeout, "grace": schedule.grace, "networks": ["10.77.0.0/24"],
                "spares": [entry(each) for each in schedule.spares], "max_restarts": schedule.restarts,
                "min_hosts": schedule.min_hosts, "stall_after": None, "elastic": False,
                "local_rank_word": "", "transport": "ssh", "attempt": 0, "launches": launches,
                "world_sizes": [size, size],
            }  # fmt: skip
            (folder / "job.json").write_text(json.dumps(job))
            host.wall += 0.3 * NAMES.index(name)

    def train(self, process: Process) -> None:
        self.ranks.append(Trainer(self, process))

    # What happens to it

    def happen(self, event: Event) -> None:
        host = self.hosts.get(event.host, self.main)
        self.note(f"event: {event.what} {event.host} {event.value if event.value is not None else ''}")
        own = f"{event.what} on {host.name}"
        if event.what == "kill rank":
            alive = [each for each in self.ranks if each.host is host and not each.process.dead]
            if alive:
                alive[0].killed_by_chance(own)
        elif event.what.startswith("kill "):
            name = event.what.partition(" ")[2]
            where = self.main if name == "job.supervisor" else host
            found = self.find(where, name)
            if found:
                self.kill(found[0], name, own)
        elif event.what == "stop job.lease":
            for process in self.find(host, "job.lease"):
                if signal.SIGTERM in process.handlers:  # from then on it ignores it
                    process.signal(signal.SIGTERM)
        elif event.what == "cut":
            if host is not self.main:
                self.cut(host, event.value, own)
        elif event.what == "reset":
            if host is not self.main:
                self.cause(LOST, own, False, 40.0)
                self.reset(host)
        elif event.what == "power off":
            self.power_off(host, own)
        elif event.what == "freeze":
            if event.value > 2.5 or self.several:
                self.cause(LOST, own, False, event.value + 40.0)
            host.frozen_until = self.sim.now + event.value
        elif event.what == "late":
            if self.several:
                self.cause(LOST, own, False, 40.0)
            host.link.latency = event.value
            self.sim.call(5.0, lambda: setattr(host.link, "latency", self.schedule.latency))
        elif event.what == "wall clock":
            host.wall += event.value
        elif event.what in ("noise", "stale answer"):
            if event.what == "noise":
                self.cause(LOST, own, False, 40.0)
            for process in self.find(host, "job.lease"):
                if 1 in process.fds and process.fds[1].pipe.writable and process.fds[1].pipe.readers:
                    process.fds[1].pipe.put(event.value)
        elif event.what == "stop":
            self.stop(*event.value)

    def find(self, host: Host, program: str) -> list[Process]:
        return [each for each in host.processes.values() if each.argv[0] == program]

    def stop(self, name: str, grace: float | None) -> None:
        found = self.find(self.main, "job.supervisor")
        if not found or not found[0].handlers:
            return
        if grace is not None:
            self.cluster.images[self.main.name].path(self.folder(self.main) / "grace").write_text(
                f"{grace}\n"
            )
        number = signal.Signals[name]
        self.cause(128 + number, f"stop by {name}", True, 60.0)
        found[0].signal(number)

    def kill(self, process: Process, name: str, own: str) -> None:
        if name == "job.supervisor":
            self.cause(BROKEN, own, True, 60.0)
        elif name == "job.lease":
            self.cause(LOST, own, False, 60.0)
        else:
            is_rank = name == "job.rank"
            self.cause(137, own, is_rank and self.has_rank(process), 0.0 if is_rank else 5.0)
        process.signal(signal.SIGKILL)

    def has_rank(self, process: Process) -> bool:
        return any(each.process.parent is process and not each.process.dead for each in self.ranks)

    def cut(self, host: Host, seconds: float, own: str) -> None:
        if seconds > 2.5 or self.several:
            self.cause(LOST, own, False, seconds + 40.0)
        host.link.up = False
        there = [each for each in self.ranks if each.host is host and not each.process.dead]
        since = self.sim.now

        def heal() -> None:
            if host.has_power:
                host.link.heal()

        def judge() -> None:
            if not host.link.up and host.frozen_until < since:
                for each in there:
                    if not each.process.dead:
                        self.breaks(
                            3, f"{each} runs {SURVIVAL_S:.0f} s after the connection to its host was cut"
                        )

        self.sim.call(seconds, heal)
        if seconds > SURVIVAL_S:
            self.sim.call(SURVIVAL_S, judge)

    def reset(self, host: Host) -> None:
        for process in list(self.main.processes.values()):
            if process.argv[0] == "ssh" and process.argv[-2] == host.name:
                process.breaks("Connection reset by peer")  # type: ignore[attr-defined]

    def power_off(self, host: Host, own: str) -> None:
        host.has_power = False
        if host is self.main:
            self.cause(BROKEN, own, True, 60.0)
        else:
            self.cause(LOST, own, False, 1e6)
            host.link.up = False
        for rank in self.ranks:
            rank.excused = rank.excused or rank.host is host
        for process in list(host.processes.values()):
            process.on_exit = [each for each in process.on_exit if each.__name__ == "closed"]
            process.die(-9)

    # How it ends

    def folder(self, host: Host) -> Path:
        return self.cluster.root / host.name / "run" / "jobs" / JOB

    def run(self) -> str:
        self.write_job()
        for event in self.schedule.events:
            self.sim.call(event.at, lambda event=event: self.happen(event))
        if self.schedule.timeout is not None:
            self.sim.call(self.schedule.timeout, lambda: self.cause(TIMED_OUT, "timeout", False, 60.0))
        env = {"TOOLKIT_SUPERVISOR": JOB, "PATH": "/bin"}
        pipe = Pipe(self.sim)
        own = {name: {"TOKEN": SECRET + name} for name in self.hosts}
        variables = {"env": {"TOKEN": "of no host"}, "override": {}, "token": "", "hosts": own}
        given = {0: End(pipe, "r")}
        pipe.put(json.dumps(variables).encode() + b"\n")
        pipe.end_input()
        supervisor = self.cluster.start(self.main, ["job.supervisor", JOB], env, None, given, True)
        self.watch()
        try:
            if not self.sim.wait_until(
                lambda: supervisor.dead or self.sim.stuck, [supervisor.waiters], FINAL_S
            ):
                self.breaks(2, f"the supervisor has not ended after {FINAL_S:.0f} s")
            if self.sim.stuck:
                self.breaks(2, "a loop without end")
            if not self.broken:
                self.judge(supervisor)
        finally:
            self.sim.close()
            self.cluster.end()
        if self.broken:
            recent = "\n".join(self.trace[-RECENT:])
            errors = "\n".join(f"{name}:\n{text}" for name, text in self.sim.errors)
            raise Broken("; ".join(self.broken) + f"\n{recent}\n{errors}")
        return self.outcome

    def watch(self) -> None:
        """Look at each process as it starts."""
        start = self.cluster.become

        def become(process: Process) -> None:
            program = program_of(process.argv)
            if program == "job.lease" and process.host is self.main:
                self.attempts.setdefault(int(process.argv[-1]), self.sim.now)
            if program == "job.launch":
                self.launched.add(max(self.attempts))
            if program == "job.rank":
                process.on_exit.append(lambda: self.check_record(process))
            start(process)

        self.cluster.become = become  # type: ignore[method-assign]

    def check_record(self, process: Process) -> None:
        code = process.returncode or 0
        own = [each for each in self.ranks if each.process.parent is process or each.runner is process]
        if code < 0 or not own or own[0].process.returncode is None:
            return
        rank, expected = own[0], own[0].process.returncode
        expected = 128 - expected if expected < 0 else expected
        try:
            record = json.loads((self.folder(process.host) / "logs" / f"rank-{rank.rank}.exit").read_text())
        except (OSError, ValueError):
            record = {}
        if record.get("pid") != process.pid or record.get("exit_code") != expected:
            self.breaks(1, f"{rank} ended with {expected}, and its record is {record}")

    def judge(self, supervisor: Process) -> None:
        ended = self.sim.now
        status = self.status()
        killed = any(each.code == BROKEN for each in self.causes)
        if killed and status.get("state") not in FINAL_STATES and self.main.has_power:
            env = {"PATH": "/bin"}
            stop = self.cluster.start(self.main, ["job.stop", JOB], env, None, {}, True)
            self.sim.wait_until(lambda: stop.dead or self.sim.stuck, [stop.waiters], FINAL_S)
            status = self.status()
        if not self.main.has_power:
            self.outcome = "main lost"
        elif killed and not status:
            self.outcome = "never begun"
        elif status.get("state") not in FINAL_STATES or status.get("exit_code") is None:
            self.breaks(2, f"the job's state at its end is {status or 'not written'}")
            return
        else:
            self.outcome = status["state"] + (" restarted" if len(self.launched) > 1 else "")
            self.note(f"end: {status['state']} {status['exit_code']} {status['reason']}")
            self.judge_code(status, ended)
        self.judge_survivors(status)

    def status(self) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder(self.main) / "status.json").read_text())
            return value
        except (OSError, ValueError):
            return {}

    def judge_code(self, status: dict[str, Any], ended: float) -> None:
        code = status["exit_code"]
        last = max(self.launched, default=0)
        since = self.attempts.get(last, 0.0)
        own = [each for each in self.ranks if each.attempt == last]
        mine = [each for each in self.causes if each.over >= since and each.begun <= ended]
        sure = sorted(each.begun for each in mine if each.sure)
        near = max(sure[0], since) + TOGETHER_S + self.disturbed if sure else ended
        # Without its supervisor a job ends with the same code, whatever had begun to end it.
        allowed = {each.code for each in mine if each.begun <= near or each.code == BROKEN}
        if self.schedule.restarts:  # a stop or the time limit takes the place of a restart
            allowed |= {each.code for each in mine if each.code in (TIMED_OUT, 130, 143)}
        size = {each.size for each in own}
        all_good = bool(own) and len(own) == size.pop() and all(each.process.returncode == 0 for each in own)
        if code == 0:
            if not all_good:
                self.breaks(5, f"the job has succeeded, and its ranks have not: {own}")
            return
        if not mine:
            self.breaks(5, f"the job has ended with {code} ({status['reason']}), and nothing was wrong")
        elif code not in allowed and not (
            self.disturbed and any(each.plan.peers == "blame" for each in own) and code == 1
        ):
            self.breaks(
                5, f"the job has ended with {code} ({status['reason']}), not with one of {sorted(allowed)}"
            )
        failed = [each.begun for each in mine if each.sure and each.why.startswith("rank ")]
        others = [each for each in mine if not each.why.startswith("noise")]
        if failed and self.calm and len(others) == 1 and ended - failed[0] > SOON_S + self.schedule.grace:
            self.breaks(1, f"a rank failed, and the job ended {ended - failed[0]:.1f} s later")

    def judge_survivors(self, status: dict[str, Any]) -> None:
        alive = [each for each in self.ranks if not each.process.dead]
        reachable = self.calm and not any(each.code in (LOST, BROKEN) for each in self.causes)
        for each in alive:
            if reachable and each.host.name not in status.get("unswept", []):
                self.breaks(3, f"{each} runs after the job's end")
        until = self.sim.now + SURVIVAL_S + self.disturbed
        while self.sim.now < until and not self.sim.stuck:
            if all(each.process.dead for each in self.ranks) and not self.holders():
                break
            self.sim.wait(0.5)
        for each in self.ranks:
            if not each.process.dead:
                self.breaks(3, f"{each} runs {SURVIVAL_S:.0f} s after the job's end")
        if found := self.holders():
            self.breaks(6, f"{SURVIVAL_S:.0f} s after the job's end its variables are in {found}")

    def holders(self) -> list[str]:
        """Return the files of all hosts that hold variables of the job."""
        found = []
        for name in self.hosts:
            for path in (self.cluster.root / name).rglob("*"):
                with suppress(OSError):
                    if SECRET.encode() in self.cluster.images[name].followed(path).read_bytes():
                        found.append(str(path))
        return found


class Trainer:
    """A rank's own command."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process, self.host = world, process, process.host
        self.runner = process.parent
        self.rank = int(process.env["TOOLKIT_RANK"])
        self.attempt = int(process.env["TOOLKIT_RESTART"])
        self.size = int(process.env["WORLD_SIZE"])
        self.plan = world.schedule.ranks.get((self.attempt, self.rank), Rank(1.0))
        self.is_failing = self.excused = False
        self.blamed = ""
        world.note(f"{self} starts")
        if process.env.get("TOKEN") != SECRET + self.host.name:
            world.breaks(6, f"{self} has the TOKEN {process.env.get('TOKEN')!r}")
        process.on_signal = self.signaled
        process.on_exit.append(self.ended)
        self.print(b"step 0\n")
        self.host.after(self.plan.lasts, self.finish)

    def __repr__(self) -> str:
        return f"rank {self.rank} of attempt {self.attempt} on {self.host.name}"

    def print(self, text: bytes) -> None:
        end = self.process.fds.get(2)
        if end is not None and end.pipe.writable and end.pipe.readers:
            end.pipe.put(text)

    def finish(self) -> None:
        if self.process.dead or self.blamed:
            return
        code = self.plan.code
        if not code and self.plan.peers != "free" and self.is_partitioned():
            self.host.after(0.5, self.finish)  # it waits for data of the others
            return
        if code:
            self.world.cause(128 - code if code < 0 else code, f"{self} fails", True)
            self.is_failing = True
            if self.plan.orphan:
                self.leave_orphan()
        self.process.die(code)

    def is_partitioned(self) -> bool:
        own = [each for each in self.world.ranks if each.attempt == self.attempt]
        return any(not each.host.link.up for each in own)

    def leave_orphan(self) -> None:
        pipe_fds = {number: type(end)(end.pipe, end.mode) for number, end in self.process.fds.items()}
        orphan = self.world.cluster.start(self.host, ["chatter"], self.process.env, None, pipe_fds, False)

        orphan.pgid = self.process.pgid

        def speak() -> None:
            if not orphan.dead and self.world.sim.now < self.world.begun + FINAL_S:
                end = orphan.fds[1]
                if end.pipe.writable and end.pipe.readers:
                    end.pipe.put(b"alive\n")
                self.host.after(0.25, speak)

        speak()

    def killed_by_chance(self, why: str) -> None:
        self.world.cause(137, f"rank {self.rank}: {why}", True)
        self.is_failing = True
        self.process.die(-9)

    def signaled(self, signum: int) -> bool:
        world = self.world
        if signum not in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL) or self.excused:
            return False
        world.note(f"{self} gets {signal.Signals(signum).name}")
        since = world.attempts.get(self.attempt, 0.0)
        if not any(each.over >= since for each in world.causes):
            world.breaks(4, f"{self} is healthy and gets {signal.Signals(signum).name}")
        if signum == signal.SIGKILL or self.plan.term[0] == "die":
            return False
        if self.plan.term[0] == "exit":
            _, code, delay = self.plan.term
            self.blamed = "asked"
            self.host.after(delay, lambda: self.process.die(code))
        return True

    def ended(self) -> None:
        self.world.note(f"{self} ends with {self.process.returncode}")
        if not self.process.returncode:
            return
        # No word comes from a host without power.
        for other in self.world.ranks:
            if other is not self and other.attempt == self.attempt and not other.process.dead:
                other.peer_failed(silently=self.excused)

    def peer_failed(self, silently: bool) -> None:
        if self.plan.peers == "free" or self.blamed:
            return
        self.blamed = "a peer"
        if self.plan.peers == "blame" and not silently:
            self.host.after(self.world.sim.rng.uniform(0.02, 0.3), self.blame)

    def blame(self) -> None:
        if not self.process.dead:
            self.print(b"RuntimeError: Connection closed by peer [10.77.0.1]:29500\n")
            self.process.die(1)


_CLUSTERS: dict[Path, Cluster] = {}
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def cluster_of(programs: Path) -> Cluster:
    """Return simulated hosts with these programs; made once, as loading takes longer than a schedule."""
    if programs not in _CLUSTERS:
        memory = Path("/dev/shm")
        folder = tempfile.TemporaryDirectory(prefix="toolkit-fuzz-", dir=memory if memory.is_dir() else None)
        _FOLDERS.append(folder)
        _CLUSTERS[programs] = Cluster(programs, Path(folder.name).resolve())
    return _CLUSTERS[programs]


def close() -> None:
    """Remove the folders of all hosts, and end the threads."""
    end_workers()
    _CLUSTERS.clear()
    while _FOLDERS:
        _FOLDERS.pop().cleanup()


def run(schedule: Schedule, programs: Path = PROGRAMS) -> str:
    """Run a schedule to its end; return the job's state. Raises Broken."""
    return World(schedule, cluster_of(programs)).run()
