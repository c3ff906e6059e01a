"""Data sets: shards, plans, what hosts say of them, who may start a job; what runs on hosts, run here."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit import cluster_world as world
from tests.unit.container_world import INSIDE
from tests.unit.data_here import listing, make_hosts, remove, send
from tests.unit.hosts_here import HostHere
from toolkit.cluster.connect import Reply
from toolkit.cluster.containers import cluster_container
from toolkit.container.transfer.unpack import SYNC_BYTES, Shelf
from toolkit.core.command import Command, Result
from toolkit.data.data_sets import read_data, refuse_incomplete_data, require_data
from toolkit.data.plan import (
    DataRow,
    HeldData,
    account_of,
    data_rows,
    data_text,
    lacking,
    parse_held,
    plan_remove,
    question,
)
from toolkit.data.send import _failure
from toolkit.data.source import DataPayload, Need, read_content, read_shard
from toolkit.errors import BadInput, NotReady, ToolkitError
from toolkit.hostsfile.parse import parse_inventory
from toolkit.lifecycle.up import plan_up
from toolkit.plan.steps import RemoveData, Run, SendData
from toolkit.protocol import shards
from toolkit.protocol.shards import LEAST, MOST, PIECE, Content, Entry, pack
from toolkit.transfer.host import data_program, data_relay_program

TEXT = world.HOSTS + world.DATA


def small(count: int, size: int = 100_000) -> list[Entry]:
    return [["f", f"{number:06}.jpg", 0o644, 10**18, size] for number in range(count)]


def names(content: Content) -> set[str]:
    return {shard.name for shard in content.shards}


# Shards


@pytest.mark.parametrize("size", [0, 1_000, 100_000, 5_000_000, 20_000_000])
def test_shards_hold_everything_once_and_are_of_a_size(size: int) -> None:
    entries = small(3_000, size)
    content = pack(entries)
    found = [entry for shard in content.shards for entry in json.loads(shard.entries)]
    assert found == entries and content.size == 3_000 * size
    assert all(shard.size <= MOST + 300_000 for shard in content.shards)
    assert all(shard.size > LEAST / 4 for shard in content.shards[:-1])


def test_a_large_file_goes_in_pieces_that_cover_it() -> None:
    (*pieces,) = pack([["f", "one", 0o600, 7, MOST + 1]]).shards
    found = [json.loads(piece.entries)[0] for piece in pieces]
    assert [entry[5] for entry in found] == [0, PIECE, 2 * PIECE]
    assert sum(entry[6] for entry in found) == MOST + 1 and {entry[4] for entry in found} == {MOST + 1}


@pytest.mark.parametrize("change", ["new time", "longer", "gone", "one more"])
def test_a_change_alters_few_shards(change: str) -> None:
    entries = small(10_000)
    before = pack(entries)
    if change == "new time":
        entries[5_000] = [*entries[5_000][:3], 1, 100_000]
    elif change == "longer":
        entries[5_000] = [*entries[5_000][:4], 900_000]
    elif change == "gone":
        del entries[5_000]
    else:
        entries.insert(5_000, ["f", "004999.jpg.x", 0o644, 1, 100_000])
    after = pack(entries)
    assert 1 <= len(names(after) - names(before)) <= 4 < len(after.shards) // 10
    assert after.identity != before.identity


def test_the_identity_is_of_the_set_and_of_nothing_else() -> None:
    assert pack(small(100)).identity == pack(small(100)).identity
    assert pack([]).identity != pack([["d", "a", 0o755]]).identity


# On this machine


def test_a_folder_and_a_file_are_read_and_nothing_else_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "b").mkdir(parents=True)
    (folder / "b/two").write_text("22")
    (folder / "a").symlink_to("b/two")
    (folder / ".toolkit-data").write_text("{}")
    os.mkfifo(folder / "pipe")
    content = read_content(folder)
    (shard,) = content.shards
    assert [entry[:2] for entry in json.loads(shard.entries)] == [["l", "a"], ["d", "b"], ["f", "b/two"]]
    data = b"".join(read_shard(folder, shard))
    assert data == shard.head + b"22" and len(data) == shard.size
    assert (content.files, content.size) == (2, 2)
    alone = read_content(folder / "b/two")
    assert json.loads(alone.shards[0].entries)[0][1] == "two"
    assert b"".join(read_shard(folder / "b/two", alone.shards[0])).endswith(b"22")


def test_what_changes_or_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    (shard,) = read_content(tmp_path).shards
    (tmp_path / "one").write_text("2!")
    with pytest.raises(ToolkitError, match="one has changed since toolkit made the plan"):
        list(read_shard(tmp_path, shard))
    (tmp_path / "one").unlink()
    with pytest.raises(ToolkitError, match="cannot read the data"):
        list(read_shard(tmp_path, shard))
    with pytest.raises(ToolkitError, match="cannot read the data"):
        read_content(tmp_path / "gone")


def test_sources_start_at_the_hosts_file_and_must_be_there(tmp_path: Path) -> None:
    inventory = parse_inventory(TEXT, str(tmp_path / "hosts.yaml"))
    with pytest.raises(BadInput, match="data/0/source: the data source") as refused:
        read_data(inventory)
    assert "--no-data" in refused.value.fix
    (tmp_path / "set").mkdir()
    ((one, source, content),) = read_data(inventory)
    assert (one.target, source, content.files) == ("/set", str(tmp_path / "set"), 0)
    with pytest.raises(BadInput, match="data: contains no data set"):
        require_data(world.inventory())


def test_a_link_as_a_source_keeps_its_name_if_it_leads_to_a_file(tmp_path: Path) -> None:
    inventory = parse_inventory(TEXT, str(tmp_path / "hosts.yaml"))
    store = tmp_path / "store"
    store.mkdir()
    (store / "v3.bin").write_text("3")
    (tmp_path / "set").symlink_to("store/v3.bin")
    ((_, source, content),) = read_data(inventory)
    (shard,) = content.shards
    assert [entry[:2] for entry in json.loads(shard.entries)] == [["f", "set"]]
    assert b"".join(read_shard(Path(source), shard)) == shard.head + b"3"
    (tmp_path / "set").unlink()
    (tmp_path / "set").symlink_to("store")
    ((_, source, content),) = read_data(inventory)
    assert source == str(store)
    assert [entry[:2] for entry in json.loads(content.shards[0].entries)] == [["f", "v3.bin"]]


# Plans


def layout() -> Any:
    return world.layout(TEXT)


def test_up_stages_data_before_containers_which_see_it_read_only() -> None:
    made = layout()
    (one,) = made.inventory.data
    plan = plan_up(made, world.INSIDE, data=((one, "/here/set", pack(small(3))),))
    titles = [phase.title for phase in plan.phases]
    assert titles.index("image") < titles.index("data") < titles.index("containers")
    steps = [step for step in plan.steps if isinstance(step, SendData)]
    assert [step.host for step in steps] == ["gpu1", "gpu2", "cpu3"]
    assert {(s.path, s.source) for s in steps} == {("/scratch/set", "/here/set")} and all(
        s.address for s in steps
    )
    state = {place.name: place.state for place in made.places}
    assert all(not s.account.startswith(f"{state[s.host]}/") for s in steps), "down leaves it"
    assert len({(s.host, s.account) for s in steps}) == 3
    mounts = cluster_container(made, made.places[0]).mounts
    assert not any(steps[0].account.startswith(m.source) for m in mounts), "ranks do not see it"
    assert [(m.source, m.target, m.read_only) for m in mounts][-1] == ("/scratch/set", "/set", True)


def test_without_data_containers_still_find_the_folder() -> None:
    steps = [
        step for step in plan_up(layout(), world.INSIDE).steps if step.title == "create the data folders"
    ]
    assert [step.host for step in steps] == ["gpu1", "gpu2", "cpu3"]
    assert all(isinstance(step, Run) and step.unless for step in steps)
    assert not any("data" in step.title for step in plan_up(world.layout(), world.INSIDE).steps)


def test_the_folder_stays_where_a_container_sees_it() -> None:
    inventory = parse_inventory(TEXT, "hosts.yaml")
    for facts, keep in ((world.cluster_facts(), False), (world.facts_when_up(), True)):
        steps = [step for step in plan_remove(inventory, facts).steps if isinstance(step, RemoveData)]
        assert [(step.path, step.keep) for step in steps] == [("/scratch/set", keep)] * 3


# What hosts say


def test_hosts_are_asked_by_quoted_names_and_answer_in_json(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("a b", "part", "empty", "gone", "again")]
    facts = replace(
        world.cluster_facts()["gpu1"], state_dir=f"{tmp_path}/toolkit/demo/gpu1", hostname=os.uname().nodename
    )

    def keep(folder: str, name: str, text: str) -> None:
        account = Path(account_of(facts, folder))
        account.mkdir(parents=True, exist_ok=True)
        (account / name).write_text(text)

    whole = '{"set": "x", "files": 2, "bytes": 3, "since": 4}\n'
    keep(folders[0], "mark", whole)
    lines = '{"shard":"1","entries":[]}\n{"whole":"1","bytes":7}\n{"shard":"2","entries":["{"]}\n'
    keep(folders[1], "journal", lines)
    keep(folders[3], "mark", whole)
    keep(folders[4], "mark", whole)
    for name in ("a b", "part", "empty", "again"):
        (tmp_path / name).mkdir()
    for name in ("a b/file", "part/file"):
        (tmp_path / name).write_text("1")
    # What lies in the folder itself says nothing: ranks can write there.
    (tmp_path / "empty/.toolkit-data").write_text(whole)
    (tmp_path / "empty/.toolkit-data.journal").write_text(lines)
    text = world.HOSTS + "data:\n"
    text += "".join(f"- {{source: x, path: '{f}', target: /d{n}}}\n" for n, f in enumerate(folders))
    ((_, ask),) = question(parse_inventory(text, "hosts.yaml"))

    def said() -> str:
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        return subprocess.run(["sh", "-c", ask], env=env, capture_output=True, text=True, check=False).stdout

    found = parse_held(said())
    assert [found[f] for f in folders] == [
        HeldData(True, "x", 2, 3, 4),
        HeldData(True, size=7, begun=True),
        HeldData(True),
        HeldData(),
        HeldData(True),
    ]
    forged = 'x\nfolder|/else\nthere\nmark|{"set": "y"}\n'
    keep(folders[0], "mark", forged)
    assert parse_held(said()) == {**found, folders[0]: HeldData(True)}
    for odd in ('{"set": 1}', '{"set": "x", "files": -1}', '{"set": "\\u001b"}', "[" * 5000, "9" * 4000):
        assert parse_held(f"folder|/x\nthere\nmark|{odd}") == {"/x": HeldData(True)}
    assert parse_held("folder|/x\nthere\nmark|{no json\n") == {"/x": HeldData(True)}
    assert question(world.inventory()) == ()


def held(**sets: str) -> dict[str, dict[str, HeldData]]:
    return {host: {"/scratch/set": HeldData(bool(name), name)} for host, name in sets.items()}


def test_jobs_need_one_whole_set_on_all_of_their_hosts() -> None:
    inventory = parse_inventory(TEXT, "hosts.yaml")
    assert lacking(held(gpu1="a", gpu2="a"), inventory) == {}
    found = lacking(held(gpu1="a", gpu2="", cpu3="b"), inventory)
    assert found == {
        "gpu2": "/scratch/set: data set /set is incomplete or missing",
        "cpu3": "/scratch/set: data set /set differs from the copy on other hosts",
    }
    assert list(lacking(held(gpu1="a", gpu2="b", cpu3="b"), inventory)) == ["gpu1"]
    assert list(lacking({"gpu1": {}}, inventory)) == ["gpu1"]


def test_a_job_is_refused_with_the_host_and_the_cure() -> None:
    class Session:
        inventory = parse_inventory(TEXT, "hosts.yaml")
        facts = ("gpu1", "gpu2")
        replies = {name: Reply({"data": "folder|/scratch/set\nthere"}, 0, 0) for name in facts}  # noqa: RUF012

    with pytest.raises(NotReady) as refused:
        refuse_incomplete_data(Session(), {"gpu1"})  # type: ignore[arg-type]
    assert (refused.value.host, refused.value.fix) == (
        "gpu1",
        "toolkit data send  # or start the job anyway with --no-check",
    )


def test_rows_say_how_far_each_host_is() -> None:
    inventory = parse_inventory(TEXT, "hosts.yaml")
    content = pack(small(1_000))
    said = {
        "gpu1": {"/scratch/set": HeldData(True, content.identity, 1_000, 10**8, 1_700_000_000)},
        "gpu2": {"/scratch/set": HeldData(True, size=content.shards[0].size, begun=True)},
    }
    rows = data_rows(inventory, said, {"/scratch/set": content}, {"cpu3": "no answer"})
    assert [(row.host, row.state) for row in rows] == [
        ("gpu1", "whole"),
        ("gpu2", "part"),
        ("cpu3", "unreachable"),
    ]
    assert rows[1].share is not None and 5 < rows[1].share < 20
    # The first shard of another version has not arrived completely.
    (begun, *_) = data_rows(inventory, {"gpu1": {"/scratch/set": HeldData(True, begun=True)}}, {}, {})
    assert begun.state == "part"
    rows += data_rows(inventory, held(gpu1="other", gpu2=""), {"/scratch/set": content}, {})
    text = data_text((*rows, DataRow("x", "/p", "/t", "part", 5)))
    assert (
        "complete, but differs from the copy on your machine" in text
        and "absent" in text
        and "incomplete, 1" in text
        and "no answer" in text
    )


# The row of a transfer


def needs(**numbers: Iterable[int]) -> dict[str, Need]:
    return {host: Need(frozenset(own), f"/{host}", f"/account/{host}") for host, own in numbers.items()}


def test_after_a_break_each_host_needs_the_row_from_some_shard_on() -> None:
    content = pack(small(3_000))
    payload = DataPayload(Path("/x"), content)
    asked = needs(a=range(6, 20), b=range(3, 20), c=range(20))
    own = payload.lay_out(asked)
    assert [len(own[host]) for host in "abc"] == [14, 17, 20]
    assert own["c"][0].first == 0 and own["a"] == own["c"][6:]
    assert payload.order(asked["a"], own["a"]) == {
        "into": "/a",
        "account": "/account/a",
        "writes": list(range(14)),
        "held": sum(shard.size for shard in (*content.shards[:6], *content.shards[20:])),
    }


def test_what_a_host_has_passes_through_its_hands() -> None:
    payload = DataPayload(Path("/x"), pack(small(3_000)))
    asked = needs(a=(1, 5), b=(2, 5), c=(5,))
    own = payload.lay_out(asked)
    ends = {host: segments[-1].end for host, segments in own.items()}
    assert len(set(ends.values())) == 1 and [len(own[host]) for host in "abc"] == [3, 2, 1]
    assert payload.order(asked["a"], own["a"])["writes"] == [0, 2]


# What runs on hosts


def account(root: Path) -> Path:
    """Return the account of a folder, which is made if it is not there."""
    place = root.parent / "account"
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def ask(word: str, root: Path, **order: object) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-S",
        str(INSIDE / "run.py"),
        "transfer.data_set",
        word,
        str(root),
        str(account(root)),
    ]
    return subprocess.run(words, input=json.dumps(order), capture_output=True, text=True, check=False)


def unpack(root: Path, source: Path, cut: int | None = None, first: int = 0) -> list[Any]:
    """Feed the shards of a folder from a number on to the host's program, cut short if asked for."""
    text = (
        "import json, sys, time; from toolkit.container.transfer import unpack; said = []\n"
        "root, account, *files = sys.argv[1:]\n"
        "every = range(len(files))\n"
        "shelf = unpack.Shelf(root, account, every, len(files), lambda *words: said.append(words))\n"
        "for number, name in enumerate(files):\n"
        "    one = shelf.open(number)\n"
        "    with open(name, 'rb') as file:\n"
        "        for piece in iter(lambda: file.read(1000), b''): one.write(piece)\n"
        "    one.finish()\n"
        "shelf.flush()\n"
        "print(json.dumps(said))\n"
    )
    files = []
    for number, shard in enumerate(read_content(source).shards[first:]):
        files.append(root.parent / f"shard{number}")
        files[-1].write_bytes(b"".join(read_shard(source, shard))[:cut])
    root.mkdir(exist_ok=True)
    words = [sys.executable, "-c", text, str(root), str(account(root)), *map(str, files)]
    done = subprocess.run(words, cwd=INSIDE, capture_output=True, text=True, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "a").mkdir(parents=True)
    for number in range(5):
        (folder / f"a/{number}").write_bytes(bytes([number]) * 3_000)
    return folder


