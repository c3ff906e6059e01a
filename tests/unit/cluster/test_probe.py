"""Answers of hosts with old and new software to the probe, and their interpretation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_world import public_key
from tests.unit.container_world import wait_for
from toolkit.checks.gpu import GPUS as GPU_HEALTH
from toolkit.cluster.containers import passwd_file
from toolkit.cluster.gpus import SMI
from toolkit.cluster.probe import parse_facts, probe_command, read_probe
from toolkit.core.command import Command
from toolkit.core.facts import Facts, Gpu, Interface, Remembered
from toolkit.errors import CommandFailed, NotReady, ToolkitError

NONCE = "0123456789abcdef"

OLD_INFO = {
    "ID": "ABCD:EFGH",
    "Containers": 1,
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"], ["Supports d_type", "true"]],
    "ServerVersion": "20.10.24+dfsg1",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"],
    "Warnings": ["WARNING: No swap limit support"],
    "ClientInfo": {"Debug": False, "Context": "default", "Plugins": [], "Warnings": None},
}
NEW_INFO = {**OLD_INFO, "ServerVersion": "26.1.5", "CDISpecDirs": ["/etc/cdi"]}
CONTAINERD_INFO = {
    **NEW_INFO,
    "Driver": "overlayfs",
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    "ServerVersion": "29.0.1",
}
ROOTLESS_INFO = {
    **NEW_INFO,
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"],
}

IP = """\
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
2: enp3s0    inet 10.77.0.2/24 brd 10.77.0.255 scope global dynamic enp3s0\\       valid_lft 86000sec
2: enp3s0    inet 10.77.0.99/24 scope global secondary enp3s0\\       valid_lft forever preferred_lft forever
3: docker0    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0\\       valid_lft forever
4: tun0    inet 10.8.0.6 peer 10.8.0.5/32 scope global tun0\\       valid_lft forever preferred_lft forever
"""
ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t01004D0A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
)
TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.77.0.0/24 2 0 2
        +-- 10.77.0.0/28 2 0 2
           |-- 10.77.0.0
              /24 link UNICAST
           |-- 10.77.0.2
              /32 host LOCAL
        |-- 10.77.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 172.17.0.0/16 2 0 2
        |-- 172.17.0.1
           /32 host LOCAL
Local:
  +-- 0.0.0.0/0 3 0 5
           |-- 10.77.0.2
              /32 host LOCAL
"""
TCP_HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
)
TCP = (
    TCP_HEAD
    + "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0\n"
    + "   1: 02004D0A:3039 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 2 1 0\n"
    + "   2: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 3 1 0\n"
    + "   3: 02004D0A:C001 03004D0A:3039 01 00000000:00000000 00:00000000 00000000  1000        0 4 1 0\n"
    + "   4: 02004D0A:C002 03004D0A:3039 06 00000000:00000000 00:00000000 00000000     0        0 0 3 0\n"
)
TCP6 = (
    TCP_HEAD
    + "   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0 0 0 0 0 1\n"
    + "   1: 0000000000000000FFFF000002004D0A:1F91 00000000000000000000000000000000:0000 0A 0:0 0 0 0 0 1\n"
    + "   2: B80D0120000000000000000001000000:1F92 00000000000000000000000000000000:0000 0A 0:0 0 0 0 0 1\n"
)
CONTAINER = {
    "Id": "c" * 64,
    "Name": "/toolkit-demo-worker",
    "State": {
        "Status": "exited",
        "ExitCode": 137,
        "StartedAt": "2026-11-20T21:00:00Z",
        "FinishedAt": "2026-11-20T21:30:01.495662528Z",
    },
    "Config": {"Labels": {"toolkit.cluster": "demo", "toolkit.digest": "0123"}},
}
IMAGE = {
    "Id": "sha256:" + "1" * 64,
    "RepoTags": ["toolkit:cpu", "toolkit.local/verified:x"],
    "Os": "linux",
    "Architecture": "amd64",
    "Config": {"Env": ["A=b"], "Cmd": ["bash"]},
    "RootFS": {"Layers": ["sha256:a"]},
}
GPUS = (
    "0, GPU-1a, NVIDIA A100-SXM4-80GB, 550.54.14, 81920\n1, GPU-2b, NVIDIA A100-SXM4-80GB, 550.54.14, 81920\n"
)
COMMON, RANK = "0a" * 32, "1b" * 32
FILES = f"""\
41c0 conf
41c0 inside
81a4 inside/common.py
81a4 inside/rank.py
{COMMON}  inside/common.py
{RANK}  inside/rank.py
"""
DISK = (
    "Filesystem     1024-blocks     Used Available Capacity Mounted on\n"
    "/dev/nvme0n1p2   479079112 98000000 356700000      22% /\n"
)
# Field 22 of the second line: process 1 began 12.34 s after the kernel, as in a container that plays a host.
BOOT = (
    "btime 1795204800\n1 (my (odd) init) S 0 1 1 0 -1 4194560 12 34 0 0 1 2 3 4 20 0 1 0 1234 2621440 300 "
    "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)
CLUSTER = (
    "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n10.77.0.2 gpu1\n10.77.0.3 gpu2\n"
    "::ffff:10.77.0.2 gpu1.ipv4\n::ffff:10.77.0.3 gpu2.ipv4\n"
    f"gpu2,[10.77.0.3]:12345 {public_key('gpu2')}\n"
    f'restrict,pty,from="10.77.0.2" {public_key("gpu1")}\n'
)


def answer(**sections: str) -> dict[str, str]:
    """The sections of the probe; one given by name replaces the recorded one."""
    recorded = {
        "who": "uid=1000(alice) gid=1000(alice) groups=1000(alice),27(sudo),998(docker)",
        "home": "/home/alice",
        "state-home": "/home/alice/.local/state",
        "machine": "gpu1\nx86_64",
        "ssh": "10.77.0.1 51000 10.77.0.2 22",
        "docker": json.dumps(NEW_INFO),
        "containers": json.dumps([CONTAINER], indent=4),
        "images": json.dumps([IMAGE], indent=4),
        "interfaces": IP,
        "routes": ROUTES,
        "addresses": TRIE,
        "tcp": TCP + TCP6,
        "gpus": GPUS,
        "runtime": "",
        "cdi": "",
        "state": "-\n-\n-",
        "cluster": CLUSTER,
        "version": "0.1.0",
        "tuned": '{"tuned": []}',
        "files": FILES,
        "boot": BOOT,
        "infiniband": "rdma_cm\nuverbs0",
        "imex": "channel0",
        "disk": DISK,
    }
    return {**recorded, **sections}


def facts(**sections: str) -> Facts:
    return parse_facts("gpu1", "demo", answer(**sections))


def test_everything_that_a_host_says() -> None:
    said = facts()
    assert (said.user, said.uid, said.gid, said.home) == ("alice", 1000, 1000, "/home/alice")
    assert said.groups == ((1000, "alice"), (27, "sudo"), (998, "docker"))
    assert said.state_dir == "/home/alice/.local/state/toolkit/demo/gpu1"
    assert (said.hostname, said.arch, said.ssh_address) == ("gpu1", "x86_64", "10.77.0.2")
    assert (said.docker, said.store, said.rootless) == ("26.1.5", "overlay2", False)
    assert said.interfaces == (
        Interface("lo", "127.0.0.1", 8),
        Interface("enp3s0", "10.77.0.2", 24),
        Interface("enp3s0", "10.77.0.99", 24, secondary=True),
        Interface("docker0", "172.17.0.1", 16),
        Interface("tun0", "10.8.0.6", 32),
    )
    (container,) = said.containers
    assert (container.name, container.state, container.exit_code) == ("toolkit-demo-worker", "exited", 137)
    assert container.digest == "0123"
    assert (container.started, container.ended) == (1795208400.0, 1795210201.4956625)
    assert said.booted == 1795204812.34
    assert said.version == "0.1.0" and said.programs == (("common.py", COMMON), ("rank.py", RANK))
    assert said.tuned == '{"tuned": []}'
    (image,) = said.images
    assert image.tags == ("toolkit:cpu", "toolkit.local/verified:x")
    assert said.infiniband == ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")
    assert said.imex == ("/dev/nvidia-caps-imex-channels/channel0",)
    assert said.free_bytes == 356700000 * 1024
    assert said.gpus[1] == Gpu(1, "GPU-2b", "NVIDIA A100-SXM4-80GB", "550.54.14", 81920)


def test_podman_prints_the_time_of_the_hosts_time_zone() -> None:
    state = {
        "Status": "exited",
        "StartedAt": "2026-11-20T23:00:00.123456789+02:00",
        "FinishedAt": "2026-11-20T16:30:00-05:00",
    }
    (container,) = facts(containers=json.dumps([{**CONTAINER, "State": state}])).containers
    assert (int(container.started), int(container.ended)) == (1795208400, 1795210200)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("", 0.0),
        ("btime 1795204800", 1795204800.0),  # the first process is hidden from others (hidepid)
        ("1 (init) S 0 1 1 0 -1 4194560 12 34 0 0 1 2 3 4 20 0 1 0 1234 2621440", 0.0),
    ],
)
def test_when_the_host_was_started(text: str, when: float) -> None:
    assert facts(boot=text).booted == when


