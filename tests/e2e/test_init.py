"""toolkit init on a terminal: from ~/.ssh/config to a file by which a cluster comes up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_beside import root_squashed
from tests.e2e.world import PROGRAM, Toolkit, containers, sh
from tests.terminal import CTRL_C, CTRL_D, Terminal
from toolkit.hostsfile.parse import parse_inventory
from toolkit.lab.topology import SHARED

pytestmark = pytest.mark.lab


class Newcomer(Toolkit):
    """A person without a hosts file, whose ~/.ssh/config knows the lab's hosts by other names."""

    def __init__(self, lab: Path, home: Path) -> None:
        self.home, work = home, home / "team"
        (home / ".ssh").mkdir(mode=0o700)
        work.mkdir()
        data = yaml.safe_load((lab / "hosts.yaml").read_text())
        self.addresses = {name: host["address"] for name, host in data["hosts"].items()}
        (home / ".ssh" / "config").write_text(
            "Include lab.conf\nHost github.com\n  User git\n"
            f"Host *\n  UserKnownHostsFile {home}/known\n  ConnectTimeout 3\n"
        )
        hosts = "".join(f"Host my-{name}\n  HostName {at}\n" for name, at in self.addresses.items())
        login = f"Host my-*\n  User trainer\n  IdentityFile {data['hosts']['box1']['identity_file']}\n"
        (home / ".ssh" / "lab.conf").write_text(hosts + login)
        # OpenSSH takes the home from the user database, whatever HOME says.
        ssh = home / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F "{home}/.ssh/config" "$@"\n')
        ssh.chmod(0o755)
        env = {**os.environ, "HOME": str(home), "PATH": f"{ssh.parent}:{os.environ['PATH']}"}
        super().__init__(work / "hosts.yaml", work, PROGRAM, env)

    def talk(self, *words: str) -> Terminal:
        return Terminal([self.program, "init", *words], self.folder, self.env)


@pytest.fixture
def newcomer(lab: Path, tmp_path: Path) -> Iterator[Newcomer]:
    yield Newcomer(lab, tmp_path)


def test_a_conversation_ends_in_a_cluster_that_is_up(newcomer: Newcomer) -> None:
    with newcomer.talk() as person:
        listed = person.answer("hosts of the cluster", "1-2")
        assert f"1  my-box1  trainer@{newcomer.addresses['box1']}:22" in listed
        assert "left out: github.com (the alias logs in as user git)" in listed
        for name in ("my-box1", "my-box2"):
            person.answer(f"{name}: ssh-ed25519 SHA256:", "y")
        told = person.answer("name of the cluster?")
        assert "[team]" in person.shown and "my-box2  docker 20.10" in told and "CANNOT" not in told
        shown = person.answer("write hosts.yaml?")
        assert "image: toolkit:cpu" in shown and "ranks reach this host at" in shown
        assert person.end() == 0 and "next: toolkit check, then toolkit up" in person.shown
    inventory = parse_inventory(newcomer.hosts.read_text(), "hosts.yaml")
    assert (inventory.cluster, inventory.names) == ("team", ("my-box1", "my-box2"))
    newcomer.run("check", check=True)
    try:
        newcomer.run("up", check=True)
        explained = newcomer.run("network", "explain", "--json", check=True).json
        text = newcomer.hosts.read_text()
        assert all(f"ranks reach this host at {host['address']} (" in text for host in explained["hosts"])
        again = newcomer.run("init", "--find", "--try", "--json", "-o", "again.yaml", check=True).json
        assert again["cluster"] == "again" and [one["usable"] for one in again["found"]] == [True] * 2 + [
            False
        ]
        assert "SSH host key is not recorded yet" in again["found"][2]["what"]
        # And from Python, for the two whose keys are on record now.
        text = "from toolkit import Cluster as C; c = C.init('my-box1', 'my-box2', path='third.yaml'); "
        text += "print(c.name, *(host.address for host in c.network.explain().hosts))"
        program = [sys.executable, "-c", text]
        done = subprocess.run(program, env=newcomer.env, cwd=newcomer.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["third", *(host["address"] for host in explained["hosts"])]
    finally:
        newcomer.run("down", "--no-save", check=True)
    assert containers("box1", "team") == containers("box2", "team") == []


@pytest.mark.parametrize("end", [CTRL_C, CTRL_D])
def test_a_conversation_that_is_broken_off_leaves_nothing(newcomer: Newcomer, end: str) -> None:
    with newcomer.talk() as person:
        person.answer("hosts of the cluster", "my-box3")
        person.wait_for("record this key?")
        person.wait_for("]: ")
        assert person.interrupt(end) == 130
        assert person.shown.splitlines()[-1].endswith("toolkit wrote no hosts.yaml")
    assert list(newcomer.folder.iterdir()) == [] and not (newcomer.home / "known").exists()


@pytest.mark.rare
def test_a_share_of_all_hosts_is_offered_and_ranks_see_it(newcomer: Newcomer) -> None:
    """By real FUSE, under the name of a network file system."""
    share = "/team-data"
    sh("box1", f"mkdir {SHARED}/team; chown trainer {SHARED}/team")
    mounted = [root_squashed(box, f"{SHARED}/team", share, "fuse.sshfs") for box in ("box1", "box2")]
    try:
        with mounted[0], mounted[1]:
            with newcomer.talk("--cluster", "shares") as person:
                person.answer("hosts of the cluster", "1-2")
                for _ in range(2):
                    person.answer("record this key?", "y")
                asked = person.answer("file systems to mount for ranks")
                assert f"1  {share}  fuse.sshfs from server:/share" in asked
                person.answer("write hosts.yaml?")
                assert person.end() == 0
            newcomer.run("check", check=True)
            newcomer.run("up", check=True)
            newcomer.run("exec", "my-box1", "--", "touch", f"{share}/seen", check=True)
            newcomer.run("exec", "my-box2", "--", "test", "-e", f"{share}/seen", check=True)
            newcomer.run("down", "--no-save", check=True)
    finally:
        for box in ("box1", "box2"):
            sh(box, f"rmdir {share}; rm -rf {SHARED}/team")


@pytest.mark.rare
def test_a_host_without_docker_is_told_with_its_fix_and_may_be_mended(newcomer: Newcomer) -> None:
    sh("box3", "gpasswd -d trainer docker")
    try:
        with newcomer.talk() as person:
            person.answer("hosts of the cluster", "box=my-box3, my-box1")
            for _ in range(2):
                person.answer("record this key?", "y")
            told = person.answer("toolkit cannot use box", "keep")
            assert "box      CANNOT BE USED: user trainer cannot use docker" in told
            assert "fix: on box: sudo usermod -aG docker trainer" in told
            person.answer("name of the cluster?", "mended")
            person.wait_for("write hosts.yaml?")
            assert person.interrupt() == 130
        sh("box3", "gpasswd -a trainer docker")
        done = newcomer.run("init", "box=my-box3", "my-box1", "--try", "-o", "-", check=True)
        assert parse_inventory(done.out, "out").names == ("box", "my-box1")
    finally:
        sh("box3", "gpasswd -a trainer docker")
