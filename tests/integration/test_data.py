"""Data sets over real relays of this machine: the programs that hosts run, in folders of their own."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from pathlib import Path

import pytest

from tests.e2e import waiting
from tests.unit.data_here import DataHost, listing, make_hosts, remove, send
from toolkit.protocol import shards

MIB = 2**20


@pytest.fixture(autouse=True)
def shards_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAST", "MOST", "PIECE"):
        monkeypatch.setattr(shards, name, getattr(shards, name) // 8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Small files in great numbers, one that goes in pieces, links, odd names and modes."""
    folder = tmp_path / "source"
    for number in range(600):
        path = folder / f"train/{number % 7}/{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(10_000 + number))
    (folder / "big.bin").write_bytes(os.urandom(5 * MIB + 5))
    (folder / "empty").mkdir()
    (folder / "no bytes").write_bytes(b"")
    (folder / "größe\n.txt").write_text("x")
    os.close(os.open(os.fsencode(folder) + b"/bad\xff", os.O_CREAT | os.O_WRONLY, 0o644))
    (folder / "label").symlink_to("train/0/0000.jpg")
    (folder / "secret").write_text("s")
    (folder / "secret").chmod(0o600)
    (folder / "run.sh").write_text("echo")
    (folder / "run.sh").chmod(0o755)
    os.utime(folder / "run.sh", ns=(10**18 + 123456789, 10**18 + 123456789))
    return folder


def arrived(source: Path, host: DataHost) -> bool:
    return listing(host.path) == listing(source) and (host.account / "mark").is_file()


def test_this_machine_sends_once_and_the_second_time_nothing(tmp_path: Path, source: Path) -> None:
    hosts = make_hosts(tmp_path, 3)
    found = send(source, *hosts)
    assert {o.status for o in found.values()} == {"ok"}, found
    assert all(arrived(source, host) for host in hosts)
    whole = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    assert sum(host.fed for host in hosts) < 1.02 * whole + 200_000
    again = send(source, *hosts)
    assert {o.status for o in again.values()} == {"skipped"}, again


def test_what_changes_here_is_sent_and_what_goes_here_goes_there(tmp_path: Path, source: Path) -> None:
    hosts = make_hosts(tmp_path, 2)
    send(source, *hosts)
    mine = hosts[0].path / "train/0/mine.txt"
    mine.write_text("not the toolkit's")
    changed = hosts[1].path / "train/1/0001.jpg"
    changed.write_text("changed there")
    (source / "train/0/0000.jpg").write_bytes(b"new")
    (source / "train/1/0001.jpg").unlink()
    shutil.rmtree(source / "train/2")
    (source / "empty").rmdir()
    (source / "empty").write_text("a file now")
    (source / "label").unlink()
    (source / "label").mkdir()
    (source / "label/x").write_text("a folder now")
    for host in hosts:
        host.fed = 0
    found = send(source, *hosts)
    assert {o.status for o in found.values()} == {"ok"}, found
    assert 0 < sum(host.fed for host in hosts) < 4 * MIB, "the large file stays where it is"
    assert mine.read_text() == "not the toolkit's"
    assert changed.read_text() == "changed there" and "that changed on the host" in found["box2"].detail
    mine.unlink()
    changed.unlink()
    assert all(arrived(source, host) for host in hosts)


def test_files_that_somebody_removed_come_back(tmp_path: Path, source: Path) -> None:
    hosts = make_hosts(tmp_path, 2)
    send(source, *hosts)
    (hosts[0].path / "train/3/0003.jpg").unlink()
    (hosts[1].path / "big.bin").unlink()
    found = send(source, *hosts)
    assert {o.status for o in found.values()} == {"ok"}, found
    assert all(arrived(source, host) for host in hosts)


@pytest.mark.parametrize("seed", range(3))
def test_hosts_that_need_different_shards_over_different_links(tmp_path: Path, seed: int) -> None:
    chance, source, hosts = random.Random(seed), tmp_path / "source", make_hosts(tmp_path, 3)
    source.mkdir()
    for number in range(6):
        (source / f"{number}").write_bytes(os.urandom(2 * MIB))
    for host in hosts:
        host.mbit = chance.choice((1000, 10000))
        host.path.mkdir(parents=True)
        for path in chance.sample(sorted(source.iterdir()), chance.randint(0, 5)):
            shutil.copy2(path, host.path)
    found = send(source, *hosts)
    assert all(arrived(source, host) for host in hosts), found