def test_a_container_that_has_never_run() -> None:
    state = {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z"}
    (container,) = facts(containers=json.dumps([{**CONTAINER, "State": state}])).containers
    assert (container.started, container.ended) == (0.0, 0.0)


def test_files_of_a_toolkit_that_did_not_write_its_version() -> None:
    said = facts(version="", files="", tuned="")
    assert (said.version, said.programs, said.tuned) == ("", (), "")


def test_what_an_earlier_up_left_is_remembered() -> None:
    said = facts().remembered
    assert said.addresses == (("gpu1", "10.77.0.2"), ("gpu2", "10.77.0.3"))
    assert said.keys == (("gpu2", public_key("gpu2")),) and said.main_key == public_key("gpu1")
    assert facts(cluster="").remembered == Remembered()


@pytest.mark.parametrize("user", ["alice", "root"])
def test_the_user_of_an_earlier_up_is_remembered(tmp_path: Path, user: str) -> None:
    """Also on a host whose SSH user is root, where main's user name belongs to uid 0."""
    docker = f"[ $1 != info ] || echo '{json.dumps(OLD_INFO)}'"
    file = tmp_path / ".local/state/toolkit/demo/gpu1/etc/passwd"
    file.parent.mkdir(parents=True)
    for uid in (0, 1000) if user == "alice" else (0,):
        file.write_text(passwd_file(replace(facts(), uid=uid), user))
        done = run_here(probe_command("i:1", "demo", "gpu1", NONCE), tmp_path, docker)
        assert parse_facts("here", "demo", read_probe(done.stdout, NONCE)).remembered == Remembered(user=user)
    odd = ("a b:x:1:1::/home/a b:/bin/bash", "-o:x:1:1::/:/bin/sh", "sshd:x:1:1::/:/bin/sh", ":::::: ")
    assert facts(cluster="\n".join(odd)).remembered == Remembered()


@pytest.mark.parametrize(
    "line",
    [
        "gpu3,[10.77.0.4]:12345 ssh-ed25519 AAAAgpu3",
        "gpu3,[10.77.0.4]:12345 ssh-rsa AAAAB3NzaC1yc2E=",
        'restrict,pty,from="10.77.0.2" ssh-ed25519 AAAA',
        'restrict,pty,command="sh" ssh-ed25519 AAAA',
        "10.77.0.4/24 gpu3",
        "fe80::1%eth0 gpu3",
        "elsewhere gpu3",
    ],
)
def test_a_key_or_an_address_of_another_form_is_not_remembered(line: str) -> None:
    assert facts(cluster=line).remembered == Remembered()


def test_a_bare_host() -> None:
    empty = (
        "containers",
        "images",
        "interfaces",
        "routes",
        "addresses",
        "tcp",
        "gpus",
        "cluster",
        "infiniband",
        "imex",
        "disk",
        "ssh",
    )
    said = facts(**dict.fromkeys(empty, ""))
    assert said.interfaces == said.listening == said.containers == said.images == said.gpus == ()
    assert (said.infiniband, said.imex, said.free_bytes, said.ssh_address) == ((), (), 0, "")


@pytest.mark.parametrize(
    ("info", "version", "store", "rootless"),
    [
        (OLD_INFO, "20.10.24+dfsg1", "overlay2", False),
        (NEW_INFO, "26.1.5", "overlay2", False),
        (CONTAINERD_INFO, "29.0.1", "containerd", False),
        (ROOTLESS_INFO, "26.1.5", "overlay2", True),
        ({"ServerVersion": "19.03.1", "DriverStatus": None, "SecurityOptions": None}, "19.03.1", "", False),
    ],
)
def test_engines_of_all_ages(info: dict[str, Any], version: str, store: str, rootless: bool) -> None:
    said = facts(docker=json.dumps(info))
    assert (said.docker, said.store, said.rootless) == (version, store, rootless)


@pytest.mark.parametrize(
    ("info", "selinux"),
    [
        (NEW_INFO, False),
        ({**NEW_INFO, "SecurityOptions": ["name=seccomp,profile=builtin", "name=selinux"]}, True),
        ({**NEW_INFO, "SecurityOptions": None}, False),
    ],
)
def test_an_engine_that_labels_containers_for_selinux(info: dict[str, Any], selinux: bool) -> None:
    assert facts(docker=json.dumps(info)).selinux is selinux


def test_warnings_around_the_engines_answer() -> None:
    noisy = f"WARNING: Error loading config file\n{json.dumps(OLD_INFO)}\nWARNING: No swap limit support"
    assert facts(docker=noisy).docker == "20.10.24+dfsg1"


DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
FORBIDDEN = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
    'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.45/info": dial unix: connect: permission denied'
)


