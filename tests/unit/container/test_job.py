"""A job's life on one host: supervisor, sweep, follow and stop as real processes."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import (
    INSIDE,
    JOB,
    PATIENCE_S,
    World,
    host_entry,
    is_alive,
    python,
    rank_env,
    wait_for,
)
from toolkit.container.job.rank_records import blames_another
from toolkit.core.host_programs import packed
from toolkit.protocol.jobs import Record, RecordHost

OTHER = f"{JOB}-other"
FINAL = {"succeeded", "failed", "stopped", "timeout"}


def finish(world: World, job_id: str = JOB) -> dict[str, Any]:
    wait_for(lambda: world.status(job_id)["state"] in FINAL)
    return world.status(job_id)


def shown_pid(world: World, job_id: str = JOB) -> int:
    wait_for(lambda: b"pid=" in world.log(job_id))
    return int(world.log(job_id).split(b"pid=")[1].split()[0])


SLEEP = "import os, time; print(f'pid={os.getpid()}'); time.sleep(60)"
STUBBORN = "import signal; signal.signal(15, lambda *_: print('TERM seen')); " + SLEEP.replace(
    "time.sleep(60)", "[time.sleep(0.1) for _ in range(600)]"
)


def test_a_job_that_succeeds(world: World) -> None:
    world.job()
    assert world.call("job.supervisor", JOB)[0] == 0
    status = world.status()
    assert (status["state"], status["exit_code"], status["reason"]) == ("succeeded", 0, "")
    assert status["started"] <= status["ended"] and status["unswept"] == []
    assert world.log() == b"[gpu1 0] hello\n"
    assert [path.name for path in world.folder().glob("status.json*")] == ["status.json"]


def test_a_job_that_has_ended_leaves_no_variable_behind(world: World) -> None:
    text = "import os; print(len(os.environ['TOKEN']), len(os.environ['OTHER']))"
    world.job(command=python(text), env={"TOKEN": "s3cret"}, override={"OTHER": "s3cret too"})
    assert world.call("job.supervisor", JOB)[0] == 0
    assert world.log() == b"[gpu1 0] 6 10\n"
    assert world.holders("s3cret") == []


def test_a_sweep_that_is_not_the_last_leaves_the_variables(world: World) -> None:
    world.job(env={"TOKEN": "s3cret"})
    world.keep_variables()
    for words in (["--list"], ["--grace", "0", "--ranks"], ["--signal", "TERM"], ["--grace", "0", "--keep"]):
        assert world.call("job.orphans", JOB, *words)[0] == 0
        assert world.holders("s3cret"), words
    assert world.call("job.orphans", JOB, "--grace", "0")[0] == 0
    assert world.holders("s3cret") == []


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        ("print('last'); raise SystemExit(7)", 7, "exited with code 7"),
        ("import os; print('last', flush=True); os.kill(os.getpid(), 11)", 139, "was killed by SIGSEGV"),
        (
            "print('last'); raise SystemExit(139)",
            139,
            "exited with code 139, which usually means SIGSEGV",
        ),
    ],
)
def test_a_job_that_fails_has_the_ranks_exit_code(world: World, code: str, expected: int, words: str) -> None:
    world.job(command=python(code))
    world.call("job.supervisor", JOB)
    status = world.status()
    assert (status["state"], status["exit_code"]) == ("failed", expected)
    assert status["reason"] == f"rank 0 on gpu1 {words}"
    assert (status["cause"]["rank"], status["cause"]["last"]) == (0, ["last"])


def test_a_rank_that_dies_ends_a_job_whose_launcher_sees_nothing(world: World) -> None:
    deaf = (
        "import os, subprocess, sys, time\n"
        "one = subprocess.Popen(sys.argv[1:], env={**os.environ, 'RANK': '0'})\n"
        "subprocess.run(sys.argv[1:], env={**os.environ, 'RANK': '1'})\n"
        "time.sleep(600)\n"
    )
    text = "import os, time; rank = os.environ['RANK']; time.sleep(600) if rank == '0' else os._exit(5)"
    env = {**rank_env(0, 2), "LOCAL_WORLD_SIZE": "2"}
    launch = {"host": "gpu1", "argv": [*python(deaf), *world.rank_argv()], "env": env}
    world.job(
        command=python(text), world_size=2, hosts=[host_entry(slots=2, taken=[0, 1])], launches=[launch]
    )
    start = time.monotonic()
    world.call("job.supervisor", JOB)
    assert time.monotonic() - start < 300  # the launcher would go on for 600
    assert world.status()["reason"] == "rank 1 on gpu1 exited with code 5"


def test_a_rank_that_fails_ends_the_job_though_its_child_prints_without_end(world: World) -> None:
    failing = ["sh", "-c", "(trap '' TERM; while :; do echo alive; sleep 0.05; done) & echo pid=$!; exit 3"]
    command = [sys.executable, "-c", f"import os; os.environ['RANK'] == '0' or os.execvp('sh', {failing!r})"]
    command[-1] += "\nimport time; time.sleep(600)"
    launches = [{"host": "gpu1", "argv": world.rank_argv(), "env": rank_env(rank, 2)} for rank in range(2)]
    world.job(command=command, launches=launches, world_size=2)
    world.start("job.supervisor", JOB)
    status = finish(world)
    assert (status["state"], status["exit_code"]) == ("failed", 3)
    assert status["reason"] == "rank 1 on gpu1 exited with code 3"
    # Its child prints without end, so that an end at all shows it; `make faults` measures the seconds.
    assert not is_alive(shown_pid(world))


@pytest.mark.parametrize("launchers", [1, 2])
def test_a_rank_that_blames_another_is_not_the_cause(world: World, launchers: int) -> None:
    """Its end can be reported first: the rank that crashes dumps its core, or runs on a busy host."""
    record = str(world.folder() / "logs" / "rank-1.exit")
    text = (
        "import os, sys, time; rank = int(os.environ['RANK'])\n"
        "def wait(path):\n"
        "    while not os.path.exists(path): time.sleep(0.01)\n"
        "if rank:\n"
        "    wait('ready')\n"
        "    sys.exit('RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer')\n"
        f"open('ready', 'w').close(); wait({record!r}); os.kill(os.getpid(), 11)"
    )
    both = (
        "import os, subprocess, sys\n"
        "ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, 'RANK': str(rank),"
        " 'LOCAL_RANK': str(rank)}) for rank in range(2)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))"
    )
    argv = world.rank_argv()
    # With one on each host, as torchrun has it, the first to end is that of the rank that blames the other.
    alone = [
        {"host": "gpu1", "argv": argv, "env": {**rank_env(rank, 2), "LOCAL_WORLD_SIZE": "2"}}
        for rank in (1, 0)
    ]
    env = {**rank_env(0, 2), "LOCAL_WORLD_SIZE": "2"}
    together = {"host": "gpu1", "argv": [*python(both), *argv], "env": env}
    launches = [together] if launchers == 1 else alone
    hosts = [host_entry(slots=2, taken=[0, 1])]
    world.job(command=python(text), launcher="torchrun", world_size=2, hosts=hosts, launches=launches)
    world.call("job.supervisor", JOB)
    assert world.status()["reason"] == "rank 0 on gpu1 was killed by SIGSEGV"


@pytest.mark.parametrize(
    "error", ["failed to recv, got 0 bytes", "Failed to recv, got 0 bytes. Connection was"]
)
def test_a_rank_that_loses_the_store_of_pytorch_blames_another(error: str) -> None:
    assert blames_another({"exit_code": 1, "last": [f"torch.distributed.DistNetworkError: {error}"]})


def test_a_rank_that_blames_another_is_told_when_no_other_fails(world: World) -> None:
    world.job(command=python("import sys; sys.exit('ConnectionResetError: Connection reset by peer')"))
    world.call("job.supervisor", JOB)
    assert world.status()["reason"] == "rank 0 on gpu1 exited with code 1"


def test_a_rank_whose_rank_py_is_killed_is_missed(world: World) -> None:
    world.job(command=python(SLEEP), grace=1.0)
    process = world.start("job.supervisor", JOB)
    shown_pid(world)
    run = json.loads((world.folder() / "logs" / "rank-0.run").read_text())
    os.kill(run["pid"], signal.SIGKILL)
    assert finish(world)["reason"] == "rank 0 on gpu1 exited without an exit record (probably killed)"
    assert process.wait(PATIENCE_S) == 0


def test_torchruns_own_exit_code_is_replaced_by_the_first_failing_ranks(world: World) -> None:
    both = (
        "import os, subprocess, sys\n"
        "a, b = (subprocess.Popen(sys.argv[1:], env={**os.environ, 'RANK': r}) for r in '01')\n"
        "b.wait(); a.terminate(); a.wait(); sys.exit(1)"
    )
    launch = {
        "host": "gpu1",
        "argv": [*python(both), *world.rank_argv()],
        "env": rank_env(0, 2),
    }
    code = "import os, time\nif os.environ['RANK'] == '1': raise SystemExit(9)\ntime.sleep(60)"
    world.job(world_size=2, launcher="torchrun", command=python(code), launches=[launch])
    world.call("job.supervisor", JOB)
    status = world.status()
    assert (status["exit_code"], status["reason"]) == (9, "rank 1 on gpu1 exited with code 9")


def test_a_launcher_that_fails_by_itself_is_named(world: World) -> None:
    world.job(launches=[{"host": "gpu1", "argv": ["sh", "-c", "echo no; exit 3"], "env": {}}])
    world.call("job.supervisor", JOB)
    status = world.status()
    assert (status["exit_code"], status["reason"]) == (3, "sh on gpu1 exited with code 3")
    assert world.log() == b"no\n[toolkit] sh on gpu1 exited with code 3\n"


def test_ranks_on_main_and_on_workers_have_tmpdir_of_the_image(world: World) -> None:
    code = "import os; print(os.environ['TMPDIR'], os.environ.get('TOOLKIT_TMPDIR'))"
    launches = [
        {"host": host, "argv": world.rank_argv(), "env": rank_env(rank, 2)}
        for rank, host in enumerate(("gpu1", "gpu2"))
    ]
    hosts = [host_entry(), host_entry(name="gpu2", address="10.77.0.3")]
    world.job(command=python(code), launches=launches, hosts=hosts, world_size=2)
    world.other_host("gpu2")
    ssh = world.root / "bin" / "ssh"  # sshd of a worker sets the variables of the image
    ssh.write_text(ssh.read_text().replace("exec sh", "export TMPDIR='/of a worker'\nexec sh"))
    world.call("job.supervisor", JOB, TMPDIR="/of main", **world.with_bin())
    lines = {line for line in world.log().splitlines() if not line.startswith(b"[toolkit]")}
    assert lines == {b"[gpu1 0] /of main None", b"[gpu2 1] /of a worker None"}


def test_launchers_of_several_hosts_are_told_apart_in_the_log(world: World) -> None:
    """torchrun is started on each host, and its lines do not contain the host."""
    launches = [
        {"host": host, "argv": ["sh", "-c", "echo agent; echo bad >&2; exec " + shlex.join(argv)], "env": env}
        for host, argv, env in (
            ("gpu1", world.rank_argv(), rank_env(0, 2)),
            ("gpu2", ["echo", "over"], {}),
        )
    ]
    hosts = [host_entry(), host_entry(name="gpu2", address="10.77.0.3")]
    world.job(command=python("print('hi')"), launches=launches, hosts=hosts, world_size=2)
    world.other_host("gpu2")
    world.call("job.supervisor", JOB, **world.with_bin())
    assert world.status()["state"] == "succeeded"
    own = {b"[gpu1] agent", b"[gpu1] bad", b"[gpu1 0] hi"}
    # Both hosts are this machine, so the cleanup of one can end the lease of the other, which is reported.
    lines = {line for line in world.log().splitlines() if not line.startswith(b"[toolkit]")}
    assert lines == {*own, b"[gpu2] agent", b"[gpu2] bad", b"[gpu2] over"}
    shown = world.call("logs.follow", JOB, "--host", "gpu1", "--tail", "3")[1]
    assert set(shown.splitlines()) == own


def test_the_launcher_of_a_part_of_a_job_is_told_apart(world: World) -> None:
    world.job(
        launches=[{"host": "gpu1", "argv": ["echo", "agent"], "env": {}}], world_size=2, transport="exec"
    )
    world.call("job.supervisor", JOB)
    assert world.log() == b"[gpu1] agent\n"


def test_a_launcher_that_is_not_there(world: World) -> None:
    world.job(launches=[{"host": "gpu1", "argv": ["no-such-program"], "env": {}}])
    world.call("job.supervisor", JOB)
    assert (world.status()["state"], world.status()["exit_code"]) == ("failed", 127)
    assert b"the image has no no-such-program; run `toolkit image inspect` to list" in world.log()


def test_the_first_launch_to_fail_ends_the_others(world: World) -> None:
    fails = f"until grep -q pid= {world.folder()}/output.log; do sleep 0.05; done; exit 5"
    launches = [
        {"host": "gpu1", "argv": python(SLEEP), "env": {"PYTHONUNBUFFERED": "1"}},
        {"host": "gpu1", "argv": ["sh", "-c", fails], "env": {}},
    ]
    world.job(launches=launches)
    world.call("job.supervisor", JOB)
    assert world.status()["exit_code"] == 5
    assert not is_alive(shown_pid(world))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_job(world: World, signum: int, code: int) -> None:
    world.job(command=python(SLEEP))
    supervisor = world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    supervisor.send_signal(signum)
    status = finish(world)
    assert (status["state"], status["exit_code"]) == ("stopped", code)
    assert not is_alive(pid)


def test_a_job_that_is_killed_at_once_was_stopped_and_did_not_fail(world: World) -> None:
    # As a second Ctrl-C does, which can come before the first one has reached the supervisor.
    world.job(command=python(f"import signal; signal.signal(15, signal.SIG_IGN)\n{SLEEP}"))
    world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    assert world.call("job.orphans", JOB, "--signal", "KILL", "--interrupt")[0] == 0
    status = finish(world)
    assert (status["state"], status["exit_code"]) == ("stopped", 130)
    assert not is_alive(pid)


def test_a_stop_before_anything_is_set_up(world: World) -> None:
    folder = world.job(env={"TOKEN": "s3cret"})
    assert not world.holders("s3cret")
    with (world.root / "jobs" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the supervisor waits for it, before its first status
        supervisor = world.start("job.supervisor", JOB)
        wait_for((folder / "output.log").exists)
        supervisor.send_signal(signal.SIGINT)
    status = finish(world)
    assert (status["state"], status["exit_code"], status["reason"]) == ("stopped", 130, "stopped by SIGINT")
    assert world.log() == b"[toolkit] stopped by SIGINT\n"
    assert world.holders("s3cret") == []


@pytest.mark.parametrize(("flag", "code"), [("--interrupt", 130), ("--grace=1", 143)])
def test_a_stop_while_the_supervisors_interpreter_starts(world: World, flag: str, code: int) -> None:
    folder = world.job(command=python(SLEEP))
    container_session(world, {"do": "start", "job": JOB}).communicate(timeout=10)
    pid = int((folder / "supervisor.pid").read_text())
    os.kill(pid, signal.SIGINT if code == 130 else signal.SIGTERM)  # long before Python has a handler
    status = json.loads(world.call("job.stop", JOB, flag)[1])
    assert (status["state"], status["exit_code"]) == ("stopped", code)


def test_a_child_that_ignores_term_is_killed_after_the_grace(world: World) -> None:
    world.job(command=python(STUBBORN), grace=0.5)
    supervisor = world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    started = time.monotonic()
    supervisor.terminate()
    finish(world)
    assert time.monotonic() - started > 0.5
    assert not is_alive(pid)
    assert world.log().count(b"TERM seen") == 1  # a script that saves on TERM is asked once


def test_a_rank_that_saves_on_term_has_its_grace_though_another_has_ended(world: World) -> None:
    hasty = (  # as mpirun does: once one rank has ended, it kills the others
        "import os, subprocess, sys, time\n"
        "ps = [subprocess.Popen(sys.argv[1:], env={**os.environ, 'RANK': r}) for r in '01']\n"
        "while all(p.poll() is None for p in ps): time.sleep(0.02)\n"
        "[p.kill() for p in ps]"
    )
    code = (
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    if os.environ['RANK'] == '0': time.sleep(0.7); print('saved')\n"
        "    sys.exit(0)\n"
        "signal.signal(15, save); print(f'pid={os.getpid()}'); time.sleep(60)"
    )
    launch = {"host": "gpu1", "argv": [*python(hasty), *world.rank_argv()], "env": rank_env(0, 2)}
    world.job(world_size=2, command=python(code), launches=[launch], grace=5.0)
    supervisor = world.start("job.supervisor", JOB)
    wait_for(lambda: world.log().count(b"pid=") == 2)
    supervisor.terminate()
    assert finish(world)["state"] == "stopped"
    assert b"[gpu1 0] saved\n" in world.log()


def test_a_job_that_takes_too_long(world: World) -> None:
    world.job(command=python(SLEEP), timeout=0.5)
    world.call("job.supervisor", JOB)
    status = world.status()
    assert (status["state"], status["exit_code"]) == ("timeout", 124)
    # Not by the number that it prints: on a busy machine the time may be over before it has.
    assert world.call("job.orphans", JOB, "--list")[1] == b"[]\n"


def test_the_job_survives_whoever_started_it_and_a_hangup(world: World) -> None:
    go = world.root / "go"
    text = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\nprint('done')"
    world.job(command=python(text))
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:], stdout=-3, stderr=-3); print(p.pid); time.sleep(60)"
    )
    script = world.root / "starter.py"
    script.write_text(code)
    argv = [sys.executable, str(world.root / "inside" / "run.py"), "job.supervisor", JOB]
    starter = world.start(str(script), *argv)
    assert starter.stdout is not None
    wait_for(lambda: world.status()["state"] == "running")
    starter.kill()
    os.kill(world.status()["pid"], signal.SIGHUP)
    go.touch()
    assert finish(world)["state"] == "succeeded"
    assert b"done" in world.log()


def test_a_job_runs_once(world: World) -> None:
    world.job()
    world.call("job.supervisor", JOB)
    code, _, err = world.call("job.supervisor", JOB)
    assert code == 65 and b"already started" in err
    assert world.status()["state"] == "succeeded"


def test_what_outlives_its_launch_is_swept(world: World) -> None:
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True, stdout=-3, stderr=-3); print(f'pid={p.pid}')"
    )
    world.job(command=python(code))
    world.call("job.supervisor", JOB)
    assert world.status()["state"] == "succeeded"
    assert not is_alive(shown_pid(world))


def test_a_launch_does_not_outlive_a_killed_supervisor(world: World) -> None:
    world.job(command=python(SLEEP))
    supervisor = world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    supervisor.kill()
    wait_for(lambda: not is_alive(pid))
    code, out, _ = world.call("logs.follow", JOB)
    assert code == 70 and b"pid=" in out
    code, out, _ = world.call("job.stop", JOB)
    status = json.loads(out)
    assert (code, status["state"], status["reason"]) == (
        0,
        "failed",
        "the supervisor exited without writing a result",
    )


def test_the_users_secrets_stand_on_no_command_line(world: World) -> None:
    world.job(command=python(SLEEP), env={"TOKEN": "verysecret"})
    world.start("job.supervisor", JOB)
    shown_pid(world)
    _, out, _ = world.call("job.orphans", JOB, "--list")
    found = json.loads(out)
    assert len(found) >= 3 and b"verysecret" not in out
    for process in found:
        assert b"verysecret" not in Path(f"/proc/{process['pid']}/cmdline").read_bytes()


def test_a_second_job_is_refused_unless_it_shares(world: World) -> None:
    world.job(command=python(SLEEP))
    world.job(OTHER)
    world.start("job.supervisor", JOB)
    shown_pid(world)
    code, _, _ = world.call("job.supervisor", OTHER)
    status = world.status(OTHER)
    assert code == 65 and status["state"] == "failed"
    assert status["reason"] == f"slot 0 of gpu1 was reserved by job {JOB} after the check of free slots"
    assert world.status(JOB)["state"] == "running"


def test_a_second_job_starts_beside_one_with_a_damaged_record(world: World) -> None:
    """The status of the first job still lists its slots."""
    world.job(command=python(SLEEP), hosts=[host_entry(taken=[0])])
    world.job(OTHER, command=python("print('hello')"), hosts=[host_entry(taken=[1])])
    third = f"{OTHER}-3"
    world.job(third, hosts=[host_entry(taken=[0])])
    world.start("job.supervisor", JOB)
    shown_pid(world)
    (world.folder() / "job.json").write_text("{")
    assert world.call("job.supervisor", OTHER)[0] == 0 and world.status(OTHER)["state"] == "succeeded"
    assert world.call("job.supervisor", third)[0] == 65
    assert (
        world.status(third)["reason"] == f"slot 0 of gpu1 was reserved by job {JOB} after the check of "
        "free slots"
    )


def test_sweep_touches_its_own_job_and_nothing_else(world: World) -> None:
    world.job(command=python(SLEEP), share=True)
    world.job(OTHER, command=python(SLEEP), share=True)
    world.start("job.supervisor", JOB)
    world.start("job.supervisor", OTHER)
    mine, neighbour = shown_pid(world), shown_pid(world, OTHER)
    script = world.root / "train.py"
    script.write_text("import time; print(0, flush=True); time.sleep(60)")
    # a process of another job: it has the id in argv and in a longer value, but not as the job tag
    stranger = world.start(str(script), JOB, TOOLKIT_JOB=JOB + "5", OTHER=f"TOOLKIT_JOB={JOB}")
    assert stranger.stdout is not None
    stranger.stdout.readline()
    code, out, _ = world.call("job.orphans", JOB, "--grace", "1")
    assert (code, json.loads(out)) == (0, [])
    assert not is_alive(mine)
    assert is_alive(neighbour) and stranger.poll() is None
    assert world.status(OTHER)["state"] == "running"


def test_sweep_spares_itself_and_those_above_it(world: World) -> None:
    world.job()
    script = world.root / "above.py"
    script.write_text("import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))")
    sweep = (str(world.root / "inside" / "run.py"), "job.orphans")
    code, out, _ = world.call(str(script), *sweep, JOB, "--signal", "KILL", TOOLKIT_JOB=JOB)
    assert (code, json.loads(out)) == (0, [])


def test_sweep_lists_and_signals(world: World) -> None:
    world.job(command=python(SLEEP))
    world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    everything = json.loads(world.call("job.orphans", JOB, "--list")[1])
    ranks = json.loads(world.call("job.orphans", JOB, "--list", "--ranks")[1])
    assert [process["pid"] for process in ranks] == [pid]
    assert pid in [process["pid"] for process in everything] and len(everything) > 1
    assert is_alive(pid)
    world.call("job.orphans", JOB, "--signal", "KILL")
    wait_for(lambda: not is_alive(pid))
    finish(world)


def test_stop_ends_the_job_and_prints_its_status(world: World) -> None:
    world.job(command=python(SLEEP))
    world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    code, out, _ = world.call("job.stop", JOB)
    assert code == 0 and json.loads(out) == world.status()
    assert world.status()["state"] == "stopped" and not is_alive(pid)
    assert json.loads(world.call("job.stop", JOB)[1])["state"] == "stopped"


def test_stop_does_not_signal_a_process_that_has_the_supervisors_number(world: World) -> None:
    folder = world.job()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    world.started.append(stranger)
    status = {"state": "running", "exit_code": None, "started": 1.0, "ended": None, "reason": ""}
    (folder / "status.json").write_text(json.dumps({**status, "pid": stranger.pid, "unswept": []}))
    code, out, _ = world.call("job.stop", JOB)
    assert code == 0 and json.loads(out)["state"] == "failed"
    assert stranger.poll() is None


def test_follow_copies_what_is_there_and_what_comes(world: World) -> None:
    code = "import time\nfor i in range(5): print(i); time.sleep(0.1)"
    world.job(command=python(code))
    follower = world.start("logs.follow", JOB)  # before there is anything to follow
    world.start("job.supervisor", JOB)
    out, err = follower.communicate(timeout=PATIENCE_S)
    assert (follower.returncode, err) == (0, b"")
    assert out == world.log() == b"".join(b"[gpu1 0] %d\n" % i for i in range(5))
    assert world.call("logs.follow", JOB, "--from", "11")[1] == world.log()[11:]


def test_follow_ends_when_its_reader_has_gone(world: World) -> None:
    world.job(command=python(SLEEP))
    world.start("job.supervisor", JOB)
    shown_pid(world)
    follower = world.start("logs.follow", JOB)
    assert follower.stdout is not None
    follower.stdout.readline()
    follower.stdout.close()
    follower.stdout = None
    assert follower.wait(timeout=PATIENCE_S) in (0, -signal.SIGPIPE)
    assert world.status()["state"] == "running"


def test_follow_gives_up_on_a_job_that_never_appears(world: World) -> None:
    script = "from toolkit.container.logs import follow\nfollow.START_S = 0.2\nsys.exit(follow.main())\n"
    code, out, err = world.call(world.driver(script), JOB)
    assert (code, out) == (66, b"") and b"output.log" in err


def test_a_status_is_never_seen_half_written(world: World) -> None:
    world.job(command=python("pass"))
    path = world.folder() / "status.json"
    supervisor = world.start("job.supervisor", JOB)
    while supervisor.poll() is None:
        if path.exists():
            json.loads(path.read_text())
    assert world.status()["state"] == "succeeded"


def leases(world: World, job_id: str = JOB) -> list[int]:
    """Processes whose words say that they hold the job's lease."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and is_alive(int(folder.name)):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[1:4] == [f"{world.root}/inside/run.py".encode(), b"job.lease", job_id.encode()]:
                found.append(int(folder.name))
    return found


