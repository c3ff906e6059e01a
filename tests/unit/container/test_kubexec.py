"""Tests of the ssh that kubexec.sh makes from a launcher's call."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.container_world import INSIDE
from toolkit.container.conventions import temporary_folder

SSH = ["-F", "/run/toolkit/conf/ssh_config", "--"]


def call(folder: Path, *args: str, **env: str) -> tuple[int, list[str], str]:
    """Call the agent; return its exit code, the arguments that its ssh gets, and what it prints as errors."""
    ssh = folder / "ssh"
    ssh.write_text('#!/bin/sh\nprintf "%s\\0" "$TOOLKIT_TO" "$@"\n')
    ssh.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    argv = ["sh", str(INSIDE / "kubexec.sh"), *args]
    done = subprocess.run(argv, capture_output=True, text=True, env={"PATH": path, **env}, check=False)
    return done.returncode, done.stdout.split("\0")[:-1], done.stderr


def test_the_tag_goes_in_front_of_the_command(tmp_path: Path) -> None:
    folder = str(temporary_folder("j1"))
    words = ("gpu2", "orted", "-mca", "ess", '"env"', "*")
    code, given, _ = call(tmp_path, *words, TOOLKIT_JOB="j1", TMPDIR=folder)
    exported = f'export TOOLKIT_TMPDIR="${{TMPDIR-}}" TOOLKIT_JOB=j1 TMPDIR={folder}'
    own = f"[ -d {folder} ] || mkdir -p -m 700 {folder}; {exported}"
    assert (code, given) == (0, ["gpu2", *SSH, "gpu2", f'{own}; orted -mca ess "env" *'])


@pytest.mark.parametrize("folder", ["", "/tmp", "/home/alice/tmp", "/tmp/toolkit-1;reboot"])
def test_another_temporary_folder_stays_on_main(tmp_path: Path, folder: str) -> None:
    _, given, _ = call(tmp_path, "gpu2", "orted", TOOLKIT_JOB="j1", TMPDIR=folder)
    assert given[-1] == "export TOOLKIT_JOB=j1; orted"


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-x"],
        ["-p", "2222"],
        ["-p2222", "-q"],
        ["-o", "StrictHostKeyChecking=no", "-oPasswordAuthentication=no", "-l", "root"],
        ["-xnp", "22", "--"],
        ["-i", "/root/.ssh/id", "-F", "/dev/null"],
    ],
)
def test_the_launchers_ssh_options_do_not_win(tmp_path: Path, options: list[str]) -> None:
    assert call(tmp_path, *options, "root@gpu2", "true")[1] == ["gpu2", *SSH, "gpu2", "true"]


def test_a_host_is_never_an_option(tmp_path: Path) -> None:
    """ssh itself refuses a name that begins with a hyphen, if it comes after two hyphens."""
    host = "-oProxyCommand=reboot"
    assert call(tmp_path, "--", host, "true")[1] == [host, *SSH, host, "true"]


def test_options_of_the_command_are_the_commands(tmp_path: Path) -> None:
    assert call(tmp_path, "gpu2", "ls", "-o", "x")[1][-1] == "ls -o x"


@pytest.mark.parametrize("args", [[], ["gpu2"], ["-p", "1", "gpu2"], ["-p"], ["--"]])
def test_a_call_without_a_command_is_refused(tmp_path: Path, args: list[str]) -> None:
    code, given, error = call(tmp_path, *args, TOOLKIT_JOB="j1")
    assert (code, given) == (64, []) and "HOST COMMAND" in error


@pytest.mark.parametrize("job", ["../j1", "j1;reboot", "-x", "j 1", "$(reboot)"])
def test_a_job_id_that_a_shell_could_misinterpret_is_refused(tmp_path: Path, job: str) -> None:
    code, given, error = call(tmp_path, "gpu2", "true", TOOLKIT_JOB=job)
    assert (code, given) == (64, []) and "is not a job id" in error


@pytest.mark.parametrize("transport", ["ssh", "exec"])
def test_in_a_job_the_login_that_horovodrun_tries_is_that_of_the_lease(
    tmp_path: Path, transport: str
) -> None:
    env = {"TOOLKIT_JOB": "j1", "TOOLKIT_TRANSPORT": transport}
    assert call(tmp_path, "gpu2", "true", **env) == (0, [], "")
    assert call(tmp_path, "gpu2", "true")[1] == ["gpu2", *SSH, "gpu2", "true"]


def test_the_folder_of_toolkit_can_be_another(tmp_path: Path) -> None:
    assert call(tmp_path, "gpu2", "true", TOOLKIT_ROOT="/other")[1][2] == "/other/conf/ssh_config"
