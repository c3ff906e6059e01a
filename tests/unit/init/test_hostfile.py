"""Open MPI's hostfile: what mpirun 4.1 reads, and what it counts, is read and counted here."""

from __future__ import annotations

import random

import pytest

from tests.unit.each import for_each
from toolkit.errors import BadInput
from toolkit.hostsfile.parse import parse_inventory
from toolkit.hostsfile.yaml import MAX_BYTES
from toolkit.init.draft import Draft, DraftHost, hosts_file
from toolkit.init.hostfile import parse_hostfile


def slots(text: str) -> dict[str, int | None]:
    return {host.address: host.slots for host in parse_hostfile(text.encode(), "hosts")}


def refusals(text: str | bytes) -> list[str]:
    with pytest.raises(BadInput) as caught:
        parse_hostfile(text if isinstance(text, bytes) else text.encode(), "hosts")
    assert caught.value.source == "hosts"
    return [str(problem) for problem in caught.value.problems]


# The counts are what `mpirun --display-allocation` of Open MPI 4.1.4 showed for these very files.
@for_each(
    ("text", "counts"),
    [
        ("a slots=4\nb slots=2\n", {"a": 4, "b": 2}),
        ("a\nb slots=2\n", {"a": None, "b": 2}),
        ("a\na\n", {"a": 2}),
        ("a\na\na\n", {"a": 3}),
        ("a slots=2\na\n", {"a": 3}),
        ("a max_slots=3\n", {"a": 3}),
        ("a max-slots=3\na\n", {"a": 4}),
        ("a slots=2 max_slots=3\n", {"a": 2}),
        ("a cpu=2\nb count=3\n", {"a": 2, "b": 3}),
        ("a slots = 4 # c\nb // d\n/* x\ny */ c slots=2\n", {"a": 4, "b": None, "c": 2}),
        ("  a\tslots=4  \r\n\n#\nb slots=1", {"a": 4, "b": 1}),
        ("a slots=0\nb slots=2\n", {"a": 0, "b": 2}),
        ("a.b.c slots=2\n10.0.0.1 slots=3\n", {"a.b.c": 2, "10.0.0.1": 3}),
        ("a port=2222 slots=2\n", {"a": 2}),
        ("\ufeffa slots=1\n", {"a": 1}),
        # Not mpirun's, but what other launchers write; and names are equal whatever their case.
        ("a:4\nb:2\n", {"a": 4, "b": 2}),
        ("GPU1\ngpu1\n", {"GPU1": 2}),
    ],
)
def test_slots_are_counted_as_mpirun_does(text: str, counts: dict[str, int | None]) -> None:
    assert slots(text) == counts


def test_users_and_ports() -> None:
    text = "a@h1 slots=1\nh2 username=b\nc@10.0.0.1:2 port=2222\nh4 user-name = d\n"
    assert parse_hostfile(text.encode(), "hosts") == (
        DraftHost("h1", user="a", slots=1),
        DraftHost("h2", user="b"),
        DraftHost("10.0.0.1", user="c", port=2222, slots=2),
        DraftHost("h4", user="d"),
    )


