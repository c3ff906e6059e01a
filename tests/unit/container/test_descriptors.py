"""Open files of the supervisor: under the container's limits, and none lost by a restart."""

from __future__ import annotations

import os
from typing import Any

from tests.unit.container_world import JOB, World, host_entry, python

LIMITS = "import resource; print('limit', *resource.getrlimit(resource.RLIMIT_NOFILE))"


def under(soft: int, hard: int, more: str = "") -> str:
    """A driver that runs the supervisor under these limits."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    return f"{limit}{more}\nfrom toolkit.container.job import supervisor\nsys.exit(supervisor.main())\n"


def test_a_restart_costs_no_descriptors(world: World) -> None:
    world.job(command=python("raise SystemExit(9)"), max_restarts=3, networks=[], launcher="mpirun")
    fake = world.mpirun_of_one_rank()
    # Counted while an attempt runs, when all that it holds is open. What the first import and the first
    # restart open for good is there from the second restart on.
    more = """
import os
from toolkit.container.job import attempt, restarts
restarts.FIRST_WAIT_S = restarts.MOST_WAIT_S = 0.0
start = attempt.Attempt.start
def counted(self):
    start(self)
    print(len(os.listdir("/proc/self/fd")), flush=True)
attempt.Attempt.start = counted
import gc
gc.disable()
"""
    words = {"PATH": f"{fake}:{os.environ['PATH']}", "TOOLKIT_SUPERVISOR": JOB}
    process = world.start(world.driver(under(256, 256, more)), JOB, **words)
    assert process.stdout is not None
    counts = [process.stdout.readline() for _ in range(4)]
    assert all(counts), world.log()
    assert counts[1:] == [counts[1]] * 3


def test_the_supervisor_has_the_hard_limit_and_ranks_that_of_the_container(world: World) -> None:
    world.job(command=python(LIMITS))
    more = "import atexit; atexit.register(lambda: exec(%r))" % LIMITS  # noqa: UP031
    _, out, _ = world.call(world.driver(under(200, 300, more)), JOB, TOOLKIT_SUPERVISOR=JOB)
    assert out == b"limit 300 300\n"
    assert world.log() == b"[gpu1 0] limit 200 300\n"


def many(number: int) -> list[dict[str, Any]]:
    return [host_entry(), *(host_entry(name=f"gpu{n}", address=f"10.77.1.{n}") for n in range(2, number + 1))]


def test_a_cluster_that_cannot_fit_is_refused_with_the_number(world: World) -> None:
    launches = [{"host": f"gpu{n}", "argv": ["true"], "env": {}} for n in range(1, 31)]
    world.job(hosts=many(30), launches=launches)
    code, _, _ = world.call(world.driver(under(128, 256)), JOB, TOOLKIT_SUPERVISOR=JOB)
    status = world.status()
    assert (code, status["state"]) == (65, "failed")
    assert status["reason"] == (
        "the supervisor on gpu1 needs 364 open files for 30 hosts, but the hard limit of its container is "
        "256; set `ulimits: {nofile: 364}` in hosts.yaml, then run `toolkit up`"
    )
    assert world.log() == f"[toolkit] {status['reason']}\n".encode()


def test_what_a_host_costs(world: World) -> None:
    world.job(hosts=many(2))
    world.other_host("gpu2")
    code = f"""
import os, time
from toolkit.container.job.launch import PER_LAUNCH, PER_LEASE
from toolkit.container.job.launch import Running
from toolkit.container.job.lease_client import Leases
from toolkit.container.job_file import load_job
def count():
    return len(os.listdir("/proc/self/fd"))
job = load_job({JOB!r})
counts = [count()]
for hosts in (job["hosts"], job["hosts"][:1]):
    leases = Leases({{**job, "hosts": hosts}})
    while not leases.all_answered():  # then its thread has opened what it needs
        time.sleep(0.01)
    counts.append(count())
    leases.close()
    counts.append(count())
running = Running(job, 0)
counts.append(count())
running.close()
counts.append(count())
none, two, after_two, one, after_one, launch, after_launch = counts
print(two - one == PER_LEASE, launch - none == PER_LAUNCH, {{after_two, after_one, after_launch}} == {{none}})
"""
    words = {**world.with_bin(), "TOOLKIT_SUPERVISOR": JOB}
    assert world.call(world.driver(code), **words)[1:] == (b"True True True\n", b"")
