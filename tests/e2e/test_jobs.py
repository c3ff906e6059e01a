"""Jobs on two real hosts: every launcher, exit codes, Ctrl-C, a lost command, secrets."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e import waiting
from tests.e2e.world import Toolkit, interrupt, logins, marked, on, outer, sh, watched_processes

pytestmark = pytest.mark.lab


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts."""
    return standing


ACCURACY = re.compile(r"^\[(box\d) (\d)\] rank (\d): test accuracy (\d\.\d+)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("launcher", "script"),
    [
        ("horovodrun", "train_horovod.py"),
        pytest.param("mpirun", "train_horovod.py", marks=pytest.mark.rare),
        ("torchrun", "train_ddp.py"),
    ],
)
def test_a_model_learns_digits_across_both_hosts(up: Toolkit, launcher: str, script: str) -> None:
    with watched_processes() as seen:
        words = ("--launcher", launcher, "--workdir", "examples/digits", script)
        done = up.run("run", *words, check=True)
    rows = ACCURACY.findall(done.out)
    assert {(host, rank) for host, rank, _, _ in rows} == {("box1", "0"), ("box2", "1")}
    assert len({accuracy for *_, accuracy in rows}) == 1 and float(rows[0][3]) >= 0.95
    # No process of any host turns host key checking off during the complete run.
    assert len(seen) > 20
    assert not [line for line in seen if re.search("StrictHostKeyChecking[= ](no|off)", line)]
    assert not [line for line in seen if "PRIVATE KEY" in line]


def test_a_rotary_language_model_learns_in_bf16_and_resumes_from_its_checkpoint(up: Toolkit) -> None:
    # Rank 1 must not meet the store of the first run, which rank 0 closes a little later.
    text = (
        "set -e; train='python train_rotary.py --precision bf16 --batch-size 4'; $train --steps 10; "
        "MASTER_PORT=$((MASTER_PORT + 1)) $train --steps 30"
    )
    words = ("--no-fold", "--launcher", "python", "--workdir", "examples/text", "--", "sh", "-c", text)
    out = up.run("run", *words, check=True, timeout=300).out
    losses = re.findall(r"^\[box(\d) \d\] rank \d: test loss (\d+\.\d+)$", out, re.MULTILINE)
    assert sorted(box for box, _ in losses) == ["1", "1", "2", "2"]
    first, last = (float(loss) for loss in dict.fromkeys(loss for _, loss in losses))
    assert 3.5 > first > last > 1.0
    assert out.count("resumes after step 10 of 30") == 1


@pytest.mark.parametrize("option", [pytest.param("--local_rank", marks=pytest.mark.rare), "--local-rank"])
def test_a_script_for_torch_distributed_launch_receives_its_local_rank(
    up: Toolkit, tmp_path: Path, option: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse, torch.distributed as dist\n"
        f"parser = argparse.ArgumentParser()\nparser.add_argument({option!r}, type=int, required=True)\n"
        "parser.add_argument('--lr', type=float)\nargs = parser.parse_args()\n"
        "dist.init_process_group('gloo')\n"
        "print('PLACE', dist.get_rank(), dist.get_world_size(), args.local_rank, args.lr)\n"
        "dist.barrier()  # gloo: a rank that ends early fails the start of the other\n"
        "dist.destroy_process_group()\n"
    )
    words = ("--no-fold", "--launcher", "torchrun", "--workdir", str(tmp_path), "train.py", "--lr", "0.5")
    out = up.run("run", *words, check=True).out
    assert set(re.findall(r"PLACE .*$", out, re.MULTILINE)) == {"PLACE 0 2 0 0.5", "PLACE 1 2 0 0.5"}