def test_a_running_job_holds_a_lease_that_says_what_it_has_taken(world: World) -> None:
    entry = host_entry(taken=[2, 3], gpus=["GPU-a", "GPU-b"], visible="GPU-a,GPU-b")
    world.job(command=python("import os; print(os.environ['CUDA_VISIBLE_DEVICES']); " + SLEEP), hosts=[entry])
    supervisor = world.start("job.supervisor", JOB)
    shown_pid(world)
    wait_for(lambda: leases(world))
    (pid,) = leases(world)
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    about = ["--cluster", "t", "--owner", "alice", "--slots", "2,3", "--gpus", "GPU-a,GPU-b"]
    assert words[3:] == [JOB, *about, "--attempt", "0"]
    assert b"[gpu1 0] GPU-a,GPU-b\n" in world.log()
    supervisor.terminate()
    finish(world)
    assert leases(world) == []
    assert not world.lease().exists()


def test_ranks_end_when_the_supervisor_is_gone_and_the_launch_does_not_notice(world: World) -> None:
    # launch.py ends the launch's group; what has left it, as daemons of launchers do, is the lease's to end.
    script = world.root / "apart.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "subprocess.Popen(sys.argv[1:], start_new_session=True); time.sleep(60)\n"
    )
    above = python("import subprocess, sys; subprocess.call(sys.argv[1:])")
    argv = [sys.executable, str(script), *above, *world.rank_argv()]
    world.job(command=python(SLEEP), launches=[{"host": "gpu1", "argv": argv, "env": rank_env()}])
    supervisor = world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    wait_for(lambda: leases(world))
    supervisor.kill()
    wait_for(lambda: not is_alive(pid), 5)
    wait_for(lambda: not leases(world), 5)
    kept = (world.folder() / "logs/lease.log").read_text()
    assert "the main container closed the connection; toolkit stopped the ranks on this host" in kept


