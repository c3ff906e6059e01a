"""Makes docs/img from a real run on practice hosts: a terminal, and the page of a job. usage: make.py [NAME]

NAME is of the lab that is made for it. Needs Docker, the CPU image, and Chromium for the page.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "img"
TOOLKIT = Path(sys.executable).with_name("toolkit")
WIDTH = 108
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Of the merged log of a run so many lines are enough.
MOST_LINES = 14


class Terminal:
    """Runs commands in a folder and draws what a person would have seen."""

    def __init__(self, folder: Path, hosts: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "TOOLKIT_HOSTS": str(hosts), "COLUMNS": str(WIDTH)}
        self.console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)

    def run(self, *words: str, shown: bool = True) -> str:
        """Run a verb; returns what it said."""
        done = subprocess.run(
            [str(TOOLKIT), *words], cwd=self.folder, env=self.env, stdout=-1, stderr=-2, text=True
        )
        if done.returncode:
            raise SystemExit(f"toolkit {' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
        if shown:
            self.console.print(Text.assemble(("$ ", "bold green"), (f"toolkit {' '.join(words)}", "bold")))
            for line in shortened(done.stdout.splitlines()):
                self.console.print(Text(line if len(line) < WIDTH else line[: WIDTH - 2] + "…"))
            self.console.print()
        return done.stdout

    def draw(self, name: str, title: str) -> None:
        """Write what was shown since the last time as a picture."""
        text = self.console.export_svg(title=title, unique_id=name)
        # The fonts that it names are elsewhere: whoever looks has another of that kind.
        text = re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL)
        (IMAGES / f"{name}.svg").write_text(text, encoding="utf-8")
        print(f"wrote docs/img/{name}.svg")


def shortened(lines: list[str]) -> list[str]:
    """Return the first and the last lines, and between them what the toolkit itself has said."""
    half = MOST_LINES // 2
    if len(lines) <= MOST_LINES:
        return lines
    told = [line for line in lines[half:-half] if line.startswith("[toolkit]")]
    return [*lines[:half], "  …", *([*told, "  …"] if told else []), *lines[-half:]]


def shoot(browser: str, page: Path, name: str, width: int, height: int, dark: bool = False) -> None:
    """Write a picture of the head of a page."""
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += ["--blink-settings=preferredColorScheme=0"] if dark else []
    target = IMAGES / f"{name}.png"
    words += [f"--screenshot={target}", f"--window-size={width},{height}", page.as_uri()]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"wrote docs/img/{name}.png")


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "pictures"
    browser = next((found for word in BROWSERS if (found := shutil.which(word))), None)
    if browser is None:
        raise SystemExit(f"none of these is here: {', '.join(BROWSERS)}")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copy(ROOT / "scripts" / "pictures" / "train.py", folder)
        lab = [str(TOOLKIT), "lab"]
        subprocess.run([*lab, "up", "--name", name, "--count", "3"], cwd=folder, check=True)
        try:
            terminal = Terminal(folder, folder / ".lab" / name / "hosts.yaml")
            terminal.run(
                "image", "send", shown=False
            )  # once: how long that takes is not the picture's affair
            terminal.run("up")
            terminal.run("run", "--launcher", "torchrun", "--max-restarts", "1", "train.py")
            terminal.run("status")
            terminal.draw("first-job", "three hosts, one job")
            job = terminal.run("jobs", shown=False).splitlines()[-1].split()[0]
            terminal.run("bench", "network", "--most", "16", shown=False)
            terminal.run("report", job, "-o", "page.html", shown=False)
            page = folder / "page.html"
            shoot(browser, page, "report-light", 1000, 1500)
            shoot(browser, page, "report-dark", 1000, 1500, dark=True)
            shoot(browser, page, "report-phone", 500, 1500)
            terminal.run("down", "--no-save", shown=False)
        finally:
            subprocess.run([*lab, "down", "--name", name], cwd=folder, check=True)


if __name__ == "__main__":
    main()
