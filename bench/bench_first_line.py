"""S4: `toolkit up` and `run` to the first line of output with the image present, and a hand-written script.

    toolkit lab up --count 3 && export TOOLKIT_HOSTS=… && toolkit image send
    python bench/bench_first_line.py --rounds 5

The script does the same work by hand: keys, an sshd in a container on every worker, mpirun in one on main. It
checks nothing, pins host keys from the files that it has just made, and binds sshd to the data address.
The last lines are the phases of `up` and `run`, from `toolkit report`.

The lower bound is the work of the script with the connections and Python programs of `toolkit up` and
`toolkit run`, see connect_all.py and bench_run.py: it has no probe, sends no code and writes no record.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bench_up
import connect_all
import yaml
from bench_run import MODULES, RANK, SESSION, START, login_of

TOOLKIT = os.environ.get("TOOLKIT") or str(Path(sys.executable).with_name("toolkit"))
# If it is set, every command compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
WORDS = ("python3", "-c", "print('a word', flush=True)")
PORT = 12399
SSHD = "exec /usr/sbin/sshd -D -e -f /k/sshd_config"


class Script:
    """A hand-written script for these hosts."""

    def __init__(self, data: dict[str, Any], folder: Path) -> None:
        self.hosts: dict[str, dict[str, str]] = data["hosts"]
        self.known, self.image, self.folder = data["known_hosts"], data["image"], folder
        self.main, *self.workers = self.hosts

    def ssh(self, host: str, command: str, stdin: bytes = b"") -> str:
        about = self.hosts[host]
        options = [
            "-i",
            about["identity_file"],
            "-o",
            f"UserKnownHostsFile={self.known}",
            "-o",
            "BatchMode=yes",
        ]
        argv = ["ssh", *options, f"{about['user']}@{about['address']}", command]
        done = subprocess.run(argv, input=stdin, capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"{host}: {command[:60]}: {done.stderr.decode()}")
        return done.stdout.decode()

    def address(self, host: str) -> str:
        """Return the address in the network that the hosts share."""
        return self.hosts[host].get("data_address") or self.ssh(host, "echo $SSH_CONNECTION").split()[2]

    def run(self) -> float:
        """Start everything and run the job; return the seconds until its first line."""
        start = time.perf_counter()
        keys = self._keys()
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            addresses = dict(zip(self.hosts, pool.map(self.address, self.hosts), strict=True))
            list(
                pool.map(lambda h: self.ssh(h, "sh -s", self._start(h, addresses, keys).encode()), self.hosts)
            )
        said = self.ssh(self.main, shlex.join(["docker", "exec", "by-hand", *self._launch(addresses, WORDS)]))
        took = time.perf_counter() - start
        assert said.count("a word") == len(self.hosts), said
        return took

    def lower_bound(self, data: dict[str, Any]) -> float:
        """Do the same with the connections and programs of toolkit; return the seconds."""
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            addresses = dict(zip(self.hosts, pool.map(self.address, self.hosts), strict=True))
        start = time.perf_counter()
        keys = self._keys()
        starts = [(self.hosts[host]["address"], self._start(host, addresses, keys)) for host in self.hosts]
        with connect_all.program(*login_of(data), starts) as up:
            subprocess.run([*up, *bench_up.MODULES], check=True)
        ranks = self._launch(addresses, ("python3", "-c", RANK, *WORDS))
        works = {host: ["true"] for host in self.hosts}
        works[self.main] = ["python3", "-c", START, "python3", "-c", START, *ranks]
        sessions = [
            (
                self.hosts[host]["address"],
                shlex.join(["docker", "exec", "by-hand", "python3", "-c", SESSION, *work]),
            )
            for host, work in works.items()
        ]
        with connect_all.program(*login_of(data), sessions) as run:
            subprocess.run([*run, *MODULES], check=True)
        return time.perf_counter() - start

    def _keys(self) -> Path:
        keys = Path(tempfile.mkdtemp(dir=self.folder))
        for name in ("user", "host"):
            subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", keys / name], check=True)
        return keys

    def _launch(self, addresses: dict[str, str], words: Sequence[str]) -> list[str]:
        where = ",".join(f"{addresses[host]}:1" for host in self.hosts)
        agent = ["--mca", "plm_rsh_agent", "ssh -F /k/ssh_config"]
        return ["mpirun", "--allow-run-as-root", *agent, "-H", where, "-np", str(len(self.hosts)), *words]

    def _start(self, host: str, addresses: dict[str, str], keys: Path) -> str:
        """Return the script that writes the files of a host and starts its container."""
        pinned = (keys / "host.pub").read_text().split()
        known = "".join(f"[{one}]:{PORT} {pinned[0]} {pinned[1]}\n" for one in addresses.values())
        client = f"Port {PORT}\nUser root\nIdentityFile /k/user\nUserKnownHostsFile /k/known\n"
        server = (
            f"ListenAddress {addresses[host]}:{PORT}\nHostKey /k/host\nAuthorizedKeysFile /k/user.pub\n"
            "PasswordAuthentication no\nStrictModes no\nPermitRootLogin prohibit-password\nUsePAM no\n"
            "PidFile none\nSetEnv PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin\n"
        )
        files = {"known": known, "ssh_config": client, "sshd_config": server}
        files |= {name: (keys / name).read_text() for name in ("user", "user.pub", "host")}
        write = "".join(f"cat >~/by-hand/{name} <<'EOF'\n{text}EOF\n" for name, text in files.items())
        what = "sleep infinity" if host == self.main else SSHD
        wait = "until docker logs by-hand 2>&1 | grep -q listening; do sleep 0.1; done\n"
        return (
            f"umask 077\nmkdir -p ~/by-hand\n{write}docker rm -f by-hand >/dev/null 2>&1\n"
            f"docker run -d --init --network host --name by-hand -v ~/by-hand:/from:ro {self.image}"
            f" sh -c 'mkdir -p /run/sshd /k && cp /from/* /k/ && {what}' >/dev/null\n"
            f"{'' if host == self.main else wait}"
        )

    def down(self) -> None:
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            list(
                pool.map(
                    lambda h: self.ssh(h, "docker rm -f by-hand >/dev/null; rm -rf ~/by-hand"), self.hosts
                )
            )


def ours(folder: str) -> tuple[float, dict[str, float]]:
    """Do the same with toolkit; neither case sends code. Return the seconds in total, and of each phase."""
    start = time.perf_counter()
    subprocess.run([TOOLKIT, "up"], check=True, capture_output=True)
    up_took = time.perf_counter() - start
    words = ("run", "--launcher", "mpirun", "--no-fold", "--workdir", folder, "--", *WORDS)
    job = subprocess.Popen([TOOLKIT, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert job.stdout is not None
    took = next(time.perf_counter() - start for line in job.stdout if "a word" in line)
    job.communicate()
    assert job.returncode == 0
    said = subprocess.run([TOOLKIT, "report", "--json"], check=True, capture_output=True, cwd=folder)
    return took, phases(json.loads(said.stdout), up_took, took - up_took)


def phases(report: dict[str, Any], up_took: float, run_took: float) -> dict[str, float]:
    """Return the seconds of each phase, from the spans of a job's report.

    Hosts work in parallel: a phase lasts from the end of the previous phase until its last host has finished.

    Args:
        up_took, run_took: seconds of `up`, and of `run` until the first line, as the caller measured them.
    """
    found = {"up: Python and its modules, output": up_took}
    for span in spans_by_phase(report["up"]):
        found[f"up: {span[0]}"] = span[1]
        found["up: Python and its modules, output"] -= span[1]
    found["run: Python and its modules, output"] = run_took
    prepared = spans_by_phase(report["preparation"])
    started = min(rank["starts"][0] for rank in report["ranks"])
    printed = min(rank["first_output"] for rank in report["ranks"])
    job = (
        ("start the supervisor, leases and mpirun", started),
        ("from a rank's start to its line", printed - started),
    )
    for name, seconds in (*prepared, *job):
        found[f"run: {name}"] = seconds
        found["run: Python and its modules, output"] -= seconds
    return found


def spans_by_phase(spans: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    """Return name and duration of each phase, in the order of their ends."""
    ends: dict[str, float] = {}
    for span in spans:
        ends[span["phase"]] = max(ends.get(span["phase"], -1e9), span["begin"] + span["seconds"])
    begun = min(span["begin"] for span in spans)
    found = []
    for name, end in sorted(ends.items(), key=lambda pair: pair[1]):
        found.append((name, end - begun))
        begun = end
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    file = Path(os.environ.get("TOOLKIT_HOSTS", ""))
    if not file.is_file():
        print("S4  skipped: no practice cluster; toolkit lab up, then set TOOLKIT_HOSTS")
        return
    with tempfile.TemporaryDirectory() as folder:
        data = yaml.safe_load(file.read_text())
        script = Script(data, Path(folder))
        found, lasted = [], []
        for _ in range(rounds):
            by_hand = script.run()
            script.down()
            least = script.lower_bound(data)
            script.down()
            with tempfile.TemporaryDirectory() as empty:
                took, each = ours(empty)
            found.append((by_hand, least, took))
            lasted.append(each)
            subprocess.run([TOOLKIT, "down", "--no-save"], check=True, capture_output=True)
    print(f"S4  {len(script.hosts)} hosts, image there, until the first word; median of {rounds} in turn")
    for index, name in enumerate(("by hand", "lower bound", "toolkit up, run")):
        ratios = sorted(row[index] / row[0] for row in found)
        seconds = statistics.median(row[index] for row in found)
        spread = f"{statistics.median(ratios):.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"    {name:15}  {seconds:.2f} s  ratio {spread}")
    print("    target of the last ratio: 1.5 at 8 hosts")
    for name in lasted[0]:
        print(f"    {statistics.median(each.get(name, 0.0) for each in lasted):5.2f} s  {name}")


if __name__ == "__main__":
    main()
