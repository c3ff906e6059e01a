"""rank.py as a real process: environment, output, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.container_world import (
    JOB,
    PATIENCE_S,
    World,
    host_entry,
    is_alive,
    python,
    rank_env,
    wait_for,
)
from toolkit.container.conventions import launcher_env, temporary_folder

TAGGED = {"TOOLKIT_JOB": JOB, **rank_env()}
SHOW_ENV = "import json, os; print(json.dumps(dict(os.environ)))"


def shown_env(world: World, **env: str) -> dict[str, str]:
    code, _, err = world.call("job.rank", JOB, **env)
    assert (code, err) == (0, b"")
    found: dict[str, str] = json.loads((world.folder() / "logs" / "rank-0.log").read_text())
    return found


def test_the_rank_gets_its_hosts_environment_and_the_jobs(world: World) -> None:
    world.job(command=python(SHOW_ENV), env={"TOKEN": "s3 'c\" $r"})
    env = shown_env(world, **rank_env(), GLOO_SOCKET_IFNAME="main0", TOOLKIT_SUPERVISOR=JOB)
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"  # this host's, not what main's launcher handed on
    assert env["TOKEN"] == "s3 'c\" $r"
    assert (env["TOOLKIT_JOB"], env["TOOLKIT_HOST"], env["TOOLKIT_RANK"]) == (JOB, "gpu1", "0")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.77.0.2", "29500")
    assert env["PYTHONUNBUFFERED"] == "1"
    assert "TOOLKIT_SUPERVISOR" not in env


def test_under_mpi_the_rank_gets_the_names_that_torch_reads(world: World) -> None:
    world.job(command=python(SHOW_ENV))
    ompi = {"RANK": "0", "SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    stray = {"RANK": "5", "WORLD_SIZE": "9"}  # mpirun hands on main's variables
    env = shown_env(world, **stray, **{f"OMPI_COMM_WORLD_{k}": v for k, v in ompi.items()})
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert [env[name] for name in names] == ["0", "1", "0", "1"]


def test_under_horovods_own_controller_too(world: World) -> None:
    world.job(command=python(SHOW_ENV))
    env = shown_env(world, HOROVOD_RANK="0", HOROVOD_SIZE="1", HOROVOD_LOCAL_RANK="0")
    assert (env["RANK"], env["WORLD_SIZE"]) == ("0", "1")


@pytest.mark.parametrize(
    ("launcher", "master"),
    [
        ("torchrun", ("10.9.9.9", "1234")),
        ("mpirun", ("10.77.0.2", "29500")),
        ("python", ("10.77.0.2", "29500")),
    ],
)
def test_the_master_of_the_launcher_is_kept_but_not_that_of_the_image(
    world: World, launcher: str, master: tuple[str, str]
) -> None:
    world.job(command=python(SHOW_ENV), env={"MASTER_PORT": "1"}, launcher=launcher)
    env = shown_env(world, **rank_env(), MASTER_ADDR="10.9.9.9", MASTER_PORT="1234")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == master


@pytest.mark.parametrize(
    ("env", "gpus", "told"),
    [({}, [], "true"), ({"ACCELERATE_USE_CPU": "false"}, [], "false"), ({}, ["GPU-1"], None)],
)
def test_accelerate_is_told_that_there_is_no_gpu(
    world: World, env: dict[str, str], gpus: list[str], told: str | None
) -> None:
    world.job(command=python(SHOW_ENV), env=env, hosts=[host_entry(gpus=gpus)])
    assert shown_env(world, **rank_env()).get("ACCELERATE_USE_CPU") == told


@pytest.mark.parametrize(
    ("env", "image", "gpus", "expected"),
    [
        ({}, {}, ["GPU-1"], "0"),
        ({"NCCL_CUMEM_HOST_ENABLE": "1"}, {}, ["GPU-1"], "1"),
        ({}, {"NCCL_CUMEM_HOST_ENABLE": "1"}, ["GPU-1"], "1"),
        ({}, {}, [], None),
    ],
)
def test_nccl_does_not_allocate_by_numa_calls_that_docker_refuses(
    world: World, env: dict[str, str], image: dict[str, str], gpus: list[str], expected: str | None
) -> None:
    world.job(command=python(SHOW_ENV), env=env, hosts=[host_entry(gpus=gpus)])
    assert shown_env(world, **rank_env(), **image).get("NCCL_CUMEM_HOST_ENABLE") == expected


@pytest.mark.parametrize(("launcher", "visible"), [("deepspeed", "GPU-1,GPU-2"), ("torchrun", "0")])
def test_all_gpus_of_the_job_are_visible_under_deepspeed(world: World, launcher: str, visible: str) -> None:
    """DeepSpeed's launcher shows only as many GPUs as the host has slots."""
    gpus = host_entry(gpus=["GPU-1", "GPU-2"])
    world.job(command=python(SHOW_ENV), hosts=[gpus], launcher=launcher)
    shown = shown_env(world, **rank_env(), CUDA_VISIBLE_DEVICES="0")
    assert shown["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize(
    ("visible", "seen"),
    [("MIG-a,MIG-b", ["MIG-a", "MIG-b"]), ("GPU-a,GPU-b", ["GPU-a,GPU-b"] * 2), ("", ["", ""])],
)
def test_a_rank_sees_its_own_mig_device_and_all_gpus_of_the_job(
    world: World, visible: str, seen: list[str]
) -> None:
    show = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', ''))"
    gpus = visible.split(",") if visible else []
    world.job(
        command=python(show), hosts=[host_entry(slots=2, gpus=gpus, visible=visible)], world_sizes=[2, 2]
    )
    for rank, own in enumerate(seen):
        env = {**rank_env(rank, 2), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        assert world.call("job.rank", JOB, **env)[0] == 0
        assert (world.folder() / "logs" / f"rank-{rank}.log").read_text() == f"{own}\n"


@pytest.mark.parametrize(
    ("env", "image", "inductor", "triton"),
    [
        ({}, {}, "/tmp/toolkit-compiled/inductor", "/tmp/toolkit-compiled/triton"),
        ({"TORCHINDUCTOR_CACHE_DIR": "/file"}, {"TRITON_CACHE_DIR": "/image"}, "/file", "/image"),
    ],
)
def test_ranks_share_folders_for_compiled_code_unless_others_are_named(
    world: World, env: dict[str, str], image: dict[str, str], inductor: str, triton: str
) -> None:
    world.job(command=python(SHOW_ENV), env=env)
    shown = shown_env(world, **rank_env(), **image)
    assert (shown["TORCHINDUCTOR_CACHE_DIR"], shown["TRITON_CACHE_DIR"]) == (inductor, triton)


@pytest.mark.parametrize(
    ("image", "file", "expected"),
    [
        ({}, {}, None),
        ({"TMPDIR": "/image"}, {}, "/image"),
        ({"TMPDIR": "/image"}, {"TMPDIR": "/file"}, "/file"),
    ],
)
def test_a_rank_has_tmpdir_of_the_image_and_not_of_its_launcher(
    world: World, image: dict[str, str], file: dict[str, str], expected: str | None
) -> None:
    world.job(command=python(SHOW_ENV), env=file)
    launcher = launcher_env(launcher_env(image, JOB), JOB)  # of the supervisor, and of job.launch
    assert launcher["TMPDIR"] == str(temporary_folder(JOB))
    shown = shown_env(world, **rank_env(), **launcher)
    assert shown.get("TMPDIR") == expected and "TOOLKIT_TMPDIR" not in shown


@pytest.mark.parametrize("option", ["--local_rank", "--local-rank"])
def test_the_local_rank_is_the_first_argument_of_a_script_that_takes_it(world: World, option: str) -> None:
    folder = world.job(command=[sys.executable, "show.py", "--epochs", "3"], local_rank_word=option)
    (folder / "code" / "show.py").write_text("import sys; print(*sys.argv)")
    assert world.call("job.rank", JOB, **rank_env())[0] == 0
    assert (folder / "logs" / "rank-0.log").read_text() == f"show.py {option}=0 --epochs 3\n"


@pytest.mark.parametrize("name", ["python", "python3"])
def test_python_is_python3_in_an_image_without_python(world: World, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('#!/bin/sh\necho "${0##*/}" "$@"\n')
    (tmp_path / name).chmod(0o755)
    world.job(command=["python", "train.py"])
    assert world.call("job.rank", JOB, **rank_env(), PATH=str(tmp_path))[0] == 0
    assert (world.folder() / "logs" / "rank-0.log").read_text() == f"{name} train.py\n"


def test_a_launcher_may_say_what_the_rank_executes(world: World) -> None:
    world.job(command=["accelerate", "launch", "--cpu", "x.py"])
    assert world.call("job.rank", JOB, *python("print('plain')"), **rank_env())[0] == 0
    assert (world.folder() / "logs" / "rank-0.log").read_text() == "plain\n"


RULES = "OMPI_MCA_coll_tuned_dynamic_rules_filename"


def test_what_was_tuned_reaches_the_rank_and_everybody_else_wins_over_it(world: World) -> None:
    tuned = dict.fromkeys(("A", "B", "C", "D", "E", "GLOO_SOCKET_IFNAME"), "tuned")
    env = {"B": "file", "C": "file", "D": "file"}
    own = {"gpu1": {"C": "host", "D": "host"}, "gpu2": {"C": "other"}}
    world.job(command=python(SHOW_ENV), tuned=tuned, env=env, host_env=own, override={"D": "line"})
    env = shown_env(world, **rank_env(), A="launcher", E="launcher")
    assert [env[name] for name in "ABCDE"] == ["tuned", "file", "host", "line", "tuned"]
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert RULES not in env and not (world.folder() / "allreduce.rules").exists()


def test_the_file_of_rules_is_written_into_the_jobs_folder_and_named(world: World) -> None:
    folder = world.job(command=python(SHOW_ENV), tuned={"A": "1"}, rules="1\n2\n", world_size=2)
    for rank in (0, 1):
        code, _, err = world.call("job.rank", JOB, **rank_env(rank, 2))
        assert (code, err) == (0, b"")
        env = json.loads((folder / "logs" / f"rank-{rank}.log").read_text())
        assert (env[RULES], env["A"]) == (str(folder / "allreduce.rules"), "1")
    assert (folder / "allreduce.rules").read_text() == "1\n2\n"
    # Each rank of a host writes the same; nothing half-written stays beside it.
    assert [path.name for path in folder.glob("allreduce.rules*")] == ["allreduce.rules"]


def test_a_file_of_rules_that_is_there_is_not_written_again(world: World) -> None:
    """A restart on a full disk finds that of the attempt before."""
    folder = world.job(command=python("print('hello')"), rules="1\n2\n")
    program = world.driver(
        """
from toolkit.container.job import rank
def full(path, text):
    raise OSError(28, "No space left on device")
rank.write_text = full
sys.exit(rank.main())
"""
    )
    code, _, err = world.call(program, JOB, **rank_env())
    told = f"gpu1 0: cannot write {folder}/allreduce.rules: No space left on device"
    assert (code, err.decode()) == (73, f"[toolkit] {told}\n")
    record = json.loads((folder / "logs" / "rank-0.exit").read_text())
    assert (record["exit_code"], record["last"]) == (73, [told])
    (folder / "allreduce.rules").write_text("1\n2\n")
    assert world.call(program, JOB, **rank_env())[0] == 0


@pytest.mark.parametrize("where", ["env", "override"])
def test_a_file_of_rules_that_a_person_names_wins(world: World, where: str) -> None:
    world.job(command=python(SHOW_ENV), rules="1\n2\n", **{where: {RULES: "/data/rules"}})
    assert shown_env(world, **rank_env())[RULES] == "/data/rules"


def test_a_wrong_world_size_is_refused_by_both_numbers(world: World) -> None:
    world.job(world_size=4, command=python("print('must not run')"))
    code, out, err = world.call("job.rank", JOB, **rank_env(0, 2))
    assert code == 64
    assert b"world size to 2, but the job requires 4" in err
    assert out == b"" and not (world.folder() / "logs" / "rank-0.log").exists()


def test_no_launcher_is_refused(world: World) -> None:
    world.job()
    code, _, err = world.call("job.rank", JOB)
    assert code == 64 and b"gpu1" in err


def test_a_job_that_is_not_there_and_a_path_as_job_id(world: World) -> None:
    assert world.call("job.rank", "nothing", **rank_env())[0] == 66
    assert world.call("job.rank", "../conf", **rank_env())[0] == 64


def test_lines_are_prefixed_on_their_own_stream(world: World) -> None:
    world.job(command=python("import sys; print('out'); print('err', file=sys.stderr)"))
    code, out, err = world.call("job.rank", JOB, **rank_env())
    assert (code, out, err) == (0, b"[gpu1 0] out\n", b"[gpu1 0] err\n")
    log = (world.folder() / "logs" / "rank-0.log").read_bytes()
    assert sorted(log.splitlines()) == [b"err", b"out"]


def test_five_megabytes_in_one_line_and_bytes_of_all_kinds(world: World) -> None:
    code = "import os, sys; w = sys.stdout.buffer.write; w(b'x' * 5_000_000); w(bytes(range(9, 256)))"
    world.job(command=python(code))
    status, out, _ = world.call("job.rank", JOB, **rank_env())
    assert status == 0
    written = b"x" * 5_000_000 + bytes(range(9, 256))
    assert (world.folder() / "logs" / "rank-0.log").read_bytes() == written
    shown = b"".join(line[len(b"[gpu1 0] ") :] for line in out.split(b"\n"))
    assert shown == written.translate(None, b"\r\n")


def test_an_unfinished_line_is_shown_while_the_rank_works(world: World) -> None:
    world.job(command=python("import time; print('50%', end=''); time.sleep(60)"))
    process = world.start("job.rank", JOB, **rank_env())
    assert process.stdout is not None
    assert process.stdout.readline() == b"[gpu1 0] 50%\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 11)", 139),
    ],
)
def test_the_exit_code_is_the_commands(world: World, code: str, expected: int) -> None:
    world.job(command=python(code))
    assert world.call("job.rank", JOB, **rank_env())[0] == expected
    record = json.loads((world.folder() / "logs" / "rank-0.exit").read_text())
    assert (record["rank"], record["host"], record["exit_code"]) == (0, "gpu1", expected)


