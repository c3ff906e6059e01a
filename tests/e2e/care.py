"""Repair of the practice clusters after a failed test, so that the next test starts on healthy hosts.

A failed test can leave a host powered off, frozen or behind a firewall rule, a program stopped or moved
away, a job running. `Care.first_aid` runs right after the failure, before fixtures end: it starts hosts and
wakes what is frozen, since fixtures need hosts that answer. `Care.restore` runs before the next test: it
repairs what it knows how to repair, compares every host with its state at the beginning, and makes the
practice cluster again where a difference remains.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.e2e import waiting
from tests.e2e.world import CLUSTERS, STARTED, Toolkit, outer, sh
from toolkit.errors import LabError, ToolkitError
from toolkit.lab.lifecycle import lab_down, lab_names, lab_up
from toolkit.lab.spec import LabSpec

# What a test can change on a host and a later test can stumble over. Interfaces and mounts of Docker's own
# come and go with containers; identifiers that a restart changes are cut off.
_LOOK = r"""
docker='^(docker|br-|veth)'
iptables -S INPUT; iptables -S OUTPUT; iptables -t nat -S POSTROUTING | grep -e --to-source
tc qdisc show | sed 's/^qdisc \([a-z_]*\) [0-9a-f]*: dev /\1 /' | grep -Ev '^[a-z_]* (docker|br-|veth)'
ip -o -4 addr show | awk '{ print "address", $2, $4 }' | grep -Ev ' (docker|br-|veth)'
ip -4 route show | grep -Ev 'dev (docker|br-)'
ip -o link show | sed 's/^[0-9]*: //; s/@[^:]*//; s/ qdisc .*//' | grep -Ev "$docker" | sed 's/^/link /'
awk '{ print "mount", $2, $3, substr($4, 1, 2) }' /proc/mounts |
    grep -Ev ' /(var/lib/(docker|containerd)/|run/(docker|containerd)/|proc|sys|dev)' | sort
