"""`transport: exec` on real hosts: no sshd, no key, no port of toolkit, and jobs run anyway."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.conftest import hosts_file
from tests.e2e.world import Toolkit, containers, marked, on, outer, sh

pytestmark = pytest.mark.lab

HOSTS = {"box1": "toolkit-parts-main", "box2": "toolkit-parts-worker"}
STATE = "/home/trainer/.local/state/toolkit"
WORLD = (
    "import os; e = os.environ; "
    "print('I am', e['RANK'], 'of', e['WORLD_SIZE'], 'on', e['TOOLKIT_HOST'], e['LOCAL_RANK'], flush=True)"
)
LAUNCHERS = ("mpirun", "torchrun", "python")


@pytest.fixture(scope="module")
def parts(lab: Path, folder: Path) -> Iterator[Toolkit]:
    path = hosts_file(lab, folder, "parts", tuple(HOSTS), "mpirun")
    data = yaml.safe_load(path.read_text()) | {"transport": "exec"}
    data["hosts"]["box2"]["slots"] = 2
    path.write_text(yaml.safe_dump(data))
    tool = Toolkit(path, folder)
    yield tool
    tool.run("down", "--no-save", check=True)


@pytest.fixture
def there(parts: Toolkit) -> Toolkit:
    """The cluster, up."""
    parts.run("up", check=True, timeout=600)
    return parts


def listeners(host: str) -> set[str]:
    """Return the listening addresses and ports of a host; its containers share its network."""
    lines = [*on(host, "ss", "-Hltn").splitlines(), *on(host, "ss", "-Hlun").splitlines()]
    return {line.split()[3] for line in lines}


def private_keys(host: str, container: str) -> list[str]:
    """Files that hold a private key: in our folders on the host, and anywhere in a container's own files."""
    look = "grep -rlsI -e '-----BEGIN [A-Z ]*PRIVATE KEY-----' "
    # Other clusters of this lab have theirs.
    ours = sh(host, f"{look} {STATE}/parts")
    # Tests of Python packages bring keys of their own; they open nothing.
    within = on(
        host, "docker", "exec", "-u", "0", container, "sh", "-c", f"{look} /etc /root /home /run /var /tmp"
    )
    return [line for line in (ours + within).splitlines() if line.startswith("/")]


def test_nothing_listens_and_nobody_has_a_key(parts: Toolkit) -> None:
    before = {host: listeners(host) for host in HOSTS}
    assert all("0.0.0.0:22" in found for found in before.values()), "the census can see a listener"
    parts.run("up", check=True, timeout=600)
    assert parts.run("up", "--json", check=True).json["changes"] == 0
    for host, container in HOSTS.items():
        assert listeners(host) == before[host]
        assert private_keys(host, container) == []
        processes = on(host, "docker", "top", container, "-o", "pid,args")
        assert "sleep infinity" in processes and "sshd" not in processes
        # Main's has what the last `up` took its time with, too.
        assert set(sh(host, f"ls {STATE}/parts/{host}/conf").split()) - {"up.json"} == {"host.json"}
    for launcher in LAUNCHERS:
        done = parts.run("run", "--launcher", launcher, "--", "python", "-c", WORLD)
        said = {line.partition("I am ")[2] for line in done.out.splitlines() if "I am" in line}
        assert done.status == 0, done.err
        assert said == {"0 of 3 on box1 0", "1 of 3 on box2 0", "2 of 3 on box2 1"}, (launcher, done.out)
    for host in HOSTS:
        assert listeners(host) == before[host], "a job leaves nobody who listens"
    states = [job["state"] for job in parts.run("jobs", "--json", check=True).json]
    assert states == ["succeeded"] * 3
    told = parts.run("report", "--json", check=True).json
    assert (told["status"]["state"], told["silent"]) == ("succeeded", [])
    assert [(rank["rank"], rank["host"]) for rank in told["ranks"]] == [(0, "box1"), (1, "box2"), (2, "box2")]
    assert {"code", "start"} <= {span["phase"] for span in told["preparation"]}


