"""Tests of the images that hosts report, of the printed table, and of the images that can be removed."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.container_world import sleeping
from tests.unit.frames_here import NONCE
from tests.unit.hosts_here import execute, hosts
from toolkit.cluster.connect import Reply
from toolkit.cluster.probe import parse_facts, probe_command
from toolkit.cluster.session import Session
from toolkit.core.engines import PODMAN
from toolkit.errors import Unreachable
from toolkit.image.list_and_prune import list_images, prune_plan
from toolkit.image.on_hosts import QUESTIONS, HeldImage, image_rows, images_text, parse_held, plan_prune
from toolkit.plan.show import plan_text
from toolkit.plan.steps import Plan, Run
from toolkit.protocol.frames import read_frames
from toolkit.protocol.names import LABEL_PART, identity_reference, part_name

LAYERS = tuple(f"sha256:{letter * 64}" for letter in "abcd")
NAMES = [name for name, _ in QUESTIONS]


def image(name: str, **changes: Any) -> HeldImage:
    """Return an image of toolkit; its content digest is made of its letter."""
    identity = name * 16
    known = (identity_reference(identity),)
    base = HeldImage(f"sha256:{name * 64}", identity, known, 900_000_000, 1_763_000_000.0, LAYERS, line="cpu")
    return replace(base, **changes)


def inspected(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "Id": f"sha256:{name * 64}",
        "RepoTags": [f"{name}:1"],
        "Os": "linux",
        "Architecture": "amd64",
        "Size": 5,
        "Created": "2026-01-02T03:04:05.123Z",
        "Metadata": {"LastTagTime": "2026-02-02T03:04:05.5Z"},
        "Config": {"Labels": None},
        "RootFS": {"Layers": list(LAYERS)},
        **changes,
    }


def answer(images: list[dict[str, Any]], listed: str, used: str = "") -> dict[str, str]:
    ids = "\n".join(f"sha256:{name * 64}" for name in listed)
    return dict(zip(NAMES, (ids, used, json.dumps(images, indent=2)), strict=True))


def test_what_a_host_says() -> None:
    part = part_name("9" * 16, "abcd", 2)
    said = answer(
        [
            inspected("b", RepoTags=[part], Config={"Labels": {LABEL_PART: "9" * 16}}),
            inspected("a", Config={"Labels": {"toolkit.flavor": "gpu"}}),
            inspected("a"),
            inspected("c", RepoTags=None, Metadata={"LastTagTime": "0001-01-01T00:00:00Z"}, Config=None),
        ],
        "ab",
        f"by|sha256:{'a' * 64}|/toolkit-demo-main\nby|sha256:{'a' * 64}|/a user's own\n",
    )
    a, b, c = parse_held(said)
    assert (a.names, a.users, a.whole, a.line) == (
        ("a:1",),
        ("a user's own", "toolkit-demo-main"),
        True,
        "a:1",
    )
    assert (a.since, a.size, a.diff_ids, a.part_of) == (1770001445.5, 5, LAYERS, "")
    assert (b.part_of, b.own_names, b.verified) == ("9" * 16, (part,), False)
    assert (c.names, c.whole, c.since, c.users) == ((), False, 1767323045.123, ())
    assert parse_held({}) == parse_held(answer([], "")) == ()


def test_a_part_that_podman_has_loaded_is_found_and_removed() -> None:
    """Podman lists it below docker.io/library/."""
    (item,) = json.loads(Path(__file__).parents[1].joinpath("image_inspect/podman-5.4.json").read_text())
    (listed,) = item["RepoTags"]
    part = "toolkit-part:2be9127a658db5b6-abcd-1"
    assert listed == f"docker.io/library/{part}"
    item["Config"]["Labels"][LABEL_PART] = "2be9127a658db5b6"
    (held,) = parse_held(answer([item], ""))
    assert (held.part_of, held.own_names) == ("2be9127a658db5b6", (part,))
    assert [step.title for step in plan_prune({"gpu1": [held]}, "", PODMAN).steps] == [f"remove image {part}"]


_DOCKER = r"""#!/bin/sh
case $* in
"images "*) echo sha256:@a ;;
"ps "*) echo 0123 ;;
"inspect "*) printf '%s\n' 'sha256:@a /a|b' ;;
"image inspect i:1 sha256:@a") cat "$HOME/inspected" ;;
esac
"""


def test_the_question_in_a_real_shell(tmp_path: Path) -> None:
    label = "x\n=used\n=images\n[]"
    for name in ("docker", "inspected"):
        text = _DOCKER.replace("@a", "a" * 64)
        content = text if name == "docker" else json.dumps([inspected("a", Config={"Labels": {"y": label}})])
        (tmp_path / name).write_text(content)
    (tmp_path / "docker").chmod(0o755)
    command = probe_command("i:1", "demo", "gpu1", NONCE, QUESTIONS)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([str(word) for word in command.argv], env=env, capture_output=True, check=True)
    (found,) = parse_held(read_frames(done.stdout, NONCE))
    assert (found.id, found.names, found.users, found.whole) == (
        f"sha256:{'a' * 64}",
        ("a:1",),
        ("a|b",),
        True,
    )


def rows(*held: HeldImage, identity: str = "a" * 16) -> list[tuple[str, str, str, int]]:
    found = image_rows("gpu1", held, "toolkit:cpu", identity, LAYERS if identity else ())
    return [(row.kind, row.names[0], row.state, len(row.missing)) for row in found]


def test_what_is_listed_of_a_host() -> None:
    tag = identity_reference
    assert rows(image("a")) == [("wanted", tag("a" * 16), "whole", 0)]
    assert rows() == [("wanted", "toolkit:cpu", "absent", 4)]
    assert rows(image("a", whole=False)) == [("wanted", tag("a" * 16), "incomplete", 0)]
    # A part has the layers that it holds; one that is not whole says nothing.
    part = image("b", names=(part_name("a" * 16, "abcd", 3),), diff_ids=LAYERS[:3], part_of="a" * 16)
    assert [row[2:] for row in rows(part)] == [("absent", 1), ("whole", 0)]
    assert rows(replace(part, whole=False))[0][2:] == ("absent", 4)
    # Other images of the user are ignored, except one that has this very name.
    mine = image("c", names=("mine:1",))
    moved = image("d", names=("toolkit:cpu",))
    assert [row[1] for row in rows(image("a"), mine, moved, image("e"))] == [
        tag("a" * 16),
        "toolkit:cpu",
        tag("e" * 16),
    ]
    assert rows(moved, identity="") == [("wanted", "toolkit:cpu", "whole", 0)]


def pruned(*held: HeldImage, wanted: str = "") -> list[str]:
    plan = plan_prune({"gpu1": held}, wanted)
    return [step.title.removeprefix("remove image ").rpartition(":")[2] for step in plan.steps]


def test_the_two_newest_of_a_line_stay() -> None:
    ages = [image(letter, since=float(age)) for age, letter in enumerate("edcba")]
    assert pruned(*ages) == ["c" * 16, "d" * 16, "e" * 16]
    assert pruned(*ages[:2]) == []
    # Of each line its own two.
    other = [image(letter, since=float(age), line="gpu") for age, letter in enumerate("456")]
    assert pruned(*ages[2:], *other) == ["c" * 16, "4" * 16]


@pytest.mark.parametrize(
    "change",
    [{"users": ("theirs",)}, {"names": (identity_reference("c" * 16), "mine:1")}, {"names": ("mine:1",)}],
    ids=["in use", "named by the user too", "not ours"],
)
def test_what_never_goes(change: dict[str, Any]) -> None:
    newer = [image("a", since=9.0), image("b", since=8.0)]
    assert pruned(*newer, image("c", since=1.0)) == ["c" * 16]
    assert pruned(*newer, image("c", since=1.0, **change)) == []
    assert pruned(*newer, image("c", since=1.0), wanted="c" * 16) == []


def test_an_image_goes_with_the_names_of_all_its_identities() -> None:
    """An earlier version of toolkit made another identity of the same image."""
    names = tuple(map(identity_reference, ("f" * 16, "c" * 16)))
    newer = [image(letter, created=float(age)) for age, letter in ((3, "a"), (2, "b"))]
    (step,) = plan_prune({"gpu1": (*newer, image("c", names=names))}, "").steps
    assert isinstance(step, Run) and set(names) <= set(step.command.argv)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_fix_names_the_engine_of_the_hosts(engine: str) -> None:
    session = Session(replace(world.inventory(), engine=engine))
    session.find_local_image = lambda: None  # type: ignore[method-assign]
    session.facts = {"gpu1": world.facts()}
    images = [
        inspected(id_, RepoTags=[identity_reference(id_ * 16)], Created=f"2026-01-0{day}T00:00:00Z")
        for day, id_ in enumerate("abc", 1)
    ]
    session.replies = {"gpu1": Reply(answer(images, "abc"), 0, 0)}
    (step,) = prune_plan(session).steps
    assert isinstance(step, Run) and step.fix.startswith(f"on gpu1: {engine} ps --all --filter ancestor=")


def test_parts_go() -> None:
    parts = [image(n, names=(part_name("a" * 16, "abcd", int(n)),), part_of="a" * 16) for n in "12"]
    assert pruned(*parts) == [f"{'a' * 16}-abcd-{n}" for n in "12"]
    named = replace(parts[0], names=(*parts[0].names, "mine:1"))
    (step,) = plan_prune({"gpu1": (named,)}, "").steps
    assert isinstance(step, Run) and "mine:1" not in step.command.argv
    assert pruned(replace(parts[0], users=("theirs",))) == []


def test_parts_stay_while_their_image_is_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\n")  # every image is there
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    identity = f"{os.getpid():016x}"
    part = image("1", names=(part_name(identity, "abcd", 1),), part_of=identity)
    with sleeping(TOOLKIT_RELAY=identity) as relay:
        (stays,) = execute(plan_prune({"gpu1": (part,)}, ""), hosts("gpu1")).outcomes
    assert (stays.status, stays.fix) == (
        "not run",
        "toolkit image prune  # after the transfer of the image has finished",
    )
    assert stays.detail.endswith(f"a transfer of the image to this host runs as pid {relay.pid}")


def test_the_plan_and_the_list_in_words() -> None:
    ages = [image(letter, since=1_763_000_000.0 + age) for age, letter in enumerate("edcba")]
    part = image("9", names=(part_name("f" * 16, "abcd", 2),), diff_ids=LAYERS[:2], part_of="f" * 16)
    named = replace(ages[4], names=("toolkit:cpu", *ages[4].names), users=("toolkit-demo-main",))
    held = {"gpu1": (*ages[:4], named, part), "gpu2": ()}
    check_golden("plan/image-prune.txt", plan_text(plan_prune(held, "a" * 16)))
    found = [row for h, i in held.items() for row in image_rows(h, i, "toolkit:cpu", "a" * 16, LAYERS)]
    check_golden("image/ls.txt", images_text(found))
    assert plan_prune({"gpu2": ()}, "") == Plan("image prune", ())


def test_hosts_that_do_not_answer_have_their_row() -> None:
    session = Session(world.inventory())
    session.find_local_image = lambda: world.IMAGE  # type: ignore[method-assign]
    session.facts = {"gpu1": world.facts()}
    session.replies = {"gpu1": Reply(answer([], ""), 0, 0)}
    session.errors = {"gpu2": Unreachable("off", "", "gpu2")}
    found = list_images(session)
    assert [(row.host, row.state, row.note) for row in found] == [
        ("gpu1", "absent", ""),
        ("gpu2", "unreachable", "off"),
    ]
    assert found[0].missing == world.IMAGE.diff_ids and prune_plan(session).steps == ()


def test_an_image_that_is_not_whole_does_not_count_as_there() -> None:
    """The containerd store can inspect one of which only a part came."""
    said = world_answer(listed="sha256:other\n")
    assert parse_facts("gpu1", "demo", said).images == ()
    for listed in ({"listed": f"sha256:{'a' * 64}\n"}, {}):
        assert len(parse_facts("gpu1", "demo", world_answer(**listed)).images) == 1
    assert "say listed" in " ".join(str(t) for t in probe_command("a", "b", "c", "0" * 16).argv)


def world_answer(**more: str) -> dict[str, str]:
    info = {"ServerVersion": "26.1.5", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
    parts = {
        "who": "uid=1000(alice) gid=1000(alice) groups=1000(alice)",
        "home": "/home/alice",
        "state-home": "/home/alice/.local/state",
        "machine": "gpu1\nx86_64",
        "ssh": "",
        "docker": json.dumps(info),
        "containers": "",
        "images": json.dumps([inspected("a")]),
        **dict.fromkeys(
            ("interfaces", "routes", "addresses", "tcp", "gpus", "runtime", "cdi", "cluster", "state"), ""
        ),
        **dict.fromkeys(("version", "tuned", "files", "boot", "infiniband", "imex", "disk"), ""),
    }
    return {**parts, **more}