def test_what_is_cut_short_is_not_whole_and_leaves_nothing_under_a_name(tmp_path: Path, source: Path) -> None:
    root, wanted = tmp_path / "root", [shard.name for shard in read_content(source).shards]
    assert unpack(root, source, cut=-100) == [[0, 1, "a shard is truncated"]]
    seen = json.loads(ask("look", root, wanted=wanted).stdout)
    assert (seen["missing"], seen["set"]) == ([0], "") and seen["free"] > 0
    assert sorted(path.name for path in (root / "a").iterdir() if path.name[0] != ".") == ["0", "1", "2", "3"]
    refused = ask("finish", root, wanted=wanted, mark={"set": "x", "bytes": 1})
    assert refused.returncode == 3
    assert refused.stderr == "the data set is incomplete: 1 of 1 shards did not arrive completely\n"
    assert unpack(root, source) == [[0, 0, ""]]
    assert json.loads(ask("look", root, wanted=wanted).stdout)["missing"] == []
    assert ask("finish", root, wanted=wanted, mark={"set": "x", "bytes": 1}).returncode == 0
    assert json.loads((account(root) / "mark").read_text())["set"] == "x"
    assert {path.stat().st_mode & 0o777 for path in account(root).iterdir()} == {0o600}
    assert listing(root) == listing(source)


