"""Our ssh against real sshds, side by side with OpenSSH's own client under the same configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import paramiko
import pytest
import yaml
from paramiko.common import cMSG_CHANNEL_EOF

from tests.e2e import waiting
from tests.e2e.world import on, outer, sh
from toolkit.core.command import Result, command
from toolkit.errors import ToolkitError, Unreachable
from toolkit.remote.connect import Link
from toolkit.remote.host_keys import save_key
from toolkit.remote.ssh import SshRunner
from toolkit.remote.ssh_config import Target, resolve_target

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not shutil.which("ssh"), reason="there is no ssh program on this machine"),
]

# Its sshd is older than OpenSSH 9.8: a newer one would block this machine after that many refusals.
HOST = "box2"

# A second sshd: other host keys, a host certificate, and logins by certificate; on 2223 a key is not enough.
SSHD = """
Port 2222
Port 2223
HostKey /run/extra/rsa
HostKey /run/extra/ed25519
HostCertificate /run/extra/ed25519-cert.pub
TrustedUserCAKeys /run/extra/ca.pub
PidFile /run/extra/pid
UsePAM no
KbdInteractiveAuthentication no
Match LocalPort 2223
    AuthenticationMethods publickey,password
"""
MAKE = r"""
set -e; mkdir -p /run/extra; cd /run/extra; cat >sshd_config
for kind in rsa ed25519; do ssh-keygen -q -t $kind -N '' -C '' -f $kind; done
ssh-keygen -q -t ed25519 -N '' -C '' -f ca
ssh-keygen -q -s ca -I host -h ed25519.pub
/usr/sbin/sshd -f /run/extra/sshd_config
"""
RELAY = """
import selectors, socket, os, sys
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
ways = selectors.DefaultSelector()
ways.register(0, selectors.EVENT_READ, link.sendall)
ways.register(link, selectors.EVENT_READ, lambda data: os.write(1, data))
while True:
    for key, _ in ways.select():
        data = os.read(key.fd, 65536)
        if not data:
            sys.exit()
        key.data(data)
"""


@dataclass
class Ssh:
    """A person's ~/.ssh on this machine, of the test's own."""

    folder: Path
    address: str
    key: Path
    keys: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def config(self, *lines: str, known: str | None = None, port: int = 22, only: bool = True) -> None:
        """Write a configuration for the host `gpu`; ``known`` is the text of its known_hosts file."""
        text = self.keys["host"] if known is None else known
        files = self.write("known_hosts", text)
        usual = (
            f"HostName {self.address}",
            f"Port {port}",
            "User trainer",
            f"IdentityFile {self.key}",
            f"IdentitiesOnly {'yes' if only else 'no'}",
            f"UserKnownHostsFile {files}",
            "GlobalKnownHostsFile none",
            "StrictHostKeyChecking yes",
            "BatchMode yes",
        )
        # The first value counts, so what a test says comes before what is usual.
        self.write("config", "\n    ".join(("Host gpu", *lines, *usual)) + "\n")

    def theirs(self) -> bool:
        """Return whether OpenSSH can log in."""
        words = ["ssh", "gpu", "true"]
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
        return done.returncode == 0

    def ours(self) -> ToolkitError | None:
        """The error with which we do not get in, None when we do."""
        try:
            runner = SshRunner(resolve_target("gpu", "gpu"))
            try:
                runner.open()
                assert runner.run(command("id", "-un"), 20).stdout == "trainer\n"
            finally:
                runner.close()
        except ToolkitError as error:
            return error
        return None

    def both_get_in(self) -> None:
        error = self.ours()
        assert error is None, error
        assert self.theirs(), "and so does OpenSSH"

    def neither_gets_in(self, *words: str) -> ToolkitError:
        error = self.ours()
        assert error is not None and not self.theirs()
        for word in words:
            assert word in str(error)
        return error

    def only_theirs(self, *words: str) -> None:
        error = self.ours()
        assert error is not None and self.theirs()
        for word in words:
            assert word in str(error)


def shown(target: Target) -> Any:
    """The key that `toolkit trust` would show."""
    link = Link(target)
    try:
        return link.shown_key()
    finally:
        link.close()


def keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def extra(lab: Path) -> Iterator[None]:
    """The second sshd."""
    words = ["docker", "exec", "-i", outer(HOST), "sh", "-c", MAKE]
    subprocess.run(words, input=SSHD.encode(), check=True, capture_output=True)
    waiting.listens(HOST, 2222)
    waiting.listens(HOST, 2223)
    yield
    sh(HOST, "kill $(cat /run/extra/pid); rm -rf /run/extra")


@pytest.fixture
def ssh(lab: Path, extra: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    """A configuration of the test's own; OpenSSH is made to read it, whatever home its user has."""
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    address = yaml.safe_load((lab / "hosts.yaml").read_text())["hosts"][HOST]["address"]
    made = Ssh(tmp_path, address, lab / "id_ed25519")
    public = {"host": "/etc/ssh/ssh_host_ed25519_key.pub"}
    public |= {name: f"/run/extra/{name}.pub" for name in ("rsa", "ed25519", "ca")}
    keys = {name: " ".join(on(HOST, "cat", path).split()[:2]) for name, path in public.items()}
    made.keys = {name: f"{address} {key}\n" for name, key in keys.items()}
    return made


