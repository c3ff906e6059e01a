"""A job for Slurm and Kubernetes: goldens, read back by bash and by the operators' own definitions."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import os
import re
import shutil
import signal
import subprocess
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.golden import check_golden
from tests.kubelet import expanded, read
from tests.parity import variants
from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.core.container import Mount, Ulimit
from toolkit.core.facts import Facts
from toolkit.core.templates import render_template
from toolkit.errors import BadInput, Interrupted
from toolkit.export.job import BatchJob, BatchNode, rank_text
from toolkit.export.kubernetes import KIND_OF, Pods, literal, manifest, manifest_text
from toolkit.export.prepare import KUBERNETES, SLURM, BatchRequest, batch_job, check_batch, open_hosts
from toolkit.export.slurm import RUNTIMES, SLURM_LAUNCHES, as_lines, joined, quoted, script, var
from toolkit.export.verify import _MOST_LOG, _end_of, manifest_problems, rehearse_kubernetes, rehearse_slurm
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.parse import parse_inventory
from toolkit.jobs.request import Request

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
# As the operators publish them; they are beside a checkout, and not in it.
DEFINITIONS = {
    "MPIJob": ROOT.parent / "shared" / "data" / "mpijob-crd-v2beta1.yaml.gz",
    "TrainJob": ROOT.parent / "shared" / "data" / "trainjob-crd-v1alpha1.yaml.gz",
}
# What a shell would make something else of.
NASTY = ("it's $5", '"$(id)"', "a b\tc", "`x`", "$HOME", "\\", "'", "", "--", "é", "x\ny", "${more[@]}", "!")

JOB = BatchJob(
    name="demo-train",
    cluster="demo",
    image="registry.example.com:5000/team/trainer:1.0",
    pull="missing",
    launcher="mpirun",
    command=("python", "train.py", "--note", "it's $5"),
    nodes=(BatchNode("gpu1", 2, 2, "10.0.0.11"), BatchNode("gpu2", 2, 2)),
    env=(("MOTTO", "it's $(5) $5"), ("NCCL_DEBUG", "WARN")),
    passed=("HF_TOKEN",),
    mounts=(Mount("/data/my set", "/data", True), Mount("/scratch", "/out")),
    labels=(("team", "vision"),),
    shm_bytes=4 << 30,
    timeout=90.0,
)
UNLIKE = dataclasses.replace(
    JOB,
    nodes=(BatchNode("gpu1", 1, 1, "10.0.0.11"), BatchNode("gpu2", 3, 3, "", (("OMP_NUM_THREADS", "4"),))),
    ulimits=(Ulimit("memlock", -1, -1),),
)

# Nothing in it is empty.
FULL = dataclasses.replace(
    JOB,
    nodes=tuple(BatchNode(f"gpu{n}", 2, 2, f"10.0.0.1{n}", (("A", "b"),)) for n in (1, 2)),
    ulimits=(Ulimit("nofile", 4, 8),),
    timeout=120,
)


def with_launcher(launcher: str, job: BatchJob = JOB) -> BatchJob:
    return dataclasses.replace(job, launcher=launcher)


@functools.cache
def definition(kind: str) -> dict[str, Any]:
    path = DEFINITIONS[kind]
    if not path.exists():
        pytest.skip(f"the definition of {kind} is not beside this checkout: {path.name}")
    made: dict[str, Any] = yaml.load(gzip.decompress(path.read_bytes()), Loader=yaml.CSafeLoader)
    return made


@pytest.mark.parametrize("launcher", SLURM_LAUNCHES)
def test_scripts_for_docker(launcher: str) -> None:
    text = script(with_launcher(launcher, UNLIKE), "docker", ("--partition=gpu",))
    check_golden(f"render/slurm/docker-{launcher}.sh", text)


def test_slurm_can_allocate_the_gpus_of_nodes_that_differ() -> None:
    """No node has to have the GPUs of the largest one."""
    for slots in (1, 8):
        nodes = (BatchNode("gpu1", 1, 8), BatchNode("gpu2", slots, 4))
        text = script(dataclasses.replace(JOB, nodes=nodes), "docker")
        assert "#SBATCH --nodelist=gpu1,gpu2\n#SBATCH --gpus=12\n" in text and "gpus-per-node" not in text
        assert "\nunset SLURM_GPUS\n" in text, "otherwise each step requests 12 GPUs"
    text = script(JOB, "docker")
    assert "#SBATCH --gpus-per-node=2\n" in text and "#SBATCH --gpus=" not in text
    assert "#SBATCH --nodelist" not in text


@for_each("runtime", RUNTIMES)
def test_nodes_with_own_variables_are_requested_by_name(runtime: str) -> None:
    """On another node, ranks would start without the variables."""
    own = dataclasses.replace(JOB, nodes=(JOB.nodes[0], BatchNode("gpu2", 2, 2, "", (("A", "b"),))))
    assert "#SBATCH --nodelist=gpu1,gpu2\n" in script(own, runtime)
    assert "#SBATCH --nodelist" not in script(JOB, runtime)


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "docker"])
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_scripts_for_others(runtime: str, launcher: str) -> None:
    check_golden(f"render/slurm/{runtime}-{launcher}.sh", script(with_launcher(launcher), runtime))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("launcher", SLURM_LAUNCHES)
def test_bash_reads_the_scripts(launcher: str, runtime: str) -> None:
    text = script(with_launcher(launcher), runtime)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    # What was rendered wrongly shows as a brace or a NUL of toolkit.
    assert "{{" not in text and "\0" not in text
    if shutil.which("shellcheck"):
        # SC2317, SC2329: functions that bash is handed on the nodes. SC2016: values with a "$".
        words = ["shellcheck", "-e", "SC2317,SC2329,SC2016", "-"]
        done = subprocess.run(words, input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("pull", "seconds"), [("never", 300), ("missing", 3600), ("always", 3600)])
def test_containers_start_late_if_the_nodes_pull_the_image(pull: str, seconds: int) -> None:
    text = script(dataclasses.replace(JOB, pull=pull), "docker")
    assert f"read -r -t {seconds} -u 9 word code_of || word=late" in text


# srun starts the shell of the first rank only.
_SLURM = {
    "scontrol": "printf '%s\\n' gpu1 gpu2",
    "getent": 'case $2 in $UNKNOWN) ;; *) echo "10.0.0.9 STREAM $2" ;; esac',
    "srun": 'until [ "$1" = sh ]; do shift; done; exec "$@"',
    "ip": 'case $*:$NO_IP in *:yes) exit 127 ;; *"route get"*) echo "10.0.0.9 dev eth0 src 10.0.0.11" ;; '
    '*) echo "2: eth0    inet 10.0.0.11/24 scope global eth0" ;; esac',
    "python": 'echo "$NCCL_SOCKET_IFNAME $MASTER_ADDR"',
}


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "docker"])
@pytest.mark.parametrize(
    ("unknown", "no_ip", "status", "says"),
    [
        ("none", "no", 0, "=eth0 10.0.0.11"),
        ("gpu2", "no", 1, "render the script again, because no address is known for node gpu2"),
        (
            "none",
            "yes",
            69,
            "gpu1: the node has no route to 10.0.0.9, or the image does not contain iproute2",
        ),
    ],
)
def test_ranks_do_not_start_without_a_network(
    tmp_path: Path, runtime: str, unknown: str, no_ip: str, status: int, says: str
) -> None:
    done = first_rank(tmp_path, script(JOB, runtime), UNKNOWN=unknown, NO_IP=no_ip)
    assert (done.returncode, says in done.stdout + done.stderr) == (status, True), done


def first_rank(folder: Path, text: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a script for srun with the programs of ``_SLURM``."""
    for name, lines in _SLURM.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "UNKNOWN": "none", "NO_IP": "no", "HF_TOKEN": "x"}
    env |= dict.fromkeys(("SLURM_SUBMIT_DIR", "SLURM_JOB_NODELIST"), str(folder))
    env |= dict.fromkeys(("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"), "0")
    env |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}
    env |= {"SLURMD_NODENAME": "gpu1", **changes}
    return subprocess.run(["bash"], input=text, env=env, capture_output=True, text=True)