def test_a_folder_keeps_its_mode_and_its_owner_may_write_there(tmp_path: Path, source: Path) -> None:
    (source / "closed").mkdir(mode=0o550)
    root = tmp_path / "root"
    assert unpack(root, source) == [[0, 0, ""]]
    assert (root / "closed").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("output", "what", "fix"),
    [
        (
            "mkdir: cannot create\nPermission denied: /x",
            "cannot write to the data folder: Permission denied",
            "sudo install",
        ),
        ("the host's program broke", "the host's program broke", "run the same command again"),
    ],
)
def test_why_the_folder_of_a_data_set_cannot_be_used(output: str, what: str, fix: str) -> None:
    error = _failure(Result(1, output, "", 0.0), HostHere("gpu1"), "/scratch/set")
    assert what in error.what and fix in error.fix


def test_shards_go_to_the_disk_together() -> None:
    """All that are left, or many bytes; what waits for neither is written after some time."""
    small, large = SimpleNamespace(size=10), SimpleNamespace(size=SYNC_BYTES - 10)

    def due(left: int, *waiting: object) -> bool:
        return bool(Shelf._due(SimpleNamespace(left=left, _waiting=waiting)))

    assert due(1, small) and due(2, small, small)
    assert not due(2, small) and not due(2, large)
    assert due(3, small, large)


