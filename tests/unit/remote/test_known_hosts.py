"""Records of known_hosts files compared with OpenSSH's own reading, and the entries that toolkit writes."""

from __future__ import annotations

import base64
import errno
import os
import re
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from tests.unit.container_world import PATIENCE_S
from tests.unit.each import for_each
from toolkit.core import files
from toolkit.errors import ToolkitError, Unreachable
from toolkit.remote import host_keys
from toolkit.remote.host_keys import judge, prefer_recorded, record, save_key
from toolkit.remote.known_hosts import (
    Verdict,
    names_of,
    parse_known_hosts,
    parse_line,
    parse_revoked_keys,
    record_of,
)
from toolkit.remote.ssh_config import Target

KEYS = [paramiko.ECDSAKey.generate(bits=256) for _ in range(3)]
KIND = KEYS[0].get_name()
ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS"
RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7"


def line(names: str, key: Any) -> str:
    return f"{names} {key.get_name()} {key.get_base64()}"


def hashed(name: str) -> str:
    # A salt that is always the same: cases are named after it, and every process must find the same names.
    text: str = paramiko.HostKeys.hash_host(name, "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|")
    return text


def at(path: Path, port: int = 22) -> Target:
    return Target("gpu1", "10.0.0.1", "alice", port, known_hosts=(str(path), "/nonexistent"))


def verdict(
    text: str, name: str = "10.0.0.1", port: int = 22, alias: str = "", key: Any = KEYS[0]
) -> Verdict:
    known = record_of(parse_known_hosts(text), names_of(name, port, alias))
    return known.judge(key.get_base64())


@for_each(
    ("names", "name", "port", "good"),
    [
        ("10.0.0.1", "10.0.0.1", 22, True),
        ("10.0.0.2", "10.0.0.1", 22, False),
        ("gpu1,10.0.0.1", "10.0.0.1", 22, True),
        ("Gpu1.Example.COM", "gpu1.example.com", 22, True),
        ("gpu1.example.com", "GPU1.example.com", 22, True),
        ("*.example.com", "gpu1.example.com", 22, True),
        ("*.example.com", "example.com", 22, False),
        ("10.0.0.?", "10.0.0.1", 22, True),
        ("10.0.0.?", "10.0.0.11", 22, False),
        ("10.0.0.[12]", "10.0.0.1", 22, False),
        ("*,!gpu1", "gpu1", 22, False),
        ("!gpu1,*", "gpu2", 22, True),
        ("!gpu1", "gpu2", 22, False),
        ("[10.0.0.1]:2222", "10.0.0.1", 2222, True),
        ("[10.0.0.1]:2222", "10.0.0.1", 22, False),
        ("[*.example.com]:2222", "gpu1.example.com", 2222, True),
        ("[10.0.0.1]:*", "10.0.0.1", 2200, True),
        # ssh too takes a key that is recorded without the port.
        ("10.0.0.1", "10.0.0.1", 2222, True),
        (hashed("10.0.0.1"), "10.0.0.1", 22, True),
        (hashed("10.0.0.2"), "10.0.0.1", 22, False),
        (hashed("[10.0.0.1]:2222"), "10.0.0.1", 2222, True),
        (hashed("gpu1"), "GPU1", 22, True),
        ("|1|not base64|x", "10.0.0.1", 22, False),
        ("|2|AAAA|AAAA", "10.0.0.1", 22, False),
    ],
)
def test_names_are_matched_as_ssh_matches_them(names: str, name: str, port: int, good: bool) -> None:
    assert verdict(line(names, KEYS[0]), name, port) == ("good" if good else "unknown")


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="there is no ssh-keygen on this machine")
@pytest.mark.parametrize("name", ["10.0.0.1", "[10.0.0.1]:2222", "gpu1.example.com", "gpu1"])
def test_openssh_finds_the_same_lines(tmp_path: Path, name: str) -> None:
    every = ["10.0.0.1", "*.example.com", "10.0.0.?", "*,!gpu1", "gpu1,x", "[10.0.0.1]:2222", hashed("gpu1")]
    path = tmp_path / "known_hosts"
    path.write_text("".join(line(names, KEYS[0]) + "\n" for names in every))
    done = subprocess.run(["ssh-keygen", "-F", name, "-f", str(path)], capture_output=True, text=True)
    found = {int(number) for number in re.findall(r"^# Host .* found: line (\d+)", done.stdout, re.MULTILINE)}
    parsed = parse_known_hosts(path.read_text())
    assert {number for number, entry in enumerate(parsed, 1) if entry.is_about(name)} == found


