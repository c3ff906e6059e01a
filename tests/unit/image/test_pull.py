"""Hosts that pull the image themselves: who does, what is made of it, what goes wrong."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.hosts_here import HostHere, execute, hosts
from toolkit.api.executors import EXECUTORS
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.session import Session
from toolkit.core.command import TIMED_OUT, Command, Result, script
from toolkit.core.facts import Facts
from toolkit.core.image import image_facts, registry_of
from toolkit.core.runner import Sink
from toolkit.errors import ImageError
from toolkit.hostsfile.inventory import Inventory
from toolkit.image import send
from toolkit.image.pull import ask_registry, plan_pull, pull_failures
from toolkit.lifecycle.up import image_steps, plan_up
from toolkit.plan.context import room_fix
from toolkit.plan.show import plan_text
from toolkit.plan.steps import PullImage, Run, SendImage
from toolkit.protocol.decode import decode
from toolkit.protocol.engine import ImageInspect

OTHER = replace(world.NAMED, id="sha256:" + "2" * 64, identity="f" * 16)


def pulling(how: str, image: str = "toolkit:cpu") -> Inventory:
    return world.inventory(
        world.HOSTS.replace("image: toolkit:cpu", f"image: {{name: {image}, pull: {how}}}")
    )


def who(how: str, said: dict[str, Facts] | None = None, image: str = "toolkit:cpu") -> list[str]:
    return [step.host for step in plan_pull(pulling(how, image), said or world.cluster_facts()).steps]


def test_who_pulls() -> None:
    # cpu3 has no image at all.
    assert who("never") == []
    assert who("missing") == ["cpu3"]
    assert who("always") == ["gpu1", "gpu2", "cpu3"]
    assert who("missing", image="toolkit:other") == ["gpu1", "gpu2", "cpu3"]


def test_an_image_that_is_named_by_its_digest_is_found_again() -> None:
    digest = "reg.example.com/trainer@sha256:" + "a" * 64
    inspect = {"Id": "sha256:1", "RepoTags": [], "RepoDigests": [digest], "Architecture": "arm64"}
    found = image_facts(decode(ImageInspect, inspect))
    assert (found.tags, found.arch) == ((digest,), "arm64")
    said = {name: replace(f, images=(found,), arch="aarch64") for name, f in world.cluster_facts().items()}
    assert who("missing", said, f"reg.example.com/trainer:1.0@sha256:{'a' * 64}") == []
    assert make_layout(pulling("missing", digest), Observed(said)).image == found


def test_an_image_of_docker_hub_is_found_again_with_podman() -> None:
    digest = "docker.io/team/trainer@sha256:" + "a" * 64
    inspect = {"Id": "1", "RepoTags": ["docker.io/team/trainer:1"], "RepoDigests": [digest]}
    found = image_facts(decode(ImageInspect, inspect), "podman")
    said = {name: replace(f, images=(found,)) for name, f in world.cluster_facts().items()}
    for name in ("docker.io/team/trainer:1", "team/trainer:1", digest):
        file = world.inventory(
            world.HOSTS.replace(
                "image: toolkit:cpu", f"engine: podman\nimage: {{name: {name}, pull: missing}}"
            )
        )
        # Podman has no default registry, so the name that it pulls contains one.
        (step, *_) = plan_pull(file, world.cluster_facts()).steps
        assert isinstance(step, PullImage) and step.reference.startswith("docker.io/team/trainer")
        assert not plan_pull(file, said).steps
        assert make_layout(file, Observed(said, by_name=True)).image == found


@pytest.mark.parametrize("name", ["trainer:1", "team/trainer:1", "localhost/trainer:1"])
def test_podman_pulls_no_image_that_a_host_has_under_the_name_of_the_file(name: str) -> None:
    """Another user of Docker Hub can own the same name there."""
    built = f"localhost/{name.removeprefix('localhost/')}"
    found, other = (
        image_facts(decode(ImageInspect, {"Id": id_, "Architecture": id_, "RepoTags": [tag]}), "podman")
        for id_, tag in (("", built), ("other", f"docker.io/library/{name}"))
    )
    bare = world.cluster_facts()
    said = {host: replace(f, images=(found, other)) for host, f in bare.items()}
    text = world.HOSTS.replace("image: toolkit:cpu", f"image: {{name: '{name}', pull: missing}}")
    file = world.inventory(f"{text}engine: podman\n")
    assert file.image == name and not plan_pull(file, said).steps
    assert plan_pull(file, bare).steps
    layout = make_layout(file, Observed(said, by_name=True))
    assert layout.image == found
    (tagged,) = image_steps(layout, layout.places[0])
    assert isinstance(tagged, Run) and tagged.command.argv[-1] == name.removeprefix("localhost/")


def test_podman_gives_a_pulled_image_no_short_name() -> None:
    """Podman prefers localhost/NAME to docker.io/NAME, so the former would hide an image that is pulled."""
    found = replace(world.IMAGE, tags=("docker.io/team/trainer:1",))
    said = {host: replace(f, images=(found,)) for host, f in world.cluster_facts().items()}
    for how in ("missing", "always"):
        text = world.HOSTS.replace("image: toolkit:cpu", f"image: {{name: team/trainer:1, pull: {how}}}")
        layout = make_layout(world.inventory(f"{text}engine: podman\n"), Observed(said))
        (tagged,) = image_steps(layout, layout.places[0])
        assert isinstance(tagged, Run) and tagged.command.argv[-1] == "docker.io/team/trainer:1"


def test_the_plan_in_words() -> None:
    check_golden("plan/pull.txt", plan_text(plan_pull(pulling("always"), world.cluster_facts())))
    assert plan_pull(pulling("never"), world.cluster_facts()).phases == ()


def test_hosts_of_two_kinds_pull_nothing() -> None:
    said = world.cluster_facts()
    said["gpu2"] = replace(said["gpu2"], arch="aarch64")
    with pytest.raises(ImageError, match="gpu1 is amd64, gpu2 is arm64, cpu3 is amd64"):
        plan_pull(pulling("always"), said)
    assert plan_pull(pulling("never"), said).phases == ()


# What is meant afterwards


def test_what_was_pulled_counts_and_not_what_runs() -> None:
    up = world.facts_when_up()
    running = {
        name: replace(
            f,
            images=(OTHER, replace(world.NAMED, tags=())),
            containers=tuple(replace(c, image=world.NAMED.id) for c in f.containers),
        )
        for name, f in up.items()
    }
    assert make_layout(pulling("always"), Observed(running, by_name=True)).image == OTHER
    assert make_layout(pulling("always"), Observed(running)).image.identity == world.NAMED.identity
    # A registry that does not answer changes nothing: the running image is known.
    bare = {name: replace(f, images=f.images[1:]) for name, f in running.items()}
    assert (
        make_layout(pulling("missing"), Observed(bare, by_name=True)).image.identity == world.NAMED.identity
    )


@pytest.mark.parametrize(("how", "fix"), [("missing", "pull: always"), ("always", "the same command again")])
def test_hosts_that_hold_different_ones_afterwards(how: str, fix: str) -> None:
    said = world.cluster_facts()
    said |= {"gpu2": replace(said["gpu2"], images=(OTHER,)), "cpu3": replace(said["cpu3"], images=(OTHER,))}
    with pytest.raises(ImageError, match="gpu1 has 0123456789abcdef, gpu2 has ffffffffffffffff") as caught:
        make_layout(pulling(how), Observed(said, by_name=True))
    assert fix in caught.value.fix


def test_after_a_pull_nothing_is_sent() -> None:
    said = {name: replace(f, images=(world.NAMED,)) for name, f in world.cluster_facts().items()}
    plan = plan_up(make_layout(pulling("missing"), Observed(said, by_name=True)), world.INSIDE)
    assert not [step for step in plan.steps if isinstance(step, SendImage)]
    with pytest.raises(ImageError, match="no host that answered has the image") as caught:
        make_layout(pulling("missing"), Observed({n: replace(f, images=()) for n, f in said.items()}))
    assert "toolkit up" in caught.value.fix


# The pull itself, with a docker that a script plays

DOCKER = """#!/bin/sh
case "$1 $2" in
'image inspect') cat "$STORE" 2>/dev/null ;;
'pull '*)
  [ ! -s "$REGISTRY/error" ] || { cat "$REGISTRY/error" >&2; exit 1; }
  echo "1: Pull complete"; cp "$REGISTRY/image" "$STORE"; echo "docker.io/$2" ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("REGISTRY", str(tmp_path))
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    (tmp_path / "image").write_text("sha256:one\n")
    return tmp_path


