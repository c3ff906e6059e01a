"""A small world for the programs of toolkit/container: a root folder, a job, real processes."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import toolkit
from toolkit.container.job.orphans import find as orphans
from toolkit.container.job.orphans import send as kill

_PACKAGE = Path(toolkit.__file__).parent


def _programs() -> Path:
    """Make the folder of programs as hosts have it: run.py, and only those packages that are sent there."""
    folder = Path(tempfile.mkdtemp(prefix="toolkit-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    (folder / "toolkit").mkdir()
    (folder / "toolkit" / "__init__.py").touch()
    for name in ("container", "launchers", "protocol"):
        (folder / "toolkit" / name).symlink_to(_PACKAGE / name)
    for name in ("kubexec.sh", "run.py"):
        (folder / name).symlink_to(_PACKAGE / "container" / name)
    return folder


INSIDE = _programs()


def copied_programs(to: Path) -> Path:
    """Copy the folder of programs, so that a test can change them."""
    shutil.copytree(INSIDE, to, ignore=shutil.ignore_patterns("__pycache__"))
    return to


def unkillable_smi(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[Any]]:
    """Put an nvidia-smi on the PATH that ``kill`` does not end, as in state D.

    Each start adds its pid to the file ``started``. Returns the killed processes; the test terminates them.
    """
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho $$ >>{folder}/started\nexec sleep 60\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    killed: list[subprocess.Popen[Any]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: killed.append(process))
    return killed


# The programs need no installed package, and Python starts sooner without them.
PYTHON = (sys.executable, "-S")
# Sweeps look at the whole machine: a job of its own for each test process, so that two checkouts do not meet.
JOB = f"20261120-211300-digits-{os.getpid() % 0x10000:04x}"


# What a job has in memory alone.
VARIABLES = ("env", "override", "token", "host_env")

# Limit for what ends by an event: only a real failure reaches it, however busy the machine is.
PATIENCE_S = 120.0


class World:
    """One host, gpu1, which is also main; `root` replaces /run/toolkit of a container."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[bytes]] = []
        self.variables: dict[str, str] = {}  # of each job, as its supervisor gets them
        (root / "conf").mkdir(parents=True)
        (root / "inside").symlink_to(INSIDE)
        host = {"cluster": "t", "host": "gpu1", "address": "10.77.0.2", "interface": "eth0"}
        (root / "conf" / "host.json").write_text(
            json.dumps({**host, "network": {"GLOO_SOCKET_IFNAME": "eth0"}})
        )

    def own_programs(self) -> Path:
        """Give this host a copy of the programs, so that a test can change them."""
        (self.root / "inside").unlink()
        return copied_programs(self.root / "inside")

    def folder(self, job_id: str = JOB) -> Path:
        return self.root / "jobs" / job_id

    def lease(self, job_id: str = JOB) -> Path:
        """As lease_path in conventions.py has it, which reads its root from the environment."""
        return memory_file(self.folder(job_id))

    def job(self, job_id: str = JOB, **changes: Any) -> Path:
        """Write a job of one rank on gpu1. Returns its folder.

        Args:
            changes: keys of job.json; or variables (``VARIABLES``), which `start` gives to its supervisor.
        """
        folder = self.folder(job_id)
        (folder / "code").mkdir(parents=True)
        own = {name: changes.pop(name) for name in VARIABLES if name in changes}
        if own:
            found = {name: own.get(name, "" if name == "token" else {}) for name in VARIABLES}
            self.variables[job_id] = json.dumps({**found, "hosts": found.pop("host_env")}) + "\n"
            changes["variables"] = True
        job = {
            "id": job_id,
            "cluster": "t",
            "owner": "alice",
            "world_size": 1,
            "command": [sys.executable, "-c", "print('hello')"],
            "launcher": "mpirun",
            "variables": False,
            "tuned": {},
            "rules": "",
            "share": False,
            "workdir": str(folder / "code"),
            "hosts": [host_entry()],
            "log_bytes": 1 << 26,
            "main": "gpu1",
            "master_address": "10.77.0.2",
            "master_port": 29500,
            "timeout": None,
            "grace": 1.0,
            "spares": [],
            "max_restarts": 0,
            "min_hosts": 0,
            "stall_after": None,
            "elastic": False,
            "local_rank_word": "",
            "transport": "ssh",
            "attempt": 0,
            "launches": [{"host": "gpu1", "argv": self.rank_argv(job_id), "env": rank_env()}],
            **changes,
        }
        job.setdefault("world_sizes", [job["world_size"], job["world_size"]])
        job["launches"] = [{"env": {}, "serves": False, "name": "", **each} for each in job["launches"]]
        (folder / "job.json").write_text(json.dumps(job))
        return folder

    def rank_argv(self, job_id: str = JOB) -> list[str]:
        return [*PYTHON, str(self.root / "inside" / "run.py"), "job.rank", job_id]

    def start(self, program: str, *args: str, **env: str) -> subprocess.Popen[bytes]:
        """Start one of the programs, or a driver; `close` ends it, and it alone, in any case.

        A job's variables are on the standard input, which a supervisor alone reads; for a rank they are in
        memory already.
        """
        if program == "job.rank" and args[0] in self.variables:
            self.keep_variables(args[0])
        own = [program] if program.endswith(".py") else [str(self.root / "inside" / "run.py"), program]
        with tempfile.TemporaryFile() as given:
            given.write(self.variables.get(args[0], "").encode() if args else b"")
            given.seek(0)
            process = subprocess.Popen(
                [*PYTHON, *own, *args],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self.base_env(), **env},
            )
        self.started.append(process)
        return process

    def keep_variables(self, job_id: str = JOB) -> None:
        """Keep the variables of gpu1 in memory, as a lease does."""
        about = json.loads(self.variables[job_id])
        about["env"] |= about.pop("hosts").get("gpu1", {})
        memory_file(self.folder(job_id), "variables").write_text(json.dumps(about))

    def holders(self, value: str) -> list[Path]:
        """Return the files of all hosts that hold a value, in memory too."""
        memory = [
            path
            for folder in (*self.root.glob("jobs/*"), *self.root.glob("hosts/*/jobs/*"))
            for path in Path("/dev/shm").glob(f"{memory_file(folder, '').name}*")
        ]
        return [path for path in (*self.root.rglob("*"), *memory) if value.encode() in _bytes(path)]

    def call(self, program: str, *args: str, **env: str) -> tuple[int, bytes, bytes]:
        """Run one of the programs to its end: exit code, stdout, stderr."""
        process = self.start(program, *args, **env)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def base_env(self) -> dict[str, str]:
        # By the last one scripts/mutants.py knows which test enters a function of a program.
        names = ("PATH", "HOME", "LANG", "PYTEST_CURRENT_TEST")
        env = {name: os.environ[name] for name in names if name in os.environ}
        return {**env, "TOOLKIT_ROOT": str(self.root)}

    def status(self, job_id: str = JOB) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder(job_id) / "status.json").read_text())
        except FileNotFoundError:
            return {"state": ""}
        return value

    def log(self, job_id: str = JOB) -> bytes:
        path = self.folder(job_id) / "output.log"
        return path.read_bytes() if path.exists() else b""

    def other_host(self, name: str, job_id: str = JOB) -> Path:
        """Add a host that main reaches over ssh, on this machine under a root of its own; returns that root.

        The folder `bin` of the world, to be put on PATH, gets an ssh that runs the command there.
        """
        root = self.root / "hosts" / name
        (root / "conf").mkdir(parents=True)
        about = json.loads((self.root / "conf" / "host.json").read_text())
        (root / "conf" / "host.json").write_text(json.dumps({**about, "host": name}))
        (root / "inside").symlink_to(INSIDE)
        folder = root / "jobs" / job_id
        folder.mkdir(parents=True)
        (folder / "job.json").write_bytes((self.folder(job_id) / "job.json").read_bytes())
        ssh = self.root / "bin" / "ssh"
        if not ssh.exists():
            ssh.parent.mkdir(exist_ok=True)
            # ssh -F CONFIG [--] HOST COMMAND. A login shell first prints the file `greeting` of the host.
            ssh.write_text(
                '#!/bin/sh\nshift 2; [ "$1" != -- ] || shift\n'
                f"export TOOLKIT_ROOT={self.root}/hosts/$1\n"
                'cat "$TOOLKIT_ROOT/greeting" 2>/dev/null\nexec sh -c "$2"\n'
            )
            ssh.chmod(0o755)
        return root

    def with_bin(self) -> dict[str, str]:
        """PATH with the world's own programs first, for `start` and `call`."""
        return {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}

    def driver(self, code: str) -> str:
        """A program for `start` and `call` that imports the programs as modules and runs this code."""
        path = self.root / "driver.py"
        path.write_text(f"import sys\nsys.path.insert(0, {str(INSIDE)!r})\n{code}")
        return str(path)

    def mpirun_of_one_rank(self) -> Path:
        """A folder for PATH: what a restart makes is an mpirun of its own, here one that starts rank 0."""
        folder = self.root / "bin"
        folder.mkdir(exist_ok=True)
        env = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0"
        (folder / "mpirun").write_text(f"#!/bin/sh\nexport {env}\nexec {' '.join(self.rank_argv())}\n")
        (folder / "mpirun").chmod(0o755)
        return folder

    def close(self) -> None:
        # What `job.orphans JOB --signal KILL` does; a process of its own takes longer than most tests.
        for folder in self.root.glob("jobs/*"):
            for left in orphans(folder.name):
                kill(left["pid"], folder.name, signal.SIGKILL)
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for folder in (*self.root.glob("jobs/*"), *self.root.glob("hosts/*/jobs/*")):
            for path in memory_file(folder).parent.glob(f"{memory_file(folder).stem}.*"):
                path.unlink(missing_ok=True)


