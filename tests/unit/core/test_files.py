"""Files that commands write on this machine."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.core import files
from toolkit.core.files import locked, write_file, write_whole
from toolkit.errors import BadInput, ToolkitError

# It cannot be encoded, so writing fails after the file was opened, as on a full disk.
TOO_LATE = "x" * 100_000 + "\ud800"


def test_a_file_that_cannot_be_written_completely_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    with pytest.raises(BadInput):
        write_file(file, TOO_LATE)
    with pytest.raises(BadInput):
        write_file(file, TOO_LATE, replace=False)
    assert not list(tmp_path.iterdir())
    write_file(file, "old\n")
    with pytest.raises(BadInput):
        write_file(file, TOO_LATE)
    assert file.read_text() == "old\n" and list(tmp_path.iterdir()) == [file]


def test_an_existing_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    file, link = tmp_path / "hosts.yaml", tmp_path / "link.yaml"
    file.write_text("old\n")
    file.chmod(0o640)
    link.symlink_to(file)
    assert write_file(link, "new\n") == link
    assert link.is_symlink() and file.read_text() == "new\n" and file.stat().st_mode & 0o777 == 0o640
    write_file(file, "#!/bin/sh\n", program=True)
    assert os.access(file, os.X_OK)
    with pytest.raises(BadInput, match="exists already"):
        write_file(file, "other\n", replace=False)


def test_a_device_is_written_to(tmp_path: Path) -> None:
    write_file("/dev/null", "text\n")
    assert Path("/dev/null").is_char_device()


HOLDER = """
import pathlib, sys, time
from toolkit.core.files import locked
with locked(pathlib.Path(sys.argv[1]), sys.exit):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_process_that_died_is_free(tmp_path: Path) -> None:
    file = tmp_path / "folder/x.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with locked(file, holder.kill):
            assert holder.wait() != 0
    with locked(file, pytest.fail):
        assert file.exists()


def test_the_lock_file_of_another_user_excludes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users can read the file, but not write it."""
    file, real = tmp_path / "x.lock", os.open

    def readable(path: Path, flags: int, *args: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *args)

    called: list[bool] = []
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        monkeypatch.setattr(os, "open", readable)

        def waiting() -> None:
            called.append(True)
            holder.kill()

        with locked(file, waiting):
            pass
        holder.kill()
    assert called == [True]


def test_the_wait_for_a_lock_ends_with_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Any user who can read a file can hold its lock."""
    file, called = tmp_path / "x.lock", list[bool]()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(ToolkitError) as caught, locked(file, lambda: called.append(True), 0.3):
            pytest.fail("the other process holds the lock")
        holder.kill()
    assert called == [True] and files.LOCK_S == 900
    assert caught.value.what.startswith(f"another process has held the lock of {file} for ")
    assert caught.value.fix.startswith(f"sudo fuser -v {file}  # ")


@pytest.mark.parametrize("readable_only", [False, True])
def test_a_fifo_and_a_link_give_no_lock_and_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable_only: bool
) -> None:
    """The lock of practice clusters is in /tmp, where any user can create them first."""
    real = os.open

    def protected(path: Path, flags: int, *args: Any) -> int:
        assert flags & os.O_NONBLOCK, "this would block"
        if readable_only and flags & os.O_CREAT:  # fs.protected_fifos
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", protected)
    os.mkfifo(tmp_path / "fifo.lock")
    (tmp_path / "link.lock").symlink_to(tmp_path / "target")
    for name in ("fifo.lock", "link.lock"):
        with locked(tmp_path / name, pytest.fail), locked(tmp_path / name, pytest.fail):
            pass
    assert not (tmp_path / "target").exists()


def test_a_file_is_replaced_by_text_or_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    file = tmp_path / "x"
    write_whole(file, "é\n")
    assert file.read_bytes() == b"\xc3\xa9\n" and synced == []
    write_whole(file, b"\xfc\n", 0o600, sync=True)
    assert file.read_bytes() == b"\xfc\n" and file.stat().st_mode & 0o777 == 0o600 and len(synced) == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_system_without_locks_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / "x.lock", pytest.fail):
        pass
    with locked(tmp_path / "x.lock/below-a-file/x.lock", pytest.fail):
        pass