def test_a_job_that_loses_a_host_fails_and_says_which(world: World) -> None:
    world.job(command=python(SLEEP))
    world.start("job.supervisor", JOB)
    shown_pid(world)
    wait_for(lambda: leases(world))
    os.kill(leases(world)[0], signal.SIGKILL)
    status = finish(world)
    assert (status["state"], status["exit_code"]) == ("failed", 69)
    assert status["reason"].startswith("gpu1 is lost: ") and status["lost_host"] == "gpu1"
    wait_for(lambda: not world.lease().exists())


def test_a_launch_that_ends_because_its_host_is_lost_says_so(world: World) -> None:
    """As its ssh does, a moment before the lease: the host is the cause, not the launcher."""
    code = (
        "import os, pathlib, signal, subprocess, sys, time\n"
        "def lease():\n"
        "    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "        try: words = path.read_bytes().split(b'\\0')\n"
        "        except OSError: continue\n"
        f"        if {JOB.encode()!r} in words and b'job.lease' in words:\n"
        "            return int(path.parent.name)\n"
        "while not (pid := lease()): time.sleep(0.05)\n"
        "time.sleep(1)\n"
        "os.kill(pid, signal.SIGSTOP)\n"
        "subprocess.Popen(['sh', '-c', f'sleep 0.7; kill -9 {pid}'], stdout=subprocess.DEVNULL,\n"
        "    stderr=subprocess.DEVNULL, start_new_session=True, env={})\n"
        "sys.exit(255)"
    )
    world.job(launches=[{"host": "gpu1", "argv": python(code), "env": {}}])
    world.call("job.supervisor", JOB)
    status = world.status()
    assert status["exit_code"] == 69 and status["reason"].startswith("gpu1 is lost: ")


