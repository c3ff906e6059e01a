"""What `down` removes and proves, by real shells and processes; the engine is a stand-in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit import cluster_world as world
from tests.unit.hosts_here import hosts
from tests.unit.inside_world import PATIENCE_S, until_seen
from toolkit.core.report import Report
from toolkit.execute import execute
from toolkit.plan import down as plan_module
from toolkit.plan.down import plan_down
from toolkit.plan.steps import Plan
from toolkit.show import report_text

CLUSTER = f"down-{os.getpid():x}"
PART = f"toolkit-part:{world.IMAGE.identity}-a1b2-3"

_DOCKER = r"""#!/bin/sh
echo "$*" >>@log
case $1 in
ps) case $* in *json*) cat @containers ;; *) sed 's/"//g; s/\\n/\n/g' @containers ;; esac ;;
images) case $* in *toolkit.part=0123456789abcdef*) cat @parts ;; esac ;;
rmi) : >@parts ;;
rm) : >@containers ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of what a stand-in for docker has: ``containers``, ``parts``; ``log`` is its past.

    Labels in ``containers`` are JSON, and are printed plain if the format does not ask for JSON.

    Whether images are on their way is looked for in ``proc`` there: this machine may be somebody's host.
    """
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(_DOCKER.replace("@", f"{tmp_path}/"))
    program.chmod(0o755)
    for name in ("containers", "parts", "log"):
        (tmp_path / name).write_text("")
    for name in ("_REMOVE_PARTS", "_NO_PARTS", "_PROOF"):
        text = getattr(plan_module, name)
        own = text.replace("zli[b]; .*' /proc/[0-9]*", f"zli[b]; .*' {tmp_path}/proc/[0-9]*")
        assert own != text
        monkeypatch.setattr(plan_module, name, own)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path


def plan(folder: Path) -> Plan:
    inventory = replace(world.inventory(), cluster=CLUSTER)
    state = folder / "state folder" / "toolkit" / CLUSTER / "gpu2"
    state.mkdir(parents=True, exist_ok=True)
    return plan_down(inventory, {"gpu2": world.facts("gpu2", state_dir=str(state))})


def outcomes(report: Report) -> dict[str, str]:
    return {o.phase: o.status for o in report.outcomes}


def run(folder: Path) -> Report:
    return execute(plan(folder), hosts("gpu2"))


@contextmanager
def process(*argv: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(argv, env={**os.environ, **env}, start_new_session=True)
    try:
        until_seen(started)
        yield started
    finally:
        started.kill()
        started.wait()


def test_everything_goes_and_a_second_time_there_is_nothing_to_do(engine: Path) -> None:
    (engine / "parts").write_text(f"{PART}\nsomebody/else:1\n")
    report = run(engine)
    assert report.ok and outcomes(report)["images"] == "ok"
    assert (
        f"rmi {PART}" in (engine / "log").read_text() and "rmi somebody" not in (engine / "log").read_text()
    )
    assert not (engine / "state folder").exists() or not list((engine / "state folder").iterdir())
    state = str(engine / "state folder" / "toolkit" / CLUSTER / "gpu2")
    facts = {"gpu2": world.facts("gpu2", state_dir=state)}
    again = execute(plan_down(replace(world.inventory(), cluster=CLUSTER), facts), hosts("gpu2"))
    assert again.ok and again.changes == 0, again
    assert outcomes(again)["proof"] == "ok" and "nothing to change" in report_text(again)


def test_processes_outside_of_containers_end_and_others_stay(engine: Path) -> None:
    with (
        process("sleep", "300", TOOLKIT_CLUSTER=CLUSTER, TOOLKIT_JOB="j1") as rank,
        process("sleep", "300", TOOLKIT_CLUSTER=CLUSTER, TOOLKIT_RELAY=CLUSTER) as relay,
        process("sleep", "300", TOOLKIT_CLUSTER=f"{CLUSTER}x", TOOLKIT_JOB="j1") as neighbour,
        process("sleep", "300", NOT_TOOLKIT_CLUSTER=CLUSTER, TOOLKIT_JOB="j1") as stranger,
    ):
        report = run(engine)
        assert report.ok, report
        assert (rank.wait(PATIENCE_S), relay.wait(PATIENCE_S)) == (-15, -15)
        assert (neighbour.poll(), stranger.poll()) == (None, None)


def test_a_process_that_only_has_the_clusters_name_is_told_and_not_ended(engine: Path) -> None:
    with process("sleep", "300", TOOLKIT_CLUSTER=CLUSTER) as shell:
        report = run(engine)
        (failed,) = report.failures
        assert failed.phase == "proof" and f"process {shell.pid};" in failed.detail
        assert shell.poll() is None


# As the client that loads an image, and the program that passes one on, look among processes.
SENDS = ("docker\0load\0", "python3\0-I\0-S\0-c\0import base64, sys, zlib; exec(x)\0box1\0")


@pytest.mark.parametrize("cmdline", [*SENDS, "sh\0-c\0docker load; import base64, sys, zlib;\0"])
def test_parts_stay_while_any_image_is_on_its_way(engine: Path, cmdline: str) -> None:
    (engine / "parts").write_text(f"{PART}\n")
    (engine / "proc" / "12").mkdir(parents=True)
    (engine / "proc" / "12" / "cmdline").write_text(cmdline)
    report = run(engine)
    stay = cmdline in SENDS
    assert report.ok and outcomes(report)["images"] == ("skipped" if stay else "ok")
    assert (engine / "parts").read_text() == (f"{PART}\n" if stay else "")


def test_what_is_mounted_below_its_folder_is_not_removed(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = engine / "state folder" / "toolkit" / CLUSTER / "gpu2"
    (state / "jobs" / "data").mkdir(parents=True)
    (state / "jobs" / "data" / "precious").write_text("x")
    table = engine / "mounts"
    table.write_text(f"server:/data {str(state).replace(' ', chr(92) + '040')}/jobs/data nfs rw 0 0\n")
    for name in ("_REMOVE_FILES", "_PROOF"):
        text = getattr(plan_module, name).replace("/proc/self/mounts", str(table))
        monkeypatch.setattr(plan_module, name, text)
    (failed,) = run(engine).failures
    assert failed.phase == "files" and f"{CLUSTER}/gpu2/jobs/data is not ours to remove" in failed.detail
    assert (state / "jobs" / "data" / "precious").read_text() == "x"
    table.write_text(f"server:/data {str(state.parent).replace(' ', chr(92) + '040')}/gpu22 nfs rw 0 0\n")
    assert run(engine).ok, "the folder of another host is none of this one"


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