def errors(*lines: str) -> str:
    """As the client prints them since 19.03: JSON on standard output, the same again in words."""
    info = {"ID": "", "ServerVersion": "", "ServerErrors": list(lines), "ClientInfo": {"Debug": False}}
    return json.dumps(info) + "\nerrors pretty printing info"


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("sh: 5: docker: not found", "docker is not on the PATH", "https://docs.docker.com"),
        ("bash: docker: command not found", "docker is not on the PATH", "https://docs.docker.com"),
        (DOWN, "not running", "sudo systemctl start docker"),
        (errors(DOWN), "not running", "sudo systemctl start docker"),
        (f"ERROR: {DOWN}\n{errors(DOWN)}", "not running", "sudo systemctl start docker"),
        (FORBIDDEN, "user alice cannot use docker", "usermod -aG docker alice"),
        (errors(f"Got {FORBIDDEN}"), "user alice cannot use docker", "usermod -aG docker alice"),
    ],
)
def test_an_engine_that_does_not_answer(text: str, what: str, fix: str) -> None:
    with pytest.raises(NotReady, match=what) as caught:
        facts(docker=text)
    assert caught.value.host == "gpu1"
    assert fix in caught.value.fix


def test_an_engine_that_fails_otherwise_is_quoted() -> None:
    with pytest.raises(CommandFailed, match=r"client version 1\.52 is too new"):
        facts(docker=errors("client version 1.52 is too new. Maximum supported API version is 1.41"))


