"""Plans as people see them, and what goes into one when hosts differ."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toolkit
from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.each import for_each
from tests.unit.hosts_here import execute, hosts
from toolkit.bench.smoke_plan import allreduce_line, plan_gpu_smoke
from toolkit.cluster.container_status import host_states, start_step
from toolkit.cluster.containers import cluster_container
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.versions import removed_containers
from toolkit.core.command import Kind, Ref
from toolkit.core.facts import Facts, Interface, Remembered, StateFile
from toolkit.core.host_programs import container_programs
from toolkit.errors import NotReady
from toolkit.jobs.plan import require_launcher, require_running, rooms
from toolkit.lifecycle.down import plan_down
from toolkit.lifecycle.up import plan_up
from toolkit.plan.context import Context, Verdict
from toolkit.plan.executors import upload_verdict
from toolkit.plan.show import plan_text
from toolkit.plan.steps import (
    Fetch,
    File,
    Phase,
    Plan,
    Run,
    SendCode,
    SendImage,
    Stamp,
    StartJob,
    Upload,
    WaitFor,
)
from toolkit.protocol.names import LABEL_CONFIG


@for_each("name", world.plans())
def test_every_plan_has_a_golden(name: str) -> None:
    check_golden(f"plan/{name}.txt", plan_text(world.plans()[name]))


def files_of(plan: Any, host: str) -> dict[str, File]:
    steps = [s for s in plan.steps if isinstance(s, Upload) and s.host == host]
    return {f.path.rpartition("/")[2] + f.path.split("/")[-2]: f for s in steps for f in s.files}


def test_a_plan_without_steps_has_nothing_to_change() -> None:
    assert plan_text(Plan("gc", ())) == "gc: nothing to change\n"


def test_plans_hold_no_secret_where_people_or_ps_see_it() -> None:
    plan = world.plans()["run"]
    seen = plan_text(plan) + repr(plan)
    assert "s3cret" not in seen
    sends = [s for s in plan.steps if isinstance(s, SendCode)]
    assert sends and all("s3cret" not in s.job for s in sends)
    (start,) = [s for s in plan.steps if isinstance(s, StartJob)]
    assert json.loads(start.variables) == {
        "env": {"EPOCHS": "3", "TOKEN": "s3cret $x"},
        "hosts": {"gpu2": {"OMP_NUM_THREADS": "4"}},
        "override": {"OTHER_TOKEN": "s3cret too"},
        "token": "",
    }
    assert {s.host for s in sends} == {"gpu1", "gpu2", "cpu3"}


def test_up_writes_no_variable_of_a_rank() -> None:
    # They go with each job: on a host they would stay until `down`.
    plan = plan_up(world.layout(), world.INSIDE)
    texts = [str(file.content) for host in ("gpu1", "gpu2", "cpu3") for file in files_of(plan, host).values()]
    assert any("interface" in text for text in texts)
    assert not any("OMP_NUM_THREADS" in text or "EPOCHS" in text for text in texts)


def described(plan: Plan, host: str, base: str) -> tuple[StateFile, ...]:
    """Return the state of a host after the first steps of a plan, as the probe lists it."""
    upload = next(s for s in plan.steps if isinstance(s, Upload) and s.host == host)
    files = [
        StateFile(
            file.path.removeprefix(f"{base}/"),
            stat.S_IFREG | file.mode,
            hashlib.sha256("".join(map(str, file.content)).encode()).hexdigest(),
        )
        for file in upload.every
    ]
    below = {str(folder) for file in files for folder in Path(file.path).parents} - {"."}
    return (*files, *(StateFile(name, stat.S_IFDIR | 0o700) for name in (*below, "jobs", "home")))


def test_the_first_steps_of_a_second_up_follow_from_the_facts() -> None:
    plan = plan_up(world.layout(), world.INSIDE)
    said = world.cluster_facts()
    for host, facts in said.items():
        key = {"gpu1": "id_ed25519"}.get(host, "ssh_host_ed25519_key")
        listed = described(plan, host, facts.state_dir)
        said[host] = replace(facts, state_files=listed, public_keys=((key, world.public_key(host)),))
    second = plan_up(make_layout(world.inventory(), Observed(said)), world.INSIDE)
    steps = {step.host: step for step in second.steps if isinstance(step, Upload) and len(step.every) > 3}
    for step in steps.values():
        assert upload_verdict(step, Context({}), step.known or "") == Verdict("skipped")
    runs = [s for s in second.steps if isinstance(s, Run) and s.title.startswith(("create the", "test the"))]
    assert {(s.title, s.known) for s in runs if s.host == "gpu1"} == {
        ("create the state directories", ""),
        ("create the cluster key", world.public_key("gpu1")),
        ("test the SSH login from the main container to every worker container", None),
    }
    # Another file, another mode, a missing folder, and a key of the other role.
    facts = said["gpu2"]
    without = [file for file in facts.state_files if file.path != "jobs"]
    for files in (
        [replace(f, sum="0" * 64) if f.path == "version" else f for f in facts.state_files],
        [replace(f, mode=stat.S_IFREG | 0o640) if f.path == "version" else f for f in facts.state_files],
        [f for f in facts.state_files if f.path != "version"],
    ):
        said["gpu2"] = replace(facts, state_files=tuple(files))
        third = plan_up(make_layout(world.inventory(), Observed(said)), world.INSIDE)
        step = next(s for s in third.steps if isinstance(s, Upload) and s.host == "gpu2")
        assert upload_verdict(step, Context({}), step.known or "") is None
    for files in (without, [*facts.state_files, StateFile("conf/id_ed25519", stat.S_IFREG, "0" * 64)]):
        said["gpu2"] = replace(facts, state_files=tuple(files))
        third = plan_up(make_layout(world.inventory(), Observed(said)), world.INSIDE)
        steps_of_host = [s for s in third.steps if isinstance(s, Run) and s.host == "gpu2"]
        folders = next(s for s in steps_of_host if "directories" in s.title)
        assert folders.known is None


def test_up_in_words() -> None:
    plan = plan_up(world.layout(), world.INSIDE)
    assert [p.title for p in plan.phases] == [
        *("image", "files", "keys", "trust", "containers", "sshd", "login", "record"),
    ]  # fmt: skip
    # The image travels only to the host that lacks it; everything else that acts can be asked first.
    assert [s.host for s in plan.steps if isinstance(s, SendImage)] == ["cpu3"]
    assert all(s.unless for s in plan.steps if isinstance(s, Run))
    # Private keys are 0600 and never leave the host: no file that is written holds one.
    for host in ("gpu1", "gpu2", "cpu3"):
        found = files_of(plan, host)
        assert not any("ed25519_key" in n or "id_ed25519" in n for n in found)
        assert all(f.mode == 0o600 for n, f in found.items() if n.endswith("conf") and "etc" not in n)


def test_only_main_gets_the_cluster_key_and_only_workers_an_sshd() -> None:
    plan = plan_up(world.layout(), world.INSIDE)
    titles = {s.host: s.title for p in plan.phases if p.title == "keys" for s in p.steps}
    assert titles == {
        "gpu1": "create the cluster key",
        "gpu2": "create the host key",
        "cpu3": "create the host key",
    }
    assert "sshd_configconf" not in files_of(plan, "gpu1")
    assert "authorized_keysconf" not in files_of(plan, "gpu1")
    assert "sshd_configconf" in files_of(plan, "gpu2")


def test_a_host_that_is_gone_spoils_no_file_of_the_others() -> None:
    said = world.cluster_facts()
    del said["cpu3"]
    plan = plan_up(make_layout(world.inventory(), Observed(said)), world.INSIDE)
    assert {s.host for s in plan.steps} == {"gpu1", "gpu2"}
    known = files_of(plan, "gpu1")["known_hostsconf"].content
    # cpu3's address is in the hosts file, so its line is there, and goes when its key is not known.
    kept = [
        part.resolve({("gpu2", "host"): "ssh-ed25519 AAAA"}) for part in known if not isinstance(part, str)
    ]
    assert kept == ["gpu2,[10.77.0.3]:12345 ssh-ed25519 AAAA\n", None]


def test_main_that_is_gone_leaves_workers_that_let_nobody_in() -> None:
    said = world.cluster_facts()
    del said["gpu1"]
    plan = plan_up(make_layout(world.inventory(), Observed(said)), world.INSIDE)
    assert [p.title for p in plan.phases][-2:] == ["sshd", "record"]
    # Not even an empty file: what a worker has of an earlier `up` stays as it is.
    assert "authorized_keysconf" not in files_of(plan, "gpu2")


ADDRESSES = (("gpu1", "10.77.0.2"), ("gpu2", "10.77.0.3"), ("cpu3", "10.77.0.4"))
KEYS = {name: world.public_key(name) for name, _ in ADDRESSES}


def remembering(host: str, **changes: object) -> Facts:
    """A host with the files of an earlier `up`; ``changes`` are fields of what it remembers."""
    whole = Remembered(
        addresses=ADDRESSES,
        keys=tuple((name, KEYS[name]) for name in ("gpu2", "cpu3")),
        main_key=KEYS["gpu1"] if host != "gpu1" else "",
    )
    return replace(world.cluster_facts()[host], remembered=replace(whole, **changes))  # type: ignore[arg-type]


def texts(*said: Facts, text: str = world.HOSTS) -> dict[tuple[str, str], str]:
    """The contents of all files of `up`, by host and name, when these hosts answer."""
    facts = {f.host: f for f in said}
    plan = plan_up(make_layout(world.inventory(text), Observed(facts)), world.INSIDE)
    outputs = {(n, "cluster" if n == "gpu1" else "host"): KEYS[n] for n in facts}
    return {
        (host, name): "".join((p if isinstance(p, str) else p.resolve(outputs)) or "" for p in file.content)
        for host in facts
        for name, file in files_of(plan, host).items()
    }


def test_a_host_that_is_away_changes_nothing_for_the_others() -> None:
    """The files of the hosts that answered are equal, independent of which other host is away."""
    whole = texts(*map(remembering, KEYS))
    assert KEYS["cpu3"] in whole["gpu2", "known_hostsconf"]
    assert KEYS["gpu1"] in whole["gpu2", "authorized_keysconf"]
    for away in KEYS:
        kept = texts(*(remembering(name) for name in KEYS if name != away))
        assert kept == {key: text for key, text in whole.items() if key in kept}
        # Without main no authorized_keys file is written: a worker keeps its own.
        lost = {key for key in whole.keys() - kept.keys() if key[0] != away}
        assert lost == ({(n, "authorized_keysconf") for n in ("gpu2", "cpu3")} if away == "gpu1" else set())


def test_a_main_that_is_away_changes_no_user_name_on_the_others() -> None:
    """The SSH user of main decides about the name, and the workers have another SSH user."""
    logins = {"gpu1": "alice", "gpu2": "ubuntu", "cpu3": "ubuntu"}
    said = {n: replace(remembering(n, user="alice"), user=login) for n, login in logins.items()}
    whole = make_layout(world.inventory(), Observed(said))
    workers = {n: replace(f, remembered=said[n].remembered) for n, f in world.as_started(whole).items()}
    del workers["gpu1"]
    made = make_layout(world.inventory(), Observed(workers))
    assert {p.user for p in whole.places} == {p.user for p in made.places} == {"alice"}
    assert removed_containers(made) == ()
    kept, before = texts(*workers.values()), texts(*said.values())
    assert kept == {key: text for key, text in before.items() if key in kept}
    assert "User alice\n" in kept["gpu2", "ssh_configconf"]
    # A new host has no earlier name, and main logs in under that of the others. A worker of the SSH user root
    # can get no other name, and hosts that remember different names decide about themselves alone.
    text = world.HOSTS.replace("mounts:", "  cpu4: {address: 10.77.0.5}\nmounts:")
    workers["cpu4"] = world.facts("cpu4", "10.77.0.5", user="ubuntu")
    for names, expected in (
        (("alice", "alice"), ["alice", "alice", "alice"]),
        (("alice", ""), ["alice", "alice", "alice"]),
        (("alice", "mallory"), ["alice", "mallory", "ubuntu"]),
        (("root", ""), ["root", "ubuntu", "ubuntu"]),
        (("", ""), ["ubuntu", "ubuntu", "ubuntu"]),
    ):
        for host, user in zip(("gpu2", "cpu3"), names, strict=True):
            workers[host] = replace(workers[host], remembered=replace(workers[host].remembered, user=user))
        made = make_layout(world.inventory(text), Observed(workers))
        assert [p.user for p in made.places] == expected and made.user == expected[-1]
    del workers["cpu4"]
    # With main, the name follows main.
    made = make_layout(world.inventory(), Observed({**workers, "gpu1": said["gpu1"]}))
    assert {p.user for p in made.places} == {"alice"}


@pytest.mark.parametrize("away", ["gpu1", "cpu3"])
@pytest.mark.parametrize("liar", ["gpu1", "gpu2", "cpu3"])
def test_what_a_host_remembers_is_written_on_that_host_alone(away: str, liar: str) -> None:
    """The files of one host were changed by another user, while another host is away."""
    if away == liar:
        return
    lies = {
        "addresses": tuple((name, "10.77.0.66") for name, _ in ADDRESSES),
        "keys": tuple((name, world.public_key("intruder")) for name in KEYS),
        "main_key": world.public_key("intruder"),
    }
    for hosts_file in (world.HOSTS, world.HOSTS.replace("address: 10.77.0.", "address: host")):
        honest = texts(*(remembering(n) for n in KEYS if n != away), text=hosts_file)
        found = texts(
            *(remembering(n, **(lies if n == liar else {})) for n in KEYS if n != away), text=hosts_file
        )
        assert {key: found[key] for key in found if key[0] != liar} == {
            key: honest[key] for key in honest if key[0] != liar
        }
        # Its own files are as they were before.
        assert f"10.77.0.66 {away}" in found[liar, "hostsetc"]
        assert world.public_key("intruder") not in found.get((liar, "authorized_keysconf"), "")


def test_data_address_of_the_file_comes_before_what_hosts_remember() -> None:
    text = world.HOSTS.replace("address: 10.77.0.4", "address: 10.77.0.4\n    data_address: 10.78.0.4")
    said = [remembering(name, addresses=(("cpu3", "10.77.0.66"),)) for name in ("gpu1", "gpu2")]
    found = texts(*said, text=text)
    for host in ("gpu1", "gpu2"):
        assert "10.78.0.4 cpu3" in found[host, "hostsetc"]
        assert "10.77.0.66" not in "".join(found.values())


def test_logins_are_tested_again_after_a_change_of_the_address_of_main() -> None:
    """The containers stay, but workers admit main only from its address."""
    second = Interface("eth0", "10.77.0.50", 24)
    said = world.facts_when_up()
    said["gpu1"] = replace(said["gpu1"], interfaces=(*said["gpu1"].interfaces, second))
    moved = world.HOSTS.replace("10.77.0.2\n", "10.77.0.2\n    data_address: 10.77.0.50\n")
    stamps = set()
    for text in (world.HOSTS, moved):
        plan = plan_up(make_layout(world.inventory(text), Observed(said)), world.INSIDE)
        stamps |= {s.unless.content for s in plan.steps if isinstance(s, Run) and isinstance(s.unless, Stamp)}
    assert len(stamps) == 2


def test_hosts_that_remember_the_same_share_one_text() -> None:
    """With a thousand hosts a text for each of them would be a million lines."""
    layout = make_layout(world.inventory(), Observed({n: remembering(n) for n in ("gpu1", "gpu2")}))
    plan = plan_up(layout, world.INSIDE)
    for name in ("known_hostsconf", "hostsetc", "ssh_configconf"):
        first, second = (files_of(plan, host)[name].content for host in ("gpu1", "gpu2"))
        assert first is second


def test_what_later_steps_are_given_has_a_type() -> None:
    for name, plan in world.plans().items():
        saved = {(s.host, s.saves): s.kind for s in plan.steps if isinstance(s, Run) and s.saves}
        commands = [c for s in plan.steps if isinstance(s, Run) for c in (s.command, s.unless, s.reads) if c]
        pieces = [p for c in commands for p in (c.content if isinstance(c, Stamp) else c.argv)]
        pieces += [p for s in plan.steps if isinstance(s, Upload) for f in s.every for p in f.content]
        for ref in (p for p in pieces if isinstance(p, Ref)):
            assert saved.get((ref.host, ref.name), Kind.REPORT) is not Kind.REPORT, (name, ref)


def test_the_other_role_leaves_neither_container_nor_key() -> None:
    plan = plan_up(world.layout(), world.INSIDE)
    make = {s.host: s.command.line() for s in plan.steps if s.title == "create the state directories"}  # type: ignore[union-attr]
    removed = {host: line.rsplit(" -- ", 1)[0] for host, line in make.items()}
    assert "toolkit-demo-worker" in removed["gpu1"] and "conf/authorized_keys" in removed["gpu1"]
    assert "toolkit-demo-main" in removed["gpu2"] and removed["gpu2"].endswith("conf/id_ed25519.pub")


def test_the_image_that_runs_is_meant_where_no_name_says_it() -> None:
    said = world.facts_when_up()
    bare = {name: replace(f, images=tuple(replace(i, tags=()) for i in f.images)) for name, f in said.items()}
    kept = {
        n: replace(f, containers=tuple(replace(c, image=f.images[0].id) for c in f.containers if f.images))
        for n, f in bare.items()
    }
    assert (
        make_layout(world.inventory(), Observed(kept)).image.identity
        == next(iter(said.values())).images[0].identity
    )


def test_one_host_alone() -> None:
    text = "cluster: demo\nimage: toolkit:cpu\nhosts: {gpu1: {address: 10.77.0.2}}\n"
    plan = plan_up(make_layout(world.inventory(text), Observed({"gpu1": world.facts()})), world.INSIDE)
    assert [p.title for p in plan.phases] == ["image", "files", "keys", "trust", "containers", "record"]


# Jobs and down


def test_ranks_are_numbered_from_main_on() -> None:
    text = world.HOSTS.replace("main: gpu1", "main: gpu2")
    made = make_layout(world.inventory(text), Observed(world.cluster_facts()))
    hosts = rooms(made, ("cpu3", "gpu1", "gpu2"))
    assert [h.name for h in hosts] == ["gpu2", "gpu1", "cpu3"]


def test_a_job_needs_running_containers() -> None:
    up = make_layout(world.inventory(), Observed(world.facts_when_up()))
    require_running(up, ["gpu1", "gpu2", "cpu3"])
    with pytest.raises(NotReady, match="gpu1, gpu2, cpu3") as caught:
        require_running(world.layout(), ["gpu1", "gpu2", "cpu3"])
    assert caught.value.fix == "toolkit up"
    said = world.facts_when_up()
    said["gpu2"] = replace(said["gpu2"], containers=(replace(said["gpu2"].containers[0], state="exited"),))
    del said["cpu3"]
    with pytest.raises(NotReady, match=r"runs on gpu2 \(the container never started\), cpu3") as caught:
        require_running(make_layout(world.inventory(), Observed(said)), ["gpu1", "gpu2", "cpu3"], ",".join)
    assert caught.value.fix == "toolkit up  # or run the job on the other hosts: gpu2,cpu3"


def without_sshd() -> dict[str, Facts]:
    """The cluster as it is after an `up` with an image that has no sshd: gpu2's worker ended with 127."""
    said = world.facts_when_up()
    (worker,) = said["gpu2"].containers
    labels = {**worker.labels, LABEL_CONFIG: "0123456789abcdef"}
    ended = replace(worker, state="exited", exit_code=127, started=5.0, labels=labels)
    said["gpu2"] = replace(said["gpu2"], containers=(ended,), booted=1.0)
    return said