@for_each("runtime", [name for name in RUNTIMES if name != "docker"])
@for_each("shell", ["/bin/sh", "bash --posix"])
def test_variables_of_the_job_are_only_for_the_container(runtime: str, shell: str, tmp_path: Path) -> None:
    """With the PATH of the image, the script would not find the programs of the node."""
    (tmp_path / "sh").write_text(f'#!/bin/sh\nexec {shell} "$@"\n')
    (tmp_path / "sh").chmod(0o755)
    own = {"PATH": "/opt/venv/bin:/usr/bin:/bin", "LD_PRELOAD": "", "code": "it's $5", "UID": "1234"}
    own["TEXT"] = "1\nEND-OF-RANK\nEND-OF-RANK-\n"
    job = dataclasses.replace(JOB, command=("printenv", *own), env=tuple(own.items()))
    done = first_rank(tmp_path, script(job, runtime))
    shown = "".join(f"{value}\n" for value in own.values())
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")


@for_each("runtime, name", [("pyxis", "MELLANOX_VISIBLE_DEVICES"), ("apptainer", "APPTAINER_BIND")])
def test_the_container_runtime_gets_its_variables(runtime: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / "srun").write_text(f"#!/bin/sh\nprintenv {name}\n")
    (tmp_path / "bin" / "srun").chmod(0o755)
    job = dataclasses.replace(JOB, env=((name, "it's $5"),))
    path = f"{tmp_path}/bin:{tmp_path}:{os.environ['PATH']}"
    assert first_rank(tmp_path, script(job, runtime), PATH=path).stdout == "it's $5\n"


# NCCL's interface is set for all ranks, Gloo's at submission, and TensorPipe's on the second node only.
OWN_NETWORK = dataclasses.replace(
    JOB,
    command=("sh", "-c", 'echo "$NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME"'),
    env=(("NCCL_SOCKET_IFNAME", "=ib0"),),
    passed=("GLOO_SOCKET_IFNAME",),
    nodes=(JOB.nodes[0], BatchNode("gpu2", 2, 2, "", (("TP_SOCKET_IFNAME", "it's\nEND-OF-RANK\n$5"),))),
)


@for_each("runtime", RUNTIMES)
@for_each("node, tensorpipe", [("gpu1", "eth0"), ("gpu2", "it's\nEND-OF-RANK\n$5")])
def test_network_variables_of_the_user_have_priority(
    runtime: str, node: str, tensorpipe: str, tmp_path: Path
) -> None:
    text = script(OWN_NETWORK, runtime)
    env = {"GLOO_SOCKET_IFNAME": "ib1", "SLURMD_NODENAME": node}
    if runtime == "docker":
        assert {"--env NCCL_SOCKET_IFNAME==ib0 \\", "--env GLOO_SOCKET_IFNAME \\"} <= set(
            map(str.strip, text.splitlines())
        )
        written = re.search(r'^ *cat > "\$folder/network".*?^ *esac$', text, re.MULTILINE | re.DOTALL)
        assert written is not None
        lines = (
            "device=eth0",
            f"folder={tmp_path}",
            written[0],
            ". $folder/network",
            *OWN_NETWORK.command[2:],
        )
        env |= {"NCCL_SOCKET_IFNAME": "=ib0", "PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", "-c", "\n".join(lines)], env=env, capture_output=True, text=True)
    else:
        done = first_rank(tmp_path, text, **env)
    assert (done.stdout, done.stderr) == (f"=ib0 ib1 {tensorpipe}\n", "")


@pytest.mark.parametrize("launcher", KIND_OF)
def test_pods_keep_network_variables_of_the_user(launcher: str) -> None:
    text = manifest_text(manifest(with_launcher(launcher, OWN_NETWORK), Pods()))
    assert re.findall(r"export (.*_SOCKET_IFNAME)=", text) == ["TP_SOCKET_IFNAME"]


def test_options_of_the_user_follow_those_that_a_node_adds() -> None:
    """Docker uses the last value of a variable and of a limit, here of NCCL_IB_DISABLE and memlock."""
    job = dataclasses.replace(
        JOB, env=(("NCCL_IB_DISABLE", "0"),), ulimits=(Ulimit("memlock", 1 << 20, 1 << 20),)
    )
    text = script(job, "docker")
    added = text.index('"${more[@]}"')
    assert 0 < added < text.index("--env NCCL_IB_DISABLE=0") and added < text.index(
        "--ulimit memlock=1048576"
    )


