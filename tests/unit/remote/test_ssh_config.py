"""Targets from ssh's own configuration, read by the real ssh if it is installed."""

from __future__ import annotations

import errno
import getpass
import os
import shutil
from pathlib import Path

import pytest

from toolkit.errors import Unreachable
from toolkit.remote.fanout import fan_out
from toolkit.remote.ssh_config import (
    expand,
    parse_ssh_g,
    resolve_target,
    split_hop,
    split_paths,
    target_of_options,
)

CONFIG = """\
Include {home}/.ssh/conf.d/*

Host alias
    HostName 192.0.2.10
    User carol
    Port 2222
    IdentityFile ~/.ssh/id_one
    IdentityFile {home}/.ssh/id_two
    IdentitiesOnly yes
    UserKnownHostsFile {home}/.ssh/known_one /etc/known_two

Host rich
    HostName 192.0.2.30
    HostKeyAlias rich-key
    IdentityFile "~/.ssh/id of %r at %h"
    IdentityFile none
    CertificateFile ~/.ssh/%r-cert.pub
    IdentityAgent {home}/agent.sock
    GlobalKnownHostsFile /etc/ssh/known_a /etc/ssh/known_b
    UserKnownHostsFile ~/.ssh/known/%k
    RevokedHostKeys /etc/ssh/revoked-%h
    ProxyCommand nc -X connect -x proxy:3128 %h %p
    KnownHostsCommand /usr/bin/keys %H

Host bare
    UserKnownHostsFile none
    GlobalKnownHostsFile none
    IdentityAgent none
    HostbasedAuthentication yes
    PKCS11Provider /usr/lib/token.so

Host passing
    ProxyCommand pass %h
    ProxyUseFdpass yes

Host jumped
    HostName 10.0.0.5
    ProxyJump dave@gate:2200,second

Host templated
    HostName 10.0.0.6
    Port 2222
    ProxyJump %r@gate-%n,hop-%h-%p

Host gate
    HostName gate.example.com
    User erin

Host inner
    ProxyJump behind
Host behind
    HostName 10.0.0.9
    ProxyJump gate

Host loop-a
    ProxyJump loop-b
Host loop-b
    ProxyJump loop-a

Host proxied-gate
    ProxyCommand connect %h %p
Host over-proxied
    ProxyJump proxied-gate,gate

Match user frank host matched
    Port 7777
Match host matched exec "test %p = 99"
    HostName 192.0.2.99
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own with an SSH configuration, read by the real ssh."""
    if not shutil.which("ssh"):
        pytest.skip("there is no ssh program on this machine")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh" / "conf.d").mkdir(parents=True)
    (tmp_path / ".ssh" / "config").write_text(CONFIG.format(home=tmp_path))
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
    assert target.global_known_hosts == ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
    assert (target.jump, target.proxy, target.alias, target.agent) == ((), "", "", "")
    assert target.known_as == "[192.0.2.10]:2222"


def test_everything_that_ssh_looks_at_is_looked_at(home: Path) -> None:
    target = resolve_target("gpu1", "rich", user="zoe")
    assert target.known_as == target.alias == "rich-key"
    assert target.identity_files == (f"{home}/.ssh/id of zoe at 192.0.2.30",)
    assert target.certificates == (f"{home}/.ssh/zoe-cert.pub",)
    assert target.agent == f"{home}/agent.sock"
    assert target.global_known_hosts == ("/etc/ssh/known_a", "/etc/ssh/known_b")
    assert [Path(f).name for f in target.known_hosts] == ["rich-key"]
    assert target.revoked_keys == "/etc/ssh/revoked-192.0.2.30"
    assert target.proxy == "nc -X connect -x proxy:3128 192.0.2.30 22"
    assert target.unsupported == ("KnownHostsCommand",)


def test_what_is_switched_off_is_off(home: Path) -> None:
    target = resolve_target("gpu1", "bare")
    assert (target.known_hosts, target.global_known_hosts, target.agent) == ((), (), "none")
    assert target.unsupported == ("HostbasedAuthentication", "PKCS11Provider")


def test_match_blocks_see_the_user_and_the_port_of_the_hosts_file(home: Path) -> None:
    assert resolve_target("x", "matched").port == 22
    assert resolve_target("x", "matched", "frank").port == 7777
    assert resolve_target("x", "matched", port=99).host == "192.0.2.99"


def test_what_the_hosts_file_says_wins(home: Path) -> None:
    target = resolve_target("gpu1", "alias", "frank", 22, "~/.ssh/id_mine", "gate", "~/known")
    assert (target.user, target.port, target.known_as) == ("frank", 22, "192.0.2.10")
    assert target.identity_files == (f"{home}/.ssh/id_mine",) and target.identities_only
    assert target.known_hosts == (f"{home}/known",)
    assert [(hop.host, hop.user) for hop in target.jump] == [("gate.example.com", "erin")]
    # The way there is checked against the same file, and its own keys are offered too.
    hop = target.jump[0]
    assert hop.known_hosts == (f"{home}/known",)
    assert hop.identity_files[0] == f"{home}/.ssh/id_mine" and len(hop.identity_files) > 1
    assert not hop.identities_only


def test_the_way_there_and_included_files(home: Path) -> None:
    hops = resolve_target("gpu1", "jumped").jump
    assert [(h.host, h.user, h.port) for h in hops] == [
        ("gate.example.com", "dave", 2200),
        ("192.0.2.20", getpass.getuser(), 2020),
    ]
    assert [h.name for h in hops] == ["gpu1 (jump host gate)", "gpu1 (jump host second)"]
    assert hops[1].jump == hops[:1]
    assert all(hop.is_jump for hop in hops) and not resolve_target("gpu1", "jumped").is_jump