def test_a_command_that_is_not_there(world: World) -> None:
    world.job(command=["no-such-program"])
    code, _, err = world.call("job.rank", JOB, **rank_env())
    assert code == 127 and b"[gpu1 0] [toolkit] cannot start no-such-program" in err


PID_THEN_SLEEP = "import os, time; print(os.getpid()); time.sleep(60)"


def pid_from(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline().split()[-1])


def test_sigkill_of_rank_py_ends_the_child(world: World) -> None:
    world.job(command=python(PID_THEN_SLEEP))
    process = world.start("job.rank", JOB, **rank_env())
    pid = pid_from(process)
    process.kill()
    wait_for(lambda: not is_alive(pid))


def test_sigterm_reaches_the_childs_whole_group(world: World) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "helper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(helper.pid); time.sleep(60)"
    )
    world.job(command=python(code))
    process = world.start("job.rank", JOB, **rank_env())
    helper = pid_from(process)
    process.terminate()
    assert process.wait(timeout=PATIENCE_S) == 143
    wait_for(lambda: not is_alive(helper))


def test_the_rank_ends_when_its_launcher_is_gone(world: World) -> None:
    world.job(command=python(PID_THEN_SLEEP))
    launcher = f"import subprocess, sys, time\nsubprocess.Popen({world.rank_argv()!r}); time.sleep(60)"
    script = world.root / "launcher.py"
    script.write_text(launcher)
    process = world.start(str(script), **rank_env())
    pid = pid_from(process)
    process.kill()
    wait_for(lambda: not is_alive(pid))