stat -c 'program %n %a %s' /usr/bin/docker "$(readlink -f /usr/bin/python3)" /usr/bin/sha256sum
stat -c 'home %n %a %U' /home/trainer /home/trainer/.bashrc
ls -d /usr/local/bin/nvidia-smi /dev/infiniband /etc/cdi /etc/docker/daemon.json 2>/dev/null
ls /etc/ssh/sshd_config.d; cksum /etc/ssh/ssh_host_ed25519_key.pub /home/trainer/.ssh/authorized_keys
cut -d: -f1,7 /etc/passwd | sort | sed 's/^/user /'
echo "groups $(id -nG trainer); name $(hostname); $(cksum </etc/hosts); $(cksum </home/trainer/.bashrc)"
sysctl net.ipv4.ip_local_port_range net.ipv4.conf.all.rp_filter
ps -eo state,args | grep '^[T]' | sed 's/^/stopped /'
docker ps --quiet --filter status=paused | sed 's/^/paused /'
echo "engine $(tr '\0' ' ' </proc/$(pidof dockerd)/cmdline)"
"""
_THAW = r"""
docker ps --quiet --filter status=paused | xargs -r docker unpause
for pid in $(ps -eo state=,pid= | awk '$1 == "T" { print $2 }'); do kill -CONT "$pid"; done
"""
_CLUSTERS = "docker ps --all --filter label=toolkit.cluster --format '{{.Label \"toolkit.cluster\"}}'"


@dataclass
class Lab:
    """A practice cluster in use, and what each of its hosts is like when it is healthy."""

    spec: LabSpec
    usual: dict[str, list[str]] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"box{number + 1}" for number in range(self.spec.hosts))

    def each(self, act: Callable[[str], None]) -> None:
        """Do something for all hosts side by side."""
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            list(pool.map(act, self.hosts))

    def network(self) -> str:
        """Return what the addresses of the hosts begin with, such as ``10.77.3.``; empty without a lab."""
        file = Path(self.spec.folder) / "hosts.yaml"
        if not file.exists():
            return ""
        address = str(yaml.safe_load(file.read_text())["hosts"]["box1"]["address"])
        return address[: address.rindex(".") + 1]

    def look(self) -> dict[str, list[str]]:
        """Return the present state of each host, as lines."""
        found: dict[str, list[str]] = {}
        self.each(lambda host: found.update({host: sh(host, _LOOK, lab=self.spec.name).splitlines()}))
        return found


class Care:
    """The labs of this test session, and their repair."""

    def __init__(self) -> None:
        self.labs: dict[str, Lab] = {}
        self.needed = ""  # the failed test
        self.broken = ""  # why a lab could not be repaired
        self.done: list[str] = []

    # The labs

    def adopt(self, spec: LabSpec) -> None:
        """Look after a lab that has just come up."""
        lab = Lab(spec)
        lab.usual = lab.look()
        self.labs[spec.name] = lab

    def release(self, name: str) -> None:
        self.labs.pop(name, None)

    @contextmanager
    def changed(self, name: str) -> Iterator[None]:
        """A block in which a fixture of several tests has changed the hosts on purpose."""
        lab = self.labs[name]
        before, lab.usual = lab.usual, lab.look()
        try:
            yield
        finally:
            lab.usual = before

    # After a failure

    def first_aid(self) -> list[str]:
        """Give power to hosts and let what is frozen run; return what was done."""
        self.done = []
        for lab in self.labs.values():
            lab.each(lambda host, lab=lab: self._wake(lab, host))  # type: ignore[misc]
        return self.done

    def restore(self) -> list[str]:
        """Make every lab healthy; return what was done.

        Raises:
            ToolkitError: a lab that had to be made again does not come up.
        """
        self.done = []
        self._end_processes()
        for name, lab in list(self.labs.items()):
            stood = self._clusters(lab)
            try:
                lab.each(lambda host, lab=lab: self._mend(lab, host))  # type: ignore[misc]
                why = self._differences(lab)
                if not why:
                    self._tidy(stood)
            except (AssertionError, OSError, subprocess.SubprocessError, ToolkitError) as error:
                why = f"{type(error).__name__}: {error}"
            if why:
                self._note(f"lab {name} is made again, since it could not be repaired: {why}")
                self._again(lab)
                for cluster in stood:
                    if cluster.lasting:
                        cluster.run("up", check=True, timeout=900)
        self.needed = ""
        return self.done

    def _note(self, line: str) -> None:
        self.done.append(line)

    def _end_processes(self) -> None:
        """Kill commands that tests have started and not waited for."""
        while STARTED:
            process = STARTED.pop()
            if process.poll() is None:
                self._note(f"killed {process.args!r}")
                process.kill()
            with suppress(ValueError, subprocess.TimeoutExpired):
                process.communicate(timeout=20)

    def _wake(self, lab: Lab, host: str) -> None:
        """Let the host run, if it does not."""
        name = outer(host, lab.spec.name)
        inspect = ["docker", "inspect", "--format", "{{.State.Status}}", name]
        state = subprocess.run(inspect, capture_output=True, text=True).stdout.strip()
        if state == "paused":
            subprocess.run(["docker", "unpause", name], check=True, capture_output=True)
        elif state != "running":
            subprocess.run(["docker", "start", name], check=True, capture_output=True)
        if state != "running":
            self._note(f"{host} of lab {lab.spec.name} was {state or 'absent'}: started")
        waiting.host_answers(host, lab.spec.name)
        if said := sh(host, _THAW, lab=lab.spec.name).strip():
            self._note(f"{host}: woke paused containers {said}")

    def _mend(self, lab: Lab, host: str) -> None:
        """Wake the host, and take back what faults do to its network."""
        self._wake(lab, host)
        now = sh(host, _LOOK, lab=lab.spec.name).splitlines()
        for line in now:
            if line in lab.usual[host]:
                continue
            if line.startswith("-A "):
                table = "nat" if "--to-source" in line else "filter"
                sh(host, f"iptables -t {table} -D {line.removeprefix('-A ')}", lab=lab.spec.name)
                self._note(f"{host}: removed the rule {line}")
        shaped = [line.split()[1] for line in now if line.startswith(("tbf ", "netem "))]
        for device in shaped:
            if not any(line.split()[:2] in (["tbf", device], ["netem", device]) for line in lab.usual[host]):
                sh(host, f"tc qdisc del dev {device} root", lab=lab.spec.name)
                self._note(f"{host}: removed the limit of {device}")

    def _differences(self, lab: Lab) -> str:
        """Return how the lab differs from its healthy state, empty when it does not."""
        now = lab.look()
        rows = []
        for host, usual in lab.usual.items():
            lines = difflib.unified_diff(sorted(usual), sorted(now[host]), lineterm="", n=0)
            rows += [f"{host}: {line}" for line in lines if not line.startswith(("---", "+++", "@@"))]
        return "; ".join(rows)

    # Clusters on a lab

    def _clusters(self, lab: Lab) -> list[Toolkit]:
        """Return the clusters of which a host has containers, those that are known by their hosts file."""
        names: set[str] = set()
        for host in lab.hosts:
            with suppress(OSError):
                names.update(sh(host, _CLUSTERS, lab=lab.spec.name).split())
        found = [CLUSTERS[name] for name in sorted(names & CLUSTERS.keys())]
        return [cluster for cluster in found if cluster.hosts.exists()]

    def _tidy(self, clusters: list[Toolkit]) -> None:
        """End the jobs of each cluster; bring it up if later tests share it, else remove it."""
        for cluster in clusters:
            verb = ("up",) if cluster.lasting else ("down", "--no-save")
            if cluster.lasting:
                self._end_jobs(cluster)
            done = cluster.run(*verb, timeout=600)
            if done.status:
                cluster.run("down", "--no-save", check=True, timeout=600)
            self._note(f"toolkit {' '.join(verb)} of {cluster.hosts}: {done.status}")

    def _end_jobs(self, cluster: Toolkit) -> None:
        jobs = cluster.run("jobs", "--json")
        if jobs.status:
            return  # no main container: `up` ends what is left
        for job in jobs.json:
            if job["state"] in waiting.GOING:
                cluster.run("stop", "--now", job["id"])
                self._note(f"stopped job {job['id']}")

    def _again(self, lab: Lab) -> None:
        """Remove the lab and make it again; hosts files of clusters get its new addresses."""
        start = time.monotonic()
        before = lab.network()
        # The engines' data stay, since images take a minute to send; what is made of them goes.
        lab_down(lab.spec.name, keep_images=True, folder=lab.spec.folder)
        try:
            lab_up(lab.spec)
            lab.each(lambda host: self._empty(lab, host))
        except (ToolkitError, subprocess.SubprocessError):
            lab_down(lab.spec.name, folder=lab.spec.folder)
            lab_up(lab.spec)
        lab.usual = lab.look()
        if before and (now := lab.network()) != before:
            for cluster in CLUSTERS.values():
                if cluster.hosts.exists():
                    cluster.hosts.write_text(cluster.hosts.read_text().replace(before, now))
        self._note(f"lab {lab.spec.name} was made in {time.monotonic() - start:.0f} s")

    def _empty(self, lab: Lab, host: str) -> None:
        """Remove what earlier hosts of the same name left in the engine's data: containers and parts."""
        sh(host, "docker ps --all --quiet | xargs -r docker rm --force", lab=lab.spec.name)
        sh(host, "docker images --quiet toolkit-part | xargs -r docker rmi --force", lab=lab.spec.name)


CARE = Care()


@contextmanager
def practice_cluster(spec: LabSpec, keep: bool = False) -> Iterator[None]:
    """Bring up a practice cluster that belongs to this test run; remove it at the end unless `keep` is set.

    A run that was killed cannot remove its cluster, so what exists under the name is removed first. A lock
    tells such a leftover from the cluster of a run that still works: the kernel releases it with the process.

    Raises:
        LabError: another test run uses a practice cluster of this name.
    """
    path = Path(tempfile.gettempdir()) / f"toolkit-tests-{os.getuid()}-{spec.name}.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "wait until that run has ended, or choose another name: TOOLKIT_TEST_LAB=NAME"
            raise LabError(f"another test run uses practice cluster {spec.name}", fix) from None
        if not keep and spec.name in lab_names():
            lab_down(spec.name)
        lab_up(spec, print)
        try:
            yield
        finally:
            if not keep:
                lab_down(spec.name)
