"""Answers of sound hosts to the commands of every verb: three hosts, a cluster that is up, and two jobs."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import posixpath
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.fake_hosts import Say
from tests.unit.checks import recorded
from tests.unit.cluster.test_probe import BOOT, DISK, GPUS, IMAGE, ROUTES, TCP, TCP6, TRIE
from tests.unit.cluster_world import public_key
from toolkit import __version__
from toolkit.cluster.containers import cluster_container
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.probe import FILES_OF, parse_facts
from toolkit.core.host_programs import container_programs
from toolkit.core.image import image_facts
from toolkit.hostsfile.parse import parse_inventory
from toolkit.network.interfaces import SYS_NET
from toolkit.protocol.chunks import HEAD
from toolkit.protocol.decode import decode
from toolkit.protocol.engine import ImageInspect
from toolkit.protocol.names import IDENTITY_REPOSITORY, JOBS
from toolkit.services.plan import service_of

NAMES = ("gpu1", "gpu2", "cpu3")
MAIN = "gpu1"
JOB = "20261120-211300-digits-a1b2"
RUNNING = "20261121-090000-train-c3d4"
HOSTS = """\
cluster: demo
image: toolkit:cpu
hosts:
  gpu1: {address: 10.77.0.2, slots: 2}
  gpu2: {address: 10.77.0.3, slots: 2}
  cpu3: {address: 10.77.0.4, slots: 2, gpus: 0}
data:
  - {source: ./folder, path: /scratch/x, target: /data}
services: {board: {command: tensorboard, ports: [6006]}}
"""
INFO = {
    "ID": "ABCD:EFGH",
    "ServerVersion": "26.1.5",
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "LoggingDriver": "json-file",
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "OperatingSystem": "Debian GNU/Linux 13 (trixie)",
    "DockerRootDir": "/var/lib/docker",
    "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}},
    "DefaultRuntime": "runc",
}
_MOUNTED = "".join(f"41c0 {name}\n" for name in ("conf", "inside", "jobs", "home", "services/board"))
_MOUNTED += "".join(f"81a4 etc/{name}\n" for name in ("hosts", "passwd", "group", "ssh_config"))
_RANK_LINES = b"".join(
    b"[%s %d] \x1b[32mstep %d\x1b[0m: loss 0.%d, 12.5 samples/s\n" % (host, rank, step, step)
    for step in range(1, 6)
    for host, rank in ((b"gpu1", 0), (b"gpu1", 1), (b"gpu2", 2), (b"gpu2", 3))
)
_MARK = base64.b64encode(b'{"set": "abcd", "files": 1, "bytes": 3, "since": 1795208000}').decode()
_STARTED, _ENDED = 1795208400.0, 1795210201.0


def address(host: str) -> str:
    return f"10.77.0.{NAMES.index(host) + 2}" if host in NAMES else "10.77.0.9"


@functools.cache
def image() -> dict[str, Any]:
    """The image as ``docker image inspect`` shows it."""
    own = {**IMAGE, "RootFS": {"Layers": ["sha256:" + "a" * 64, "sha256:" + "b" * 64]}, "Size": 900_000_000}
    identity = image_facts(decode(ImageInspect, own)).identity
    return {**own, "RepoTags": ["toolkit:cpu", f"{IDENTITY_REPOSITORY}:{identity}"]}


def container(host: str, role: str, **labels: str) -> dict[str, Any]:
    own = {"toolkit.cluster": "demo", "toolkit.owner": "alice", "toolkit.host": host, "toolkit.role": role}
    return {
        "Id": hashlib.sha256(f"{host} {role}".encode()).hexdigest(),
        "Name": f"/toolkit-demo-{role}",
        "Image": image()["Id"],
        "State": {
            "Status": "running",
            "Running": True,
            "Paused": False,
            "ExitCode": 0,
            "StartedAt": "2026-11-20T21:00:00Z",
            "FinishedAt": "0001-01-01T00:00:00Z",
        },
        "Config": {"Labels": own | {f"toolkit.{key}": value for key, value in labels.items()}},
    }


@functools.cache
def _digests() -> Mapping[str, Mapping[str, str]]:
    """Digests of the containers that `up` would make on each host, by role."""
    inventory = parse_inventory(HOSTS, "hosts.yaml")
    bare = {host: parse_facts(host, "demo", _sections(host, True, {})) for host in NAMES}
    layout = make_layout(inventory, Observed(bare))
    found = {place.name: {place.role: cluster_container(layout, place).digest()} for place in layout.places}
    for place in layout.places:
        for service in inventory.services_on(place.name):
            own = service_of(layout, place, service).digest()
            found[place.name][f"service-{service.name}"] = own
    return found


@functools.cache
def sections(host: str, up: bool) -> Mapping[str, str]:
    """Sections of a host's answer to the first questions."""
    return _sections(host, up, _digests()[host] if up else {})