def test_a_helper_that_keeps_the_pipes_open_does_not_keep_the_rank(world: World) -> None:
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('done')"
    )
    world.job(command=python(code))
    process = world.start("job.rank", JOB, **rank_env())
    started = time.monotonic()
    assert process.wait(timeout=PATIENCE_S) == 0
    assert time.monotonic() - started < 300


def test_a_rank_continues_without_a_reader_of_its_output(world: World) -> None:
    code = "import time\nfor i in range(3): print(i, flush=True); time.sleep(0.1)"
    world.job(command=python(code))
    process = world.start("job.rank", JOB, **rank_env())
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.wait(timeout=PATIENCE_S) == 0
    assert (world.folder() / "logs" / "rank-0.log").read_bytes() == b"0\n1\n2\n"


def test_sigint_gives_130(world: World) -> None:
    code = "import signal, time; signal.signal(2, signal.SIG_DFL); print(0); time.sleep(60)"
    world.job(command=python(code))
    process = world.start("job.rank", JOB, **rank_env())
    pid_from(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE_S) == 130


# A data-loader worker, wandb or TensorBoard: it inherits the rank's output and prints without end.
LOOP = "while :; do echo alive; sleep 0.05; done"


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_a_child_that_prints_without_end_does_not_hide_the_exit_of_its_rank(world: World) -> None:
    world.job(command=shell(f"({LOOP}) & echo pid=$!; exit 3"))
    code, out, _ = world.call("job.rank", JOB, **rank_env())
    assert code == 3
    record = json.loads((world.folder() / "logs" / "rank-0.exit").read_text())
    assert (record["exit_code"], record["signal"]) == (3, 0)
    child = int(out.split(b"pid=")[1].split()[0])
    assert not is_alive(child)