def memory_file(folder: Path, name: str = "lease") -> Path:
    """A file that a job has in memory, by the job's folder."""
    return Path("/dev/shm", f"toolkit-{zlib.crc32(str(folder).encode()):08x}.{name}")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # a folder, or gone since it was listed
        return b""


def host_entry(**changes: Any) -> dict[str, Any]:
    """gpu1 as a host of a job."""
    whole = {"name": "gpu1", "address": "10.77.0.2", "slots": 1, "taken": [0], "gpus": [], "visible": ""}
    return {**whole, **changes}


def rank_env(rank: int = 0, size: int = 1) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}


def python(code: str) -> list[str]:
    """The command of a rank, or a launcher, that runs this code."""
    return [sys.executable, "-c", code]


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
    """Wait for what another process does; fails when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def until_seen(process: subprocess.Popen[Any]) -> None:
    """Wait until /proc has the variables of a new process, which is a moment after Popen has returned."""
    wait_for(Path(f"/proc/{process.pid}/environ").read_bytes)


# Another user of this machine, whom nothing else belongs to.
OTHER = 65534

only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root starts processes of other users, and reads their environment"
)


# Words before a command that bind root to the modes of files, as they bind other users.
BOUND_TO_MODES = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@contextmanager
def sleeping(
    *argv: str, user: int | None = None, setuid: bool = False, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `sleep 300` with these variables.

    Args:
        argv: the words of its command line, if others than those.
        user: who runs it; this user by default.
        setuid: let it be of OTHER, with the rights of this user.
    """
    words = argv or ("sleep", "300")
    program = "/usr/bin/setpriv" if setuid else "/usr/bin/sleep"
    words = ("setpriv", "--ruid", str(OTHER), *words) if setuid else words
    started = subprocess.Popen(
        words, executable=program, env={"PATH": "/usr/bin:/bin", **env}, user=user, start_new_session=True
    )
    try:
        until_seen(started)
        wait_for(lambda: Path(f"/proc/{started.pid}/comm").read_text() != "setpriv\n")
        yield started
    finally:
        started.kill()
        started.wait()


def is_alive(pid: int) -> bool:
    """Return whether `pid` runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] != b"Z"
