"""Every launcher across real hosts: variables of ranks, exit codes, the choice of `auto`, users' scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.conftest import hosts_file
from tests.e2e.world import Toolkit, marked, on, sh

pytestmark = pytest.mark.lab

# By what is in the image as it comes.
PLAIN = ("horovodrun", "horovodrun-gloo", "mpirun", "torchrun", "python")
EVERY = (*PLAIN, "accelerate", "deepspeed")
PLACE = (
    "import os; print('PLACE', *(os.environ[n] for n in "
    "('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_PORT')))"
)
ACCURACY = re.compile(r"rank (\d): test accuracy (\d\.\d+)")


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    return standing


def places(done: str) -> dict[int, tuple[int, ...]]:
    rows = re.findall(r"^\[box\d (\d)\] PLACE ([\d ]+)$", done, re.MULTILINE)
    return {int(rank): tuple(map(int, words.split())) for rank, words in rows}


@pytest.mark.parametrize("launcher", ["horovodrun-gloo", "python"])
def test_every_rank_is_told_its_place(up: Toolkit, launcher: str) -> None:
    words = ("run", "--launcher", launcher, "--workdir", "examples", "--", "python", "-c", PLACE)
    done = up.run(*words, check=True)
    found = places(done.out)
    assert {rank: row[:4] for rank, row in found.items()} == {0: (0, 2, 0, 1), 1: (1, 2, 0, 1)}
    assert len({row[4] for row in found.values()}) == 1
    for cve in ("CVE-2024-10190", "CVE-2026-31234"):
        assert (cve in done.err) == (launcher == "horovodrun-gloo")


@pytest.mark.parametrize("launcher", ["horovodrun-gloo", "python"])
def test_a_rank_that_fails_ends_the_job_with_its_exit_code(up: Toolkit, launcher: str) -> None:
    text = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(7); time.sleep(60)"
    words = ("run", "--launcher", launcher, "--workdir", "examples", "--", "python", "-c", text)
    done = up.run(*words)
    assert done.status == 7 and "rank 1 on box2 exited with code 7" in done.out + done.err


@pytest.fixture
def unnamed(up: Toolkit) -> Toolkit:
    """The cluster by a hosts file that names no launcher."""
    data = yaml.safe_load(up.hosts.read_text())
    del data["launcher"]
    path = up.folder / "unnamed.yaml"
    path.write_text(yaml.safe_dump(data))
    return Toolkit(path, up.folder)


@pytest.mark.parametrize(
    ("script", "launcher", "module"),
    [
        pytest.param("train_ddp.py", "torchrun", "torch", marks=pytest.mark.rare),
        ("train_horovod.py", "horovodrun", "horovod"),
    ],
)
def test_a_script_trains_by_the_launcher_that_it_imports(
    unnamed: Toolkit, script: str, launcher: str, module: str
) -> None:
    done = unnamed.run("run", "--workdir", "examples/digits", script, "--epochs", "2", check=True)
    assert f"launcher {launcher}: {script} imports {module}" in done.err
    assert len(ACCURACY.findall(done.out)) == 2


def test_a_command_gets_its_ranks_variables_without_a_launcher(unnamed: Toolkit) -> None:
    words = ("--workdir", "examples", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    done = unnamed.run("run", *words, check=True)
    assert "launcher python: the command is not a Python script in the code folder" in done.err
    assert {"[box1 0] 0 of 2", "[box2 1] 1 of 2"} <= set(done.out.splitlines())
    smoke = unnamed.run("smoke", "--json", check=True).json
    assert smoke["launcher"] == "mpirun" and "over 2 ranks: sum 3" in smoke["allreduce"]


def test_a_launcher_within_a_launcher_is_refused_before_anything_is_contacted(up: Toolkit) -> None:
    done = up.run("run", "--", "torchrun", "--nproc-per-node", "2", "train.py")
    assert done.status == 2 and "toolkit run --launcher torchrun SCRIPT" in done.err


def test_a_launcher_that_the_image_lacks_is_refused(up: Toolkit) -> None:
    done = up.run("run", "--launcher", "deepspeed", "--workdir", "examples/digits", "train_ddp.py")
    assert done.status == 3 and "--with deepspeed && toolkit up" in done.err


# With the frameworks in the image


def with_image(lab: Path, folder: Path, name: str, *options: str) -> Iterator[Toolkit]:
    """A cluster of three hosts, with uneven slots, from an image that is built with these options."""
    file = hosts_file(lab, folder, name, ("box1", "box2", "box3"))
    data = yaml.safe_load(file.read_text())
    data["image"] = f"toolkit:{name}"
    data["hosts"]["box2"]["slots"] = 2
    data["mounts"] = ["/srv/shared:/shared"]
    sh("box1", "install -d -o trainer /srv/shared/launchers")
    file.write_text(yaml.safe_dump(data))
    cluster = Toolkit(file, folder)
    cluster.run("image", "build", *options, "--tag", data["image"], check=True, timeout=1800)
    cluster.run("up", check=True, timeout=600)
    yield cluster
    cluster.run("down", "--no-save", check=True)
    sh("box1", "rm -rf /srv/shared/launchers")


@pytest.fixture(scope="module")
def frameworks(lab: Path, folder: Path) -> Iterator[Toolkit]:
    yield from with_image(lab, folder, "frameworks", "--with", "accelerate,deepspeed")


def train(cluster: Toolkit, launcher: str, script: str, *more: str) -> list[tuple[str, str]]:
    words = ("run", "--no-fold", *more, "--launcher", launcher, "--workdir", "examples/digits", script)
    return ACCURACY.findall(cluster.run(*words, check=True, timeout=240).out)


@pytest.mark.rare
@pytest.mark.parametrize("hosts", [("box1",), ("box1", "box2"), ("box1", "box2", "box3")], ids=len)
@pytest.mark.parametrize(
    ("launcher", "script"),
    [
        *((launcher, "train_ddp.py") for launcher in EVERY),
        *((launcher, "train_horovod.py") for launcher in ("horovodrun", "horovodrun-gloo", "mpirun")),
        ("torchrun", "train_fsdp.py"),
        ("accelerate", "train_accelerate.py"),
        ("torchrun", "train_accelerate.py"),
        ("deepspeed", "train_deepspeed.py"),
        ("torchrun", "train_deepspeed.py"),
    ],
)
def test_a_model_learns(frameworks: Toolkit, launcher: str, script: str, hosts: tuple[str, ...]) -> None:
    only = tuple(word for host in hosts for word in ("--only", host))
    rows = train(frameworks, launcher, script, *only)
    assert [int(rank) for rank, _ in sorted(rows)] == list(range({1: 1, 2: 3, 3: 4}[len(hosts)]))
    assert len({accuracy for _, accuracy in rows}) == 1 and float(rows[0][1]) >= 0.95


@pytest.mark.rare
@pytest.mark.parametrize("launcher", EVERY)
def test_somebody_elses_script_runs_as_it_is(frameworks: Toolkit, launcher: str) -> None:
    """Accelerate's own test of a setup, from its wheel: it wants a folder that all hosts see, no toolkit."""
    # os._exit, because its objects keep the process group: see "gloo-exit" in known_errors.yaml.
    run = "from accelerate.test_utils.scripts import test_script; test_script.main(); sys.stdout.flush()"
    script = f"cd /shared/launchers && exec python -c 'import os, sys; {run}; os._exit(0)'"
    two = ("--only", "box1", "--only", "box3", "--no-fold", "--workdir", "examples/digits")
    words = ("run", "--launcher", launcher, *two, "--", "sh", "-c", script)
    out = frameworks.run(*words, check=True, timeout=240).out
    assert out.count("Num processes: 2") >= 2 and "DistributedType.MULTI_CPU" in out