def test_host_keys_under_every_kind_of_name(ssh: Ssh, tmp_path: Path) -> None:
    address, key = ssh.address, ssh.keys["host"].split(" ", 1)[1]
    ssh.config()
    keygen("-H", "-f", str(tmp_path / "known_hosts"))
    assert "|1|" in (tmp_path / "known_hosts").read_text()
    ssh.both_get_in()
    network = address.rsplit(".", 1)[0]
    for names in (f"{network}.*", f"other,{network}.1?,!{network}.11", f"[{address}]:2222,{address}"):
        ssh.config(known=f"{names} {key}")
        ssh.both_get_in()
    for names in (f"{network}.*,!{address}", "other", f"[{address}]:22"):
        ssh.config(known=f"{names} {key}")
        ssh.neither_gets_in("the SSH host key is not recorded yet", "toolkit trust gpu")
    ssh.config("HostKeyAlias the-alias", known=f"the-alias {key}", port=22)
    ssh.both_get_in()
    ssh.config("HostKeyAlias the-alias")
    ssh.neither_gets_in("not recorded yet")


def test_every_file_of_host_keys_counts(ssh: Ssh, tmp_path: Path) -> None:
    known = ssh.write("the known ones", ssh.keys["host"])
    files = f'UserKnownHostsFile {tmp_path}/absent "{known}"'
    for line in (files, f'GlobalKnownHostsFile "{known}"'):
        ssh.config(line, known="")
        ssh.both_get_in()
    ssh.config("UserKnownHostsFile none", known=ssh.keys["host"])
    ssh.neither_gets_in("not recorded yet")


def test_other_ports_and_kinds_of_key(ssh: Ssh) -> None:
    # The kind on record is asked for, although the sshd has one that is liked better.
    ssh.config(known="[%s]:2222 %s" % tuple(ssh.keys["rsa"].split(" ", 1)), port=2222)  # noqa: UP031
    ssh.both_get_in()
    ssh.config(known=ssh.keys["ed25519"], port=2222)
    ssh.both_get_in()
    ssh.config(known=f"[{ssh.address}]:2222 {ssh.keys['host'].split(' ', 1)[1]}", port=2222)
    ssh.neither_gets_in("has CHANGED", "known_hosts line 1", "toolkit trust --replace gpu")


def test_keys_that_are_revoked(ssh: Ssh, tmp_path: Path) -> None:
    ssh.config(known=ssh.keys["host"] + f"@revoked * {ssh.keys['host'].split(' ', 1)[1]}")
    ssh.neither_gets_in("the SSH host key is REVOKED", "known_hosts line 2")
    revoked = ssh.write("revoked", ssh.keys["host"].split(" ", 1)[1])
    ssh.config(f"RevokedHostKeys {revoked}")
    ssh.neither_gets_in("the SSH host key is REVOKED", str(revoked))
    ssh.config(f"RevokedHostKeys {tmp_path}/absent")
    ssh.neither_gets_in("RevokedHostKeys", "cannot be read")


def test_certificate_authorities_of_hosts_are_refused_by_name(ssh: Ssh) -> None:
    authority = "@cert-authority " + ssh.keys["ca"].replace(ssh.address, "*")
    ssh.config("HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com", known=authority, port=2222)
    ssh.only_theirs("not recorded yet", "known_hosts line 1 uses a @cert-authority")
    # The way out that the error names: the host's own key on record.
    target = resolve_target("gpu", "gpu")
    save_key(target, shown(target))
    assert ssh.ours() is None


