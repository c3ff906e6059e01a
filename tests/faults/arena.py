"""Two clusters on the same practice hosts, the tested one and a bystander, and unrelated processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import waiting
from tests.e2e.world import Done, Toolkit, outer
from tests.faults.catalogue import DISK, DISK_BYTES, FAKETIME, SHARED
from tests.faults.census import Census, settled, take_census
from tests.faults.hosts import Agent, HostGone, docker
from toolkit.lab.files import ensure_key

TRIED, BYSTANDER = "tried", "bystander"
# Network faults spare the bystander, whose sshd has this port.
PORT = 23451
LIMITS = {"up": 90.0, "run": 60.0, "stop": 60.0, "down": 60.0, "send": 90.0, "jobs": 40.0, "wait": 90.0}
IMAGE = "toolkit-faults:1"
_LAYER = 24 << 20
_TRAIN = "import time\nprint('training', flush=True)\nwhile True: time.sleep(0.2)\n"
_STRANGER = "train.py"
# A cluster that is up keeps its state; its files are examined after `down`.
_STATE = r": file /home/trainer/\.local/state/toolkit/"
_BESIDE = f"{_STATE}{BYSTANDER}/"


class Running:
    """A command under way: its lines with the moments at which they came."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[tuple[float, str]] = []
        self.ended: float | None = None
        self.changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in list(self.lines))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.time(), line.rstrip("\n")))
                self.changed.notify_all()
        self.process.wait()
        with self.changed:
            self.ended = time.time()
            self.changed.notify_all()

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, None when it has not ended by then."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended is not None, seconds)
        return self.process.returncode if self.ended is not None else None

    def dump(self) -> str:
        """Return its output and the stack of each thread; this ends the process."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGABRT)
        self.wait(5)
        return self.text

    def kill(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                self.process.send_signal(number)
        self.process.wait()
        self._thread.join(5)


class Arena:
    """The tested cluster on the practice hosts, up or down, and the bystanders beside it."""

    def __init__(self, hosts_file: Path, folder: Path, lab: str) -> None:
        self.data: dict[str, Any] = yaml.safe_load(hosts_file.read_text())
        self.folder, self.lab = folder, lab
        self.containers = {host: outer(host, lab) for host in self.data["hosts"]}
        self.addresses = {host: str(each["address"]) for host, each in self.data["hosts"].items()}
        self.agents = {host: Agent(host, each) for host, each in self.containers.items()}
        code = folder / "code"
        code.mkdir(parents=True, exist_ok=True)
        (code / "train.py").write_text(Path(__file__).with_name("train.py").read_text())
        beside = folder / "beside"
        beside.mkdir(exist_ok=True)
        (beside / "train.py").write_text(_TRAIN)
        self.own: dict[str, Any] = {"cluster": TRIED, "mounts": [f"{SHARED}:/shared", f"{DISK}:/disk"]}
        self.tried = self._cluster(TRIED, **self.own)
        self.sending = self._cluster(f"{TRIED}-send", **self.own, image=IMAGE)
        self.bystander = self._cluster(BYSTANDER, worker_port=PORT)
        self.beside: dict[str, list[str]] = {}
        self.strangers: dict[str, str] = {}
        self.base = Census({})
        self.standing: Census | None = None  # of the tried cluster when it had come up; None: it is down
        self.lengths = {"up": 6.0, "run": 6.0, "down": 3.0}
        self.slow: list[str] = []
        self.last_job = ""

    def _cluster(self, name: str, **changes: object) -> Toolkit:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**self.data, "cluster": name, **changes}))
        # So that one that hangs says where, when it is aborted.
        env = {**os.environ, "TOOLKIT_HOSTS": str(path), "PYTHONFAULTHANDLER": "1"}
        return Toolkit(path, self.folder, env=env)

    # Setting up

    def __enter__(self) -> Arena:
        for host, agent in self.agents.items():
            lib = Path(FAKETIME)
            if lib.is_file():
                docker("cp", str(lib), f"{self.containers[host]}:/root/libfaketime.so.1")
            agent.sh(f"mkdir -p {SHARED} && chown trainer {SHARED} && rm -rf {SHARED}/*")
            self.dress(host)
        for cluster in (self.tried, self.bystander):
            cluster.run("down", "--no-save", check=True)  # of an earlier try that was cut off
        self._start_beside()
        for host in self.agents:
            self._start_stranger(host)
        self.base = take_census(self.containers)
        return self

    def dress(self, host: str) -> None:
        """Prepare a host with what the cases need and a reboot removes."""
        self.agents[host].sh(
            f"mkdir -p {DISK}; mountpoint -q {DISK} || "
            f"mount -t tmpfs -o size={DISK_BYTES},mode=777 faults {DISK}; rm -rf {DISK}/*"
        )

    def __exit__(self, *_: object) -> None:
        for host, pid in self.strangers.items():
            with suppress(HostGone):
                self.agents[host].sh(f"kill -9 {pid}")
        self.tried.run("down", "--no-save")
        self.bystander.run("down", "--no-save")
        for host, agent in self.agents.items():
            with suppress(HostGone):
                agent.sh(f"umount {DISK}; rmdir {DISK}; rm -rf {SHARED} /root/libfaketime.so.1")
            agent.close()
            docker("exec", self.containers[host], "rm", "-f", "/run/toolkit-faults.py")
        docker("rmi", "-f", IMAGE)

    def _start_beside(self) -> None:
        self.bystander.run("up", check=True)
        # Its connections are idle: those of mpirun have keepalives, which a link that is reset would end.
        words = ("run", "-d", "--json", "--launcher", "torchrun", "--workdir", "beside", "train.py")
        job = self.bystander.run(*words, check=True).json["job"]
        wanted = len(self.agents)
        waiting.job_prints(self.bystander, job, "] training", wanted, lab=self.lab)
        time.sleep(1)  # what the start leaves running for a moment
        self.beside = {host: self._beside_on(host) for host in self.agents}

    def _beside_on(self, host: str) -> list[str]:
        text = (
            f"grep -lszFx TOOLKIT_CLUSTER={BYSTANDER} $(grep -lsz ^TOOLKIT_JOB= /proc/[0-9]*/environ) | sort"
        )
        return self.agents[host].sh(text).split()

    def _start_stranger(self, host: str) -> None:
        start = f"exec setsid python3 -c 'import time; time.sleep(1e6)' {_STRANGER} >/dev/null 2>&1 & echo $!"
        self.strangers[host] = docker("exec", "-u", "trainer", self.containers[host], "bash", "-c", start)

    # The tried cluster

    def run(self, verb: str, *words: str, toolkit: Toolkit | None = None) -> Done:
        """Run a command that nothing disturbs, and remember whether it took longer than it may."""
        limit = LIMITS[verb]
        try:
            done = (toolkit or self.tried).run(*words, timeout=2 * limit)
        except subprocess.TimeoutExpired:
            done = Done(-1, "", f"did not end within {2 * limit:.0f} s", 2 * limit)
        if done.seconds > limit:
            self.slow.append(f"toolkit {' '.join(words)} took {done.seconds:.0f} s, not {limit:.0f}")
        return done

    def bring_up(self) -> None:
        if self.standing is None:
            done = self.run("up", "up")
            assert done.status == 0, f"up: {done.err}"
            self.lengths["up"] = done.seconds
            self.standing = take_census(self.containers)

    def bring_down(self) -> Done:
        done = self.run("down", "down", "--no-save")
        self.lengths["down"] = done.seconds
        self.standing = None
        return done

    def start(self, *words: str, toolkit: Toolkit | None = None) -> Running:
        return Running((toolkit or self.tried).start(*words))

    def train_words(self, folder: str, launcher: str, *more: str) -> tuple[str, ...]:
        here = ("--launcher", launcher, "--workdir", "code", "--timeout", "140")
        env = ("--env", f"FOLDER=/shared/{folder}", "--env", f"DISK=/disk/{folder}")
        return ("run", *more, *here, *env, "train.py")

    def make_folders(self, folder: str) -> None:
        self.agents["box1"].sh(f"install -d -o trainer {SHARED}/{folder} {DISK}/{folder}")

    def remove_folders(self, folder: str) -> None:
        self.agents["box1"].sh(f"rm -rf {SHARED}/{folder} {DISK}/{folder} {DISK}/full")

    def touch(self, folder: str, name: str) -> None:
        self.agents["box1"].sh(f"touch {SHARED}/{folder}/{name}")

    def newest_job(self) -> dict[str, Any] | None:
        done = self.run("jobs", "jobs", "--json")
        try:
            rows = json.loads(done.out)
        except ValueError:
            return None
        return dict(rows[-1]) if isinstance(rows, list) and rows else None

    # Images

    def make_image(self) -> None:
        """An image of which hosts lack one layer."""
        if docker("images", "-q", IMAGE):
            return
        build = self.folder / "image"
        build.mkdir(exist_ok=True)
        (build / "layer").write_bytes(os.urandom(_LAYER))
        (build / "Dockerfile").write_text(f"FROM {self.data['image']}\nCOPY layer /opt/layer\n")
        docker("build", "-t", IMAGE, str(build), seconds=300)

    def forget_image(self) -> None:
        name = IMAGE.partition(":")[0]
        text = f"docker images -q {name} | sort -u | xargs -r docker rmi -f"
        for agent in self.agents.values():
            agent.sh(text)

    # The operator's side

    def with_wrong(self, what: str, host: str) -> Toolkit:
        """The tried cluster with another key, or another record of the host's."""
        other = self.folder / "other-key"
        other.mkdir(exist_ok=True)
        ensure_key(other)
        if what == "key":
            hosts = {**self.data["hosts"]}
            hosts[host] = {**hosts[host], "identity_file": str(other / "id_ed25519")}
            return self._cluster("wrong-key", **self.own, hosts=hosts)
        blob = (other / "id_ed25519.pub").read_text().split()[1]
        lines = []
        for line in Path(self.data["known_hosts"]).read_text().splitlines():
            name, kind, key = line.split()[:3]
            lines.append(f"{name} {kind} {blob if self.addresses[host] in name else key}")
        (self.folder / "wrong_known_hosts").write_text("\n".join([*lines, ""]))
        return self._cluster("wrong-known", cluster=TRIED, known_hosts=str(self.folder / "wrong_known_hosts"))

    # After a case

    def left(self, renewed: set[str], allowed: str = "") -> list[str]:
        """Return what exists now and did not before the case, without the files of a cluster that is up."""
        before, files = (self.base, _BESIDE) if self.standing is None else (self.standing, _STATE)
        pattern = f"{files}|{allowed}" if allowed else files
        return settled(self.containers, before, 15, renewed, pattern)

    def harmed(self, struck: str = "", off: bool = False) -> list[str]:
        """Return the bystanders that changed, except those that the fault itself hit.

        Args:
            struck: the host on which the fault has ended everybody's containers.
            off: it has ended everything there.
        """
        found = []
        for host, agent in self.agents.items():
            gone = set(self.beside[host]) - set(self._beside_on(host))
            if gone and not struck:
                found.append(f"{host}: {len(gone)} processes of the bystander's job are gone{self._ending()}")
            words = agent.sh(f"tr '\\0' ' ' </proc/{self.strangers[host]}/cmdline")
            if _STRANGER not in words and not (off and host == struck):
                found.append(f"{host}: the stranger's process is gone")
        return found

    def _ending(self) -> str:
        """Return how the job of the bystander ended, because the repair removes its records."""
        with suppress(ValueError, subprocess.SubprocessError, IndexError, TypeError):
            job = json.loads(self.bystander.run("jobs", "--json", timeout=60).out)[-1]
            return f" ({job['state']} after {job['ended'] - job['started']:.0f} s: {job['reason']})"
        return ""

    def mend_beside(self) -> None:
        """Restart the bystanders that a fault has hit."""
        for host, agent in self.agents.items():
            if _STRANGER not in agent.sh(f"tr '\\0' ' ' </proc/{self.strangers[host]}/cmdline"):
                self._start_stranger(host)
        if any(set(self.beside[host]) - set(self._beside_on(host)) for host in self.agents):
            self.bystander.run("down", "--no-save", check=True)
            self._start_beside()

    def recount(self) -> None:
        """Take what is there now, without the tried cluster, for what was before."""
        if self.standing is not None:
            self.bring_down()
        self.base = take_census(self.containers)

    def unwell(self) -> str:
        """Return problems of the lab; empty if each host has its sshd, engine, network and disk."""
        text = (
            "for i in $(seq 100); do (: </dev/tcp/127.0.0.1/22) 2>/dev/null && break; sleep 0.2; done;"
            "for i in $(seq 100); do timeout 5 docker info >/dev/null 2>&1 && break; sleep 0.2; done;"
            "(: </dev/tcp/127.0.0.1/22) || echo no sshd; timeout 5 docker info >/dev/null || echo no engine;"
            "iptables -S | grep -e FAULT -e 'dport 22'; tc qdisc show | grep tbf;"
            "mount | grep /home/trainer/.local/state; true"
        )

        def look(host: str) -> str:
            try:
                said = self.agents[host].sh(text, 60).strip()
            except HostGone as error:
                return str(error)
            return f"{host}: {said}" if said else ""

        with ThreadPoolExecutor(len(self.agents)) as pool:
            return "; ".join(filter(None, pool.map(look, self.agents)))

    def restart(self) -> None:
        """Restart all hosts, after a case that has broken the practice cluster."""
        for container in self.containers.values():
            docker("unpause", container)
            docker("restart", container, seconds=120)
        for host in self.agents:
            self.wait_for(host)
        assert not (why := self.unwell()), f"the lab is broken: {why}"
        for host in self.agents:
            self.dress(host)
        self.standing = None
        self.bring_down()
        self.mend_beside()
        self.recount()

    def wait_for(self, host: str) -> None:
        """Wait for a host that is starting."""
        waiting.until(f"{host} answers", lambda: self._answers(host), seconds=120)

    def _answers(self, host: str) -> bool:
        try:
            return bool(self.agents[host].sh("echo well", 5))
        except HostGone:
            return False


def commit() -> str:
    """The commit that is tried."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip()