@pytest.mark.rare
def test_accelerates_own_command_and_its_settings(frameworks: Toolkit) -> None:
    words = ("accelerate", "launch", "--mixed_precision", "bf16", "train_accelerate.py", "--epochs", "2")
    done = frameworks.run("run", "--no-fold", "--workdir", "examples/digits", "--", *words, check=True)
    assert len(ACCURACY.findall(done.out)) == 4
    text = "import accelerate as x; a = x.Accelerator(); print('SET', a.mixed_precision, a.num_processes)"
    (frameworks.folder / "examples/digits/show.py").write_text(text)
    words = ("accelerate", "launch", "--mixed_precision", "bf16", "--num_processes", "9", "show.py")
    done = frameworks.run("run", "--no-fold", "--workdir", "examples/digits", "--", *words, check=True)
    assert done.out.count("SET bf16 4") == 4


@pytest.fixture(scope="module")
def more(lab: Path, folder: Path) -> Iterator[Toolkit]:
    yield from with_image(lab, folder, "more", "--with", "transformers,lightning")


@pytest.fixture(scope="module")
def tensorflow(lab: Path, folder: Path) -> Iterator[Toolkit]:
    yield from with_image(lab, folder, "tensorflow", "--with", "tensorflow")


@pytest.mark.rare
def test_a_model_learns_with_lightning(more: Toolkit) -> None:
    rows = train(more, "torchrun", "train_lightning.py", "--only", "box1", "--only", "box3")
    assert len(rows) == 2 and len({accuracy for _, accuracy in rows}) == 1 and float(rows[0][1]) >= 0.95