def kept(host: DataHost) -> int:
    """Bytes of the shards that are complete on the disk of a host, by its journal."""
    journal = host.account / "journal"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.is_file() else []
    return max((json.loads(line)["bytes"] for line in lines if line.startswith(b'{"whole"')), default=0)


def test_a_host_that_dies_goes_on_from_what_has_come(tmp_path: Path, source: Path) -> None:
    hosts, once = make_hosts(tmp_path, 3), threading.Lock()

    def watch(count: int) -> None:
        time.sleep(0.03)
        # A host that has something: measured speed decides which hosts this machine feeds, and a busy disk
        # when a shard is complete.
        with once:
            if sum(host.fed for host in hosts) > 8 * MIB and not any(host.cut for host in hosts):
                waiting.until("a host has a shard", lambda: any(map(kept, hosts)), pause=0.01)
                max(hosts, key=kept).die()

    for host in hosts:
        host.on_bytes = watch
    found = send(source, *hosts)
    (dead,) = (host for host in hosts if host.cut)
    for host in hosts:
        assert (host is dead) != arrived(source, host), found
    dead.cut = False
    for host in hosts:
        host.on_bytes = lambda count: None
    had, before = kept(dead), sum(host.fed for host in hosts)
    assert had > MIB / 2
    again = send(source, *hosts)
    assert all(arrived(source, host) for host in hosts), again
    whole = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    assert sum(host.fed for host in hosts) - before < 1.02 * whole + 200_000 - had


def test_what_others_wrote_is_never_written_over(tmp_path: Path, source: Path) -> None:
    host = make_hosts(tmp_path, 1)[0]
    host.path.mkdir(parents=True)
    (host.path / "big.bin").write_text("mine")
    found = send(source, host)["box1"]
    assert found.status == "failed" and "big.bin exists already" in found.detail, found
    assert (host.path / "big.bin").read_text() == "mine"
    (host.path / "big.bin").unlink()
    (host.path / "mine").write_text("mine")
    assert send(source, host)["box1"].status == "ok"
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(host.path / "train/0")
    (host.path / "train/0").symlink_to(outside)
    found = send(source, host)["box1"]
    assert found.status == "failed" and "train/0 is a link" in found.detail, found
    assert not list(outside.iterdir()), "nothing is written through a link"
    (host.path / "train/0").unlink()
    assert send(source, host)["box1"].status == "ok"
    done = remove(host)
    assert done.status == "ok" and list(host.path.iterdir()) == [host.path / "mine"], done


def test_all_that_came_goes(tmp_path: Path, source: Path) -> None:
    host = make_hosts(tmp_path, 1)[0]
    send(source, host)
    assert remove(host, keep=True).status == "ok" and not list(host.path.iterdir())
    assert remove(host, keep=True).status == "skipped"
    assert remove(host).status == "ok" and not host.path.exists() and not host.account.exists()
    assert remove(host).status == "skipped"


def test_data_without_an_account_does_not_travel_again(tmp_path: Path, source: Path) -> None:
    host = make_hosts(tmp_path, 1)[0]
    send(source, host)
    shutil.rmtree(host.account)
    host.fed = 0
    found = send(source, host)["box1"]
    assert found.status == "ok" and not host.fed and arrived(source, host), found
    assert send(source, host)["box1"].status == "skipped"


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path, source: Path) -> None:
    host = make_hosts(tmp_path, 1)[0]

    def watch(count: int) -> None:
        time.sleep(0.01)
        if count < 2 * MIB:
            (source / "train/6/0006.jpg").write_bytes(b"other")

    host.on_bytes = watch
    found = send(source, host)["box1"]
    assert found.status == "failed" and "has changed since" in found.detail, found
    assert not (host.account / "mark").exists()


def test_a_set_that_is_too_large_is_refused_before_anything_is_sent(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "PIECE", 2**32)
    host = make_hosts(tmp_path, 1)[0]
    with (source / "sparse").open("wb") as file:
        file.truncate(2**43)
    found = send(source, host)["box1"]
    assert found.status == "failed" and "too small" in found.detail, found
    assert not host.fed and "df -h" in found.fix
