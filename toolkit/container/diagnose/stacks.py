"""Python stacks of other processes by py-spy, each frame with its line of source."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

STACK_S = 5.0  # py-spy needs this time for a process with many threads
MOST_FRAMES = 60
# Python 3.11 can raise SystemError if several threads build syntax trees (python/cpython#106905).
_PARSING = threading.Lock()
USUAL = "/opt/venv/bin:/usr/local/bin:/usr/bin"


def finder() -> str:
    """Return the path of py-spy, empty if the image has none."""
    # The PATH of an SSH session can differ from the image's.
    return shutil.which("py-spy") or shutil.which("py-spy", path=f"{sys.prefix}/bin:{USUAL}") or ""


def is_python(pid: int) -> bool:
    """Return whether the process runs an interpreter that py-spy can read."""
    try:
        return Path(f"/proc/{pid}/exe").resolve().name.startswith("python")
    except OSError:
        return False


def stack_of(spy: str, pid: int, state: str, until: float) -> tuple[list[dict[str, Any]], str]:
    """Return the process's threads with their frames, innermost first, and the reason if there are none.

    Args:
        until: end of py-spy's time by the monotonic clock.
    """
    threads: list[dict[str, Any]] = []
    # Do not stop the process: one that was stopped before would continue afterwards.
    ways: list[list[str]] = [["--nonblocking"]]
    if state not in "TtDZ":
        ways.append([])  # a running process can change during the sample
    problem = ""
    for way in ways:
        limit = max(0.1, min(STACK_S, until - time.monotonic()))
        try:
            done = subprocess.run(
                [spy, "dump", "--json", "--full-filenames", *way, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit,
            )
            threads = json.loads(done.stdout) if done.returncode == 0 else []
            problem = _words(done.stderr)
        except subprocess.TimeoutExpired:
            problem = f"py-spy did not exit within {limit:.2g} s"
        except (OSError, ValueError) as error:
            problem = str(error)
        if threads or time.monotonic() >= until:
            break
    sources = Sources(pid)
    return [_thread(thread, pid, sources) for thread in threads], "" if threads else problem


def _words(said: bytes) -> str:
    """Return py-spy's error: the innermost of the causes that it prints."""
    lines = [
        line.strip() for line in said.decode(errors="replace").partition("Stack backtrace")[0].splitlines()
    ]
    words = [line for line in lines if line and not line.startswith(("Caused by", "Python v", "Process "))]
    return words[-1] if words else ""


def _thread(thread: dict[str, Any], pid: int, sources: Sources) -> dict[str, Any]:
    first = thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
    frames = [_frame(frame, sources) for frame in thread.get("frames", ())[:MOST_FRAMES]]
    return {"name": thread.get("thread_name") or "", "first": first, "frames": frames}


def _frame(frame: dict[str, Any], sources: Sources) -> dict[str, Any]:
    file, line = str(frame.get("filename") or ""), int(frame.get("line") or 0)
    text, handler = sources.at(file, line)
    return {"name": frame.get("name") or "", "file": file, "line": line, "text": text, "handler": handler}


def is_library(file: str) -> bool:
    """Return whether a file belongs to Python or a package, not to the user's program."""
    return file.startswith("<frozen") or any(
        part in file for part in ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")
    )


class Sources:
    """Source lines of the user's files, with a flag for lines of exception handlers."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._files: dict[str, tuple[list[str], list[tuple[int, int]]]] = {}

    def at(self, file: str, line: int) -> tuple[str, bool]:
        if is_library(file):
            return "", False
        if file not in self._files:
            self._files[file] = self._read(file)
        lines, handlers = self._files[file]
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return text[:200], any(first <= line <= last for first, last in handlers)

    def _read(self, file: str) -> tuple[list[str], list[tuple[int, int]]]:
        text = ""
        with suppress(OSError, ValueError):
            if file == "<string>":
                words = Path(f"/proc/{self._pid}/cmdline").read_bytes().split(b"\0")
                text = words[words.index(b"-c") + 1].decode(errors="replace")
            else:
                root = f"/proc/{self._pid}/root" if file.startswith("/") else f"/proc/{self._pid}/cwd/"
                text = Path(f"{root}{file}").read_text(errors="replace")
        return text.splitlines(), handlers_in(text)


def handlers_in(text: str) -> list[tuple[int, int]]:
    """Return the first and last line of each exception handler in a program."""
    try:
        with _PARSING:
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [
        (node.body[0].lineno, node.end_lineno or node.body[-1].lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
    ]
