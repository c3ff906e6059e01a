"""Trouble on one host: an error that names host and fix, the others untouched, nothing half-made."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import faults, waiting
from tests.e2e.world import Done, Toolkit, logins, on, sh
from toolkit.lab.files import ensure_key

pytestmark = pytest.mark.lab

HEALTHY, SICK = "box1", "box2"


@pytest.fixture(scope="module")
def base(two: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toolkit]:
    """A cluster of this file's own, beside the session's; not up to begin with."""
    folder = tmp_path_factory.mktemp("faulty")
    data = yaml.safe_load(two.hosts.read_text()) | {"cluster": "faulty"}
    toolkit = Toolkit(folder / "hosts.yaml", folder)
    toolkit.hosts.write_text(yaml.safe_dump(data))
    was_up = two.run("status").status == 0
    yield toolkit
    toolkit.run("down", "--no-save", check=True)
    assert [faults.something_of("faulty", host) for host in (HEALTHY, SICK)] == ["", ""]
    if was_up:  # its containers died with the hosts here
        two.run("up", check=True)


def variant(base: Toolkit, folder: Path, **changes: Any) -> Toolkit:
    """The same cluster under another hosts file."""
    toolkit = Toolkit(folder / "hosts.yaml", folder)
    toolkit.hosts.write_text(yaml.safe_dump(yaml.safe_load(base.hosts.read_text()) | changes))
    return toolkit


def one_error(done: Done, phase: str, what: str, fix: str, status: int = 1) -> None:
    """The sick host has failed once, with these words; the healthy one has nothing but good outcomes."""
    assert done.status == status, done.err
    rows = done.json["outcomes"]
    failed = [o for o in rows if o["status"] == "failed"]
    assert [(o["host"], o["phase"]) for o in failed] == [(SICK, phase)], failed
    assert what in failed[0]["detail"] and fix in failed[0]["fix"], failed[0]
    # What it does for the sick host is left out, and says so.
    left = f"an earlier step failed on {SICK}"
    own = [o["status"] for o in rows if o["host"] == HEALTHY and o["detail"] != left]
    assert own and set(own) <= {"ok", "skipped"}, rows
    # People see the same, with the host's name in front.
    assert f"{SICK}: FAILED at" in done.err or f"FAILED  {SICK}: " in done.err
    assert what in done.err and fix in done.err


def again(base: Toolkit, verb: str) -> None:
    """The fault is gone: the same command heals, or `down` finds all that there is."""
    base.run(*(("up",) if verb == "up" else ("down", "--no-save")), check=True)
    if verb == "up":
        base.run("exec", HEALTHY, "--", "ssh", SICK, "true", check=True)
    else:
        assert [faults.something_of("faulty", host) for host in (HEALTHY, SICK)] == ["", ""]


REFUSE = "REJECT --reject-with tcp-reset"


@pytest.mark.parametrize(
    ("fault", "what", "fix", "verb"),
    [
        (
            partial(faults.firewall, SICK, "DROP"),
            "port 22 does not answer; the host might be off",
            "ssh -p 22 trainer@",
            "down",
        ),
        (
            partial(faults.firewall, SICK, REFUSE),
            "port 22 refuses the connection",
            "check that sshd runs",
            "up",
        ),
        (partial(faults.without_docker, SICK), "docker is not on the PATH", "docs.docker.com", "down"),
        (
            partial(faults.engine_stopped, SICK),
            "the docker engine is not running",
            f"on {SICK}: sudo systemctl start docker",
            "down",
        ),
        (
            partial(faults.without_permission, SICK),
            "user trainer cannot use docker",
            f"on {SICK}: sudo usermod -aG docker trainer",
            "up",
        ),
    ],
    ids=["drops", "refuses", "no docker", "engine stopped", "no permission"],
)
def test_a_host_that_cannot_be_used(
    base: Toolkit,
    fault: Callable[[], AbstractContextManager[None]],
    what: str,
    fix: str,
    verb: str,
) -> None:
    with fault():
        done = base.run("up", "--json")
    one_error(done, "connect", what, fix)
    again(base, verb)


def test_a_wrong_key_is_tried_once(base: Toolkit, tmp_path: Path) -> None:
    ensure_key(tmp_path)
    hosts = yaml.safe_load(base.hosts.read_text())["hosts"]
    hosts[SICK]["identity_file"] = str(tmp_path / "id_ed25519")
    count = "grep -c 'Connection from\\|Connection closed by authenticating user' /var/log/sshd.log || true"
    before = int(sh(SICK, count).split()[0])
    done = variant(base, tmp_path, hosts=hosts).run("up", "--json")
    one_error(
        done,
        "connect",
        f"sshd refused {tmp_path}/id_ed25519",
        f"ssh-copy-id -i {tmp_path}/id_ed25519 -p 22 trainer@",
    )
    after = waiting.until(
        f"sshd of {SICK} has logged the attempt",
        lambda: int(sh(SICK, count).split()[0]),
        lambda n: n > before,
    )
    assert after - before <= 2
    again(base, "up")


def test_an_unknown_or_changed_host_key_is_refused_until_it_is_trusted(base: Toolkit, tmp_path: Path) -> None:
    stranger = variant(base, tmp_path, known_hosts=str(tmp_path / "known_hosts"))
    before = {host: logins(host) for host in (HEALTHY, SICK)}
    refused = stranger.run("up")
    assert refused.status == 1 and "the SSH host key is not recorded yet" in refused.err
    assert f"toolkit trust {HEALTHY}" in refused.err
    assert {host: logins(host) for host in before} == before
    assert stranger.run("trust").status == 1, "there is nobody to ask, so nothing may be recorded"
    assert not (tmp_path / "known_hosts").exists()
    shown = stranger.run("trust", "--yes", "--json", check=True).json
    real = sh(HEALTHY, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert shown[0]["fingerprint"] == real
    stranger.run("up", check=True)
    # Another key in its place: refused with both fingerprints.
    first, second = (tmp_path / "known_hosts").read_text().splitlines()
    changed = second.split()[0] + " " + first.split(" ", 1)[1]
    (tmp_path / "known_hosts").write_text(f"{first}\n{changed}\n")
    new = sh(SICK, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    recorded = f"ssh-ed25519 {real} ({tmp_path}/known_hosts line 2)"
    words = f"the SSH host key has CHANGED: recorded {recorded}, received ssh-ed25519 {new}"
    one_error(stranger.run("up", "--json"), "connect", words, f"toolkit trust --replace {SICK}")
    assert stranger.run("trust", "--yes", SICK).status == 1, "a changed key is not recorded by the way"
    stranger.run("trust", "--yes", "--replace", SICK, check=True)
    stranger.run("up", check=True)


# Full disks


def test_a_state_folder_on_a_full_disk(base: Toolkit) -> None:
    base.run("down", "--no-save", check=True)
    with faults.small_disk(SICK, faults.STATE_PARENT, "64k", "trainer"):
        # Reported before anything is changed; and in a run that continues anyway.
        refused = base.run("up", "--json")
        assert refused.status == 3 and refused.json["ok"] is False
        assert f"ERROR  {SICK}: " in refused.err and "free for SSH keys and job records" in refused.err
        assert sh(SICK, f"find {faults.STATE_PARENT} -mindepth 1") == ""
        # What had come by then is gone again.
        words = f" free of 66 kB on {faults.STATE_PARENT}): tar: "
        late = base.run("up", "--no-check", "--json")
        assert "the disk was full (now " in late.out
        one_error(late, "files", words, f"free space on {faults.STATE_PARENT}")
        again(base, "down")
        assert sh(SICK, f"find {faults.STATE_PARENT} -mindepth 1") == ""


@pytest.fixture(scope="module")
def blob() -> Iterator[str]:
    """An image of 100 MB that no host has, and in which nothing can run."""
    tag = "toolkit-faults:blob"
    docker("import", "-", tag, given=tar_of("blob", 100_000_000))
    yield tag
    docker("rmi", tag)


def docker(*words: str, given: bytes = b"") -> str:
    done = subprocess.run(["docker", *words], input=given, check=True, capture_output=True)
    return done.stdout.decode().strip()


def tar_of(name: str, size: int) -> bytes:
    with io.BytesIO() as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = size
        tar.addfile(info, io.BytesIO(os.urandom(size)))
        tar.close()
        return packed.getvalue()


@pytest.mark.rare
def test_an_image_for_which_there_is_no_room(base: Toolkit, blob: str, tmp_path: Path) -> None:
    big = variant(base, tmp_path, image=blob)
    with faults.small_engine(SICK, "150m"):
        # Seen before the first byte travels.
        refused = big.run("image", "send", "--json")
        words = f"{faults.IMAGES} has too little space for the image: "
        one_error(refused, "image", words, f"free space on {faults.IMAGES}")
        assert "loading needs 200 MB" in refused.err and refused.seconds < 10
        # A part of the disk that df does not tell of: then docker's own words, and what is left.
        sh(SICK, f"mount -o remount,size=500m {faults.IMAGES}")
        with faults.small_disk(SICK, f"{faults.IMAGES}/tmp", "50m"):
            late = big.run("image", "send", "--json")
        one_error(late, "image", "no space left on device", f"free space on {faults.IMAGES}")
        assert "the disk was full (now " in late.err
        assert sh(SICK, f"ls {faults.IMAGES}/tmp; docker images -q") == ""
        # With room it goes.
        assert big.run("image", "send", "--json", check=True).json["changes"] == 1
    faults.forget_image(blob, HEALTHY)
    again(base, "down")


# Deaths in the middle of `up`


def until(process: subprocess.Popen[str], *words: str) -> None:
    """Read what the command says up to a line with all of these words."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if all(word in line for word in words):
            return
    pytest.fail(f"{words} did not come: {''.join(said)}")


