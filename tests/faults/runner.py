"""Runs one case: reach the phase, inject the fault, observe the result, repair, take the census."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any

from tests.e2e.world import Toolkit
from tests.faults.arena import LIMITS, PORT, TRIED, Arena, Running
from tests.faults.catalogue import FAULTS, PHASE, SHARED
from tests.faults.hosts import Asked, HostGone, docker
from tests.faults.model import (
    HOSTS,
    Answer,
    Before,
    Case,
    Fault,
    Line,
    Login,
    Machine,
    Moment,
    NewFile,
    Operator,
    Phase,
    Process,
    Second,
    Shell,
    Signal,
    ToCommand,
)
from tests.faults.verdict import Seen, root_cause

# How long a phase is waited for.
REACH_S = 60.0
# Our own words alone: launchers say FAILED, too.
_HINT = re.compile(
    r"^\[toolkit\] .*(\brank \d+ on \S+ |\bis lost\b)|^\s*FAILED  |^\s*[^:]+: FAILED at |^toolkit: "
    r"|^job \S+: (failed|lost|timeout|stopped)"
)

# The target of the fault was already gone: then there was no fault.
_TOO_LATE = re.compile(r"is not running|No such container|is already in progress")


class Trial:
    """One case on the lab."""

    def __init__(self, arena: Arena, case: Case) -> None:
        self.arena, self.case = arena, case
        self.fault: Fault = next(each for each in FAULTS if each.name == case.fault)
        self.phase: Phase = PHASE[case.phase]
        self.answer: Answer = self.fault.answers[case.phase]
        self.toolkit: Toolkit = arena.tried
        self.seen = Seen()
        self.command: Running | None = None
        self.at: float | None = None  # when the fault was done
        self.healed = False
        self.asked: Asked | None = None  # the ambush on the host
        self.watches: dict[str, Asked] = {}
        self.has_job = self.phase.verb in ("run", "stop", "down")
        self.struck = case.host if self.fault.strikes else ""

    @property
    def renewed(self) -> set[str]:
        """Hosts whose services, or all processes, were restarted."""
        anew = self.fault.strikes or isinstance(self.fault.effect, Machine)
        return {self.case.host} if anew or self.fault.name.startswith("sshd") else set()

    def run(self) -> Seen:
        """Return what was seen; afterwards the practice cluster is healthy or was restarted."""
        arena, seen = self.arena, self.seen
        arena.slow = []
        try:
            self._prepare()
            self._go()
            self._heal()
            self._afterwards()
        except (HostGone, AssertionError, OSError, subprocess.SubprocessError) as error:
            seen.lab = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        finally:
            if self.command is not None and self.command.ended is None:
                self.command.kill()
        seen.slow += arena.slow
        if not seen.lab and (why := arena.unwell()):
            seen.lab = why
        if seen.lab:
            with suppress(HostGone):
                self._heal()
            arena.restart()
        return seen

    # Before

    def _prepare(self) -> None:
        arena, case = self.arena, self.case
        arena.make_folders(case.folder)
        if self.phase.verb == "up":
            if arena.standing is not None:
                arena.bring_down()
            self.words: tuple[str, ...] = ("up",)
        elif self.phase.verb == "send":
            arena.make_image()
            arena.forget_image()
            self.toolkit, self.words = arena.sending, ("image", "send")
        else:
            arena.bring_up()
            env = [word for pair in self.fault.env for word in ("--env", pair)]
            self.words = arena.train_words(case.folder, case.launcher, *env)
        if self.phase.verb in ("stop", "down"):
            start = arena.train_words(case.folder, case.launcher, "-d", "--json")
            job = str(arena.tried.run(*start, check=True).json["job"])
            self._wait_for_step(2)
            self.words = ("stop", job) if self.phase.verb == "stop" else ("down", "--no-save")
        if case.phase == "moment-run":
            arena.touch(case.folder, "finish")

    def _wait_for_step(self, step: int) -> None:
        reply = self.arena.agents["box1"].sh(
            f"for i in $(seq 400); do test -e {SHARED}/{self.case.folder}/step-{step} && exit; sleep 0.1;"
            " done; echo none"
        )
        assert not reply.strip(), "the job makes no steps"

    def _shell(self, text: str) -> str:
        """Return the text with its variables defined."""
        case, arena = self.case, self.arena
        role = "main" if case.host == HOSTS[0] else "worker"
        peers = " ".join(arena.addresses[host] for host in HOSTS if host != case.host)
        names = {
            "NAME": f"toolkit-{TRIED}-{role}",
            "PEERS": f"'{peers}'",
            "PORT": str(PORT),
            "OPERATOR": f"{arena.addresses[case.host].rpartition('.')[0]}.1",
            "SHARED": SHARED,
            "CASE": case.folder,
            "RANK": str(case.rank),
        }
        return "; ".join(f"{name}={value}" for name, value in names.items()) + "\n" + text

    def _effect(self) -> dict[str, Any]:
        """Return the work of the agent; empty if this process does it."""
        effect = self.fault.effect
        if isinstance(effect, Signal):
            return {"signal": effect.signal, "words": effect.to.words, "mark": effect.to.mark}
        if isinstance(effect, Shell):
            return {"shell": self._shell(effect.make)}
        return {}

    # The fault

    def _go(self) -> None:
        trigger = self.phase.trigger
        if isinstance(self.fault.effect, Operator):
            self.toolkit = self.arena.with_wrong(self.fault.effect.what, self.case.host)
            self._mark(time.time())
        if isinstance(trigger, Before) and isinstance(self.fault.effect, ToCommand):
            self._start()
            # It imports, reads its input, calls; before that Python itself starts, and ends in its own words.
            time.sleep(0.3 + self.case.moment)
            self._strike()
        elif isinstance(trigger, Before):
            if not isinstance(self.fault.effect, Operator):
                self._strike()
            self._start()
        elif isinstance(trigger, Line):
            self._start()
            self._wait_for_line(trigger.pattern.format(host=self.case.host))
            self._strike()
        elif isinstance(trigger, Moment):
            self._start()
            assert self.command is not None
            if self.command.wait(self.case.moment * self.arena.lengths[self.phase.verb]) is None:
                self._strike()
        else:
            self._ambush(trigger)
        self._watch()
        self._see_it_through()

    def _start(self) -> None:
        self.command = self.arena.start(*self.words, toolkit=self.toolkit)

    def _mark(self, at: float) -> None:
        self.at, self.seen.injected = at, True

    def _strike(self) -> None:
        """Do the fault now."""
        effect, host = self.fault.effect, self.case.host
        if isinstance(effect, ToCommand):
            assert self.command is not None
            alive = self.command.ended is None
            at = time.time()
            for number, name in enumerate(effect.signals):
                time.sleep(effect.gap if number else 0)
                if self.command.ended is None:
                    self.command.process.send_signal(getattr(signal, f"SIG{name}"))
            if alive:
                self._mark(at)
        elif isinstance(effect, Machine):
            if effect.make == "pause":
                # Containers in a practice host are in a control group beside its own.
                self.arena.agents[host].sh("docker pause $(docker ps -q) >/dev/null")
            self._mark(time.time())
            docker(effect.make, self.arena.containers[host])
        elif isinstance(effect, Second):
            self._mark(time.time())
            self._second()
        elif isinstance(effect, Signal | Shell):
            asked = self.arena.agents[host].ask("strike", effect=self._effect(), cluster=TRIED)
            self._done(asked.get(60))

    def _done(self, reply: dict[str, Any]) -> None:
        if reply["done"]:
            self._mark(float(reply["at"]))
        elif isinstance(self.fault.effect, Shell) and not _TOO_LATE.search(reply["said"]):
            self.seen.lab = f"cannot be done: {reply['said']}"

    def _second(self) -> None:
        words = self.words[:1] + (("-d",) if self.words[0] == "run" else ()) + self.words[1:]
        done = self.toolkit.run(*words, timeout=120)
        if done.status not in (0, 1, 3) or "Traceback" in done.err:
            self.seen.trouble.append(f"the second one: {done.status} {done.err[-300:]}")

    def _ambush(self, trigger: Login | NewFile | Process) -> None:
        """Let the agent wait for the phase on its host and strike there."""
        until: dict[str, Any] = {"login": True}
        if isinstance(trigger, NewFile):
            until = {"glob": trigger.glob.format(case=self.case.folder)}
        elif isinstance(trigger, Process):
            process = trigger
            if self.case.phase == "launch" and isinstance(self.fault.effect, Signal):
                process = self.fault.effect.to
            until = {"words": process.words, "mark": process.mark}
        agent = self.arena.agents[self.case.host]
        ask = {"until": until, "effect": self._effect(), "seconds": REACH_S, "cluster": TRIED}
        self.asked = agent.ask("wait", **ask)
        assert self.asked.get(10).get("ready"), "the agent is not ready"
        self._start()
        assert self.command is not None
        deadline = time.time() + REACH_S + 5
        ended: float | None = None
        while True:
            if not self.asked.answers.empty():
                break
            # It may end before its phase: then the fault came to nothing.
            ended = ended or self.command.ended
            if (ended and time.time() > ended + 2) or time.time() > deadline:
                self.asked.cancel()
                break
            time.sleep(0.02)
        reply = self.asked.get(10)
        if reply["met"] and not self._effect():
            self._strike()
        elif reply["met"]:
            self._done(reply)

    def _wait_for_line(self, pattern: str) -> None:
        command = self.command
        assert command is not None

        def there() -> bool:
            return command.ended is not None or any(re.search(pattern, line) for _, line in command.lines)

        with command.changed:
            command.changed.wait_for(there, REACH_S)

    def _watch(self) -> None:
        """Let each host say when nothing of the job is left there."""
        if not (self.has_job and self.at is not None):
            return
        if self.answer.gone is None and self.answer.own is None:
            return
        for host, agent in self.arena.agents.items():
            with suppress(HostGone):
                self.watches[host] = agent.ask("gone", cluster=TRIED, seconds=60.0)

    def _see_it_through(self) -> None:
        fault, command, seen = self.fault, self.command, self.seen
        assert command is not None
        limit = LIMITS[self.phase.verb]
        if fault.hold is not None and self.at is not None:
            command.wait(max(0.0, self.at + fault.hold - time.time()))
            self._heal()
        if self.phase.verb == "run" and "succeeded" in self.answer.states and not self.answer.goes_on:
            self.arena.touch(self.case.folder, "finish")
        seen.exit = command.wait(max(self.answer.end or 0, limit))
        if seen.exit is None:
            stuck = self.arena.folder / f"stuck-{self.case.folder}.txt"
            stuck.write_text(command.dump())
            seen.slow.append(f"toolkit {self.phase.verb} did not end within {limit:.0f} s, see {stuck.name}")
            command.kill()
        at = self.at if self.at is not None else command.lines[0][0] if command.lines else time.time()
        seen.ended = None if command.ended is None else command.ended - at
        if self.fault.effect != ToCommand(("KILL",)):
            seen.cause = root_cause(command.text) if seen.exit else ""
        hints = [when for when, line in command.lines if when >= at and _HINT.search(line)]
        seen.noticed = hints[0] - at if hints and seen.exit else None
        if "Traceback (most recent call last)" in command.text and "[box" not in command.text:
            seen.trouble.append(f"a traceback: {command.text[-400:]}")
        self._read_watches(command)

    def _read_watches(self, command: Running) -> None:
        assert self.at is not None or not self.watches
        frozen = isinstance(self.fault.effect, Machine) or "pause" in str(self._effect())
        longest = max(self.answer.gone or 0, self.answer.own or 0) + 10
        for host, asked in self.watches.items():
            if frozen and host == self.case.host:
                # What is frozen ends when it is thawed, and what has lost its power has ended.
                asked.cancel()
                continue
            assert self.at is not None
            try:
                reply = asked.get(max(1.0, self.at + longest - time.time()))
                self.seen.gone[host] = None if reply["at"] is None else max(0.0, reply["at"] - self.at)
            except HostGone:
                self.seen.gone[host] = None
                asked.cancel()

    # Afterwards

    def _heal(self) -> None:
        if self.healed or self.at is None:
            return
        self.healed = True
        effect, host = self.fault.effect, self.case.host
        if isinstance(effect, Machine):
            said = docker(effect.mend, self.arena.containers[host])
            assert "Error" not in said, said
            if effect.mend == "unpause":
                self.arena.agents[host].sh("docker unpause $(docker ps -q) >/dev/null")
            if effect.make == "kill":
                self.arena.agents[host].close()
                self.arena.wait_for(host)
                self.arena.dress(host)
        elif isinstance(effect, Shell) and effect.mend:
            reply = self.arena.agents[host].ask(
                "strike", effect={"shell": self._shell(effect.mend)}, cluster=""
            )
            answer = reply.get(60)
            assert answer["done"] or self.fault.settle, f"cannot be healed: {answer['said']}"
        elif isinstance(effect, Signal) and effect.heal:
            words = {"signal": effect.heal, "words": effect.to.words, "mark": effect.to.mark}
            self.arena.agents[host].ask("strike", effect=words, cluster=TRIED).get(30)

    def _afterwards(self) -> None:
        """Examine the invariants after the command has ended."""
        arena, seen, case, verb = self.arena, self.seen, self.case, self.phase.verb
        if seen.lab:
            return
        if self.has_job and verb != "down" and seen.injected:
            self._see_the_job()
        checkpoint = arena.agents["box1"].ask("checkpoint", folder=f"/srv/faults-disk/{case.folder}").get(30)
        seen.checkpoint = str(checkpoint["wrong"])
        if self.answer.goes_on or verb == "run":
            self._until_over()
        if verb == "up":
            self._again("up")
        if verb == "send":
            self._again("image", "send")
            arena.forget_image()
        arena.remove_folders(case.folder)
        if case.down or verb in ("up", "down"):
            done = arena.bring_down()
            if done.status:
                seen.trouble.append(f"down: {done.status} {done.err.strip()[-300:]}")
        seen.left = arena.left(self.renewed, self.fault.leaves)
        off = isinstance(self.fault.effect, Machine)
        seen.harmed = arena.harmed(self.struck, off)
        if seen.left or seen.harmed or self.struck or self.renewed or self.fault.leaves:
            arena.mend_beside()
            arena.recount()

    def _see_the_job(self) -> None:
        """Read from the records of main how the job ended; ask a job that continues to finish."""
        arena, seen = self.arena, self.seen
        if self.fault.settle:
            self._again("up", "--force")
        if self.answer.goes_on:
            arena.touch(self.case.folder, "finish")
        job = arena.newest_job()
        if job is not None and job["state"] in ("starting", "running") and self.phase.verb == "stop":
            self._again("stop", str(job["id"]))
            job = arena.newest_job()
        elif job is not None and job["state"] in ("starting", "running"):
            if not self.answer.goes_on and self.phase.verb == "run" and seen.exit not in (None, 0):
                seen.trouble.append(f"the job still runs after the command has ended with {seen.exit}")
            arena.run("wait", "wait", str(job["id"]), "--timeout", "60")
            job = arena.newest_job()
        if job is not None and self._is_ours(str(job["id"])):
            seen.state = str(job["state"])

    def _is_ours(self, job: str) -> bool:
        """Return whether the job is of this case: the command can end before it starts one."""
        known, self.arena.last_job = self.arena.last_job, job
        said = re.search(r"^job (\S+): \d+ ranks", self.command.text if self.command else "", re.MULTILINE)
        return job == said[1] if said else job != known

    def _until_over(self) -> None:
        """Nothing of the job may be left on any host, some time after all is well again."""
        asked = {
            host: agent.ask("gone", cluster=TRIED, seconds=20.0) for host, agent in self.arena.agents.items()
        }
        for host, reply in asked.items():
            if here := reply.get(30)["here"]:
                self.seen.left.append(f"{host}: processes of the job {here}")

    def _again(self, *words: str) -> None:
        """The same once more, now that all is well, must work."""
        verb = "send" if words[0] == "image" else words[0]
        done = self.arena.run(verb, *words, toolkit=self.toolkit if verb == "send" else self.arena.tried)
        if done.status:
            self.seen.trouble.append(f"{' '.join(words)} again: {done.status} {done.err.strip()[-300:]}")
