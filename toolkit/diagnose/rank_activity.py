"""Activity of one rank, derived from its stack, its system call and its CPU use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from posixpath import basename

from toolkit.diagnose.evidence import Frame, Process, RankSeen

# A process that uses this share of a CPU core computes; on a busy host such a process gets less than 1.
_BUSY = 0.5
# A process with a collective in its stack and this share of a CPU core computes, and waits for no rank.
_COMPUTES = 0.3

WAITING = ("collective", "gpu")

_C10D = "/torch/distributed/"
_HOROVOD = "/horovod/"
# Functions of torch.distributed that every rank must call.
_TORCH_COLLECTIVES = frozenset((
    "all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather",
    "all_gather_into_tensor", "all_gather_object", "gather", "gather_object", "scatter",
    "scatter_object_list", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "all_to_all_single", "broadcast_object_list", "barrier", "monitored_barrier",
    "init_process_group", "destroy_process_group", "new_group", "send", "recv",
    "batch_isend_irecv",
))  # fmt: skip
_MPI_NAMES = (
    "allreduce", "allgather", "allgatherv", "alltoall", "alltoallv", "barrier", "bcast", "gather",
    "gatherv", "reduce", "reduce_scatter", "scan", "scatter", "scatterv", "finalize", "sendrecv",
    "recv", "send", "ssend", "probe", "wait", "waitall", "waitany",
)  # fmt: skip
# mpi4py has no Python frames, so only the calling line shows the collective.
_MPI_CALL = re.compile(rf"\.(I?(?:{'|'.join(_MPI_NAMES)}))\(", re.IGNORECASE)
# Methods of queues, lists and pipes have these names as well.
_COMMON = ("wait", "get", "recv", "send", "reduce", "gather", "scatter", "probe")
_TORCH_CALL = re.compile(rf"\b({'|'.join(sorted(_TORCH_COLLECTIVES.difference(_COMMON)))})\(")
_GPU_CALL = re.compile(r"\.(item|tolist|cpu|numpy|synchronize)\(")
# The operation of a rank that waits for its GPU in a line without such a call, for example `float(x)`.
GPU_WORK = "a GPU operation"
_LOCK_FILES = ("/threading.py", "/queue.py", "/multiprocessing/synchronize.py", "/concurrent/futures/")
_QUEUE_FILES = ("/multiprocessing/queues.py", "/multiprocessing/connection.py", "/utils/data/dataloader.py")
_CHILD_FILES = ("/subprocess.py", "/multiprocessing/popen_fork.py", "/multiprocessing/process.py")
_LOCK_CALL = re.compile(r"\.(acquire|get|put|join|wait|result|recv)\(|^with .*lock", re.IGNORECASE)
_SLEEP_CALLS = ("clock_nanosleep", "nanosleep")
_FILE_CALLS = {
    "read": "reading", "readv": "reading", "pread64": "reading", "write": "writing", "writev": "writing",
    "pwrite64": "writing", "open": "opening", "openat": "opening", "fsync": "flushing",
    "fdatasync": "flushing", "flock": "waiting for a lock on", "fcntl": "waiting for a lock on",
}  # fmt: skip
_NET_CALLS = frozenset((
    "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "recvfrom", "recvmsg",
    "sendto", "sendmsg", "connect", "accept", "accept4",
))  # fmt: skip
_CHECKPOINT = re.compile("checkpoint", re.IGNORECASE)
# A word, the dot before the word, and a parenthesis or the end after the word. One expression that includes
# _SAVE would search the rest of a word again from each of its parts.
_WORD = re.compile(r"(^|\.)?(\w+)(\(|$)?")
_SAVE = re.compile(r"[._](?:save|dump)", re.IGNORECASE)


@dataclass(frozen=True)
class Doing:
    """Activity of a rank.

    Args:
        kind: collective, gpu, handler, sleep, lock, child, file, network, spin, code; stopped, disk;
            ended, failed, gone, absent, silent.
        what: a predicate that follows the name of the rank: ``sleeps at train.py:12``.
        op: the name of the collective or, if the kind is ``gpu``, of the call that waits.
        place: file and line of the user's code, empty if unknown.
    """

    kind: str
    what: str
    op: str = ""
    place: str = ""

    @property
    def waits(self) -> bool:
        """Return whether the rank waits for other ranks."""
        return self.kind in WAITING


def lead(rank: RankSeen) -> Process | None:
    """Return the process that represents a rank: its command, or the Python that the command started.

    None if the rank has exited: a daemon that it has started does not represent it.
    """
    if rank.exit_code is not None:
        return None
    alive = [process for process in rank.processes if process.state != "Z"]
    pids = {process.pid for process in alive}
    roots = [process for process in alive if process.parent not in pids]
    return next((p for p in (*roots, *alive) if p.frames), next(iter(roots), None))


def doing(rank: RankSeen, is_gpu_busy: bool = False) -> Doing:
    """Return the activity of a rank of a running job.

    Args:
        is_gpu_busy: see ``HostSeen``.
    """
    process = lead(rank)
    if process is None:
        return _without_process(rank)
    place = _place(process)
    stopped = next((p for p in rank.processes if p.state in "Tt"), None)
    if stopped is not None:
        cause = "a signal such as SIGSTOP" if stopped.state == "T" else "a debugger"
        how = f"stopped by {cause} (state {stopped.state}, process {stopped.pid})"
        what = f"is {how}" if stopped is process else f"has a child process {stopped.name} that is {how}"
        return Doing("stopped", what, "", place)
    hung = next((p for p in rank.processes if p.state == "D"), None)
    if hung is not None:
        file = f" on {hung.target}" if hung.target else ""
        call = f" in the system call {hung.call}{file}" if hung.call else ""
        return Doing(
            "disk", f"hangs in the kernel{call} (state D, process {hung.pid}){_at(place)}", "", place
        )
    return _of_process(process, rank, place, is_gpu_busy)


def _without_process(rank: RankSeen) -> Doing:
    if rank.exit_code == 0:
        return Doing("ended", "exited with exit code 0")
    if rank.exit_code is not None:
        return Doing("failed", f"exited with exit code {rank.exit_code}")
    return Doing("gone", "exited without an exit record (probably killed)")


def _of_process(process: Process, rank: RankSeen, place: str, is_gpu_busy: bool) -> Doing:
    segment = _segment(process.frames)
    op = _collective(segment)
    if op == "backward" and process.cpu > _COMPUTES:
        op = ""
    if handler := next((f for f in process.frames if f.handler), None):
        blocked = f"is blocked in {op}" if op else f"is blocked{_call_words(process)}"
        where = f"{basename(handler.file)}:{handler.line}"
        return Doing("handler", f"{blocked} while handling an exception at {where}", op, place)
    if op:
        return Doing("collective", f"waits in {op}{_at(place)}", op, place)
    for rule in (_child, _sleep, _file, _lock, _gpu):
        if found := rule(process, rank, segment, place):
            return found
    if process.state == "R" or process.cpu >= _BUSY:
        used = f"{process.cpu:.0%} of a CPU core"
        if not process.frames:  # a rank that waits for its GPU uses the processor as well
            return Doing("spin", f"uses {used}")
        if is_gpu_busy:
            return Doing("gpu", f"is busy with its GPU{_at(place)}", GPU_WORK, place)
        return Doing("spin", f"computes{_at(place)} ({used})", "", place)
    if process.call in _NET_CALLS:
        return Doing(
            "network", f"waits for a network connection or a file ({process.call}){_at(place)}", "", place
        )
    if process.call == "futex":
        return Doing("lock", f"waits for a lock or another thread{_at(place)}", "", place)
    return Doing("code", f"runs{_at(place)}" if place else "runs", "", place)


def _segment(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the innermost frames, up to the first frame of the user's code."""
    own = next((i for i, frame in enumerate(frames) if not is_library(frame.file)), len(frames))
    return frames[: own + 1]


