"""Ports that the cluster opens, and places of its private keys."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile

import pytest

from tests.e2e.world import Toolkit, on, outer, sh

pytestmark = pytest.mark.lab


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts, which no test of this file changes."""
    return standing


STATE = "/home/trainer/.local/state/toolkit/two"


def test_private_keys_are_where_they_belong_and_nowhere_else(up: Toolkit) -> None:
    for host, name in (("box1", "id_ed25519"), ("box2", "ssh_host_ed25519_key")):
        found = sh(host, "grep -rl 'PRIVATE KEY' /home /tmp /root /var/tmp 2>/dev/null").split()
        assert found == [f"{STATE}/{host}/conf/{name}"]
        assert sh(host, f"stat -c '%a %U' {found[0]}").strip() == "600 trainer"
        assert sh(host, f"stat -c %a {STATE}/{host}/conf").strip() == "700"
        assert "PRIVATE KEY" not in on(host, "docker", "inspect", *on(host, "docker", "ps", "-aq").split())
        logs = [on(host, "docker", "logs", c) for c in on(host, "docker", "ps", "-aq").split()]
        assert not any("PRIVATE KEY" in log for log in logs)


@pytest.mark.rare
def test_no_layer_of_the_image_holds_a_key(up: Toolkit) -> None:
    process = subprocess.Popen(["docker", "save", "toolkit:cpu"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    names: list[str] = []
    with tarfile.open(fileobj=process.stdout, mode="r|") as image:
        for member in image:
            if not member.isfile() or member.size < 10240:
                continue
            opened = image.extractfile(member)
            assert opened is not None
            with tarfile.open(fileobj=_Forward(opened), mode="r|") as layer:
                names += [entry.name for entry in layer if entry.isfile()]
    process.wait()
    assert any(name.endswith("sshd") for name in names), "the layers were really read"
    assert not [n for n in names if "ssh_host_" in n or n.rsplit("/", 1)[-1].startswith("id_")]


class _Forward(io.RawIOBase):
    """A member of a stream that cannot seek."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(size)  # type: ignore[attr-defined,no-any-return]


def test_sshd_listens_on_the_data_address_alone_and_takes_keys_only(up: Toolkit) -> None:
    about = json.loads(up.run("exec", "box2", "--", "cat", "/run/toolkit/conf/host.json").out)
    listeners = [
        line.split()[3] for line in sh("box2", "ss -ltnH").splitlines() if line.split()[3].endswith(":12345")
    ]
    assert listeners == [f"{about['address']}:12345"]
    words = ("exec", "box2", "--", "/usr/sbin/sshd", "-T", "-f", "/run/toolkit/conf/sshd_config")
    options = dict(line.split(" ", 1) for line in up.run(*words, check=True).out.splitlines() if " " in line)
    assert options["passwordauthentication"] == "no" and options["kbdinteractiveauthentication"] == "no"
    assert options["authenticationmethods"] == "publickey" and options["strictmodes"] == "yes"
    assert options["disableforwarding"] == "yes" and options["maxstartups"] == "1024:30:2048"
    assert options["allowusers"] == "trainer"
    key = up.run("exec", "box2", "--", "cat", "/run/toolkit/conf/authorized_keys").out
    assert key.startswith('restrict,pty,from="')


def test_the_key_opens_nothing_from_elsewhere(up: Toolkit) -> None:
    """With the cluster's own private key, from an address that is not main's."""
    key = sh("box1", f"cat {STATE}/box1/conf/id_ed25519")
    sh("box2", "umask 077; mkdir -p /root/stolen")
    subprocess.run(
        ["docker", "exec", "-i", outer("box2"), "sh", "-c", "umask 077; cat >/root/stolen/key"],
        input=key,
        text=True,
        check=True,
    )
    try:
        about = json.loads(up.run("exec", "box2", "--", "cat", "/run/toolkit/conf/host.json").out)
        address = about["address"]
        common = (
            "-o BatchMode=yes -o UserKnownHostsFile=/root/stolen/known -o StrictHostKeyChecking=accept-new"
        )
        said = sh("box2", f"ssh -i /root/stolen/key -p 12345 {common} trainer@{address} true; echo status $?")
        assert "Permission denied" in said and "status 255" in said
    finally:
        sh("box2", "rm -rf /root/stolen")


def test_containers_are_not_privileged(up: Toolkit) -> None:
    for host, name in (("box1", "toolkit-two-main"), ("box2", "toolkit-two-worker")):
        about = json.loads(on(host, "docker", "inspect", name))[0]
        config = about["HostConfig"]
        assert config["Privileged"] is False and config["CapDrop"] == ["ALL"] and not config["CapAdd"]
        assert (
            "no-new-privileges" in config["SecurityOpt"]
            and config["PidsLimit"] > 0
            and config["Init"] is True
        )
        assert about["Config"]["User"] == "1000:1000"
        assert not any("docker.sock" in m["Source"] for m in about["Mounts"])