def test_a_journal_that_is_cut_short_is_gone_on_with(tmp_path: Path, source: Path) -> None:
    root, wanted = tmp_path / "root", [shard.name for shard in read_content(source).shards]
    unpack(root, source)
    journal = account(root) / "journal"
    journal.write_bytes(journal.read_bytes()[:-5])
    assert json.loads(ask("look", root, wanted=wanted).stdout)["missing"] == [0]
    unpack(root, source)
    assert json.loads(ask("look", root, wanted=wanted).stdout)["missing"] == []
    assert len(journal.read_bytes().splitlines()) == 5


def test_the_journal_counts_the_shards_of_the_last_set_only(tmp_path: Path, source: Path) -> None:
    root = tmp_path / "root"

    def total() -> int:
        lines = (account(root) / "journal").read_bytes().splitlines()
        counted: int = json.loads([line for line in lines if line.startswith(b'{"whole"')][-1])["bytes"]
        return counted

    unpack(root, source)
    assert total() == read_content(source).shards[0].size
    for path in (source / "a").iterdir():
        path.rename(path.with_name(f"{path.name}.new"))
    unpack(root, source, cut=-100)
    assert total() == 0
    unpack(root, source)
    assert total() == read_content(source).shards[0].size


def test_a_version_that_was_begun_since_is_not_taken_for_the_one_before(tmp_path: Path, source: Path) -> None:
    root, about = tmp_path / "root", (source / "a/0").stat()
    unpack(root, source)
    before = [shard.name for shard in read_content(source).shards]
    (source / "a/0").write_bytes(b"!" * 3_000)
    os.utime(source / "a/0", ns=(about.st_mtime_ns, about.st_mtime_ns + 1))
    unpack(root, source)
    assert json.loads(ask("look", root, wanted=before).stdout)["missing"] == [0]