def is_library(file: str) -> bool:
    """Return whether a file belongs to Python or to a package.

    >>> is_library("/usr/lib/python3.11/queue.py"), is_library("/run/toolkit/jobs/x/code/train.py")
    (True, False)
    """
    return file.startswith("<frozen") or any(
        part in file for part in ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")
    )


def _collective(segment: tuple[Frame, ...]) -> str:
    """Return the collective that the user's code has called, empty for none."""
    for frame in reversed(segment):  # all_gather_object calls all_gather: users know the outer name
        name = frame.name.rpartition(".")[2]  # from Python 3.11 on, the class precedes the name
        if _C10D in frame.file and name in _TORCH_COLLECTIVES:
            return name
        if _HOROVOD in frame.file and not name.startswith("_"):
            return name
        if "/nn/parallel/distributed.py" in frame.file and name == "__init__":
            return "DistributedDataParallel"
        if name == "_engine_run_backward" and "/torch/" in frame.file:
            return "backward"
    own = segment[-1] if segment else None
    if own is None or len(segment) > 1 or not own.text:
        return ""
    if match := _TORCH_CALL.search(own.text):
        return match[1]
    if match := _MPI_CALL.search(own.text):
        name = match[1]
        return name if name.lower() not in _COMMON or _looks_like_mpi(own.text, name) else ""
    return ""