@pytest.mark.waits
def test_a_main_that_stood_still_for_too_long_says_so_itself(world: World) -> None:
    world.job(command=python("import time; time.sleep(60)"))
    supervisor = world.start("job.supervisor", JOB)
    wait_for(lambda: world.status()["state"] == "running" and world.lease().exists())
    wait_for(lambda: list(world.folder().glob("logs/rank-0.run")))
    supervisor.send_signal(signal.SIGSTOP)
    time.sleep(11)
    supervisor.send_signal(signal.SIGCONT)
    wait_for(lambda: world.status()["state"] == "failed")
    reason = world.status()["reason"]
    assert reason.startswith("gpu1 stalled for 1"), reason
    assert reason.endswith(" s, so the hosts have stopped the job's ranks")
    assert world.status()["exit_code"] == 69


@pytest.mark.waits
def test_a_machine_that_stood_still_whole_goes_on(world: World) -> None:
    """The job continues if all hosts stop together, as virtual machines that share one busy machine."""
    world.job(command=python(SLEEP))
    supervisor = world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    wait_for(lambda: leases(world) and world.status()["state"] == "running")
    (lease,) = leases(world)
    rank = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for each in (supervisor.pid, lease, rank):
        os.kill(each, signal.SIGSTOP)
    time.sleep(16)
    for each in (rank, lease, supervisor.pid):  # first those that could blame another process
        os.kill(each, signal.SIGCONT)
        time.sleep(1)
    assert is_alive(pid) and world.status()["state"] == "running"
    # The time that it then has is no longer than before.
    supervisor.send_signal(signal.SIGSTOP)
    wait_for(lambda: not is_alive(pid), 14)
    supervisor.send_signal(signal.SIGCONT)
    wait_for(lambda: world.status()["state"] == "failed")


