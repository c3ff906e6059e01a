"""Two clusters at the same second: ports that part, `up` that goes on, names that never meet."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

import toolkit.jobs.control
import toolkit.lifecycle.port_retry
from tests.unit import cluster_world as world
from toolkit.cluster.layout import Layout
from toolkit.cluster.ports import FIRST_MASTER_PORT, master_port, worker_port
from toolkit.cluster.session import Session, observe_layout
from toolkit.core.facts import Facts
from toolkit.core.host_programs import container_programs
from toolkit.core.report import FailureCause, Outcome, Report, Status
from toolkit.errors import NotReady
from toolkit.lifecycle.port_retry import TRIES, bring_up
from toolkit.lifecycle.up import plan_up
from toolkit.plan.execute import PlanInterrupted
from toolkit.plan.steps import Plan, WaitFor


def chosen(cluster: str, user: str, lost: frozenset[int] = frozenset(), **facts: object) -> int:
    inventory = world.inventory(world.HOSTS.replace("cluster: demo", f"cluster: {cluster}"))
    said = {n: replace(f, user=user, **facts) for n, f in world.cluster_facts().items()}  # type: ignore[arg-type]
    paths = {p.host: p for p in world.layout().paths}
    return worker_port(inventory, said, paths, lost)


def test_clusters_that_race_part_at_the_first_loss() -> None:
    assert chosen("demo", "alice") == chosen("demo", "bob") == 12345
    lost = frozenset((12345,))
    people = [(cluster, user) for cluster in ("demo", "train", "big") for user in ("alice", "bob", "eve")]
    ports = [chosen(*who, lost) for who in people]
    assert len(set(ports)) == len(people) and all(12345 < port < FIRST_MASTER_PORT for port in ports)
    assert ports == [chosen(*who, lost) for who in people], "the same in any process"
    # Should even those meet, they part at the next loss: the orders have nothing to do with each other.
    assert len({chosen(*who, lost | {port}) for who, port in zip(people, ports, strict=True)}) == len(people)


def test_a_port_that_was_lost_is_not_taken_again_though_nobody_seems_to_have_it() -> None:
    first = chosen("demo", "alice", frozenset((12345,)))
    second = chosen("demo", "alice", frozenset((12345, first)))
    third = chosen("demo", "alice", frozenset((12345,)), listening=(("0.0.0.0", first),))
    assert len({12345, first, second}) == 3 and third == second


def test_a_port_of_the_file_stays_where_it_is() -> None:
    text = world.HOSTS.replace("cluster: demo", "cluster: demo\nworker_port: 12345")
    paths = {p.host: p for p in world.layout().paths}
    assert worker_port(world.inventory(text), world.cluster_facts(), paths, {12345}) == 12345


def test_jobs_that_start_at_the_same_second_have_ports_of_their_own() -> None:
    said = world.facts()
    ids = [f"20261120-211300-train-{number:04x}" for number in range(20)]
    ports = {master_port(job, said, "10.77.0.2") for job in ids}
    assert len(ports) >= 19 and all(FIRST_MASTER_PORT <= port < 32768 for port in ports)
    port = master_port(ids[0], said, "10.77.0.2")
    busy = replace(said, listening=(("10.77.0.2", port),))
    assert master_port(ids[0], busy, "10.77.0.2") == port + 1


# up


class Hosts:
    """Hosts on which ports are taken: `up` loses them at sshd; what they say about it is theirs to choose.

    The first plan sends data, for which hosts in ``full`` have no room.
    """

    def __init__(
        self, taken: dict[str, set[int]], seen: dict[str, Facts] | None = None, full: tuple[str, ...] = ()
    ) -> None:
        self.taken, self.seen, self.full = taken, seen or {}, full
        self.tried: list[int] = []
        self.without: list[set[str]] = []

    def execute(
        self, session: Session, plan: Plan, *rest: object, without: Collection[str] = (), **more: object
    ) -> Report:
        self.without.append(set(without))
        waits = [step for step in plan.steps if isinstance(step, WaitFor)]
        port = int(waits[0].title.rpartition(":")[2])
        self.tried.append(port)
        first = len(self.tried) == 1
        outcomes = [Outcome("files", "write", "gpu1", "ok" if first else "skipped", detail="1 file")]
        if first:
            outcomes += [
                Outcome("data", "send data", host, "failed" if host in self.full else "ok", 0.0, "no room")
                for host in session.facts
            ]
        for step in waits:
            if step.host in self.full:
                outcomes.append(Outcome("sshd", step.title, step.host, "not run", id=step.id))
                continue
            lost = port in self.taken.get(step.host, ())
            cause = FailureCause.PORT_TAKEN if lost else FailureCause.OTHER
            status: Status = "failed" if lost else "ok"
            outcomes.append(
                Outcome("sshd", step.title, step.host, status, 0.0, "x" * lost, id=step.id, cause=cause)
            )
        return Report("up demo", tuple(outcomes), 1.0)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: None)
    monkeypatch.setattr(toolkit.jobs.control, "running_jobs", lambda *_: [])
    made = Session(world.inventory())
    made.facts = world.cluster_facts()
    yield made


def up(session: Session, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, **words: Any) -> Report:
    def probe(own: Session, names: list[str]) -> None:
        own.facts = {name: hosts.seen.get(name, own.facts[name]) for name in names}

    monkeypatch.setattr(Session, "execute", lambda own, *rest, **more: hosts.execute(own, *rest, **more))
    monkeypatch.setattr(Session, "probe_again", probe)
    layout = observe_layout(session)
    plan = plan_up(layout, container_programs())
    return bring_up(session, layout, plan, lambda event: None, **words)


def test_up_goes_on_with_another_port_on_all_hosts(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts({"cpu3": {12345}})
    report = up(session, hosts, monkeypatch)
    assert report.ok and hosts.tried == [12345, chosen("demo", "alice", frozenset((12345,)))]
    assert report.seconds == 2.0
    # What the first round did is not called untouched because the second found it done.
    assert {o.status for o in report.outcomes} == {"ok"} and len(report.outcomes) == 6


def test_data_that_is_missing_fails_up_after_a_port_race_too(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts({"gpu2": {12345}}, full=("cpu3",))
    report = up(session, hosts, monkeypatch)
    assert len(hosts.tried) == 2 and not report.ok
    (failed,) = report.failures
    assert (failed.host, failed.step, failed.detail) == ("cpu3", "send data", "no room")
    assert hosts.without == [set(), {"cpu3"}], "a host without its data is not started"


def test_ctrl_c_between_two_plans_reports_the_first(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(session: Session, layout: Layout, prepare: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(toolkit.lifecycle.port_retry, "refuse_to_end_jobs", press)
    with pytest.raises(PlanInterrupted) as caught:
        up(session, Hosts({"gpu2": {12345}}), monkeypatch)
    assert caught.value.report.changes and [o.host for o in caught.value.report.failures] == ["gpu2"]


def test_up_gives_up_after_some_tries(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts({"gpu2": set(range(65536))})
    report = up(session, hosts, monkeypatch)
    assert len(hosts.tried) == len(set(hosts.tried)) == TRIES + 1
    (failed,) = report.failures
    assert (failed.host, failed.cause) == ("gpu2", FailureCause.PORT_TAKEN)


def test_with_a_port_of_the_file_up_names_who_has_it(
    monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    text = world.HOSTS.replace("cluster: demo", "cluster: demo\nworker_port: 12345")
    session.inventory = world.inventory(text)
    theirs = replace(world.running("prod", "gpu2", "worker", port="12345"), name="toolkit-prod-worker")
    theirs = replace(theirs, labels={**theirs.labels, "toolkit.owner": "bob"})
    seen = replace(session.facts["gpu2"], containers=(theirs,), listening=(("10.77.0.3", 12345),))
    hosts = Hosts({"gpu2": {12345}}, {"gpu2": seen})
    (failed,) = up(session, hosts, monkeypatch).failures
    assert hosts.tried == [12345]
    assert "held by cluster prod of user bob (container toolkit-prod-worker)" in failed.detail
    assert "remove worker_port" in failed.fix


def test_another_port_ends_no_running_job(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Session, layout: Layout, prepare: bool) -> None:
        raise NotReady("job j1 is running, and its container would be recreated", "toolkit stop j1")

    monkeypatch.setattr(toolkit.lifecycle.port_retry, "refuse_to_end_jobs", refuse)
    hosts = Hosts({"gpu2": {12345}})
    (failed,) = up(session, hosts, monkeypatch).failures
    assert hosts.tried == [12345] and failed.detail.startswith("job j1 is running")
    assert up(session, Hosts({"gpu2": {12345}}), monkeypatch, force=True).ok


# Names


def test_a_container_of_somebody_else_is_not_removed_for_its_name(tmp_path: Any, monkeypatch: Any) -> None:
    from toolkit.core.runner import LocalRunner

    log = tmp_path / "log"
    docker = tmp_path / "docker"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    plan = plan_up(world.layout(), world.INSIDE)
    steps = [s for s in plan.steps if s.host == "gpu2" and s.title.startswith("start container")]
    for owner, removed in (("mallory", False), ("alice", True), ("", False)):
        log.write_text("")
        docker.write_text(
            f'#!/bin/sh\necho "$@" >>{log}\n[ "$2" != inspect ] || echo \'{owner}\'\n[ $1 != run ]\n'
        )
        docker.chmod(0o755)
        LocalRunner().run(steps[0].command)  # type: ignore[union-attr]
        assert ("rm --force --volumes toolkit-demo-worker\n" in log.read_text()) is removed
        assert "run --detach" in log.read_text(), "the engine itself refuses a name that is taken"
