"""Replaces ssh for launchers: with the cluster's configuration, and the job tag on the remote side."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from toolkit.container.exits import fail
from toolkit.container.files import read
from toolkit.container.job.exec_mode import EXEC, ask
from toolkit.container.paths import job_folder, root, temporary_folder
from toolkit.container.tags import HOST_TAG, JOB_TAG
from toolkit.protocol.exit_codes import EXIT_USAGE

EXIT_NO_ANSWER = 255  # ssh's exit code for a failed connection
TAKES_A_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")  # of ssh(1)'s options


def wanted(args: Sequence[str]) -> tuple[str, str]:
    """Return host and command of a call `ssh_agent.py [ssh options] [user@]HOST COMMAND...`.

    ssh options are dropped: port, user, key and host-key checking are set in the cluster's
    ssh_config, and a launcher's own (horovodrun turns host-key checking off) must not win.
    As with ssh, the words of the command are joined by blanks and interpreted by the remote shell.
    Raises ValueError when the host or the command is missing.
    """
    rest = list(args)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        # "-o Key=value" uses the next word, "-oKey=value" and "-p22" contain it, "-xp 22" bundles
        for index, letter in enumerate(option[1:], start=1):
            if letter in TAKES_A_VALUE:
                if index == len(option) - 1 and rest:
                    rest.pop(0)
                break
    if len(rest) < 2:
        raise ValueError("usage: job.ssh_agent [ssh options] HOST COMMAND...")
    return rest[0].rpartition("@")[2], " ".join(rest[1:])


def agent_args(args: Sequence[str], job_id: str) -> list[str]:
    """Return the ssh argv for such a call; raise the errors of `wanted`."""
    host, command = wanted(args)
    if job_id:
        folder = temporary_folder(job_id)
        # statements, not a prefix: Open MPI's command may be a list or a subshell
        own = f"mkdir -p -m 700 {folder}; export TMPDIR={folder} {JOB_TAG}={job_id}"
        command = f"{own}; {command}"
    return ["ssh", "-F", str(root() / "conf" / "ssh_config"), host, command]


def _ask(job_id: str, host: str, command: str) -> None:
    if why := ask(job_folder(job_id), host, command):
        fail(EXIT_NO_ANSWER, f"cannot start {command.split()[0]} on {host}: {why}")


def main() -> None:
    job_id = os.environ.get(JOB_TAG, "")
    try:
        # Rejects an id that a shell could misinterpret.
        if job_id and (read(job_folder(job_id) / "job.json") or {}).get("transport") == EXEC:
            _ask(job_id, *wanted(sys.argv[1:]))
            return
        argv = agent_args(sys.argv[1:], job_id)
    except ValueError as error:
        fail(EXIT_USAGE, str(error))
    os.environ[HOST_TAG] = argv[3]
    os.execvp(argv[0], argv)