def test_a_grace_that_a_person_gives(world: World) -> None:
    world.job(command=python(STUBBORN), grace=600.0)
    world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    started = time.monotonic()
    code, out, _ = world.call("job.stop", JOB, "--grace", "0")
    assert (code, json.loads(out)["state"]) == (0, "stopped")
    assert time.monotonic() - started < 300 and not is_alive(pid)


def test_a_stop_that_is_made_shorter_while_it_waits(world: World) -> None:
    world.job(command=python(STUBBORN), grace=600.0)
    world.start("job.supervisor", JOB)
    pid = shown_pid(world)
    first = world.start("job.stop", JOB)
    wait_for(lambda: b"TERM seen" in world.log())
    started = time.monotonic()
    assert world.call("job.stop", JOB, "--grace", "0")[0] == 0
    first.wait(PATIENCE_S)
    assert time.monotonic() - started < 300 and not is_alive(pid)


def test_two_jobs_on_separate_slots(world: World) -> None:
    world.job(command=python(SLEEP), hosts=[host_entry(taken=[0])])
    world.job(OTHER, command=python("print('hello')"), hosts=[host_entry(taken=[1])])
    world.start("job.supervisor", JOB)
    shown_pid(world)
    assert world.call("job.supervisor", OTHER)[0] == 0
    assert world.status(OTHER)["state"] == "succeeded" and world.status()["state"] == "running"