def test_certificates_of_users(ssh: Ssh, agent: Path, tmp_path: Path) -> None:
    key = tmp_path / "id_certified"
    keygen("-t", "ed25519", "-N", "", "-f", str(key))
    added = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
    subprocess.run(["ssh-add", "-q", str(key)], env=added, check=True, capture_output=True)
    known = ssh.keys["ed25519"]
    ssh.key = key
    ssh.config(known=known, port=2222)
    ssh.neither_gets_in("id_certified", f"ssh-copy-id -i {key} -p 2222 trainer@")
    subprocess.run(
        ["docker", "exec", "-i", outer(HOST), "tee", "/run/extra/id.pub"],
        input=key.with_suffix(".pub").read_bytes(),
        check=True,
        capture_output=True,
    )
    sh(HOST, "cd /run/extra; ssh-keygen -q -s ca -I me -n trainer id.pub")
    (tmp_path / "id_certified-cert.pub").write_text(sh(HOST, "cat /run/extra/id-cert.pub"))
    ssh.both_get_in()
    (tmp_path / "id_certified-cert.pub").rename(tmp_path / "elsewhere.pub")
    ssh.config(f"CertificateFile {tmp_path}/elsewhere.pub", known=known, port=2222)
    ssh.both_get_in()
    # An agent that has the key alone, from before the certificate.
    key.unlink()
    ssh.config(f"IdentityAgent {agent}\n CertificateFile {tmp_path}/elsewhere.pub", known=known, port=2222)
    ssh.both_get_in()
    (tmp_path / "elsewhere.pub").rename(tmp_path / "id_certified-cert.pub")
    ssh.config(f"IdentityAgent {agent}", known=known, port=2222)
    ssh.both_get_in()


def test_an_eof_that_comes_late_ends_no_other_command(ssh: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(channel: Any) -> None:
        # A thread can wait for the processor after it has composed the message.
        with channel.lock:
            message = channel._send_eof()
        waiting.until("the host has closed the channel", lambda: channel.closed)
        if message is not None:  # else the host has closed the channel before
            channel.transport._send_user_message(message)
            sent.append(channel)

    ssh.config()
    sent: list[Any] = []
    runner = SshRunner(resolve_target("gpu", "gpu"))
    other = Thread(target=lambda: results.append(runner.run(command("sleep", "2"), 20)))
    results: list[Result] = []
    try:
        runner.open()
        other.start()
        monkeypatch.setattr(paramiko.Channel, "shutdown_write", late)
        for _ in range(100):
            assert runner.run(command("sleep", "0.1"), 20).ok
            if len(sent) == 3:
                break
        assert len(sent) == 3
        other.join(30)
        assert [result.status for result in results] == [0]
    finally:
        runner.close()


def test_the_reason_with_which_an_sshd_ends_a_connection(ssh: Ssh) -> None:
    ssh.config()
    runner = SshRunner(resolve_target("gpu", "gpu"))
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_EOF)
    message.add_int(99)
    try:
        runner.open()
        runner._link.transport._send_user_message(message)  # type: ignore[attr-defined]
        with pytest.raises(
            Unreachable, match=r"the sshd of the host closed the connection: ieof .* nonexistent channel 99"
        ):
            for _ in range(100):
                runner.run(command("true"), 20)
    finally:
        runner.close()


def test_a_login_that_asks_for_more_than_a_key(ssh: Ssh) -> None:
    ssh.config(known=ssh.keys["ed25519"], port=2223)
    ssh.neither_gets_in("but also requires: password", "AuthenticationMethods")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    waiting.until("the agent's socket is there", path.exists)
    yield path
    process.terminate()
    process.wait(10)


