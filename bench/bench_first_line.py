"""S4: `toolkit up` and `run` to the first line of output with the image present, and a hand-written script.

    toolkit lab up --count 3 && export TOOLKIT_HOSTS=… && toolkit image send
    python bench/bench_first_line.py --rounds 5

The script does the same work by hand: keys, an sshd in a container on every worker, mpirun in one on main. It
checks nothing, pins host keys from the files that it has just made, and binds sshd to the data address.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
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
        keys = Path(tempfile.mkdtemp(dir=self.folder))
        for name in ("user", "host"):
            subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", keys / name], check=True)
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            addresses = dict(zip(self.hosts, pool.map(self.address, self.hosts), strict=True))
            list(pool.map(lambda host: self._start(host, addresses, keys), self.hosts))
        where = ",".join(f"{addresses[host]}:1" for host in self.hosts)
        launch = (
            "docker exec by-hand mpirun --allow-run-as-root --mca plm_rsh_agent 'ssh -F /k/ssh_config'"
            f' -H {where} -np {len(self.hosts)} {WORDS[0]} {WORDS[1]} "{WORDS[2]}"'
        )
        said = self.ssh(self.main, launch)
        took = time.perf_counter() - start
        assert said.count("a word") == len(self.hosts), said
        return took

    def _start(self, host: str, addresses: dict[str, str], keys: Path) -> None:
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
        self._sent(host, write, what)

    def _sent(self, host: str, write: str, what: str) -> None:
        wait = "until docker logs by-hand 2>&1 | grep -q listening; do sleep 0.1; done\n"
        text = (
            f"umask 077\nmkdir -p ~/by-hand\n{write}docker rm -f by-hand >/dev/null 2>&1\n"
            f"docker run -d --init --network host --name by-hand -v ~/by-hand:/from:ro {self.image}"
            f" sh -c 'mkdir -p /run/sshd /k && cp /from/* /k/ && {what}' >/dev/null\n"
            f"{'' if host == self.main else wait}"
        )
        self.ssh(host, "sh -s", text.encode())

    def down(self) -> None:
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            list(
                pool.map(
                    lambda h: self.ssh(h, "docker rm -f by-hand >/dev/null; rm -rf ~/by-hand"), self.hosts
                )
            )


def ours(folder: str) -> float:
    """Do the same with toolkit; neither case sends code."""
    start = time.perf_counter()
    subprocess.run([TOOLKIT, "up"], check=True, capture_output=True)
    words = ("run", "--launcher", "mpirun", "--no-fold", "--workdir", folder, "--", *WORDS)
    job = subprocess.Popen([TOOLKIT, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert job.stdout is not None
    took = next(time.perf_counter() - start for line in job.stdout if "a word" in line)
    job.communicate()
    assert job.returncode == 0
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    file = Path(os.environ.get("TOOLKIT_HOSTS", ""))
    if not file.is_file():
        print("S4  skipped: no practice cluster; toolkit lab up, then set TOOLKIT_HOSTS")
        return
    with tempfile.TemporaryDirectory() as folder:
        script = Script(yaml.safe_load(file.read_text()), Path(folder))
        pairs = []
        for _ in range(rounds):
            by_hand = script.run()
            script.down()
            with tempfile.TemporaryDirectory() as empty:
                pairs.append((by_hand, ours(empty)))
            subprocess.run([TOOLKIT, "down", "--no-save"], check=True, capture_output=True)
    ratios = sorted(b / a for a, b in pairs)
    print(f"S4  {len(script.hosts)} hosts, image there, until the first word; median of {rounds} in turn")
    print(f"    by hand          {statistics.median(a for a, _ in pairs):.2f} s")
    print(f"    toolkit up, run  {statistics.median(b for _, b in pairs):.2f} s")
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"    ratio            {statistics.median(ratios):.2f}  ({spread}; target 1.5 at 8)")


if __name__ == "__main__":
    main()