def test_only_lines_of_one_time_in_the_log_are_the_same(world: World) -> None:
    """Rank 1 prints the line after a restart, ten minutes after the others, and `step` soon after rank 0."""
    folder = world.job(world_size=3)
    loaded = "[gpu1 {0}] loaded\n"
    error = "[gpu1 {0}] Traceback (most recent call last):\n[gpu1 {0}]   File x\n"
    parts = [
        (1000, loaded.format(0) + loaded.format(2)),
        (1600, loaded.format(1) + "[gpu1 0] step\n" + error.format(0) + error.format(1)),
        (1602, "[gpu1 0] KeyError: 1\n[gpu1 1] KeyError: 1\n[gpu1 1] step\n"),
    ]
    rows, log = "", ""
    for when, text in parts:
        rows, log = f"{rows}{when}.000 {len(log)}\n", log + text
    (folder / "output.log").write_text(log)
    (folder / "output.log.times").write_text(rows)
    status, out, _ = world.call("logs.follow", JOB, "--now", "--fold")
    same = "[toolkit] the same line on gpu1 2: loaded\n"
    failed = f"{error.format(0)}[gpu1 0] KeyError: 1\n[toolkit] the same 4 lines on gpu1 1: KeyError: 1\n"
    assert (status, out.decode()) == (0, f"{loaded.format(0)}{same}{loaded.format(1)}[gpu1 0] step\n{failed}")


