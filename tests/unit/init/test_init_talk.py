"""Conversations with toolkit init: findings, questions, answers, the file; no host is contacted."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import toolkit.cli.init_questions
import toolkit.cli.trust
import toolkit.remote.engine
from tests.golden import check_golden
from tests.unit.checks import recorded, scenes
from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.checks.model import Scene, Seen
from toolkit.checks.registry import judge
from toolkit.core.container import Mount
from toolkit.core.facts import ContainerFacts
from toolkit.errors import NotReady, ToolkitError, Unreachable, UnreachableCause
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.parse import parse_inventory
from toolkit.image.cuda import CUDA_VARIANTS
from toolkit.init import ssh_aliases
from toolkit.init.answers import cluster_name, free_name, read_choice, read_hosts, read_some
from toolkit.init.draft import Draft, DraftHost, hosts_file
from toolkit.init.filling import choice_of, filled, image_for
from toolkit.init.probe_hosts import Survey
from toolkit.init.shares import SHARES, common_shares
from toolkit.init.show import mixed_text, survey_text, variant_text
from toolkit.init.ssh_aliases import find_aliases, parse_aliases
from toolkit.init.survey import PODMAN_INFO, SurveyedHost, engine_of, summarize
from toolkit.init.trust import ShownKey
from toolkit.network.choose import Evidence
from toolkit.remote.known_hosts import Verdict
from toolkit.remote.ssh_config import Target

NEEDS_SSH = pytest.mark.skipif(not shutil.which("ssh"), reason="there is no ssh program on this machine")
NFS = "share|nfs4|nas:/export/data|rwx|128|1048576:1000|/data\n"


# What is found in ~/.ssh/config


def test_names_and_includes_of_an_ssh_configuration() -> None:
    text = (
        'Host gpu1 gpu2\n  HostName x\nhost=gpu3 # not this\nHOST "gpu 4" *.lan !gpu5 gpu?\n'
        '# Host no\nInclude conf.d/*  "~/my hosts"\nMatch host gpu9\nHost\n'
    )
    assert list(parse_aliases(text)) == [
        *(("host", name) for name in ("gpu1", "gpu2", "gpu3", "gpu 4")),
        *(("include", name) for name in ("conf.d/*", "~/my hosts")),
    ]


@pytest.fixture
def ssh_config(empty_home: Path) -> Iterator[Path]:
    """~/.ssh/config, empty again afterwards."""
    config = empty_home / ".ssh" / "config"
    yield config
    config.write_text("")
    (config.parent / "more.conf").unlink(missing_ok=True)


@NEEDS_SSH
def test_aliases_with_what_they_include_and_those_that_are_no_hosts(ssh_config: Path) -> None:
    (ssh_config.parent / "more.conf").write_text("Host gpu2\n  HostName 192.0.2.12\n")
    ssh_config.write_text(
        "Include m*.conf gone.conf\nHost gpu1 box\n  HostName 192.0.2.11\n  User alice\n"
        'Host github.com\n  User git\nHost "my box" GPU1\nHost *\n  Port 2222\n  User bob\n'
    )
    found = {alias.name: alias for alias in find_aliases()}
    assert list(found) == ["gpu2", "gpu1", "box", "github.com", "my box", "GPU1"]
    assert found["GPU1"].bar == "differs from gpu1 only in case"
    assert (found["gpu1"].place, found["gpu1"].bar) == ("alice@192.0.2.11:2222", "")
    assert found["gpu2"].place == "bob@192.0.2.12:2222"
    assert found["box"].bar == "same host as gpu1"
    assert found["github.com"].bar == "the alias logs in as user git"
    assert "should be a host name" in found["my box"].bar


def test_a_pipe_that_is_included_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "config").write_text(f"Include {tmp_path}/pipe /dev/zero {tmp_path}\n")
    assert find_aliases(tmp_path / "config") == find_aliases(tmp_path / "pipe") == ()


# Answers


def test_hosts_that_an_answer_picks() -> None:
    listed = ("gpu1", "gpu2", "box", "2nd")

    def picked(text: str) -> list[str]:
        return [host.address for host in read_hosts(text, listed)]

    assert picked("all") == list(listed)
    assert picked("1, 3 gpu1 2nd") == ["gpu1", "box", "2nd"]
    assert picked("2-3 alice@10.0.0.9") == ["gpu2", "box", "10.0.0.9"]
    assert read_hosts("x=alice@10.0.0.9:8", ()) == (DraftHost("10.0.0.9", "x", "alice", slots=8),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5", ["number from 1 to 2"]),
        ("0 9-1", ["'0': should be a number", "'9-1': should be a number"]),
        ("gpu1 a b@c@d :", ["'b@c@d': should be [NAME=", "':': should be a host name"]),
        ("1 \x1b[A", ["should be a host name"]),
        ("x GPU1=y X", ["listed twice", "lowercase"]),
        (",", ["select at least one host"]),
    ],
)
def test_answers_that_pick_no_hosts_name_every_fault(text: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        read_hosts(text, ("gpu1", "gpu2"))
    assert all(word in str(caught.value) for word in words), caught.value


def test_some_of_a_list_and_one_of_several_words() -> None:
    assert read_some("none", ("/a", "/b")) == ()
    assert read_some("all", ("/a", "/b")) == read_some("2 /a", ("/a", "/b")) == ("/a", "/b")
    with pytest.raises(ValueError, match="'/c' is not in the list; '7': should be a number from 1 to 2"):
        read_some("/c 7", ("/a", "/b"))
    assert read_choice("L", ("leave", "try")) == "leave"
    for text in ("", "x"):
        with pytest.raises(ValueError, match="should be one of leave, try"):
            read_choice(text, ("leave", "try"))


def test_names_for_a_cluster() -> None:
    assert cluster_name("hosts", "My Project_2") == "my-project-2"
    assert cluster_name("vision.prod", "x") == "vision-prod"
    assert cluster_name("-", "/") == cluster_name("hosts", "日本") == "demo"
    assert len(cluster_name("hosts", "a" * 31 + "-bc")) == 31
    assert free_name("a", ()) == "a" and free_name("a", ("a", "a-2")) == "a-3"


# What hosts say


def scene_of_hosts(**answers: str) -> Scene:
    base = scenes.scene(**answers)
    seen = {name: replace(one, answers={**one.answers, SHARES.name: NFS}) for name, one in base.seen.items()}
    return replace(base, seen=seen)


def survey_of(scene: Scene, engine: str = "docker") -> Survey:
    heard = {name: seen for name, seen in scene.seen.items() if seen.facts is not None}
    surveyed = summarize(scene, judge(replace(scene, seen=heard), ("host",)))
    return Survey(surveyed, scene, engine)


def away(scene: Scene, host: str, error: ToolkitError) -> Scene:
    return replace(scene, seen={**scene.seen, host: Seen(host, error=error)})


def test_hosts_that_can_be_used() -> None:
    surveyed = survey_of(scene_of_hosts()).hosts
    assert [one.usable for one in surveyed.values()] == [True] * 3
    assert surveyed["gpu1"].gpus and surveyed["gpu1"].processors and surveyed["gpu1"].memory
    newest, older = CUDA_VARIANTS
    assert image_for(list(surveyed.values()), newest) == "toolkit:gpu"
    assert image_for(list(surveyed.values()), older) == "toolkit:gpu-cuda12"
    assert image_for(list(surveyed.values()), None) == "toolkit:gpu"
    assert image_for([replace(one, gpus=()) for one in surveyed.values()], newest) == "toolkit:cpu"


def test_the_image_fits_drivers_and_gpus_of_the_hosts_that_are_kept() -> None:
    scene = scene_of_hosts()
    survey = survey_of(scene)
    hosts = list(survey.hosts)
    assert {gpu.driver for facts in scene.facts.values() for gpu in facts.gpus} == {"550.54.14"}
    older = survey.cuda_variant(hosts)
    assert older is not None and older.major == 12
    text = variant_text(list(survey.hosts.values()), older)
    assert "the image toolkit:gpu-cuda12, because CUDA 13 requires driver 580" in text
    assert "no toolkit GPU image fits" in variant_text(list(survey.hosts.values()), None)
    assert survey.cuda_variant([]) is CUDA_VARIANTS[0]
    assert variant_text(list(survey.hosts.values()), CUDA_VARIANTS[0]) == ""
    assert variant_text([replace(one, gpus=()) for one in survey.hosts.values()], None) == ""


def test_all_hosts_without_a_gpu_are_excluded() -> None:
    hosts = [SurveyedHost("gpu1", gpus=("T4",)), SurveyedHost("cpu1"), SurveyedHost("cpu2")]
    assert mixed_text(hosts).endswith("toolkit run --exclude cpu1,cpu2 SCRIPT")


def changed_key(known_as: str) -> ToolkitError:
    error = Unreachable("changed", "toolkit trust --replace gpu2", "gpu2", UnreachableCause.CHANGED_KEY)
    error.known_as = known_as
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            Unreachable("unknown", "toolkit trust gpu2", "gpu2", UnreachableCause.UNKNOWN_KEY),
            "ssh 10.77.0.3  # compare the fingerprint",
        ),
        (
            Unreachable("changed", "toolkit trust --replace gpu2", "gpu2", UnreachableCause.CHANGED_KEY),
            "ssh-keygen -R 10.77.0.3",
        ),
        (changed_key("[10.77.0.3]:2222"), "ssh-keygen -R '[10.77.0.3]:2222'  # only if"),
        (
            Unreachable("no such name", "set address: in hosts.yaml", "gpu2", UnreachableCause.UNKNOWN_NAME),
            "~/.ssh/config",
        ),
        (Unreachable("no answer", "ssh -p 22 gpu2", "gpu2"), "fix: ssh -p 22 gpu2"),
    ],
)
def test_a_host_that_cannot_be_reached_has_a_fix_that_needs_no_file(error: ToolkitError, words: str) -> None:
    surveyed = survey_of(away(scene_of_hosts(), "gpu2", error)).hosts
    assert not surveyed["gpu2"].usable and surveyed["gpu1"].usable
    text = survey_text(surveyed)
    assert f"CANNOT BE USED: {error.what}" in text and words in text
    assert "toolkit trust" not in text and "hosts.yaml" not in text


def test_docker_that_is_forbidden_shuts_a_host_and_missing_gpu_support_does_not() -> None:
    denied = NotReady("user alice cannot use docker", "on gpu2: sudo usermod -aG docker alice", "gpu2")
    surveyed = survey_of(scenes.with_host(scene_of_hosts(), "gpu2", error=denied)).hosts
    assert (surveyed["gpu2"].what, surveyed["gpu2"].fix) == (denied.what, denied.fix)
    without = {"docker": scenes.info("gpu2", Runtimes={"runc": {}}), "gpu_health": recorded.gpus(tail="")}
    surveyed = survey_of(scene_of_hosts(**without)).hosts
    text = survey_text(surveyed)
    assert surveyed["gpu2"].usable and "problem: the container engine cannot give GPUs to containers" in text
    assert "fix: on gpu2: install nvidia-container-toolkit" in text


def test_the_engine_that_more_hosts_have_is_the_cluster_s() -> None:
    podman = json.dumps({"host": {}, "store": {}, "version": {"Version": "5.4.2"}})
    scene, none = scene_of_hosts(), NotReady("docker is not installed", "install it")
    assert engine_of(scene) == "docker"
    for name in ("gpu2", "cpu3"):
        had = {**scene.seen[name].answers, "docker": "", PODMAN_INFO.name: podman}
        scene = scenes.with_host(scene, name, error=none, answers=had)
    assert engine_of(scene) == "podman"
    one = replace(scene, seen={n: s for n, s in scene.seen.items() if n != "cpu3"})
    assert engine_of(one) == "docker"
    assert (
        "the host has podman, but all hosts of a cluster must use the same container engine"
        in survey_of(one).hosts["gpu2"].what
    )


# Shared file systems


def shared(*texts: str) -> list[str]:
    seen = []
    for name, text in zip(scene_of_hosts().seen, texts, strict=False):
        one = scene_of_hosts().seen[name]
        seen.append(replace(one, answers={**one.answers, SHARES.name: text}))
    return [f"{s.mount.source}{':ro' if s.mount.read_only else ''}" for s in common_shares(seen)]


def test_shares_that_all_hosts_have() -> None:
    other = NFS.replace("nas:", "10.0.0.1:").replace("nfs4", "nfs")
    assert shared(NFS, other) == ["/data"]
    assert shared(NFS, NFS.replace("rwx", "rx")) == ["/data:ro"]
    below = NFS.replace("/data\n", "/data/sub\n")
    assert shared(NFS + below, below + NFS) == ["/data"]


@pytest.mark.parametrize(
    "other",
    [
        "",
        NFS.replace("/data\n", "/scratch\n"),
        NFS.replace("|128|", "|129|"),
        NFS.replace(":1000|", ":2000|"),
        NFS.replace("rwx", "x"),
        "half|a|line\n",
    ],
)
def test_what_is_no_common_share(other: str) -> None:
    assert shared(NFS, other) == []


@for_each(
    "folder",
    ["/", "/home", "/home/alice", "/opt", "/usr/local", "/var/lib/x", "/a\\040b", "/a:b", "/run/x", "/etc"],
)
def test_paths_that_containers_have_for_themselves_are_not_offered(folder: str) -> None:
    text = NFS.replace("|/data\n", f"|{folder}\n")
    assert shared(text, text) == []


# What is written


def draft() -> Draft:
    return Draft(hosts=(DraftHost("10.77.0.2", "gpu1"), DraftHost("10.77.0.3", "gpu2"), DraftHost("cpu3")))


def test_the_file_that_comes_of_it() -> None:
    survey = survey_of(scene_of_hosts())
    made = filled(draft(), survey.hosts, choice_of(draft(), survey.scene, survey.hosts, Evidence()))
    made = replace(made, mounts=(Mount("/data", "/data", True),), left_out=(("box", "no answer\nat all"),))
    text = hosts_file(replace(made, engine="podman"))
    check_golden("init/found.yaml", text)
    inventory = parse_inventory(text, "hosts.yaml")
    assert [host.slots for host in inventory.hosts] == [2, 2, 2] and inventory.engine == "podman"
    assert not any(host.data_address for host in inventory.hosts)


@pytest.mark.parametrize("folder", ["/data/\U0001f680", "/da ta", "/data/é"])
def test_any_path_of_a_mount_is_read_back(folder: str) -> None:
    text = hosts_file(replace(draft(), mounts=(Mount(folder, folder, False),)))
    assert parse_inventory(text, "hosts.yaml").mounts == (Mount(folder, folder, False),)


def test_slots_that_somebody_wrote_stay_and_split_gpus_are_left_to_the_default() -> None:
    split = replace(survey_of(scene_of_hosts()).hosts["gpu2"], split=True)
    survey = survey_of(scene_of_hosts())
    surveyed = {**survey.hosts, "gpu2": split}
    given = replace(draft(), hosts=(replace(draft().hosts[0], slots=1), *draft().hosts[1:]))
    made = filled(given, surveyed, choice_of(given, survey.scene, surveyed, Evidence()))
    assert [host.slots for host in made.hosts] == [1, None, 2]


def test_a_main_without_slots_gets_its_own_back_when_the_others_are_left_out() -> None:
    survey = survey_of(scene_of_hosts())
    alone = Draft(hosts=(DraftHost("10.77.0.2", "gpu1", slots=0),))
    made = filled(alone, survey.hosts, choice_of(alone, survey.scene, survey.hosts, Evidence()))
    assert [host.slots for host in made.hosts] == [None]
    assert parse_inventory(hosts_file(made), "hosts.yaml").names == ("gpu1",)


def test_an_address_that_the_toolkit_cannot_choose_becomes_a_setting() -> None:
    scene = scene_of_hosts()
    facts = scene.seen["gpu2"].facts
    assert facts is not None
    moved = tuple(replace(i, address="198.51.100.7", prefix=32) for i in facts.interfaces[-1:])
    scene = scenes.with_host(scene, "gpu2", {"interfaces": moved, "ssh_address": "", "links": ()})
    survey = survey_of(scene)
    made = filled(draft(), survey.hosts, choice_of(draft(), scene, survey.hosts, Evidence()))
    assert [host.data_address for host in made.hosts if host.name == "gpu2"] == ["198.51.100.7"]
    assert "could not verify" in hosts_file(made)


def test_words_of_hosts_cannot_leave_their_comment() -> None:
    host = DraftHost("gpu1", notes=("x\ncluster: evil\r\x0bimage: evil\u2028y: z " + "long " * 99,))
    inventory = parse_inventory(hosts_file(Draft(hosts=(host,))), "hosts.yaml")
    assert (inventory.cluster, inventory.image, inventory.names) == ("demo", "toolkit:gpu", ("gpu1",))


# The conversation


class Typed(io.StringIO):
    """Standard input of a person: a list of lines; an exception among them is raised."""

    def __init__(self, lines: Sequence[str | BaseException]) -> None:
        super().__init__()
        self.lines = list(lines)

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        if not self.lines:
            return ""
        line = self.lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return f"{line}\n"


@pytest.fixture
def talk(run: Run, monkeypatch: pytest.MonkeyPatch, ssh_config: Path) -> Iterator[Run]:
    """Call init on a terminal that types the answers; the hosts are those of the recorded scene."""
    ssh_config.write_text("Host gpu1 gpu2 cpu3\n  User alice\n")
    monkeypatch.setattr(toolkit.cli.init_questions, "shown_keys", lambda inventory, names: [])
    monkeypatch.setattr(
        toolkit.cli.init_questions, "survey_hosts", lambda draft, away: survey_of(scene_of_hosts())
    )
    monkeypatch.setattr(toolkit.remote.engine.Engine, "find", lambda: None)

    def call(*words: str, typed: Sequence[str | BaseException] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", Typed(typed))
        monkeypatch.setattr("toolkit.cli.init_questions.on_terminal", lambda: True)
        monkeypatch.setattr("toolkit.cli.init.on_terminal", lambda: True)
        return run("init", *words)

    yield call


@NEEDS_SSH
def test_enter_takes_every_default(talk: Run, tmp_path: Path) -> None:
    status, out, err = talk("-o", "team.yaml", typed=[""] * 4)
    assert (status, out) == (0, "")
    check_golden("init/talk.txt", err)
    inventory = parse_inventory((tmp_path / "team.yaml").read_text(), "team.yaml")
    assert inventory.names == ("gpu1", "gpu2", "cpu3") and inventory.image == "toolkit:gpu-cuda12"
    assert [mount.source for mount in inventory.mounts] == ["/data"]


@NEEDS_SSH
def test_a_wrong_answer_is_asked_again(talk: Run, tmp_path: Path) -> None:
    status, _, err = talk(typed=["9", "all", "/x", "none", "No!", "mine", "maybe", "y"])
    assert status == 0 and "number from 1 to 3" in err and "'/x' is not in the list" in err
    assert "should be a name of 1 to 32 characters of a-z" in err and "should be one of yes, no" in err
    inventory = parse_inventory((tmp_path / "hosts.yaml").read_text(), "hosts.yaml")
    assert inventory.cluster == "mine" and inventory.mounts == ()


@NEEDS_SSH
@pytest.mark.parametrize("end", [KeyboardInterrupt(), EOFError()])
@pytest.mark.parametrize("answers", [0, 1, 2, 3])
def test_ctrl_c_and_the_end_of_input_write_nothing(
    talk: Run, tmp_path: Path, answers: int, end: BaseException
) -> None:
    typed: list[str | BaseException] = ["all", "all", "demo"][:answers]
    status, out, err = talk(typed=[*typed, *([end] if isinstance(end, KeyboardInterrupt) else [])])
    assert (status, out) == (130, "") and list(tmp_path.iterdir()) == []
    assert err.splitlines()[-1].startswith("toolkit: ") and "toolkit wrote no hosts.yaml" in err
    assert "\n\n" not in err[-80:]


@NEEDS_SSH
def test_no_to_the_file_and_a_file_that_is_there(talk: Run, tmp_path: Path) -> None:
    status, _, err = talk(typed=["", "", "", "no"])
    assert status == 1 and err.endswith("toolkit wrote no hosts.yaml\n") and list(tmp_path.iterdir()) == []
    (tmp_path / "hosts.yaml").write_text("mine")
    status, out, err = talk(typed=[])
    assert status == 2 and "exists already" in err and "which of them" not in err
    for output in (".", "gone/hosts.yaml"):
        status, out, err = talk("-o", output, "--force", typed=[])
        assert status == 2 and "cannot be written" in err and "which of them" not in err
    status, out, err = talk("--dry-run", typed=["", "", ""])
    assert status == 0 and parse_inventory(out, "out").names == ("gpu1", "gpu2", "cpu3")
    assert (tmp_path / "hosts.yaml").read_text() == "mine"


@NEEDS_SSH
def test_a_host_that_cannot_be_used_is_left_out_kept_or_tried_again(
    talk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = away(scene_of_hosts(), "gpu2", Unreachable("no answer from it", "look at it", "gpu2"))
    told = [lost, scene_of_hosts(), lost, lost]
    monkeypatch.setattr(
        toolkit.cli.init_questions, "survey_hosts", lambda draft, away: survey_of(told.pop(0))
    )
    assert talk(typed=["", "try", "", "a", ""])[0] == 0
    text = (tmp_path / "hosts.yaml").read_text()
    assert parse_inventory(text, "x").names == ("gpu1", "gpu2", "cpu3") and "no answer" not in text
    assert talk("--force", typed=["", "", "", "a", ""])[0] == 0
    text = (tmp_path / "hosts.yaml").read_text()
    assert parse_inventory(text, "x").names == ("gpu1", "cpu3")
    assert "# left out: gpu2: no answer from it" in text
    assert talk("--force", typed=["", "keep", "", "a", ""])[0] == 0
    text = (tmp_path / "hosts.yaml").read_text()
    assert parse_inventory(text, "x").names == ("gpu1", "gpu2", "cpu3")
    assert "# toolkit init could not use this host: no answer from it" in text


@NEEDS_SSH
def test_without_questions(talk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = talk("--yes", "--json", "-o", "lab.yaml")
    said = json.loads(out)
    assert status == 0 and said["cluster"] == "lab" and said["hosts"] == ["gpu1", "gpu2", "cpu3"]
    assert said["mounts"] == ["/data"] and [one["usable"] for one in said["found"]] == [True] * 3
    assert said["found"][0]["data_address"] and "[all]" not in err
    lost = away(scene_of_hosts(), "gpu2", Unreachable("no answer from it", "look at it", "gpu2"))
    monkeypatch.setattr(toolkit.cli.init_questions, "survey_hosts", lambda draft, away: survey_of(lost))
    named = ("gpu1", "gpu2", "cpu3", "--try", "--cluster", "x", "--image", "a:b")
    status, out, _ = talk(*named, "--json", "--force")
    assert status == 1 and json.loads(out)["left_out"] == [{"host": "gpu2", "what": "no answer from it"}]
    inventory = parse_inventory((tmp_path / "hosts.yaml").read_text(), "hosts.yaml")
    assert (inventory.names, inventory.cluster, inventory.image) == (("gpu1", "cpu3"), "x", "a:b")
    assert talk("--find", "--try", "--force")[0] == 0


@NEEDS_SSH
def test_when_no_host_can_be_used_nothing_is_written(
    talk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of_hosts()
    for name in scene.seen:
        scene = away(scene, name, Unreachable("no answer", f"look at {name}", name))
    monkeypatch.setattr(toolkit.cli.init_questions, "survey_hosts", lambda draft, away: survey_of(scene))
    status, out, err = talk(typed=["", ""])
    assert status == 1 and "no host is usable, so toolkit wrote no hosts.yaml" in err
    status, out, err = talk("--yes", "--json")
    said = json.loads(out)
    assert status == 1 and not said["ok"] and [f["what"] for f in said["found"]] == ["no answer"] * 3
    assert list(tmp_path.iterdir()) == []


@NEEDS_SSH
def test_a_name_that_another_user_of_the_hosts_has(
    talk: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    labels = {"toolkit.cluster": "mine", "toolkit.owner": "bob"}
    theirs = ContainerFacts("1", "toolkit-mine-main", "running", labels)
    scene = scenes.with_host(scene_of_hosts(), "gpu2", {"containers": (theirs,)})
    monkeypatch.setattr(toolkit.cli.init_questions, "survey_hosts", lambda draft, away: survey_of(scene))
    status, _, err = talk("-o", "mine.yaml", typed=["", "", "mine", "", ""])
    assert status == 0 and "user bob has a cluster with this name on gpu2" in err and "[mine-2]" in err
    status, _, err = talk("-o", "x.yaml", "--yes", "--cluster", "mine")
    assert (
        status == 3 and "of user bob already exists on the host" in err and not (tmp_path / "x.yaml").exists()
    )


@NEEDS_SSH
def test_nothing_found_and_none_named_gives_a_file_to_fill_in(
    talk: Run, tmp_path: Path, ssh_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_config.write_text("Host *\n  User alice\n")
    status, _, err = talk(typed=["", ""])
    assert status == 0 and "connecting" not in err and "add your hosts to the file" in err
    assert parse_inventory((tmp_path / "hosts.yaml").read_text(), "x").names == ("gpu1", "gpu2")
    seen: list[Draft] = []

    def survey_hosts(draft: Draft, away: object) -> Survey:
        seen.append(draft)
        return survey_of(scene_of_hosts())

    monkeypatch.setattr(toolkit.cli.init_questions, "survey_hosts", survey_hosts)
    words = ("--force", "--user", "carol", "--cluster", "x")
    assert talk(*words, typed=["gpu1 bob@gpu2 cpu3", "", ""])[0] == 0
    assert [host.user for host in seen[0].hosts] == ["carol", "bob", "carol"]


@NEEDS_SSH
def test_unknown_ssh_keys_are_asked_about_and_those_behind_a_jump_host_after_it(
    talk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target("gate", "10.0.0.1", known_hosts=(str(tmp_path / "known"),))
    behind = replace(target, name="gpu2", jump=(target,))
    shown = [
        ShownKey("gate", target, "ssh-ed25519", "SHA256:gate"),
        ShownKey("gpu1", target, verdict="good"),
        ShownKey("gpu2", behind, failure=ToolkitError("behind gate", "x")),
        ShownKey("cpu3", None, failure=Unreachable("off; fix: no", "on", "", UnreachableCause.UNKNOWN_NAME)),
    ]
    again = [ShownKey("gate", target, verdict="good"), ShownKey("gpu2", behind, "ssh-rsa", "SHA256:gpu2")]
    rounds = [shown, again]
    asked: list[tuple[str, ...]] = []
    recorded: list[str] = []
    surveyed: list[dict[str, ToolkitError]] = []

    def look(inventory: Inventory, names: tuple[str, ...]) -> list[ShownKey]:
        asked.append(names)
        return rounds[len(asked) - 1]

    def record(found: ShownKey) -> Path:
        recorded.append(found.host)
        return Path("known")

    def survey_hosts(draft: Draft, away: dict[str, ToolkitError]) -> Survey:
        surveyed.append(away)
        return survey_of(scene_of_hosts())

    monkeypatch.setattr(toolkit.cli.init_questions, "shown_keys", look)
    monkeypatch.setattr(toolkit.cli.trust, "record", record)
    monkeypatch.setattr(toolkit.cli.init_questions, "survey_hosts", survey_hosts)
    monkeypatch.setattr("typer.confirm", lambda text, err: True)
    status, _, err = talk("gpu1", "gpu2", "cpu3", "--try")
    assert status == 0 and "gate: ssh-ed25519 SHA256:gate (new)" in err and "gpu1: " not in err
    assert asked == [("gpu1", "gpu2", "cpu3"), ("gpu2",)] and recorded == ["gate", "gpu2"]
    (error,) = surveyed[0].values()
    assert isinstance(error, Unreachable) and error.cause is UnreachableCause.UNKNOWN_NAME
    assert (error.host, error.what, error.fix) == ("cpu3", "off; fix: no", "on")
    asked.clear()
    status, _, err = talk("gpu1", "gpu2", "cpu3", "--yes", "--force")
    assert status == 0 and len(asked) == 1 and recorded == ["gate", "gpu2"] and "SHA256" not in err


def test_keys_of_two_jump_hosts_in_a_chain_are_asked_about_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("gpu1 (jump host outer)", "gpu1 (jump host inner)", "gpu1")
    outer = Target(names[0], "outer", is_jump=True)
    inner = Target(names[1], "inner", jump=(outer,), is_jump=True)
    target = Target("gpu1", "10.0.0.5", jump=(outer, inner))
    recorded: list[str] = []

    def look_at(target: Target, gateways: object) -> ShownKey:
        if any(hop.name not in recorded for hop in target.jump):
            raise Unreachable("the jump host is not trusted", "x", target.name)
        verdict: Verdict = "good" if target.name in recorded else "unknown"
        return ShownKey(target.name, target, "ssh-ed25519", f"SHA256:{target.name}", verdict=verdict)

    def settle(found: ShownKey, dry_run: bool) -> ShownKey:
        recorded.append(found.host)
        return replace(found, verdict="good")

    def target_of(inventory: Inventory, name: str) -> Target:
        assert inventory.host(name)
        return target

    monkeypatch.setattr(toolkit.init.trust, "target_of", target_of)
    monkeypatch.setattr(toolkit.init.trust, "_look_at", look_at)
    monkeypatch.setattr(toolkit.cli.init_questions, "on_terminal", lambda: True)
    monkeypatch.setattr(toolkit.cli.init_questions, "settle", settle)
    inventory = parse_inventory("cluster: demo\nimage: x:1\nhosts: [gpu1]\n", "hosts.yaml")
    assert toolkit.cli.init_questions._settle_keys(inventory, ["gpu1"], False, False) == {}
    assert recorded == list(names)


def test_nobody_to_ask_and_nothing_found(run: Run, tmp_path: Path) -> None:
    for words in (("--find",), ("--yes",), ("--try",)):
        status, _, err = run("init", *words)
        assert status == 2 and "contains no host that can be part of a cluster" in err
    status, _, err = run("init", "gpu1", "--find")
    assert status == 2 and "--find: cannot be combined with HOST or --from-hostfile" in err
    assert list(tmp_path.iterdir()) == []


@NEEDS_SSH
def test_found_hosts_are_written_without_being_contacted(run: Run, tmp_path: Path, ssh_config: Path) -> None:
    ssh_config.write_text("Host gpu1 gpu2\n")
    status, out, err = run("init", "--find", "--json")
    assert status == 0 and json.loads(out) == {"file": "hosts.yaml", "hosts": ["gpu1", "gpu2"]}
    assert "hosts of ~/.ssh/config" in err


def test_gpu_names_are_counted() -> None:
    surveyed = replace(survey_of(scene_of_hosts()).hosts["gpu1"], gpus=("A", "B", "A"))
    assert "2 x A, 1 x B" in survey_text({"gpu1": surveyed})


def test_a_configuration_that_includes_itself_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    config = tmp_path / ".ssh" / "config"
    config.write_text("Include config conf*\n" * 5 + "Host gpu1\n")
    assert list(ssh_aliases._names(config)) == ["gpu1"]
