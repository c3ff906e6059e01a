"""Verifies that main can log in to each host through the cluster's own sshd."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from toolkit.container.conventions import fail, ssh_args
from toolkit.protocol.outcomes import EXIT_USAGE

AT_ONCE = 16
LIMIT_S = 30.0  # longer than ConnectTimeout in ssh_config: for a host that accepts and then hangs


def prove(host: str) -> str | None:
    """Return None if an authenticated no-op on `host` succeeded, otherwise ssh's last line."""
    try:
        done = subprocess.run(
            ssh_args(host, ["true"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S:.0f} s"
    except OSError as error:
        return f"cannot start ssh: {error.strerror}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"ssh exited with status {done.returncode}"


def main() -> int:
    hosts = [word.partition("=")[0] for word in sys.argv[1:]]
    if not hosts or any(host.startswith("-") for host in hosts):
        fail(EXIT_USAGE, "usage: check.login HOST[=CONTAINER]...")
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        outcome = dict(pool.map(lambda host: (host, prove(host)), hosts))
    failures = {host: why for host, why in outcome.items() if why}
    print(json.dumps(outcome))
    for host, why in failures.items():
        print(f"{host}: {why}", file=sys.stderr)
    return 1 if failures else 0
