"""Container session: one process in a container that serves all requests of a `run` command.

Each line of JSON on standard input is a request:

    jobs     the list of job_list.py
    code     create a job's folder, by the protocol of snapshot.py
    start    start the job's supervisor as an independent process; the job's variables go to
             its memory only; with a daemon's command, start that
    asks     the launcher's requests for daemons on other hosts; see exec_mode.py
    begun    whether a rank of the job has started here, as soon as that is known
    note     the steps before the start, for the report; without an answer
    follow   copy the output of the job, as follow.py does, and exit
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
from toolkit.container.conventions import PID, PREPARATION, program
from toolkit.container.job.exec_mode import DAEMON, answer, asked, begun
from toolkit.container.job_list import list_jobs
from toolkit.container.logs import follow


def apart() -> bool:
    """Fork; return True in the detached child process, False in this process."""
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
    """Create the spare copy for the next job while this one runs."""
    if not apart():
        return
    try:
        os.nice(10)  # the starting job has priority, but with 19 a busy host would never run this
        prepare(tree)
    finally:
        os._exit(0)


def start(job: str, daemon: str = "", variables: str = "") -> None:
    """Start the supervisor with its tag in the environment, so that it does not have to restart itself.

    Its pid is recorded as soon as it is the supervisor, whether it survives or not: this distinguishes one
    that ends before its first status from one that is still starting. From then on signals can arrive. They
    are blocked until the supervisor has handlers, so that an early Ctrl-C does not kill its interpreter. The
    variables reach its standard input through a pipe, so that no file of them is left after any failure.
    """
    if daemon:
        Path(jobs_folder(), job, DAEMON).write_text(json.dumps({"command": daemon}))
    read, write = os.pipe()  # closed on exec
    receives, sends = os.pipe()
    if not apart():
        os.close(write)
        os.close(receives)
        with os.fdopen(read) as told:
            Path(jobs_folder(), job, PID).write_text(told.read())
        # A supervisor that has exited, or needs no variables, does not read.
        with suppress(BrokenPipeError), os.fdopen(sends, "wb") as pipe:
            pipe.write(variables.encode())
        return
    try:
        os.dup2(receives, 0)
        # SIGUSR1 is PEER_FAILED in conventions.py.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
        os.write(write, str(os.getpid()).encode())
        argv = [sys.executable, *program("job.supervisor"), job]
        os.execve(argv[0], argv, {**os.environ, "TOOLKIT_SUPERVISOR": job})
    finally:
        os._exit(127)


def pass_on(caller: Caller, job: str, hosts: list[str]) -> None:
    """Forward requests for these hosts and their answers, until each has one or the job's part is over."""
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
        # The job runs even if this fails.
        with suppress(OSError):
            Path(jobs_folder(), ask["job"], PREPARATION).write_text(json.dumps(ask["note"]))
    else:
        raise Refused(f"unknown request {ask['do']}", "toolkit up  # installs the programs of this version")


def main() -> int:
    os.umask(0o022)
    gc.disable()
    caller = Caller()
    try:
        while ask := caller.ask():
            if ask["do"] == "follow":
                gc.enable()  # this runs as long as the job
                return follow.main(ask["words"])
            serve(caller, ask)
    except Refused as error:
        caller.say(refused=error.what, fix=error.fix)
        return 1
    except EOFError:
        caller.say(refused="the caller disconnected", fix="run the same command again")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        caller.say(failed=True)
        return 1
    return 0