@pytest.mark.rare
def test_a_rank_that_fails_ends_the_others_with_its_own_exit_code(there: Toolkit) -> None:
    code = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(300)"
    for launcher in ("mpirun", "torchrun"):
        done = there.run("run", "--launcher", launcher, "--", "python", "-c", code)
        assert done.status == 7, (launcher, done.err)
        assert "rank 1 on box2 exited with code 7" in done.err
        assert done.seconds < 120, "not when the other rank ends"
    job = there.run("jobs", "--json", check=True).json[-1]
    assert (job["state"], job["exit_code"]) == ("failed", 7)
    assert not any(marked(host, f"TOOLKIT_JOB={job['id']}") for host in HOSTS)


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.rare)])
def test_a_job_goes_on_alone_is_found_again_and_stopped_everywhere(there: Toolkit, launcher: str) -> None:
    text = "import time; print('begun', flush=True); time.sleep(600)"
    started = there.run("run", "-d", "--json", "--launcher", launcher, "--", "python", "-c", text, check=True)
    job = started.json["job"]
    waiting.job_prints(there, job, "begun", 3)
    assert "begun" in there.run("logs", "--rank", "2", job, check=True).out
    assert there.run("status", "--json", check=True).json["jobs"][-1]["state"] == "running"
    taken = there.run("run", "--", "true")
    assert taken.status != 0 and job in taken.err, "its slots are taken on every host"
    watching = there.start("attach", job)
    ended = there.run("stop", job, check=True)
    assert "stopped" in ended.err
    watching.communicate(timeout=120)
    assert watching.returncode == 143
    assert not any(marked(host, f"TOOLKIT_JOB={job}") for host in HOSTS)


def test_a_host_without_a_part_cannot_end_a_job(there: Toolkit) -> None:
    text = "import time; print('begun', flush=True); time.sleep(600)"
    options = ("--only", "box1", "--launcher", "torchrun")
    job = there.run("run", "-d", "--json", *options, "--", "python", "-c", text, check=True).json["job"]
    waiting.job_prints(there, job, "begun")
    folder = f"/run/toolkit/jobs/{job}"
    within = {host: ("docker", "exec", "-i", container) for host, container in HOSTS.items()}
    record = json.loads(on("box1", *within["box1"], "cat", f"{folder}/record.json"))
    record["hosts"].append({**record["hosts"][0], "name": "box2"})
    status = json.loads(on("box1", *within["box1"], "cat", f"{folder}/status.json"))
    status |= {"state": "failed", "exit_code": 9, "ended": status["started"], "reason": "forged"}
    forged = {"job.json": record, "record.json": record, "status.json": status}
    on("box2", *within["box2"], "mkdir", "-p", f"{folder}/logs")
    for name, content in forged.items():
        write = f"printf %s {shlex.quote(json.dumps(content))} > {folder}/{name}"
        on("box2", *within["box2"], "sh", "-c", write)
    found = there.run("jobs", "--json", check=True)
    assert (found.json[-1]["state"], list(found.json[-1]["hosts"])) == ("running", ["box1"])
    assert (
        f"box2: {job}: the job does not run on the host, so toolkit ignores the host's report about the job"
        in found.err
    )
    late = there.run("wait", "--timeout", "3", job)
    assert late.status == 3 and "still runs" in late.err, late.err
    assert marked("box1", f"TOOLKIT_JOB={job}")
    assert there.run("stop", job, check=True).err.endswith(f"job {job}: stopped\n")
    on("box2", *within["box2"], "rm", "-r", folder)


@pytest.mark.rare
def test_a_host_that_dies_ends_the_job_for_whoever_watches(there: Toolkit) -> None:
    text = "import time; print('begun', flush=True); time.sleep(600)"
    job = there.run("run", "-d", "--json", "--", "python", "-c", text, check=True).json["job"]
    waiting.job_prints(there, job, "begun", 3)
    watching = there.start("attach", "--no-fold", job)
    try:
        assert watching.stdout is not None
        said = "".join(watching.stdout.readline() for _ in range(3))
        assert said.count("begun") == 3
        subprocess.run(["docker", "pause", outer("box2")], check=True, capture_output=True)
        said, _ = watching.communicate(timeout=150)
        assert "box2 is lost" in said and watching.returncode == 69
        assert not marked("box1", f"TOOLKIT_JOB={job}")
    finally:
        subprocess.run(["docker", "unpause", outer("box2")], check=True, capture_output=True)
    there.run("stop", job)
    waiting.job_gone("box2", job)


@pytest.mark.rare
def test_real_training_and_the_changes_between_the_transports(there: Toolkit, tmp_path: Path) -> None:
    for launcher, script in (("mpirun", "train_horovod.py"), ("torchrun", "train_ddp.py")):
        done = there.run("run", "--launcher", launcher, f"examples/digits/{script}", "--epochs", "2")
        assert done.status == 0 and "on 3 ranks" in done.out, done.out + done.err
    assert "all-reduce over 3 ranks" in there.run("smoke", check=True).out
    by_ssh = tmp_path / "hosts.yaml"
    by_ssh.write_text(there.hosts.read_text().replace("transport: exec", "transport: ssh"))
    other = Toolkit(by_ssh, there.folder)
    other.run("up", check=True)
    assert other.run("run", "--launcher", "mpirun", "--", "python", "-c", WORLD).status == 0
    assert private_keys("box1", HOSTS["box1"]) != [], "the census can see one"
    there.run("up", check=True)
    for host, container in HOSTS.items():
        assert private_keys(host, container) == [] and len(containers(host, "parts")) == 1
    assert len(there.run("jobs", "--json", check=True).json) >= 3