def pull(said: dict[str, Facts] | None = None) -> Any:
    plan = plan_pull(pulling("always", "reg.example.com:5000/a:1"), said or {"gpu1": world.facts()})
    return execute(plan, hosts("gpu1", "gpu2")).outcomes


def test_the_same_image_again_is_no_change(registry: Path) -> None:
    assert [pull()[0].status for _ in range(2)] == ["ok", "skipped"]
    (registry / "image").write_text("sha256:two\n")
    assert [pull()[0].status for _ in range(2)] == ["ok", "skipped"]


def test_a_pull_that_prints_nothing_is_given_up(registry: Path) -> None:
    class Hangs(HostHere):
        def stream(self, command: Command, sink: Sink, source: object = None, silence: float = 0.0) -> Result:
            return Result(TIMED_OUT, "", f"the command printed nothing for {silence:g} s")

    plan = plan_pull(pulling("always", "reg.example.com:5000/a:1"), {"gpu1": world.facts()})
    words = "the pull from the registry reg.example.com:5000 made no progress for 30 minutes"
    for engine in ("docker", "podman"):
        (outcome,) = execute(plan, {"gpu1": Hangs("gpu1")}, engine=engine).outcomes
        assert (outcome.host, outcome.status, outcome.detail) == ("gpu1", "failed", words)
        assert outcome.fix == f"on gpu1: {engine} pull reg.example.com:5000/a:1"


