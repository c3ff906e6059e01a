"""Lists the jobs that main knows: one JSON object with each job's status, record and whether it is alive.

It is sent along rather than read on main, so that it also reads what an earlier toolkit left there.
"""

import json
import os
import sys


def read(*path):
    try:
        with open(os.path.join(*path), "rb") as file:
            return json.loads(file.read())
    except (OSError, ValueError):
        return None


def is_alive(pid, job):
    # The number of a process says nothing by itself: after a restart of the container another program
    # may have it, so the supervisor's own mark is looked for.
    try:
        with open(f"/proc/{int(pid)}/environ", "rb") as file:
            return f"TOOLKIT_SUPERVISOR={job}".encode() in file.read().split(b"\0")
    except (OSError, ValueError, TypeError):
        return False


def main():
    jobs = sys.argv[1]
    found = []
    for job in sorted(os.listdir(jobs)):
        status = read(jobs, job, "status.json")
        if isinstance(status, dict):
            alive = is_alive(status.get("pid"), job)
            # It may have ended between the two looks.
            status = status if alive else read(jobs, job, "status.json") or status
            found.append(
                {"id": job, "alive": alive, "status": status, "record": read(jobs, job, "record.json")}
            )
    print(json.dumps(found))


main()