def test_pods_do_not_start_without_a_network(tmp_path: Path) -> None:
    (tmp_path / "ip").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "ip").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "POD_IP": "10.1.2.3", "WORLD_SIZE": "4"}
    done = subprocess.run(
        ["sh", "-c", render_template("scripts/pod-network.sh.j2")], env=env, capture_output=True, text=True
    )
    assert done.returncode == 69 and "no interface has the address 10.1.2.3" in done.stderr
    for launcher, number in (("torchrun", 1), ("mpirun", 2)):
        made = manifest_text(manifest(with_launcher(launcher), Pods()))
        assert made.count("no interface has the address") == number


@for_each(
    "gpus, image, own, expected",
    [
        (2, {}, "", "0"),
        (2, {"NCCL_CUMEM_HOST_ENABLE": "1"}, "", "1"),
        (2, {}, "export NCCL_CUMEM_HOST_ENABLE=2", "2"),
        (0, {}, "", "unset"),
    ],
)
def test_nccl_does_not_use_numa_calls_that_docker_refuses(
    gpus: int, image: dict[str, str], own: str, expected: str, tmp_path: Path
) -> None:
    """As in `toolkit run`; a value of the image, of the job or of the node has priority."""
    job = dataclasses.replace(JOB, nodes=tuple(dataclasses.replace(node, gpus=gpus) for node in JOB.nodes))
    text = script(job, "docker").replace("/run/toolkit/", f"{tmp_path}/")
    rank = re.search(r"<< 'END-OF-RANK'\n(.*?)END-OF-RANK", text, re.DOTALL)
    assert rank is not None
    (tmp_path / "network").write_text(f"{own}\n")
    words = ("sh", "-c", rank[1], "rank", "sh", "-c", 'echo "${NCCL_CUMEM_HOST_ENABLE-unset}"')
    env = {"PATH": os.environ["PATH"], "RANK": "0", "WORLD_SIZE": "4", **image}
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


@pytest.mark.parametrize("name", ["python", "python3"])
def test_python_is_python3_in_an_image_without_python(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('#!/bin/sh\necho "${0##*/} $1"\n')
    (tmp_path / name).chmod(0o755)
    words = (shutil.which("sh") or "sh", "-c", f'{rank_text(JOB)}\nexec "$@"', "rank", *JOB.command)
    env = {"PATH": str(tmp_path), "RANK": "0", "WORLD_SIZE": "4"}
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{name} train.py\n", "")


def test_words_come_through_bash_as_they_are() -> None:
    own = var("own")
    text = f"own=mine; printf '%s\\0' {joined((*NASTY, own, f'x={own}:{own},y'))}"
    done = subprocess.run(["bash", "-c", text], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [*NASTY, "mine", "x=mine:mine,y"]
    assert quoted(var("own")) == '"$own"'
    assert as_lines(("docker", "run", "--rm", "--name", "x", "image", "-c", "y")) == [
        *("docker", "run", "--rm", "--name x", "image", "-c y")
    ]


def in_yaml(job: BatchJob, pods: Pods) -> dict[str, Any]:
    made = manifest(job, pods)
    assert read(manifest_text(made)) == made
    return made


# kubectl reads these as other values than PyYAML does, or PyYAML quotes them.
CONVERTED = (
    *("1e-4", "5e-5", "1e3", "1E5", "-1e-5", "1.5e3", "12e03", "0777", "0o17", "0b1", "0x1F", "1_000", "-_1"),
    *(".5", "5.", "+1", ".inf", ".NaN", "null", "~", "true", "yes", "off", "y", "Y", "n", "N", "<<", "="),
    *("1:30", "2024-01-01", "-", "?", ": x", "# x", "a " * 100),
)


@for_each("launcher", ["torchrun", "mpirun"])
@for_each("word", [*CONVERTED, *NASTY])
def test_kubectl_reads_every_word_as_text(launcher: str, word: str) -> None:
    job = dataclasses.replace(
        with_launcher(launcher), command=("python", "train.py", "--lr", word), env=(("A", word),)
    )
    in_yaml(job, Pods(node_selector=((word, word),)))


def test_a_check_submits_the_text_that_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").write_text('#!/bin/sh\nif [ "$1" = create ]; then cat >sent; fi\n')
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    made = manifest(with_launcher("torchrun"), Pods())
    version = {"name": "v1alpha1", "schema": {"openAPIV3Schema": {}}}
    any_trainjob = {"spec": {"names": {"kind": "TrainJob"}, "versions": [version]}}
    *_, trial = rehearse_kubernetes(made, manifest_text(made), any_trainjob)
    assert (trial.verdict, (tmp_path / "sent").read_text()) == ("ok", manifest_text(made))


MANY = Pods(
    namespace="lab",
    host_network=True,
    resources=(("rdma/hca_shared", "1"),),
    node_selector=(("node.kubernetes.io/instance-type", "p4d"),),
)


@pytest.mark.parametrize(
    ("name", "launcher", "pods"),
    [
        ("mpijob", "mpirun", Pods()),
        ("mpijob-more", "horovodrun", MANY),
        ("trainjob", "torchrun", Pods()),
        ("trainjob-more", "torchrun", dataclasses.replace(MANY, host_network=False, runtime="ours")),
    ],
)
def test_manifests_are_let_in(name: str, launcher: str, pods: Pods) -> None:
    made = in_yaml(with_launcher(launcher), pods)
    check_golden(f"render/kubernetes/{name}.yaml", manifest_text(made))
    assert manifest_problems(made, definition(made["kind"])) == []


@for_each("code, status", [("code", 0), ("new", 0), ("file", 66), ("file/new", 0)])
def test_the_ranks_of_a_trainjob_start_in_the_folder_with_the_code(
    code: str, status: int, tmp_path: Path
) -> None:
    """A TrainJob has no field for the working directory; an MPIJob has. "file/new" cannot be created."""
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "file").touch()
    (tmp_path / "ip").write_text(f"#!/bin/sh\n{_SLURM['ip']}\n")
    (tmp_path / "ip").chmod(0o755)
    made = manifest(dataclasses.replace(with_launcher("torchrun"), command=("pwd",)), Pods())
    words = [expanded(word) for word in made["spec"]["trainer"]["command"]]
    assert words[:4] == ["torchrun", "--no-python", "sh", "-c"]
    words[4] = words[4].replace("/workspace", str(tmp_path / code))
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "POD_IP": "10.0.0.11",
        "WORLD_SIZE": "4",
        "NO_IP": "no",
    }
    done = subprocess.run(words[2:], env=env, cwd="/", capture_output=True, text=True)
    shown = {"file": "", "file/new": "/\n"}.get(code, f"{tmp_path / code}\n")
    assert (done.returncode, done.stdout) == (status, shown), done.stderr


