"""A little of what `make fuzz` does at length, in a process of its own: the guard cannot be taken off."""

from __future__ import annotations

import copy
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import mutations

ROOT = Path(__file__).resolve().parents[2]


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("kind", "count"), [("files", 1200), ("lines", 120), ("exports", 300)])
def test_nothing_breaks(kind: str, count: int) -> None:
    done = python("-m", "tests.fuzz", "-n", str(count), "--kind", kind)
    assert done.returncode == 0, done.stdout + done.stderr
    # Both sorts of outcome, or the input would not be worth much.
    assert re.search(rf"fuzz {kind}: seed 1, {count} tried .* [1-9]\d* refused", done.stdout)
    assert re.search(r"[1-9]\d* (accepted|ready to contact)", done.stdout)


def test_changes_of_json_do_not_change_the_values_that_they_insert() -> None:
    before = copy.deepcopy(mutations._VALUES)
    rng = random.Random(1)
    for _ in range(3000):
        mutations._types(rng, {"a": [{}, {"b": {}}]})
        assert before == mutations._VALUES


def test_an_input_can_be_tried_again_by_its_number() -> None:
    code = (
        "import random; from tests.fuzz import command_lines as c, hosts_files as h\n"
        "print([c.make(random.Random(f'5/lines/{n}')) for n in (7, 8)], h.mutant(random.Random('5/files/7')))"
    )
    assert python("-c", code).stdout == python("-c", code).stdout != ""


def test_every_verb_is_tried_and_sound_hosts_suit_the_commands(tmp_path: Path) -> None:
    """Both in one process, which imports every verb."""
    code = (
        "from pathlib import Path\n"
        "from tests.fuzz import answers\n"
        "from tests.fuzz.answers import LINES, WITHOUT_HOSTS\n"
        "from tests.fuzz.words import RIGHT, SPOILERS, verb_of\n"
        "from tests.unit.docs_check import verbs\n"
        "assert set(LINES) | WITHOUT_HOSTS == set(verbs()), (set(LINES) | WITHOUT_HOSTS) ^ set(verbs())\n"
        "assert set(SPOILERS) == set(verbs()), set(SPOILERS) ^ set(verbs())\n"
        "assert {' '.join(words[: verb_of(words)]) for words in RIGHT} == set(verbs())\n"
        f"box = Path({str(tmp_path / 'box')!r})\n"
        "answers.settle(box)\n"
        "answers.check_sound(answers.sandbox(box))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_answers_of_hosts_break_nothing() -> None:
    done = python("-m", "tests.fuzz", "-n", "30", "--kind", "answers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"fuzz answers: seed 1, 30 tried .* [1-9]\d* refused", done.stdout)
    assert re.search(r"[1-9]\d* ignored", done.stdout)


def test_a_client_that_loses_the_other_hosts_is_noticed() -> None:
    code = (
        "from tests.fuzz.broken_builds import CLIENTS, notice_client\n"
        "print(notice_client(next(one for one in CLIENTS if one.file == 'remote/fanout.py'))[1])"
    )
    done = python("-c", code)
    assert "reports nothing of" in done.stdout, done.stderr


def test_a_box_refuses_a_folder_with_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    done = python("-c", f"from tests.fuzz.answers import *; Box(Path({str(tmp_path / 'box')!r}))")
    assert "must contain nothing but box, found ['notes']" in done.stderr
    assert (tmp_path / "notes").read_text() == "mine"


def test_the_guard_sees_what_a_command_would_do(tmp_path: Path) -> None:
    code = f"""
import os, socket, subprocess, time
from pathlib import Path
from tests.fuzz.sandbox import Contact, Hang, Sandbox
box = Sandbox(Path({str(tmp_path / "box")!r}), {{"x": b"1"}})
def tried(action, seconds=5):
    try:
        with box.watched(seconds):
            action()
    except (Contact, Hang, PermissionError) as error:
        return type(error).__name__, len(box.changes)
    return "", len(box.changes)
assert tried(socket.socket) == ("Contact", 0)
assert tried(lambda: socket.getaddrinfo("localhost", 1)) == ("Contact", 0)
assert tried(lambda: subprocess.run(["true"])) == ("Contact", 0)
assert tried(os.fork) == ("Contact", 0)
assert tried(lambda: open("x").read()) == ("", 0)
assert tried(lambda: Path("x").write_text("2")) == ("", 1)
assert tried(lambda: Path("y/z").mkdir(parents=True)) == ("", 2)
assert tried(lambda: Path("x").unlink()) == ("", 1)
assert tried(lambda: open("x").read()) == ("", 0)  # the folder is as it was
assert tried(lambda: open({str(tmp_path / "out")!r}, "w")) == ("PermissionError", 0)
assert tried(lambda: open("../out", "w")) == ("PermissionError", 0)
assert tried(lambda: os.open("x", os.O_WRONLY)) == ("", 0)  # opened, and as it was
assert tried(lambda: time.sleep(9), 1) == ("Hang", 0)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_command_ends_with_its_threads(tmp_path: Path) -> None:
    code = f"""
import threading, time
from pathlib import Path
from tests.fuzz.sandbox import Hang, Sandbox
box = Sandbox(Path({str(tmp_path / "box")!r}), {{"x": b"1"}})
# The name of the function from Python 3.13 on, and before.
name = next(n for n in ("_start_joinable_thread", "_start_new_thread") if hasattr(threading, n))
begin, listed = getattr(threading, name), threading.Event()
def begin_late(*words, **names):
    listed.set()
    time.sleep(0.2)
    return begin(*words, **names)
def write():
    Path("x").write_text("2")
def begin_another():
    setattr(threading, name, begin_late)
    threading.Thread(target=write).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # not the command's: nobody waits for it
with box.watched(100):
    threading.Thread(target=begin_another).start()
    listed.wait()  # the second is listed by now, and has not begun
assert box.changes == ["x"], box.changes
setattr(threading, name, begin)
try:
    with box.watched(1):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    raise SystemExit("it waited for the thread")
except Hang:
    pass
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