def lost(process: subprocess.Popen[str]) -> None:
    """The command ends before its deadline: it names the broken host, and the healthy one is done."""
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 1, said
    report = said[said.rindex("up faulty: failed on 1 of 2 hosts") :]
    assert f"{SICK}: FAILED at " in report and "the connection was lost" in report, said
    assert "run the same command again" in report
    login = (
        f"{HEALTHY}: not done: test the SSH login from the main container to every "
        f"worker container: an earlier step failed on {SICK}\n"
    )
    assert f"{HEALTHY}: ok (" in report or login in report, said


IN_UP = {
    "files": (f"done  {SICK}: write the configuration",),
    "container": (f"$  {SICK}: ", "toolkit-faulty-worker"),
}


@pytest.mark.parametrize(
    ("phase", "verb"), [pytest.param("files", "down", marks=pytest.mark.rare), ("container", "up")]
)
def test_a_host_that_dies_during_up(base: Toolkit, phase: str, verb: str) -> None:
    base.run("down", "--no-save", check=True)
    try:
        # `up` cannot get past this place on the sick host, however long it takes to switch that off.
        with faults.held_docker(SICK, "run", "toolkit-faulty-worker", after=phase == "container"):
            process = base.start("up", "-v")
            until(process, *IN_UP[phase])
            faults.docker_is_held(SICK)
        faults.power_off(SICK)
        lost(process)
    finally:
        faults.power_on(SICK)
    again(base, verb)