@pytest.mark.parametrize("what", ["mode", "content"])
def test_a_large_file_that_changed_replaces_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Although the one before has the same size and almost the same time."""
    for name in ("LEAST", "MOST", "PIECE"):
        monkeypatch.setattr(shards, name, 1000)
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    large = source / "large"
    large.write_bytes(b"x" * 2500)

    def wanted() -> list[str]:
        return [shard.name for shard in read_content(source).shards]

    def finished() -> bool:
        done = ask("finish", root, wanted=wanted(), mark={"set": "x", "bytes": 1})
        return done.returncode == 0 and listing(root) == listing(source)

    unpack(root, source)
    assert finished()
    if what == "mode":
        large.chmod(0o755)
    else:
        about = large.stat()
        large.write_bytes(b"y" * 2500)
        os.utime(large, ns=(about.st_atime_ns, about.st_mtime_ns + 10**9))
    unpack(root, source)
    (part,) = root.glob(".toolkit-part-*")
    os.truncate(part, 1500)
    assert json.loads(ask("look", root, wanted=wanted()).stdout)["missing"] == [1, 2]
    unpack(root, source)
    assert finished()


def test_parts_of_a_transfer_that_was_given_up_go(tmp_path: Path, source: Path) -> None:
    host = make_hosts(tmp_path, 1)[0]
    host.path.parent.mkdir()
    unpack(host.path, source, cut=-100)
    assert any(path.name.startswith(".toolkit-part-") for path in (host.path / "a").iterdir())
    assert remove(host).status == "ok" and not host.path.exists()


def updated(tmp_path: Path, source: Path, arrived: bool) -> Path:
    """Send the source, change a file and send it again, without the last step; return the data folder.

    Args:
        arrived: the new version of the file has arrived; otherwise the transfer is cut off before.
    """
    root = tmp_path / "root"
    unpack(root, source)
    (source / "a/4").write_bytes(b"!" * 5_000)
    unpack(root, source, cut=None if arrived else -100)
    return root


@pytest.mark.parametrize("arrived", [True, False])
def test_an_interrupted_update_leaves_files_of_toolkit_only(
    tmp_path: Path, source: Path, arrived: bool
) -> None:
    """The changed file has its new version, or still the one before; both are written by toolkit."""
    root = updated(tmp_path, source, arrived)
    assert (root / "a/4").stat().st_size == (5_000 if arrived else 3_000)
    assert json.loads(ask("remove", root).stdout) == {"gone": 5, "stay": 0, "left": 0}


@pytest.mark.parametrize("arrived", [True, False])
def test_a_file_that_is_deleted_after_an_interrupted_update_goes(
    tmp_path: Path, source: Path, arrived: bool
) -> None:
    root = updated(tmp_path, source, arrived)
    (source / "a/4").unlink()
    unpack(root, source)
    wanted = [shard.name for shard in read_content(source).shards]
    done = ask("finish", root, wanted=wanted, mark={"set": "x", "bytes": 1})
    assert json.loads(done.stdout) == {"gone": 1, "stay": 0} and listing(root) == listing(source)


def test_a_file_that_changed_on_the_host_stays_after_an_interrupted_update(
    tmp_path: Path, source: Path
) -> None:
    root = updated(tmp_path, source, arrived=True)
    (root / "a/4").write_text("mine")
    assert json.loads(ask("remove", root).stdout) == {"gone": 4, "stay": 1, "left": 1}
    assert (root / "a/4").read_text() == "mine"


def test_a_file_makes_room_for_a_folder_after_an_interrupted_update(tmp_path: Path, source: Path) -> None:
    root = tmp_path / "root"
    (source / "b").write_bytes(b"b" * 3_000)
    unpack(root, source)
    (source / "b").write_bytes(b"!" * 5_000)
    unpack(root, source, cut=-100)
    (source / "b").unlink()
    (source / "b").mkdir()
    assert unpack(root, source) == [[0, 0, ""]]
    assert (root / "b").is_dir()


def test_a_folder_with_a_part_of_an_interrupted_transfer_makes_room_for_a_file(
    tmp_path: Path, source: Path
) -> None:
    root = tmp_path / "root"
    unpack(root, source, cut=-100)
    shutil.rmtree(source / "a")
    (source / "a").write_text("a file now")
    assert unpack(root, source) == [[0, 0, ""]]
    assert listing(root) == listing(source)


@pytest.mark.parametrize("then", ["rm", "file"])
def test_a_folder_whose_own_entry_did_not_arrive_goes(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    for name, size in (("LEAST", 1000), ("MOST", 4000), ("PIECE", 4000)):
        monkeypatch.setattr(shards, name, size)
    root = tmp_path / "root"
    (source / "a/b").mkdir()
    (source / "a/b/large").write_bytes(b"x" * 9_000)
    folder, *_ = json.loads(read_content(source).shards[0].entries)
    assert folder[:2] == ["d", "a"]
    unpack(root, source, first=1)
    assert (root / "a/b").is_dir()
    if then == "rm":
        assert json.loads(ask("remove", root).stdout)["left"] == 0
        return
    shutil.rmtree(source / "a")
    (source / "a").write_text("a file now")
    assert unpack(root, source) == [[0, 0, ""]]
    assert listing(root) == listing(source)


def test_a_file_in_the_place_of_a_folder_without_an_entry_is_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before the journal has the folder, and is not overwritten by a file of this name."""
    for name, size in (("LEAST", 1000), ("MOST", 4000), ("PIECE", 4000)):
        monkeypatch.setattr(shards, name, size)
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_text("mine")
    for _, status, said in unpack(root, source, first=1):
        assert status == 1 and said.startswith(f"{root}/a is a link or a file, but must be a folder")
    shutil.rmtree(source / "a")
    (source / "a").write_text("a file now")
    ((_, status, said),) = unpack(root, source)
    assert status == 1 and said.startswith(f"{root}/a exists already and was not written by toolkit")
    assert (root / "a").read_text() == "mine"