def test_follow_shows_one_rank_one_host_the_end_and_what_is_there(world: World) -> None:
    world.job(command=python("print('one'); print('two')"))
    world.call("job.supervisor", JOB)
    log = b"[gpu1 0] one\n[gpu1 0] two\n"
    assert world.call("logs.follow", JOB)[:2] == (0, log)
    assert world.call("logs.follow", JOB, "--now", "--fold")[:2] == (0, log)
    assert world.call("logs.follow", JOB, "--tail", "1")[:2] == (0, b"[gpu1 0] two\n")
    assert world.call("logs.follow", JOB, "--rank", "0")[:2] == (0, b"one\ntwo\n")
    assert world.call("logs.follow", JOB, "--host", "gpu1")[:2] == (0, log)
    assert world.call("logs.follow", JOB, "--host", "gpu")[:2] == (0, b"")
    assert world.call("logs.follow", JOB, "--ago", "3600")[:2] == (0, log)
    assert world.call("logs.follow", JOB, "--since", str(time.time() + 60))[:2] == (0, b"")
    assert world.call("logs.follow", JOB, "--silent")[:2] == (0, b"")
    assert world.call("logs.follow", JOB, "--rank", "7", "--now")[0] == 66


def test_the_listing_reads_what_is_there_and_passes_over_what_is_not(world: World) -> None:
    world.job()
    world.call("job.supervisor", JOB)
    (world.folder() / "record.json").write_text('{"owner": "alice"}')
    world.job(OTHER)
    (world.root / "jobs" / ".lock").touch()
    listing = [sys.executable, "-", str(world.root / "jobs")]
    done = subprocess.run(listing, input=packed("job_list").encode(), capture_output=True, check=True)
    (row,) = json.loads(done.stdout)
    assert (row["id"], row["alive"], row["status"]["state"]) == (JOB, False, "succeeded")
    assert row["record"] == {"owner": "alice"}