def test_any_of_several_keys_is_good_and_another_is_a_change() -> None:
    both = f"{line('10.0.0.1', KEYS[1])}\n{line('10.0.0.1', KEYS[0])}\n"
    assert verdict(both) == "good"
    assert verdict(both, key=KEYS[2]) == "changed"
    assert verdict(f"10.0.0.1 {ED25519}\n") == "changed", "as with ssh, also if the kind is another"
    assert verdict(f"10.0.0.1 {ED25519}\n{line('10.0.0.1', KEYS[0])}\n") == "good"
    assert verdict(f"10.0.0.1 {ED25519}\n", port=2222) == "unknown"
    assert verdict(line("10.0.0.1", KEYS[1]), port=2222) == "unknown", "that is the sshd on port 22"
    assert verdict(line("[10.0.0.1]:2222", KEYS[1]), port=2222) == "changed"


def test_an_alias_takes_the_place_of_address_and_port() -> None:
    assert verdict(line("the-alias", KEYS[0]), port=2222, alias="the-alias") == "good"
    assert verdict(line("10.0.0.1", KEYS[0]), alias="the-alias") == "unknown"
    assert Target("x", "10.0.0.1", port=2222, alias="the-alias").known_as == "the-alias"


@pytest.mark.parametrize("names", ["*", "10.0.0.1", "10.0.0.*,gpu1", hashed("10.0.0.1")])
def test_a_revoked_key_is_never_good(names: str) -> None:
    assert verdict(f"{line('10.0.0.1', KEYS[0])}\n@revoked {line(names, KEYS[0])}\n") == "revoked"
    assert verdict(f"{line('10.0.0.1', KEYS[1])}\n@revoked {line(names, KEYS[0])}\n", key=KEYS[1]) == "good"


def test_a_key_revoked_for_other_hosts_is_good_here() -> None:
    assert verdict(f"{line('10.0.0.1', KEYS[0])}\n@revoked {line('10.9.*', KEYS[0])}\n") == "good"


def test_authorities_are_known_of_and_vouch_for_nothing() -> None:
    text = f"@cert-authority {line('*.example.com', KEYS[0])}\n"
    known = record_of(parse_known_hosts(text, "kh"), names_of("gpu1.example.com", 22))
    assert known.judge(KEYS[0].get_base64()) == "unknown"
    assert [e.where for e in known.authorities] == ["kh line 1"]
    assert record_of(parse_known_hosts(text), names_of("gpu1", 22)).authorities == ()


@for_each(
    "text",
    [
        "",
        "# comment",
        "one-word",
        "10.0.0.9 ssh-ed25519",
        "10.0.0.9 ssh-ed25519 not-base64!",
        "10.0.0.9 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5é",
        "10.0.0.9 ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS",
        f"@new-marker * {ED25519}",
        "@revoked *",
        "\t",
        "\x00\x01",
    ],
)
def test_lines_that_hold_no_key(text: str) -> None:
    assert parse_line(text) is None


def test_where_an_entry_stands_and_its_fingerprint() -> None:
    first, second = parse_known_hosts(f"# mine\n10.0.0.1 {ED25519} a comment\n\n{line('x', KEYS[0])}\n", "kh")
    assert (first.where, second.where) == ("kh line 2", "kh line 4")
    assert second.fingerprint == KEYS[0].fingerprint
    assert first.fingerprint.startswith("SHA256:") and not first.fingerprint.endswith("=")


# Files


@pytest.mark.parametrize("port", [22, 2222])
def test_a_key_is_recorded_and_found(tmp_path: Path, port: int) -> None:
    path = tmp_path / "new folder" / "known_hosts"
    target = at(path, port)
    assert judge(target, record(target), KEYS[0]) == "unknown"
    assert save_key(target, KEYS[0]) == path
    assert judge(target, record(target), KEYS[0]) == "good"
    assert judge(target, record(target), KEYS[1]) == "changed"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_every_file_counts_and_the_first_is_written(tmp_path: Path) -> None:
    mine, more, everybodys = (tmp_path / name for name in ("mine", "more", "everybodys"))
    target = replace(
        at(mine), known_hosts=(str(mine), str(more)), global_known_hosts=(str(everybodys), "/nonexistent")
    )
    for file in (more, everybodys):
        file.write_text(line("10.0.0.1", KEYS[0]))
        assert judge(target, record(target), KEYS[0]) == "good", file
        file.unlink()
    everybodys.write_text(f"@revoked {line('*', KEYS[0])}")
    save_key(target, KEYS[0])
    assert judge(target, record(target), KEYS[0]) == "revoked"
    assert mine.exists() and not more.exists()


