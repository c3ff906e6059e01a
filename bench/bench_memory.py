"""S8: memory of the command with 64 hosts: the most that `status` and a bare `--help` have had at once.

    toolkit lab up --count 8 && export TOOLKIT_HOSTS=…
    python bench/bench_memory.py

Eight hosts stand for sixty-four: each is in the file eight times, under an alias of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
# Where it is set, every command compiles all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
HOSTS = 64


def peak(*words: str, env: Mapping[str, str] = os.environ) -> float:
    """The largest resident set of the command in MiB, as the kernel tells when it has ended."""
    pid = os.posix_spawn(TOOLKIT, [TOOLKIT, *words], dict(env), file_actions=_QUIET)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 3), f"toolkit {' '.join(words)} ended with {code}"
    return usage.ru_maxrss / 1024


_QUIET = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]


def main() -> None:
    print(f"S8  toolkit --help           {peak('--help'):.0f} MiB")
    file = Path(os.environ.get("TOOLKIT_HOSTS", ""))
    if not file.is_file():
        print("S8  the rest skipped: no practice cluster; toolkit lab up --count 8, then set TOOLKIT_HOSTS")
        return
    data = yaml.safe_load(file.read_text())
    some = list(data["hosts"].values())
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        config = "".join(
            f"Host h{n}\n HostName {one['address']}\n User {one['user']}\n"
            f" IdentityFile {one['identity_file']}\n"
            for n, one in enumerate(some[n % len(some)] for n in range(HOSTS))
        )
        config += f"Host *\n UserKnownHostsFile {data['known_hosts']}\n"
        (folder / "config").write_text(config)
        ssh = folder / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        ssh.chmod(0o755)
        path = folder / "hosts.yaml"
        path.write_text(
            yaml.safe_dump({"cluster": "many", "image": "none", "hosts": [f"h{n}" for n in range(HOSTS)]})
        )
        env = {**os.environ, "TOOLKIT_HOSTS": str(path), "PATH": f"{folder}:{os.environ['PATH']}"}
        found = peak("status", env=env)
        done = subprocess.run([TOOLKIT, "status", "--json"], env=env, capture_output=True, check=False)
    told = json.loads(done.stdout)["hosts"]
    reached = sum(bool(host["docker"]) for host in told)
    print(f"S8  toolkit status, {HOSTS} hosts  {found:.0f} MiB  ({reached} answered; target 120 MiB)")


if __name__ == "__main__":
    main()
