"""Services on real hosts: up, health, status, logs, the way there through ssh; TensorBoard of a job."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.conftest import hosts_file
from tests.e2e.world import Toolkit, containers, interrupt, on, sh

pytestmark = pytest.mark.lab

WEB = "toolkit-served-service-web"
TICKER = "toolkit-served-service-ticker"
SERVICES: dict[str, Any] = {
    "web": {
        "command": "python3 -m http.server 8080 --directory /shared/web",
        "host": "box2",
        "ports": [8080],
        "health": "/",
        "start_within": 60,
    },
    "ticker": {"command": ["sh", "-c", "n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.5; done"]},
}
BOARD = "toolkit:board"
WRITES = """
import os, time
from torch.utils.tensorboard import SummaryWriter
if os.environ["RANK"] == "0":
    with SummaryWriter("/shared/runs/one") as writer:
        for step in range(600):
            writer.add_scalar("loss", 1 / (step + 1), step)
            writer.flush()
            time.sleep(0.2)
else:
    time.sleep(120)
"""


def with_services(cluster: Toolkit, services: dict[str, Any], **changes: object) -> None:
    data = yaml.safe_load(cluster.hosts.read_text())
    cluster.hosts.write_text(yaml.safe_dump({**data, **changes, "services": services}))


@pytest.fixture(scope="module")
def served(lab: Path, folder: Path) -> Iterator[Toolkit]:
    cluster = Toolkit(hosts_file(lab, folder, "served", ("box1", "box2")), folder)
    with_services(cluster, SERVICES, mounts=["/srv/shared:/shared"])
    sh("box1", "install -d -o trainer /srv/shared/web && echo hello >/srv/shared/web/page")
    cluster.run("up", check=True)
    yield cluster
    with_services(cluster, SERVICES)
    cluster.run("down", "--no-save", check=True)
    assert not containers("box1", "served") and not containers("box2", "served")
    sh("box1", "rm -rf /srv/shared/web")


@pytest.fixture
def up(served: Toolkit) -> Toolkit:
    with_services(served, SERVICES)
    served.run("up", check=True)
    return served


@contextmanager
def forwarded(cluster: Toolkit, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`toolkit forward`, with the URL that it has said."""
    process = cluster.start("forward", *words)
    assert process.stdout is not None
    try:
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/", said)):
            line = process.stdout.readline()
            assert line, f"it ended with {process.wait()}: {said}"
            said += line
        yield found[0], process
    finally:
        process.kill()
        process.wait()


def get(url: str) -> str:
    # A proxy of this machine has no business here.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=20) as answer:
        return str(answer.read().decode())


def states(cluster: Toolkit) -> dict[str, str]:
    rows = cluster.run("status", "--json").json["services"]
    return {row["service"]: row["state"] for row in rows}


def test_up_starts_them_once_and_status_shows_them(up: Toolkit) -> None:
    assert states(up) == {"web": "healthy", "ticker": "running"}
    assert WEB in containers("box2", "served", running=True)
    assert "nothing to change" in up.run("up", check=True).err
    said = up.run("status", check=True).out
    assert re.search(r"^web +box2 +healthy +8080", said, re.MULTILINE)


def test_nobody_listens_on_the_host(up: Toolkit) -> None:
    assert "8080" not in sh("box2", "ss -Hltn")


def test_the_forward_leads_there_and_ctrl_c_closes_it(up: Toolkit) -> None:
    with forwarded(up, "web") as (url, process):
        assert get(f"{url}page") == "hello\n"
        interrupt(process)
        assert process.wait(60) == 0
        with pytest.raises(urllib.error.URLError):
            get(url)


def test_the_forward_outlives_its_connection_and_its_service(up: Toolkit) -> None:
    with forwarded(up, "web", "--port", "18080") as (url, _):
        assert url == "http://127.0.0.1:18080/" and get(f"{url}page") == "hello\n"
        on("box2", "docker", "restart", "--time", "1", WEB)
        waiting.until(
            "service web is healthy", lambda: states(up), lambda found: found["web"] == "healthy", 120
        )
        assert get(f"{url}page") == "hello\n"
        # The connections of ssh to the host end at once, by their processes there.
        pids = "ss -Htnp state established '( sport = :22 )' | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u"
        sh("box2", f"kill -9 $({pids})")
        # The next request finds the connection gone, or loses it, and is led over a new one.
        assert get(f"{url}page") == "hello\n"


def test_a_port_that_is_taken_is_given_up_for_another_or_refused(up: Toolkit) -> None:
    with forwarded(up, "web", "--port", "18081") as (url, _):
        done = up.run("forward", "web", "--port", "18081")
        assert done.status == 1 and "port 18081 of your machine: Address already in use" in done.err
        assert get(f"{url}page") == "hello\n"
    with forwarded(up, "web") as (first, _), forwarded(up, "web") as (second, _):
        assert first != second and get(f"{second}page") == "hello\n"


