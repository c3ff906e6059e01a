"""The supervisor's side of the leases and their host's side: no thread ends without a word."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import (
    JOB,
    PATIENCE_S,
    PYTHON,
    World,
    host_entry,
    python,
    rank_env,
    sleeping,
    wait_for,
)
from toolkit.container.job import lease_client

SLEEP = "import time; time.sleep(600)"
# What each driver begins with: the leases of gpu1, which is main, and gpu2.
LEASES = f"""
import json, threading, time
from toolkit.container.job import lease_client
from toolkit.container.job.lease_client import Held, Leases
from toolkit.container.job_file import load_job

job = load_job({JOB!r})
leases = Leases(job)
while not leases.all_answered():
    time.sleep(0.01)
"""
# Whether the thread still works: gpu1 answers, and its lease is made longer.
RESULT = """
def until(host):
    from toolkit.container.conventions import job_folder, lease_path
    return float(lease_path(job_folder(job["id"])).read_text())

before, later = until("gpu1"), time.monotonic() + 5.0
while until("gpu1") == before and time.monotonic() < later:
    time.sleep(0.01)
result = {"beats": until("gpu1") > before, "answers": leases.tell("gpu1", {"do": "records"}).get("records")}
result |= {"lost": leases.lost()}
leases.close()
print(json.dumps(result))
"""


def two_hosts(world: World) -> None:
    world.job(hosts=[host_entry(), host_entry(name="gpu2", address="10.77.0.3")])
    world.other_host("gpu2")


def driven(world: World, code: str, more: str = "") -> dict[str, Any]:
    program = world.driver(LEASES + code + RESULT.replace("leases.close()", f"{more}leases.close()"))
    status, out, err = world.call(program, **world.with_bin(), TOOLKIT_SUPERVISOR=JOB)
    assert status == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_host_can_be_given_up_while_main_beats(world: World) -> None:
    two_hosts(world)
    found = driven(
        world,
        """
send, gone = Held.send, threading.Event()
def send_late(held, request):
    if held.host == "gpu2" and request["do"] == "beat" and not gone.is_set():
        gone.set()
        other = threading.Thread(target=leases.leave, args=("gpu2",))
        other.start()
        other.join(0.5)  # the pipe is closed now, if anything lets it be closed
    send(held, request)
Held.send = send_late
gone.wait(5)
""",
    )
    assert found == {"beats": True, "answers": [], "lost": None}


def test_a_host_that_an_attempt_does_without_awaits_no_restart(world: World) -> None:
    """Otherwise a reader of the log of a rank that has moved would wait on the host."""
    two_hosts(world)
    mark = world.folder() / "restart"
    mark.touch()
    assert driven(world, "")["lost"] is None
    assert not mark.exists()


@pytest.mark.parametrize("answers", [True, False])
def test_a_standstill_explains_a_host_that_has_not_answered_since(world: World, answers: bool) -> None:
    """However late it is noticed that the host is lost."""
    two_hosts(world)
    found = driven(
        world,
        f"""
import os, signal
clock, later = leases._clock, 0.0
leases._clock = lambda: clock() + later
lease = leases._held["gpu2"].process.pid
os.kill(lease, signal.SIGSTOP)
later += 20
while not leases.stood_still():
    time.sleep(0.01)
if {answers}:
    os.kill(lease, signal.SIGCONT)
    while leases._held["gpu2"].unsure:
        time.sleep(0.01)
for _ in range(10):  # in steps that are no standstill
    beaten = leases._beaten
    later += 0.8
    while leases._beaten < beaten + 0.8:
        time.sleep(0.01)
os.kill(lease, signal.SIGCONT)
stood = leases.stood_still()
""",
        'result["stood"] = stood\n',
    )
    assert (found["stood"] > 19) is not answers
    assert bool(found["lost"]) is not answers


def test_an_invalid_line_of_a_lease_loses_only_its_host(world: World) -> None:
    two_hosts(world)
    (world.root / "hosts" / "gpu2" / "greeting").write_text("Welcome to gpu2!\n")
    found = driven(world, "")
    assert found["beats"] and found["answers"] == []
    assert found["lost"] == [
        "gpu2",
        "the lease process sent an invalid line: b'Welcome to gpu2!'",
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b'{"n": "1"}',
        b'{"n": 1, "records": 5}',
        b'{"n": 1, "records": [7]}',
        b'{"n": 1, "records": [], "now": "12:00"}',
        b'{"n": 0, "death": {"rank": 1}}',
        b'{"n": 0, "death": {"rank": 1, "attempt": 0, "pid": 2, "host": "a", "exit_code": 1, "last": [3], '
        b'"ended": 1, "lasted": 1}}',
    ],
)
def test_a_line_that_is_not_of_the_protocol_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        lease_client.reply_of(line)


def test_a_job_ends_by_the_real_reason_when_the_thread_of_its_leases_does(world: World) -> None:
    world.job(command=python(SLEEP))
    code = """