# Interfaces and listeners


def test_without_iproute2_the_kernels_tables_say_it() -> None:
    assert facts(interfaces="").interfaces == (
        Interface("lo", "127.0.0.1", 8),
        Interface("eth0", "10.77.0.2", 24),
        Interface("docker0", "172.17.0.1", 16),
    )


def test_listeners_of_both_tables_and_no_connections() -> None:
    assert facts().listening == (
        ("0.0.0.0", 22),
        ("10.77.0.2", 8081),
        ("10.77.0.2", 12345),
        ("127.0.0.1", 8080),
        ("2001:db8::1", 8082),
        ("::", 22),
    )


# Groups


@pytest.mark.parametrize(
    ("ids", "user", "groups"),
    [
        ("uid=0(root) gid=0(root) groups=0(root)", "root", ((0, "root"),)),
        # Directory services give groups names with spaces, or none at all.
        (
            "uid=7(LAB\\al) gid=7(domain users) groups=7(domain users),27(sudo)",
            "LAB\\al",
            ((7, "domain users"), (27, "sudo")),
        ),
        (
            "uid=7(al) gid=9(x (y)) groups=9(x (y)),9999,27(a,b),28(c)",
            "al",
            ((9, "x (y)"), (9999, "9999"), (27, "a,b"), (28, "c")),
        ),
        ("uid=7 gid=9999 groups=9999", "7", ((9999, "9999"),)),
        (
            "uid=7(al) gid=7(al) groups=7(al),998(docker) context=unconfined_u:unconfined_r:s0-s0:c0.c1023",
            "al",
            ((7, "al"), (998, "docker")),
        ),
        ("uid=7(al) gid=9(x (y))", "al", ((9, "x (y)"),)),
    ],
)
def test_users_and_groups(ids: str, user: str, groups: tuple[tuple[int, str], ...]) -> None:
    found = facts(who=ids)
    assert (found.user, found.groups) == (user, groups)