def test_a_host_whose_sshd_forbids_it_is_named(up: Toolkit) -> None:
    setting, again = "/etc/ssh/sshd_config.d/00-no.conf", "kill -HUP $(cat /run/sshd.pid)"
    sh("box2", f"echo 'AllowTcpForwarding no' >{setting} && {again}")
    try:
        done = up.run("forward", "web")
        assert done.status == 1 and "box2: the sshd of the host forbids TCP forwarding" in done.err
        assert "AllowTcpForwarding" in done.err
    finally:
        sh("box2", f"rm {setting} && {again}")


def test_its_log_and_following_it_leaves_nothing_behind(up: Toolkit) -> None:
    lines = up.run("logs", "--service", "ticker", "--tail", "2", check=True).out.split("\n")[:-1]
    assert len(lines) == 2 and all(re.fullmatch(r"tick \d+", line) for line in lines)
    process = up.start("logs", "--service", "ticker", "-f", "--tail", "1")
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline().startswith("tick ")
    followers = "grep -lszx -e [-]-follow /proc/[0-9]*/cmdline | wc -l"
    assert sh("box1", followers).strip() != "0"
    interrupt(process)
    assert process.wait(60) == 130
    waiting.on_host("nobody follows the log", "box1", followers, lambda said: said.strip() == "0")


@pytest.mark.rare
def test_one_that_ends_fails_up_with_its_last_lines_and_is_started_anew(up: Toolkit) -> None:
    job = up.run("run", "-d", "--json", "--workdir", "examples", "--", "sleep", "120", check=True).json["job"]
    broken = {"command": ["sh", "-c", "echo no such model; sleep 0.2; exit 3"]}
    with_services(up, {**SERVICES, "broken": broken})
    done = up.run("up")
    assert done.status == 1 and "no such model" in done.err and "toolkit logs --service broken" in done.err
    status = up.run("status", "--json")
    row = next(row for row in status.json["services"] if row["service"] == "broken")
    assert (status.status, row["state"]) == (3, "exited (3)")
    assert states(up)["web"] == "healthy"
    with_services(up, {**SERVICES, "broken": {"command": "sleep infinity"}})
    up.run("up", check=True)
    assert states(up)["broken"] == "running"
    with_services(up, SERVICES)
    assert "toolkit-served-service-broken" in up.run("up", "--dry-run", check=True).out
    up.run("up", check=True)
    assert TICKER in containers("box1", "served") and len(containers("box1", "served")) == 2
    running = up.run("jobs", "--json", check=True).json
    assert [row["state"] for row in running if row["id"] == job] == ["running"]
    up.run("stop", job, "--now", check=True)


# With TensorBoard in the image


@pytest.fixture(scope="module")
def board(lab: Path, folder: Path) -> Iterator[Toolkit]:
    cluster = Toolkit(hosts_file(lab, folder, "board", ("box1", "box2")), folder)
    command = "tensorboard --logdir /shared/runs --host 0.0.0.0 --port 6006 --reload_interval 1"
    service = {"command": command, "ports": [6006], "health": "/", "host": "box2"}
    with_services(cluster, {"tensorboard": service}, mounts=["/srv/shared:/shared"], image=BOARD)
    sh("box1", "install -d -o trainer /srv/shared/runs")
    cluster.run("image", "build", "--with", "tensorboard", "--tag", BOARD, check=True, timeout=1800)
    cluster.run("up", check=True, timeout=600)
    yield cluster
    cluster.run("down", "--no-save", check=True)
    sh("box1", "rm -rf /srv/shared/runs")


@pytest.mark.rare
def test_tensorboard_of_a_running_job_through_the_forward(board: Toolkit) -> None:
    code = board.folder / "writes"
    code.mkdir()
    (code / "train.py").write_text(WRITES)
    words = ("run", "-d", "--json", "--launcher", "python", "--workdir", "writes", "train.py")
    job = board.run(*words, check=True).json["job"]
    with forwarded(board, "tensorboard") as (url, _):
        assert "TensorBoard" in get(url)

        def steps() -> int:
            runs = json.loads(get(f"{url}data/runs"))
            if not runs:
                return 0
            try:
                return len(json.loads(get(f"{url}data/plugin/scalars/scalars?run={runs[0]}&tag=loss")))
            except urllib.error.HTTPError:
                return 0  # it knows the run and has not read it yet

        first = waiting.until("TensorBoard shows steps", steps, lambda count: count > 3, 120)
        waiting.until("TensorBoard shows more steps", steps, lambda count: count > first, 120)
        running = board.run("jobs", "--json", check=True).json
        assert [row["state"] for row in running if row["id"] == job] == ["running"]
    board.run("stop", job, "--now", check=True)
