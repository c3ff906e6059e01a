"""Where ssh's own configuration leads us, and hosts' keys on record."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from pathlib import Path
from typing import Any

import paramiko
import pytest

from toolkit.effects.host_keys import recorded_key, save_key
from toolkit.effects.ssh import SshRunner
from toolkit.effects.ssh_config import Target, resolve_target

CONFIG = """\
Include {home}/.ssh/conf.d/*

Host alias
    HostName 192.0.2.10
    User carol
    Port 2222
    IdentityFile ~/.ssh/id_one
    IdentityFile {home}/.ssh/id two
    IdentitiesOnly yes
    UserKnownHostsFile {home}/.ssh/known_one /etc/known_two

Host jumped
    HostName 10.0.0.5
    ProxyJump dave@gate:2200,second

Host gate
    HostName gate.example.com
    User erin
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own with an ssh configuration, read by the real ssh."""
    if not shutil.which("ssh"):
        pytest.skip("there is no ssh program on this machine")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh" / "conf.d").mkdir(parents=True)
    text = CONFIG.format(home=tmp_path).replace("id two", "id_two")
    (tmp_path / ".ssh" / "config").write_text(text)
    (tmp_path / ".ssh" / "conf.d" / "more").write_text(
        "Host second\n    HostName 192.0.2.20\n    Port 2020\n"
    )
    return tmp_path


def test_an_alias_is_resolved_as_ssh_would(home: Path) -> None:
    target = resolve_target("gpu1", "alias")
    assert (target.name, target.host, target.user, target.port) == ("gpu1", "192.0.2.10", "carol", 2222)
    assert target.identity_files == (f"{home}/.ssh/id_one", f"{home}/.ssh/id_two")
    assert target.identities_only
    assert target.known_hosts == (f"{home}/.ssh/known_one", "/etc/known_two")
    assert target.jump == ()
    assert target.known_as == "[192.0.2.10]:2222"


def test_what_the_hosts_file_says_wins(home: Path) -> None:
    target = resolve_target("gpu1", "alias", "frank", 22, "~/.ssh/id_mine", "gate", "~/known")
    assert (target.user, target.port, target.known_as) == ("frank", 22, "192.0.2.10")
    assert target.identity_files == (f"{home}/.ssh/id_mine",)
    assert target.known_hosts == (f"{home}/known",)
    assert [(hop.host, hop.user) for hop in target.jump] == [("gate.example.com", "erin")]
    # The way there is checked against the same file.
    assert target.jump[0].known_hosts == (f"{home}/known",)


def test_the_way_there_and_included_files(home: Path) -> None:
    hops = resolve_target("gpu1", "jumped").jump
    assert [(h.host, h.user, h.port) for h in hops] == [
        ("gate.example.com", "dave", 2200),
        ("192.0.2.20", getpass.getuser(), 2020),
    ]


def test_a_name_without_an_entry(home: Path) -> None:
    target = resolve_target("gpu9", "gpu9.example.com")
    assert (target.host, target.port, target.user) == ("gpu9.example.com", 22, getpass.getuser())
    assert not target.identities_only
    assert target.known_hosts[0].endswith("/.ssh/known_hosts")


def test_an_address_is_never_an_option(home: Path) -> None:
    assert resolve_target("x", "-oProxyCommand=touch /tmp/x").host == "-oProxyCommand=touch /tmp/x"


def test_without_ssh_the_values_given_stand_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    target = resolve_target("gpu1", "10.0.0.1", "alice", 0, "/key")
    assert (target.host, target.user, target.port, target.identity_files) == (
        "10.0.0.1",
        "alice",
        22,
        ("/key",),
    )
    assert target.known_hosts == (str(Path.home() / ".ssh" / "known_hosts"),)


# known_hosts

KEYS = [paramiko.ECDSAKey.generate(bits=256) for _ in range(3)]
RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7"


def line(names: str, key: Any) -> str:
    return f"{names} {key.get_name()} {key.get_base64()}"


def at(path: Path, port: int = 22) -> Target:
    return Target("gpu1", "10.0.0.1", "alice", port, known_hosts=(str(path), "/nonexistent"))


@pytest.mark.parametrize("port", [22, 2222])
def test_a_key_is_recorded_and_found(tmp_path: Path, port: int) -> None:
    path = tmp_path / "new folder" / "known_hosts"
    target = at(path, port)
    assert recorded_key(target, KEYS[0].get_name()) is None
    assert save_key(target, KEYS[0]) == path
    assert recorded_key(target, KEYS[0].get_name()) == KEYS[0]
    assert recorded_key(target, "ssh-ed25519") is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert recorded_key(at(path, 23), KEYS[0].get_name()) is None


def test_only_the_same_name_and_kind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    ed25519 = "10.0.0.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS"
    others = ["# mine", "", line("10.0.0.2", KEYS[0]), line("[10.0.0.1]:2222", KEYS[0]), ed25519]
    path.write_text("\n".join([*others[:3], line("10.0.0.1", KEYS[0]), *others[3:]]) + "\n")
    path.chmod(0o644)
    save_key(at(path), KEYS[1])
    assert path.read_text().splitlines() == [*others, line("10.0.0.1", KEYS[1])]
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_recording_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    save_key(at(path), KEYS[0])
    before = path.read_text()
    save_key(at(path), KEYS[0])
    assert path.read_text() == before


def test_hashed_entries_count(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    mine, other = paramiko.HostKeys.hash_host("10.0.0.1"), paramiko.HostKeys.hash_host("10.0.0.2")
    path.write_text(f"{line(mine, KEYS[0])}\n{line(other, KEYS[0])}\n")
    assert recorded_key(at(path), KEYS[0].get_name()) == KEYS[0]
    save_key(at(path), KEYS[1])
    assert path.read_text().splitlines() == [line(other, KEYS[0]), line("10.0.0.1", KEYS[1])]


@pytest.mark.parametrize(
    "odd",
    [
        f"@cert-authority *.example.com {RSA}",
        f"@revoked * {RSA}",
        "10.0.0.9 ssh-ed25519 not-base64!",
        "10.0.0.9 some-new-kind AAAAC3NzaC1lZDI1NTE5",
        "one-word",
        "10.0.0.1 ssh-dss AAAAB3NzaC1kc3M= comment here",
        "\t",
    ],
)
def test_lines_that_paramiko_does_not_read_stay_and_do_no_harm(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"{odd}\n{line('10.0.0.1', KEYS[0])}\n{odd}\n")
    assert recorded_key(at(path), KEYS[0].get_name()) == KEYS[0]
    save_key(at(path), KEYS[1])
    assert path.read_text().splitlines() == [odd, odd, line("10.0.0.1", KEYS[1])]


def test_a_revoked_key_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"@revoked * {line('', KEYS[0]).strip()}\n{line('10.0.0.1', KEYS[0])}\n")
    assert recorded_key(at(path), KEYS[0].get_name()) is None


def test_connections_know_what_is_on_record(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    hashed = paramiko.HostKeys.hash_host("10.0.0.1")
    path.write_text(f"@cert-authority * {RSA}\n{line(hashed, KEYS[0])}\n{line('a,b', KEYS[1])}\n")
    known = SshRunner(at(path))._connection.client.get_host_keys()
    assert known.check("10.0.0.1", KEYS[0])
    assert known.check("a", KEYS[1]) and known.check("b", KEYS[1])
    assert not known.check("10.0.0.1", KEYS[1])


def test_a_file_behind_a_link_is_written_where_it_is(tmp_path: Path) -> None:
    """Dotfiles are often kept elsewhere; the link stays one."""
    real, path = tmp_path / "dotfiles", tmp_path / "known_hosts"
    real.write_text(line("10.0.0.2", KEYS[0]) + "\n")
    path.symlink_to(real)
    save_key(at(path), KEYS[1])
    assert path.is_symlink()
    assert real.read_text().splitlines() == [line("10.0.0.2", KEYS[0]), line("10.0.0.1", KEYS[1])]


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="there is no ssh-keygen on this machine")
def test_openssh_finds_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    save_key(at(path, 2222), KEYS[0])
    found = subprocess.run(
        ["ssh-keygen", "-F", "[10.0.0.1]:2222", "-f", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert KEYS[0].get_base64() in found
