"""Makes docs/img and the output in README.md from a real run on practice hosts. usage: make.py [NAME]

NAME is the name of the practice cluster that is created for the run (default: pictures).
Needs Docker, the CPU image, and Chromium for the picture of a report.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from svg import THEMES, Shown, draw
from terminal import Command, record

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
IMAGES = ROOT / "docs" / "img"
React = Callable[[str, int], None]
TOOLKIT = Path(sys.executable).with_name("toolkit")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TITLE = "three practice hosts, no GPU; waiting times shortened"
# Of a command that prints more, its first and its last lines are shown.
MOST_LINES = 15
TYPED_S, GAP_S = 0.5, 0.12
KILLED = "# in another terminal: kill -9 of rank 1 on box2"


class Session:
    """Runs commands of toolkit in a folder, as a user would."""

    def __init__(self, folder: Path, hosts: Path) -> None:
        self.folder = folder
        path = f"{TOOLKIT.parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "TOOLKIT_HOSTS": str(hosts), "PATH": path}
        self.env.pop("COLUMNS", None)

    def run(
        self, words: str, code: int | None = 0, react: Callable[[str, int], None] | None = None
    ) -> Command:
        done = record(words.split(), self.folder, self.env, react or (lambda text, terminal: None))
        done.words = words
        if code is not None and done.code != code:
            raise SystemExit("\n".join([f"{words} ended with {done.code}:", *done.lines]))
        return done

    def run_with_a_killed_rank(self, words: str) -> Command:
        """Run a job and kill a rank; once a rank of the second attempt hangs, detach from the job."""
        began = time.monotonic()
        done: dict[str, float] = {}

        def once(name: str, seconds: float, action: Callable[[], object]) -> None:
            if name not in done:
                done[name] = time.monotonic() - began
                threading.Timer(seconds, action).start()

        def react(text: str, terminal: int) -> None:
            if "step  80" in text:
                once("killed", 0, self._kill_rank)
            if "step 180" in text:
                once("hangs", 8, lambda: os.write(terminal, b"\x03"))
            if "^C" in text:
                once("asked", 1.5, lambda: os.write(terminal, b"d\n"))

        command = self.run(words, None, react)  # to detach has an exit code of its own
        place = sum(when <= done["killed"] for when in command.times)
        command.lines.insert(place, KILLED)
        command.times.insert(place, done["killed"])
        return command

    def _kill_rank(self) -> None:
        code = "import os, pathlib; os.kill(int(pathlib.Path('/tmp/rank.pid').read_text()), 9)"
        words = [str(TOOLKIT), "exec", "box2", "--", "python3", "-c", code]
        subprocess.run(words, env=self.env, check=True, stdout=subprocess.DEVNULL)


def shortened(command: Command, most: int = MOST_LINES) -> Command:
    """Return the first and last lines, and between them what toolkit itself printed."""
    if len(command.lines) <= most:
        return command
    half = most // 2
    kept: list[int] = []
    for number, line in enumerate(command.lines):
        own = line.startswith(("[toolkit]", "# "))
        near = any(
            command.lines[each].startswith(("[toolkit]", "# "))
            for each in range(max(0, number - 1), min(len(command.lines), number + 3))
        )
        if number < half or number >= len(command.lines) - half or own or (near and "step" in line):
            kept.append(number)
    lines, times, last = [], [], -1
    for number in kept:
        if number != last + 1:
            lines.append("  …")
            times.append(command.times[number])
        lines.append(command.lines[number])
        times.append(command.times[number])
        last = number
    return Command(command.words, lines, times, command.code)


def timed(commands: list[Command], seconds: float) -> list[Shown]:
    """Return all lines at the times of the picture: pauses are shortened, their order stays."""
    shown: list[Shown] = []
    now = 0.0
    for command in commands:
        shown.append(Shown(f"$ {command.words}", now, TYPED_S))
        now += TYPED_S + 0.3
        before = 0.0
        for line, when in zip(command.lines, command.times, strict=True):
            now += min(max(0.0, when - before) * 0.25, 0.6)
            before = max(before, when)
            shown.append(Shown(line, now))
        now += 0.9
        shown.append(Shown("", now))
    shown.pop()
    factor = seconds / shown[-1].at
    return [Shown(each.text, each.at * factor, each.typed_s * factor) for each in shown]


def write_block(name: str, commands: list[Command]) -> None:
    """Replace the block of README.md behind the comment ``session: NAME``."""
    page = ROOT / "README.md"
    lines = [line for each in commands for line in (f"$ {each.words}", *each.lines)]
    text = "\n".join(line.rstrip() for line in lines)
    mark = re.compile(rf"(<!-- session: {name} -->\n```console\n).*?\n```", re.DOTALL)
    old = page.read_text(encoding="utf-8")
    page.write_text(mark.sub(lambda match: f"{match[1]}{text}\n```", old), encoding="utf-8")


def last(command: Command, count: int, first: int = 0) -> Command:
    """Return the first and the last lines of a command."""
    if first + count >= len(command.lines):
        return command
    lines = [*command.lines[:first], "  …", *command.lines[-count:]]
    return Command(command.words, lines, [0.0] * len(lines), command.code)


def shoot(browser: str, page: Path, name: str, width: int, height: int) -> None:
    """Write a picture of the head of a page."""
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    target = IMAGES / f"{name}.png"
    words += [f"--screenshot={target}", f"--window-size={width},{height}", page.as_uri()]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"wrote docs/img/{name}.png")


def first_run(name: str, folder: Path, hosts: str) -> None:
    """Write the first run of README.md, from `init` to `down`, with two of the hosts."""
    two = yaml.safe_load(hosts)
    two["hosts"] = {host: two["hosts"][host] for host in ("box1", "box2")}
    two["known_hosts"] = str(folder / "recorded")
    (folder / "two.yaml").write_text(yaml.safe_dump(two), encoding="utf-8")
    session = Session(folder, folder / "two.yaml")
    (folder / "hosts.yaml").unlink(missing_ok=True)
    commands = [session.run("toolkit init box1 box2"), last(session.run("toolkit trust --yes"), 1, 1)]
    (folder / "hosts.yaml").write_text((folder / "two.yaml").read_text(), encoding="utf-8")
    commands[-1].words = "toolkit trust"
    commands.append(last(session.run("toolkit up --hosts hosts.yaml"), 1))
    commands.append(last(session.run("toolkit smoke"), 2))
    shutil.copytree(ROOT / "examples" / "digits", folder / "digits", dirs_exist_ok=True)
    commands.append(last(session.run("toolkit run --workdir digits train_ddp.py"), 2))
    commands.append(last(session.run("toolkit down"), 2))
    write_block("first run", commands)


def problems(name: str, folder: Path, hosts: str) -> None:
    """Write what `check` prints about a folder that is missing on one host."""
    for host in ("box1", "box2"):
        subprocess.run(
            ["docker", "exec", f"toolkit-lab-{name}-{host}", "mkdir", "-p", "/scratch/imagenet"], check=True
        )
    file = folder / "mounts.yaml"
    file.write_text(f"{hosts}\nmounts: [/scratch/imagenet:/data:ro]\n", encoding="utf-8")
    write_block("check", [Session(folder, file).run("toolkit check", code=1)])


def picture(folder: Path, hosts: str) -> None:
    """Draw the session in a terminal, and write what `why` prints in it."""
    file = folder / "three.yaml"
    file.write_text(hosts, encoding="utf-8")
    session = Session(folder, file)
    commands = [session.run("toolkit up")]
    commands.append(session.run_with_a_killed_rank("toolkit run --max-restarts 1 train.py"))
    why = session.run("toolkit why")
    commands += [why, session.run("toolkit stop"), session.run("toolkit report -o report.html")]
    commands.append(session.run("toolkit down"))
    write_block("why", [why])
    lines = timed([shortened(command) for command in commands], 21)
    for theme in THEMES:
        text = draw(lines, TITLE, theme)
        (IMAGES / f"session-{theme}.svg").write_text(text, encoding="utf-8")
        print(f"wrote docs/img/session-{theme}.svg: {len(text) // 1000} kB")


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "pictures"
    browser = next((found for word in BROWSERS if (found := shutil.which(word))), None)
    if browser is None:
        raise SystemExit(f"no browser found; install one of {', '.join(BROWSERS)}")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copy(HERE / "train.py", folder)
        lab = [str(TOOLKIT), "lab"]
        subprocess.run([*lab, "up", "--name", name, "--count", "3"], cwd=folder, check=True)
        try:
            # The name of the cluster in the pictures.
            hosts = (folder / ".lab" / name / "hosts.yaml").read_text(encoding="utf-8")
            hosts = hosts.replace(f'cluster: "{name}"', "cluster: demo\nlauncher: auto")
            picture(folder, hosts)
            first_run(name, folder, hosts)
            problems(name, folder, hosts)
        finally:
            subprocess.run([*lab, "down", "--name", name], cwd=folder, check=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