@pytest.mark.parametrize("launcher", KIND_OF)
def test_the_shells_of_pods_are_read_by_sh(launcher: str) -> None:
    made = manifest(with_launcher(launcher), Pods())
    scripts = [text for text in strings(made) if text.count("\n") > 3]
    assert scripts
    for text in scripts:
        subprocess.run(["sh", "-n"], input=expanded(text), text=True, check=True)


@for_each("text", [*NASTY, "$(x)", "$$(x)", "$$$(x)", "$$", "a$", "$$$", "$(a)$$(b)"])
def test_what_pods_are_told_is_left_alone(text: str) -> None:
    assert expanded(literal(text)) == text


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for each in value for text in strings(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_what_the_definition_does_not_know_is_refused(kind: str) -> None:
    launcher = next(name for name, of in KIND_OF.items() if of == kind)
    made = manifest(with_launcher(launcher), Pods())
    made["spec"]["nodes"] = 3
    assert any("nodes" in problem for problem in manifest_problems(made, definition(kind)))
    del made["spec"]["nodes"]
    count = made["spec"]["trainer"] if kind == "TrainJob" else made["spec"]["runPolicy"]
    count["numNodes" if kind == "TrainJob" else "backoffLimit"] = "2"
    (problem,) = manifest_problems(made, definition(kind))
    assert "'2' is not of type 'integer'" in problem
    with pytest.raises(ValueError, match="but the manifest is"):
        other = next(name for name in DEFINITIONS if name != kind)
        manifest_problems(made, definition(other))
    with pytest.raises(ValueError, match="no CustomResourceDefinition"):
        manifest_problems(made, {"kind": "List"})


# What the targets express of a job in no way, and why.
SILENT = {
    "docker": {"cluster"},
    # How srun divides memory and time is the site's; labels and limits are refused before.
    "pyxis": {"cluster", "pull", "shm_bytes", "grace", "labels", "ulimits"},
    "apptainer": {"cluster", "pull", "shm_bytes", "grace", "labels", "ulimits"},
    # All workers are alike; limits are refused before.
    "mpijob": {"nodes.name", "nodes.data_address", "nodes.env", "ulimits"},
    "trainjob": {"nodes.name", "nodes.data_address", "nodes.env", "ulimits"},
}


@pytest.mark.parametrize("target", SILENT)
def test_every_part_of_a_job_is_expressed(target: str) -> None:
    render: Callable[[BatchJob], object]
    if target.endswith("job"):
        subject = with_launcher("torchrun" if target == "trainjob" else "mpirun", FULL)
        render = lambda job: manifest(job, Pods())  # noqa: E731
    else:
        subject = FULL
        render = lambda job: script(job, target)  # noqa: E731
    plain = render(subject)
    lost = set()
    for place, other in variants(subject):
        name = place.split("[")[0]
        if name in ("launcher", "network", "pull") or (name == "nodes" and "slots" in place):
            continue  # words of closed lists, and what is refused where nodes differ: below
        if render(other) == plain:
            lost.add(place.replace("[0]", "").replace("[1]", "") if name == "nodes" else name)
    assert lost - SILENT[target] == set()


@pytest.mark.parametrize("network", ["ethernet", "infiniband", "efa"])
def test_networks(network: str) -> None:
    job = dataclasses.replace(JOB, network=network)
    docker, others = script(job, "docker"), [script(job, name) for name in RUNTIMES[1:]]
    others += [manifest_text(manifest(with_launcher(name, job), Pods())) for name in ("mpirun", "torchrun")]
    assert ("/dev/infiniband" in docker) == (network != "ethernet")
    for text in (docker, *others):
        assert ("NCCL_IB_DISABLE=1" in text) == (network == "ethernet")
        assert ("NCCL_NET=Socket" in text) == (network == "ethernet")
        assert ("NCCL_NET=IB" in text) == (network == "infiniband"), "NCCL must not use TCP instead"
        assert ("FI_PROVIDER=efa" in text) == (network == "efa")


def test_a_requeued_job_starts_on_a_node_with_the_folder_of_the_killed_attempt(tmp_path: Path) -> None:
    text = script(JOB, "docker").replace("/tmp/", f"{tmp_path}/")
    names = re.findall(r"^export (?:name|folder)=.*$", text, re.MULTILINE)
    furnish = re.search(r"^furnish\(\) \{\n.*?^\}\n", text, re.MULTILINE | re.DOTALL)
    assert furnish is not None and len(names) == 2
    lines = [*names, "names=", 'fail() { echo "$1" >&2; exit 1; }', furnish[0], "furnish"]
    for folder in ("toolkit-job-12-0", "toolkit-job-123-0", "toolkit-job-1-2"):
        (tmp_path / folder / "home").mkdir(parents=True)
    for attempt in ({}, {"SLURM_RESTART_COUNT": "1"}, {"SLURM_RESTART_COUNT": "1"}):
        env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "12", **attempt}
        ran = subprocess.run(["bash", "-uc", "\n".join(lines)], env=env, capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
        own = f"toolkit-job-12-{attempt.get('SLURM_RESTART_COUNT', 0)}"
        found = sorted(path.name for path in tmp_path.iterdir())
        assert found == sorted([own, "toolkit-job-1-2", "toolkit-job-123-0"]), "of this job only"
        assert (tmp_path / own / "rank").exists()


HOSTS = """\
cluster: demo
image: toolkit:gpu
hosts:
  gpu1: {gpus: 2}
  gpu2: {gpus: 2, env: {A: "b"}}
  gpu3:
launcher: torchrun
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import torch\n")
    return tmp_path


def batch(folder: Path, *words: str, **changes: Any) -> BatchRequest:
    request = Request(words=words or ("train.py",), workdir=folder, secrets=False)
    own = {each.name for each in dataclasses.fields(Request)}
    request = dataclasses.replace(request, **{k: v for k, v in changes.items() if k in own})
    return BatchRequest(request, **{k: v for k, v in changes.items() if k not in own})


def inventory(text: str = HOSTS, **changes: Any) -> Inventory:
    return dataclasses.replace(parse_inventory(text, "hosts.yaml"), **changes)


def test_an_ignored_script_is_exported(folder: Path) -> None:
    """The job runs the script of a shared folder or of the image: toolkit sends nothing."""
    (folder / ".gitignore").write_text("train.py\n")
    check_batch(inventory(), batch(folder), SLURM)


def refused(made: Inventory, asked: BatchRequest, target: str) -> list[str]:
    with pytest.raises(BadInput) as error:
        check_batch(made, asked, target)
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize("target", [SLURM, KUBERNETES])
def test_a_word_that_no_file_can_hold_is_refused(folder: Path, target: str) -> None:
    found = refused(inventory(), batch(folder, "train.py", "a\udcff"), target)
    assert any("not UTF-8" in problem for problem in found)


def test_only_hosts_of_which_nothing_is_known_are_asked(folder: Path) -> None:
    assert open_hosts(inventory(), batch(folder)) == ("gpu3",)
    assert open_hosts(inventory(), batch(folder, gpus=1)) == ()
    assert open_hosts(inventory(), batch(folder, exclude=("gpu3",))) == ()
    facts = {"gpu3": facts_with(3)}
    job = batch_job(inventory(), batch(folder), SLURM, facts)
    assert [(node.slots, node.gpus) for node in job.nodes] == [(2, 2), (2, 2), (3, 3)]
    assert (job.world_size, job.slots, job.name) == (7, 0, "demo-train")


def facts_with(gpus: int) -> Facts:
    from tests.unit import cluster_world

    some = cluster_world.cluster_facts()
    gpu = next(gpu for facts in some.values() for gpu in facts.gpus)
    return dataclasses.replace(next(iter(some.values())), gpus=(gpu,) * gpus)


def test_what_a_target_has_no_means_for_is_refused_by_name(folder: Path) -> None:
    text = HOSTS + "services: {board: {image: x, ports: [6006]}}\nulimits: {nofile: 9}\nlabels: {a/b/c: x}\n"
    made = inventory(text.replace("gpus: 2}", "gpus: [0, 1]}", 1))
    for_slurm = refused(made, batch(folder), SLURM)
    assert [line.split(":")[0] for line in for_slurm] == ["services/board", "hosts/gpu1/gpus"]
    for_kubernetes = [line.split(":")[0] for line in refused(made, batch(folder), KUBERNETES)]
    assert for_kubernetes == [
        *("services/board", "hosts/gpu1/gpus", "hosts/gpu2/env", "labels/a/b/c", "ulimits/nofile")
    ]
    left = batch(
        folder, gpus=2, leave_out=("services", "hosts/gpu1/gpus", "hosts/gpu2/env", "labels", "ulimits")
    )
    job = batch_job(made, left, KUBERNETES, {})
    assert (job.labels, job.ulimits, job.nodes[1].env, job.slots) == ((), (), (), 2)
    assert any("key does not prevent an export to Slurm" in line for line in refused(made, left, SLURM))


@pytest.mark.parametrize(
    ("changes", "asked", "target", "message"),
    [
        (
            {"launcher": "ray"},
            {},
            SLURM,
            "--launcher: toolkit cannot export a job with ray to Slurm; supported ",
        ),
        (
            {"launcher": "python"},
            {},
            KUBERNETES,
            "--launcher: toolkit cannot export a job with python to Kubernetes; supported ",
        ),
        ({}, {"host_network": True}, KUBERNETES, "--host-network: a TrainJob cannot request"),
        ({"pull": "always"}, {}, KUBERNETES, "image/pull: a TrainJob cannot set imagePullPolicy"),
        ({"network": "efa"}, {}, KUBERNETES, "network: efa requires a resource of your device plugin"),
        (
            {},
            {"leave_out": ("secrets",)},
            SLURM,
            "--leave-out secrets: hosts.yaml does not set this key, or ",
        ),
        ({"mounts": (Mount("/a,b", "/c"),)}, {"runtime": "pyxis"}, SLURM, "mounts//c: pyxis accepts no path"),
        (
            {"labels": (("a", "b"),)},
            {"runtime": "apptainer"},
            SLURM,
            "labels/a: apptainer does not support labels",
        ),
        ({}, {"words": ("gone.py",)}, SLURM, "gone.py: does not exist in"),
    ],
)
def test_refusals(
    folder: Path, changes: dict[str, Any], asked: dict[str, Any], target: str, message: str
) -> None:
    assert any(message in line for line in refused(inventory(**changes), batch(folder, **asked), target))


@for_each(
    "target, launcher",
    [(SLURM, "deepspeed"), (SLURM, "horovodrun"), (KUBERNETES, "horovodrun"), (KUBERNETES, "auto")],
)
def test_the_transport_between_the_hosts_does_not_matter(folder: Path, target: str, launcher: str) -> None:
    """With `transport: exec`, `toolkit run` refuses these launchers."""
    (folder / "hvd.py").write_text("import horovod.torch\n")
    asked = batch(folder, "hvd.py", launcher=launcher, gpus=2, exclude=("gpu2",))
    jobs = [batch_job(inventory(transport=name), asked, target, {}) for name in ("ssh", "exec")]
    assert jobs[0] == jobs[1]


def test_an_mpijob_pulls_the_image_and_a_trainjob_if_the_key_is_left_out(folder: Path) -> None:
    left = ("hosts/gpu2/env",)
    asked = batch(folder, gpus=2, launcher="mpirun", leave_out=left)
    made = manifest_text(manifest(batch_job(inventory(pull="always"), asked, KUBERNETES, {}), Pods()))
    assert made.count("imagePullPolicy: Always") == 2
    asked = batch(folder, gpus=2, launcher="torchrun", leave_out=(*left, "image/pull"))
    assert batch_job(inventory(pull="always"), asked, KUBERNETES, {}).launcher == "torchrun"


def test_auto_without_a_known_import_names_the_option_that_helps(folder: Path) -> None:
    """Kubernetes starts no ranks without MPI or torchrun, so `auto` cannot mean python as for `run`."""
    (folder / "plain.py").write_text("print(1)\n")
    asked = batch(folder, "plain.py", launcher="auto", gpus=2, leave_out=("hosts/gpu2/env",))
    with pytest.raises(BadInput) as raised:
        batch_job(inventory(), asked, KUBERNETES, {})
    (problem,) = map(str, raised.value.problems)
    assert "launcher: auto selects python because plain.py imports no library for distributed" in problem
    assert raised.value.fix == "add --launcher NAME, where NAME is one of horovodrun, mpirun, torchrun"
    for_slurm = batch(folder, "plain.py", launcher="auto", gpus=2)
    assert batch_job(inventory(), for_slurm, SLURM, {}).launcher == "python"


def test_nodes_that_differ_are_for_docker_alone(folder: Path) -> None:
    asked = batch(folder, exclude=("gpu2",))
    assert batch_job(inventory(), asked, SLURM, {"gpu3": facts_with(1)}).slots == 0
    for target, runtime in ((KUBERNETES, "docker"), (SLURM, "pyxis")):
        with pytest.raises(
            BadInput, match="hosts/gpu3: the host has 1 slot and 1 GPU, but gpu1 has 2 slots and 2 GPUs"
        ):
            unlike = dataclasses.replace(asked, runtime=runtime)
            batch_job(inventory(), unlike, target, {"gpu3": facts_with(1)})
        alike = dataclasses.replace(asked, runtime=runtime, slots=1, gpus=1)
        assert batch_job(inventory(), alike, target, {}).slots == 1


@pytest.mark.parametrize("target", [SLURM, KUBERNETES])
def test_a_node_with_fewer_gpus_than_ranks_is_refused(folder: Path, target: str) -> None:
    """The ranks without a GPU would fail with "invalid device ordinal", after the wait in the queue."""
    made = inventory(HOSTS.replace("gpus: 2}", "slots: 8}", 1))
    asked = batch(folder, only=("gpu1",), gpus=4)
    with pytest.raises(
        BadInput, match="hosts/gpu1: the host has 8 slots and 4 GPUs, but by default each"
    ) as raised:
        batch_job(made, asked, target, {})
    assert raised.value.fix.startswith("add --slots 4, --gpus 0 or --env ")
    reported = batch(folder, only=("gpu1",))
    with pytest.raises(BadInput, match="hosts/gpu1: the host has 8 slots and 3 GPUs"):
        batch_job(made, reported, target, {"gpu1": facts_with(3)})
    for fixed in (dataclasses.replace(asked, slots=4), dataclasses.replace(asked, gpus=0)):
        (node,) = batch_job(made, fixed, target, {}).nodes
        assert (node.slots, node.gpus) in ((4, 4), (8, 0))


@pytest.mark.parametrize("target", [SLURM, KUBERNETES])
def test_ranks_can_share_gpus_if_a_variable_declares_it(folder: Path, target: str) -> None:
    """As docs/how-to/share-hosts.md recommends for NCCL 2.30 or newer; `toolkit check` accepts it too."""
    name = "NCCL_MULTI_RANK_GPU_ENABLE"
    made = inventory(HOSTS.replace("gpus: 2}", "slots: 8}", 1))
    asked = batch(folder, only=("gpu1",))
    reported = {"gpu1": facts_with(2)}
    with pytest.raises(BadInput) as raised:
        batch_job(made, asked, target, reported)
    assert f"or --env {name}=1  # " in raised.value.fix
    for inventory_env, env in ((((name, "1"),), ()), ((), ((name, "1"),))):
        job = batch_job(
            dataclasses.replace(made, env=inventory_env),
            batch(folder, only=("gpu1",), env=env),
            target,
            reported,
        )
        assert [(node.slots, node.gpus) for node in job.nodes] == [(8, 2)]
    with pytest.raises(BadInput):
        batch_job(dataclasses.replace(made, env=((name, "0"),)), asked, target, reported)
    if target == SLURM:
        own = dataclasses.replace(made.host("gpu1"), env=((name, "1"),))
        made = dataclasses.replace(made, hosts=(own, *(h for h in made.hosts if h.name != "gpu1")))
        assert batch_job(made, asked, target, reported).nodes[0].gpus == 2


def test_a_node_without_gpus_beside_others_is_refused(folder: Path) -> None:
    """Slurm allocates at least one GPU of each node, or none at all."""
    asked = batch(folder, exclude=("gpu2",))
    with pytest.raises(BadInput, match="hosts/gpu3: the host has no GPU, unlike gpu1") as raised:
        batch_job(inventory(), asked, SLURM, {"gpu3": facts_with(0)})
    assert raised.value.fix == "add --only gpu1, or --gpus N  # --gpus applies to all hosts with slots"
    asked = dataclasses.replace(asked, gpus=0)
    assert [node.gpus for node in batch_job(inventory(), asked, SLURM, {}).nodes] == [0, 0]


OWN_ENV = """\
cluster: demo
image: toolkit:gpu
env: {WANDB_MODE: offline}
secrets: {TOKEN: token}
hosts:
  gpu1: {gpus: 0, env: {NCCL_DEBUG: WARN, OMP_NUM_THREADS: "4"}}
launcher: torchrun
"""


@pytest.mark.parametrize("target", [SLURM, KUBERNETES])
def test_variables_of_the_command_line_have_priority(folder: Path, target: str) -> None:
    """As in `toolkit run`: over variables of the cluster, of a host and of toolkit, and over secrets."""
    leave_out = ("hosts/gpu1/env",) if target == KUBERNETES else ()
    env = (("NCCL_DEBUG", "INFO"), ("TOKEN", "mine"))
    asked = batch(folder, env=env, passed=("ACCELERATE_USE_CPU", "WANDB_MODE"), leave_out=leave_out)
    job = batch_job(inventory(OWN_ENV), asked, target, {})
    assert (job.env, job.passed) == (env, ("ACCELERATE_USE_CPU", "WANDB_MODE"))
    assert job.nodes[0].env == ((("OMP_NUM_THREADS", "4"),) if target == SLURM else ())
    if target == SLURM:
        for runtime in RUNTIMES:
            text = script(job, runtime)
            assert not re.search(r"(WANDB_MODE|ACCELERATE_USE_CPU)=|NCCL_DEBUG=WARN|\{TOKEN", text)
    else:
        names = [each["name"] for each in manifest(job, Pods())["spec"]["trainer"]["env"]]
        assert len(set(names)) == len(names)


def test_the_last_option_of_a_variable_has_priority(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(OWN_ENV)
    words = ("render", "slurm", "--env", "WANDB_MODE=online", "--env", "WANDB_MODE")
    _, passed, _ = run(*words, "true")
    assert "--env WANDB_MODE \\\n" in passed and "WANDB_MODE=" not in passed
    _, rendered, _ = run(*words, "--env", "WANDB_MODE=disabled", "true")
    assert "--env WANDB_MODE=disabled \\\n" in rendered and "{WANDB_MODE" not in rendered


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
@pytest.mark.parametrize("option", ["--local_rank", "--local-rank"])
def test_the_option_for_the_local_rank(folder: Path, launcher: str, option: str) -> None:
    (folder / "train.py").write_text(f"import argparse\nargparse.ArgumentParser().add_argument('{option}')\n")
    made = batch_job(inventory(), batch(folder, "train.py", "it's", launcher=launcher, gpus=1), SLURM, {})
    for name in ("python3", "python"):  # an image can have python3 without python
        (folder / name).write_text('#!/bin/sh\necho "${0##*/}" "$@"\n')
        (folder / name).chmod(0o755)
        words = (shutil.which(made.command[0]) or "sh", *made.command[1:])
        env = {"PATH": str(folder), "LOCAL_RANK": "1"}
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (f"{name} train.py {option}=1 it's\n", "")


@pytest.mark.parametrize(
    ("cluster", "word", "name"),
    [
        ("demo", "a/Train_It.py", "demo-train-it"),
        ("8gpu", "x", "job-8gpu-x"),
        ("a" * 30, "b" * 30, f"{'a' * 30}-{'b' * 9}"),
    ],
)
def test_names_are_names_of_services_too(folder: Path, cluster: str, word: str, name: str) -> None:
    if word.endswith(".py"):
        (folder / "a").mkdir()
        (folder / word).touch()
    made = inventory(HOSTS.replace("demo", cluster))
    assert batch_job(made, batch(folder, word, gpus=1), SLURM, {}).name == name


def example(name: str, to: Path) -> Path:
    """Copy an example hosts file, less the paths on this machine that it names."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "identity_file:" not in line]
    (to / name).write_text("\n".join(lines) + "\n")
    return to / name


@pytest.mark.parametrize("launcher", KIND_OF)
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("hosts*.yaml")))
def test_every_example_makes_a_valid_manifest(run: Run, tmp_path: Path, name: str, launcher: str) -> None:
    kind = KIND_OF[launcher]
    definition(kind)
    hosts = example(name, tmp_path)
    (tmp_path / "crd.yaml").write_bytes(gzip.decompress(DEFINITIONS[kind].read_bytes()))
    words = ["render", "kubernetes", "--hosts", hosts.name, "--gpus", "8", "--slots", "8"]
    words += ["--launcher", launcher, "--check", "--crd", "crd.yaml", "--json"]
    left = ["services", "ulimits", "hosts/gpu1/env", "hosts/gpu2/gpus"] if "full" in name else []
    status, out, err = run(*words, *(f"--leave-out={path}" for path in left), "--", "true")
    assert status == 0, err
    assert f"ok: the manifest matches the definition of {kind}" in err
    files = yaml.safe_load(out)["files"]
    assert [yaml.safe_load(text)["kind"] for text in files.values()] == [kind]