@pytest.mark.rare
@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun", "horovodrun-gloo"])
@pytest.mark.parametrize("hosts", [("box1",), ("box1", "box2"), ("box1", "box2", "box3")], ids=len)
def test_a_model_learns_with_keras(tensorflow: Toolkit, launcher: str, hosts: tuple[str, ...]) -> None:
    only = tuple(word for host in hosts for word in ("--only", host))
    rows = train(tensorflow, launcher, "train_keras.py", *only)
    assert [int(rank) for rank, _ in sorted(rows)] == list(range({1: 1, 2: 3, 3: 4}[len(hosts)]))
    assert len({accuracy for _, accuracy in rows}) == 1 and float(rows[0][1]) >= 0.95


@pytest.mark.rare
@pytest.mark.parametrize(
    ("launcher", "script", "options"),
    [
        ("torchrun", "train_ddp.py", ()),
        ("torchrun", "train_ddp.py", ("--precision", "bf16", "--compress", "fp16", "--bucket-mb", "1")),
        ("torchrun", "train_ddp.py", ("--compress", "powersgd")),
        ("mpirun", "train_ddp.py", ("--compress", "fp16")),
        ("horovodrun", "train_horovod.py", ()),
        ("horovodrun", "train_horovod.py", ("--precision", "bf16", "--compress", "fp16")),
        ("torchrun", "train_trainer.py", ()),
        ("torchrun", "train_trainer.py", ("--precision", "bf16")),
    ],
    ids=lambda value: "-".join(value).replace("--", "") if isinstance(value, tuple) else value,
)
def test_a_bert_learns(more: Toolkit, launcher: str, script: str, options: tuple[str, ...]) -> None:
    """Of the hidden words some one in four are commas, dots and articles, which is soon learned."""
    two = ("--only", "box1", "--only", "box3", "--no-fold", "--workdir", "examples/text")
    words = ("run", "--launcher", launcher, *two, script, "--steps", "150", *options)
    out = more.run(*words, check=True, timeout=900).out
    found = re.search(r"(0\.\d+) of the hidden words found; \d+ pieces/s on 2 ranks", out)
    assert found is not None and float(found[1]) > 0.15


# Open MPI 5


@pytest.fixture(scope="module")
def openmpi5(lab: Path, folder: Path) -> Iterator[Toolkit]:
    yield from with_image(lab, folder, "openmpi5", "--build-arg", "OPENMPI=5.0.11")


@pytest.mark.rare
@pytest.mark.parametrize("hosts", [("box1",), ("box1", "box2"), ("box1", "box2", "box3")], ids=len)
@pytest.mark.parametrize("script", ["train_horovod.py", "train_ddp.py"])
def test_a_model_learns_with_open_mpi_5(openmpi5: Toolkit, script: str, hosts: tuple[str, ...]) -> None:
    only = tuple(word for host in hosts for word in ("--only", host))
    rows = train(openmpi5, "mpirun", script, *only)
    assert [int(rank) for rank, _ in sorted(rows)] == list(range({1: 1, 2: 3, 3: 4}[len(hosts)]))
    assert len({accuracy for _, accuracy in rows}) == 1 and float(rows[0][1]) >= 0.95


@pytest.mark.rare
def test_with_open_mpi_5_ranks_are_told_their_place_fail_and_are_stopped(openmpi5: Toolkit) -> None:
    words = ("run", "--launcher", "mpirun", "--workdir", "examples", "--", "python", "-c")
    done = openmpi5.run(*words, PLACE, check=True)
    found = places(done.out)
    assert {rank: row[:4] for rank, row in found.items()} == {
        0: (0, 4, 0, 1),
        1: (1, 4, 0, 2),
        2: (2, 4, 1, 2),
        3: (3, 4, 0, 1),
    }
    text = "import os, sys, time; os.environ['RANK'] == '2' and sys.exit(7); time.sleep(60)"
    done = openmpi5.run(*words, text)
    assert done.status == 7 and "rank 2 on box2 exited with code 7" in done.out + done.err
    job = openmpi5.run("run", "-d", "--json", *words[1:-2], "sleep", "300", check=True).json["job"]
    openmpi5.run("stop", job, check=True)
    assert not any(marked(host, f"TOOLKIT_JOB={job}") for host in ("box1", "box2", "box3"))


@pytest.mark.rare
def test_horovodrun_is_refused_with_open_mpi_5(openmpi5: Toolkit) -> None:
    done = openmpi5.run("run", "--launcher", "horovodrun", "--workdir", "examples/digits", "train_horovod.py")
    assert done.status == 3 and "--launcher mpirun" in done.err


# Ray


@pytest.fixture(scope="module")
def ray(lab: Path, folder: Path) -> Iterator[Toolkit]:
    yield from with_image(lab, folder, "ray", "--with", "ray")