def test_a_pull_that_fails_at_once_leaves_no_process(tmp_path: Path) -> None:
    """A signal can reach the forked process before it becomes `sleep`; the fixtures find what is left."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 1\n")
    docker.chmod(0o755)
    words = [str(word) for word in script(send._PULL, "reg/a:1").argv]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for _ in range(20):
        # Side by side, so that the signal comes at different moments.
        tries = [subprocess.Popen(words, env=env) for _ in range(8)]
        assert [each.wait() for each in tries] == [1] * 8


def test_bytes_that_a_host_receives_are_a_sign_of_life(tmp_path: Path) -> None:
    """Without a terminal, `docker pull` prints nothing while it downloads a layer."""
    for name, text in (
        ("docker", '[ "$1" = image ] || while ! grep -q moved "$AT/log"; do sleep 0.01; done\nexit 0'),
        ("sleep", "exec /bin/sleep 0.01"),
        ("awk", "echo x >>$AT/count; echo $(($(wc -l <$AT/count) / 3))"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "log").touch()
    heard: list[bytes] = []
    words = [str(word) for word in script(send._PULL, "reg/a:1").argv]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "AT": str(tmp_path)}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):
            heard.append(process.stdout.readline())
        (tmp_path / "log").write_text("moved")
        rest = process.stdout.read()
    assert process.returncode == 0 and heard == [b"\n"] * 2 and not rest.strip()


def test_the_bytes_that_a_host_received_are_counted(tmp_path: Path) -> None:
    (count,) = [line for line in send._PULL.splitlines() if line.startswith("received()")]
    done = subprocess.run(["sh", "-c", f"{count}\nreceived"], capture_output=True, check=True)
    rows = Path("/proc/net/dev").read_text().splitlines()[2:]
    assert 0 <= sum(int(row.partition(":")[2].split()[0]) for row in rows) // 2**20 - int(done.stdout) <= 1000


# Of 20.10 and 26.1 with both image stores, from a registry, from none, and from Docker Hub.
@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        ("manifest for reg/a:1 not found: manifest unknown: manifest unknown", "not contain", "push the"),
        ('failed to resolve reference "reg/a:1": reg/a:1: not found', "not contain", "set image:"),
        ('Get "https://reg/v2/": dial tcp: lookup reg on 127.0.0.11:53: no such host', "reach", "of gpu1"),
        ('Get "http://reg/v2/": dial tcp 127.0.0.1:5000: connect: connection refused', "not reach", "proxy"),
        ("context deadline exceeded", "not reach", "image: {name: reg.example.com:5000/a:1, pull: never}"),
        ("net/http: TLS handshake timeout", "not reach", "proxy"),
        ('Get "https://reg/v2/": no basic auth credentials', "denies", "docker login reg.example.com:5000"),
        ("pull access denied for x, repository does not exist or may require login", "denies", "image name"),
        ("unauthorized: authentication required", "denies", "on gpu1: docker login"),
        ('Get "https://reg/v2/": http: server gave HTTP response to HTTPS client', "not trust", "certs.d"),
        ("tls: first record does not look like a TLS handshake", "not trust", "insecure-registries"),
        ("x509: certificate signed by unknown authority", "not trust", "insecure-registries"),
        ("no matching manifest for linux/arm64/v8 in the manifest list", "processor", "remove gpu1"),
        ("toomanyrequests: You have reached your pull rate limit.", "rate limit of the", "docker login"),
        ("failed to register layer: write /x: no space left on device", "host is full", "docker system df"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_told_with_its_cure(registry: Path, words: str, what: str, fix: str) -> None:
    (registry / "error").write_text(f"Error response from daemon: {words}\n")
    (outcome,) = pull()
    assert outcome.status == "failed" and what in outcome.detail and words in outcome.detail
    assert fix in outcome.fix


def test_words_that_nobody_knows_are_passed_on(registry: Path) -> None:
    (registry / "error").write_text("the moon is full\n")
    (outcome,) = pull()
    assert "the moon is full" in outcome.detail
    assert outcome.fix == "on gpu1: docker pull reg.example.com:5000/a:1"


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("a:1", "docker.io"),
        ("team/a:1", "docker.io"),
        ("localhost/a:1", "localhost"),
        ("host:5000/a:1", "host:5000"),
        ("reg.example.com/team/a@sha256:0", "reg.example.com"),
    ],
)
def test_the_registry_of_an_image(image: str, registry: str) -> None:
    assert registry_of(image) == registry


# The second look


def test_a_host_whose_pull_failed_takes_no_further_part(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(pulling("always"), executors=EXECUTORS)
    session.facts = world.cluster_facts()
    session.runners = {name: HostHere(name) for name in session.facts}  # type: ignore[misc]
    plan = plan_pull(session.inventory, session.facts)
    broken = replace(plan.steps[1], reference="--no-such")  # type: ignore[arg-type]
    steps = (plan.steps[0], broken, plan.steps[2])
    monkeypatch.setenv("STORE", str(registry / "store"))
    again = {name: replace(f, docker="probed again") for name, f in session.facts.items()}
    monkeypatch.setattr(session, "_ask", lambda name: again[name])
    (registry / "bin" / "docker").write_text(DOCKER.replace("cp ", '[ "$2" != --no-such ] || exit 1; cp '))
    report = session.pull(replace(plan, phases=(replace(plan.phases[0], steps=steps),)))
    assert [o.status for o in report.outcomes].count("failed") == 1
    assert list(session.facts) == ["gpu1", "cpu3"] and session.errors == {}
    assert {f.docker for f in session.facts.values()} == {"probed again"}
    layout = make_layout(session.inventory, Observed(session.facts))
    whole = execute(plan_up(layout, {}), {}).after(report)
    assert [o.host for o in whole.outcomes[:3]] == ["gpu1", "gpu2", "cpu3"]
    assert not whole.ok and not [o for o in whole.outcomes[3:] if o.host == "gpu2"]


ASKED = """#!/bin/sh
echo "$*" >>"$ASKED"
case $1 in info) printf '%s\\n' 127.0.0.0/8 lab:5000 ;; *) exit 1 ;; esac
"""


@pytest.mark.parametrize(("image", "insecure"), [("lab:5000/a", True), ("other:5000/a", False), ("a", False)])
def test_a_password_goes_to_no_registry_without_a_certificate_unless_the_engine_is_told_so(
    image: str, insecure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text(ASKED)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    assert HostHere("gpu1").run(ask_registry(image)).status == 1
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == f"manifest inspect {image}"
    assert (f"manifest inspect --insecure {image}" in asked) == insecure


@pytest.mark.parametrize(("engine", "other"), [("docker", "podman"), ("podman", "docker")])
def test_a_fix_on_a_host_names_the_engine_of_that_host(engine: str, other: str) -> None:
    fixes = [failure.fix for failure in pull_failures("gpu1", "registry.local:5000/x:1", engine)]
    assert any(fix.startswith(f"on gpu1: {engine} login registry.local:5000") for fix in fixes)
    fixes.append(room_fix("gpu1", "/", engine))
    assert f"{engine} system df" in fixes[-1]
    assert [fix for fix in fixes if f"{other} " in fix] == []