@pytest.mark.parametrize("ids", ["", "id: not found", "uid=x(al) gid=7(al) groups=7(al)", "uid=7(al)"])
def test_a_user_that_id_does_not_describe_is_an_error_of_the_host(ids: str) -> None:
    with pytest.raises(ToolkitError, match="the description of the user"):
        facts(who=ids)


@pytest.mark.parametrize(
    "ids", ["uid=1(a) gid=1(a) groups=" + "1(" * 40_000, "uid=1(" + ") gid=1( groups=1 " * 8_000]
)
def test_a_long_answer_about_the_user_is_read_in_a_short_time(ids: str) -> None:
    begun = time.process_time()
    with suppress(ToolkitError):
        facts(who=ids)
    assert time.process_time() - begun < 5


# GPUs; what nvidia-smi says is in cluster/test_gpus.py


def test_a_driver_in_trouble() -> None:
    said = facts(gpus="Failed to initialize NVML: Driver/library version mismatch\n")
    assert said.gpus == () and "version mismatch" in said.gpu_trouble
    assert facts().gpu_trouble == ""


@pytest.mark.parametrize(
    ("runtimes", "hook", "there"),
    [
        ({"runc": {}}, "", False),
        ({"runc": {}, "nvidia": {"path": "nvidia-container-runtime"}}, "", True),
        ({"runc": {}}, "/usr/bin/nvidia-container-runtime-hook", True),
        (None, "", False),
    ],
)
def test_nvidias_runtime(runtimes: dict[str, Any] | None, hook: str, there: bool) -> None:
    info = json.dumps({**NEW_INFO, "Runtimes": runtimes})
    assert facts(docker=info, runtime=hook).nvidia_runtime is there


# As nvidia-ctk 1.13 to 1.18 write it in YAML and JSON, less what the probe's grep leaves out.
CDI_YAML = """\
  name: "0"
  name: GPU-5d5ba0d6
- name: '1:0'
  name: all
"""
# As nvidia-ctk writes a file whose name ends in .json, shortened.
CDI_LINE = (
    '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0:0","containerEdits":{"deviceNodes":'
    '[{"path":"/dev/nvidia0"},{"path":"/dev/nvidia-caps/nvidia-cap66"}]}},{"name":"1:0","containerEdits":'
    '{"deviceNodes":[{"path":"/dev/nvidia1"}]}},{"name":"all","containerEdits":{}}],"containerEdits":{"env":'
    '["NVIDIA_VISIBLE_DEVICES=void"],"hooks":[{"hookName":"createContainer","path":"/usr/bin/nvidia-cdi-hook",'
    '"args":["nvidia-cdi-hook","update-ldcache"]}]}}\n'
)
CDI_JSON = '  "name": "0",\n      "name": "1:0",\n{"name":"all","containerEdits":{}}\n'


@pytest.mark.parametrize(
    ("info", "files", "names"),
    [
        ({"CDISpecDirs": ["/etc/cdi"]}, CDI_YAML, ("0", "GPU-5d5ba0d6", "1:0", "all")),
        ({"CDISpecDirs": ["/etc/cdi", "/var/run/cdi"]}, CDI_JSON, ("0", "1:0", "all")),
        ({"CDISpecDirs": ["/etc/cdi"]}, CDI_LINE, ("0:0", "1:0", "all")),
        ({"CDISpecDirs": ["/etc/cdi"]}, "", ()),
        # Switched off, or an engine that does not know it: then files are of no use.
        ({"CDISpecDirs": []}, CDI_YAML, ()),
        ({"CDISpecDirs": None}, CDI_YAML, ()),
        (
            {
                "CDISpecDirs": ["/etc/cdi"],
                "DiscoveredDevices": [
                    {"Source": "cdi", "ID": "nvidia.com/gpu=0"},
                    {"Source": "cdi", "ID": "vendor.com/nic=0"},
                    {"Source": "cdi", "ID": "nvidia.com/gpu=all"},
                ],
            },
            CDI_YAML,
            ("0", "all"),
        ),
    ],
)  # fmt: skip
def test_gpus_that_the_engine_gives_by_cdi(info: dict[str, Any], files: str, names: tuple[str, ...]) -> None:
    assert facts(docker=json.dumps({**NEW_INFO, **info}), cdi=files).cdi == names