def _sections(host: str, up: bool, digests: Mapping[str, str]) -> dict[str, str]:
    role = "main" if host == MAIN else "worker"
    containers = []
    if up:
        labels = {"digest": digests.get(role, "")} | ({} if role == "main" else {"port": "12345"})
        containers = [container(host, role, **labels)]
        if role == "main":
            digest = digests.get("service-board", "")
            containers.append(container(host, "service-board", service="board", digest=digest))
    ip = (
        "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n"
        f"2: eth0    inet {address(host)}/24 brd 10.77.0.255 scope global eth0\\       valid_lft forever\n"
    )
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in container_programs().items()}
    remembered = "".join(f"{address(name)} {name}\n" for name in NAMES)
    remembered += "".join(f"{name},[{address(name)}]:12345 {public_key(name)}\n" for name in NAMES[1:])
    images = f"{image()['Id']}\n=used\n" + "".join(f"{c['Image']} {c['Name']}\n" for c in containers)
    return {
        **recorded.healthy(host),
        "who": "uid=1000(alice) gid=1000(alice) groups=1000(alice),998(docker)",
        "home": "/home/alice",
        "state-home": "/home/alice/.local/state",
        "machine": f"{host}\nx86_64",
        "ssh": f"10.77.0.1 51000 {address(host)} 22",
        "docker": json.dumps(INFO),
        "containers": json.dumps(containers, indent=4) if containers else "",
        "images": json.dumps([image()], indent=4),
        "listed": image()["Id"],
        "images-held": f"{images}=images\n{json.dumps([image()])}",
        "interfaces": ip,
        "routes": ROUTES,
        "addresses": TRIE,
        "tcp": TCP + TCP6,
        "gpus": GPUS if host != "cpu3" else "nvidia-smi is not on the PATH",
        "runtime": "",
        "infiniband": "",
        "imex": "",
        "cdi": "",
        "state": "1000 41c0\n1000 41c0\n1000 41c0" if up else "-\n-\n-",
        "cluster": f"127.0.0.1 localhost\n{remembered}" if up else "",
        "version": __version__ if up else "",
        "tuned": '{"tuned": []}',
        "files": "".join(f"81a4 inside/{name}\n{sum_}  inside/{name}\n" for name, sum_ in sums.items() if up)
        + (_MOUNTED if up else ""),
        "boot": BOOT,
        "disk": DISK,
        "apps": "",
        "states": (
            f"now|1795212000\nstate|1795200000|10.0.0.1|demo|{host}\n"
            f"job|yes|succeeded|1795210201|1795210201|demo|{host}|{JOB}\n"
            f"state|1700000000||old|{host}\nhalves|0\n"
        ),
        "links": (
            "./eth0/operstate:up\n./eth0/carrier:1\n./eth0/speed:1000\n./eth0/duplex:full\n"
            "./eth0/mtu:1500\n./eth0/type:1\n./eth0/device\n./lo/type:772\n"
        ),
        "shaping": "qdisc noqueue 0: dev lo root refcnt 2\n",
        "network-settings": "ip_local_port_range:32768\t60999\nip_local_reserved_ports:\n",
        "data": f"folder|/scratch/x\nthere\nmark|={_MARK}\n",
    }