def test_a_child_that_ignores_term_is_killed_with_its_rank(world: World) -> None:
    world.job(command=shell(f"(trap '' TERM; {LOOP}) & echo pid=$!; exit 3"), grace=60.0)
    code, out, _ = world.call("job.rank", JOB, **rank_env())
    assert code == 3
    assert not is_alive(int(out.split(b"pid=")[1].split()[0]))


def test_the_exit_is_recorded_before_the_children_have_ended(world: World) -> None:
    world.job(command=shell(f"(trap '' TERM; {LOOP}) & echo pid=$!; exit 0"), grace=60.0)
    process = world.start("job.rank", JOB, **rank_env())
    child = pid_after(process, b"pid=")
    wait_for((world.folder() / "logs" / "rank-0.exit").exists)
    assert is_alive(child) and process.poll() is None  # the rank did not fail, so the child has its grace
    os.kill(child, signal.SIGKILL)
    assert process.wait(timeout=PATIENCE_S) == 0


def test_a_child_saves_in_its_grace_though_its_rank_is_gone(world: World) -> None:
    # The shell dies of the TERM at once; what it runs has a handler.
    code = (
        "import os, signal, sys, time\n"
        "def save(*_): time.sleep(1.5); open('saved', 'w').close(); sys.exit(0)\n"
        "signal.signal(15, save); print(f'pid={os.getpid()}', flush=True); time.sleep(60)"
    )
    (world.job(command=["sh", "-c", f'{sys.executable} -c "$CODE"; exit 0'], env={"CODE": code}, grace=20.0))
    process = world.start("job.rank", JOB, **rank_env())
    pid_after(process, b"pid=")
    process.terminate()
    assert process.wait(timeout=PATIENCE_S) == 143
    assert (world.folder() / "code" / "saved").exists()


