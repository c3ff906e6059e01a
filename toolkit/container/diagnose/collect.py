"""Saves the state of a job's ranks on all hosts; the watchdog starts it, without a client.

The file goes to the job's folder on main, where `toolkit why` finds it even after the job has ended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toolkit.container.conventions import JOB_TAG, job_folder, program, ssh_args
from toolkit.container.diagnose.watchdog import EVIDENCE
from toolkit.container.files import write_json
from toolkit.container.job_file import Job, load_job
from toolkit.container.job_list import kept_status

LOOK_S = 30.0  # for one host, the connection included
MOST_FILES = 3  # of a job: a script that prints rarely stalls often, and a file contains stacks and dumps


def look_on(job: Job, host: str) -> dict[str, Any]:
    """Return the report of one host, or the error."""
    words = ["python3", *program("diagnose.inspect_ranks"), job["id"]]
    if host == job["main"]:
        argv = [sys.executable, *words[1:]]
    else:
        # With the job tag, so that the end of the job also ends it.
        argv = ssh_args(host, ["exec", "env", f"{JOB_TAG}={job['id']}", *words])
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOOK_S)
        if done.returncode == 0:
            report: dict[str, Any] = json.loads(done.stdout)
            report.pop("kept", None)  # otherwise each file would contain all earlier ones
            return report
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return {"host": host, "error": lines[-1] if lines else f"exit code {done.returncode}"}
    except subprocess.TimeoutExpired:
        return {"host": host, "error": f"did not answer within {LOOK_S:.0f} s", "is_predicate": True}
    except (OSError, ValueError) as error:
        return {"host": host, "error": str(error)}


def look_everywhere(job: Job, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the reports of main and of these hosts, queried in parallel."""
    hosts = list(dict.fromkeys([job["main"], *names]))
    with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
        return list(pool.map(lambda host: look_on(job, host), hosts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job_id")
    parser.add_argument("--why", default="", help="the reason that `toolkit why` prints")
    args = parser.parse_args()
    job = load_job(args.job_id)
    folder = job_folder(args.job_id) / EVIDENCE
    folder.mkdir(mode=0o700, exist_ok=True)
    at = time.time()
    # The hosts of an elastic job can have changed since its attempt began.
    slots = (kept_status(folder.parent) or {}).get("hosts") or {h["name"]: h["taken"] for h in job["hosts"]}
    hosts = look_everywhere(job, slots)
    path = folder / f"{at:017.3f}.json"
    write_json(path, {"at": at, "why": args.why, "slots": slots, "hosts": hosts})
    for old in sorted(folder.glob("*.json"))[:-MOST_FILES]:
        old.unlink(missing_ok=True)
    silent = [
        f"{host['host']}{'' if host.get('is_predicate') else ':'} {host['error']}"
        for host in hosts
        if host.get("error")
    ]
    reported = len(hosts) - len(silent)
    sys.stdout.write(json.dumps({"path": str(path), "hosts": reported, "silent": silent}) + "\n")
    return 0