HANGS = """
import ray, time

ray.init()

@ray.remote
def wait():
    time.sleep(600)

waiting = [wait.remote() for _ in range(4)]
time.sleep(3)
print("all wait")
ray.get(waiting)
"""
STRANGER = """
import ray, sys
try:
    ray.init(address=sys.argv[1])
    print("INSIDE", len(ray.nodes()))
except Exception as error:
    print("OUTSIDE", type(error).__name__)
"""


def hanging(cluster: Toolkit) -> str:
    """A job whose four workers of Ray wait; its id, once they do."""
    code = cluster.folder / "hangs"
    code.mkdir(exist_ok=True)
    (code / "hang.py").write_text(HANGS)
    words = ("run", "-d", "--json", "--launcher", "auto", "--workdir", "hangs", "hang.py")
    job = str(cluster.run(*words, check=True).json["job"])
    waiting.job_prints(cluster, job, "all wait", seconds=240)
    return job


def inside(host: str, text: str) -> str:
    """Return what a shell in Ray's container on a host prints."""
    name = "toolkit-ray-main" if host == "box1" else "toolkit-ray-worker"
    return on(host, "docker", "exec", name, "sh", "-c", text)


@pytest.mark.rare
@pytest.mark.parametrize("hosts", [("box1",), ("box1", "box2"), ("box1", "box2", "box3")], ids=len)
def test_a_model_learns_with_ray_train(ray: Toolkit, hosts: tuple[str, ...]) -> None:
    only = tuple(word for host in hosts for word in ("--only", host))
    # Ray itself hides lines that are alike.
    rows = train(ray, "ray", "train_ray.py", *only, "--env", "RAY_DEDUP_LOGS=0")
    assert [int(rank) for rank, _ in sorted(rows)] == list(range({1: 1, 2: 3, 3: 4}[len(hosts)]))
    assert len({accuracy for _, accuracy in rows}) == 1 and float(rows[0][1]) >= 0.95


@pytest.mark.rare
def test_rays_own_example_runs_as_it_is(ray: Toolkit) -> None:
    """From its wheel; its results go to the home folder, which is one that all hosts see."""
    script = ("python", "-m", "ray.train.examples.pytorch.torch_linear_example", "--num-workers", "2")
    two = ("--only", "box1", "--only", "box3", "--env", "HOME=/shared/launchers", "--no-fold")
    words = ("run", "--launcher", "ray", *two, "--workdir", "examples/digits", "--", *script)
    out = ray.run(*words, check=True, timeout=240).out
    assert "world_rank=1, local_rank=0, node_rank=1" in out and re.search(r"\{'loss': \d", out)


@pytest.mark.rare
def test_a_stranger_does_not_get_into_rays_cluster(ray: Toolkit) -> None:
    job = hanging(ray)
    head = (
        inside("box1", "ps -eo args | grep -o 'gcs_server_port=[0-9]*' | head -n 1").strip().partition("=")[2]
    )
    address = f"{sh('box1', 'hostname -i').split()[0]}:{head}"
    assert head
    inside("box2", f"cat >/tmp/stranger.py <<'END'\n{STRANGER}\nEND")
    for token in ("", "RAY_AUTH_MODE=token RAY_AUTH_TOKEN=0123456789abcdef0123456789abcdef"):
        said = inside("box2", f"env {token} timeout 100 python /tmp/stranger.py {address}")
        assert "OUTSIDE" in said and "INSIDE" not in said
    assert ray.run("jobs", "--json", check=True).json[-1]["state"] == "running"
    ray.run("stop", job, check=True)


@pytest.mark.rare
def test_a_node_of_ray_that_dies_ends_the_job_and_nothing_is_left(ray: Toolkit) -> None:
    job = hanging(ray)
    inside("box3", "kill -9 $(ps -eo pid,comm | awk '$2 == \"raylet\" {print $1}')")
    done = ray.run("wait", job, "--timeout", "120")
    assert done.status == 1 and "Ray on box3 exited with code 1" in done.err
    for host in ("box1", "box2", "box3"):
        assert not marked(host, f"TOOLKIT_JOB={job}")
        left = inside(host, "ls /tmp").split()
        assert not [name for name in left if re.fullmatch(r"toolkit-[0-9a-f]{12}|pymp-.*", name)]


@pytest.mark.rare
def test_two_jobs_have_two_clusters_of_ray(ray: Toolkit) -> None:
    job = hanging(ray)
    words = ("run", "--share", "--launcher", "ray", "--only", "box1", "--workdir", "examples/digits")
    done = ray.run(*words, "train_ray.py", "--epochs", "1", check=True, timeout=240)
    assert "on 1 ranks" in done.out
    assert ray.run("jobs", "--json", check=True).json[-2]["state"] == "running"
    ray.run("stop", job, check=True)