@pytest.mark.parametrize(
    ("phase", "verb"), [("files", "up"), pytest.param("container", "down", marks=pytest.mark.rare)]
)
def test_up_itself_is_killed(base: Toolkit, phase: str, verb: str) -> None:
    base.run("down", "--no-save", check=True)
    process = base.start("up", "-v")
    until(process, *IN_UP[phase])
    process.kill()
    process.communicate(timeout=60)
    again(base, verb)


@pytest.fixture
def derived() -> Iterator[str]:
    """The cluster's image with one more layer: only that has to travel."""
    tag, made = "toolkit-faults:derived", docker("create", "toolkit:cpu")
    docker("cp", "-", f"{made}:/", given=tar_of("more", 120_000_000))
    docker("commit", made, tag)
    docker("rm", made)
    yield tag
    docker("rmi", tag)


@pytest.mark.rare
def test_a_host_that_dies_while_the_image_travels(base: Toolkit, derived: str, tmp_path: Path) -> None:
    newer = variant(base, tmp_path, image=derived)
    try:
        with faults.held_docker(SICK, "load", after=False):
            process = newer.start("up", "-v")
            faults.docker_is_held(SICK)
        faults.power_off(SICK)
        lost(process)
    finally:
        faults.power_on(SICK)
    again(newer, "up")
    for host in (HEALTHY, SICK):
        image = on(host, "docker", "images", "-q", derived).strip()
        assert on(host, "docker", "ps", "-q", "--filter", f"ancestor={image}"), "it is the newer image's"
    again(base, "down")
    faults.forget_image(derived, HEALTHY, SICK)


def test_sending_is_killed(base: Toolkit, blob: str, tmp_path: Path) -> None:
    big = variant(base, tmp_path, image=blob)
    own = tmp_path / "own"
    own.mkdir()
    big.env["TMPDIR"] = str(own)
    process = big.start("image", "send")
    faults.load_begins(SICK)
    process.kill()
    process.communicate(timeout=60)
    assert list(own.iterdir()) == [], "nothing stays on this machine"
    faults.load_ends(SICK)
    assert big.run("image", "send", "--json", check=True).json["changes"] >= 1
    assert big.run("image", "send", "--json", check=True).json["changes"] == 0
    faults.forget_image(blob, HEALTHY, SICK)