@for_each("target, source", [("slurm", "environment of sbatch"), ("kubernetes", "Secret CLUSTER-secrets")])
def test_help_names_the_source_of_a_variable_without_a_value(target: str, source: str, run: Run) -> None:
    _, out, _ = run("render", target, "--help")
    assert source in " ".join(out.split())


def test_the_command_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "train.py").write_text("parser.add_argument('--gpus')\n")
    status, out, err = run("render", "slurm", "--gpus", "2", "--env", "TOKEN", "train.py", "--gpus", "9")
    assert status == 0 and out.startswith("#!/bin/bash\n") and err == ""
    assert ': "${TOKEN:?' in out and "--env TOKEN" in out and "train.py" in out and "--gpus 9" in out
    status, _, err = run("render", "slurm", "--gpus", "2", "-o", ".", "train.py")
    assert status == 0 and (tmp_path / "demo-train.sh").stat().st_mode & 0o111
    for words, message in (
        (("slurm", "--runtime", "podman", "true"), "--runtime: should be one of docker, pyxis, apptainer"),
        (("slurm", "--sbatch", "partition", "true"), "--sbatch: should be an option such as --partition=gpu"),
        (("slurm", "--gpus", "-1", "true"), "--gpus: should be a whole number of 0 or more"),
        (("slurm", "--env", "1x", "true"), "--env 1x"),
        (("slurm",), "Missing argument"),
        (("kubernetes", "--resource", "x", "true"), "--resource x: should be NAME=VALUE"),
        (("kubernetes", "--crd", "x", "true"), "--crd: needs --check"),
        (("kubernetes", "--image", "A B", "true"), "--image: should be an image"),
        (("kubernetes", "--check", "--crd", "gone", "true"), "No such file"),
    ):
        status, _, err = run("render", *words)
        assert status == 2 and message in err, (words, err)