def test_a_child_saves_in_the_grace_of_the_whole_job_though_its_rank_is_gone(world: World) -> None:
    # `toolkit stop` signals the rank's processes by their mark, not rank.py. It alone says when KILL comes.
    code = (
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    terms.append(1); time.sleep(2.5); print('terms', len(terms), flush=True); sys.exit(0)\n"
        "terms = []; signal.signal(15, save); print(f'pid={os.getpid()}', flush=True); time.sleep(600)"
    )
    world.job(command=["sh", "-c", f'{sys.executable} -c "$CODE"; exit 0'], env={"CODE": code}, grace=0.1)
    process = world.start("job.rank", JOB, **rank_env())
    child = pid_after(process, b"pid=")
    sweep = world.start("job.orphans", JOB, "--grace", str(PATIENCE_S), "--ranks")
    wait_for(lambda: not is_alive(child))
    assert sweep.wait(timeout=PATIENCE_S) == 0
    process.terminate()  # by the launcher, which the supervisor stops after the ranks
    assert process.wait(timeout=PATIENCE_S) == 143
    assert b"terms 1\n" in (world.folder() / "logs" / "rank-0.log").read_bytes()


def test_a_rank_waits_for_the_grace_of_a_stop_that_is_longer_than_the_jobs(world: World) -> None:
    """Its own children save for 40 s, and another rank for 100 s; each look at the clock takes 1 s."""
    world.job(grace=1.0)
    program = world.driver(
        f"""
import os
from pathlib import Path
from toolkit.container.conventions import STOPPING, job_folder
from toolkit.container.job import child, orphans
from toolkit.container.logs.lines import Stream
from toolkit.container.logs.log import Log

now = 0.0

def clock():
    global now
    now += 1.0
    return now

stopping = job_folder({JOB!r}) / STOPPING
assert orphans.end({JOB!r}, 60.0, ranks=True) == []  # what a lease does after `toolkit stop --grace 60`
log = Log(job_folder({JOB!r}) / "log", 1 << 20)
rank = child.Child(["true"], "/", dict(os.environ), Path("/nonexistent"), clock)
assert rank.copy((Stream(1, b""), Stream(2, b"")), log, 1.0) == 0
began = now
child.alive_in = lambda group: [0] if now < began + 40 else []
rank.end_group(1.0, stopping)
print(now >= began + 40)
child.POLL_S, began = 0, now
rank.hold(stopping, 1.0)
print(now - began >= 100)
"""
    )
    status, out, err = world.call(program)
    assert (status, out) == (0, b"True\nTrue\n"), err.decode()