def _looks_like_mpi(text: str, name: str) -> bool:
    # Queues, pipes and lists have methods of these names as well.
    return name[0].isupper() or bool(
        re.search(r"comm|MPI|world|work|handle|request|\breq", text, re.IGNORECASE)
    )


def _child(process: Process, rank: RankSeen, segment: tuple[Frame, ...], place: str) -> Doing | None:
    dead = [p for p in rank.processes if p.state == "Z" and p.parent == process.pid]
    own = segment[-1].text if segment else ""
    waits = (
        process.call in ("wait4", "waitid")
        or _in_files(segment, (*_LOCK_FILES, *_QUEUE_FILES, *_CHILD_FILES))
        or (len(segment) == 1 and _LOCK_CALL.search(own))
        # Without a stack, the system call is the only evidence.
        or (not segment and process.call in ("futex", "read"))
    )
    if dead and waits and process.cpu < _BUSY:
        names = ", ".join(f"{p.pid} ({p.name})" for p in dead[:3])
        child = "process" if len(dead) == 1 else "processes"
        has = "has" if len(dead) == 1 else "have"
        what = f"waits{_at(place)} for its child {child} {names}, which {has} exited"
        return Doing("child", what, "", place)
    return None


def _sleep(process: Process, rank: RankSeen, segment: tuple[Frame, ...], place: str) -> Doing | None:
    own = segment[-1].text if segment else ""
    if process.call in _SLEEP_CALLS or (len(segment) == 1 and "sleep(" in own and process.cpu < _BUSY):
        return Doing("sleep", f"sleeps{_at(place)}", "", place)
    return None


def _file(process: Process, rank: RankSeen, segment: tuple[Frame, ...], place: str) -> Doing | None:
    word = _FILE_CALLS.get(process.call)
    if word is None or process.target.startswith(("socket:", "anon_inode:")):
        return None
    what = "a pipe" if process.target.startswith("pipe:") else process.target or "a file"
    saves = process.call not in ("read", "readv", "pread64") and any(
        _saves(frame.name) or _saves(frame.text) for frame in process.frames
    )
    saving = " for a checkpoint" if saves else ""
    return Doing("file", f"is blocked {word} {what}{saving}{_at(place)}", "", place)


def _saves(text: str) -> bool:
    """Return whether the name of a function, or a line of code, refers to saving, such as ``torch.save(``."""
    if _CHECKPOINT.search(text):
        return True
    for word in _WORD.finditer(text):
        named = word[2] if word[1] is None else f".{word[2]}"
        if word[3] is not None and _SAVE.search(named):
            return True
    return False


def _lock(process: Process, rank: RankSeen, segment: tuple[Frame, ...], place: str) -> Doing | None:
    own = segment[-1].text if segment else ""
    inner = _in_files(segment, (*_LOCK_FILES, *_QUEUE_FILES))
    if (inner or (len(segment) == 1 and _LOCK_CALL.search(own))) and process.cpu < _BUSY:
        name = next((f.name for f in reversed(segment[:-1])), "") if len(segment) > 1 else ""
        how = f" in {name}()" if name else ""
        return Doing("lock", f"waits for a lock or a queue{how}{_at(place)}", "", place)
    return None


def _gpu(process: Process, rank: RankSeen, segment: tuple[Frame, ...], place: str) -> Doing | None:
    own = segment[-1].text if segment else ""
    match = _GPU_CALL.search(own)
    name = match[1] if match else ""
    # A library can call it: torch.cuda.synchronize, Stream.synchronize, Event.synchronize.
    if any("/torch/" in f.file and f.name.rpartition(".")[2] == "synchronize" for f in segment):
        name = "synchronize"
    return Doing("gpu", f"waits for its GPU in {name}(){_at(place)}", name, place) if name else None


def _in_files(segment: tuple[Frame, ...], files: tuple[str, ...]) -> bool:
    return any(file in frame.file for frame in segment[:-1] or segment for file in files)


def _call_words(process: Process) -> str:
    if not process.call:
        return ""
    return f" ({process.call} of {process.target})" if process.target else f" ({process.call})"


def _place(process: Process) -> str:
    own = next((f for f in process.frames if not is_library(f.file)), None)
    return f"{basename(own.file)}:{own.line} in {own.name}" if own else ""


def _at(place: str) -> str:
    return f" at {place}" if place else ""