@for_each(
    ("text", "problems"),
    [
        ("", ["the file lists no host"]),
        ("# nothing\n", ["the file lists no host"]),
        ("a slots=2\nb\na slots=3\n", ["line 3: a is already on line 1; write all slots on one line"]),
        ("a\na slots=3\n", ["line 2: a is already on line 1; write all slots on one line"]),
        ("a slots=2 slots=3\n", ["line 1: the line sets slots twice"]),
        ("a:2 slots=3\n", ["line 1: the line sets slots twice"]),
        ("a slots=4 max-slots=3\n", ["line 1: max_slots=3 is less than slots=4"]),
        ("u@a\nv@a\n", ["line 2: the user or port of a differs from line 1"]),
        ("a\nb slots=0\n", ["line 2: only the main host (the first host) can have 0 slots"]),
        ("a slots=0\n", ["line 1: no host has a slot"]),
        ("a slots=many\n", ["line 1: slots should be 0 to 1024, found 'many'"]),
        ("a slots=-1\n", ["line 1: slots should be 0 to 1024, found '-1'"]),
        (
            "a slots=99999999999999999999\n",
            ["line 1: slots should be 0 to 1024, found '99999999999999999999'"],
        ),
        ("a port=0\n", ["line 1: should be 1 to 65535, found 0"]),
        ("a foo=3\n", ["line 1: unknown word 'foo'; known names are slots"]),
        ("a slot=3\n", ["line 1: unknown word 'slot'; did you mean 'slots'?"]),
        ("a foo\n", ["line 1: the host should be followed by pairs such as slots=4, found 'foo'"]),
        ("a slots=\n", ["line 1: the host should be followed by pairs such as slots=4, found 'slots ='"]),
        ("a = b\n", ["line 1: a line should begin with a host, found 'a'; toolkit does not read rankfiles"]),
        (
            "rank 0=a slot=1:0\n",
            ["line 1: a line should begin with a host, found 'rank'; toolkit does not read rankfiles"],
        ),
        ("+n0 slots=1\n", ["line 1: '+n0' refers to a scheduler allocation"]),
        ("+e:2\n", ["line 1: '+e:2' refers to a scheduler allocation"]),
        ("^a\n", ["line 1: '^a' excludes a host; delete the lines of the host instead"]),
        ("a,b\n", ["line 1: a line should contain one host, found 'a,b'"]),
        (
            "a sockets-per-board=2\n",
            ["line 1: toolkit does not read the processor setting sockets-per-board"],
        ),
        ("fe80::1 slots=2\n", ["line 1: should not be an IPv6 address"]),
        ("10.0.0.256\n", ["line 1: should be an IPv4 address"]),
        ("-oProxyCommand=x\n", ["line 1: a line should begin with a host"]),
        ("-o slots=2\n", ["line 1: should not begin with '-'"]),
        ("@a\n", ["line 1: should be a user name"]),
        ('"a" slots=2\n', ["line 1: should be a host name"]),
        (b"a slots=1\n\xff\n", ["line 2: this line is not UTF-8, so the file is not a hostfile"]),
        (b"#" * (MAX_BYTES + 1), [f"the file exceeds the maximum of {MAX_BYTES} bytes"]),
    ],
)
def test_what_is_refused(text: str | bytes, problems: list[str]) -> None:
    found = refusals(text)
    assert len(found) == len(problems), found
    assert all(told.startswith(start) for told, start in zip(found, problems, strict=True)), found


def test_all_problems_come_at_once_by_line() -> None:
    text = "/* two\nlines */ +e\na slots=x\n# c\nb wheels=4 slots=2 slots=3\na slots=1\n"
    assert [told.partition(":")[0] for told in refusals(text)] == [
        *("line 2", "line 3", "line 5", "line 5", "line 6"),
    ]


_WORDS = (
    *(
        "a",
        "B",
        "gpu1",
        "gpu1.example.com",
        "gpu-1_x",
        "10.0.0.1",
        "10.0.0.2",
        "1e5",
        "007",
        "no",
        "localhost",
    ),
    *(
        "u@a",
        "no@gpu2",
        "0@h",
        "x:2",
        "slots=2",
        "slots = 1",
        "slots=0",
        "max_slots=4",
        "username=no",
        "port=22",
    ),
    *(
        "# c",
        "// d",
        "/* e",
        "*/",
        "\n",
        "\n",
        "\n",
        "\n",
        "\t",
        "rank",
        "+e",
        "=",
        ",",
        "^",
        "host1",
        "host2",
    ),
)


def test_what_is_accepted_makes_a_hosts_file() -> None:
    """Whatever the hostfile: refused with lines, or a hosts.yaml with these very hosts comes of it."""
    rng = random.Random(7)
    accepted = 0
    for _ in range(4000):
        text = " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 12)))
        try:
            hosts = parse_hostfile(text.encode(), "hosts")
        except BadInput as error:
            assert all(p.line for p in error.problems) or str(error).endswith("lists no host")
            continue
        accepted += 1
        inventory = parse_inventory(hosts_file(Draft(hosts=hosts)), "hosts.yaml")
        made = [(h.address, h.user, h.port, h.slots) for h in inventory.hosts]
        assert made == [(h.address, h.user, h.port, h.slots) for h in hosts], text
    assert accepted > 400