def test_a_replaced_key_is_removed_from_every_file(tmp_path: Path) -> None:
    """Otherwise, connections would still accept the earlier key."""
    mine, more, same = (tmp_path / name for name in ("mine", "more", "same"))
    other = line("10.0.0.2", KEYS[0])
    more.write_text(f"{line('10.0.0.1', KEYS[0])}\n{other}\n")
    more.chmod(0o644)
    same.symlink_to(mine)
    (loop := tmp_path / "loop").symlink_to(loop)
    names = (mine, more, same, loop, tmp_path / "missing", Path("/dev/null"))
    target = replace(at(mine), known_hosts=tuple(map(str, names)))
    assert judge(target, record(target), KEYS[1]) == "changed"
    assert save_key(target, KEYS[1]) == mine
    assert judge(target, record(target), KEYS[1]) == "good"
    assert judge(target, record(target), KEYS[0]) == "changed"
    assert more.read_text() == f"{other}\n" and more.stat().st_mode & 0o777 == 0o644
    assert same.is_symlink() and not (tmp_path / "missing").exists()


def test_other_files_without_keys_of_the_host_stay_as_they_are(tmp_path: Path) -> None:
    mine, more = tmp_path / "mine", tmp_path / "more"
    more.write_text(text := f"{line('10.0.0.*', KEYS[0])}\n@revoked {line('10.0.0.1', KEYS[2])}")
    save_key(replace(at(mine), known_hosts=(str(mine), str(more))), KEYS[1])
    assert more.read_text() == text


def test_a_file_of_the_administrator_does_not_prevent_a_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    shared.write_text(old := f"{line('10.0.0.1', KEYS[0])}\n")
    shared.chmod(0o444)
    # Root can write every file.
    monkeypatch.setattr(os, "access", lambda path, mode: path != shared.resolve())
    save_key(replace(at(mine), known_hosts=(str(mine), str(shared))), KEYS[1])
    assert shared.read_text() == old and line("10.0.0.1", KEYS[1]) in mine.read_text()


def test_without_a_file_nothing_is_recorded() -> None:
    with pytest.raises(Unreachable, match="UserKnownHostsFile none") as caught:
        save_key(Target("gpu1", "10.0.0.1"), KEYS[0])
    assert "known_hosts:" in caught.value.fix


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_only_a_regular_file_is_replaced(tmp_path: Path, kind: str) -> None:
    """As root, recording a key in /dev/null would replace the device."""
    path = tmp_path / "known_hosts"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe" if kind == "link" else path)
    if kind == "link":
        path.symlink_to(tmp_path / "pipe")
    with pytest.raises(Unreachable, match="known_hosts is the file for SSH host keys, but not") as caught:
        save_key(at(path), KEYS[0])
    assert "known_hosts:" in caught.value.fix
    assert not path.is_file() and path.is_symlink() == (kind == "link")


def test_only_keys_of_the_same_name_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    others = [
        "# mine",
        "",
        line("10.0.0.2", KEYS[0]),
        line("[10.0.0.1]:2222", KEYS[0]),
        line("10.0.0.*", KEYS[2]),
        f"@cert-authority * {RSA}",
        f"@revoked {line('10.0.0.1', KEYS[2])}",
        "one-word",
        "10.0.0.1 some-new-kind AAAAC3NzaC1lZDI1NTE5",
        f"{line('10.0.0.3', KEYS[0])} comment\x0b{line('10.0.0.1', KEYS[2])}",
        f"{line('10.0.0.4', KEYS[0])} comment\u2028{line('10.0.0.1', KEYS[2])}",
    ]
    # A key of another kind would still be accepted after --replace.
    replaced = [line("10.0.0.1", KEYS[0]), f"10.0.0.1 {ED25519}", "10.0.0.1 ssh-dss AAAAB3NzaC1kc3M= comment"]
    # Without its line, another host would be new, not changed.
    shared = f" {line('gpu2,10.0.0.1,GPU3', KEYS[2])} of  all"
    path.write_text("\n".join([shared, *others[:3], *replaced, *others[3:]]) + "\n")
    others.insert(0, f" {line('gpu2,GPU3', KEYS[2])} of  all")
    path.chmod(0o644)
    save_key(at(path), KEYS[1])
    assert path.read_text().split("\n") == [*others, line("10.0.0.1", KEYS[1]), ""]
    plain = path.read_text().replace(line("10.0.0.*", KEYS[2]), "").replace("@revoked", "#")
    assert verdict(plain, key=KEYS[2]) == "changed", "as with ssh, comments contain no keys"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_two_commands_that_record_keys_at_once_lose_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "known_hosts"
    waits = threading.Event()
    other = threading.Thread(target=save_key, args=(replace(at(path), host="10.0.0.2"), KEYS[1]))

    def write_whole(*args: Any) -> None:
        if not waits.is_set():
            other.start()
            assert waits.wait(PATIENCE_S), "the second command must wait for the first"
        files.write_whole(*args)

    monkeypatch.setattr(host_keys, "locked", lambda path, waiting: files.locked(path, waits.set))
    monkeypatch.setattr(host_keys, "write_whole", write_whole)
    save_key(at(path), KEYS[0])
    other.join(PATIENCE_S)
    assert path.read_text().splitlines() == [line("10.0.0.1", KEYS[0]), line("10.0.0.2", KEYS[1])]
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_recorded_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "known_hosts"
    save_key(at(path), KEYS[0])
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ToolkitError) as caught:
        save_key(at(path), KEYS[1])
    assert caught.value.what == f"cannot write {path}: No space left on device"
    assert caught.value.fix.startswith("df -h ")
    assert path.read_text() == line("10.0.0.1", KEYS[0]) + "\n" and list(tmp_path.iterdir()) == [path]