def test_the_last_output_of_an_exited_child_is_kept(world: World) -> None:
    gone, log = world.root / "gone", world.root / "log"
    program = world.driver(
        f"""
import os, time
from pathlib import Path
from toolkit.container.job import child
from toolkit.container.logs.lines import Stream
from toolkit.container.logs.log import Log

gone = Path({str(gone)!r})
words = ["sh", "-c", f"(sleep 1; printf 'last words\\n'; : >{{gone}}) & exit 0"]
log = Log(Path({str(log)!r}), 1 << 20)
rank = child.Child(words, "/", dict(os.environ), Path("/nonexistent"))
assert rank.copy((Stream(1, b""), Stream(2, b"")), log, 1.0) == 0

def alive_in(group):  # it ends between the reading of its output and this look
    while not gone.exists():
        time.sleep(0.01)
    return []

child.alive_in = alive_in
rank.end_group(1.0, Path("/nonexistent"))
"""
    )
    status, out, err = world.call(program)
    assert (status, out) == (0, b"last words\n"), err.decode()
    assert log.read_bytes() == b"last words\n"


def test_a_log_that_cannot_be_written_is_the_reason_of_the_rank(world: World) -> None:
    world.job()
    (world.folder() / "logs" / "rank-0.log").mkdir(parents=True)
    code, _, err = world.call("job.rank", JOB, **rank_env())
    assert code == 73 and b"cannot write" in err
    record = json.loads((world.folder() / "logs" / "rank-0.exit").read_text())
    assert record["exit_code"] == 73 and "cannot write" in record["last"][0]


def pid_after(process: subprocess.Popen[bytes], word: bytes) -> int:
    assert process.stdout is not None
    while word not in (line := process.stdout.readline()):
        assert line, "no such line"
    return int(line.split(word)[1])


# The log of one rank, followed


def test_the_log_of_a_rank_that_was_started_again_is_followed_to_its_new_end(world: World) -> None:
    goes_on = world.root / "goes-on"
    start = "import os, time\nprint('again', flush=True)"
    wait = f"while not os.path.exists({str(goes_on)!r}): time.sleep(.01)"
    folder = world.job(command=python("print('first')"))
    assert world.call("job.rank", JOB, **TAGGED)[0] == 0
    assert (folder / "logs" / "rank-0.exit").exists(), "the record of the first attempt stays"
    rank = world.start("job.rank", JOB, *python(f"{start}\n{wait}\nprint('end')"), **TAGGED)
    wait_for(lambda: b"again" in (folder / "logs" / "rank-0.log").read_bytes())
    follower = world.start("logs.follow", JOB, "--rank", "0")
    assert follower.stdout is not None and rank.stdout is not None
    assert follower.stdout.readline() == b"first\n" and follower.stdout.readline() == b"again\n"
    goes_on.touch()
    out, _ = follower.communicate(timeout=PATIENCE_S)
    assert (follower.returncode, out) == (0, b"end\n")


