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
from svg import COLUMNS, THEMES, Shown, draw
from terminal import Command, record

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
IMAGES = ROOT / "docs" / "img"
React = Callable[[str, int], None]
TOOLKIT = Path(sys.executable).with_name("toolkit")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TITLE = "three practice hosts, no GPU; waiting times shortened"
SECONDS, TYPED_S = 21, 0.6
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


def shortened(command: Command, first: int, final: int, kept: str = "$^") -> Command:
    """Return the first and final lines of a command, and those between them that match ``kept``."""
    count = len(command.lines)
    lines, times, before = [], [], -1
    for number, line in enumerate(command.lines):
        if first <= number < count - final and not re.search(kept, line):
            continue
        if number != before + 1:
            lines.append("  …")
            times.append(command.times[number])
        lines.append(line)
        times.append(command.times[number])
        before = number
    return Command(command.words, lines, times, command.code)


def timed(commands: list[tuple[Command, float]], seconds: float) -> list[Shown]:
    """Return all lines at their times in the picture. Pauses are shortened; the order stays.

    Args:
        commands: each with the seconds for which its output can be read before the next one.
        seconds: length of the picture.
    """
    shown: list[Shown] = []
    now = 0.0
    for command, read_s in commands:
        shown.append(Shown(f"$ {command.words}", now, TYPED_S))
        now += TYPED_S
        before = 0.0
        for line, when in zip(command.lines, command.times, strict=True):
            now += min(max(0.0, when - before) * 0.25, 0.5)
            before = max(before, when)
            shown += [Shown(line[at : at + COLUMNS], now) for at in range(0, max(1, len(line)), COLUMNS)]
        now += read_s
        shown.append(Shown("", now))
    shown.pop()
    factor = seconds / shown[-1].at
    return [Shown(each.text, each.at * factor, each.typed_s * factor) for each in shown]


def write_block(name: str, commands: list[Command]) -> None:
    """Replace the block of README.md behind the comment ``session: NAME``."""
    page = ROOT / "README.md"
    lines = [line for each in commands for line in (f"$ {each.words}", *each.lines)]
    text = "\n".join(line.rstrip() for line in lines).strip("\n")
    text = re.sub(r"\n*\n(  …)\n+", r"\n\1\n", text)  # no empty lines beside omitted ones
    mark = re.compile(rf"(<!-- session: {name} -->\n```console\n).*?\n```", re.DOTALL)
    old = page.read_text(encoding="utf-8")
    page.write_text(mark.sub(lambda match: f"{match[1]}{text}\n```", old), encoding="utf-8")


def shoot(browser: str, page: Path, name: str, width: int, height: int) -> None:
    """Write a picture of the head of a page."""
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    target = IMAGES / f"{name}.png"
    words += [f"--screenshot={target}", f"--window-size={width},{height}", page.as_uri()]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"wrote docs/img/{name}.png")


def first_run(folder: Path, hosts: str) -> None:
    """Write the first run of README.md, from `init` to `down`, with two of the hosts."""
    shutil.copytree(ROOT / "examples" / "digits", folder)
    shutil.copy(folder / "train_ddp.py", folder / "train.py")
    two = yaml.safe_load(hosts)
    two["hosts"] = {host: two["hosts"][host] for host in ("box1", "box2")}
    two["known_hosts"] = str(folder.with_name("recorded"))
    file = folder.with_name("two.yaml")
    file.write_text(yaml.safe_dump(two), encoding="utf-8")
    session = Session(folder, file)
    commands = [session.run("toolkit init box1 box2"), session.run("toolkit trust --yes")]
    commands[1] = Command("toolkit trust", [commands[1].lines[0], "  …"], [], 0)
    # The written file has no user and key of practice hosts.
    shutil.copy(file, folder / "hosts.yaml")
    commands.append(shortened(session.run("toolkit up --hosts hosts.yaml"), 0, 1))
    commands.append(shortened(session.run("toolkit smoke"), 0, 1))
    commands.append(shortened(session.run("toolkit run train.py"), 1, 2))
    commands.append(shortened(session.run("toolkit down"), 0, 1))
    write_block("first run", commands)


def problems(name: str, folder: Path, hosts: str) -> None:
    """Write what `check` prints about a folder that is missing on one host."""
    for host in ("box1", "box2"):
        subprocess.run(
            ["docker", "exec", f"toolkit-lab-{name}-{host}", "mkdir", "-p", "/scratch/imagenet"], check=True
        )
    file = folder / "mounts.yaml"
    file.write_text(f"{hosts}\nmounts: [/scratch/imagenet:/data:ro]\n", encoding="utf-8")
    check = Session(folder, file).run("toolkit check --quick", code=1)
    write_block("check", [shortened(check, 2, 1)])


def picture(folder: Path, hosts: Path) -> None:
    """Draw the session in a terminal, and write what `why` prints in it."""
    session = Session(folder, hosts)
    up = session.run("toolkit up")
    run = session.run_with_a_killed_rank("toolkit run --max-restarts 1 train.py")
    why = session.run("toolkit why")
    stop, report = session.run("toolkit stop"), session.run("toolkit report -o report.html")
    down = session.run("toolkit down")
    write_block("why", [shortened(why, 7, 0)])
    shown = [
        (shortened(up, 4, 3), 0.8),
        (shortened(run, 1, 3, r"^job |^\[toolkit\] (rank|restart)|^# |\] step |^\^C"), 0.8),
        (why, 3.5),
        (stop, 0.3),
        (report, 0.8),
        (shortened(down, 1, 7), 0.0),
    ]
    lines = timed(shown, SECONDS)
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
        lab = [str(TOOLKIT), "lab"]
        subprocess.run([*lab, "up", "--name", name, "--count", "3"], cwd=folder, check=True)
        try:
            # The name of the cluster in the pictures.
            hosts = (folder / ".lab" / name / "hosts.yaml").read_text(encoding="utf-8")
            hosts = hosts.replace(f'cluster: "{name}"', "cluster: demo\nlauncher: auto")
            work = folder / "work"
            work.mkdir()
            shutil.copy(HERE / "train.py", work)
            (folder / "three.yaml").write_text(hosts, encoding="utf-8")
            picture(work, folder / "three.yaml")
            shoot(browser, work / "report.html", "report-light", 1000, 1500)
            first_run(folder / "digits", hosts)
            problems(name, folder, hosts)
        finally:
            subprocess.run([*lab, "down", "--name", name], cwd=folder, check=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
