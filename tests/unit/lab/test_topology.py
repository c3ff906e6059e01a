"""A practice cluster on paper: names, addresses, command lines and files."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as s

from tests.golden import check_golden
from toolkit.errors import BadInput, LabError, ToolkitError
from toolkit.hostsfile.parse import parse_inventory
from toolkit.lab import commands as cmd
from toolkit.lab import files
from toolkit.lab.engine import Found
from toolkit.lab.files import render_hosts_yaml, render_known_hosts
from toolkit.lab.lifecycle import missing
from toolkit.lab.spec import ENGINES, LabSpec
from toolkit.lab.topology import (
    LABEL_LAB_SETTINGS,
    Means,
    free_subnet,
    host_settings,
    interface_name,
    lab_hosts,
    routed_networks,
    settings_of,
)

SUBNET = "10.77.0.0/24"
FULL = Means(privileged=True, private_cgroups=True)
CGROUP_V1 = Means(privileged=True, private_cgroups=False)
POOR = Means(privileged=False, private_cgroups=False)


def spec(**changes: object) -> LabSpec:
    fields: dict[str, object] = {"name": "demo", "folder": "/work/.lab/demo", **changes}
    return LabSpec(**fields)  # type: ignore[arg-type]


def in_lines(argv: tuple[object, ...]) -> str:
    """One flag with its value a line: a change shows as one line in a diff."""
    text = ""
    for token in map(str, argv):
        text += (
            " " if not token.startswith("-") and text.rpartition("\n")[2].startswith("--") else "\n"
        ) + token
    return text.strip() + "\n"


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_engine_has_golden_command_lines(engine: str) -> None:
    lab = spec(engines=(engine,), hosts=1, rate="100mbit" if engine == "old" else "")
    host = lab_hosts(lab, SUBNET)[0]
    lines = [
        cmd.build_command(engine, "toolkit-lab-host:x", "/pkg/lab", ("https_proxy",)),
        cmd.network_command(lab, lab.network, SUBNET),
        *cmd.volume_commands(lab, host),
        *cmd.start_commands(lab, host, POOR, "toolkit-lab-host:x"),
        cmd.ready_command(host, 90, "ssh-ed25519 AAAA\n"),
        cmd.report_command(host.container),
    ]
    check_golden(f"lab/{engine}.txt", "\n".join(in_lines(line.argv) for line in lines))


@pytest.mark.parametrize(("title", "means"), [("full", FULL), ("cgroup-v1", CGROUP_V1), ("poor", POOR)])
def test_rights_follow_what_the_machine_can_do(title: str, means: Means) -> None:
    lab = spec()
    create, start = cmd.start_commands(lab, lab_hosts(lab, SUBNET)[1], means, "i")
    check_golden(f"lab/run-{title}.txt", in_lines(create.argv))
    assert start.argv == ("docker", "start", "toolkit-lab-demo-box2")


def test_a_management_card_is_a_second_network_by_which_ssh_comes_in() -> None:
    lab = spec(management="100mbit")
    assert lab.networks == ("toolkit-lab-demo", "toolkit-lab-demo-management")
    hosts = lab_hosts(lab, SUBNET, "10.77.9.0/24")
    assert [h.address for h in hosts] == ["10.77.9.11", "10.77.9.12"]
    # One name leads into the data network on one host, into the management network on the other.
    assert [[c.interface for c in h.cards] for h in hosts] == [["eth0", "enp3s0"], ["enp3s0", "ens5"]]
    lines = cmd.start_commands(lab, hosts[0], FULL, "i")
    check_golden("lab/start-management.txt", "\n".join(in_lines(line.argv) for line in lines))
    assert 'address: "10.77.9.11"' in render_hosts_yaml(lab, hosts)
    assert settings_of({LABEL_LAB_SETTINGS: host_settings(lab, hosts[0])})["management"] == "100mbit"


def test_cables_are_networks_of_two_addresses_by_which_ssh_does_not_come_in() -> None:
    lab = spec(cables=2, management="100mbit")
    assert lab.networks[2:] == ("toolkit-lab-demo-cable1", "toolkit-lab-demo-cable2")
    hosts = lab_hosts(lab, SUBNET, "10.77.9.0/24", "10.77.10.0/24", "10.77.11.0/24")
    assert [h.address for h in hosts] == ["10.77.9.11", "10.77.9.12"]
    for number, name in enumerate(("enp1s0f0np0", "enP2p1s0f0np0"), 10):
        ends = [next(c for c in host.cards if c.interface == name) for host in hosts]
        assert [c.address for c in ends] == [f"10.77.{number}.13", f"10.77.{number}.14"]
        assert len({ipaddress.IPv4Interface(f"{c.address}/{c.prefix}").network for c in ends}) == 1
    lines = [
        cmd.network_command(lab, lab.networks[2], "10.77.10.0/24"),
        *cmd.start_commands(lab, hosts[1], FULL, "i"),
    ]
    check_golden("lab/start-cables.txt", "\n".join(in_lines(line.argv) for line in lines))
    assert settings_of({LABEL_LAB_SETTINGS: host_settings(lab, hosts[0])})["cables"] == "2"
    plain = lab_hosts(spec(cables=1), SUBNET, "10.77.10.0/24")[0]
    assert (plain.address, plain.interface) == ("10.77.0.11", "eth0")


def test_files() -> None:
    lab = spec(hosts=3, slots=2, user="root")
    hosts = lab_hosts(lab, SUBNET)
    text = render_hosts_yaml(lab, hosts)
    check_golden("lab/hosts.yaml", text)
    inventory = parse_inventory(text, "hosts.yaml")
    assert inventory.names == ("box1", "box2", "box3")
    assert inventory.main == "box1"
    assert inventory.host("box2").slots == 2
    assert inventory.known_hosts == "/work/.lab/demo/known_hosts"
    assert render_known_hosts([("10.0.0.1", "ssh-ed25519 A")]) == "10.0.0.1 ssh-ed25519 A\n"


@pytest.mark.parametrize("folder", ["/home/\U0001f680 train/.lab/x", "/home/é/.lab/x", '/home/"a"\\b/$x'])
def test_a_hosts_file_in_any_folder_is_read_back(folder: str) -> None:
    lab = spec(folder=folder)
    inventory = parse_inventory(render_hosts_yaml(lab, lab_hosts(lab, SUBNET)), "hosts.yaml")
    assert inventory.known_hosts == f"{folder}/known_hosts"
    assert {host.identity_file for host in inventory.hosts} == {f"{folder}/id_ed25519"}


def changed_by(folder: Path, text: str) -> bool:
    return files.put_hosts_file(folder, text).changed


def test_an_unedited_hosts_file_is_replaced(tmp_path: Path) -> None:
    assert [changed_by(tmp_path, text) for text in ("a\n", "a\n", "b\n")] == [True, False, True]
    assert (tmp_path / "hosts.yaml").read_text() == "b\n" and not (tmp_path / "hosts.new.yaml").exists()


def test_an_edited_hosts_file_with_the_same_settings_needs_no_other(tmp_path: Path) -> None:
    files.put_hosts_file(tmp_path, "a\n")
    (tmp_path / "hosts.yaml").write_text("a\nedited\n")
    for _ in range(2):
        assert files.put_hosts_file(tmp_path, "a\n") == files.HostsFile(tmp_path / "hosts.yaml", True, False)
        assert not (tmp_path / "hosts.new.yaml").exists()
    assert changed_by(tmp_path, "b\n")
    # Settings that return are new again, because the file beside the edited one has others.
    assert changed_by(tmp_path, "a\n") and not changed_by(tmp_path, "a\n")
    assert (tmp_path / "hosts.new.yaml").read_text() == "a\n"


@pytest.mark.parametrize("again", ["b\n", "c\n"])
def test_a_hosts_file_that_was_edited_is_kept(tmp_path: Path, again: str) -> None:
    files.put_hosts_file(tmp_path, "a\n")
    about = (tmp_path / "hosts.yaml").stat()
    (tmp_path / "hosts.yaml").write_text("A\n")
    os.utime(tmp_path / "hosts.yaml", ns=(about.st_atime_ns, about.st_mtime_ns))
    for changed in (True, False):
        put = files.put_hosts_file(tmp_path, again)
        assert (put.path, put.edited, put.changed) == (tmp_path / "hosts.new.yaml", True, changed)
    assert (tmp_path / "hosts.yaml").read_text() == "A\n"
    assert (tmp_path / "hosts.new.yaml").read_text() == again


def test_a_hosts_file_that_is_as_written_again_is_replaced(tmp_path: Path) -> None:
    files.put_hosts_file(tmp_path, "a\n")
    (tmp_path / "hosts.yaml").write_text("edited\n")
    files.put_hosts_file(tmp_path, "b\n")
    (tmp_path / "hosts.new.yaml").replace(tmp_path / "hosts.yaml")
    assert changed_by(tmp_path, "c\n")
    assert (tmp_path / "hosts.yaml").read_text() == "c\n" and not (tmp_path / "hosts.new.yaml").exists()


def _full(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_breaks_no_file(tmp_path: Path) -> None:
    files.claim(tmp_path, "x")
    files.put_hosts_file(tmp_path, "a\n")
    for write in (files.ensure_key, lambda folder: files.put_hosts_file(folder, "b\n")):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ToolkitError) as caught:
            patch.setattr(Path, "replace", _full)
            write(tmp_path)
        assert "No space left on device" in caught.value.what and caught.value.fix.startswith("df -h ")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".toolkit-lab",
        ".toolkit-lab-written",
        "hosts.yaml",
    ]
    assert (tmp_path / "hosts.yaml").read_text() == "a\n"
    put = files.put_hosts_file(tmp_path, "b\n")
    assert not put.edited and put.changed and put.path.read_text() == "b\n"


def test_an_empty_hosts_file_counts_as_missing(tmp_path: Path) -> None:
    files.put_hosts_file(tmp_path, "a\n")
    (tmp_path / "hosts.yaml").write_text("")
    put = files.put_hosts_file(tmp_path, "a\n")
    assert not put.edited and put.changed and put.path.read_text() == "a\n"


@pytest.mark.parametrize("empty", [("id_ed25519.pub",), ("id_ed25519",), ("id_ed25519", "id_ed25519.pub")])
def test_keys_that_a_power_failure_emptied_are_repaired(tmp_path: Path, empty: tuple[str, ...]) -> None:
    files.claim(tmp_path, "x")
    before, _ = files.ensure_key(tmp_path)
    for name in empty:
        (tmp_path / name).write_text("")
    line, new = files.ensure_key(tmp_path)
    assert new and line.startswith("ssh-ed25519 ") and line.endswith(" toolkit-lab\n")
    assert (line == before) == ("id_ed25519" not in empty)
    private = s.load_ssh_private_key((tmp_path / "id_ed25519").read_bytes(), None)
    derived = private.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode()
    assert line.startswith(f"{derived} ")
    assert (tmp_path / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert files.ensure_key(tmp_path) == (line, False)


def test_a_key_of_the_user_is_kept(tmp_path: Path) -> None:
    line, _ = files.ensure_key(tmp_path)
    key = s.load_ssh_private_key((tmp_path / "id_ed25519").read_bytes(), None)
    for form, secret in (
        (s.PrivateFormat.OpenSSH, s.BestAvailableEncryption(b"x")),
        (s.PrivateFormat.PKCS8, s.NoEncryption()),
    ):
        text = key.private_bytes(s.Encoding.PEM, form, secret)
        (tmp_path / "id_ed25519").write_bytes(text)
        assert files.ensure_key(tmp_path) == (line, False)
        assert (tmp_path / "id_ed25519").read_bytes() == text


def test_a_folder_with_an_empty_mark_is_used_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    files.claim(folder, "x")
    files.ensure_key(folder)
    (folder / ".toolkit-lab").write_text("")
    assert not files.claim(folder, "x") and (folder / ".toolkit-lab").read_text() == "x\n"
    (folder / ".toolkit-lab").write_text("")
    assert files.remove_files(folder, "x") and not folder.exists()


def test_a_folder_that_cannot_be_used_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match=r"cannot use .*/file/x.*: Not a directory") as caught:
        files.claim(tmp_path / "file" / "x", "x")
    assert caught.value.fix == "set --folder to another folder"

    def refuse(path: Path, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    folder = tmp_path / "alice" / "lab"
    files.claim(folder, "x")
    for call in (files.claim, files.remove_files):
        with monkeypatch.context() as patch, pytest.raises(LabError) as caught:
            patch.setattr(Path, "exists", refuse)
            call(folder, "x")
        place = folder / ".toolkit-lab"
        assert caught.value.what == f"cannot use {place} for a practice cluster: Permission denied"
    assert caught.value.fix == f"as the owner of {folder}: toolkit lab down --name x"


def test_the_owner_of_a_folder_is_found_also_above_a_closed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "alice" / ".lab" / "lab"
    folder.mkdir(parents=True)
    assert files.foreign_owner(str(folder)) == "" and files.foreign_owner("") == ""
    monkeypatch.setattr(Path, "owner", lambda path: f"owner of {path.name}")
    own, real = os.geteuid(), Path.stat
    monkeypatch.setattr("os.geteuid", lambda: own + 1)
    # CIFS and 9p report a fixed owner.
    assert files.foreign_owner(str(folder)) == "", "a folder that the user can write is the user's"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert files.foreign_owner(str(folder)) == "owner of lab"
    assert files.foreign_owner(str(folder / "gone")) == "", "the files of the cluster were removed"

    def stat(path: Path, **options: Any) -> os.stat_result:
        if path.is_relative_to(folder.parent):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        owner = files.foreign_owner(str(folder))
    assert owner == "owner of alice"
    monkeypatch.setattr("os.access", lambda path, mode: True)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    if own == 0:
        os.chown(folder, 1, -1)
    assert files.foreign_owner(str(folder)) == "owner of lab", "root can write in any folder"


def test_a_hosts_file_of_an_older_toolkit_counts_as_edited_unless_it_is_equal(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("a\n")
    assert files.put_hosts_file(tmp_path, "b\n").edited
    assert not files.put_hosts_file(tmp_path, "a\n").edited
    assert changed_by(tmp_path, "b\n") and (tmp_path / "hosts.yaml").read_text() == "b\n"


def test_what_a_lab_wrote_goes_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    files.claim(folder, "demo")
    files.put_hosts_file(folder, "a\n")
    (folder / "hosts.yaml").write_text("edited\n")
    files.put_hosts_file(folder, "a\n")
    assert files.remove_files(folder, "demo") and not folder.exists()


def test_engines_go_round_and_volumes_tell_them_apart() -> None:
    hosts = lab_hosts(spec(hosts=3, engines=("old", "containerd")), SUBNET)
    assert [h.engine for h in hosts] == ["old", "containerd", "old"]
    shared = ("toolkit-lab-demo-shared", "/srv/shared")
    assert hosts[0].volumes == (("toolkit-lab-demo-box1-old-docker", "/var/lib/docker"), shared)
    assert [path for _, path in hosts[1].volumes[:-1]] == ["/var/lib/docker", "/var/lib/containerd"]
    assert hosts[1].volumes[-1] == shared, "the same one on every host"


def test_interfaces_differ_or_not() -> None:
    names = [interface_name(i, "differ") for i in range(200)]
    assert len(set(names)) == 200
    assert names[:2] == ["eth0", "enp3s0"]
    assert max(map(len, names)) <= 15  # the kernel's limit
    assert {interface_name(i, "same") for i in range(200)} == {"eth0"}


def test_settings_are_read_back_from_labels() -> None:
    lab = spec(rate="1gbit")
    host = lab_hosts(lab, SUBNET)[1]
    settings = settings_of({LABEL_LAB_SETTINGS: host_settings(lab, host)})
    assert settings == {
        "engine": "new",
        "interface": "enp3s0",
        "rate": "1gbit",
        "shared": "/srv/shared",
        "user": "trainer",
    }
    assert settings_of({}) == settings_of({LABEL_LAB_SETTINGS: "[]"}) == {}


def test_bad_specs_name_every_fault() -> None:
    with pytest.raises(BadInput) as caught:
        spec(
            name="Lab_1", hosts=0, engines=("newest",), rate="fast", management="slow",
            interfaces="x", user="me", slots=0, cables=5,
        )  # fmt: skip
    assert [p.path for p in caught.value.problems] == [
        "name", "count", "engine", "rate", "management", "interfaces", "user", "slots", "cables", "cables",
    ]  # fmt: skip
    with pytest.raises(BadInput):
        spec(engines=())
    with pytest.raises(BadInput):
        spec(hosts=201)
    for folder in ("/home/caf\udce9/.lab/x", "/home/a\nb/.lab/x"):
        with pytest.raises(BadInput, match="should contain only printable characters") as caught:
            spec(folder=folder)
        assert caught.value.problems[0].path == "folder"


def test_most_hosts_fit_into_the_subnet() -> None:
    hosts = lab_hosts(spec(hosts=200), SUBNET)
    assert hosts[-1].address == "10.77.0.210"


def test_free_subnet_goes_round_what_is_taken() -> None:
    assert free_subnet([]) == "10.77.0.0/24"
    assert free_subnet(["172.17.0.0/16", "10.77.0.0/23"], ["10.77.2.0/24"]) == "10.77.3.0/24"
    with pytest.raises(BadInput):
        free_subnet(["10.0.0.0/8"])


def test_routed_networks_leaves_out_the_default_route() -> None:
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    table = (
        head
        + "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        + "br-1\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        + "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    )
    assert routed_networks(table) == ("10.77.0.0/24", "172.17.0.0/16")
    assert routed_networks(head) == ()


def test_host_image_changes_with_its_recipe_and_is_shared_by_the_stores() -> None:
    assert cmd.image_reference("new", b"a") == cmd.image_reference("containerd", b"a")
    assert len({cmd.image_reference(e, r) for e in ("old", "new") for r in (b"a", b"b")}) == 4


def test_slow_links_keep_a_bucket_that_holds_a_packet() -> None:
    def burst(rate: str) -> str:
        lab = spec(rate=rate)
        argv = cmd.start_commands(lab, lab_hosts(lab, SUBNET)[0], FULL, "i")[0].argv
        return next(str(t).rpartition(",")[2] for t in argv if str(t).startswith("TOOLKIT_LAB_CARDS"))

    assert burst("1mbit") == "65536"
    assert burst("10gbit") == "12500000"


def test_the_key_is_for_the_owner_only_and_made_once(tmp_path: Path) -> None:
    folder = tmp_path / ".lab" / "x"
    assert files.claim(folder, "x")
    assert not files.claim(folder, "x")
    line, new = files.ensure_key(folder)
    assert new and line.startswith("ssh-ed25519 ")
    assert (folder / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert files.ensure_key(folder) == (line, False)
    assert files.remove_files(folder, "x")
    assert not folder.parent.exists()
    assert tmp_path.exists()


def test_a_folder_that_keeps_other_files_can_become_a_lab_s_again(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    files.claim(folder, "x")
    files.ensure_key(folder)
    (folder / "report.json").write_text("{}")
    assert files.remove_files(folder, "x")
    assert (folder / "report.json").exists() and not (folder / "id_ed25519").exists()
    assert not files.remove_files(folder, "x"), "nothing is left to remove"
    files.claim(folder, "x")
    (folder / "report.json").unlink()
    assert files.remove_files(folder, "x") and not folder.exists()


def test_a_folder_with_somebody_elses_keys_never_becomes_a_labs(tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("mine")
    with pytest.raises(LabError):
        files.claim(tmp_path, "x")
    assert not files.remove_files(tmp_path, "x")
    assert (tmp_path / "id_ed25519").read_text() == "mine"


def test_a_folder_of_another_lab_is_left_alone(tmp_path: Path) -> None:
    files.claim(tmp_path, "one")
    with pytest.raises(LabError):
        files.claim(tmp_path, "two")
    assert not files.remove_files(tmp_path, "two")
    assert json.dumps(sorted(p.name for p in tmp_path.iterdir())) == '[".toolkit-lab"]'


def test_what_a_new_lab_would_make_is_told_once() -> None:
    lines = missing(spec(hosts=3), Found({}, (), (), ()))
    assert len(set(lines)) == len(lines)
    assert [line for line in lines if line.endswith("-shared")] == ["create volume toolkit-lab-demo-shared"]
    assert sum(line.startswith("create box") for line in lines) == 3
    assert lines[-1] == "write /work/.lab/demo/hosts.yaml"


def test_the_preview_names_the_file_beside_an_edited_one(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("edited\n")
    lines = missing(spec(folder=str(tmp_path)), Found({}, (), (), ()))
    assert lines[-1] == f"write {tmp_path}/hosts.yaml, or hosts.new.yaml if you edited hosts.yaml"
