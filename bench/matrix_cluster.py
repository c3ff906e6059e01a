"""One cluster of the matrix: its hosts file, the ways to start it, and the steps that run on it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
LIMIT_S = 300

# Each launcher with the library that it is mostly used for; every rank says what it got.
SCRIPTS = {
    "horovodrun": """\
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.full((100000,), hvd.rank() + 1.0), op=hvd.Sum)
print("SUM", total[0].item(), total[-1].item(), "OF", hvd.size())
""",
    "mpirun": """\
from mpi4py import MPI
import numpy
world = MPI.COMM_WORLD
total = numpy.empty(100000)
world.Allreduce(numpy.full(100000, world.rank + 1.0), total)
print("SUM", total[0], total[-1], "OF", world.size)
""",
    "torchrun": """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.full((100000,), dist.get_rank() + 1.0)
dist.all_reduce(total)
print("SUM", total[0].item(), total[-1].item(), "OF", dist.get_world_size())
dist.destroy_process_group()
""",
}


class Failed(Exception):
    """A step of one row failed; the text contains its output."""


@dataclass
class Host:
    name: str
    container: str
    address: str
    engine: str = ""
    store: str = ""
    compose: str = ""
    # How this host's compose is called.
    words: tuple[str, ...] = ()


def run(*argv: str, stdin: str = "", check: bool = True) -> str:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=LIMIT_S)
    if check and done.returncode:
        raise Failed(f"{' '.join(argv)[:200]}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


class Cluster:
    """One hosts file on the practice cluster, and the commands of a user."""

    def __init__(self, lab: Path, folder: Path, name: str, hosts: list[Host], user: str) -> None:
        self.hosts, self.user, self.folder, self.name = hosts, user, folder, name
        data = yaml.safe_load((lab / "hosts.yaml").read_text())
        data |= {"cluster": name, "main": hosts[0].name}
        data["hosts"] = {h.name: data["hosts"][h.name] | {"user": user} for h in hosts}
        self.left_to_do: set[str] = set()
        self.file = folder / f"{name}.yaml"
        self.file.write_text(yaml.safe_dump(data, sort_keys=False))
        self.ssh = ["ssh", "-i", str(lab / "id_ed25519"), "-o", f"UserKnownHostsFile={lab / 'known_hosts'}"]
        for launcher, text in SCRIPTS.items():
            (folder / f"{launcher}.py").write_text(text)

    def toolkit(self, *words: str) -> str:
        verb, *rest = words
        return run(TOOLKIT, verb, "--hosts", str(self.file), *rest)

    def on(self, host: Host, command: str, stdin: str = "") -> str:
        return run(*self.ssh, "-o", "BatchMode=yes", f"{self.user}@{host.address}", command, stdin=stdin)

    def role(self, host: Host) -> str:
        return "main" if host is self.hosts[0] else "worker"

    # The ways to start it

    def by_toolkit(self) -> None:
        self.toolkit("up")
        self.left_to_do = set()

    def by_compose(self) -> None:
        self.prepare("compose")
        for host in self.hosts:
            text = (self.folder / "compose" / host.name / "compose.yaml").read_text()
            self.on(host, f"mkdir -p {self.name} && cat >{self.name}/compose.yaml", text)
            self.on(host, f"cd {self.name} && {' '.join(host.words)} up -d")
            self.on(host, f"rm -r {self.name}")

    def by_script(self) -> None:
        self.prepare("docker")
        for host in self.hosts:
            self.on(host, "sh", (self.folder / "docker" / host.name / f"{self.role(host)}.sh").read_text())

    def prepare(self, target: str) -> None:
        self.toolkit("up", "--prepare")
        # Started by hand, that main reaches its workers is proved only later.
        self.left_to_do = {"sshd", "login"}
        self.toolkit("render", target, "-o", str(self.folder / target))

    # What is tried on it

    def smoke(self) -> None:
        ranks = len(self.hosts)
        said = self.toolkit("smoke")
        if f"over {ranks} ranks: sum {ranks * (ranks + 1) // 2} correct on all ranks" not in said:
            raise Failed(said)

    def job(self, launcher: str) -> None:
        ranks, total = len(self.hosts), sum(range(1, len(self.hosts) + 1))
        words = ("--launcher", launcher, "--workdir", str(self.folder), f"{launcher}.py")
        said = self.toolkit("run", *words)
        if said.count(f"SUM {total:.1f} {total:.1f} OF {ranks}") != ranks:
            raise Failed(said)

    def up_again(self) -> None:
        report = json.loads(self.toolkit("up", "--json"))
        if {o["phase"] for o in report["outcomes"] if o["status"] == "ok"} - self.left_to_do:
            raise Failed(json.dumps(report))

    def down(self) -> None:
        self.toolkit("down", "--no-save")
        for host in self.hosts:
            left = self.on(
                host, f"docker ps -aq --filter label=toolkit.cluster={self.name}; docker volume ls -q"
            )
            networks = self.on(host, "docker network ls --format '{{.Name}}'").split()
            if left.strip() or sorted(networks) != ["bridge", "host", "none"]:
                raise Failed(f"{host.name}: {left} {networks}")