def test_tokens_in_the_names_of_jump_hosts_are_expanded(home: Path) -> None:
    first, second = resolve_target("gpu1", "templated", user="alice").jump
    assert (first.user, first.host) == ("alice", "gate-templated")
    assert second.host == "hop-10.0.0.6-2222"


def test_a_jump_host_behind_a_jump_host(home: Path) -> None:
    assert [h.host for h in resolve_target("gpu1", "inner").jump] == ["gate.example.com", "10.0.0.9"]
    assert [h.host for h in resolve_target("gpu1", "x", jump="behind").jump] == [
        "gate.example.com",
        "10.0.0.9",
    ]


def test_a_proxy_on_the_way_counts_for_the_first_hop_alone(home: Path) -> None:
    target = resolve_target("gpu1", "over-proxied")
    assert [h.proxy for h in target.jump] == ["connect proxied-gate 22", ""] and target.proxy == ""
    assert resolve_target("gpu1", "rich", jump="gate").proxy == ""


def test_jump_hosts_in_a_circle_are_refused(home: Path) -> None:
    with pytest.raises(Unreachable, match="form a loop") as caught:
        resolve_target("gpu1", "loop-a")
    assert caught.value.host == "gpu1" and "ProxyJump" in caught.value.fix


def test_a_proxy_that_hands_over_its_connection_is_refused_by_name(home: Path) -> None:
    with pytest.raises(Unreachable, match="ProxyUseFdpass, which toolkit does not support"):
        resolve_target("gpu1", "passing")
    assert resolve_target("gpu1", "passing", jump="gate").jump, "unless the hosts file knows another way"


def test_a_configuration_that_ssh_cannot_read_is_said(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host x\n  Prot 22\n")
    with pytest.raises(Unreachable) as caught:
        resolve_target("gpu1", "x", "carol", 2222)
    assert "ssh cannot read its configuration" in caught.value.what
    assert "line 2: Bad configuration option: prot" in caught.value.what
    assert "Pseudo-terminal" not in caught.value.what
    assert caught.value.fix == "ssh -G -l carol -p 2222 -- x"


def test_a_missing_process_or_open_file_for_ssh_is_an_error_of_the_host(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: object, **options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("toolkit.remote.ssh_config.subprocess.run", run)
    with pytest.raises(Unreachable) as caught:
        resolve_target("gpu1", "x")
    assert caught.value.what == "your machine cannot start ssh: Too many open files"
    assert caught.value.fix.startswith("ulimit -a  # ") and caught.value.host == "gpu1"


def test_few_ssh_programs_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes open files of this process, and a command can have a thousand hosts."""
    ssh, most = tmp_path / "ssh", 16
    ssh.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/run.$$; ls {tmp_path} | grep -c run >>{tmp_path}/seen\n"
        f"sleep 0.1; rm {tmp_path}/run.$$\n"
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found, errors = fan_out(range(3 * most), lambda number: resolve_target("x", f"gpu{number}"))
    assert len(found) == 3 * most and not errors
    assert 1 < max(map(int, (tmp_path / "seen").read_text().split())) <= most


def test_a_name_without_an_entry(home: Path) -> None:
    target = resolve_target("gpu9", "gpu9.example.com")
    assert (target.host, target.port, target.user) == ("gpu9.example.com", 22, getpass.getuser())
    assert not target.identities_only
    assert target.known_hosts[0].endswith("/.ssh/known_hosts")


def test_an_address_is_never_an_option(home: Path) -> None:
    with pytest.raises(Unreachable, match="invalid characters"):
        resolve_target("x", "-oProxyCommand=touch /tmp/x")


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


# What `ssh -G` prints, as text


def test_lists_of_files_whose_names_hold_blanks() -> None:
    assert split_paths("/root/.ssh/known two /etc/known_two ~/third one") == (
        "/root/.ssh/known two",
        "/etc/known_two",
        "~/third one",
    )
    assert split_paths("") == ()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gate", ("", "gate", 0)),
        ("dave@gate:2200", ("dave", "gate", 2200)),
        ("dave@[gate]:2200", ("dave", "gate", 2200)),
        ("ssh://dave@corp@gate:2200", ("dave@corp", "gate", 2200)),
        ("[10.0.0.1]:22", ("", "10.0.0.1", 22)),
        ("[fe80::1]:22", ("", "fe80::1", 22)),
    ],
)
def test_one_jump_host(text: str, parts: tuple[str, str, int]) -> None:
    assert split_hop(text) == parts


def test_tokens_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM", "blue")
    tokens = {"h": "192.0.2.1", "p": "22", "%": "%"}
    assert expand("a %h:%p %% ${TEAM} ${NOT_SET} %z %", tokens) == "a 192.0.2.1:22 % blue ${NOT_SET} %z %"


def test_the_agents_socket_may_be_named_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_AGENT", "/run/agent")
    for text, wanted in (
        ("SSH_AUTH_SOCK", ""),
        ("none", "none"),
        ("$MY_AGENT", "/run/agent"),
        ("${MY_AGENT}", "/run/agent"),
        ("$NOT_SET", "none"),
    ):
        options = parse_ssh_g(f"hostname h\nidentityagent {text}\n")
        assert target_of_options("x", "h", options, "me").agent == wanted, text


def test_a_user_whom_this_machine_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert target_of_options("x", "h", {}).user == str(os.getuid())
