"""toolkit init, schema, version: what init writes is read by the toolkit; what it refuses leaves no file."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import check_golden
from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.hostsfile.parse import parse_inventory
from toolkit.init.draft import Draft, DraftHost, faults_between, hosts_file, named, read_host

ROOT = Path(__file__).resolve().parents[3]


def names(*words: str) -> list[str]:
    return [host.name for host in named([read_host(word) for word in words])]


@for_each(
    ("words", "expected"),
    [
        (("gpu1", "gpu2"), ["gpu1", "gpu2"]),
        (("gpu1.example.com", "gpu2.example.com"), ["gpu1", "gpu2"]),
        (("gpu1.a.com", "gpu1.b.com"), ["gpu1", "gpu1-b-com"]),
        (("10.0.0.1", "10.0.0.2"), ["host1", "host2"]),
        (("10.0.0.1", "host1"), ["host2", "host1"]),
        (("host2=10.0.0.1", "10.0.0.2"), ["host2", "host3"]),
        (("GPU_1", "box=x"), ["gpu-1", "box"]),
        (("007x", "1e5", "0x1f", "localhost"), ["007x", "1e5", "host3", "host4"]),
        (("_", "a" * 70), ["host1", "a" * 60]),
    ],
)
def test_names(words: tuple[str, ...], expected: list[str]) -> None:
    assert names(*words) == expected


def test_a_host_on_the_command_line() -> None:
    assert read_host("gpu2=alice@10.0.0.2:8") == DraftHost("10.0.0.2", "gpu2", "alice", slots=8)
    assert read_host("gpu1") == DraftHost("gpu1")
    assert read_host("gpu1:0") == DraftHost("gpu1", slots=0)


@for_each(
    ("word", "message"),
    [
        ("", "should be a host name"),
        ("gpu1:", "slots should be 0 to 1024, found ''"),
        ("gpu1:2222", "set an SSH port in hosts.yaml"),
        ("gpu1:8:9", "should be [NAME=][USER@]ADDRESS[:SLOTS]"),
        ("a@b@c", "should be [NAME=][USER@]ADDRESS[:SLOTS]"),
        ("=gpu1", "should be a host name"),
        ("@gpu1", "should be a user name"),
        ("GPU1=10.0.0.1", "a host name must be lowercase"),
        ("-x", "should not begin with '-'"),
        ("10.0.0", "should be an IPv4 address"),
        ("gpu 1", "should be a host name"),
    ],
)
def test_a_host_that_is_written_wrong(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_host(word)


def test_faults_between_hosts() -> None:
    hosts = [read_host(w) for w in ("a", "x=b", "x=c", "A", "d:0")]
    assert [index for index, _ in faults_between(hosts)] == [2, 3, 4]


def test_the_file_itself() -> None:
    hosts = tuple(read_host(word) for word in ("alice@10.0.0.1:8", "gpu2=gpu2.example.com", "no@1e5"))
    check_golden("init/hosts.yaml", hosts_file(Draft("demo", "toolkit:cpu", hosts)))
    check_golden("init/example.yaml", hosts_file(Draft()))


def test_every_comment_that_holds_a_key_is_good_once_it_is_none() -> None:
    text = hosts_file(Draft(hosts=(DraftHost("gpu1"), DraftHost("gpu2"))))
    bare = re.sub(r"^( *)# (?= *[a-z_]+:( |$))", r"\1", text, flags=re.MULTILINE)
    inventory = parse_inventory(bare, "hosts.yaml")
    assert inventory.names == ("gpu1", "gpu2", "example")
    assert inventory.mounts and inventory.env and inventory.worker_port_fixed and inventory.known_hosts
    assert inventory.host("example").jump and inventory.host("example").data_address
    # One at a time as well.
    for match in re.finditer(r"^# (?=[a-z_]+: )", text, re.MULTILINE):
        parse_inventory(text[: match.start()] + text[match.end() :], "hosts.yaml")


_PARTS = (
    "a",
    "gpu1",
    "10.0.0.1",
    "no",
    "1e5",
    "0x1f",
    "=",
    "@",
    ":",
    "8",
    "0",
    "Yes",
    "null",
    "~",
    ".",
    "-",
    "_",
)


def test_whatever_is_accepted_is_read_back() -> None:
    rng = random.Random(3)
    good = 0
    for _ in range(6000):
        words = ["".join(rng.choices(_PARTS, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 3))]
        try:
            hosts = tuple(read_host(word) for word in words)
        except ValueError:
            continue
        if list(faults_between(hosts)):
            continue
        good += 1
        inventory = parse_inventory(hosts_file(Draft(hosts=hosts)), "hosts.yaml")
        made = [(h.address, h.user, h.slots) for h in inventory.hosts]
        assert made == [(h.address, h.user, h.slots) for h in hosts], words
    assert good > 300


def test_init_writes_a_file_once(run: Run, tmp_path: Path) -> None:
    status, out, err = run("init", "gpu1:8", "gpu2=10.0.0.2", "--user", "alice", "--cluster", "mine")
    assert (status, out) == (0, "")
    assert "wrote hosts.yaml with 2 hosts, image toolkit:gpu\n" in err and "toolkit trust" in err
    text = (tmp_path / "hosts.yaml").read_text()
    inventory = parse_inventory(text, "hosts.yaml")
    assert inventory.cluster == "mine" and {h.user for h in inventory.hosts} == {"alice"}
    status, out, err = run("init", "gpu3", "--output", "team.yaml")
    assert "next: toolkit trust --hosts team.yaml, then toolkit up --hosts team.yaml\n" in err
    err = run("init", "gpu3", "--output", "my team.yaml")[2]
    assert "next: toolkit trust --hosts 'my team.yaml', then toolkit up --hosts 'my team.yaml'\n" in err
    status, out, err = run("init", "gpu3")
    assert status == 2 and "hosts.yaml: 1 problem\n  the file exists already" in err and "--force" in err
    assert (tmp_path / "hosts.yaml").read_text() == text
    assert run("init", "gpu3", "--force")[0] == 0
    assert "gpu3:" in (tmp_path / "hosts.yaml").read_text()


def test_init_to_standard_output_and_as_a_dry_run_leaves_no_file(run: Run, tmp_path: Path) -> None:
    for words in (("-o", "-"), ("--dry-run",)):
        status, out, _ = run("init", "gpu1", *words)
        assert status == 0 and parse_inventory(out, "out").names == ("gpu1",)
        status, out, _ = run("init", "gpu1", *words, "--json")
        printed = json.loads(out)
        assert status == 0 and parse_inventory(printed["text"], "out").names == ("gpu1",)
    assert list(tmp_path.iterdir()) == []


def test_init_from_a_hostfile(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mpi").write_text("gpu1 slots=8\nbob@10.0.0.2\n")
    status, out, err = run("init", "--from-hostfile", "mpi", "--user", "alice", "--json")
    assert status == 0 and json.loads(out) == {"file": "hosts.yaml", "hosts": ["gpu1", "host2"]}
    hosts = parse_inventory((tmp_path / "hosts.yaml").read_text(), "hosts.yaml").hosts
    assert [(h.name, h.user, h.slots) for h in hosts] == [("gpu1", "alice", 8), ("host2", "bob", None)]
    status, out, err = run("init", "--from-hostfile", "mpi", "--force")
    assert "mpi sets no slots for host2" in err


def test_everything_wrong_is_named_at_once_and_nothing_is_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mpi").write_text("gpu1 slots=8\n+e\n")
    words = ("--cluster", "No!", "--image", "X", "--user", "-x", "--from-hostfile", "mpi", "a:b", "a", "a")
    status, out, err = run("init", *words)
    assert (status, out) == (2, "")
    assert all(w in err for w in ("--cluster", "--image", "--user", "--from-hostfile", "a:b", "listed twice"))
    assert "line 2: '+e'" in err
    assert [p.name for p in tmp_path.iterdir()] == ["mpi"]


@pytest.mark.parametrize("output", ["folder", "mpi/hosts.yaml", "gone/hosts.yaml", "x" * 300])
def test_a_file_that_cannot_be_written(run: Run, tmp_path: Path, output: str) -> None:
    (tmp_path / "mpi").write_text("gpu1\n")
    (tmp_path / "folder").mkdir()
    status, out, err = run("init", "--from-hostfile", "mpi", "-o", output, "--force")
    assert (status, out) == (2, "") and "cannot be written" in err


def test_schema(run: Run, tmp_path: Path) -> None:
    status, out, err = run("schema")
    assert (status, err) == (0, "")
    schema = json.loads(out)
    assert schema["additionalProperties"] is False and schema["required"] == ["cluster", "image", "hosts"]
    assert all("description" in field for field in schema["properties"].values())
    # Names that fit no pattern are marked by an editor, as they are refused by the parser.
    assert out.count('"patternProperties"') == out.count('"additionalProperties": false') - 1 - len(
        schema["$defs"]
    )
    status, out, err = run("schema", "-o", "hosts.schema.json")
    assert (status, out) == (0, "") and json.loads((tmp_path / "hosts.schema.json").read_text()) == schema
    assert "# yaml-language-server: $schema=hosts.schema.json" in err


def test_version(run: Run) -> None:
    from toolkit import __version__

    assert run("--version") == (0, f"toolkit {__version__}\n", "")
    status, out, err = run("version", "--no-engine")
    assert (status, err) == (0, "") and out.startswith(f"toolkit {__version__}\n  Python 3.")
    # A process of its own may try to reach an engine; for unit tests there is none.
    argv = [sys.executable, "-m", "toolkit", "version", "--json"]
    told = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    assert told["toolkit"] == __version__ and told["engine"] == ""
    assert {"typer", "pydantic", "fabric"} <= set(told["libraries"]) and "pytest" not in told["libraries"]


def test_the_version_leaves_out_what_this_python_does_not_need(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["typer>=0.20", "no-such-package>=1; python_version < '3'"]
    monkeypatch.setattr("toolkit.cli.version.metadata.requires", lambda name: wanted)
    status, out, _ = run("version", "--no-engine", "--json")
    assert status == 0 and list(json.loads(out)["libraries"]) == ["typer"]
