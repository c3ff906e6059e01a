"""On a practice host, as root: looks, waits and strikes there, so that no round trip lies between.

One request per line on standard input, one answer per line on standard output; of the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

TICK_S = 0.03
CLUSTER_MARK = "TOOLKIT_CLUSTER"
JOB_MARKS = ("TOOLKIT_JOB", "TOOLKIT_SUPERVISOR")


def processes() -> Iterator[tuple[int, str, dict[str, str]]]:
    """Number, words and environment of each process that still has an environment."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                pairs = Path(f"/proc/{name}/environ").read_bytes().decode(errors="replace").split("\0")
                words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")
                if words:
                    env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                    yield int(name), words.replace("\0", " ").strip(), env


def find(words: str, mark: str, cluster: str) -> list[int]:
    """Processes of a cluster with such words and a mark."""
    return [
        pid
        for pid, said, env in processes()
        if env.get(CLUSTER_MARK) == cluster and re.search(words, said) and (not mark or mark in env)
    ]


def of_jobs(cluster: str) -> list[str]:
    """Processes of a cluster's jobs."""
    return [
        f"{pid} {words[:80]}"
        for pid, words, env in processes()
        if env.get(CLUSTER_MARK) == cluster and any(each in env for each in JOB_MARKS)
    ]


def met(condition: dict[str, Any], before: dict[str, Any], cluster: str) -> bool:
    if "glob" in condition:
        return not files(condition["glob"]) <= before["files"]
    if "login" in condition:
        return logins() > int(before["logins"])
    if "words" in condition:
        return bool(find(condition["words"], condition["mark"], cluster))
    return True


def files(pattern: str) -> set[str]:
    return {str(path) for path in Path("/").glob(pattern.lstrip("/"))} if pattern else set()


def logins() -> int:
    try:
        return Path("/var/log/sshd.log").read_bytes().count(b"Accepted publickey")
    except OSError:
        return 0


def shell(text: str) -> tuple[int, str]:
    done = subprocess.run(["bash", "-c", text], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def strike(effect: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Do it; ``done`` says whether there was anything to do it to."""
    if "shell" in effect:
        code, said = shell(effect["shell"])
        return {"done": code == 0, "said": said.strip()[-500:], "at": time.time()}
    if "signal" in effect:
        number = getattr(signal, effect["signal"])
        found = find(effect["words"], effect["mark"], cluster)
        at = time.time()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return {"done": bool(found), "said": f"{effect['signal']} to {found}", "at": at}
    return {"done": True, "said": "", "at": time.time()}


def wait(request: dict[str, Any]) -> dict[str, Any]:
    """Wait for a condition, then do what is asked."""
    cluster, condition = request["cluster"], request["until"]
    before = {"files": files(condition.get("glob", "")), "logins": logins()}
    answer({"n": request["n"], "ready": True})
    deadline = time.monotonic() + request["seconds"]
    while not met(condition, before, cluster):
        if time.monotonic() > deadline or request["n"] in cancelled:
            return {"met": False, "done": False, "said": "", "at": time.time()}
        time.sleep(TICK_S)
    return {"met": True, **strike(request["effect"], cluster)}


def gone(request: dict[str, Any]) -> dict[str, Any]:
    """Wait until nothing of a job is here for a moment together; when that was, or what is here."""
    deadline = time.monotonic() + request["seconds"]
    since: float | None = None
    while True:
        here = of_jobs(request["cluster"])
        since = None if here else since or time.time()
        if since is not None and time.time() - since > 0.3:
            return {"at": since, "here": []}
        if time.monotonic() > deadline or request["n"] in cancelled:
            return {"at": None, "here": here}
        time.sleep(2 * TICK_S)


def checkpoint(folder: str) -> dict[str, Any]:
    """The newest complete checkpoint: its step, and what is wrong with it."""
    names = [path.name for path in Path(folder).iterdir() if re.fullmatch(r"ckpt-\d+", path.name)]
    if not names:
        return {"step": None, "wrong": ""}
    newest = max(names, key=lambda name: int(name.split("-")[1]))
    data = Path(folder, newest).read_bytes()
    digest, body = data[:64], data[64:]
    right = hashlib.sha256(body).hexdigest().encode() == digest and body
    return {"step": int(newest.split("-")[1]), "wrong": "" if right else f"{newest} is not whole"}


def serve(request: dict[str, Any]) -> None:
    do = request["do"]
    try:
        if do == "wait":
            said = wait(request)
        elif do == "gone":
            said = gone(request)
        elif do == "strike":
            said = strike(request["effect"], request["cluster"])
        elif do == "checkpoint":
            said = checkpoint(request["folder"])
        else:
            code, text = shell(request["text"])
            said = {"code": code, "said": text}
    except Exception as error:
        said = {"error": repr(error)}
    answer({"n": request["n"], **said})


lock = threading.Lock()
cancelled: set[int] = set()


def answer(reply: dict[str, Any]) -> None:
    with lock:
        os.write(1, json.dumps(reply).encode() + b"\n")


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "cancel":
            cancelled.add(request["which"])
        else:
            threading.Thread(target=serve, args=(request,), daemon=True).start()


if __name__ == "__main__":
    main()
