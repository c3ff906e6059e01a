"""Edits of hosts.yaml after `up`: `run` and `status` name the keys that need another `up`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import toolkit.cluster.session
from tests.unit import cluster_world as world
from tests.unit.test_invariants import Recorder
from tests.unit.test_invariants import recorder as recorder
from toolkit.api.cluster import Cluster
from toolkit.cli.app import app
from toolkit.cluster.applied import (
    applied_text,
    change_finding,
    changed_keys,
    parse_applied,
    removed_finding,
)
from toolkit.cluster.container_status import HostState, host_states
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.session import Session
from toolkit.core.container import Mount, Ulimit
from toolkit.core.facts import Facts
from toolkit.errors import NotReady, ToolkitError
from toolkit.hostsfile.inventory import DataSet, Host, Inventory, Service
from toolkit.lifecycle.up import plan_up
from toolkit.plan.show import plan_text
from toolkit.plan.steps import Plan, Upload

# Of a line such as "hosts.yaml changed since `up`: mounts; run `toolkit up`".
_HEAD, _TAIL = "hosts.yaml changed since `up`: ", "; run `toolkit up`"


def _up(inventory: Inventory) -> Plan:
    return plan_up(make_layout(inventory, Observed(world.facts_when_up())), world.INSIDE)


def records(inventory: Inventory) -> dict[str, str]:
    """Return what `up` leaves on each host for later commands."""
    return {
        step.host: str(file.content[0])
        for step in _up(inventory).steps
        if isinstance(step, Upload)
        for file in step.files
        if file.path.endswith("/applied.json")
    }


def facts_after(inventory: Inventory, *hosts: str) -> dict[str, Facts]:
    kept, said = records(inventory), world.facts_when_up()
    assert set(kept) == set(said)
    return {
        name: replace(facts, applied=parse_applied(kept[name]) if name in (hosts or said) else ())
        for name, facts in said.items()
    }


def keys(before: Inventory, after: Inventory) -> tuple[str, ...]:
    return changed_keys(after, facts_after(before))


@pytest.fixture
def cluster(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts as `up` has left them with ``world.HOSTS``."""
    real, said = toolkit.cluster.session.Session.open, facts_after(world.inventory())

    def opened(inventory: Any, *more: Any) -> Session:
        session = real(inventory, *more)
        session.facts = said
        return session

    monkeypatch.setattr(toolkit.cluster.session.Session, "open", opened)
    monkeypatch.setattr("toolkit.jobs.records.job_statuses", lambda session: [])
    monkeypatch.setattr("toolkit.cli.status.job_statuses", lambda session: [])


_RUN = ("run", "--detach", "--np", "3", "train.py")


@pytest.mark.parametrize("words", [_RUN, ("status",)], ids=lambda words: words[0])
def test_a_command_names_the_keys_that_were_edited_and_goes_on(
    words: tuple[str, ...], cluster: None, recorder: Recorder, tmp_path: Path
) -> None:
    before = CliRunner().invoke(app, words)
    assert before.exit_code == 0 and _HEAD not in before.stderr
    edited = world.HOSTS.replace("/data/digits", "/data/other").replace("4g", "8g").replace('"4"', '"5"')
    (tmp_path / "hosts.yaml").write_text(edited)
    after = CliRunner().invoke(app, words)
    assert f"{_HEAD}mounts, shm_size{_TAIL}" in after.stderr.splitlines()
    assert (after.exit_code, after.stdout) == (before.exit_code, before.stdout)
    told = CliRunner().invoke(app, (words[0], "--json", *words[1:]))
    (warning,) = json.loads(told.stdout)["warnings"]
    assert (warning["subject"], warning["fix"]) == ("hosts.yaml", "toolkit up")
    assert warning["what"].endswith(": mounts, shm_size")