_ONTO = f"toolkit image build --onto {world.inventory().image}"


def test_a_worker_without_sshd_is_not_answered_with_another_up() -> None:
    said = without_sshd()
    with pytest.raises(NotReady) as caught:
        require_running(make_layout(world.inventory(), Observed(said)), ["gpu1", "gpu2"])
    (row,) = (r for r in host_states(world.inventory(), said, {}, container_programs()) if r.host == "gpu2")
    for fix in (caught.value.fix, row.fix):
        assert fix.startswith(f"set transport: exec in hosts.yaml, or add sshd to the image: {_ONTO}")


def test_up_names_the_missing_sshd_by_the_status_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in docker's place answers as the engine does of a container whose program is not there."""
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        "*'{{if not .State.Running}}'*) echo the container exited with 127 ;;\n"
        "*.State.Running*) echo false ;;\n"
        "*) echo '[FATAL tini (7)] exec failed' ;;\nesac\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    plan = plan_up(world.layout(), world.INSIDE)
    (step,) = (s for s in plan.steps if isinstance(s, WaitFor) and s.host == "gpu2")
    (outcome,) = execute(Plan("up", (Phase("sshd", (step,)),)), hosts("gpu2")).outcomes
    assert outcome.detail == "the image does not contain /usr/sbin/sshd (the container exited with 127)"
    assert outcome.fix.endswith(_ONTO)


