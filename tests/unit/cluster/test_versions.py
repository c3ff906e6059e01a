"""Clusters of other toolkit versions, and rebooted hosts: messages and refusals."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from tests.parity import variants
from tests.unit import cluster_world as world
from toolkit import __version__
from toolkit.cluster import container_status as standing
from toolkit.cluster.containers import cluster_container
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.versions import (
    disturbed_jobs,
    is_newer,
    latest,
    newer_hosts,
    other_programs,
    programs_of,
    refuse_newer,
    require_programs,
    version_note,
)
from toolkit.core.container import Container
from toolkit.core.facts import ContainerFacts, Facts
from toolkit.core.host_programs import container_programs
from toolkit.errors import NotReady, Unreachable
from toolkit.lifecycle.up import plan_up
from toolkit.plan.show import step_lines
from toolkit.plan.steps import Run
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_VERSION

OURS, OTHERS = programs_of(world.INSIDE), (("rank.py", "00ff"),)
LATER = "99.0.0"


def host(
    version: str = __version__,
    programs: tuple[tuple[str, str], ...] = OURS,
    label: str = __version__,
    **changes: object,
) -> Facts:
    """gpu2 as it is when the cluster is up; ``changes`` are fields of its container."""
    facts = world.facts_when_up()["gpu2"]
    (container,) = facts.containers
    labels = {**container.labels, **({LABEL_VERSION: label} if label else {})}
    changed = replace(container, labels=labels, started=2000.0, **changes)  # type: ignore[arg-type]
    return replace(facts, containers=(changed,), version=version, programs=programs, booted=1000.0)


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ("0.2.0", "0.1.9", True),
        ("0.10.0", "0.9.0", True),
        ("1.0.0", "1.0.0", False),
        ("0.1.0", "0.2.0", False),
        ("0.2.0.dev3", "0.1.0", True),
        ("", "0.1.0", False),
        ("0.1.0", "", True),
        ("unknown", "0.1.0", False),
    ],
)
def test_which_release_is_later(one: str, other: str, newer: bool) -> None:
    assert is_newer(one, other) is newer
    assert latest((one, other)) == latest((other, one)) or one == other


def test_the_latest_of_none_is_nothing() -> None:
    assert latest(()) == ""


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        (host(), ""),
        (world.facts(), ""),  # nothing of the cluster is there
        (host("", OTHERS, ""), "toolkit up did not complete on this host"),
        (host("0.0.9", OTHERS), f"toolkit 0.0.9 set up this host, but your version is {__version__}"),
        # Only the programs are from elsewhere: two checkouts of one version.
        (
            host(programs=OTHERS),
            f"the toolkit programs on the host differ from those of version {__version__}",
        ),
        (host(LATER, OTHERS), f"toolkit {LATER} set up this host, but your version {__version__} is older"),
        # The container was made by a later one, the files by this one since.
        (host(label=LATER), f"toolkit {LATER} set up this host, but your version {__version__} is older"),
        # An earlier version created the container, and nothing required recreating it.
        (host(label="0.0.9"), ""),
    ],
)
def test_what_status_says_about_versions(facts: Facts, note: str) -> None:
    said, fix = version_note("demo", facts, world.INSIDE)
    assert said.startswith(note) and bool(said) == bool(note)
    assert fix == (f"use toolkit {LATER} or later" if LATER in note else "toolkit up" if note else "")


def test_what_a_later_toolkit_made_is_not_changed() -> None:
    hosts = [
        host(),
        replace(host(LATER, OTHERS), host="gpu1"),
        replace(host(label="98.0.0"), host="cpu3"),
    ]
    assert newer_hosts("demo", hosts) == {"gpu1": LATER, "cpu3": "98.0.0"}
    with pytest.raises(NotReady, match=f"toolkit {LATER} created the cluster on gpu1, cpu3") as error:
        refuse_newer("demo", hosts)
    assert "--force" in error.value.fix and LATER in error.value.fix
    refuse_newer("demo", [host(), host("0.0.9", OTHERS), host("", OTHERS, "")])


def test_a_job_needs_the_programs_of_the_toolkit_that_starts_it() -> None:
    require_programs("demo", [host()], world.INSIDE)
    # The version alone decides nothing: the same programs read the same job file.
    require_programs("demo", [host("0.0.9"), host("")], world.INSIDE)
    require_programs("demo", [host(programs=(*OURS, ("gone.py", "00ff")))], world.INSIDE)
    for facts in (host("", ()), host("0.0.9", OTHERS), host(programs=OURS[1:])):
        with pytest.raises(NotReady, match="programs on gpu2 differ from those of version") as error:
            require_programs("demo", [facts], world.INSIDE)
        assert error.value.fix.startswith("toolkit up")
    with pytest.raises(NotReady, match=f"toolkit {LATER} created"):
        require_programs("demo", [host(LATER, OTHERS)], world.INSIDE)
    assert other_programs([host(), host(programs=OTHERS)], world.INSIDE) == ("gpu2",)


def test_what_up_would_take_from_a_running_job() -> None:
    def taken(prepare: bool = False, **hosts: Facts) -> tuple[str, ...]:
        said = {n: replace(f, programs=OURS) for n, f in started.items()}
        return disturbed_jobs(
            make_layout(world.inventory(), Observed({**said, **hosts})), world.INSIDE, prepare
        )

    started = world.as_started(make_layout(world.inventory(), Observed(world.facts_when_up())))
    assert taken() == ()
    # A host that has only just been added to the file.
    assert taken(cpu3=world.cluster_facts()["cpu3"]) == ()
    assert taken(gpu2=host()) == ("`toolkit up` would recreate the containers on gpu2",)
    assert taken(gpu2=host(programs=OTHERS)) == (
        "`toolkit up` would recreate the containers on gpu2",
        "`toolkit up` would replace the toolkit programs on gpu2",
    )
    assert taken(prepare=True, gpu2=host(programs=OTHERS)) == (
        "`toolkit up` would replace the toolkit programs on gpu2",
    )
    (own,) = started["gpu2"].containers
    paused = replace(started["gpu2"], containers=(replace(own, state="paused"),), programs=OURS)
    assert taken(gpu2=paused) == ("`toolkit up` would recreate the containers on gpu2",)
    assert taken(prepare=True, gpu2=paused) == ()
    # Removed before the containers start, also without a start.
    other_role = replace(paused, containers=(world.running("demo", "gpu2", "main"),), listening=())
    without_hosts = tuple(file for file in paused.state_files if file.path != "etc/hosts")
    for removed in (other_role, replace(paused, containers=(own,), state_files=without_hosts)):
        assert taken(gpu2=removed) == ("`toolkit up` would recreate the containers on gpu2",)
        assert taken(prepare=True, gpu2=removed) == ("`toolkit up` would remove the containers on gpu2",)


def test_the_version_label_recreates_no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = world.layout()
    before = cluster_container(layout, layout.places[0])
    assert dict(before.labels)[LABEL_VERSION] == __version__
    monkeypatch.setattr("toolkit.cluster.containers.__version__", LATER)
    after = cluster_container(layout, layout.places[0])
    assert dict(after.labels)[LABEL_VERSION] == LATER
    assert after.digest() == before.digest()


@dataclass(frozen=True)
class Later(Container):
    """Container as a later version might have it."""

    runtime: str = ""
    tmpfs: tuple[str, ...] = ()
    read_only: bool = False


def test_a_field_of_a_later_version_recreates_no_container() -> None:
    base = world.container()
    values = {f.name: getattr(base, f.name) for f in fields(Container)}
    assert Later(**values).digest() == base.digest()
    for change in ({"runtime": "nvidia"}, {"tmpfs": ("/tmp",)}, {"read_only": True}):
        assert Later(**values, **change).digest() != base.digest()  # type: ignore[arg-type]


def test_the_digest_changes_with_every_place_of_a_container() -> None:
    digests = [other.digest() for _, other in variants(world.container())]
    assert len({*digests, world.container().digest()}) == len(digests) + 1


# Hosts that have rebooted


@pytest.mark.parametrize(
    ("changes", "booted", "why"),
    [
        ({"state": "running"}, 9000.0, ""),
        (
            {"state": "exited", "exit_code": 255},
            9000.0,
            "the host rebooted at 1970-01-01 02:30 UTC, after the start of the container",
        ),
        (
            {"state": "exited", "exit_code": 137, "ended": 5400.0},
            1000.0,
            "the container exited at 1970-01-01 01:30 UTC with",
        ),
        ({"state": "exited", "exit_code": 1}, 0.0, "the container exited with exit code 1"),
        ({"state": "paused"}, 1000.0, "the container is paused"),
        ({"state": "created", "started": 0.0}, 9000.0, "the container never started"),
    ],
)
def test_why_a_container_does_not_run(changes: dict[str, object], booted: float, why: str) -> None:
    base = ContainerFacts("c" * 64, "toolkit-demo-worker", "running", {}, started=2000.0)
    container = replace(base, **changes)  # type: ignore[arg-type]
    said = standing.why_not_running(container, replace(host(), booted=booted))
    assert said.startswith(why) and bool(said) == bool(why)


def _why_start(container: ContainerFacts) -> str:
    said = world.facts_when_up()
    said["gpu2"] = replace(said["gpu2"], containers=(container,), booted=1000.0)
    plan = plan_up(make_layout(world.inventory(), Observed(said)), world.INSIDE)
    (step,) = (
        s for s in plan.steps if isinstance(s, Run) and s.host == "gpu2" and s.title.startswith("start")
    )
    assert (step_lines(step)[0] == f"why: {step.why}") == bool(step.why)
    return step.why


def test_up_says_why_it_starts_a_container_in_the_place_of_another() -> None:
    made = make_layout(world.inventory(), Observed(world.facts_when_up()))
    wanted = cluster_container(made, next(p for p in made.places if p.name == "gpu2"))
    there = ContainerFacts("c" * 64, wanted.name, "running", dict(wanted.labels), started=2000.0)
    assert _why_start(there) == ""
    assert _why_start(replace(there, name="another")) == ""
    assert _why_start(replace(there, state="exited", started=500.0)).startswith("the host rebooted at")
    other = {**there.labels, "toolkit.digest": "0" * 16}
    assert _why_start(replace(there, labels=other)) == "recreated: the container settings changed"
    older = {**other, LABEL_VERSION: "0.0.9"}
    assert (
        _why_start(replace(there, labels=older))
        == "recreated: toolkit 0.0.9 created the container with other settings"
    )
    del older[LABEL_VERSION]
    assert "an older toolkit created the container" in _why_start(replace(there, labels=older))


def test_status_of_every_kind_of_host() -> None:
    said = world.facts_when_up()
    (gpu2,) = said["gpu2"].containers
    said["gpu2"] = replace(
        said["gpu2"], containers=(replace(gpu2, state="exited", exit_code=255, started=500.0),), booted=1000.0
    )
    del said["cpu3"]
    errors = {"cpu3": Unreachable("no answer", host="cpu3")}
    rows = {r.host: r for r in standing.host_states(world.inventory(), said, errors, container_programs())}
    assert (rows["gpu1"].state, rows["gpu1"].note, rows["gpu1"].version) == ("running", "", __version__)
    assert rows["gpu2"].state == "exited (255)" and not rows["gpu2"].ok
    assert rows["gpu2"].note == "the host rebooted at 1970-01-01 00:16 UTC, after the start of the container"
    assert rows["gpu2"].fix == "toolkit up" and not rows["gpu1"].fix
    assert (rows["cpu3"].state, rows["cpu3"].note) == ("unreachable", "no answer")
    other = replace(gpu2, name="toolkit-other-worker", labels={LABEL_CLUSTER: "other"})
    said["gpu2"] = replace(said["gpu2"], containers=(other,))
    rows = {r.host: r for r in standing.host_states(world.inventory(), said, errors, container_programs())}
    assert rows["gpu2"].note == "the host has 1 container of other clusters"


def test_status_of_hosts_whose_addresses_nobody_can_tell() -> None:
    """`up` refuses this cluster; `status` prints its state anyway."""
    text = world.HOSTS.replace(
        "    address: 10.77.0.3\n", "    address: 10.77.0.3\n    data_address: 10.9.9.9\n"
    )
    rows = standing.host_states(world.inventory(text), world.facts_when_up(), {}, world.INSIDE)
    assert [r.state for r in rows] == ["running"] * 3
    assert "data_address 10.9.9.9 is not among the addresses of the host" in rows[1].note
    assert "data_address" not in rows[0].note


def test_a_host_gives_a_version_that_is_too_long_to_count() -> None:
    long = "9" * 5000
    assert latest((f"{long}.1.0", "0.1.0", f"1.{long}.0")) == "0.1.0"
    assert not is_newer(f"{long}.0.0", "0.1.0")
