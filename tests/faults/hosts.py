"""Practice hosts from outside the toolkit: an agent on each, and the engine that plays them."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

AGENT = "/run/toolkit-faults.py"  # told apart by this path in the census
_SOURCE = Path(__file__).with_name("agent.py")


class HostGone(Exception):
    """The agent does not answer: the host is off, frozen, or was restarted."""


class Asked:
    """An answer that is to come."""

    def __init__(self, agent: Agent, number: int) -> None:
        self._agent, self.number = agent, number
        self.answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def get(self, seconds: float) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            HostGone: none came.
        """
        try:
            reply = self.answers.get(timeout=seconds)
        except queue.Empty:
            raise HostGone(f"{self._agent.host} does not answer") from None
        if reply is None:
            raise HostGone(f"{self._agent.host} has gone")
        if "error" in reply:
            raise HostGone(f"{self._agent.host}: {reply['error']}")
        return reply

    def cancel(self) -> None:
        self._agent.send({"n": 0, "do": "cancel", "which": self.number})


class Agent:
    """The process on one host that looks and strikes for us; started when it is first needed."""

    def __init__(self, host: str, container: str) -> None:
        self.host, self.container = host, container
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Asked] = {}

    def ask(self, do: str, **words: Any) -> Asked:
        """Begin something on the host.

        Raises:
            HostGone: no process can be started there.
        """
        self._ensure()
        with self._lock:
            self._number += 1
            asked = Asked(self, self._number)
            self._waiting[asked.number] = asked
        self.send({"n": asked.number, "do": do, **words})
        return asked

    def sh(self, text: str, seconds: float = 60) -> str:
        """Return what a shell command on the host prints."""
        return str(self.ask("sh", text=text).get(seconds)["said"])

    def send(self, request: dict[str, Any]) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with self._lock, suppress(OSError, ValueError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        docker = ["docker", "exec", "-i", self.container]
        try:
            subprocess.run(
                [*docker, "sh", "-c", f"cat >{AGENT}"],
                input=_SOURCE.read_bytes(),
                check=True,
                capture_output=True,
                timeout=20,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise HostGone(f"{self.host}: {error}") from error
        self._process = subprocess.Popen(
            [*docker, "python3", "-u", AGENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with suppress(ValueError, KeyError):
                reply = json.loads(line)
                self._waiting[reply["n"]].answers.put(reply)
        with self._lock:
            left, self._waiting = list(self._waiting.values()), {}
        for asked in left:
            asked.answers.put(None)


def docker(*words: str, seconds: float = 60) -> str:
    """Call the engine of this machine, which plays the hosts; return what it says."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=seconds, check=False)
    return (done.stdout + done.stderr).strip()