def test_following_the_log_of_a_killed_rank_ends(world: World) -> None:
    """A killed rank leaves no exit record."""
    folder = world.job(command=python("import time\nprint('on', flush=True)\ntime.sleep(600)"))
    rank = world.start("job.rank", JOB, **TAGGED)
    wait_for(lambda: (folder / "logs" / "rank-0.log").exists())
    follower = world.start("logs.follow", JOB, "--rank", "0")
    assert follower.stdout is not None and follower.stdout.readline() == b"on\n"
    rank.kill()
    rank.wait()
    assert follower.wait(PATIENCE_S) == 0


def test_where_the_supervisor_runs_a_rank_is_followed_to_the_end_of_the_job(world: World) -> None:
    code = "import os\nn = os.environ['TOOLKIT_RESTART']\nprint(n, flush=True)\nraise SystemExit(n == '0')"
    world.job(command=python(code), max_restarts=1, networks=[])
    world.mpirun_of_one_rank()
    supervisor = world.start("job.supervisor", JOB, **world.with_bin())
    status, out, _ = world.call("logs.follow", JOB, "--rank", "0")
    supervisor.communicate(timeout=PATIENCE_S)
    assert (status, out, world.status()["state"]) == (0, b"0\n1\n", "succeeded")


def still_follows(follower: subprocess.Popen[bytes], world: World) -> None:
    """Require that a follower of rank 0, which has ended, prints more than what follows at once."""
    assert follower.stdout is not None
    for text in (b"more\n", b"and more\n"):
        with (world.folder() / "logs" / "rank-0.log").open("ab") as log:
            log.write(text)
        assert follower.stdout.readline() == text


def test_a_rank_without_a_supervisor_on_its_host_is_followed_through_a_restart(world: World) -> None:
    """Main has the status of the job. A worker has only the lease, and a mark between two attempts."""
    number = "import os\nprint('attempt', os.environ['TOOLKIT_RESTART'], flush=True)\nraise SystemExit(1)"
    folder = world.job(command=python(number), max_restarts=1)
    assert world.call("job.rank", JOB, **TAGGED)[0] == 1
    assert world.call("job.orphans", JOB, "--grace", "0", "--keep")[0] == 0
    follower = world.start("logs.follow", JOB, "--rank", "0")
    assert follower.stdout is not None and follower.stdout.readline() == b"attempt 0\n"
    still_follows(follower, world)
    (folder / "attempt.json").write_text('{"attempt": 1}')
    assert world.call("job.rank", JOB, **TAGGED)[0] == 1
    assert follower.stdout.readline() == b"attempt 1\n"
    still_follows(follower, world)
    assert world.call("job.orphans", JOB, "--grace", "0")[0] == 0
    assert follower.communicate(timeout=PATIENCE_S)[0] == b"" and follower.returncode == 0


def test_a_rank_is_followed_while_its_host_has_the_lease_of_the_job(world: World) -> None:
    world.job(command=python("print('done')"))
    assert world.call("job.rank", JOB, **TAGGED)[0] == 0
    world.lease().write_bytes(b"%020.3f\n" % (time.monotonic() + 600))
    follower = world.start("logs.follow", JOB, "--rank", "0")
    assert follower.stdout is not None and follower.stdout.readline() == b"done\n"
    still_follows(follower, world)
    world.lease().write_bytes(b"%020.3f\n" % (time.monotonic() - 1))
    assert follower.wait(PATIENCE_S) == 0


def test_a_restart_that_never_comes_is_not_awaited_forever(world: World) -> None:
    """Main was lost between two attempts."""
    folder = world.job(command=python("print('done')"))
    assert world.call("job.rank", JOB, **TAGGED)[0] == 0
    assert world.call("job.orphans", JOB, "--grace", "0", "--keep")[0] == 0
    long_ago = time.time() - 3600
    os.utime(folder / "restart", (long_ago, long_ago))
    assert world.call("logs.follow", JOB, "--rank", "0")[:2] == (0, b"done\n")