def statuses(busy: bool = True) -> dict[str, dict[str, Any]]:
    """Status of each job, as status.json has it; `busy` for a second job that runs."""
    hosts = {"gpu1": [0, 1], "gpu2": [0, 1]}
    done = {
        "state": "failed",
        "exit_code": 1,
        "started": _STARTED,
        "ended": _ENDED,
        "reason": "rank 2 on gpu2 exited with code 1",
        "unswept": [],
        "hosts": hosts,
        "restarts": [{"at": _STARTED + 5, "reason": "rank 1 was killed", "host": "gpu2", "hosts": ["gpu1"]}],
        "cause": {"last": ["RuntimeError: \x1b[31mloss is nan\x1b[0m"], "ended": _ENDED, "exit_code": 1},
    }
    over = {
        "state": "succeeded",
        "exit_code": 0,
        "started": _ENDED + 60,
        "ended": _ENDED + 90,
        "hosts": hosts,
    }
    running = {"state": "running", "exit_code": None, "started": _ENDED + 60, "ended": None, "hosts": hosts}
    return {JOB: done, RUNNING: running if busy else over}


def record() -> dict[str, Any]:
    return {
        "owner": "alice",
        "launcher": "torchrun",
        "command": ["python", "train.py", "--epochs", "3"],
        "hosts": [{"name": name, "slots": 2, "taken": [0, 1]} for name in ("gpu1", "gpu2")],
        "transport": "",
    }


@dataclass
class World:
    """The cluster of a case.

    Args:
        state: down, up, or busy with a job.
        started: ids of jobs that the command has started.
    """

    state: str = "up"
    started: list[str] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return self.state == "busy"


def rows(world: World) -> list[dict[str, Any]]:
    known = statuses(world.busy)
    known |= {
        job: {**known[RUNNING], "state": "succeeded", "exit_code": 0, "ended": _ENDED + 95}
        for job in world.started
    }
    return [
        {
            "id": job,
            "alive": status["state"] == "running",
            "status": status,
            "record": record(),
            "now": _ENDED + 100,
        }
        for job, status in known.items()
    ]


def inspected(host: str) -> dict[str, Any]:
    frames = [
        {
            "name": "all_reduce",
            "file": "/x/distributed.py",
            "line": 12,
            "text": "work.wait()",
            "handler": False,
        },
        {"name": "main", "file": "train.py", "line": 40, "text": "train()", "handler": False},
    ]
    process = {
        "pid": 811,
        "state": "S",
        "parent": 1,
        "name": "python",
        "states": "SS",
        "call": "futex",
        "target": "",
        "cpu": 0.5,
        "threads_seen": [{"first": True, "frames": frames}],
        "no_stack": "",
        "moved": False,
        "woken": 3,
    }
    first = 0 if host == MAIN else 2
    ranks = [
        {
            "rank": rank,
            "age": 30.0,
            "lines": ["step 5"],
            "tail": "step 4\nstep 5\n",
            "exit_code": None,
            "processes": [process],
            "dumps": {f"nccl_trace_rank_{rank}": "AAAA"},
        }
        for rank in (first, first + 1)
    ]
    seen = {
        "host": host,
        "error": "",
        "job": {
            "id": JOB,
            "hosts": [{"name": n, "address": address(n), "slots": 2} for n in ("gpu1", "gpu2")],
            "owner": "alice",
            "launcher": "torchrun",
            "command": ["python", "train.py"],
        },
        "ranks": ranks,
        "sockets": [{"pid": 811, "peer": "10.77.0.3:29500", "state": "ESTABLISHED", "unsent": 10}],
        "gpus": [{"index": "0", "busy": "100", "watts": "300", "mib": "20000"}],
        "ras": "",
        "oom_kills": 0,
        "py_spy": True,
        "output": "step 5\n",
        "lease": "",
    }
    return {**seen, "kept": {"hosts": [seen], "at": _ENDED - 60, "why": "no rank printed for 60 s"}}