def test_a_manifest_that_is_not_let_in(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    strict = {"spec": {"names": {"kind": "TrainJob"}, "versions": [{"name": "v1alpha1", "schema": {}}]}}
    closed = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": {}}}}}
    strict["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": closed}  # type: ignore[index]
    (tmp_path / "crd.yaml").write_text(yaml.safe_dump(strict))
    words = (
        "render",
        "kubernetes",
        "--gpus",
        "2",
        "--leave-out",
        "hosts/gpu2/env",
        "--check",
        "--crd",
        "crd.yaml",
    )
    status, out, err = run(*words, "true")
    assert (status, out) == (1, "") and "error: the manifest does not match the definition of TrainJob" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "crd.yaml: 1 problem\n  contains no CustomResourceDefinition (the output of `kubectl get crd"),
        (b"[]\n", "contains no CustomResourceDefinition"),
        (b"when: 2024-99-99\n", "the file is not valid YAML: month must be in 1..12"),
        (b"n: !!int ''\n", "the file is not valid YAML"),
        (b"n: !!timestamp x\n", "the file is not valid YAML"),
        (b"#" * (16 * 2**20 + 1), "the file exceeds the maximum of 16777216 bytes"),
        (b"a: \xff\n", "the file is not valid YAML"),
    ],
    ids=["empty", "list", "date", "integer", "time", "long", "bytes"],
)
def test_a_file_without_a_definition_is_refused(
    run: Run, tmp_path: Path, content: bytes, message: str
) -> None:
    """Such as the empty file that a failed `kubectl get crd … > crd.yaml` leaves."""
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "crd.yaml").write_bytes(content)
    words = ("--gpus", "2", "--leave-out", "hosts/gpu2/env", "--check", "--crd", "crd.yaml")
    status, out, err = run("render", "kubernetes", *words, "true")
    assert (status, out) == (2, "") and message in err


