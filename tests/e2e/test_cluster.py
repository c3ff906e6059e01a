"""A cluster's life on real engines: up, up again, heal, trouble on one host, down to nothing."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.world import Toolkit, containers, logins, marked, on, outer, sh

pytestmark = pytest.mark.lab

STATE = "/home/trainer/.local/state/toolkit"


def test_up_uses_one_connection_per_host_and_a_second_one_changes_nothing(two: Toolkit) -> None:
    two.run("down", "--no-save", check=True)
    before = {host: logins(host) for host in ("box1", "box2")}
    first = two.run("up", "--json", check=True)
    assert first.json["ok"] and first.json["changes"] > 0
    assert {host: logins(host) - before[host] for host in before} == {"box1": 1, "box2": 1}
    second = two.run("up", "--json", check=True)
    assert second.json["changes"] == 0
    commands = re.findall(r"(?m)^ +\$ +(box\d): ", two.run("up", "-v", check=True).err)
    assert sorted(commands) == ["box1", "box2"], "the probe has all answers"
    assert {o["status"] for o in second.json["outcomes"]} == {"skipped"}
    assert "nothing to change" in two.run("up", check=True).err


def test_every_host_has_a_docker0_of_the_same_address_and_another_interface_name(up: Toolkit) -> None:
    addresses = {
        host: on(host, "ip", "-o", "-4", "addr", "show", "docker0").split()[3] for host in ("box1", "box2")
    }
    assert len(set(addresses.values())) == 1
    files = [json.loads(up.run("exec", h, "--", "cat", "/run/toolkit/conf/host.json").out) for h in addresses]
    assert files[0]["interface"] != files[1]["interface"]
    assert not any(f["address"].startswith("172.17.") for f in files)


def test_smoke(up: Toolkit) -> None:
    text = up.run("smoke", check=True).out
    assert "no GPU was tested" in text and "all-reduce over 2 ranks: sum 3 correct on all ranks" in text
    assert up.run("smoke", "--json", "--launcher", "torchrun", check=True).json["ok"]


def test_ranks_find_the_names_of_other_ranks_without_a_name_server(up: Toolkit) -> None:
    """PyTorch looks up each peer by its IPv4-mapped IPv6 address."""
    look = "socket.getnameinfo(('::ffff:' + socket.gethostbyname('box1'), 1, 0, 0), socket.NI_NAMEREQD)[0]"
    found = up.run("exec", "box2", "--", "python3", "-c", f"import socket; print({look})", check=True).out
    assert found.split()[-1] == "box1.ipv4"


def test_a_shell_ends_with_what_it_is_given_to_read(up: Toolkit) -> None:
    for given, said in (("hostname; cat\nto cat\n", "box2\nto cat\n"), ("", ""), ("exit 7\n", "")):
        words = [up.program, "shell", "box2"]
        done = subprocess.run(
            words, input=given, env=up.env, cwd=up.folder, capture_output=True, text=True, timeout=60
        )
        assert (done.stdout, done.returncode) == (said, 7 if "exit" in given else 0), done.stderr


def test_up_heals_just_the_worker_that_was_removed(up: Toolkit) -> None:
    main = on("box1", "docker", "inspect", "-f", "{{.Id}}", "toolkit-two-main")
    on("box2", "docker", "rm", "-f", "toolkit-two-worker")
    assert up.run("status").status == 3
    changed = [o for o in up.run("up", "--json", check=True).json["outcomes"] if o["status"] == "ok"]
    assert [(o["host"], o["phase"]) for o in changed if o["phase"] != "sshd"] == [
        ("box2", "containers"),
        ("box1", "login"),
    ]
    assert on("box1", "docker", "inspect", "-f", "{{.Id}}", "toolkit-two-main") == main


def test_a_changed_specification_recreates_only_what_changed(up: Toolkit, tmp_path: Path) -> None:
    data = yaml.safe_load(up.hosts.read_text())
    data["hosts"]["box2"]["env"] = {"FLAVOUR": "sour"}
    changed = Toolkit(tmp_path / "hosts.yaml", up.folder)
    changed.hosts.write_text(yaml.safe_dump(data))
    told = "hosts.yaml changed since `up`: {}; run `toolkit up`"
    # A rank's variable goes with each job: `up` has nothing to do.
    assert "changed since" not in changed.run("status", check=True).err
    assert changed.run("up", "--json", check=True).json["changes"] == 0
    words = ("--launcher", "torchrun", "--", "sh", "-c", "echo FLAVOUR=$FLAVOUR")
    lines = changed.run("run", *words, check=True).out.splitlines()
    assert {"[box1 0] FLAVOUR=", "[box2 1] FLAVOUR=sour"} <= set(lines)
    data["shm_size"] = "1g"
    changed.hosts.write_text(yaml.safe_dump(data))
    job = changed.run("run", "--json", "--", "true", check=True)
    assert told.format("shm_size") in job.err
    assert "changed since `up`: shm_size" in [warning["what"] for warning in job.json["warnings"]]
    rows = [o for o in changed.run("up", "--json", check=True).json["outcomes"] if o["status"] == "ok"]
    assert {o["phase"] for o in rows} - {"sshd"} == {"containers", "login", "record"}
    assert "changed since" not in changed.run("status", check=True).err
    up.run("up", check=True)


def test_dry_run_prints_the_commands_and_changes_nothing(up: Toolkit) -> None:
    on("box2", "docker", "rm", "-f", "toolkit-two-worker")
    text = up.run("up", "--dry-run", check=True).out
    assert "docker run --detach --name toolkit-two-worker" in text
    assert containers("box2", "two") == []
    up.run("up", check=True)


def test_a_worker_that_dies_ends_the_wait_with_its_last_words(up: Toolkit) -> None:
    key = f"{STATE}/two/box2/conf/ssh_host_ed25519_key"
    sh("box2", f"cp -p {key} /root/key; echo spoilt >{key}; docker rm -f toolkit-two-worker")
    try:
        done = up.run("up", "--json")
        failed = [o for o in done.json["outcomes"] if o["status"] == "failed"]
        assert done.status == 1 and [(o["host"], o["phase"]) for o in failed] == [("box2", "sshd")]
        # The wait ends with the container, before its time limit.
        assert "the container exited" in failed[0]["detail"]
        assert "no hostkeys available" in failed[0]["detail"]
        assert failed[0]["fix"]
    finally:
        sh("box2", f"cat /root/key >{key}; rm /root/key")
    up.run("up", check=True)


def test_ranks_write_to_mounts_as_the_ssh_user(up: Toolkit, tmp_path: Path) -> None:
    sh("box1", "install -d -o trainer -m 700 /srv/results")
    data = yaml.safe_load(up.hosts.read_text())
    data["cluster"], data["hosts"] = "mounted", {"box1": data["hosts"]["box1"]}
    data["mounts"] = ["/srv/results:/results"]
    alone = Toolkit(tmp_path / "hosts.yaml", tmp_path)
    alone.hosts.write_text(yaml.safe_dump(data))
    alone.run("up", check=True)
    try:
        text = (
            "echo $(whoami) $HOME >/results/who; touch ~/note; python3 -c 'import getpass; getpass.getuser()'"
        )
        alone.run("run", "--", "sh", "-c", text, check=True)
        assert (
            sh("box1", "stat -c %U /srv/results/who; cat /srv/results/who")
            == "trainer\ntrainer /home/trainer\n"
        )
    finally:
        alone.run("down", "--no-save", check=True)
        sh("box1", "rm -rf /srv/results")


def test_a_port_of_the_file_that_is_taken_is_an_error_that_names_the_host(
    up: Toolkit, tmp_path: Path
) -> None:
    # Another program listens on the data address, on the port that the file requires.
    data = yaml.safe_load(up.hosts.read_text())
    data["cluster"], data["worker_port"] = "busy", 23456
    other = Toolkit(tmp_path / "hosts.yaml", tmp_path)
    other.hosts.write_text(yaml.safe_dump(data))
    address = data["hosts"]["box2"]["address"]
    python = f"import socket,time; s=socket.create_server(('{address}',23456)); time.sleep(600)"
    image = "toolkit:cpu"
    on(
        "box2",
        "docker",
        "run",
        "-d",
        "--rm",
        "--name",
        "squatter",
        "--network",
        "host",
        image,
        "python3",
        "-c",
        python,
    )
    try:
        waiting.listens("box2", 23456, address)
        done = other.run("up")
        assert done.status == 3
        assert "uses port 23456, the worker_port in hosts.yaml" in done.err and "fix:" in done.err
    finally:
        on("box2", "docker", "rm", "-f", "squatter")
        other.run("down")


def test_a_host_that_is_gone_does_not_hide_the_others(up: Toolkit) -> None:
    subprocess.run(["docker", "stop", "-t", "1", outer("box2")], check=True, capture_output=True)
    try:
        done = up.run("up", "--json")
        assert done.status == 1
        rows = done.json["outcomes"]
        assert [o["host"] for o in rows if o["status"] == "failed"] == ["box2"]
        assert any(o["host"] == "box1" for o in rows)
        down = up.run("down", "--no-save")
        assert down.status == 1 and "box2: FAILED at connect" in down.err
        assert containers("box1", "two") == []
    finally:
        subprocess.run(["docker", "start", outer("box2")], check=True, capture_output=True)
    waiting.host_answers("box2")
    up.run("down", "--no-save", check=True)
    assert containers("box2", "two") == []
    up.run("up", check=True)


@pytest.mark.rare
def test_three_kinds_of_engine_and_two_clusters_side_by_side(up: Toolkit, three: Toolkit) -> None:
    three.run("up", check=True, timeout=600)
    stores = {host: on(host, "docker", "info", "--format", "{{.DriverStatus}}") for host in ("box2", "box3")}
    assert "containerd.snapshotter" in stores["box3"] and "containerd.snapshotter" not in stores["box2"]
    assert three.run("up", "--json", check=True).json["changes"] == 0
    status = three.run("status", "--json", check=True).json
    assert len({h["image"] for h in status["hosts"]}) == 1, "one identity on every engine and store"
    # box2 is a worker in both clusters, so the second one's port has moved for all of its workers.
    ports = {
        on(
            h, "docker", "inspect", "-f", '{{index .Config.Labels "toolkit.port"}}', "toolkit-three-worker"
        ).strip()
        for h in ("box1", "box2")
    }
    assert len(ports) == 1 and ports != {"12345"}
    assert "all-reduce over 3 ranks: sum 6" in three.run("smoke", check=True).out
    assert up.run("up", "--json", check=True).json["changes"] == 0
    three.run("down", check=True)
    assert up.run("status").status == 0, "the neighbour is untouched"


def test_rendered_docker_scripts_start_the_same_containers(up: Toolkit, tmp_path: Path) -> None:
    up.run("render", "docker", "-o", str(tmp_path), check=True)
    on("box2", "docker", "rm", "-f", "toolkit-two-worker")
    text = (tmp_path / "box2" / "worker.sh").read_text()
    subprocess.run(
        ["docker", "exec", "-i", "-u", "trainer", outer("box2"), "sh"],
        input=text,
        text=True,
        check=True,
    )
    rows = up.run("up", "--json", check=True).json["outcomes"]
    assert {o["phase"] for o in rows if o["status"] == "ok"} <= {"sshd", "login"}


@pytest.mark.rare
def test_another_main_takes_the_old_roles_containers_and_keys_along(up: Toolkit, tmp_path: Path) -> None:
    data = yaml.safe_load(up.hosts.read_text())
    data["cluster"] = "swap"
    swapped = Toolkit(tmp_path / "hosts.yaml", tmp_path)
    for main, worker in (("box1", "box2"), ("box2", "box1")):
        swapped.hosts.write_text(yaml.safe_dump(data | {"main": main}))
        swapped.run("up", check=True)
        assert swapped.run("up", "--json", check=True).json["changes"] == 0
        assert containers(main, "swap") == ["toolkit-swap-main"]
        assert containers(worker, "swap") == ["toolkit-swap-worker"]
        keys = sh(worker, f"grep -l PRIVATE {STATE}/swap/{worker}/conf/*").split()
        assert keys == [f"{STATE}/swap/{worker}/conf/ssh_host_ed25519_key"]
    swapped.run("down", check=True)


def test_a_name_of_the_image_that_only_this_machine_knew(up: Toolkit, tmp_path: Path) -> None:
    subprocess.run(["docker", "tag", "toolkit:cpu", "toolkit:renamed"], check=True)
    try:
        data = yaml.safe_load(up.hosts.read_text()) | {"cluster": "named", "image": "toolkit:renamed"}
        data["hosts"] = {"box1": data["hosts"]["box1"]}
        named = Toolkit(tmp_path / "hosts.yaml", tmp_path)
        named.hosts.write_text(yaml.safe_dump(data))
        rows = named.run("up", "--json", check=True).json["outcomes"]
        assert rows[0]["step"] == "tag the image with its content digest"
        named.run("run", "--", "true", check=True)
        named.run("down", "--no-save", check=True)
    finally:
        subprocess.run(["docker", "rmi", "toolkit:renamed"], check=True, capture_output=True)
        on("box1", "docker", "rmi", "toolkit:renamed")


def test_down_saves_results_also_when_the_container_is_gone(up: Toolkit) -> None:
    up.run("run", "--workdir", "examples", "--", "sh", "-c", "echo precious >result-$RANK", check=True)
    on("box1", "docker", "rm", "-f", "toolkit-two-main")
    on("box2", "docker", "stop", "-t", "1", "toolkit-two-worker")
    up.run("down", check=True)
    saved = {p.name: p.read_text() for p in (up.folder / "runs" / "two").rglob("result-*")}
    assert saved == {"result-0": "precious\n", "result-1": "precious\n"}
    up.run("up", check=True)


@pytest.mark.rare
def test_through_a_jump_host_and_a_main_without_slots(up: Toolkit, tmp_path: Path) -> None:
    data = yaml.safe_load(up.hosts.read_text())
    first, second = data["hosts"]["box1"], data["hosts"]["box2"]
    first["slots"], second["jump"] = 0, f"trainer@{first['address']}"
    data |= {"cluster": "jumped", "known_hosts": str(tmp_path / "known_hosts")}
    jumped = Toolkit(tmp_path / "hosts.yaml", tmp_path)
    jumped.hosts.write_text(yaml.safe_dump(data))
    # The way there is trusted first; only then can what lies behind it be looked at.
    assert jumped.run("trust", "--yes").status == 1
    jumped.run("trust", "--yes", check=True)
    direct = logins("box1")
    jumped.run("up", check=True)
    assert logins("box1") - direct == 2, "once for itself, once on the way to box2"
    for launcher in ("horovodrun", "mpirun", "torchrun"):
        words = ("--launcher", launcher, "--", "sh", "-c", "echo RANK $RANK of $WORLD_SIZE")
        assert "[box2 0] RANK 0 of 1" in jumped.run("run", *words, check=True).out
    jumped.run("down", "--no-save", check=True)


def test_down_leaves_nothing(up: Toolkit) -> None:
    up.run("run", "--workdir", "examples/digits", "train_ddp.py", "--epochs", "1", check=True)
    ports = sh("box2", "ss -ltnH")
    assert ":12345" in ports
    job = up.run("run", "--detach", "--json", "--workdir", "examples", "--", "sleep", "99", check=True).json[
        "job"
    ]
    done = up.run("down", check=True)
    assert (
        "down two" in done.err
        and f"job {job} is running; toolkit stops the job, then removes the cluster" in done.err
    )
    (status,) = (p for p in (up.folder / "runs" / "two").rglob("status.json") if job in p.parts)
    assert json.loads(status.read_text())["state"] == "stopped"
    for host in ("box1", "box2"):
        assert containers(host, "two") == []
        assert marked(host, "TOOLKIT_CLUSTER=two") == []
        assert ":12345" not in sh(host, "ss -ltnH")
        assert sh(host, f"find {STATE} 2>/dev/null").strip() == ""
        assert on(host, "docker", "volume", "ls", "-q").strip() == ""
    saved = sorted(p.name for p in (up.folder / "runs" / "two").rglob("*") if p.is_file())
    assert {"record.json", "status.json", "output.log", "rank-0.log", "rank-1.log", "digits.pt"} <= set(saved)
    again = up.run("down", "--json", check=True).json
    assert {o["phase"] for o in again["outcomes"] if o["status"] == "ok"} == {"proof"}