def reading(host: str) -> dict[str, Any]:
    gpu = {"index": 0, "uuid": "GPU-1a", "utilization": 99.0, "memory_used": 1000.0, "memory_total": 81920.0}
    rank = {
        "job": RUNNING,
        "rank": 0,
        "cpu": 1.0,
        "memory": 10**9,
        "silent": 1.5,
        "line": "step 5",
        "step": 5,
    }
    return {
        "at": _ENDED,
        "cpu": {"cores": 16, "busy": 3.5, "load": 4.0},
        "memory": {"used": 10**10, "total": 10**11},
        "network": {"interface": "eth0", "in": 1e6, "out": 2e6, "mbit": 1000},
        "disk": {"read": 1e6, "written": 1e5, "free": 10**12},
        "gpus": [gpu],
        "ranks": [rank | {"steps_per_s": 2.0, "samples_per_s": 64.0}],
        "jobs": {
            RUNNING: {"world_size": 4, "launcher": "torchrun", "command": ["train.py"], "owner": "alice"}
        },
    }


def account(host: str) -> dict[str, Any]:
    sample = {key: value for key, value in reading(host).items() if key not in ("ranks", "jobs")}
    rank = {
        "rank": 0 if host == MAIN else 2,
        "starts": [_STARTED],
        "first_output": _STARTED + 1,
        "first_step": _STARTED + 2,
        "ended": _ENDED,
        "exit_code": 1,
        "signal": None,
        "oom": False,
        "last": ["RuntimeError: loss is nan"],
    }
    main = {
        "record": record(),
        "status": statuses()[JOB],
        "preparation": {"spans": [["connect", 0.5, 0.0], ["code", 1.5, 0.5]], "at": _STARTED},
        "up": None,
        "throughput": [[_STARTED + 10, 5, 2.0, 64.0], [_STARTED + 20, 25, 2.0, 64.0]],
        "network": {"job": "", "text": ""},
    }
    about = {
        "now": _ENDED + 100,
        "alive": False,
        "ranks": [rank],
        "gauges": [sample, {**sample, "at": _ENDED - 10}],
        "versions": {"torch": "2.13.0", "python": "3.12.1"},
    }
    return about | (main if host == MAIN else {})


def listed(folder: str, patterns: Sequence[str]) -> list[dict[str, Any]]:
    """Files of the job, or one for each pattern that leads out of its folder."""
    outer = [posixpath.normpath(posixpath.join(folder, each)) for each in patterns]
    if any(not each.startswith(f"{folder}/") for each in outer) or not folder.endswith("/code"):
        about = {"size": 10, "mtime": 10**18, "mode": 0o644, "inode": 7}
        return [
            {
                "path": each,
                "name": each.removeprefix(f"{folder}/")
                if each.startswith(f"{folder}/")
                else posixpath.basename(each),
                **about,
            }
            for each in outer
        ]
    base = folder
    files = (("out/model.pt", 3000), ("out/log.txt", 20), ("out/sub/x", 0))
    found: list[dict[str, Any]] = [
        {"path": f"{base}/{name}", "name": name, "size": size, "mtime": 10**18, "mode": 0o644, "inode": 7}
        for name, size in files
    ]
    return [*found, {"path": f"{base}/out/last", "name": "out/last", "link": "model.pt"}]


def job_files() -> bytes:
    """`send_files jobs`."""
    files = (
        (f"{JOB}/status.json", json.dumps(statuses()[JOB]).encode()),
        (f"{JOB}/output.log", _RANK_LINES),
        (f"{JOB}/code/out/model.pt", b"m" * 3000),
    )
    sent = (_line({"name": name, "size": len(data)}) + data for name, data in files)
    return b"".join(sent) + _line({"end": True})