SBATCH = """#!/bin/sh
cat >/dev/null
case "$*" in
--test-only) exit 0 ;;
esac
for word; do case $word in --output=*) printf '%s' "$SAYS" >"${word#--output=}" ;; esac; done
echo "$NUMBER"
"""


# Slurm's controller fails the first time if the file `once` does not exist.
SCONTROL = """#!/bin/sh
[ -e once ] || { touch once; echo 'Unable to contact slurm controller' >&2; exit 1; }
echo JobState=@state@ Reason=None ExitCode=0:0
"""


def slurm_here(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Put these programs on the PATH; `sbatch` prints $NUMBER and writes $SAYS to the log."""
    (folder / "bin").mkdir()
    for name, text in {"sbatch": SBATCH, **programs}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    sleep_by(monkeypatch, lambda seconds: None)


def sleep_by(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Replace the sleep between two questions to Slurm, but not that of `subprocess` for a slow program."""
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr("toolkit.export.verify.time", clock)


def test_a_controller_that_never_answers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.export.verify._SILENCE", 0.0)
    monkeypatch.setenv("NUMBER", "17")
    silent = "#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n"
    slurm_here(tmp_path, monkeypatch, scontrol=silent, scancel='#!/bin/sh\necho "$@" >canceled\n')
    *_, trial = rehearse_slurm(JOB, "true\n", lambda two: f"# {two.name}\n", print)
    assert trial.verdict == "error" and "Unable to contact" in trial.detail
    assert (tmp_path / "canceled").read_text() == "17\n"


def test_ctrl_c_while_the_job_is_submitted_cancels_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal sends SIGINT to sbatch too, which then would not print the number of the job."""
    monkeypatch.setenv("NUMBER", "17")
    interrupted = SBATCH.replace("echo ", "kill -INT $PPID\nps -o sid= -p $$ >sid\necho ")
    cancel = '#!/bin/sh\necho "$@" >canceled\n'
    slurm_here(tmp_path, monkeypatch, sbatch=interrupted, scancel=cancel)
    with pytest.raises(Interrupted, match="canceled job 17"):
        list(rehearse_slurm(JOB, "true\n", lambda two: f"# {two.name}\n", print))
    assert (tmp_path / "canceled").read_text() == "17\n"
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)


def test_a_second_ctrl_c_does_not_leave_the_job_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBER", "17")
    cancel = '#!/bin/sh\nkill -INT $PPID\nps -o sid= -p $$ >sid\necho "$@" >canceled\n'
    slurm_here(tmp_path, monkeypatch, scancel=cancel)
    # Not from scontrol: Ctrl-C before Popen has returned leaves the program and its pipes behind.
    sleep_by(monkeypatch, lambda seconds: signal.raise_signal(signal.SIGINT))
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        list(rehearse_slurm(JOB, "true\n", lambda two: f"# {two.name}\n", print))
    assert (tmp_path / "canceled").read_text() == "17\n"
    assert int((tmp_path / "sid").read_text()) != os.getsid(0), "Ctrl-C does not reach scancel"


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    """Programs of the image can print any length."""
    log = tmp_path / "log"
    assert _end_of(log) == ""
    log.write_text("words\n")
    assert _end_of(log) == "words\n"
    os.truncate(log, 5 * _MOST_LOG)
    assert len(_end_of(log)) == _MOST_LOG


@pytest.mark.parametrize(
    ("number", "state", "says", "verdict", "detail"),
    [
        ("17", "COMPLETED", "all-reduce over 2 ranks: right", "ok", "all-reduce over 2 ranks: right"),
        ("17;cluster", "COMPLETED", "all-reduce over 2 ranks: right", "ok", "all-reduce over 2 ranks: right"),
        ("17", "COMPLETED", "nothing", "error", "job 17 is COMPLETED with exit code 0:0"),
        ("17", "FAILED", "no such image", "error", "no such image"),
        ("refused", "COMPLETED", "all-reduce over 2 ranks: right", "error", "refused"),
    ],
)
def test_two_ranks_under_slurm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: str,
    state: str,
    says: str,
    verdict: str,
    detail: str,
) -> None:
    monkeypatch.setenv("NUMBER", number)
    monkeypatch.setenv("SAYS", says)
    slurm_here(tmp_path, monkeypatch, scontrol=SCONTROL.replace("@state@", state))
    *_, trial = rehearse_slurm(JOB, "true\n", lambda two: f"# {two.name}\n", print)
    assert (trial.verdict, trial.what) == (verdict, "all-reduce over 2 ranks with mpirun under Slurm")
    assert detail in trial.detail
    assert bool(list(tmp_path.glob("*.log"))) == (verdict == "error"), "the log of what failed stays"
