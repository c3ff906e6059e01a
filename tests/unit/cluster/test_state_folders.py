"""A host whose state directory another user can replace is refused before anything is written there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit import cluster_world as world
from tests.unit.cluster import test_probe
from tests.unit.hosts_here import execute, hosts
from toolkit.cluster.container_status import host_states
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.probe import parse_facts
from toolkit.cluster.session import Session
from toolkit.cluster.state_folders import (
    FILES,
    QUESTION,
    known_files,
    parse_state_files,
    parse_state_folders,
    refuse_unsafe_state,
)
from toolkit.core.command import Command, Result
from toolkit.core.facts import Facts, StateFile, StateFolder
from toolkit.core.host_programs import container_programs
from toolkit.errors import ToolkitError, UnsafeState
from toolkit.image.pull import plan_pull
from toolkit.lifecycle.down import plan_down
from toolkit.lifecycle.up import plan_up
from toolkit.plan.context import Context
from toolkit.plan.executors import upload_question
from toolkit.plan.steps import File, Phase, Plan, Upload
from toolkit.protocol.frames import framed_script, read_frames

DIR, LINK, FILE = stat.S_IFDIR, stat.S_IFLNK, stat.S_IFREG
STATE = "/scratch/alice/toolkit/demo/gpu1"
OWN = f"1000 {DIR | 0o700:x}"
TMP = f"0 {DIR | 0o1777:x}"


def listed(home: Path) -> tuple[StateFile, ...]:
    """Run the query for files of the state in a folder."""
    text = framed_script(FILES, "0123456789abcdef")
    argv = ["sh", "-c", f"mine=$1; {text}", "sh", str(home)]
    done = subprocess.run(argv, capture_output=True, check=True)
    assert done.stderr == b""
    return parse_state_files(read_frames(done.stdout, "0123456789abcdef")["files"])


def test_the_files_of_the_state_are_listed_as_the_steps_of_up_query_them(tmp_path: Path) -> None:
    for name in ("conf", "etc", "jobs/one", "home", "services/board/cache"):
        (tmp_path / name).mkdir(parents=True)
    for name, mode in (
        ("conf/host.json", 0o600),
        ("etc/hosts", 0o644),
        ("version", 0o600),
        ("conf/a b", 0o640),
    ):
        (tmp_path / name).write_text(f"{name}\n")
        (tmp_path / name).chmod(mode)
    for name, text in container_programs().items():
        (tmp_path / "inside" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "inside" / name).write_text(text)
    (tmp_path / "conf/way").symlink_to("host.json")
    (tmp_path / "jobs/one/log").write_text("x")
    said = world.facts(state_files=listed(tmp_path))
    by_path = {file.path: file for file in said.state_files}
    assert by_path["conf/host.json"].sum == hashlib.sha256(b"conf/host.json\n").hexdigest()
    assert not by_path["conf/way"].sum and not by_path["jobs"].sum and "jobs/one" not in by_path
    assert "services/board" in by_path and "services/board/cache" not in by_path
    programs = [f"inside/{name}" for name in container_programs()]
    assert [name for name in programs if not by_path[name].sum] == [], "all programs are listed"
    names = [*programs, "conf/host.json", "conf/absent", "etc/hosts", "conf/a b", "version"]
    step = Upload("gpu1", "write", tuple(File(str(tmp_path / name), ("",)) for name in names))
    argv = [str(token) for token in upload_question(step, Context({})).argv]
    asked = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    known = known_files(replace(said, state_dir=str(tmp_path)), (file.path for file in step.files))
    assert [line.split() for line in known.split("\n")] == [line.split() for line in asked.splitlines()]


def test_a_host_without_a_state_lists_no_files(tmp_path: Path) -> None:
    assert listed(tmp_path / "absent") == ()
    assert parse_state_files("x\n81a4\n81a4  two\nzz conf\n" + "0" * 63 + "  conf/a\n") == ()


def facts(*lines: str) -> Facts:
    """A host that answers these lines, the innermost directory first."""
    return world.facts(state_folders=parse_state_folders("gpu1", STATE, "\n".join(lines)))


def test_lines_list_directories_from_the_innermost_outward() -> None:
    found = parse_state_folders("gpu1", STATE, f"-\n-\n{OWN}\n{OWN}\n{TMP}\n")
    assert found == (
        StateFolder("/scratch/alice/toolkit", 1000, DIR | 0o700),
        StateFolder("/scratch/alice", 1000, DIR | 0o700),
        StateFolder("/scratch", 0, DIR | 0o1777, outer=True),
    )
    assert parse_state_folders("gpu1", STATE, "-\n-\n-") == parse_state_folders("gpu1", STATE, "") == ()


@pytest.mark.parametrize(
    "line", ["1000", "alice 41c0", "1000 41c0 /scratch", "-1 41c0", "1000 drwx", "é 41c0"]
)
def test_an_answer_of_another_form_is_an_error_of_its_host(line: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        parse_state_folders("gpu1", STATE, line)
    assert caught.value.host == "gpu1"


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (OWN, OWN, OWN),
        (OWN, OWN, OWN, OWN, TMP),
        ("-", "-", "-", "-", "-"),
        (f"1000 {DIR | 0o755:x}", OWN, OWN, OWN, f"0 {DIR | 0o755:x}"),
        # STATE_DIR of some other user, who alone can rename what is in it.
        (OWN, OWN, OWN, OWN, f"2000 {DIR | 0o755:x}"),
        (OWN, OWN, OWN, OWN, f"2000 {DIR | 0o3777:x}"),
        (OWN, OWN, OWN, OWN, f"1000 {DIR | 0o700:x}"),
    ],
)
def test_directories_that_only_the_user_can_change(lines: tuple[str, ...]) -> None:
    refuse_unsafe_state(facts(*lines))


FOREIGN = f"2000 {DIR | 0o700:x}"
SHARED = f"1000 {DIR | 0o770:x}"


@pytest.mark.parametrize(
    ("lines", "what", "fix"),
    [
        ((FOREIGN, OWN, OWN), f"{STATE} belongs to user ID 2000", f"sudo mv {STATE} {STATE}.unsafe"),
        ((OWN, FOREIGN, OWN), "demo belongs to user ID 2000 instead of alice (1000)", "sudo mv"),
        (("-", "-", "-", FOREIGN, TMP), "/scratch/alice belongs to user ID 2000", "sudo mv /scratch/alice "),
        # The outermost first: what is in it counts for nothing.
        ((FOREIGN, FOREIGN, FOREIGN, FOREIGN, TMP), "/scratch/alice belongs", "sudo mv /scratch/alice "),
        (("-", "-", "-", f"0 {DIR | 0o755:x}", TMP), "/scratch/alice belongs to user ID 0", "sudo mv"),
        ((OWN, OWN, OWN, SHARED, TMP), "alice is writable by other users (mode 0770)", "chmod go-w"),
        ((f"1000 {DIR | 0o1777:x}", OWN, OWN), "gpu1 is writable by other users (mode 1777)", "chmod go-w"),
        ((f"1000 {LINK | 0o777:x}", OWN, OWN), f"{STATE} is a symbolic link", f"rm {STATE}  #"),
        (("-", "-", "-", f"2000 {LINK | 0o777:x}", TMP), "alice is a symbolic link", "rm /scratch/alice  #"),
        (("-", "-", f"1000 {FILE | 0o600:x}"), "/scratch/alice/toolkit is not a directory", "sudo mv"),
        ((OWN, OWN, OWN, OWN, f"0 {DIR | 0o777:x}"), "is writable by other users and has no", "+t /"),
        ((OWN, OWN, OWN, OWN, f"0 {DIR | 0o2775:x}"), "is writable by other users and has no", "+t /"),
        (("-", "-", "-", "-", f"0 {FILE | 0o644:x}"), "/scratch is not a directory", "sudo mv"),
    ],
)  # fmt: skip
def test_a_directory_that_another_user_can_change(lines: tuple[str, ...], what: str, fix: str) -> None:
    with pytest.raises(UnsafeState) as caught:
        refuse_unsafe_state(facts(*lines))
    error = caught.value
    assert what in error.what and error.fix.startswith("on gpu1: ") and fix in error.fix
    assert error.host == "gpu1"


def test_one_fix_is_enough_for_all_directories_that_others_can_write_to(tmp_path: Path) -> None:
    """As a default ACL of STATE_DIR makes them."""
    state = tmp_path / "my files/toolkit/demo/gpu1"
    below = ("conf", "etc", "inside", "inside/toolkit", "jobs", "home")
    for folder in (state, *(state / name for name in below)):
        folder.mkdir(parents=True)
    folders = [state, *state.parents][:4]
    for folder in (*folders, *(state / name for name in below)):
        folder.chmod(0o770)

    def seen() -> Facts:
        own = (StateFolder(str(f), os.getuid(), f.stat().st_mode) for f in folders)
        there = {"uid": os.getuid(), "state_dir": str(state), "state_files": listed(state)}
        return world.facts(state_folders=tuple(own), **there)

    with pytest.raises(UnsafeState) as caught:
        refuse_unsafe_state(seen())
    assert "my files is writable by other users (mode 0770)" in caught.value.what
    fix = caught.value.fix.removeprefix("on gpu1: ")
    assert subprocess.run(["sh", "-c", fix], capture_output=True, check=True).stdout == b""
    refuse_unsafe_state(seen())
    assert [f for f in (*folders, *state.rglob("*")) if f.stat().st_mode & 0o022] == []


@pytest.mark.parametrize("name", ["conf", "etc", "inside", "inside/toolkit/container"])
def test_keys_and_programs_that_others_can_replace(name: str) -> None:
    file = StateFile(name, DIR | 0o770)
    with pytest.raises(UnsafeState, match=f"{name} is writable by other users"):
        refuse_unsafe_state(replace(facts(OWN, OWN, OWN), state_files=(file,)))
    others = (StateFile("jobs", DIR | 0o770), StateFile("conf", LINK | 0o777))
    for safe in (replace(file, mode=DIR | 0o755), *others):
        refuse_unsafe_state(replace(facts(OWN, OWN, OWN), state_files=(safe,)))


def test_a_file_name_cannot_hide_a_directory_that_others_can_write_to(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf").chmod(0o770)
    (tmp_path / f"conf/x\n{DIR | 0o700:x} conf").touch()
    with pytest.raises(UnsafeState, match="conf is writable by other users"):
        refuse_unsafe_state(world.facts(state_files=listed(tmp_path)))


def test_directories_of_up_below_a_default_acl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default ACL takes the place of the umask; folders for a group often have one."""
    if not shutil.which("ssh-keygen"):
        pytest.skip("there is no ssh-keygen on this machine")
    entries = ((1, 7), (4, 7), (0x20, 0))  # tag and permissions of the owner, the group and others
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry, 2**32 - 1) for entry in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", acl)
    except (AttributeError, OSError):
        pytest.skip("the file system has no ACLs")
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    inventory = world.inventory(f"{world.HOSTS}state_dir: {tmp_path}\n")
    state = tmp_path / "alice/toolkit/demo/gpu1"
    layout = make_layout(inventory, Observed({"gpu1": world.facts(state_dir=str(state))}))
    steps = plan_up(layout, world.INSIDE).steps
    chosen = [s for s in steps if s.title in ("create the state directories", "create the cluster key")]
    report = execute(Plan("up", tuple(Phase(step.title, (step,)) for step in chosen)), hosts("gpu1"))
    assert len(chosen) == 2 and report.ok
    found = [tmp_path / "alice", *(tmp_path / "alice").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o700}
    assert (state / "conf/id_ed25519").stat().st_mode & 0o777 == 0o600