class Printed:
    """Prints, and ends at once or with its input."""

    def __init__(self, out: bytes = b"", err: bytes = b"", status: int = 0, held: bool = False) -> None:
        self._out, self._err, self._status, self._held = out, err, status, held

    def begin(self, say: Say) -> None:
        say.out(self._out)
        if self._err:
            say.err(self._err)
        if not self._held:
            say.end(self._status)

    def hear(self, data: bytes, say: Say) -> None:
        """Nothing of it changes the answer."""

    def close(self, say: Say) -> None:
        if self._held:
            say.end(self._status)


class Lines:
    """A program that answers lines of its input."""

    def __init__(self, answer: Callable[[bytes, Say], None], skip: int = 0) -> None:
        self._answer, self._rest, self.skip, self.over = answer, b"", skip, False

    def begin(self, say: Say) -> None:
        """It says nothing before it is asked."""

    def hear(self, data: bytes, say: Say) -> None:
        self._rest += data
        while not self.over:
            gone = min(self.skip, len(self._rest))
            self._rest, self.skip = self._rest[gone:], self.skip - gone
            line, newline, rest = self._rest.partition(b"\n")
            if self.skip or not newline:
                return
            self._rest = rest
            self._answer(line, say)

    def close(self, say: Say) -> None:
        if not self.over:
            self.over = True
            say.end(0)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _ended(job: str) -> bytes:
    status = {**statuses()[JOB], "state": "succeeded", "exit_code": 0, "reason": "", "cause": None}
    return _line({"status": status, "now": _ENDED + 100})