from toolkit.container.job import lease_client, supervisor
read = lease_client.Leases._read
def broken(self, selector, held):
    read(self, selector, held)
    raise KeyError("something unexpected")
lease_client.Leases._read = broken
supervisor.main()
"""
    status, _, _ = world.call(world.driver(code), JOB, TOOLKIT_SUPERVISOR=JOB)
    assert status == 0
    status = world.status()
    assert (status["state"], status["exit_code"], status["unswept"]) == ("failed", 70, [])
    assert status["reason"] == "the supervisor failed: KeyError('something unexpected')"


def test_the_first_cause_stays_when_the_ranks_cannot_be_ended_as_usual(world: World) -> None:
    world.job(command=python("raise SystemExit(3)"))
    launch = {"host": "gpu1", "argv": ["sh", "-c", f"{' '.join(world.rank_argv())} & sleep 600"]}
    job = json.loads((world.folder() / "job.json").read_text())
    launch |= {"env": rank_env(), "serves": False, "name": ""}
    (world.folder() / "job.json").write_text(json.dumps({**job, "launches": [launch]}))
    code = """
from toolkit.container.job import lease_client, supervisor
def refuse(*args, **words):
    raise RuntimeError("can't start new thread")
lease_client.Leases.end = refuse
supervisor.main()
"""
    assert world.call(world.driver(code), JOB, TOOLKIT_SUPERVISOR=JOB)[0] == 0
    status = world.status()
    assert (status["state"], status["exit_code"], status["unswept"]) == ("failed", 3, [])
    failed = """the supervisor failed: RuntimeError("can't start new thread")"""
    assert status["reason"] == f"rank 0 on gpu1 exited with code 3; {failed}"


def test_a_damaged_record_does_not_hide_the_others(world: World) -> None:
    # The launcher hangs, so that the lease alone can tell of the rank.
    command = python("raise SystemExit(3)")
    argv = ["sh", "-c", f"{' '.join(world.rank_argv())}; sleep 600"]
    folder = world.job(command=command, launches=[{"host": "gpu1", "argv": argv, "env": rank_env()}])
    (folder / "logs").mkdir()
    for name, text in (("rank-7.exit", "{}"), ("rank-8.exit", "[]"), ("rank-9.run", '{"attempt": 0}')):
        (folder / "logs" / name).write_text(text)
    world.start("job.supervisor", JOB)
    wait_for(lambda: world.status()["state"] == "failed", 20)
    assert world.status()["reason"] == "rank 0 on gpu1 exited with code 3"


@pytest.mark.parametrize(("behind", "delay"), [(0, 0), (0, 0.3), (3600, 0), (3600, 0.3)])
def test_records_of_hosts_are_compared_by_the_clock_of_main(
    world: World, behind: float, delay: float
) -> None:
    """A rank that failed last must not be the cause because the clock of its host is behind.

    The answers of the host arrive late, by more than the difference of clocks that is not corrected.
    """
    two_hosts(world)
    gpu2 = world.root / "hosts" / "gpu2"
    lease = world.own_programs() / "toolkit" / "container" / "job" / "lease.py"
    late = f"{behind} * os.environ['TOOLKIT_ROOT'].endswith('gpu2')"
    clock = f"\nclock = time.time\ntime.time = lambda: clock() - {late}\n"
    text = lease.read_text().replace("\n# A partitioned host", f"{clock}# A partitioned host", 1)
    say = "with self.lock, suppress(OSError):\n"
    slow = f"time.sleep({delay} * ('now' in message and os.environ['TOOLKIT_ROOT'].endswith('gpu2')))"
    assert say in text
    lease.write_text(text.replace(say, f"{say}            {slow}\n"))
    first = time.time() - 5
    record = {"attempt": 0, "pid": 1, "exit_code": 1, "last": ["ValueError: x"], "lasted": 1.0}
    for rank, host, ended in ((0, "gpu1", first), (4, "gpu2", first + 0.2 - behind)):
        logs = (world.root if host == "gpu1" else gpu2) / "jobs" / JOB / "logs"
        logs.mkdir()
        written = {**record, "rank": rank, "host": host, "ended": ended}
        (logs / f"rank-{rank}.exit").write_text(json.dumps(written))
    more = (
        "from toolkit.container.job.regroup import Regroup\n"
        "while len(leases._deaths) < 2: time.sleep(0.01)\n"
        "latest = Regroup(job, leases, None, [], None).latest('gpu1')\n"
        'result["ended"] = [{r["host"]: r["ended"] for r in found} for found in (leases.records(), latest)]\n'
    )
    for ended in driven(world, "lease_client.CLOCKS_S = 0.1\n", more)["ended"]:
        assert ended["gpu1"] == first
        assert ended["gpu2"] == pytest.approx(first + 0.2, abs=0.001 if not behind else 1.0)


def test_a_host_that_does_not_answer_a_request_is_lost(world: World) -> None:
    two_hosts(world)
    found = driven(world, 'leases.lose("gpu2")\n')
    assert found["beats"] and found["lost"] == ["gpu2", "the host did not answer for 15 s"]


def test_a_lease_that_cannot_look_after_its_ranks_says_so(world: World) -> None:
    world.job(command=python(SLEEP))
    broken = world.root / "broken.py"
    spoil = "from toolkit.container.job import lease\nlease.Lease.report_deaths = lambda self: 1 / 0\n"
    Path(world.driver(spoil + "sys.exit(lease.main())\n")).rename(broken)
    code = f"""
