"""Orphan cleanup: finds and ends the processes of one job by the tag in their environment, never by name."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from toolkit.container.conventions import (
    GRACE,
    HOST_TAG,
    JOB_TAG,
    RESTART,
    STOPPING,
    SUPERVISOR_TAG,
    in_memory,
    is_tagged,
    job_folder,
    lease_path,
    program,
    ssh_args,
    temporary_folder,
)
from toolkit.container.job.rank_records import move_records
from toolkit.container.job.threads import on_each
from toolkit.container.job.variables import forget
from toolkit.container.job_file import Job
from toolkit.container.job_list import read_status

KILL_ROUNDS = 50  # a process can fork between two scans, so scan again; 0.1 s apart
INTERRUPT_S = 1.0  # a stopped or blocked supervisor does not handle a signal
CONNECT_S = 20.0  # longer than ConnectTimeout in ssh_config: for a host that accepts and then hangs


class Process(TypedDict):
    """One process of a job; its command line can contain secrets and is omitted."""

    pid: int
    name: str


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return int(stat.rpartition(b")")[2].split()[1])  # the name can contain blanks and ")"


def _ourselves() -> set[int]:
    """Return this process and its ancestors, which the cleanup must not end."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = _parent(pid)
        except OSError:
            break
    return found


def find(job_id: str, ranks: bool = False) -> list[Process]:
    """Return this user's live processes with the job tag (`ranks`: of its ranks), except this process."""
    spared = _ourselves()
    found: list[Process] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        pid = int(folder.name)
        try:
            ours = pid not in spared and folder.stat().st_uid == os.getuid()
            if ours and is_tagged(pid, JOB_TAG, job_id, ranks):
                name = (folder / "comm").read_bytes().decode(errors="replace").strip()
                found.append({"pid": pid, "name": name})
        except OSError:
            continue  # exited during the scan
    return found


def send(pid: int, job_id: str, signum: int) -> None:
    """Signal `pid` if it still belongs to the job: the kernel can reuse a pid."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # a kernel before 5.3, or a seccomp filter that denies it
        handle = -1
    try:
        if not is_tagged(pid, JOB_TAG, job_id):
            return
        if handle < 0:
            os.kill(pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        pass
    finally:
        if handle >= 0:
            os.close(handle)


def hang_up(job_id: str, host: str) -> None:
    """End the job's local ssh processes to this host, which would wait for an answer for a minute."""
    mark = f"{HOST_TAG}={host}".encode()
    for process in find(job_id):
        with suppress(OSError):
            if mark in Path(f"/proc/{process['pid']}/environ").read_bytes().split(b"\0"):
                send(process["pid"], job_id, signal.SIGKILL)