def test_status_fails_if_the_jobs_cannot_be_listed(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script must not take unknown jobs for no jobs."""
    error = ToolkitError("cannot list the jobs of gpu1: no answer within 30 s", "toolkit status -v")

    def fail(session: Session) -> Any:
        raise error

    monkeypatch.setattr("toolkit.cli.status.job_statuses", fail)
    shown = CliRunner().invoke(app, ("status",))
    assert shown.exit_code == 1 and error.what in shown.stdout and "gpu2" in shown.stdout
    told = CliRunner().invoke(app, ("status", "--json"))
    found = json.loads(told.stdout)
    assert told.exit_code == found["error"]["exit_code"] == 1 and error.what in told.stderr
    assert found["up"] and found["jobs"] is None and found["error"]["what"] == error.what


@pytest.mark.parametrize(("up", "code"), [(True, 1), (False, 3)])
def test_a_list_of_jobs_that_fails_hides_no_host_that_is_not_up(
    cluster: None, monkeypatch: pytest.MonkeyPatch, up: bool, code: int
) -> None:
    def fail(session: Session) -> Any:
        raise (
            NotReady("the container toolkit-demo-main is paused", "") if up else ToolkitError("no answer", "")
        )

    def states(*about: Any) -> list[HostState]:
        return [one if up else replace(one, state="exited (1)") for one in host_states(*about)]

    monkeypatch.setattr("toolkit.cli.status.job_statuses", fail)
    monkeypatch.setattr("toolkit.cli.status.host_states", states)
    assert CliRunner().invoke(app, ("status",)).exit_code == code
    assert CliRunner().invoke(app, ("status", "--json")).exit_code == code


def test_python_is_warned_too(cluster: None, recorder: Recorder, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(world.HOSTS.replace("4g", "8g"))
    told: list[str] = []
    own = Cluster("hosts.yaml", warn=lambda finding: told.append(f"{finding.subject} {finding.what}"))
    own.status()
    own.run("train.py", workdir=tmp_path, check=False)
    assert told == [f"{_HEAD}shm_size"] * 2


def test_a_removed_host_is_named_and_a_renamed_one_is_not() -> None:
    before, said = world.inventory(), facts_after(world.inventory())
    assert removed_finding(before, said) == ()
    without = replace(before, hosts=tuple(h for h in before.hosts if h.name != "cpu3"))
    (warning,) = removed_finding(without, {name: said[name] for name in without.names})
    assert "hosts.yaml no longer contains cpu3, but cpu3 might" in f"{warning.subject} {warning.what}"
    # The parser refuses a copy with one host in which these keys name other hosts, or with no slot.
    assert warning.fix == (
        "toolkit down --hosts COPY  # COPY: a copy of hosts.yaml without the keys main, slots, spares and "
        "services, in which hosts: lists only cpu3"
    )
    assert warning in change_finding(without, {name: said[name] for name in without.names})
    renamed = replace(before, hosts=tuple(replace(h, name=h.name.replace("3", "4")) for h in before.hosts))
    assert removed_finding(renamed, {name: said[name] for name in ("gpu1", "gpu2")}) == ()
    many = tuple(replace(before.hosts[0], name=f"n{number}") for number in range(200))
    large = replace(before, hosts=many, main="n0")
    facts = {"n0": replace(said["gpu1"], applied=parse_applied(applied_text(large, "n0")))}
    (warning,) = removed_finding(replace(large, hosts=many[:100]), facts)
    assert "no longer contains n[100-199], but" in warning.what


def test_what_a_host_invents_as_a_removed_host_is_no_name() -> None:
    text = json.dumps({"hosts of the cluster": "gpu1 gpu2 cpu3 $(reboot) gpu9 x[1-99999999]"})
    said = {name: replace(f, applied=parse_applied(text)) for name, f in world.facts_when_up().items()}
    (warning,) = removed_finding(world.inventory(), said)
    assert "no longer contains gpu9, but" in warning.what


_SET = DataSet("./set", "/scratch/set", "/set")
_SERVICE = Service("board", "gpu1", argv=("tensorboard",), env=(("TOKEN", "s3cret"),))


def _on_gpu2(**changes: Any) -> Callable[[Inventory], Inventory]:
    return lambda file: replace(
        file, hosts=tuple(replace(h, **changes) if h.name == "gpu2" else h for h in file.hosts)
    )


def _with(**changes: Any) -> Callable[[Inventory], Inventory]:
    return lambda file: replace(file, **changes)


# What `up` carries to the hosts, by field; with the key that is named.
_CARRIED = {
    "image": (_with(image="toolkit:gpu"), "image"),
    "main": (_with(main="gpu2"), "main"),
    "hosts": (lambda file: replace(file, hosts=(*file.hosts, Host("new", "10.77.0.9"))), "hosts"),
    "engine": (_with(engine="podman"), "engine"),
    "transport": (_with(transport="exec"), "transport"),
    "worker_port": (_with(worker_port=2222), "worker_port"),
    "worker_port_fixed": (_with(worker_port_fixed=True), "worker_port"),
    "network": (_with(network="ethernet"), "network"),
    "mounts": (_with(mounts=(Mount("/a", "/b"),)), "mounts"),
    "data": (_with(data=(_SET,)), "data"),
    "labels": (_with(labels=(("team", "vision"),)), "labels"),
    "ulimits": (_with(ulimits=(Ulimit("nofile", 9, 9),)), "ulimits"),
    "shm_bytes": (_with(shm_bytes=2**30), "shm_size"),
    "services": (_with(services=(_SERVICE,)), "services"),
    "hosts.data_address": (_on_gpu2(data_address="10.78.0.3"), "hosts/gpu2/data_address"),
    "hosts.gpus": (_on_gpu2(gpus=0), "hosts/gpu2/gpus"),
    "hosts.gpu_ids": (_on_gpu2(gpu_ids=("GPU-7",)), "hosts/gpu2/gpus"),
}
# What every command reads from the file when it starts: it needs no `up`.
_READ = {
    "spares": _with(spares=("cpu3",)),
    "env": _with(env=(("EPOCHS", "4"),)),
    "hosts.env": _on_gpu2(env=(("A", "1"),)),
    "secrets": _with(secrets=(("TOKEN", "token"),)),
    "log_bytes": _with(log_bytes=1),
    "launcher": _with(launcher="torchrun"),
    "known_hosts": _with(known_hosts="hosts"),
    "pull": _with(pull="missing"),
    "source": _with(source="other.yaml"),
    "hosts.address": _on_gpu2(address="gpu2.example.com"),
    "hosts.user": _on_gpu2(user="bob"),
    "hosts.port": _on_gpu2(port=22),
    "hosts.identity_file": _on_gpu2(identity_file="key"),
    "hosts.jump": _on_gpu2(jump="gate"),
    "hosts.slots": _on_gpu2(slots=1),
}
# With another value of these another cluster, or another place of its record, is meant.
_ELSEWHERE = {"cluster", "state_dir", "hosts.name"}
# No key of the file: `up` chooses it, and a change of the choice is a change of `transport`.
_CHOSEN = {"chosen_transport"}


def test_every_field_of_the_file_is_judged() -> None:
    known = {field.name for field in fields(Inventory)} | {f"hosts.{field.name}" for field in fields(Host)}
    assert known == set(_CARRIED) | set(_READ) | _ELSEWHERE | _CHOSEN


@pytest.mark.parametrize("field", _CARRIED)
def test_a_change_that_needs_up_is_named(field: str) -> None:
    change, key = _CARRIED[field]
    assert keys(world.inventory(), change(world.inventory())) == (key,)


@pytest.mark.parametrize("field", _READ)
def test_a_change_that_up_would_not_carry_is_not_named(field: str) -> None:
    changed = _READ[field](world.inventory())
    assert keys(world.inventory(), changed) == ()
    assert repr(_up(changed)) == repr(_up(world.inventory()))
    assert records(changed) == records(world.inventory())


def test_keys_are_named_with_their_hosts_where_these_differ() -> None:
    edited = replace(world.inventory(), shm_bytes=2**30)
    mixed = facts_after(world.inventory()) | {"cpu3": facts_after(edited)["cpu3"]}
    assert changed_keys(edited, mixed) == ("shm_size (gpu1, gpu2)",)
    assert changed_keys(edited, facts_after(world.inventory(), "gpu2")) == ("shm_size",)
    every = replace(edited, hosts=tuple(replace(h, gpus=1) for h in edited.hosts))
    assert changed_keys(every, facts_after(edited))[-1] == "hosts/cpu3/gpus"


def test_many_hosts_are_one_entry() -> None:
    many = tuple(Host(f"n{number}", f"10.0.0.{number}") for number in range(1, 6))
    before = replace(world.inventory(), hosts=many, main="n1")
    said = {h.name: world.facts(h.name, applied=parse_applied(applied_text(before, h.name))) for h in many}
    after = replace(before, hosts=tuple(replace(h, gpus=1) for h in many))
    assert changed_keys(after, said) == ("hosts/NAME/gpus (n[1-5])",)


@pytest.mark.parametrize("text", ["", "[", "[1]", "{}"])
def test_a_host_without_a_record_names_nothing(text: str) -> None:
    assert parse_applied(text) == ()
    said = {name: replace(f, applied=parse_applied(text)) for name, f in world.facts_when_up().items()}
    assert changed_keys(replace(world.inventory(), shm_bytes=1), said) == ()


def test_no_container_changes_with_the_record_and_no_value_is_in_it() -> None:
    secret = replace(world.inventory(), services=(_SERVICE,))
    assert "s3cret" not in "".join(records(secret).values())
    assert "applied" not in plan_text(plan_up(world.layout(), world.INSIDE, prepare=True))
    # The record is a file: no label, so that no container has another digest than before.
    assert "applied" not in repr([s for s in _up(secret).steps if not isinstance(s, Upload)])