def test_the_listing_contains_only_what_its_readers_use(world: World) -> None:
    """The records of many jobs together would exceed the size of an answer."""
    restarts: list[Any] = [{"at": at, "reason": "lost", "hosts": ["a", f"b{at}"]} for at in range(2)]
    status = {"state": "succeeded", "pid": 1, "restarts": [*restarts, 7]}
    records = {
        "whole": {**{one.name: one.name for one in fields(Record)}, "launches": [{"argv": ["x"]}]},
        "hosts": {"hosts": [{"name": "a", "slots": 1, "taken": [0], "gpus": ["GPU-1"]}, 7]},
        "odd": [7],
    }
    for name, record in records.items():
        world.job(name)
        (world.folder(name) / "status.json").write_text(json.dumps(status))
        (world.folder(name) / "record.json").write_text(json.dumps(record))
    rows = {row["id"]: row for row in json.loads(world.call("job_list", str(world.root / "jobs"))[1])}
    assert rows["whole"]["record"].keys() == {one.name for one in fields(Record)}
    assert rows["hosts"]["record"] == {"hosts": [{"name": "a", "slots": 1, "taken": [0]}, 7]}
    assert {one.name for one in fields(RecordHost)} == {"name", "slots", "taken"}
    assert rows["odd"]["record"] == [7], "the client reports it"
    listed = [{"reason": "lost", "hosts": ["a", "b0"]}, {"reason": "lost", "hosts": ["b1"]}, 7]
    assert rows["odd"]["status"] == {**status, "restarts": listed}


def test_the_listing_passes_over_what_a_rank_has_put_in_place_of_a_file(world: World) -> None:
    status = {"state": "succeeded", "pid": 1}
    for name in ("deep", "large", "link", "pipe"):
        world.job(name)
        (world.folder(name) / "status.json").write_text(json.dumps(status))
    (world.folder("deep") / "record.json").write_text("[" * 100_000)
    os.truncate(world.folder("large") / "status.json", 1 << 40)  # as much as fits into no memory
    (world.root / "outside").write_text(json.dumps(status))
    (world.folder("link") / "status.json").unlink()
    (world.folder("link") / "status.json").symlink_to(world.root / "outside")
    os.mkfifo(world.folder("pipe") / "record.json")
    done = subprocess.run(
        [sys.executable, str(INSIDE / "run.py"), "job_list", str(world.root / "jobs")],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert [(row["id"], row["record"]) for row in json.loads(done.stdout)] == [("deep", None), ("pipe", None)]


def container_session(world: World, *asks: object) -> subprocess.Popen[bytes]:
    """Start a container session and send it these requests; the caller closes its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", str(INSIDE / "run.py"), "session"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=world.base_env(),
    )
    world.started.append(process)
    assert process.stdin is not None
    for ask in asks:
        process.stdin.write(json.dumps(ask).encode() + b"\n")
    process.stdin.flush()
    return process


def test_a_session_lists_starts_and_follows(world: World) -> None:
    world.job(command=python("import time; print('one'); time.sleep(0.5); print('two')"))
    world.job(OTHER)
    (world.folder(OTHER) / "status.json").write_text('{"state": "succeeded", "pid": 0}')
    asks: list[object] = [{"do": "jobs"}, {"do": "start", "job": JOB}]
    process = container_session(world, *asks, {"do": "follow", "words": [JOB, "--status"]})
    out, err = process.communicate(timeout=PATIENCE_S)
    jobs, started, log = out.split(b"\n", 2)
    assert [row["id"] for row in json.loads(jobs)["jobs"]] == [OTHER]
    assert json.loads(started) == {"started": JOB}
    assert log == b"[gpu1 0] one\n[gpu1 0] two\n"
    assert json.loads(err)["status"]["state"] == "succeeded" and process.returncode == 0


def test_a_supervisor_that_ends_before_its_first_line_is_not_waited_for(world: World) -> None:
    job = world.job() / "job.json"
    whole = job.read_text()
    job.write_text("{")
    process = container_session(world, {"do": "start", "job": JOB}, {"do": "follow", "words": [JOB]})
    err = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 70 and b"exited before it created the log" in err
    (row,) = json.loads(container_session(world, {"do": "jobs"}).communicate(timeout=PATIENCE_S)[0])["jobs"]
    assert (row["alive"], row["status"]["state"]) == (False, "starting")
    job.write_text(whole)
    status = json.loads(world.call("job.stop", JOB)[1])
    assert (
        (status["state"], status["reason"])
        == ("failed", "the supervisor exited without writing a result")
        == (
            world.status()["state"],
            world.status()["reason"],
        )
    )


def test_a_session_writes_the_pid_of_the_supervisor(world: World) -> None:
    world.job(command=python("import time; time.sleep(0.5)"))
    container_session(world, {"do": "start", "job": JOB}).communicate(timeout=PATIENCE_S)
    assert (world.folder() / "supervisor.pid").read_text() == str(finish(world)["pid"])


def test_a_job_continues_after_its_session_is_killed(world: World) -> None:
    world.job(command=python("import time; time.sleep(1); print('done')"))
    process = container_session(world, {"do": "start", "job": JOB})
    assert process.stdout is not None and process.stdout.readline()
    process.kill()
    assert finish(world)["state"] == "succeeded"
    assert world.log() == b"[gpu1 0] done\n"


def test_a_session_ends_with_its_input(world: World) -> None:
    world.job()
    process = container_session(world)
    assert process.communicate(timeout=PATIENCE_S) == (b"", b"") and process.returncode == 0
    out, _ = container_session(world, {"do": "dance"}).communicate(timeout=PATIENCE_S)
    assert "dance" in json.loads(out)["refused"]