def _asked(line: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return found


def container_session(world: World) -> Lines:
    """The container session: toolkit/container/session.py."""

    def answer(line: bytes, say: Say) -> None:
        # What has come of the code's files is before it.
        ask = _asked(line[line.find(b"{") :])
        if "entries" in ask:
            talk.skip = ask["entries"]
            say.out(_line({"needs": [[0, 0]]}) + _line({"working": True}) + _line({"done": True}))
        elif "error" in ask:
            say.out(_line({"done": True}))
        elif "do" not in ask:
            pass  # a line of a file
        elif ask["do"] == "jobs":
            say.out(_line({"jobs": rows(world)}))
        elif ask["do"] == "code":
            say.out(_line({"buckets": [0, 1]}) if ask["tree"] else _line({"done": True}))
        elif ask["do"] == "start":
            world.started.append(ask["job"])
            say.out(_line({"started": ask["job"]}))
        elif ask["do"] == "asks":
            say.out(_line({"host": ask["hosts"][0], "command": "orted"}))
        elif ask["do"] == "begun":
            say.out(_line({"begun": True}))
        elif ask["do"] == "follow":
            talk.over = True
            say.out(_RANK_LINES)
            say.err(_ended(JOB))
            say.end(0)

    talk = Lines(answer)
    return talk


_GPU_LINES = [f"GPU {n}: NVIDIA A100-SXM4-80GB (UUID: GPU-{n + 1}{'ab'[n]})" for n in (0, 1)]


def look(host: str, skip: int) -> Lines:
    """The test container: toolkit/container/check/container_probe.py."""

    def answer(line: bytes, say: Say) -> None:
        told = json.loads(line)
        if "targets" not in told:
            say.out(_line({"ports": {"worker": 12345, "master": 29500, "any": 40000}}))
            return
        tried = {"answer": "open", "sent": 4, "seen": address(host)}
        say.out(
            _line(
                {
                    "pairs": {each["host"]: dict.fromkeys(each["ports"], tried) for each in told["targets"]},
                    "shm": 2**34,
                    "limits": {"memlock": -1, "nofile": 1048576},
                    "versions": {"python": "3.12.1", "torch": "2.13.0", "cuda": "12.4"},
                    "names": {name: [address(name)] for name in NAMES},
                    "gpus": _GPU_LINES if host != "cpu3" else None,
                    "lacks": [],
                    "shared": {},
                    "mounts": {},
                    "faults": {},
                    "logins": {"gpu2": {"error": "", "memlock": -1, "nofile": 1048576}},
                    "now": time.time(),
                }
            )
            + b"\nended 0\n"
        )

    return Lines(answer, skip)


def image_look(skip: int) -> Lines:
    """The probe of an image: toolkit/container/check/image_probe.py."""

    def answer(line: bytes, say: Say) -> None:
        nonce = json.loads(line)["nonce"].encode()
        report = {"executable": "/usr/bin/python3", "python": [3, 12, 1], "lacks": ["horovodrun"]}
        text = json.dumps(report).encode()
        say.out(b"a banner\n\n%s image %d\n%s\n%s end 0\n" % (nonce, len(text), text, nonce))

    return Lines(answer, skip)


class Give:
    """`send_files send`: as many bytes as each file has."""

    def __init__(self) -> None:
        self._asked = b""

    def begin(self, say: Say) -> None:
        """It reads first."""

    def hear(self, data: bytes, say: Say) -> None:
        self._asked += data

    def close(self, say: Say) -> None:
        for _, size, _ in json.loads(self._asked or b"[]"):
            say.out(_line({"size": size, "mtime": 10**18}) + b"x" * min(size, 10**6))
        say.end(0)


class RelayTalk:
    """A host of a transfer, container/transfer/relay.py; what another host gives it is there at once."""

    def __init__(self) -> None:
        self._rest = b""
        self._loads: list[list[int]] = []
        self._at = self._loaded = self._wire = 0

    def begin(self, say: Say) -> None:
        say.out(_line({"ready": True, "zstd": False}))

    def hear(self, data: bytes, say: Say) -> None:
        self._rest += data
        while len(self._rest) >= HEAD.size:
            kind, _, number, length = HEAD.unpack_from(self._rest)
            if len(self._rest) < HEAD.size + length:
                return
            content, self._rest = self._rest[HEAD.size :][:length], self._rest[HEAD.size + length :]
            if kind == b"J":
                self._obey(json.loads(content), say)
            elif kind == b"C":
                self._wire += length
                self._come(number + 1, say)

    def _obey(self, order: dict[str, Any], say: Say) -> None:
        if order["do"] == "begin":
            self._loads = order["loads"]
            self._at = self._loads[0][0]
            say.out(_line({"port": 41000}))
            self._come(self._at, say)
        elif order["do"] == "take":
            say.out(_line({"takes": order["host"], "at": self._at}))
            if order["host"]:
                self._come(self._loads[-1][1], say)

    def _come(self, at: int, say: Say) -> None:
        self._at = max(self._at, at)
        say.out(_line({"at": self._at, "limit": self._at + 128, "busy": False, "wire": self._wire}))
        while self._loaded < len(self._loads) and self._at >= self._loads[self._loaded][1]:
            say.out(_line({"loaded": self._loaded, "status": 0, "said": ""}))
            self._loaded += 1

    def close(self, say: Say) -> None:
        say.end(0)


def _data(words: list[str]) -> Any:
    """The programs on the folder of a data set: data_set.py and relay.py."""
    if "look" in words or "adopt" in words:
        seen = {"missing": [0], "set": "abcd", "free": 10**12, "inodes": 10**6, "unknown": "look" in words}
        return Printed(_line(seen))
    if "finish" in words or "remove" in words:
        return Printed(_line({"gone": 1, "stay": 0, "left": 0}))
    return RelayTalk()


def contents(known: Mapping[str, str]) -> str:
    """Return the section ``contents`` for sections that ``read_probe`` makes from it."""
    files = {name: paths[0] for name, paths in FILES_OF.items() if known.get(name)}
    lines = [f"{path}:{line}" for name, path in files.items() for line in known[name].splitlines()]
    lines += [line.replace("./", SYS_NET, 1) for line in known.get("links", "").splitlines() if ":" in line]
    return "\n".join(lines)


def _framed(host: str, script: str, up: bool) -> bytes:
    """Return the sections that a script asks for, none for steps of a plan: they have something to do."""
    found = re.search(r"nonce=([0-9a-f]{8,64})\n", script)
    nonce = found[1].encode() if found else b""
    now = f"{time.time():.9f}"
    known = {**sections(host, up), "begun": now, "ended": now}
    known["contents"] = contents(known)
    out = b"Welcome!\n"
    for name in dict.fromkeys(re.findall(r"(?:^ *|&& |; |\) )say ([a-z0-9-]+) ", script, re.MULTILINE)):
        if name.isdecimal():
            continue
        text = known.get(name, "").encode()
        out += b"\n%s %s %d\n%s" % (nonce, name.encode(), len(text), text)
    return out


def _ways(words: list[str]) -> bytes:
    rest = words[5:]
    at = rest.index("--") if "--" in rest else 0
    lines = [*(f"route {each} via 10.77.0.1 dev eth0 src 10.77.0.2" for each in rest[:at]), "asked"]
    lines += [*(f"open {each}" for each in rest[at + 1 :]), "tried"]
    return "".join(f"{line}\n" for line in lines).encode()


def sound(host: str, words: list[str], inside: bool, world: World) -> Any:
    """Return what a sound host does with a command; None if nothing is known of it."""
    up = world.state != "down"
    text = words[2] if words[:2] == ["sh", "-c"] and len(words) > 2 else ""
    if re.search(r"nonce=[0-9a-f]{8,64}\n", text):
        return Printed(_framed(host, text, up))
    if text.lstrip().startswith("folder=$1 account="):
        return _data(words)
    if "TOOLKIT_RELAY" in text:
        return RelayTalk()
    at = next((number for number, word in enumerate(words[:6]) if word.endswith("/run.py")), -1)
    program = words[at + 1] if at >= 0 else ""
    if program == "session":
        return container_session(world)
    if words[:2] == ["python3", "-"]:
        return Printed(_line(rows(world)))
    if program == "logs.follow":
        asked = "--status" in words
        return Printed(b"" if "--silent" in words else _RANK_LINES, _ended(JOB) if asked else b"")
    if program == "diagnose.inspect_ranks":
        return Printed(_line(inspected(host)))
    if program == "monitor.job_facts":
        return Printed(_line(account(host)))
    if program == "job.stop":
        return Printed(_line({**statuses()[JOB], "state": "stopped", "exit_code": 143}))
    if program == "monitor.gauges":
        return Printed(_line(reading(host)) * 3, held=True)
    if program == "send_files" and "list" in words:
        return Printed(
            b"".join(map(_line, listed(words[words.index("list") + 1], words[words.index("list") + 2 :])))
        )
    if program == "send_files":
        return Give()
    if words[-2:] == ["jobs", str(JOBS)]:
        return Printed(job_files())
    if "ended %s" in text:
        skip = re.findall(r"\b[0-9]{3,}\b", shlex.join(words[-1:]))
        return look(host, int(skip[-1]) if skip else 0)
    if words[:2] == ["docker", "run"] and "--interactive" in words:
        return image_look(int(words[-1]))
    if "/dev/tcp/" in text:
        return Printed(_ways(words))
    if "docker logs" in text:
        return Printed(b"board: \x1b[32mready\x1b[0m on 6006\n")
    if words[:2] == ["docker", "inspect"] and "IPAddress" in words[3]:
        return Printed(b"running 172.17.0.2\n")
    if "{{json .State}}" in words:
        role = "main" if host == MAIN else "worker"
        return Printed(_line(container(host, role)["State"]))
    line = " ".join(words)
    if "{{.Id}}" in line and "toolkit-demo-" in line:
        role = next(iter(re.findall(r"toolkit-demo-([a-z-]+)", line)))
        return Printed(container(host, role)["Id"].encode() + b"\n")
    if "ssh-keygen" in line or ".pub" in line:
        return Printed(public_key(host).encode() + b"\n")
    if inside and not program:
        return Printed(b"\x1b[31mhello\x1b[0m from " + host.encode() + b"\n", b"a warning\n")
    return None
