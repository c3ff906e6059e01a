"""A real Slurm on practice hosts: Debian's packages, one controller, a daemon on each."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.e2e import waiting
from tests.e2e.world import on, outer, sh

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "bash")
# Where job completions are written, one line each: https://slurm.schedmd.com/slurm.conf.html#OPT_JobCompLoc
_RECORD = "/var/log/slurm_jobcomp.log"
_CONF = """\
ClusterName=practice
SlurmctldHost={first}({address})
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=30
JobCompType=jobcomp/filetxt
JobCompLoc={record}
MpiDefault=none
SlurmdTimeout=60
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Slurm's daemons on these practice hosts, all of the same Debian; the first has the controller."""

    def __init__(self, hosts: Sequence[str], addresses: Sequence[str], packages: Path) -> None:
        self.hosts, self.addresses, self.packages = tuple(hosts), tuple(addresses), packages

    def start(self) -> None:
        """Install what is missing, write the configuration, start the daemons, wait for idle nodes."""
        first = self.hosts[0]
        key = b"".join(bytes([n * 7 % 256]) for n in range(1024))
        nodes = "\n".join(
            f"NodeName={host} NodeAddr={address} CPUs=1"
            for host, address in zip(self.hosts, self.addresses, strict=True)
        )
        conf = _CONF.format(
            first=first, address=self.addresses[0], record=_RECORD, nodes=nodes, names=",".join(self.hosts)
        )
        for host in self.hosts:
            self._install(host)
            _write(host, "/etc/munge/munge.key", key)
            sh(host, "chown munge: /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; mkdir -p /run/munge")
            sh(host, "chown munge: /run/munge; pgrep -x munged || runuser -u munge -- /usr/sbin/munged")
            _write(host, "/etc/slurm/slurm.conf", conf.encode())
            _write(host, "/etc/slurm/cgroup.conf", b"CgroupPlugin=disabled\n")
            sh(host, "mkdir -p /var/spool/slurmctld /var/spool/slurmd /var/log/slurm")
        sh(first, f"touch {_RECORD}; pgrep -x slurmctld || slurmctld")
        for host in self.hosts:
            sh(host, "pgrep -x slurmd || slurmd")
        self.wait_for_idle_nodes()

    def wait_for_idle_nodes(self) -> None:
        """Return when all nodes wait for work."""
        waiting.on_host(
            "all nodes of Slurm are idle",
            self.hosts[0],
            "sinfo --noheader -N -o '%N %t' | sort -u",
            lambda said: said.splitlines() == sorted(f"{host} idle" for host in self.hosts),
            seconds=180,
        )

    def stop(self) -> None:
        """End the daemons by the numbers that they have written down."""
        for host in self.hosts:
            sh(
                host,
                "for f in /run/slurmd.pid /run/slurmctld.pid /run/munge/munged.pid /var/run/slurm*.pid; "
                "do [ -s $f ] && kill $(cat $f); done; true",
            )

    def submit(self, script: str, *options: str, user: str = "trainer", folder: str = "/srv/shared") -> str:
        """Submit a script from its folder; return the job's number."""
        words = " ".join(options)
        said = sh(self.hosts[0], f"cd {folder} && runuser -u {user} -- sbatch --parsable {words} {script}")
        assert re.fullmatch(r"\d+", said.strip()), said
        return said.strip()

    def state(self, job: str) -> tuple[str, str]:
        """A job's state and exit code, as ``COMPLETED`` and ``0:0``."""
        said = sh(self.hosts[0], f"scontrol show job {job}")
        found = re.search(r"JobState=(\w+).*ExitCode=(\d+:\d+)", said, re.DOTALL)
        assert found, said
        return found.group(1), found.group(2)

    def ended(self, job: str, seconds: float = 300) -> tuple[str, str]:
        """The same once the job has ended and its nodes are free again."""
        running = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        waiting.until(
            f"job {job} of Slurm ends",
            lambda: self.state(job),
            lambda state: state[0] not in running,
            seconds,
        )
        self.wait_for_idle_nodes()
        return self.state(job)

    def record(self, job: str) -> dict[str, str]:
        """Slurm's own record of a job that has ended."""
        waiting.on_host(
            f"Slurm has a record of job {job}",
            self.hosts[0],
            f"cat {_RECORD}",
            lambda said: f"JobId={job} " in said,
        )
        line = next(x for x in sh(self.hosts[0], f"cat {_RECORD}").splitlines() if f"JobId={job} " in x)
        return dict(re.findall(r"(\w+)=(\S*)", line))

    def _install(self, host: str) -> None:
        if "slurmd" in sh(host, "command -v slurmd"):
            return
        if not list(self.packages.glob("slurmd_*.deb")):
            self._download(host)
        subprocess.run(
            ["docker", "cp", f"{self.packages}/.", f"{outer(host)}:/tmp/slurm-packages"], check=True
        )
        said = sh(
            host,
            "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; "
            "DEBIAN_FRONTEND=noninteractive dpkg -i /tmp/slurm-packages/*.deb; rm -r /tmp/slurm-packages",
        )
        assert sh(host, "command -v slurmd"), said

    def _download(self, host: str) -> None:
        """Fetch the packages where a build would, in a container of the host's own image."""
        image = subprocess.run(
            ["docker", "inspect", "--format", "{{.Config.Image}}", outer(host)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        fetch = (
            "apt-get update -q && apt-get install -y -q --no-install-recommends --download-only "
            f"{' '.join(PACKAGES)} && cp /var/cache/apt/archives/*.deb /debs/"
        )
        run = [
            "docker",
            "run",
            "--rm",
            "--network=host",
            "--entrypoint=sh",
            "--volume",
            f"{self.packages}:/debs",
        ]
        proxies = [f"--env={name}" for name in ("http_proxy", "https_proxy", "no_proxy")]
        subprocess.run([*run, *proxies, image, "-c", fetch], check=True, capture_output=True)


def _write(host: str, path: str, data: bytes) -> None:
    done = subprocess.run(
        ["docker", "exec", "-i", outer(host), "sh", "-c", f"mkdir -p $(dirname {path}); cat >{path}"],
        input=data,
    )
    assert done.returncode == 0, on(host, "ls", "-l", path)
