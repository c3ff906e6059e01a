"""Removal by `down` and its final check, with real shells and processes and a fake engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.unit import cluster_world as world
from tests.unit.container_world import BOUND_TO_MODES, OTHER, PATIENCE_S, only_root, sleeping
from tests.unit.hosts_here import execute, hosts
from toolkit.core.facts import Facts
from toolkit.core.report import PlanFailed, Report, refuse_failed
from toolkit.lifecycle import down as plan_module
from toolkit.lifecycle.down import plan_down
from toolkit.plan.show import report_text
from toolkit.plan.steps import Fetch, Plan, Run
from toolkit.protocol.files import NO_JOB_FILES
from toolkit.protocol.names import LABEL_PORT
from toolkit.transfer.host import data_relay_program

# Processes are looked for on the whole machine: another run of these tests must not meet this one.
CLUSTER = f"down-{os.getpid():x}"
IDENTITY = f"{os.getpid():016x}"
PART = f"toolkit-part:{IDENTITY}-a1b2-3"

_DOCKER = r"""#!/bin/sh
echo "$*" >>@log
case $1 in
ps) case $* in *json*) cat @containers ;; *) sed 's/"//g; s/\\n/\n/g' @containers ;; esac ;;
images) case $* in *toolkit.part=IDENTITY*) cat @parts ;; esac ;;
rmi) : >@parts ;;
unpause) rm -f @paused ;;
container) [ ! -e @paused ] || { echo 'in state paused' >&2; exit 1; } ;;
rm)
  [ ! -e @refused ] || { cat @refused >&2; exit 1; }
  if [ -e @removing ]; then rm @removing; : >@containers; echo 'already in progress' >&2; exit 1; fi
  : >@containers ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the state of a fake docker: ``containers``, ``parts``; ``log`` has its calls.

    Labels in ``containers`` are JSON, and are printed plain if the format does not ask for JSON.
    """
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(_DOCKER.replace("@", f"{tmp_path}/").replace("IDENTITY", IDENTITY))
    program.chmod(0o755)
    for name in ("containers", "parts", "log"):
        (tmp_path / name).write_text("")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path


def plan(folder: Path, port: int = 0) -> Plan:
    """The plan for one host, where the cluster has a container if it had a port."""
    state = folder / "state directory" / "toolkit" / CLUSTER / "gpu2"
    state.mkdir(parents=True, exist_ok=True)
    return plan_of(state, port)


def plan_of(state: Path, port: int = 0, user: str = "alice") -> Plan:
    worker = world.running(CLUSTER, "gpu2", "worker")
    worker = replace(worker, labels={**worker.labels, LABEL_PORT: str(port)})
    image = replace(world.NAMED, identity=IDENTITY)
    containers = (worker,) if port else ()
    facts = world.facts("gpu2", user=user, state_dir=str(state), images=(image,), containers=containers)
    return plan_down(replace(world.inventory(), cluster=CLUSTER), {"gpu2": facts})


def outcomes(report: Report) -> dict[str, str]:
    return {o.phase: o.status for o in report.outcomes}


def run(folder: Path) -> Report:
    return execute(plan(folder), hosts("gpu2"))


def test_everything_goes_and_a_second_time_there_is_nothing_to_do(engine: Path) -> None:
    (engine / "parts").write_text(f"{PART}\nsomebody/else:1\n")
    report = run(engine)
    assert report.ok and outcomes(report)["images"] == "ok"
    assert (
        f"rmi {PART}" in (engine / "log").read_text() and "rmi somebody" not in (engine / "log").read_text()
    )
    assert not (engine / "state directory").exists() or not list((engine / "state directory").iterdir())
    again = execute(plan_of(engine / "state directory" / "toolkit" / CLUSTER / "gpu2"), hosts("gpu2"))
    assert again.ok and again.changes == 0, again
    assert outcomes(again)["proof"] == "ok" and "nothing to change" in report_text(again)


@pytest.mark.parametrize("prefix", ["docker.io/library/", "localhost/"])
def test_parts_that_podman_lists_with_a_registry_go(engine: Path, prefix: str) -> None:
    (engine / "parts").write_text(f"{prefix}{PART}\n{prefix}other:1\n")
    assert outcomes(run(engine))["images"] == "ok"
    assert re.findall("^rmi .*", (engine / "log").read_text(), re.MULTILINE) == [f"rmi {PART}"]


def test_processes_outside_of_containers_end_and_others_stay(engine: Path) -> None:
    with (
        sleeping(TOOLKIT_CLUSTER=CLUSTER, TOOLKIT_JOB="j1") as rank,
        sleeping(TOOLKIT_CLUSTER=CLUSTER, TOOLKIT_RELAY=IDENTITY) as relay,
        sleeping(TOOLKIT_CLUSTER=f"{CLUSTER}x", TOOLKIT_JOB="j1") as neighbour,
        sleeping(NOT_TOOLKIT_CLUSTER=CLUSTER, TOOLKIT_JOB="j1") as stranger,
    ):
        report = run(engine)
        assert report.ok, report
        assert (rank.wait(PATIENCE_S), relay.wait(PATIENCE_S)) == (-15, -15)
        assert (neighbour.poll(), stranger.poll()) == (None, None)


def test_a_process_with_only_the_clusters_name_is_reported_and_not_killed(engine: Path) -> None:
    with sleeping(TOOLKIT_CLUSTER=CLUSTER) as shell:
        report = run(engine)
        (failed,) = report.failures
        assert failed.phase == "proof" and f"process {shell.pid};" in failed.detail
        assert shell.poll() is None


def test_a_data_transfer_whose_connection_hangs_ends(engine: Path) -> None:
    program = data_relay_program(
        *(str(engine / "data"), str(engine / "account"), CLUSTER, "none:1", "0:0", "127.0.0.1")
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([str(word) for word in program.argv], **pipes) as relay:  # type: ignore[call-overload]
        assert b"ready" in relay.stdout.readline()
        report = run(engine)
        assert report.ok, report
        assert relay.wait(PATIENCE_S) == -15


@only_root
@pytest.mark.parametrize("setuid", [False, True])
def test_processes_of_other_users_neither_end_nor_count(engine: Path, setuid: bool) -> None:
    of_other = {"setuid": True} if setuid else {"user": OTHER}
    with (
        sleeping(TOOLKIT_CLUSTER=CLUSTER, TOOLKIT_JOB="j1", **of_other) as rank,
        sleeping(TOOLKIT_CLUSTER=CLUSTER, **of_other) as shell,
    ):
        report = run(engine)
        assert report.ok, report
        assert outcomes(report)["processes"] == "skipped" and (rank.poll(), shell.poll()) == (None, None)


# Listens on a port that the kernel chooses, as the user of its argument, until its standard input ends.
_LISTENS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listener(user: int) -> Iterator[int]:
    """A port of this machine on which a process of a user listens."""
    argv = (sys.executable, "-ISc", _LISTENS, str(user))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def test_a_listener_on_the_port_of_the_cluster_is_reported(engine: Path) -> None:
    with listener(os.getuid()) as port:
        (failed,) = execute(plan(engine, port), hosts("gpu2")).failures
    assert failed.phase == "proof" and f"a listener on port {port};" in failed.detail


@only_root
def test_a_listener_of_another_user_does_not_count(engine: Path) -> None:
    with listener(OTHER) as port:
        assert execute(plan(engine, port), hosts("gpu2")).ok


def test_parts_stay_while_this_user_receives_the_image(engine: Path) -> None:
    (engine / "parts").write_text(f"{PART}\n")
    with sleeping(TOOLKIT_CLUSTER=f"{CLUSTER}x", TOOLKIT_RELAY=IDENTITY) as relay:
        report = run(engine)
    assert outcomes(report)["images"] == "skipped" and (engine / "parts").read_text() == f"{PART}\n"
    (proof,) = (one for one in report.outcomes if one.phase == "proof")
    why = f"cannot check for partial transfers of image {IDENTITY}"
    assert proof.status == "not run" and why in proof.detail and proof.detail.endswith(f"pid {relay.pid}")
    assert not report.ok and not report.failures
    text = report_text(report)
    assert why in text and "fix: toolkit down  # after the transfer has finished" in text
    with pytest.raises(PlanFailed, match=why):
        refuse_failed(report)
    again = run(engine)
    assert again.ok and outcomes(again)["images"] == "ok" and (engine / "parts").read_text() == ""


def test_what_is_left_fails_although_parts_are_in_doubt(engine: Path) -> None:
    (engine / "parts").write_text(f"{PART}\n")
    with (
        sleeping(TOOLKIT_RELAY=IDENTITY),
        sleeping(TOOLKIT_CLUSTER=CLUSTER) as shell,
    ):
        (failed,) = run(engine).failures
    assert failed.phase == "proof" and f"process {shell.pid};" in failed.detail


@pytest.mark.parametrize(
    ("argv", "user", "env"),
    [
        (("load", "300"), None, {}),
        ((), None, {"TOOLKIT_RELAY": f"{IDENTITY}0"}),
        pytest.param((), OTHER, {"TOOLKIT_RELAY": IDENTITY}, marks=only_root),
        pytest.param(("load", "300"), OTHER, {}, marks=only_root),
    ],
)
def test_parts_go_whatever_else_runs(
    engine: Path, argv: tuple[str, ...], user: int | None, env: dict[str, str]
) -> None:
    (engine / "parts").write_text(f"{PART}\n")
    with sleeping(*argv, user=user, **env):
        report = run(engine)
    assert report.ok and outcomes(report)["images"] == "ok" and (engine / "parts").read_text() == ""


def test_parts_that_the_engine_does_not_list_are_no_proof(engine: Path) -> None:
    with (engine / "bin" / "docker").open("a") as file:
        file.write('[ "$1" != images ] || { echo "engine is busy" >&2; exit 1; }\n')
    (failed,) = run(engine).failures
    assert failed.phase == "images" and "engine is busy" in failed.detail


@pytest.mark.parametrize("link", [False, True])
def test_what_is_mounted_below_its_folder_is_not_removed(
    engine: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    home = engine / "state directory"
    state = (engine / "real home" if link else home) / "toolkit" / CLUSTER / "gpu2"
    (state / "jobs" / "data").mkdir(parents=True)
    (state / "jobs" / "data" / "precious").write_text("x")
    if link:
        home.symlink_to("real home")
    # The kernel lists paths without links.
    table = engine / "mounts"
    table.write_text(f"server:/data {str(state).replace(' ', chr(92) + '040')}/jobs/data nfs rw 0 0\n")
    for name in ("REMOVE_STATE", "_PROOF"):
        text = getattr(plan_module, name).replace("/proc/self/mounts", str(table))
        monkeypatch.setattr(plan_module, name, text)
    (failed,) = run(engine).failures
    assert (
        failed.phase == "files"
        and f"{CLUSTER}/gpu2/jobs/data; unmount the file system, because toolkit" in failed.detail
    )
    assert (state / "jobs" / "data" / "precious").read_text() == "x"
    table.write_text(f"server:/data {str(state.parent).replace(' ', chr(92) + '040')}/gpu22 nfs rw 0 0\n")
    assert run(engine).ok, "the folder of another host is none of this one"


def test_folders_that_a_rank_has_made_read_only_are_removed(tmp_path: Path) -> None:
    state, outside = tmp_path / "toolkit" / CLUSTER / "gpu2", tmp_path / "outside"
    for folder, mode in ((state / "a" / "cache", 0o555), (state / "b" / "none", 0), (outside, 0o555)):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        folder.chmod(mode)
    (state / "a" / "link").symlink_to(outside)
    command = [*BOUND_TO_MODES, "sh", "-c", plan_module.REMOVE_STATE, "sh", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, state.exists()) == (0, "", False)
    assert outside.stat().st_mode & 0o777 == 0o555 and (outside / "file").read_text() == "x"


def up_with_state(folder: Path, place: str, state: str = "running") -> tuple[Path, Facts]:
    """The state directory of a container, and a host whose hosts.yaml says another one since."""
    old = folder / place / "toolkit" / CLUSTER / "gpu2"
    for name in ("conf", "jobs/job"):
        (old / name).mkdir(parents=True)
    (old / "conf" / "id_ed25519").touch()
    mounts = (f"{old}/conf", f"{old}/jobs", "/data")
    worker = replace(world.running(CLUSTER, "gpu2", "worker"), state=state, mounts=mounts)
    present = f"{folder}/new/toolkit/{CLUSTER}/gpu2"
    return old, world.facts("gpu2", state_dir=present, images=(world.NAMED,), containers=(worker,))


def test_the_state_directory_of_a_container_goes_after_a_change_of_hosts_yaml(engine: Path) -> None:
    old, facts = up_with_state(engine, "old place")
    inventory = replace(world.inventory(), cluster=CLUSTER)
    assert execute(plan_down(inventory, {"gpu2": facts}), hosts("gpu2")).ok
    assert not old.exists() and (engine / "old place").exists()
    proof = plan_down(inventory, {"gpu2": facts}).phases[-1]
    (old / "conf").mkdir(parents=True)
    (failed,) = execute(Plan("down", (proof,)), hosts("gpu2")).failures
    assert f"files: {old};" in failed.detail


@pytest.mark.parametrize("mounted", ["old", "new"])
def test_containers_stay_until_every_state_directory_is_removed(
    engine: Path, monkeypatch: pytest.MonkeyPatch, mounted: str
) -> None:
    """Without the containers, the next `down` does not find the earlier state directory."""
    old, facts = up_with_state(engine, "old")
    Path(facts.state_dir).mkdir(parents=True)
    (engine / "containers").write_text(f'bbbb toolkit-{CLUSTER}-worker "alice"\n')
    (engine / "paused").touch()  # `podman container stop` refuses a paused container
    (table := engine / "mounts").write_text(f"server:/data {engine}/{mounted}/toolkit/{CLUSTER}/gpu2 nfs\n")
    for name in ("REMOVE_STATE", "_PROOF"):
        text = getattr(plan_module, name).replace("/proc/self/mounts", str(table))
        monkeypatch.setattr(plan_module, name, text)
    plan = plan_down(replace(world.inventory(), cluster=CLUSTER), {"gpu2": facts})
    (failed,) = execute(plan, hosts("gpu2")).failures
    assert failed.phase == "files" and failed.fix.startswith("toolkit down  #")
    calls = (engine / "log").read_text()
    assert "container stop -t 0 bbbb\n" in calls and "rm --force" not in calls
    table.write_text("")
    assert execute(plan, hosts("gpu2")).ok
    assert "rm --force --volumes bbbb\n" in (engine / "log").read_text()
    assert not old.exists() and not Path(facts.state_dir).exists()


@pytest.mark.parametrize("state", ["running", "exited"])
def test_records_in_the_state_directory_of_a_container_are_downloaded(engine: Path, state: str) -> None:
    old, facts = up_with_state(engine, "old", state)
    plan = plan_down(replace(world.inventory(), cluster=CLUSTER), {"gpu2": facts}, "runs/demo")
    present, used = (cast(Fetch, step) for step in plan.phases[0].steps)
    assert f"type=bind,source={facts.state_dir}/jobs,target=/run/toolkit/jobs,readonly" in present.inside
    if state == "running":
        assert used.inside == ("docker", "exec", f"toolkit-{CLUSTER}-worker")
    else:
        assert f"type=bind,source={old}/jobs,target=/run/toolkit/jobs,readonly" in used.inside


@pytest.mark.parametrize("label", ["owner", "host"])
def test_a_folder_of_the_user_is_no_state_directory(engine: Path, label: str) -> None:
    _, facts = up_with_state(engine, "old")
    (worker,) = facts.containers
    other = replace(worker, labels={**worker.labels, f"toolkit.{label}": "other"})
    only_jobs = replace(worker, mounts=worker.mounts[1:])
    for one in (other, only_jobs):
        found = replace(facts, containers=(one,))
        steps = plan_down(replace(world.inventory(), cluster=CLUSTER), {"gpu2": found}).steps
        assert len([step for step in steps if step.title.startswith("remove SSH keys")]) == 1


@pytest.mark.parametrize("jobs", ["missing", "empty", "one job", "cannot be listed"])
@pytest.mark.parametrize("image", [True, False])
def test_only_an_empty_folder_of_jobs_is_not_downloaded(engine: Path, jobs: str, image: bool) -> None:
    """If ls fails, the folder can contain results."""
    state = engine / "state directory"
    facts = world.facts("gpu2", state_dir=str(state), images=(world.NAMED,) if image else ())
    if jobs != "missing":
        (state / "jobs").mkdir(parents=True)
    if jobs == "one job":
        (state / "jobs" / "job").touch()
    if jobs == "cannot be listed":
        (state / "jobs").chmod(0)
    (step,) = plan_down(world.inventory(), {"gpu2": facts}, "runs/demo").phases[0].steps
    words = step.inside if isinstance(step, Fetch) else cast(Run, step).command.argv
    command = [*BOUND_TO_MODES, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    without = jobs in ("missing", "empty")
    if image:
        assert done.stdout == (f"{NO_JOB_FILES}\n" if without else "")
        assert (engine / "log").read_text()[:8] == ("" if without else "run --rm")
    assert done.returncode == (0 if without or image else 1)


def test_the_fix_for_files_that_cannot_be_read_names_the_folder_of_the_jobs() -> None:
    facts = world.facts("gpu2", state_dir="/state directory", images=(world.NAMED,))
    (step,) = plan_down(world.inventory(), {"gpu2": facts}, "runs/demo").phases[0].steps
    assert isinstance(step, Fetch) and step.fix.startswith(
        "on gpu2: sudo chown -R \"$(id -u)\" '/state directory/jobs' && chmod -R u+rwX "
        "'/state directory/jobs'  # "
    )


def test_containers_of_another_user_stay(engine: Path) -> None:
    name = f"toolkit-{CLUSTER}"
    (engine / "containers").write_text(f'aaaa {name}-main "mallory"\n')
    assert run(engine).ok
    assert "rm --force" not in (engine / "log").read_text()
    # Those that do not say whose they are, as a hand may have made them, are ours by their cluster.
    rows = (f'aaaa {name}-main "mallory"', f'bbbb {name}-worker "alice"', f'cccc {name}-service-x ""')
    # The labels of this one came with its image.
    rows = (*rows, 'dddd my-notebook "alice"')
    # The label of this one contains what looks like the row of another container.
    rows = (*rows, f'eeee {name}-main "mallory\\nffff {name}-main alice"')
    (engine / "containers").write_text("\n".join((*rows, "")))
    run(engine)
    assert "rm --force --volumes bbbb cccc" in (engine / "log").read_text().splitlines()


@pytest.mark.parametrize("user", [r"CORP\alice", "alice@corp.example.com", "jürgen", "r&d"])
def test_containers_of_a_user_of_a_directory_service_go(engine: Path, user: str) -> None:
    # As Docker's templates write JSON: without escapes for HTML and for letters beyond ASCII.
    owner = json.dumps(user, ensure_ascii=False)
    (engine / "containers").write_text(f"bbbb toolkit-{CLUSTER}-worker {owner}\n")
    report = execute(plan_of(engine / "toolkit" / CLUSTER / "gpu2", user=user), hosts("gpu2"))
    assert report.ok and outcomes(report)["containers"] == "ok"
    assert "rm --force --volumes bbbb" in (engine / "log").read_text().splitlines()


def test_containers_that_another_down_removes_are_waited_for(engine: Path) -> None:
    sleep = engine / "bin" / "sleep"
    sleep.write_text("#!/bin/sh\n")
    sleep.chmod(0o755)
    row = f'bbbb toolkit-{CLUSTER}-worker "alice"\n'
    (engine / "containers").write_text(row)
    (engine / "removing").touch()
    assert run(engine).ok
    # Another reason does not pass, and is reported.
    (engine / "containers").write_text(row)
    (engine / "refused").write_text("driver failed to remove the root file system\n")
    (failed,) = run(engine).failures
    assert failed.phase == "containers" and failed.detail == "driver failed to remove the root file system"