from toolkit.container.job import lease_client, supervisor
program = lease_client.program
lease_client.program = lambda name: [{str(broken)!r}] if name == "job.lease" else program(name)
supervisor.main()
"""
    assert world.call(world.driver(code), JOB, TOOLKIT_SUPERVISOR=JOB)[0] == 0
    status = world.status()
    assert (status["state"], status["exit_code"]) == ("failed", 69)
    assert status["reason"] == "gpu1 is lost: the lease process failed: ZeroDivisionError('division by zero')"


def lapsed(world: World, code: str = "") -> tuple[int, bool]:
    """Start a lease and a process of its job, run code of the test, and close the connection of main.

    Returns the exit code of the lease, and whether the process still runs.
    """
    program = world.driver(f"from toolkit.container.job import lease\n{code}\nsys.exit(lease.main())\n")
    with sleeping(TOOLKIT_JOB=JOB) as rank:
        lease = subprocess.Popen(
            [*PYTHON, program, JOB], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=world.base_env()
        )
        world.started.append(lease)
        wait_for(lambda: world.lease().exists() and world.lease().stat().st_size)
        (world.folder() / "job.json").unlink()
        lease.communicate(timeout=PATIENCE_S)
        return lease.returncode, rank.poll() is None


def test_a_lease_ends_the_ranks_although_the_files_of_the_job_are_gone(world: World) -> None:
    """As on a file server that cannot be reached any more."""
    world.job()
    assert lapsed(world) == (0, False)
    assert not world.lease().exists()


def test_a_lease_that_cannot_end_the_ranks_leaves_that_to_them(world: World) -> None:
    world.job()
    code, is_alive = lapsed(world, "lease.end = lambda *_: 1 / 0")
    assert code != 0 and is_alive
    assert float(world.lease().read_text()) > 0, "rank.py ends its rank by this time"


def test_work_that_fails_in_a_thread_is_raised(world: World) -> None:
    code = """
from toolkit.container.bench import network
from toolkit.container.check import container_probe
def broken(*_):
    raise KeyError("something unexpected")
for call in (lambda: container_probe.all_at_once({1: broken}), lambda: network._together(broken, [None])):
    try:
        call()
    except KeyError as error:
        print(error)
"""
    assert world.call(world.driver(code))[1] == b"'something unexpected'\n" * 2


def test_a_connection_that_cannot_be_accepted_does_not_end_the_server(world: World) -> None:
    code = """
import json, socket
from toolkit.container.check import container_probe
accept, failed = socket.socket.accept, []
def once(self):
    if not failed:
        failed.append(True)
        raise OSError(24, "Too many open files")
    return accept(self)
socket.socket.accept = once
port = container_probe.Server("gpu1", "token").listen("127.0.0.1", 0)
print(json.dumps(container_probe.attempt("127.0.0.1", port, "token", False)))
"""
    assert json.loads(world.call(world.driver(code))[1])["answer"] == "open"