ENTRIES_THAT_ARE_NONE: list[Any] = [
    *(["f", path, 0o644, 0, 0] for path in ("../x", "/etc/x", "a/../../x", "a//x", ".", "", "x/", "a\0b", 1)),
    *(["d", path, 0o755] for path in ("..", "a/..", "./a")),
    *(["l", "x", target] for target in ("", "a\0b", 1)),
    *(["f", "x", mode, 0, 0] for mode in (-1, 0o1777, "0", True, 1.0)),
    ["f", "x", 0o644, 2**63, 0],
    ["f", "x", 0o644, 0, -1],
    ["f", "x", 0o644, 0],
    ["p", "x", 0o644, 0, 10, 5, 6],
    ["p", "x", 0o644, 0, 10, -1, 1],
    ["x", "x", 0],
    [["f"], "x", 0],
    {"f": "x"},
    [],
    "f",
    None,
]


def inside(text: str, *words: str) -> str:
    """Return what a few lines say that use the program of hosts."""
    argv = [sys.executable, "-c", text, *words]
    return subprocess.run(argv, cwd=INSIDE, capture_output=True, text=True, check=True).stdout


def test_entries_that_lead_out_of_the_folder_or_make_no_sense_are_refused() -> None:
    text = (
        "import json, sys; from toolkit.container.transfer.data_folder import Fault, parse_entries\n"
        "for entry in json.loads(sys.argv[1]):\n"
        "    try: parse_entries(json.dumps([entry]).encode()); print('taken', entry)\n"
        "    except Fault: pass\n"
        "for text in (b'{', b'{}', b'[' * 9999, b'\\xff'):\n"
        "    try: parse_entries(text); print('taken', text)\n"
        "    except Fault: pass\n"
    )
    assert inside(text, json.dumps(ENTRIES_THAT_ARE_NONE)) == ""
    good = [["d", "a", 0o755], ["l", "a/b", "../c"], ["f", "..a", 0, -5, 0], ["p", "x", 0o600, 1, 9, 5, 4]]
    good.append(["f", os.fsdecode(b"\xff\n"), 0o644, 1, 1])
    text = (
        "import sys; from toolkit.container.transfer.data_folder import parse_entries\n"
        "print(len(parse_entries(sys.argv[1].encode())))"
    )
    assert inside(text, json.dumps(good)) == f"{len(good)}\n"


def journal_of(*shards: list[Any], name: str = "") -> str:
    """Return a journal in which these shards are whole; their names are right unless one is given."""
    lines = []
    for entries in shards:
        text = json.dumps(entries, separators=(",", ":"))
        shard = name or hashlib.sha256(text.encode()).hexdigest()[:32]
        lines += [f'{{"shard":"{shard}","entries":{text}}}\n', f'{{"whole":"{shard}","bytes":1}}\n']
    return "".join(lines)


def plant(root: Path, text: str) -> None:
    """Leave an account where earlier versions kept it, and where this one does."""
    (root / ".toolkit-data.journal").write_text(text)
    (account(root) / "journal").write_text(text)


@pytest.mark.parametrize("path", ["../mine", "sub/../../mine", "{outside}/mine", "link/mine"])
def test_rm_removes_nothing_outside_of_the_folder(tmp_path: Path, path: str) -> None:
    root, outside = tmp_path / "root", tmp_path
    (root / "sub").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (outside / "mine").write_text("mine")
    about = (outside / "mine").stat()
    path = path.format(outside=outside)
    plant(root, journal_of([["f", path, 0o644, about.st_mtime_ns, about.st_size]]))
    done = ask("remove", root)
    assert (outside / "mine").read_text() == "mine" and done.returncode == 0, done.stderr