@pytest.mark.parametrize(
    ("answer", "status"),
    [("c" * 64 + " true", "skipped"), ("d" * 64 + " true", "failed"), ("c" * 64 + " false", "failed")],
)
def test_a_worker_with_a_rotated_log_is_ready_if_its_sshd_listened_during_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        f"#!/bin/sh\ncase $* in *.Id*) echo {answer} ;; logs*) echo Connection closed ;; *) exit 1 ;; esac\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = world.as_started(world.layout())
    said["gpu2"] = replace(said["gpu2"], listening=(("10.77.0.3", 12345),))
    layout = make_layout(world.inventory(), Observed(said))
    (step,) = (s for s in plan_up(layout, world.INSIDE).steps if isinstance(s, WaitFor) and s.host == "gpu2")
    # An earlier step changes something, so the step is not skipped by the facts alone.
    assert step.known
    plan = Plan("up", (Phase("sshd", (replace(step, known=False),)),))
    (outcome,) = execute(plan, hosts("gpu2")).outcomes
    assert outcome.status == status, outcome


@pytest.mark.parametrize("lost", ["home", "etc/hosts"])
def test_up_recreates_a_container_whose_directories_or_files_were_deleted(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container does not get what is created in the place of a deleted directory or file."""
    said = {n: replace(f, state_dir=f"{tmp_path}/{n}") for n, f in world.facts_when_up().items()}
    facts = world.as_started(make_layout(world.inventory(), Observed(said)))["gpu2"]
    (own,) = facts.containers
    for file in facts.state_files:
        (tmp_path / "gpu2" / file.path).mkdir(parents=True, exist_ok=True)
    log, docker = tmp_path / "log", tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$*" >>{log}\n'
        f"case $* in run*) echo {'a' * 64} ;; rm*) touch {tmp_path}/gone ;; *toolkit.owner*) echo alice ;;\n"
        f"*toolkit.digest*) [ -e {tmp_path}/gone ] || echo 'running {own.digest}' ;;\n"
        f"*) echo {'a' * 64} ;; esac\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def up(facts: Facts) -> list[tuple[str, str]]:
        log.write_text("")
        (tmp_path / "gone").unlink(missing_ok=True)
        plan = plan_up(make_layout(world.inventory(), Observed({"gpu2": facts})), world.INSIDE)
        acts = tuple(
            s for s in plan.steps if isinstance(s, Run) and s.title.split()[0] in ("remove", "start")
        )
        return [(o.step, o.status) for o in execute(Plan("up", (Phase("up", acts),)), hosts("gpu2")).outcomes]

    start, name = f"start container {own.name}", own.name
    remove = f"remove {name}, because directories or files of its mounts were deleted"
    assert up(facts) == [(start, "skipped")]
    without = replace(facts, state_files=tuple(f for f in facts.state_files if f.path != lost))
    # The probe did not list the file, for example because of a slow disk.
    assert up(without) == [(remove, "skipped"), (start, "skipped")]
    (tmp_path / "gpu2" / lost).rmdir()
    assert up(without) == [(remove, "ok"), (start, "ok")]
    calls = [line.partition(" toolkit-demo-worker")[0] for line in log.read_text().splitlines()]
    assert calls.index("rm --force --volumes") < calls.index("run --detach --name")
    plan = plan_up(make_layout(world.inventory(), Observed({"gpu2": without})), world.INSIDE)
    titles = [s.title for s in plan.steps]
    assert titles.index(remove) < titles.index("create the state directories")


def test_up_recreates_a_paused_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker reports that a paused container is running too; `status` and `run` refer to `up`."""
    layout = world.layout()
    wanted = cluster_container(layout, layout.place("gpu2"))
    paused = replace(world.running("demo", "gpu2", "worker"), state="paused", started=5.0)
    step = start_step(wanted, world.facts("gpu2", containers=(paused,)))
    docker, log = tmp_path / "docker", tmp_path / "log"
    docker.write_text(
        f'#!/bin/sh\necho "$*" >>{log}\ncase "$*" in\n'
        f"*.State.Running*) echo 'true {wanted.digest()}' ;;\n"
        f"*.State.Status*) echo 'paused {wanted.digest()}' ;;\n"
        f"run*) echo {'a' * 64} ;;\n*toolkit.owner*) echo alice ;;\n*) echo {'a' * 64} ;;\nesac\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (outcome,) = execute(Plan("up", (Phase("containers", (step,)),)), hosts("gpu2")).outcomes
    assert (outcome.status, step.why) == ("ok", "the container is paused")
    ran = [line.split()[0] for line in log.read_text().splitlines()]
    assert ran.index("rm") < ran.index("run")


@pytest.mark.parametrize(
    ("added", "launcher", "refused"),
    [
        ("", "deepspeed", True),
        ("accelerate,ray", "deepspeed", True),
        ("deepspeed", "deepspeed", False),
        ("transformers", "accelerate", False),
        ("own", "deepspeed", False),  # of what a person has added nothing is known
        (None, "deepspeed", False),  # nor of an image that is not ours
        ("", "torchrun", False),
    ],
)
def test_a_launcher_that_the_image_lacks(added: str | None, launcher: str, refused: bool) -> None:
    place = world.layout()
    env = (("PATH", "/bin"), *((("TOOLKIT_WITH", added),) if added is not None else ()))
    place = replace(place, image=replace(place.image, env=env))
    if not refused:
        require_launcher(place, launcher)
        return
    with pytest.raises(NotReady, match=f"was built without {launcher}") as caught:
        require_launcher(place, launcher)
    every = ",".join(sorted({*filter(None, (added or "").split(",")), launcher}))
    assert caught.value.fix == f"toolkit image build --flavor cpu --with {every} && toolkit up"


def test_horovodrun_with_mpi_is_refused_where_open_mpi_is_5() -> None:
    place = world.layout()
    place = replace(
        place, image=replace(place.image, env=(("TOOLKIT_WITH", ""), ("TOOLKIT_OPENMPI", "5.0.11")))
    )
    for launcher in ("mpirun", "torchrun", "horovodrun-gloo"):
        require_launcher(place, launcher)
    require_launcher(place, "horovodrun", elastic=True)
    with pytest.raises(NotReady, match=r"contains Open MPI 5\.0\.11") as caught:
        require_launcher(place, "horovodrun")
    assert "--launcher mpirun" in caught.value.fix


def test_down_looks_at_the_port_only_if_it_is_nobody_elses() -> None:
    def port(facts: Facts) -> str:
        steps = plan_down(world.inventory(), {"gpu2": facts}).steps
        (proof,) = (s for s in steps if isinstance(s, Run) and s.title == "verify the removal")
        return str(proof.command.argv[6])

    own = world.facts_when_up()["gpu2"]
    theirs = replace(world.running("prod", "gpu2", "worker", port="12345"), name="toolkit-prod-worker")
    assert port(own) == "12345"
    assert port(replace(own, containers=(*own.containers, theirs))) == "0"
    assert port(replace(own, containers=())) == "0"


def test_down_without_containers_still_looks_for_files() -> None:
    plan = plan_down(world.inventory(), world.cluster_facts(), "runs/demo")
    assert [p.title for p in plan.phases] == [
        "records",
        "containers",
        "processes",
        "files",
        "images",
        "proof",
    ]
    # Without a container the jobs are read by a fresh one, and without an image they are not thrown away.
    records = {step.host: step for step in plan.phases[0].steps}
    assert isinstance(records["gpu1"], Fetch) and "run" in records["gpu1"].inside
    assert isinstance(records["cpu3"], Run) and "--no-save" in records["cpu3"].fix
    assert plan_down(world.inventory(), {}).phases == ()


# Smoke


def test_gpus_are_asked_for_only_where_there_are_some() -> None:
    plan = plan_gpu_smoke(world.layout())
    assert {s.host for s in plan.steps} == {"gpu1"}
    text = "cluster: demo\nimage: toolkit:cpu\nhosts: {cpu3: {address: 10.77.0.4}}\n"
    bare = {"cpu3": replace(world.cluster_facts()["cpu3"], images=(world.NAMED,))}
    assert plan_gpu_smoke(make_layout(world.inventory(text), Observed(bare))).phases == ()


def test_the_line_of_the_all_reduce() -> None:
    lines = ["[gpu1 0] warming up", "[gpu1 0] all-reduce over 2 ranks: 3.0, correct", "more"]
    assert allreduce_line(lines) == "all-reduce over 2 ranks: 3.0, correct"
    assert allreduce_line(["[gpu1 0] nothing"]) == ""


def test_every_container_of_a_moment_is_confined() -> None:
    """SECURITY.md says so of all containers on the hosts."""
    # A command for people; and the rendering of all containers of a cluster, which has tests of its own.
    others = ("checks/containers.py", "core/container.py")
    for path in sorted(Path(toolkit.__file__).parent.rglob("*.py")):
        name = str(path.relative_to(Path(toolkit.__file__).parent))
        if name.startswith("lab/") or name in others:  # the lab's containers behave as hosts
            continue
        for match in re.finditer(r'"docker", "run"|docker run --', path.read_text()):
            around = path.read_text()[match.start() : match.start() + 300]
            assert "*CONFINED" in around or "@confined@" in around, (name, around)