def test_a_path_in_a_fix_is_one_word_of_the_shell() -> None:
    odd = StateFolder("/home/$(id)/.local/state/toolkit", 2000, DIR | 0o700)
    with pytest.raises(UnsafeState) as caught:
        refuse_unsafe_state(world.facts(state_folders=(odd,)))
    assert "mv '/home/$(id)/.local/state/toolkit' '/home/$(id)/" in caught.value.fix


# The question itself


def asked(cluster: str, host: str, **env: str) -> str:
    done = subprocess.run(
        ["sh", "-c", f"say() {{ printf '%s\\n' \"$2\"; }}\n{QUESTION}", "sh", "", "", cluster, host],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    assert done.stderr == ""
    return done.stdout


def test_the_shell_answers_by_numbers_alone(tmp_path: Path) -> None:
    """Names with a line break and the words of an answer in them are not printed at all."""
    host = "x\n0 41ff\n@@toolkit@@ end"
    state = tmp_path / "toolkit" / "demo" / host
    assert asked("demo", host, HOME="/", XDG_STATE_HOME=str(tmp_path)) == "-\n-\n-\n"
    state.mkdir(parents=True)
    state.chmod(0o700)
    state.parent.chmod(0o750)
    (tmp_path / "toolkit").chmod(0o1777)
    me = os.getuid()
    text = asked("demo", host, HOME="/", XDG_STATE_HOME=str(tmp_path))
    assert text == f"{me} {DIR | 0o700:x}\n{me} {DIR | 0o750:x}\n{me} {DIR | 0o1777:x}\n"


def test_the_shell_follows_no_link_but_that_of_the_shared_directory(tmp_path: Path) -> None:
    real, scratch = tmp_path / "real", tmp_path / "scratch"
    (real / "alice").mkdir(parents=True)
    real.chmod(0o1777)
    scratch.symlink_to(real)
    (real / "alice" / "toolkit").symlink_to(tmp_path)
    env = {"HOME": "/", "TOOLKIT_STATE_DIR": str(scratch), "XDG_STATE_HOME": f"{scratch}/alice"}
    lines = asked("demo", "gpu1", **env).splitlines()
    modes = [int(line.split()[1], 16) if line != "-" else None for line in lines]
    assert len(modes) == 5 and modes[:2] == [None, None]
    assert stat.S_ISLNK(modes[2] or 0) and stat.S_ISDIR(modes[3] or 0) and modes[4] == DIR | 0o1777


def test_it_is_among_the_first_questions() -> None:
    said = parse_facts("gpu1", "demo", test_probe.answer(state=f"{OWN}\n{OWN}\n{FOREIGN}"))
    assert [(f.path.rpartition("/")[2], f.uid) for f in said.state_folders] == [
        *(("gpu1", 1000), ("demo", 1000), ("toolkit", 2000)),
    ]  # fmt: skip


# Who refuses


class Answering:
    """A host that answers the probe with a state directory of this kind."""

    def __init__(self, name: str, lines: str) -> None:
        self.name, self.lines = name, lines

    def run(self, command: Command, timeout: float | None = None) -> Result:
        (nonce,) = set(re.findall(r"nonce=([0-9a-f]{8,64})\n", str(command.argv[2])))
        sections = {**test_probe.answer(state=self.lines, containers="[]"), "end": ""}
        framed = "".join(f"\n{nonce} {name} {len(s.encode())}\n{s}" for name, s in sections.items())
        return Result(0, framed, "", 0.0, framed.encode())


def test_every_command_refuses_such_a_host_and_goes_on_with_the_others() -> None:
    """All commands meet hosts by a Session; a host that is in ``errors`` takes no part in any plan."""
    session = Session(world.inventory())
    safe, unsafe = f"{OWN}\n{OWN}\n{OWN}", f"{OWN}\n{OWN}\n{FOREIGN}"
    answers = {"gpu1": safe, "gpu2": unsafe, "cpu3": safe}
    session.runners = {name: Answering(name, lines) for name, lines in answers.items()}  # type: ignore[misc]
    session.facts = dict(world.cluster_facts())
    session.probe_again(list(answers))
    assert list(session.facts) == ["gpu1", "cpu3"] and list(session.errors) == ["gpu2"]
    assert isinstance(session.errors["gpu2"], UnsafeState)
    for plan in (plan_down(session.inventory, session.facts), plan_pull(session.inventory, session.facts)):
        assert "gpu2" not in {step.host for step in plan.steps}
    assert "gpu2" not in session.runners_in_use()
    (outcome,) = session.connect_outcomes()
    assert (outcome.host, outcome.status) == ("gpu2", "failed")
    assert "belongs to user ID 2000" in outcome.detail and "sudo mv" in outcome.fix
    states = host_states(session.inventory, session.facts, session.errors, container_programs())
    state = next(s for s in states if s.host == "gpu2")
    assert not state.ok and "state directory is not safe" in state.note and "sudo mv" in state.fix


def test_a_host_that_says_nothing_of_its_directories_has_none() -> None:
    refuse_unsafe_state(replace(world.facts(), state_folders=()))
