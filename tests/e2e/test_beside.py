"""Two people's clusters on the same hosts at the same second, and another user's training beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_users import account, cluster, down_if_it_fails
from tests.e2e.world import Toolkit, on, outer, sh

pytestmark = pytest.mark.lab

HOSTS = ("box1", "box2")
SECOND = "second"
_FOLDERS = "umask 022; mkdir -p $1/open $1/closed/deep; chmod 700 $1/closed"
# Bound without listening: a probe by connection finds the port free, a program that binds finds it taken.
BIND = "import socket, time; s = socket.socket(); s.bind(('0.0.0.0', 12345)); time.sleep(600)"


@contextmanager
def process(host: str, user: str, *argv: str) -> Iterator[str]:
    """A process of that user on a practice host, started past the toolkit; yields its id."""
    start = 'name=$1; shift; setsid setpriv --reuid "$name" --clear-groups "$@" >/dev/null 2>&1 & echo $!'
    pid = on(host, "sh", "-c", start, "sh", user, *argv).strip()
    try:
        yield pid
    finally:
        sh(host, f"kill -KILL {pid} 2>/dev/null")


def census(host: str, name: str) -> dict[str, str]:
    """Return what a host has of a cluster: containers with their ports, and checksums of its keys."""
    form = '{{.ID}} {{.Names}} {{.Label "toolkit.port"}} {{.Label "toolkit.owner"}}'
    rows = on(host, "docker", "ps", "--filter", f"label=toolkit.cluster={name}", "--format", form)
    private = r"\( -name id_ed25519 -o -name ssh_host_ed25519_key \)"
    keys = sh(host, f"find /home -path '*toolkit/{name}/*' {private}")
    sums = on(host, "sha256sum", *keys.split()) if keys.split() else ""
    return {"containers": rows, "keys": sums}


def port(host: str, name: str) -> str:
    return census(host, name)["containers"].split()[2]


def at_once(*calls: tuple[Toolkit, tuple[str, ...]]) -> list[tuple[int, str]]:
    """Status and output of commands that run at the same time."""
    started = [toolkit.start(*words) for toolkit, words in calls]
    said = [running.communicate(timeout=240)[0] for running in started]
    return [(running.returncode, text) for running, text in zip(started, said, strict=True)]


@pytest.mark.rare
def test_two_clusters_at_the_same_second_and_a_stranger(two: Toolkit, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        for host in HOSTS:
            stack.enter_context(account(host, SECOND, f"/home/{SECOND}", "/bin/sh", 1710))
        sh("box2", "printf 'import time\\ntime.sleep(600)\\n' >/home/second/train.py")
        train = ("python3", f"/home/{SECOND}/train.py")
        stranger = stack.enter_context(process("box2", SECOND, *train))
        bound = ExitStack()
        stack.callback(bound.close)
        bound.enter_context(process("box2", "root", "python3", "-c", BIND))
        one = cluster(two, folders[0], "one", "trainer")
        other = cluster(two, folders[1], "other", SECOND)
        for each in (one, other):
            stack.enter_context(down_if_it_fails(each))
        done = at_once((one, ("up",)), (other, ("up",)))
        assert [status for status, _ in done] == [0, 0], done
        bound.close()
        ports = [port("box2", name) for name in ("one", "other")]
        assert len({*ports, "12345"}) == 3, "each went on to a port of its own"
        keys = [census(host, name)["keys"] for name in ("one", "other") for host in HOSTS]
        assert all(keys) and len({line.split()[0] for text in keys for line in text.splitlines()}) == 4
        for first, second in ((one, other), (other, one)):
            done = at_once((first, ("smoke",)), (second, ("up",)))
            assert [status for status, _ in done] == [0, 0], done
            assert "nothing to change" in done[1][1]

        other.run("run", "--detach", "--", "sleep", "300", check=True)
        before = [census(host, "other") for host in HOSTS]
        # No command changes what belongs to the other cluster, and nothing is left of its own.
        alien = cluster(two, folders[0], "other", "trainer", "alien.yaml")
        changing = (("up",), ("down",), ("exec", "--", "true"), ("run", "--", "true"))
        for status, text in at_once(*((alien, words) for words in changing)):
            assert status == 3 and f"of user {SECOND} already exists" in text, text
        assert alien.run("status").status in (0, 3)
        one.run("gc", "--state", "--older-than", "0", check=True)
        one.run("down", check=True)
        assert [census(host, "one")["containers"] for host in HOSTS] == ["", ""]
        assert [census(host, "other") for host in HOSTS] == before
        assert other.run("status", "--json", check=True).json["jobs"][-1]["state"] == "running"
        assert other.run("exec", "--", "ssh", "box2", "true").status == 0
        other.run("down", "--no-save", check=True)
        assert sh("box2", f"tr '\\0' ' ' </proc/{stranger}/cmdline").split() == list(train)


@contextmanager
def root_squashed(host: str, source: str, target: str, kind: str = "fuse.share") -> Iterator[None]:
    """Mount a folder as a share that maps root to nobody. This machine serves it: hosts have no /dev/fuse."""
    if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("needs root and /dev/fuse on this machine")
    format_ = ("docker", "inspect", "--format", "{{.State.Pid}}", outer(host))
    pid = subprocess.run(format_, capture_output=True, text=True, check=True).stdout.strip()
    sh(host, f"mkdir -p {source} {target}")
    program = (sys.executable, str(Path(__file__).with_name("rootsquash.py")), pid, source, target, kind)
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as share:
        assert share.stdout is not None and share.stdout.readline() == "mounted\n"
        try:
            yield
        finally:
            share.terminate()
            share.wait(10)


def test_shares_that_take_root_for_nobody(two: Toolkit, tmp_path: Path) -> None:
    """Homes and mounted folders on a share with root_squash, by real FUSE; real NFS is another matter."""
    disk, share = "/srv/disk", "/srv/share"
    home = f"{share}/squashed"
    host = "box1"
    only = {"hosts": {host: yaml.safe_load(two.hosts.read_text())["hosts"][host]}}
    with ExitStack() as stack:
        stack.callback(sh, host, f"rm -rf {disk} {share} /srv/local")
        stack.enter_context(root_squashed(host, disk, share))
        # Made outside of the share: useradd runs as root, who cannot write there.
        stack.enter_context(account(host, "squashed", f"{disk}/squashed", "/bin/sh", 1711))
        sh(host, f"usermod -d {home} squashed; chmod 755 {disk}/squashed; install -d -m 1777 /srv/local")
        on(host, "setpriv", "--reuid", "squashed", "--clear-groups", "sh", "-c", _FOLDERS, "sh", home)
        mounts = [f"{home}/open:/open", f"{home}/closed:/closed", f"{home}/closed/deep:/deep"]
        cold = cluster(two, tmp_path, "squash", "squashed", mounts=mounts, **only)
        refused = cold.run("up")
        assert refused.status == 3 and refused.err.count("[engine-sees]") == 2
        assert "in hosts.yaml: set state_dir: FOLDER" in refused.err
        assert f"cannot read {home}/closed/deep" in refused.err and "chmod o+x" in refused.err
        assert sh(host, f"find {disk} -name toolkit") == "", "told before anything is made"

        changes = {"mounts": mounts[:2], "state_dir": "/srv/local", **only}
        warm = cluster(two, tmp_path, "squash", "squashed", **changes)
        warm.run("up", check=True)
        stack.enter_context(down_if_it_fails(warm))
        text = "for d in /open /closed; do cd $d; echo x >new; mkdir by-rank; mv new by-rank/x; done"
        warm.run("run", "--launcher", "torchrun", "--", "sh", "-c", text, check=True)
        found = sh(host, f"stat -c '%u %n' {disk}/squashed/*/by-rank/x")
        assert [line.split()[0] for line in found.splitlines()] == ["1711", "1711"], found
        assert sh(host, "stat -c '%u %a' /srv/local/squashed") == "1711 700\n"
        warm.run("down", check=True)
        assert sh(host, "ls -A /srv/local/squashed") == ""