def test_a_script_that_takes_rank_and_world_size_runs_by_the_pattern_of_the_docs(
    up: Toolkit, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/frameworks.md").read_text()
    found = re.search(r"^    toolkit (run --launcher python (?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert found is not None
    names = ("--rank", "--world-size", "--device-id", "--init-method")
    assert all(f"{name} " in found[1] for name in names)
    (tmp_path / "train.py").write_text(
        "import argparse, torch.distributed as dist\nparser = argparse.ArgumentParser()\n"
        f"[parser.add_argument(name, required=True) for name in {names}]\nargs = parser.parse_args()\n"
        "dist.init_process_group('gloo', init_method=args.init_method, rank=int(args.rank), "
        "world_size=int(args.world_size))\n"
        "print('PLACE', dist.get_rank(), dist.get_world_size(), args.device_id)\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    verb, *words = shlex.split(found[1])
    out = up.run(verb, "--no-fold", "--workdir", str(tmp_path), *words, check=True).out
    assert set(re.findall(r"PLACE .*$", out, re.MULTILINE)) == {"PLACE 0 2 0", "PLACE 1 2 0"}


# Compiles a function for each factor by torch.compile, a C module as Triton does, and an extension in C++
# with headers of torch. Prints the user, the owners of the compiled libraries, values of both modules, the
# folder of compiled code, and the hits and misses in the cache of compiled functions.
COMPILES = """
import importlib.util, os, pathlib, subprocess, sys, sysconfig, tempfile
import torch
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.utils.cpp_extension import include_paths

METHOD = (
    '#include <Python.h>\\n%s'
    'static PyObject *twice(PyObject *self, PyObject *given) { return PyFloat_FromDouble(%s); }\\n'
    'static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {NULL, NULL, 0, NULL}};\\n'
    'static struct PyModuleDef made = {PyModuleDef_HEAD_INIT, "%s", NULL, -1, methods};\\n'
    'PyMODINIT_FUNC PyInit_%s(void) { return PyModule_Create(&made); }\\n'
)

def built(name, compiler, suffix, includes, value):
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder, name + suffix), pathlib.Path(folder, name + '.so')
        source.write_text(METHOD % (includes, value, name, name))
        folders = [f'-I{path}' for path in (sysconfig.get_path('include'), *include_paths())]
        subprocess.run([*compiler, '-shared', '-fPIC', *folders, source, '-o', library], check=True)
        spec = importlib.util.spec_from_file_location(name, library)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

stub = built('stub', ['cc'], '.c', '', '2 * PyFloat_AsDouble(given)')
half = '2 * static_cast<float>(c10::Half(static_cast<float>(PyFloat_AsDouble(given))))'
extension = built('extension', ['c++', '-std=c++20'], '.cpp', '#include <c10/util/Half.h>\\n', half)
x = torch.arange(4096.0).reshape(64, 64)
for factor in sys.argv[1:]:
    function = eval(f'lambda x: (x.sin() * {factor} + x.cos()).sum(0)')
    torch.testing.assert_close(torch.compile(function, fullgraph=True)(x), function(x), rtol=1e-4, atol=1e-3)
libraries = list(pathlib.Path(cache_dir()).rglob('*.so'))
found = counters['inductor']
print(
    'COMPILED', os.getuid(), {each.stat().st_uid for each in libraries}, stub.twice(0.1),
    extension.twice(0.1), cache_dir(), os.environ['TORCH_DISABLE_NATIVE_JIT'],
    found['fxgraph_cache_hit'], found['fxgraph_cache_miss'],
)
"""


def test_functions_are_compiled_on_both_hosts_as_the_user_and_kept_for_the_next_job(up: Toolkit) -> None:
    # Factors that no earlier job on these containers has compiled.
    first, second = (f"{number}.{time.time_ns()}" for number in (1, 2))
    for words, factors, told in (
        ((), (first,), "1 0 1"),
        (("--env", "TORCH_DISABLE_NATIVE_JIT=0"), (first, second), "0 1 1"),
    ):
        given = (*words, "--no-fold", "--launcher", "torchrun", "--workdir", "examples", "--", "python", "-c")
        out = up.run("run", *given, COMPILES, *factors, check=True, timeout=900).out
        rows = re.findall(r"^\[(box\d \d)\] COMPILED (.*)$", out, re.MULTILINE)
        # The second number went through half precision.
        row = f"1000 {{1000}} 0.2 0.199951171875 /tmp/toolkit-compiled/inductor {told}"
        assert dict(rows) == {"box1 0": row, "box2 1": row}, out


def test_mpi_itself_runs_across_both_hosts(up: Toolkit) -> None:
    text = (
        "from mpi4py import MPI; import numpy as np; c=MPI.COMM_WORLD; a=np.full(1<<20, c.rank+1.0); "
        "b=np.empty_like(a); c.Allreduce(a,b); print('SUM', b[0], b[-1], c.size)"
    )
    out = up.run(
        "run", "--launcher", "mpirun", "--workdir", "examples", "--", "python", "-c", text, check=True
    ).out
    assert out.count("SUM 3.0 3.0 2") == 2


@pytest.mark.parametrize(
    "launcher", ["horovodrun", pytest.param("mpirun", marks=pytest.mark.rare), "torchrun"]
)
def test_the_exit_code_is_the_commands(up: Toolkit, launcher: str) -> None:
    text = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(7); time.sleep(300)"
    done = up.run("run", "--launcher", launcher, "--workdir", "examples", "--", "python", "-c", text)
    assert done.status == 7 and "rank 1 on box2 exited with code 7" in done.out
    assert done.seconds < 240, "not when the other rank ends"
    assert not any(marked(host, "TOOLKIT_JOB=" + _job(done.err)) for host in ("box1", "box2"))


def test_np_only_and_timeout(up: Toolkit) -> None:
    words = (
        "--workdir",
        "examples",
        "--",
        "python",
        "-c",
        "import os; print('SIZE', os.environ['WORLD_SIZE'])",
    )
    assert "[box1 0] SIZE 1" in up.run("run", "--np", "1", *words, check=True).out
    assert "[box2 0] SIZE 1" in up.run("run", "--only", "box2", *words, check=True).out
    slow = ("--timeout", "6", "--workdir", "examples", "--", "sleep", "100")
    done = up.run("run", "--json", *slow)
    assert done.status == 124 and done.json["state"] == "timeout"


def test_interrupt_ends_the_job_everywhere_and_only_it(up: Toolkit) -> None:
    stranger = subprocess.Popen(
        [
            "docker",
            "exec",
            outer("box2"),
            "bash",
            "-c",
            "exec -a 'python train.py' sleep 120",
        ]
    )
    words = ("--workdir", "examples", "--launcher", "mpirun", "--", "sh", "-c", "echo here; sleep 100")
    process = up.start("run", *words)
    try:
        job = _job(_read_until(process, "here"))
        assert marked("box1", f"TOOLKIT_JOB={job}") and marked("box2", f"TOOLKIT_JOB={job}")
        interrupt(process)
        out, _ = process.communicate(timeout=180)
        assert process.returncode == 130, out
        assert f"stopping {job} on all hosts" in out and f"job {job}: stopped" in out
        for host in ("box1", "box2"):
            assert marked(host, f"TOOLKIT_JOB={job}") == []
        assert stranger.poll() is None
        assert up.run("status", check=True).status == 0
    finally:
        process.kill()
        stranger.kill()
        sh(
            "box2",
            "for p in /proc/[0-9]*; do grep -aq '^python train.py' $p/cmdline && kill ${p#/proc/}; done",
        )


def test_a_job_outlives_the_command_that_started_it(up: Toolkit) -> None:
    text = (
        "import os, time; print('begun', flush=True)\n"
        "while not os.path.exists('go-on'): time.sleep(0.2)\n"
        "print('still here')"
    )
    words = ("--workdir", "examples", "--launcher", "mpirun", "--", "python", "-c", text)
    process = up.start("run", *words)
    job = _job(_read_until(process, "begun"))
    process.kill()
    process.wait()
    refused = up.run("run", *words)
    assert refused.status == 3 and job in refused.err
    for host in ("box1", "box2"):
        sh(host, f"touch /home/trainer/.local/state/toolkit/two/{host}/jobs/{job}/code/go-on")
    assert up.run("attach", job, check=True).out.count("still here") == 2
    jobs = up.run("status", "--json", check=True).json["jobs"]
    assert next(j for j in jobs if j["id"] == job)["state"] == "succeeded"


def test_stop_ends_a_detached_job(up: Toolkit) -> None:
    words = ("-d", "--json", "--workdir", "examples", "--launcher", "torchrun", "--", "sleep", "300")
    job = up.run("run", *words, check=True).json["job"]
    waiting.rank_runs("box2", job, "sleep 300")
    assert up.run("stop", job, "--json", check=True).json["state"] == "stopped"
    assert not marked("box1", f"TOOLKIT_JOB={job}") and not marked("box2", f"TOOLKIT_JOB={job}")


def test_up_does_not_end_a_running_job(up: Toolkit, tmp_path: Path) -> None:
    job = up.run("run", "-d", "--json", "--workdir", "examples", "--", "sleep", "300", check=True).json["job"]
    try:
        changed = Toolkit(tmp_path / "hosts.yaml", tmp_path)
        changed.hosts.write_text(up.hosts.read_text() + "shm_size: 1g\n")
        refused = changed.run("up")
        assert refused.status == 3 and job in refused.err and "--force" in refused.err
        assert up.run("up", "--json", check=True).json["changes"] == 0
    finally:
        up.run("stop", job, check=True)


def test_a_job_whose_main_went_down_is_lost_and_not_in_the_way(up: Toolkit) -> None:
    job = up.run("run", "-d", "--json", "--workdir", "examples", "--", "sleep", "300", check=True).json["job"]
    waiting.rank_runs("box2", job, "sleep 300")
    on("box1", "docker", "rm", "-f", "toolkit-two-main")
    # Without main no process keeps the worker's ranks alive.
    waiting.job_gone("box2", job)
    up.run("up", check=True)
    jobs = up.run("status", "--json", check=True).json["jobs"]
    assert next(j for j in jobs if j["id"] == job)["state"] == "lost"
    up.run("run", "--workdir", "examples", "--", "true", check=True)


def test_exec_ends_what_is_late(up: Toolkit) -> None:
    done = up.run("exec", "--timeout", "2", "box2", "--", "sleep", "98765")
    assert done.status == 124 and done.seconds < 120 and done.err == "the command did not finish within 2 s\n"
    assert "98765" not in on("box2", "ps", "-ef")


def test_what_exec_and_shell_print_comes_as_it_is_printed(up: Toolkit) -> None:
    wait = "while [ ! -e /tmp/heard ]; do sleep 0.1; done; rm /tmp/heard"
    script = f"printf '\\377 out'; printf 'beside' >&2; {wait}; echo ' end'; exit 7"
    ways = ((["exec", "box2", "--", "sh", "-c", script], None), (["shell", "box2"], script.encode()))
    for words, given in ways:
        with subprocess.Popen(
            [up.program, *words], cwd=up.folder, env=up.env, stdin=-1, stdout=-1, stderr=-1
        ) as process:
            assert process.stdin and process.stdout and process.stderr
            process.stdin.write(given or b"")
            process.stdin.close()
            assert process.stdout.read(5) == b"\xff out" and process.stderr.read(6) == b"beside"
            sh("box2", "docker exec toolkit-two-worker touch /tmp/heard")
            assert (process.stdout.read(), process.stderr.read(), process.wait()) == (b" end\n", b"", 7)


def test_what_exec_runs_ends_with_it(up: Toolkit) -> None:
    script = "trap '' TERM; echo begun; while :; do sleep 0.98765; done"
    for way in (["box2"], ["--all"]):
        process = up.start("exec", *way, "--", "sh", "-c", script)
        waiting.program_runs("box2", "sleep 0.98765")
        interrupt(process)
        assert process.wait(120) != 0
        waiting.program_gone("box2", "0.98765")


def test_ranks_have_arguments_and_variables_as_given_and_their_hosts_interface(up: Toolkit) -> None:
    awkward = ["a b", "it's", '"q"', "$HOME `id` ;&|", "line\nbreak", "ümläut", "\\", "*", ""]
    script = (
        "import sys, os, json; print('GOT', json.dumps([sys.argv[1:], os.environ['ODD']]))\n"
        "print('IF', os.environ['NCCL_SOCKET_IFNAME'], os.environ['GLOO_SOCKET_IFNAME'])"
    )
    odd = "x y='\"$(id)"
    words = (
        "--env",
        f"ODD={odd}",
        "--workdir",
        "examples",
        "--",
        "python",
        "-c",
        script,
        *awkward,
    )
    for launcher in ("horovodrun", "mpirun", "torchrun"):
        out = up.run("run", "--launcher", launcher, *words, check=True).out
        lines = [line.partition("GOT ")[2] for line in out.splitlines() if "GOT " in line]
        assert [json.loads(line) for line in lines] == [[awkward, odd]] * 2
        rows = dict(re.findall(r"^\[(box\d) \d\] IF =(\S+) \S+$", out, re.MULTILINE))
        assert set(rows) == {"box1", "box2"} and rows["box1"] != rows["box2"], out


def test_secrets_stay_out_of_command_lines_and_records(up: Toolkit) -> None:
    secret = "s3cr3t-" + str(time.time_ns())
    # Long enough for the watch to see a rank's environment, which it looks at fifty times a second.
    text = "import os, time; time.sleep(3); print('LENGTH', len(os.environ['TOKEN']))"
    with watched_processes() as seen:
        words = ("--env", f"TOKEN={secret}", "--launcher", "horovodrun", "--workdir", "examples")
        done = up.run("run", *words, "--", "python", "-c", text, check=True)
    assert f"LENGTH {len(secret)}" in done.out
    # Our own command line has it, as the person typed it; a rank's environment has it, as it must.
    holders = [line for line in seen if secret in line and "--env" not in line]
    assert holders and all("TOOLKIT_RANK=" in line for line in holders)
    for host in ("box1", "box2"):
        assert sh(host, f"grep -rl {secret} /home/trainer/.local/state/toolkit /var/log 2>/dev/null") == ""
        assert secret not in on(host, "docker", "inspect", "toolkit-two-main", "toolkit-two-worker")


def test_one_connection_per_host_for_a_run(up: Toolkit) -> None:
    before = {host: logins(host) for host in ("box1", "box2")}
    up.run("run", "--workdir", "examples", "--launcher", "torchrun", "--", "true", check=True)
    assert {host: logins(host) - before[host] for host in before} == {"box1": 1, "box2": 1}


def test_exec_and_bad_input(up: Toolkit) -> None:
    assert up.run("exec", "--", "hostname", check=True).out == "box1\n"
    assert up.run("exec", "box2", "--", "sh", "-c", "exit 5").status == 5
    assert up.run("exec", "--all", "--", "id", "-u", check=True).out == "[box1] 1000\n[box2] 1000\n"
    before = logins("box1")
    for words in (
        ("run", "--only", "nobody", "--", "true"),
        ("run", "--np", "99", "--", "true"),
        ("run", "no_such.py"),
        ("run", "--launcher", "magic", "--", "true"),
        ("run", "--env", "9=8", "--", "true"),
        ("exec", "nobody", "--", "true"),
        ("render", "magic"),
    ):
        assert up.run(*words).status == 2, words
    assert logins("box1") == before, "nothing may be contacted for bad input"


def _job(text: str) -> str:
    found = re.search(r"^job (\S+?):", text, re.MULTILINE)
    assert found, text
    return found[1]


def _read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if word in line and line.startswith("["):
            return text
    raise AssertionError(f"it ended without saying {word!r}:\n{text}")