def test_a_shard_counts_only_under_the_name_that_its_entries_make(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "mine").write_text("mine")
    about = (root / "mine").stat()
    entries = [["f", "mine", 0o644, about.st_mtime_ns, about.st_size]]
    plant(root, journal_of(entries, name="0" * 32))
    assert json.loads(ask("look", root, wanted=["0" * 32]).stdout)["missing"] == [0]
    assert ask("finish", root, wanted=["0" * 32], mark={"set": "x", "bytes": 1}).returncode == 3
    assert json.loads(ask("remove", root).stdout)["gone"] == 0 and (root / "mine").exists()


def test_what_is_in_the_folder_is_not_believed_and_goes(tmp_path: Path, source: Path) -> None:
    """A rank can leave an account in the folder, with links in the places of its files."""
    root, wanted = tmp_path / "root", [shard.name for shard in read_content(source).shards]
    root.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in (".toolkit-data", ".toolkit-data.new", ".toolkit-data.journal.new"):
        (root / name).symlink_to(victim)
    entries = [["f", "others", 0o644, 0, 0]]
    (root / ".toolkit-data.journal").write_text(journal_of(entries))
    (root / "others").write_text("")
    os.utime(root / "others", ns=(0, 0))
    assert unpack(root, source) == [[0, 0, ""]]
    done = ask("finish", root, wanted=wanted, mark={"set": "x", "bytes": 1})
    assert done.returncode == 0, done.stderr
    assert victim.read_text() == "kept" and (root / "others").exists()
    assert not (root / ".toolkit-data.journal").exists() and (root / ".toolkit-data").is_symlink()
    assert json.loads(ask("remove", root).stdout)["gone"] == 5 and (root / "others").exists()