# The question itself


def run_here(asked: Command, folder: Path, docker: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run the probe in a real shell of this machine, with `folder` as home and a shell text as docker."""
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{docker}\n")
    program.chmod(0o755)
    return subprocess.run(
        [str(token) for token in asked.argv],
        capture_output=True,
        check=True,
        env={"PATH": f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), **env},
    )


def test_the_probe_runs_on_this_machine_and_its_answer_is_read(tmp_path: Path) -> None:
    """A fake docker: this is about the script and the other tools, which are real."""
    docker = f"""case "$1 $2" in
'info --format') echo '{json.dumps(OLD_INFO)}' ;;
'image inspect') echo '{json.dumps([IMAGE])}' ;;
esac"""
    done = run_here(probe_command("toolkit:cpu", "demo", "gpu1", NONCE), tmp_path, docker)
    assert done.stderr == b""
    said = parse_facts("here", "demo", read_probe(done.stdout, NONCE))
    assert said.docker == "20.10.24+dfsg1"
    assert said.state_dir == f"{tmp_path}/.local/state/toolkit/demo/here"
    assert [i.tags for i in said.images] == [("toolkit:cpu", "toolkit.local/verified:x")]
    assert said.free_bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == ["docker"]


def test_files_have_their_own_sections_whatever_they_contain(tmp_path: Path) -> None:
    docker = f"[ $1 != info ] || echo '{json.dumps(OLD_INFO)}'"
    state = tmp_path / ".local/state/toolkit/demo/gpu1"
    texts = {
        "version": "0.1\n",
        "applied.json": "/proc/net/route:forged\ntuned:x",
        "conf/tuned.json": '{"a": "b:c"}\n\n',
        "conf/proved": f"\n{NONCE} who 3\nx\n",
        "etc/hosts": "10.77.0.2 gpu1\nb\xe4d\n",
    }
    for name, text in texts.items():
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_bytes(text.encode("latin-1"))
    (state / "conf" / "known_hosts").mkdir()
    done = run_here(probe_command("i:1", "demo", "gpu1", NONCE), tmp_path, docker)
    found = read_probe(done.stdout, NONCE)
    assert found["version"] == "0.1" and found["applied"] == texts["applied.json"]
    assert found["tuned"] == '{"a": "b:c"}\n' and found["proved"] == f"\n{NONCE} who 3\nx"
    assert found["cluster"] == "10.77.0.2 gpu1\nb\ufffdd"
    assert found["routes"] == Path("/proc/net/route").read_text().removesuffix("\n")
    tables = [name for name in ("tcp", "tcp6") if Path("/proc/net", name).exists()]  # not without IPv6
    assert found["tcp"].count("local_address") == len(tables), "the heads of the tables"
    assert "./lo/operstate:unknown" in found["links"].split("\n")
    assert "contents" not in found


def test_the_state_is_where_the_hosts_file_says_for_each_user(tmp_path: Path) -> None:
    asked = probe_command(
        "i:1", "demo", "gpu1", NONCE, [("place", 'echo "$XDG_STATE_HOME"')], state_dir="/the scratch"
    )
    docker = f"[ $1 != info ] || echo '{json.dumps(OLD_INFO)}'"
    done = run_here(asked, tmp_path, docker, XDG_STATE_HOME="/elsewhere")
    me = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    sections = read_probe(done.stdout, NONCE)
    assert parse_facts("here", "demo", sections).state_dir == f"/the scratch/{me}/toolkit/demo/here"
    assert sections["place"] == f"/the scratch/{me}"


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_list_of_containers_that_failed_is_not_an_empty_one(tmp_path: Path, failures: int) -> None:
    """The engine fails the first lists: one failure is retried, and then it is an error of the host."""
    docker = f"""case "$1" in
info) echo '{json.dumps(OLD_INFO)}' ;;
ps)
  echo x >>"$HOME/asked"
  [ "$(wc -l <"$HOME/asked")" -gt {failures} ] || {{ echo 'Error response from daemon: busy' >&2; exit 1; }}
  echo abc ;;
