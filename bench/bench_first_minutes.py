"""The first minutes of a new user, from ~/.ssh/config to a report: init, check, up, run, report, down.

    python bench/bench_first_minutes.py

On two practice hosts of its own that have no image yet, by other names in an SSH configuration of its own.
Every question is answered by Enter, but for the hosts' keys. The CPU image has to be here (`make image-cpu`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.terminal import Terminal

ROOT = Path(__file__).resolve().parent.parent
TOOLKIT = Path(sys.executable).with_name("toolkit")
# If it is set, every command compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
LAB = "minutes"


def configure(folder: Path, hosts: Path) -> dict[str, str]:
    """Write an SSH configuration with the practice hosts; return the environment that uses it."""
    rows = yaml.safe_load(hosts.read_text())["hosts"].values()
    known = folder / "known_hosts"
    text = f"Host *\n UserKnownHostsFile {known}\n"
    for number, one in enumerate(rows, 1):
        text += f"Host gpu{number}\n HostName {one['address']}\n User {one['user']}\n"
        text += f" IdentityFile {one['identity_file']}\n"
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(text)
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {home}/.ssh/config "$@"\n')
    ssh.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name != "TOOLKIT_HOSTS"}
    return {**env, "HOME": str(home), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def init(folder: Path, env: dict[str, str]) -> None:
    terminal = Terminal([str(TOOLKIT), "init"], folder, env)
    terminal.answer("which of them")
    for _ in range(2):
        terminal.answer("record this key?", "y")
    terminal.answer("name of the cluster?")
    terminal.answer("write hosts.yaml?")
    terminal.wait_for("next: toolkit check")
    assert terminal.process.wait(10) == 0


def main() -> None:
    lab = [str(TOOLKIT), "lab"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "work"
        folder.mkdir()
        shutil.copytree(ROOT / "examples" / "digits", folder / "digits")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True}
        # What a run that was killed has left.
        subprocess.run([*lab, "down", "--name", LAB], cwd=folder, **quiet)  # type: ignore[call-overload]
        subprocess.run([*lab, "up", "--name", LAB, "--count", "2"], cwd=folder, **quiet)  # type: ignore[call-overload]
        try:
            env = configure(Path(made), folder / ".lab" / LAB / "hosts.yaml")
            start = last = time.monotonic()
            verbs = ("check", "up", "run --workdir digits train_ddp.py", "report", "down")
            for line in ("init", *verbs):
                if line == "init":
                    init(folder, env)
                else:
                    words = [str(TOOLKIT), *line.split()]
                    subprocess.run(words, cwd=folder, env=env, **quiet)  # type: ignore[call-overload]
                now = time.monotonic()
                print(f"{now - last:6.1f} s  toolkit {line}", flush=True)
                last = now
            print(f"{last - start:6.1f} s  in all")
        finally:
            subprocess.run([*lab, "down", "--name", LAB], cwd=folder, **quiet)  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