def forget_lease(job_id: str) -> None:
    """Remove the file of a killed lease; the holder of an active lease removes its own file."""
    path = lease_path(job_folder(job_id))
    with suppress(OSError), path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def end(job_id: str, grace: float, ranks: bool = False, keep: bool = False) -> list[Process]:
    """Send TERM, wait up to `grace` seconds, send KILL; return the processes that are left.

    If none is left, ranks can no longer find the job's variables, unless `keep` leaves them for another
    attempt.
    With `ranks`, the launcher and its daemons are spared, and rank.py delays its report to them.
    """
    if ranks:
        # A full disk, where the file stays empty, or no folder of the job on this host and so no ranks.
        with suppress(OSError):
            (job_folder(job_id) / STOPPING).write_text(f"{grace}\n")
    left = find(job_id, ranks)
    for process in left:
        send(process["pid"], job_id, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = find(job_id, ranks)
    for _ in range(KILL_ROUNDS):
        if not left:
            break
        for process in left:
            send(process["pid"], job_id, signal.SIGKILL)
        time.sleep(0.1)
        left = find(job_id, ranks)
    if not ranks:
        with suppress(OSError):
            mark = job_folder(job_id) / RESTART
            mark.touch() if keep else mark.unlink(missing_ok=True)
    if not ranks and not left:
        shutil.rmtree(temporary_folder(job_id), ignore_errors=True)
        if not keep:
            forget(job_folder(job_id))
            forget_lease(job_id)
            with suppress(OSError):
                in_memory(job_folder(job_id), GRACE).unlink()

            move_records(job_folder(job_id))
    return left


def still_alive(left: object) -> str | None:
    """Return the text about the processes that ``end`` returned, maybe on another host; None without any."""
    if not left:
        return None
    found = [one for one in left if isinstance(one, dict)] if isinstance(left, list) else []
    names = ", ".join(f"{one.get('name')} (pid {one.get('pid')})" for one in found)
    return f"{names or 'unknown processes'} did not exit"


def end_on(job: Job, host: str, grace: float, ranks: bool = False, keep: bool = False) -> str | None:
    """Return None if no process of the job is left on `host`, otherwise the reason or the processes."""
    try:
        if host == job["main"]:
            left: object = end(job["id"], grace, ranks, keep)
        else:
            argv = ["python3", *program("job.orphans"), job["id"], "--grace", str(grace)]
            argv += [*(["--ranks"] if ranks else []), *(["--keep"] if keep else [])]
            done = subprocess.run(
                ssh_args(host, argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CONNECT_S + grace + KILL_ROUNDS * 0.1,
            )
            if done.returncode not in (0, 1):
                text = done.stderr.decode(errors="replace").strip().splitlines()
                return text[-1] if text else f"exit code {done.returncode}"
            left = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return "no answer"
    except (OSError, ValueError) as error:
        return str(error)
    return still_alive(left)


def end_everywhere(job: Job, grace: float, ranks: bool = False) -> dict[str, str | None]:
    """`end` on main and on every host of the job, all at once; host -> None or the problem."""
    hosts = list(dict.fromkeys([job["main"], *(host["name"] for host in job["hosts"])]))
    return on_each(hosts, lambda host: end_on(job, host, grace, ranks))


def interrupt_supervisor(job_id: str) -> None:
    """Send SIGINT to the supervisor, if one runs here, and wait up to INTERRUPT_S until it has arrived.

    Otherwise the supervisor would report the following kills as a failure of the job.
    """
    status = read_status(job_id)
    if status is None or not is_tagged(status["pid"], SUPERVISOR_TAG, job_id):
        return
    deadline = time.monotonic() + INTERRUPT_S
    with suppress(OSError):  # it has exited meanwhile
        os.kill(status["pid"], signal.SIGINT)
        while is_pending(status["pid"], signal.SIGINT) and time.monotonic() < deadline:
            time.sleep(0.01)


def is_pending(pid: int, signum: int) -> bool:
    """Return True while a signal to a process has not been delivered."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = (int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(mask >> (signum - 1) & 1 for mask in masks)


def main() -> int:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job_id")
    parser.add_argument("--signal", choices=["TERM", "KILL"], default="TERM")
    parser.add_argument("--interrupt", action="store_true", help="first send SIGINT to the job's supervisor")
    parser.add_argument("--list", action="store_true", help="list the processes, and send no signal")
    parser.add_argument("--keep", action="store_true", help="keep the job's variables for another attempt")
    parser.add_argument("--ranks", action="store_true", help="do not stop the launcher and its daemons")
    parser.add_argument(
        "--grace", type=float, help="seconds between TERM and KILL; exit with 1 if processes are left"
    )
    args = parser.parse_args()
    job_folder(args.job_id)  # rejects an invalid job id
    if args.grace is not None and not args.list:
        left = end(args.job_id, args.grace, args.ranks, args.keep)
        print(json.dumps(left))
        return 1 if left else 0
    if args.interrupt:
        interrupt_supervisor(args.job_id)
    found = find(args.job_id, args.ranks)
    if not args.list:
        for process in found:
            send(process["pid"], args.job_id, getattr(signal, "SIG" + args.signal))
    print(json.dumps(found))
    return 0