inspect) echo '{json.dumps([CONTAINER])}' ;;
esac"""
    done = run_here(probe_command("i:1", "demo", "gpu1", NONCE), tmp_path, docker)
    sections = read_probe(done.stdout, NONCE)
    if failures == 1:
        assert [c.name for c in parse_facts("here", "demo", sections).containers] == ["toolkit-demo-worker"]
        return
    for need_docker in (True, False):
        with pytest.raises(CommandFailed, match=r"docker ps.*status 1") as failed:
            parse_facts("here", "demo", sections, need_docker)
        assert failed.value.host == "here"


@pytest.mark.parametrize("late", ["info", "ps", "inspect", "images", "image inspect"])
def test_an_image_that_docker_does_not_list_in_time_is_not_absent(tmp_path: Path, late: str) -> None:
    """Such as with hundreds of images on a busy disk; the limit of 20 s is shorter here."""
    docker = f"""
case "$*" in '{late}'*) echo x >>"$HOME/late"; exec sleep 60 ;; esac
case "$1 $2" in
'info --format') echo '{json.dumps(OLD_INFO)}' ;;
ps*) echo abc ;;
'inspect abc') echo '{json.dumps([CONTAINER])}' ;;
'image inspect') echo '{json.dumps([IMAGE])}' ;;
esac"""
    asked = probe_command("toolkit:cpu", "demo", "gpu1", NONCE)
    words = [str(token).replace("timeout -k 2 20", "timeout -k 1 0.5") for token in asked.argv]
    sections = read_probe(run_here(replace(asked, argv=tuple(words)), tmp_path, docker).stdout, NONCE)
    assert sections["docker"] == f"no answer within 20 s to docker {late}"
    assert sections["images"] == sections["containers"] == "" and (tmp_path / "late").read_text() == "x\n"
    with pytest.raises(NotReady, match=f"no answer within 20 s to docker {late}") as caught:
        parse_facts("gpu1", "demo", sections)
    assert ("restart docker" in (caught.value.fix or "")) is (late == "info")
    assert parse_facts("gpu1", "demo", sections, need_docker=False).docker == ""


# Not to be ended in time, as a process in state D: it ignores SIGTERM, and holds its output from a session of
# its own, which the SIGKILL of a process group does not reach.
UNKILLABLE = """#!/bin/sh
trap '' TERM
setsid sh -c 'echo $$ >>"$HOME/stuck"; exec sleep 60'
"""


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_an_unkillable_nvidia_smi_does_not_hold_up_the_probe(tmp_path: Path, shell: str) -> None:
    """The limit of 70 s is shorter here; the answer is complete at the end of output and errors."""
    (tmp_path / "sh").symlink_to(shutil.which(shell) or "")
    (tmp_path / "nvidia-smi").write_text(UNKILLABLE)
    (tmp_path / "nvidia-smi").chmod(0o755)
    asked = probe_command("i:1", "demo", "gpu1", NONCE, [(GPU_HEALTH.name, GPU_HEALTH.text)])
    words = [str(token).replace("timeout -k 2 70", "timeout -k 1 1") for token in asked.argv]
    docker, start = f"[ $1 != info ] || echo '{json.dumps(OLD_INFO)}'", time.monotonic()
    try:
        done = run_here(replace(asked, argv=tuple(words)), tmp_path, docker)
        assert time.monotonic() - start < 30
        (pid,) = (tmp_path / "stuck").read_text().split()  # no second call
        assert str(Path(f"/proc/{pid}/fd/0").readlink()) == "/dev/null"
    finally:
        for stuck in (tmp_path / "stuck").read_text().split():
            os.kill(int(stuck), signal.SIGKILL)
    assert done.stderr == b""
    sections = read_probe(done.stdout, NONCE)
    for name in ("gpus", GPU_HEALTH.name):
        assert sections[name].splitlines()[-1].startswith("no answer within 70 s")
    found = parse_facts("gpu1", "demo", sections)
    assert (found.gpus, found.gpu_processes) == ((), ()) and found.free_bytes > 0


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_shell_that_hangs_at_the_first_gpu_does_not_hold_the_ssh_session(
    tmp_path: Path, shell: str
) -> None:
    """A FIFO without a writer blocks the shell that opens it, as a driver that hangs in open(2) does."""
    (tmp_path / "sh").symlink_to(shutil.which(shell) or "")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    os.mkfifo(tmp_path / "nvidia0")
    word = f"{tmp_path}/nvidia["
    text = SMI.replace("/dev/nvidia[", word).replace("timeout -k 2 70", "timeout -k 1 60")
    argv = [str(tmp_path / "sh"), "-c", text]
    pipe = subprocess.PIPE
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        assert process.stdin and process.stdout and process.stderr
        ours = {os.fstat(file.fileno()).st_ino for file in (process.stdin, process.stdout, process.stderr)}
        # Shells also fork before they start a program; the fork that hangs is the only one that stays.
        wait_for(lambda: [_is_apart(pid, ours) for pid in _forks_of_a_shell(word)] == [True])
        # The driver continues.
        os.close(os.open(tmp_path / "nvidia0", os.O_WRONLY))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")


def _is_apart(pid: int, inodes: set[int]) -> bool:
    """Return whether a process lives and has none of these files open."""
    held = set()
    with suppress(OSError):
        held = {file.stat().st_ino for file in Path(f"/proc/{pid}/fd").iterdir()}
    return bool(held) and not held & inodes


def _forks_of_a_shell(word: str) -> list[int]:
    """Return the processes with this word in their arguments whose parent has the same arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            argv = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if word.encode() in argv and Path(f"/proc/{parent}/cmdline").read_bytes() == argv:
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_gpus_stay_open_during_all_calls_of_nvidia_smi(tmp_path: Path, shell: str) -> None:
    """So that the driver initializes them once; more than a shell has numbers for, and a lost one."""
    (tmp_path / "sh").symlink_to(shutil.which(shell) or "")
    devices = tmp_path / "dev"
    devices.mkdir()
    for number in range(12):
        (devices / f"nvidia{number}").touch()
    (devices / "nvidia5").unlink()
    (devices / "nvidia5").symlink_to("gone")
    (devices / "nvidiactl").touch()
    smi = """#!/bin/sh
readlink /proc/$PPID/fd/* | grep -o 'dev/nvidia.*' | sort | tr '\n' ' ' >>"$HOME/open"
echo >>"$HOME/open"
case $1 in
--query-gpu=*) echo '0, GPU-1a, NVIDIA H100 80GB HBM3, 550.54.14, 81559' ;;
-L) echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1a)' ;;
--query-compute-apps=*) echo 'GPU-1a, 1, [N/A]' ;;
esac
"""
    (tmp_path / "nvidia-smi").write_text(smi)
    (tmp_path / "nvidia-smi").chmod(0o755)
    asked = probe_command("i:1", "demo", "gpu1", NONCE)
    words = [str(token).replace("/dev/nvidia[", f"{devices}/nvidia[") for token in asked.argv]
    docker = f"[ $1 != info ] || echo '{json.dumps(OLD_INFO)}'"
    done = run_here(replace(asked, argv=tuple(words)), tmp_path, docker)
    found = parse_facts("gpu1", "demo", read_probe(done.stdout, NONCE))
    assert (found.gpus, found.gpu_trouble) == (
        (Gpu(0, "GPU-1a", "NVIDIA H100 80GB HBM3", "550.54.14", 81559),),
        "",
    )
    assert [(app.gpu, app.pid, app.memory_mib) for app in found.gpu_processes] == [("GPU-1a", 1, 0)]
    opened = sorted(f"dev/nvidia{number}" for number in range(12) if number != 5)
    assert [line.split() for line in (tmp_path / "open").read_text().splitlines()] == [opened] * 3


@pytest.mark.parametrize("name", ["my-notebook", "toolkit-demo", "toolkit-other-main", "x-toolkit-demo-main"])
def test_labels_of_an_image_make_no_container_one_of_a_cluster(name: str) -> None:
    """Every container that is made from the image has them; its name is the user's choice."""
    container = {**CONTAINER, "Name": f"/{name}"}
    assert facts(containers=json.dumps([container])).containers == ()
    labels = {"toolkit.cluster": "demo", "odd\u2028key": "x", "k" * 5000: "\x1b", "toolkit.digest": "0123"}
    odd = {**CONTAINER, "Config": {"Labels": labels}}
    (found,) = facts(containers=json.dumps([odd])).containers
    assert found.labels == labels