def test_recording_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    save_key(at(path), KEYS[0])
    before = path.read_text()
    save_key(at(path), KEYS[0])
    assert path.read_text() == before


def test_hashed_entries_are_replaced_too(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    mine, other = line(hashed("10.0.0.1"), KEYS[0]), line(hashed("10.0.0.2"), KEYS[0])
    path.write_text(f"{mine}\n{other}\n")
    save_key(at(path), KEYS[1])
    assert path.read_text().splitlines() == [other, line("10.0.0.1", KEYS[1])]


def test_comments_in_another_encoding_come_out_as_they_went_in(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    foreign = line("10.0.0.2", KEYS[0]).encode() + b" \xfcbung\n"
    path.write_bytes(foreign)
    save_key(at(path), KEYS[1])
    assert path.read_bytes() == foreign + line("10.0.0.1", KEYS[1]).encode() + b"\n"
    assert judge(at(path), record(at(path)), KEYS[1]) == "good"


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


# RevokedHostKeys


def test_a_list_of_revoked_keys(tmp_path: Path) -> None:
    revoked, path = tmp_path / "revoked", tmp_path / "known_hosts"
    revoked.write_text(f"# gone\n{KEYS[0].get_name()} {KEYS[0].get_base64()} old\n")
    path.write_text(f"{line('10.0.0.1', KEYS[0])}\n{line('10.0.0.1', KEYS[1])}\n")
    target = replace(at(path), revoked_keys=str(revoked))
    assert judge(target, record(target), KEYS[0]) == "revoked"
    assert judge(target, record(target), KEYS[1]) == "good"
    assert parse_revoked_keys(revoked.read_text()) == {KEYS[0].get_base64()}


@pytest.mark.parametrize("content", [None, b"SSHKRL\n\0\0\0\0\1"])
def test_a_list_of_revoked_keys_that_cannot_be_read_lets_no_key_pass(
    tmp_path: Path, content: bytes | None
) -> None:
    revoked, path = tmp_path / "revoked", tmp_path / "known_hosts"
    if content is not None:
        revoked.write_bytes(content)
    path.write_text(line("10.0.0.1", KEYS[0]))
    target = replace(at(path), revoked_keys=str(revoked))
    with pytest.raises(Unreachable, match="RevokedHostKeys"):
        judge(target, record(target), KEYS[0])


# The kind of key that is asked for


class FakeSecurity:
    def __init__(self) -> None:
        self.key_types = ("ecdsa-sha2-nistp256", "ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256")


class FakeTransport:
    def __init__(self) -> None:
        self.security = FakeSecurity()

    def get_security_options(self) -> FakeSecurity:
        return self.security


@pytest.mark.parametrize(
    ("recorded", "first"),
    [
        ("", ["ssh-ed25519"]),
        (f"10.0.0.1 {ED25519}", ["ssh-ed25519"]),
        (line("10.0.0.1", KEYS[0]), [KIND]),
        (f"10.0.0.1 {RSA}", ["rsa-sha2-512", "rsa-sha2-256"]),
        (f"10.0.0.1 {RSA}\n10.0.0.1 {ED25519}", ["rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519"]),
    ],
)
def test_kinds_on_record_are_asked_for_first(recorded: str, first: list[str]) -> None:
    transport: Any = FakeTransport()
    prefer_recorded(transport, record_of(parse_known_hosts(recorded), names_of("10.0.0.1", 22)))
    assert list(transport.security.key_types[: len(first)]) == first
    assert set(transport.security.key_types) == set(FakeSecurity().key_types)


def test_rsa_here_is_an_rsa_key() -> None:
    assert base64.b64decode(RSA.split()[1] + "=" * (-len(RSA.split()[1]) % 4))[4:11] == b"ssh-rsa"