@pytest.mark.parametrize("what", ["link", "file", "pipe"])
def test_what_is_in_the_place_of_a_folder_is_refused_by_name(tmp_path: Path, source: Path, what: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    assert unpack(root, source) == [[0, 0, ""]]
    shutil.rmtree(root / "a")
    if what == "link":
        (root / "a").symlink_to(outside)
    elif what == "file":
        (root / "a").write_text("mine")
    else:
        os.mkfifo(root / "a")
    ((_, status, said),) = unpack(root, source)
    assert status == 1 and said.startswith(f"{root}/a is a link or a file, but must be a folder")
    assert not list(outside.iterdir())
    assert json.loads(ask("remove", root).stdout)["gone"] == 0 and os.path.lexists(root / "a")


def test_a_link_that_was_sent_makes_room_for_a_folder(tmp_path: Path, source: Path) -> None:
    root = tmp_path / "root"
    (source / "b").symlink_to("a")
    unpack(root, source)
    (source / "b").unlink()
    (source / "b").mkdir()
    (source / "b/x").write_text("in a folder now")
    assert unpack(root, source) == [[0, 0, ""]]
    assert listing(root) == listing(source)


@pytest.mark.parametrize("what", ["link", "pipe", "second name"])
def test_a_large_file_is_not_put_together_in_what_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for name in ("LEAST", "MOST", "PIECE"):
        monkeypatch.setattr(shards, name, 1000)
    source, root, victim = tmp_path / "source", tmp_path / "root", tmp_path / "victim"
    source.mkdir()
    root.mkdir()
    (source / "large").write_bytes(b"x" * 2500)
    victim.write_text("kept")
    ((entry,), *_) = (json.loads(shard.entries) for shard in read_content(source).shards)
    text = (
        "import json, sys; from toolkit.container.transfer import data_folder\n"
        "root, account, entry = sys.argv[1:]\n"
        "print(data_folder.Folder(root, account).part_of(json.loads(entry)), end='')\n"
    )
    part = root / inside(text, str(root), str(account(root)), json.dumps(entry))
    if what == "link":
        part.symlink_to(victim)
    elif what == "pipe":
        os.mkfifo(part)
    else:
        os.link(victim, part)
    found = unpack(root, source)
    assert {status for _, status, _ in found} == {1} and part.name in found[0][2]
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_an_account_that_others_can_reach_is_refused(tmp_path: Path, source: Path, mode: int) -> None:
    root = tmp_path / "root"
    unpack(root, source)
    account(root).chmod(mode)
    for word in ("look", "finish", "remove"):
        refused = ask(word, root, wanted=[], mark={"bytes": 1})
        assert refused.returncode == 3 and "must belong to the SSH user and have mode 0700" in refused.stderr


def test_a_time_that_does_not_fit_in_64_bits_is_limited(tmp_path: Path, source: Path) -> None:
    """Nanoseconds since the epoch, after the year 2262."""
    os.utime(source / "a/0", (0, 10_413_792_000))
    (host,) = make_hosts(tmp_path, 1)
    assert [send(source, host)["box1"].status for _ in range(2)] == ["ok", "skipped"]


@pytest.mark.parametrize("name", ["python3", "docker"])
@pytest.mark.parametrize("relay", [True, False])
def test_names_are_utf8_whatever_locale_an_image_has(tmp_path: Path, name: str, relay: bool) -> None:
    """On a host without Python, a container runs the program."""
    for program in ("python3", "docker"):
        old = int(name != "python3")
        text = f'case $* in *version_info*) exit {old} ;; *" -c "*) echo {program} "$@" ;; esac'
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    folders = (str(tmp_path / "data"), str(tmp_path / "account"))
    start = data_relay_program if relay else data_program
    argv = [str(word) for word in start(*folders, "demo", "i:1", "1:1", "look").argv]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{name} ") and " -X utf8 -c " in said


def packed(source: Path) -> dict[str, Any]:
    found = read_content(source).shards
    texts = json.dumps([shard.entries.decode() for shard in found]).encode()
    return {
        "wanted": [shard.name for shard in found],
        "entries": base64.b64encode(zlib.compress(texts)).decode(),
    }


def test_data_without_an_account_is_compared_and_does_not_travel_again(tmp_path: Path, source: Path) -> None:
    root, order = tmp_path / "root", packed(source)
    shutil.copytree(source, root, symlinks=True)
    (root / ".toolkit-data").write_text('{"set": "x"}')
    seen = json.loads(ask("look", root, wanted=order["wanted"]).stdout)
    assert (seen["unknown"], seen["missing"], seen["set"]) == (True, [0], "")
    seen = json.loads(ask("adopt", root, **order).stdout)
    assert (seen["unknown"], seen["missing"], seen["set"]) == (False, [], "")
    assert ask("finish", root, wanted=order["wanted"], mark={"set": "x", "bytes": 1}).returncode == 0
    assert json.loads(ask("look", root, wanted=order["wanted"]).stdout)["set"] == "x"
    assert not (root / ".toolkit-data").exists()
    assert json.loads(ask("remove", root).stdout) == {"gone": 5, "stay": 0, "left": 0}


def test_a_host_that_has_the_data_without_an_account_gets_nothing(tmp_path: Path, source: Path) -> None:
    (host,) = make_hosts(tmp_path, 1)
    shutil.copytree(source, host.path, symlinks=True)
    assert [send(source, host)["box1"].status for _ in range(2)] == ["ok", "skipped"]
    assert host.fed == 0 and host.account.stat().st_mode & 0o777 == 0o700
    assert remove(host).status == "ok" and not host.path.exists() and not host.account.exists()


def test_the_account_of_a_folder_that_is_gone_goes(tmp_path: Path, source: Path) -> None:
    (host,) = make_hosts(tmp_path, 1)
    shutil.copytree(source, host.path, symlinks=True)
    send(source, host)
    shutil.rmtree(host.path)
    assert (host.account / "mark").exists()
    done = remove(host)
    assert (done.status, host.account.exists()) == ("ok", False)
    assert done.detail == f"the folder {host.path} does not exist; removed only the record of its files"
    assert remove(host).status == "skipped"


@pytest.mark.parametrize(
    ("answer", "what", "fix"),
    [
        (Result(124, "", "the command did not end"), "the file system of .* does not respond", "findmnt -lo"),
        (Result(2, "", "test: broken"), "test: broken", "run the same command again"),
    ],
)
def test_the_account_of_a_folder_that_cannot_be_checked_stays(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, answer: Result, what: str, fix: str
) -> None:
    (host,) = make_hosts(tmp_path, 1)
    shutil.copytree(source, host.path, symlinks=True)
    send(source, host)
    run = host.run

    def hangs(command: Command, timeout: float | None = None) -> Result:
        return answer if command.argv[0] == "test" else run(command, timeout)

    monkeypatch.setattr(host, "run", hangs)
    done = remove(host)
    assert done.status == "failed" and re.search(what, done.detail) and fix in done.fix, done
    monkeypatch.undo()
    assert (host.account / "mark").exists() and remove(host).detail == "5 files"


def test_data_that_differs_is_not_adopted(tmp_path: Path, source: Path) -> None:
    root, order = tmp_path / "root", packed(source)
    shutil.copytree(source, root, symlinks=True)
    (root / "a/3").unlink()
    assert json.loads(ask("adopt", root, **order).stdout)["missing"] == [0]
    assert unpack(root, source) == [[0, 0, ""]], "what is there as it would be written is in nobody's way"
    assert json.loads(ask("remove", root).stdout)["gone"] == 5
    shutil.copytree(source, root, symlinks=True, dirs_exist_ok=True)
    (root / "a/3").write_text("another's")
    ((_, status, said),) = unpack(root, source)
    assert status == 1 and said.startswith(f"{root}/a/3 exists already and was not written by toolkit")
    other = ask("adopt", root, wanted=["0" * 32], entries=order["entries"])
    assert other.returncode == 3 and "was damaged during the transfer" in other.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert json.loads(ask("look", empty, wanted=[]).stdout)["unknown"] is False


def test_two_at_once_are_refused(tmp_path: Path, source: Path) -> None:
    import fcntl

    root = tmp_path / "root"
    unpack(root, source)
    held = os.open(root, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    refused = ask("remove", root)
    os.close(held)
    assert refused.returncode == 3 and "another command uses" in refused.stderr
    assert json.loads(ask("remove", root).stdout) == {"gone": 5, "stay": 0, "left": 0}
