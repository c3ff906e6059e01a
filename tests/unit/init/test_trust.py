"""SSH host keys of hosts: which are queried, and which known_hosts can distinguish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paramiko
import pytest

from toolkit.cli.trust import settle
from toolkit.errors import ToolkitError, Unreachable
from toolkit.hostsfile.parse import parse_inventory
from toolkit.init import trust
from toolkit.remote.connect import Link
from toolkit.remote.known_hosts import Verdict
from toolkit.remote.ssh_config import Target

HOSTS = """\
cluster: demo
image: x:1
hosts:
  gpu1: {address: 10.0.0.5, jump: gate-a}
  gpu2: {address: 10.0.0.5, jump: gate-b}
  gpu3: {address: 10.0.0.6, jump: gate-b}
"""


def look_at_hosts(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], verdicts: dict[str, Verdict]
) -> list[str]:
    """Let hosts present these keys, by name; hosts without a key do not answer. Return the queried hosts."""
    queried: list[str] = []

    def target_of(inventory: Any, name: str) -> Target:
        host = inventory.host(name)
        gate = Target(f"{name} (jump host {host.jump})", host.jump, is_jump=True)
        return Target(name, host.address, jump=(gate,))

    def look_at(target: Target, gateways: object) -> trust.ShownKey:
        queried.append(target.name)
        name = target.host if target.is_jump else target.name
        if name not in keys:
            raise Unreachable("off", "x", target.name)
        verdict = verdicts.get(name, "good" if target.is_jump else "unknown")
        return trust.ShownKey(target.name, target, "ssh-ed25519", keys[name], verdict=verdict)

    monkeypatch.setattr(trust, "target_of", target_of)
    monkeypatch.setattr(trust, "_look_at", look_at)
    return queried


GATES = {"gate-a": "a", "gate-b": "b"}


@pytest.mark.parametrize(
    ("keys", "verdicts", "failed"),
    [
        ({"gpu1": "1", "gpu2": "2"}, {}, ["gpu1", "gpu2"]),
        ({"gpu1": "1", "gpu2": "2"}, {"gpu1": "changed", "gpu2": "good"}, ["gpu1"]),
        ({"gpu1": "1", "gpu2": "2"}, {"gpu1": "good", "gpu2": "good"}, []),  # the user recorded both keys
        ({"gpu1": "1", "gpu2": "1"}, {}, []),
        ({"gpu1": "1"}, {}, ["gpu2"]),
        ({"gpu1": "1"}, {"gpu1": "changed"}, ["gpu1", "gpu2"]),
    ],
)
def test_hosts_with_one_private_address_behind_different_jump_hosts_are_distinguished(
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, str],
    verdicts: dict[str, Verdict],
    failed: list[str],
) -> None:
    look_at_hosts(monkeypatch, {**GATES, "gpu3": "3", **keys}, verdicts)
    inventory = parse_inventory(HOSTS, "hosts.yaml")
    shown = {found.host: found for found in trust.shown_keys(inventory, inventory.names)}
    assert set(shown) >= {"gpu1", "gpu2", "gpu3"}, "no host is left out silently"
    assert [host for host, found in shown.items() if found.failure] == failed
    conflict = shown["gpu1"]
    if failed == ["gpu1", "gpu2"]:
        assert "cannot distinguish the SSH host keys of gpu1 and gpu2" in conflict.error
        assert "both hosts have the name 10.0.0.5" in conflict.error
        assert "add Host gpu1 with HostName 10.0.0.5 and HostKeyAlias gpu1" in conflict.fix
        assert "set hosts/gpu1/address to gpu1" in conflict.fix


def test_a_host_is_compared_with_hosts_that_the_command_does_not_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise --replace would delete the recorded key of the other host."""
    keys = {**GATES, "gpu1": "1", "gpu2": "2", "gpu3": "3"}
    queried = look_at_hosts(monkeypatch, keys, {"gpu1": "changed", "gpu2": "good"})
    shown = trust.shown_keys(parse_inventory(HOSTS, "hosts.yaml"), ("gpu1",))
    assert [found.host for found in shown] == ["gpu1 (jump host gate-a)", "gpu1"]
    assert "cannot distinguish" in shown[1].error and not shown[1].trusted
    assert "gpu3" not in queried and len(queried) == 3


def test_jump_hosts_with_one_name_need_different_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = (Target("gate-a", "gate-a"), Target("gate-b", "gate-b"))
    chains = {
        f"gpu{n}": (hop, Target(f"gpu{n} (jump host inner)", "inner", jump=(hop,), is_jump=True))
        for n, hop in enumerate(inner, 1)
    }

    def look_at(target: Target, gateways: object) -> trust.ShownKey:
        return trust.ShownKey(target.name, target, "ssh-ed25519", target.name)

    monkeypatch.setattr(
        trust, "target_of", lambda inventory, name: Target(name, name, jump=chains.get(name, ()))
    )
    monkeypatch.setattr(trust, "_look_at", look_at)
    inventory = parse_inventory("cluster: demo\nimage: x:1\nhosts: [gpu1, gpu2]\n", "hosts.yaml")
    failed = [found for found in trust.shown_keys(inventory, inventory.names) if found.failure]
    assert [found.host for found in failed] == ["gpu1 (jump host inner)", "gpu2 (jump host inner)"]
    assert "set a different HostKeyAlias for each of these jump hosts" in failed[0].fix


def test_without_a_known_hosts_file_a_key_has_no_place() -> None:
    found = trust.ShownKey("gpu1", Target("gpu1", "10.0.0.1"), "ssh-ed25519", "SHA256:x")
    with pytest.raises(ToolkitError, match="UserKnownHostsFile none"):
        found.file  # noqa: B018
    assert "recorded keys are in no file" in found.place()


def test_a_key_of_another_type_replaces_the_recorded_key_only_with_replace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise an attacker would present a type of key that is not recorded, to be taken for a new host."""
    own, other = paramiko.RSAKey.generate(2048), paramiko.ECDSAKey.generate()
    file = tmp_path / "known_hosts"
    file.write_text(f"10.0.0.1 {own.get_name()} {own.get_base64()}\n")
    before = file.read_text()
    target = Target("gpu1", "10.0.0.1", known_hosts=(str(file),))
    monkeypatch.setattr(trust, "target_of", lambda inventory, name: target)
    monkeypatch.setattr(Link, "shown_key", lambda link: other)
    inventory = parse_inventory("cluster: demo\nimage: x:1\nhosts: [gpu1]\n", "hosts.yaml")
    (found,) = trust.shown_keys(inventory, ("gpu1",))
    assert found.line().endswith(f"(CHANGED, the recorded key is ssh-rsa {own.fingerprint})")
    assert not settle(found, yes=True).trusted and file.read_text() == before
    assert settle(found, yes=True, replace=True).trusted
    assert file.read_text() == f"10.0.0.1 {other.get_name()} {other.get_base64()}\n"
    assert trust.shown_keys(inventory, ("gpu1",))[0].trusted