def test_a_key_with_a_passphrase_is_the_agents_to_use(
    ssh: Ssh, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "id_locked"
    shutil.copy(ssh.key, key)
    keygen("-y", "-f", str(key))
    added = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
    subprocess.run(["ssh-add", "-q", str(key)], env=added, check=True, capture_output=True)
    keygen("-p", "-P", "", "-N", "secret", "-f", str(key))
    ssh.key = key
    ssh.config()
    error = ssh.neither_gets_in("id_locked has a passphrase, and the SSH agent does not have the key")
    assert error.fix == f"ssh-add {key}"
    # By its name in the configuration, by the environment's, by its public half alone, and unnamed.
    ssh.config(f"IdentityAgent {agent}")
    ssh.both_get_in()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    ssh.config()
    ssh.both_get_in()
    public = subprocess.run(["ssh-add", "-L"], env=added, check=True, capture_output=True, text=True).stdout
    ssh.key = ssh.write("id_public.pub", public)
    ssh.config()
    ssh.both_get_in()
    ssh.key = tmp_path / "absent"
    ssh.config()
    ssh.neither_gets_in("toolkit found no key")
    ssh.config(only=False)
    ssh.both_get_in()
    ssh.config("IdentityAgent none", only=False)
    ssh.neither_gets_in("toolkit found no key")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone.sock"))
    ssh.config(only=False)
    ssh.neither_gets_in("the SSH agent at", "gone.sock does not answer")


def test_a_proxy_command_leads_there(ssh: Ssh, tmp_path: Path) -> None:
    relay = ssh.write("relay.py", RELAY)
    ssh.config(f"ProxyCommand {sys.executable} {relay} %h %p")
    ssh.both_get_in()
    assert (
        f"{ssh.address} ssh-ed25519 {shown(resolve_target('gpu', 'gpu')).get_base64()}\n" == ssh.keys["host"]
    )
    waiting.until("the ProxyCommand has ended", lambda: running(str(relay)), lambda found: not found)
    ssh.config("ProxyCommand echo 'the proxy is closed' >&2; exit 1")
    ssh.neither_gets_in("the ProxyCommand does not connect to an sshd: the proxy is closed")


def running(word: str) -> bool:
    """Return whether a process of this machine has this text on its command line."""
    lines = (path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit())
    for line in lines:
        try:
            if word.encode() in line.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_a_jump_host_that_does_not_lead_on_is_named(ssh: Ssh) -> None:
    ssh.config("ProxyJump gate", port=9)
    config = (ssh.folder / "config").read_text()
    gate = config.replace("Host gpu\n    ProxyJump gate", "Host gate").replace("Port 9", "Port 22")
    ssh.write("config", config + gate)
    error = ssh.neither_gets_in(f"the jump host cannot connect to {ssh.address} port 9")
    assert error.host == "gpu (jump host gate)"
    # With the port in the same word, which ssh -G writes in a way of its own.
    ssh.write("config", config.replace("gate", "trainer@gate:22").replace("Port 9", "Port 22") + gate)
    ssh.both_get_in()


def test_a_command_that_is_killed_is_no_lost_connection(ssh: Ssh) -> None:
    ssh.config()
    runner = SshRunner(resolve_target("gpu", "gpu"))
    runner.open()
    killed = runner.run(command("sh", "-c", "echo begun; kill -9 $$"), 20)
    assert (killed.status, killed.stdout) == (137, "begun\n") and "killed on the host" in killed.stderr
    assert runner.run(command("true")).ok
    # And one that is: the host's end of this very connection goes away.
    with pytest.raises(Unreachable, match="the connection was lost before the command exited") as caught:
        runner.run(command("sh", "-c", "kill -9 $(ps -o ppid= -p $PPID) $PPID; sleep 200"), 300)
    assert "run the same command again" in caught.value.fix
    runner.close()


def test_a_host_that_says_nothing_any_more_is_given_up(ssh: Ssh) -> None:
    ssh.config()
    runner = SshRunner(resolve_target("gpu", "gpu"), silence=2.0)
    runner.open()
    # The process behind this connection stops, and its kernel continues to acknowledge.
    stop = (
        "p=$PPID; until grep -q sshd /proc/$p/comm; do p=$(ps -o ppid= -p $p | tr -d ' '); done; "
        "echo $p >/tmp/stopped; "
        "nohup sh -c 'sleep 1; kill -STOP $(cat /tmp/stopped)' >/dev/null 2>&1 & sleep 400"
    )
    try:
        with pytest.raises(Unreachable, match=r"the host has not answered for \d+ s"):
            runner.run(command("sh", "-c", stop), 300)
    finally:
        runner.close()
        sh(HOST, "kill -CONT $(cat /tmp/stopped); rm /tmp/stopped")
