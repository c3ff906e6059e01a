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

from toolkit.core.files import locked, write_file, write_whole
from toolkit.errors import BadInput

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
    file, real = tmp_path / "x.lock", Path.open

    def readable(path: Path, mode: str = "r", *args: Any) -> Any:
        if mode != "r":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, mode, *args)

    called: list[bool] = []
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        monkeypatch.setattr(Path, "open", readable)

        def waiting() -> None:
            called.append(True)
            holder.kill()

        with locked(file, waiting):
            pass
        holder.kill()
    assert called == [True]


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
