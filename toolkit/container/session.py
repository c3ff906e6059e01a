"""Serves one command of the caller's inside a container: one process for all that `run` asks of it.

A line of JSON on standard input says what to do, until its end:

    jobs     the list that job_list.py makes
    code     a job's folder, in the words of snapshot.py
    start    the job's supervisor, which then belongs to nobody here; with the job's variables, which go to
             its memory alone, and with a daemon's command, for that
    asks     what the job's launcher wants started on other hosts, host by host; see exec_mode.py
    begun    whether a rank of the job has begun here, as soon as that is known
    note     what went before the start, kept for the report; there is no answer
    follow   follow.py takes this process's place; what comes from then on is its output
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.code.snapshot import Caller, Refused, make_folder
from toolkit.container.code.store import jobs_folder, prepare
from toolkit.container.job.exec_mode import DAEMON, answer, asked, begun
from toolkit.container.job_list import list_jobs
from toolkit.container.paths import PID, PREPARATION, program

# Neither site-packages nor the variables of the image, as for ourselves.
_PYTHON = (sys.executable, "-S", "-E")


def apart() -> bool:
    """Return True in a process that nobody waits for and that holds nothing of ours, else False."""
    if middle := os.fork():
        os.waitpid(middle, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    return True


def make_spare(tree: str) -> None:
    """Make the copy for the next job, while this one goes on."""
    if not apart():
        return
    try:
        os.nice(10)  # the job that starts comes first, but on a busy host 19 would be never
        prepare(tree)
    finally:
        os._exit(0)


def start(job: str, daemon: str = "", variables: str = "") -> None:
    """Start the supervisor, marked from its beginning: that saves it a start of its own.

    Its number is written down as soon as it is the supervisor, whether it lives on or not: one that
    ends before its first status is told from one that has only begun. From then on signals can arrive. They
    are blocked until the supervisor has handlers, so that an early Ctrl-C does not kill its interpreter.
    The variables reach its standard input through a pipe, so that no file of them is left, whatever dies.
    """
    if daemon:
        Path(jobs_folder(), job, DAEMON).write_text(json.dumps({"command": daemon}))
    read, write = os.pipe()  # closed by the start of another program
    receives, sends = os.pipe()
    if not apart():
        os.close(write)
        os.close(receives)
        with os.fdopen(read) as told:
            Path(jobs_folder(), job, PID).write_text(told.read())
        # A supervisor that has ended, or has no use for them, does not read.
        with suppress(BrokenPipeError), os.fdopen(sends, "wb") as pipe:
            pipe.write(variables.encode())
        return
    try:
        os.dup2(receives, 0)
        # SIGUSR1 is PEER_FAILED in marks.py.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
        os.write(write, str(os.getpid()).encode())
        argv = [sys.executable, *program("job.supervisor"), job]
        os.execve(argv[0], argv, {**os.environ, "TOOLKIT_SUPERVISOR": job})
    finally:
        os._exit(127)


def pass_on(caller: Caller, job: str, hosts: list[str]) -> None:
    """Pass on what is asked for these hosts, and the answers, until each has asked or none can any more."""
    left = list(hosts)
    try:
        while left and (found := asked(Path(jobs_folder(), job), left)):
            host, command = found
            caller.say(host=host, command=command)
            answer(Path(jobs_folder(), job), host, caller.line()["error"])
            left.remove(host)
    except TimeoutError as error:
        raise Refused(str(error), f"toolkit logs {job}") from error


def serve(caller: Caller, ask: dict[str, Any]) -> None:
    if ask["do"] == "jobs":
        caller.say(jobs=list_jobs(jobs_folder()))
    elif ask["do"] == "code":
        caller.say(done=True, damage=make_folder(caller, ask))
        if ask["tree"]:
            make_spare(ask["tree"])
    elif ask["do"] == "start":
        start(ask["job"], ask.get("daemon", ""), ask.get("variables", ""))
        caller.say(started=ask["job"])
    elif ask["do"] == "asks":
        pass_on(caller, ask["job"], ask["hosts"])
        caller.say(done=True)
    elif ask["do"] == "begun":
        caller.say(begun=begun(Path(jobs_folder(), ask["job"])))
    elif ask["do"] == "note":
        # Whatever is wrong here, the job runs.
        with suppress(OSError):
            Path(jobs_folder(), ask["job"], PREPARATION).write_text(json.dumps(ask["note"]))
    elif ask["do"] == "follow":
        os.execv(_PYTHON[0], [*_PYTHON, *program("logs.follow"), *ask["words"]])
    else:
        raise Refused(
            f"there is nothing called {ask['do']}", "toolkit up brings the programs of this toolkit"
        )


def main() -> int:
    os.umask(0o022)
    gc.disable()
    caller = Caller()
    try:
        while ask := caller.ask():
            serve(caller, ask)
    except Refused as error:
        caller.say(refused=error.what, fix=error.fix)
        return 1
    except EOFError:
        caller.say(refused="the caller has gone", fix="run the same command again")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        caller.say(failed=True)
        return 1
    return 0
