"""Running jobs by the containers that exist, and the refusal of an `up` that would end one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit import cluster_world as world
from tests.unit.each import for_each
from toolkit.cluster.keys import CLUSTER_KEY
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.session import Session
from toolkit.core.command import TIMED_OUT, Command, Result
from toolkit.core.facts import Facts, Remembered
from toolkit.errors import NotReady, Unreachable
from toolkit.jobs.control import refuse_to_end_jobs
from toolkit.jobs.records import running_jobs

STATUS = {"state": "running", "exit_code": None, "started": 1.0, "ended": None, "pid": 5, "reason": ""}
RUNNING = json.dumps([{"id": world.JOB_ID, "alive": True, "status": STATUS, "now": 1.0}])
LATE = Result(TIMED_OUT, "", "the command did not finish within 30 s")
CHANGED = world.HOSTS.replace("4g", "5g")
MAIN_MOVED = world.HOSTS.replace("main: gpu1", "main: gpu2")
ALL = "`toolkit up` would recreate the containers on gpu1, gpu2, cpu3"
WORKERS = "`toolkit up` would recreate the containers on gpu2, cpu3"


class Engine:
    """The engine of a host: the answer of each container to the query for its jobs."""

    def __init__(self, name: str, said: dict[str, str | Result]) -> None:
        self.name, self.said = name, said

    def run(self, command: Command, timeout: float | None = None) -> Result:
        (container,) = (word for word in map(str, command.argv) if word.startswith("toolkit-demo-"))
        said = self.said.get(f"{self.name}/{container}", "[]")
        return Result(0, said) if isinstance(said, str) else said


def session(text: str, transport: str = "ssh", **said: str | Result) -> Session:
    """A cluster that runs as `up` started it from HOSTS, and a hosts file with another text.

    Args:
        said: lists of jobs, by host; other containers list none.
    """
    transport = f"transport: {transport}\n"
    before = make_layout(world.inventory(world.HOSTS + transport), Observed(world.facts_when_up()))
    made = Session(world.inventory(text + transport))
    made.facts = {n: f for n, f in world.as_started(before).items() if n in made.inventory.names}
    made.facts = {n: with_key(f, world.public_key("gpu1")) for n, f in made.facts.items()}
    answers = {f"{n}/{f.containers[0].name}": said[n] for n, f in made.facts.items() if n in said}
    made.runners = {name: Engine(name, answers) for name in made.facts}  # type: ignore[misc]
    return made


def with_key(facts: Facts, key: str) -> Facts:
    """Return facts of a host with the key of main: the key pair on gpu1, its public half on workers."""
    if facts.host == "gpu1":
        return replace(facts, public_keys=((CLUSTER_KEY, key),) if key else ())
    return replace(facts, remembered=Remembered(main_key=key))


def change(session: Session, host: str, **changes: Any) -> None:
    """Change fields of the container on a host."""
    facts = session.facts[host]
    session.facts[host] = replace(facts, containers=(replace(facts.containers[0], **changes),))


def lose(session: Session, host: str) -> None:
    """Let a host be away."""
    del session.facts[host]
    session.errors[host] = Unreachable("no answer within 10 s", "ping gpu1", host)


def refusal(session: Session, prepare: bool = False) -> tuple[str, str]:
    """Return the error of `up` and its fix; empty if it goes on."""
    layout = make_layout(session.inventory, Observed(session.facts))
    try:
        refuse_to_end_jobs(session, layout, prepare)
    except NotReady as error:
        return str(error).partition("\n")[0], error.fix
    return "", ""


def test_a_job_is_found_where_it_runs_after_an_edit_of_main() -> None:
    here = session(MAIN_MOVED, gpu1=RUNNING)
    assert running_jobs(here) == [world.JOB_ID]
    what, fix = refusal(here)
    assert what.endswith(
        f"{world.JOB_ID} is running, and `toolkit up` would recreate the containers on gpu1, gpu2"
    )
    assert fix.splitlines() == [
        f"in hosts.yaml: set main: gpu1  # then: toolkit stop {world.JOB_ID}",
        "toolkit up --force  # alternative that keeps hosts.yaml and stops the job",
    ]
    # The containers of the other role are removed without a start, too.
    what, fix = refusal(here, prepare=True)
    assert what.endswith("`toolkit up` would remove the containers on gpu1, gpu2")
    assert "\ntoolkit up --prepare --force  # alternative" in fix
    # Other changes: the supervisor is where the file sets main.
    what, fix = refusal(session(CHANGED, gpu1=RUNNING, gpu2=LATE))
    assert (what, fix.partition("  #")[0]) == (
        f"job {world.JOB_ID} is running, and {ALL}",
        f"toolkit stop {world.JOB_ID}",
    )


def _without_main(here: Session) -> None:
    lose(here, "gpu1")


def _paused(here: Session) -> None:
    change(here, "gpu1", state="paused")


def _unreadable(here: Session) -> None:
    here.runners["gpu1"] = Engine("gpu1", {"gpu1/toolkit-demo-main": "nonsense"})  # type: ignore[assignment]


@for_each(
    ("prepare", "what", "fix"),
    [
        (
            lambda here: None,
            f"cannot list the jobs of gpu1: the command did not finish within 30 s, and {ALL}",
            "toolkit status -v",
        ),
        (_unreadable, "gpu1: toolkit cannot read the job list", "toolkit status -v"),
        (_without_main, f"cannot list the jobs of gpu1: no answer within 10 s, and {WORKERS}", "ping gpu1"),
        (
            _paused,
            f"cannot list the jobs of gpu1: the container toolkit-demo-main is paused, and {ALL}",
            "on gpu1: docker unpause toolkit-demo-main",
        ),
    ],
)
def test_up_removes_no_container_while_it_is_unknown_if_a_job_is_running(
    prepare: Callable[[Session], None], what: str, fix: str
) -> None:
    here = session(CHANGED, gpu1=LATE)
    prepare(here)
    said, fixes = refusal(here)
    assert said.startswith(what)
    assert fixes.splitlines() == [fix, "toolkit up --force  # if no job is running"]
    assert running_jobs(here) == [], "`down` goes on"


def test_the_main_host_of_a_running_cluster_is_not_in_the_file() -> None:
    without_gpu1 = MAIN_MOVED.replace("  gpu1:\n    address: 10.77.0.2\n", "")
    what, fix = refusal(session(without_gpu1))
    assert what == (
        "cannot list the jobs: no host that answered has the container toolkit-demo-main, "
        "and `toolkit up` would recreate the containers on gpu2"
    )
    assert fix.startswith("in hosts.yaml: set main: to the main host of the last `toolkit up`\n")


@pytest.mark.parametrize("key", [world.public_key("gpu1"), ""], ids=["late", "early"])
def test_up_goes_on_after_an_up_that_failed_on_main_alone(key: str) -> None:
    """Main has no container. If main failed early, it also has no key, and workers admit no main."""
    here = session(CHANGED)
    here.facts = {name: with_key(facts, key) for name, facts in here.facts.items()}
    here.facts["gpu1"] = replace(here.facts["gpu1"], containers=())
    assert refusal(here) == ("", "")
    # Another host has been main since then.
    here.facts["cpu3"] = with_key(here.facts["cpu3"], world.public_key("gpu2"))
    what, _ = refusal(here)
    assert what.startswith("cannot list the jobs: no host that answered has the container toolkit-demo-main")


def test_up_goes_on_if_no_container_is_removed_or_no_supervisor_can_run() -> None:
    here = session(world.HOSTS, gpu1=LATE)
    assert refusal(here) == ("", "")
    # Another version replaces its programs, and keeps the containers.
    here.facts = {n: replace(f, programs=(("rank.py", "00ff"),)) for n, f in here.facts.items()}
    assert refusal(here) == ("", "")
    # With ssh, main reports for all hosts.
    here = session(CHANGED, gpu2=LATE)
    lose(here, "cpu3")
    assert refusal(here) == ("", "")
    # An image without Python runs no job.
    assert refusal(session(CHANGED, gpu1=Result(127, "", "timeout: failed to run command 'python3'"))) == (
        "",
        "",
    )
    # The supervisor ended with the container of main.
    here = session(CHANGED)
    change(here, "gpu1", state="exited")
    assert refusal(here) == ("", "")


@pytest.mark.parametrize("silent", ["gpu1", "gpu2"])
def test_each_host_reports_its_part_of_a_job_with_exec(silent: str) -> None:
    what, _ = refusal(session(CHANGED, "exec", **{silent: LATE}))
    assert what == f"cannot list the jobs of {silent}: {LATE.stderr}, and {ALL}"
    # The containers of hosts that are away stay, and those of the others report their jobs.
    here = session(CHANGED, "exec")
    lose(here, silent)
    assert refusal(here) == ("", "")
