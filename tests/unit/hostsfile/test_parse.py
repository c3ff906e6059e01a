"""hosts.yaml to Inventory: what is accepted, and the message for everything that is not."""

from __future__ import annotations

import difflib
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden import check_golden
from tests.unit.each import for_each
from tests.unit.spec_cases import CASES, GOOD, HEAD
from toolkit.core.container import Mount, Ulimit
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile import fields
from toolkit.hostsfile.inventory import DataSet, Host, Inventory, Service
from toolkit.hostsfile.parse import MAX_PROBLEMS, json_schema, parse_inventory

EXAMPLES = Path(__file__).parents[3] / "examples"


def refused(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(BadInput) as caught:
        parse_inventory(text, "hosts.yaml")
    return caught.value.problems


@pytest.mark.parametrize("value", ["yes", "true", "0x1F", "08", "1_0", "3", "~", "2026-01-01"])
def test_the_advice_for_a_variable_is_accepted(value: str) -> None:
    (problem,) = refused(f"{GOOD}env: {{NCCL_DEBUG: {value}}}\n")
    assert problem.message.endswith(("; put the value in quotes", "; write '' for an empty value"))
    assert "true or false" not in problem.message
    inventory = parse_inventory(f"{GOOD}env: {{NCCL_DEBUG: '{value}'}}\n", "hosts.yaml")
    assert inventory.env == (("NCCL_DEBUG", value),)


@pytest.mark.parametrize("value", ["3", "yes", "~", "[1]"])
@pytest.mark.parametrize("where", ["env: {{RANK: {}}}", "secrets: {{RANK: {}}}"])
def test_a_refused_variable_has_one_advice(where: str, value: str) -> None:
    (problem,) = refused(f"{GOOD}{where.format(value)}\n")
    assert problem.message == "this variable is reserved for toolkit and the launchers; remove the variable"


def test_parameters_of_pmix_are_accepted_but_not_its_addresses() -> None:
    inventory = parse_inventory(f"{GOOD}env: {{PMIX_MCA_gds: hash}}\n", "hosts.yaml")
    assert inventory.env == (("PMIX_MCA_gds", "hash"),)
    (problem,) = refused(f"{GOOD}env: {{PMIX_RANK: '0'}}\n")
    assert "is reserved for toolkit" in problem.message


@pytest.mark.parametrize("name", ["yes", "2", '"A\\a"', "2ND"])
def test_a_name_that_is_no_variable_is_reported(name: str) -> None:
    first = refused(f"{GOOD}env: {{{name}: 3}}\n")[0].message
    assert "this key" in first or "a key should be text" in first or "a variable name" in first


def test_smallest_example() -> None:
    inventory = parse_inventory((EXAMPLES / "hosts.yaml").read_bytes(), "hosts.yaml")
    hosts = (Host("gpu1", "gpu1"), Host("gpu2", "gpu2"))
    assert inventory == Inventory("demo", "toolkit:gpu", "gpu1", hosts)


def test_full_example() -> None:
    inventory = parse_inventory((EXAMPLES / "hosts.full.yaml").read_bytes(), "hosts.full.yaml")
    gpu1 = Host(
        name="gpu1",
        address="192.0.2.11",
        data_address="10.0.0.11",
        user="alice",
        port=2222,
        identity_file="~/.ssh/id_cluster",
        jump="alice@gate.example.com:22",
        slots=8,
        gpus=8,
        env=(("OMP_NUM_THREADS", "8"),),
    )
    gpu2 = Host("gpu2", "gpu2", gpus=2, gpu_ids=("0", "2"))
    board = Service(
        name="tensorboard",
        host="gpu1",
        image="registry.example.com:5000/team/tensorboard:2",
        argv=("tensorboard", "--logdir", "/checkpoints/runs", "--host", "0.0.0.0", "--port", "6006"),
        ports=(6006,),
        health="/",
        start_within=60,
        env=(("TF_CPP_MIN_LOG_LEVEL", "2"),),
        mounts=(Mount("/data/embeddings", "/embeddings", True),),
    )
    assert inventory == Inventory(
        cluster="demo",
        image="registry.example.com:5000/team/trainer:1.0",
        main="head",
        hosts=(Host("head", "head.example.com", slots=0), gpu1, gpu2, Host("gpu3", "gpu3")),
        spares=("gpu3",),
        worker_port=12345,
        worker_port_fixed=True,
        mounts=(Mount("/data/imagenet", "/data", True), Mount("/scratch/checkpoints", "/checkpoints", False)),
        data=(DataSet("./imagenet", "/scratch/alice/imagenet", "/data/imagenet"),),
        env=(("NCCL_DEBUG", "WARN"), ("WANDB_MODE", "offline")),
        secrets=(("HF_TOKEN", "~/.cache/huggingface/token"), ("WANDB_API_KEY", "secrets/wandb")),
        labels=(("com.example.team", "vision"), ("purpose", "pre-training")),
        ulimits=(Ulimit("memlock", -1, -1), Ulimit("nofile", 65536, 65536), Ulimit("stack", 8388608, -1)),
        shm_bytes=16 * 1024**3,
        log_bytes=256 * 1024**2,
        launcher="auto",
        state_dir="/scratch",
        known_hosts="~/.ssh/known_hosts_cluster",
        services=(board,),
        pull="missing",
    )


def test_full_example_has_every_key() -> None:
    text = (EXAMPLES / "hosts.full.yaml").read_text(encoding="utf-8")
    schema = json_schema()
    models = [schema, *schema["$defs"].values()]
    for key in (key for model in models for key in model["properties"]):
        assert f"{key}:" in text, f"{key} is not shown"


def test_every_form_of_services() -> None:
    text = (
        "cluster: demo\nimage: x:1\nmain: b\nhosts: [a, b]\nservices:\n"
        "  one: {command: \"sh -c 'sleep 3'\"}\n"
        "  two: {image: nginx, host: a, ports: [80, 443], gpus: [1, 0]}\n"
        "  three: {command: [x, 'a b'], gpus: 2}\n"
    )
    inventory = parse_inventory(text, "hosts.yaml")
    assert inventory.services == (
        Service("one", "b", argv=("sh", "-c", "sleep 3")),
        Service("two", "a", "nginx:latest", ports=(80, 443), gpus=2, gpu_ids=("1", "0")),
        Service("three", "b", argv=("x", "a b"), gpus=2),
    )
    assert inventory.services_on("a") == (inventory.service("two"),)
    with pytest.raises(KeyError):
        inventory.service("four")


def test_hosts_as_list_and_as_mapping_are_equal() -> None:
    mapping = parse_inventory(HEAD + "hosts:\n  gpu1:\n  gpu2: {}\n", "a")
    assert parse_inventory(GOOD, "b") == mapping


def test_defaults_are_the_inventory_s_own() -> None:
    assert parse_inventory(GOOD, "a") == Inventory(
        "demo", "trainer:1", "gpu1", (Host("gpu1", "gpu1"), Host("gpu2", "gpu2"))
    )


@for_each(
    "text",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        "---\n" + GOOD + "...\n",
        GOOD + "env:\nmounts:\n",
        GOOD + "env:\n  A: ''\n  B: \"two\\nlines\"\n  C: café ☕\n  D: 'yes'\n  E: |\n    a\tb\n    c\n",
        HEAD + "hosts:\n  gpu1: {slots: 0}\n  gpu2:\n",
        HEAD + "main: gpu2\nhosts:\n  gpu1: {slots: 2, gpus: 0}\n  gpu2: {slots: 0, gpus: 4}\n",
        HEAD + "hosts:\n  a: {address: box, port: 2201}\n  b: {address: box, port: 2202}\n",
        HEAD + "hosts:\n  a: {address: 10.0.0.1, jump: x}\n  b: {address: 10.0.0.1, jump: y}\n",
        HEAD + "hosts:\n  a: {address: Site_A.box, jump: 'u@x:22,y', user: a.b@corp.example}\n",
        # Aliases of ~/.ssh/config need not be names that Python can resolve.
        HEAD + f"hosts:\n  a: {{address: {'a' * 70}, jump: 'gate..box'}}\n",
        GOOD + "mounts: ['/my data/ü:/data', '/:/host:ro', '/a:/b:rw', '/run/x:/run/x']\n",
    ],
)
def test_accepted(text: str) -> None:
    parse_inventory(text, "hosts.yaml")


@pytest.mark.parametrize(
    "image",
    [
        "team/trainer:1.2-rc_3",
        "localhost:5000/a/b__c/d--e:x",
        "Registry.Example.com/a@sha256:" + "0" * 64,
    ],
)
def test_image_references(image: str) -> None:
    assert parse_inventory(GOOD.replace("trainer:1", image), "a").image == image


@pytest.mark.parametrize("image", ["trainer", "localhost:5000/team/trainer"])
def test_an_image_without_a_tag_is_the_latest(image: str) -> None:
    assert parse_inventory(GOOD.replace("trainer:1", image), "a").image == f"{image}:latest"


@pytest.mark.parametrize(
    ("image", "listed"),
    [
        ("docker.io/library/debian:12", "debian:12"),
        ("docker.io/team/trainer", "team/trainer:latest"),
        ("library/debian", "debian:latest"),
        ("localhost:5000/library/a:1", "localhost:5000/library/a:1"),
        ("a.b:5000/c:1@sha256:" + "f" * 64, "a.b:5000/c@sha256:" + "f" * 64),
    ],
)
def test_an_image_is_called_as_engines_list_it(image: str, listed: str) -> None:
    assert parse_inventory(GOOD.replace("trainer:1", image), "a").image == listed


@pytest.mark.parametrize(
    ("image", "pull", "listed"),
    [
        ("docker.io/team/trainer", "never", "docker.io/team/trainer:latest"),
        ("docker.io/debian:12", "never", "docker.io/library/debian:12"),
        ("index.docker.io/library/debian:12", "missing", "docker.io/library/debian:12"),
        ("debian@sha256:" + "f" * 64, "always", "docker.io/library/debian@sha256:" + "f" * 64),
        ("team/trainer:1", "missing", "team/trainer:1"),
        ("team/trainer:1", "always", "docker.io/team/trainer:1"),
        ("team/trainer:1", "never", "team/trainer:1"),
        ("localhost:5000/a:1", "always", "localhost:5000/a:1"),
    ],
)
def test_podman_lists_an_image_of_docker_hub_with_its_registry(image: str, pull: str, listed: str) -> None:
    """Without a registry, a host can have the image already: Podman lists it below localhost/."""
    mapping = GOOD.replace("trainer:1", f"{{name: '{image}', pull: {pull}}}")
    file = parse_inventory(
        f"{mapping}engine: podman\nservices: {{web: {{image: {image}, ports: [80]}}}}\n", "a"
    )
    assert file.image == listed
    assert file.service("web").image == (listed if image.startswith(("docker", "index")) else image)


@pytest.mark.parametrize("pull", ["never", "missing", "always"])
def test_the_image_as_a_mapping(pull: str) -> None:
    plain = parse_inventory(GOOD, "a")
    assert plain.pull == "never"
    said = parse_inventory(GOOD.replace("trainer:1", f"{{name: trainer:1, pull: {pull}}}"), "a")
    assert said == replace(plain, pull=pull)
    assert parse_inventory(GOOD.replace("trainer:1", "{name: trainer:1}"), "a") == plain


def test_limits_in_every_form() -> None:
    text = "ulimits: {nofile: 65536, memlock: unlimited, stack: {soft: 8388608, hard: unlimited}, core: 0}\n"
    assert parse_inventory(GOOD + text, "a").ulimits == (
        Ulimit("core", 0, 0),
        Ulimit("memlock", -1, -1),
        Ulimit("nofile", 65536, 65536),
        Ulimit("stack", 8388608, -1),
    )


GPU = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a7"
MIG = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3"


@pytest.mark.parametrize(
    ("text", "number", "ids"),
    [
        ("2", 2, ()),
        ("0", 0, ()),
        ("[0, 3]", 2, ("0", "3")),
        (f"[{GPU}0, {GPU}1, {MIG}0]", 3, (f"{GPU}0", f"{GPU}1", f"{MIG}0")),
        (f"['MIG-{GPU}0/7/0']", 1, (f"MIG-{GPU}0/7/0",)),
    ],
)
def test_gpus_by_number_and_by_name(text: str, number: int, ids: tuple[str, ...]) -> None:
    host = parse_inventory(HEAD + f"hosts: {{gpu1: {{gpus: {text}}}}}\n", "a").hosts[0]
    assert (host.gpus, host.gpu_ids) == (number, ids)


def test_two_files_that_say_the_same() -> None:
    one, two = parse_inventory(GOOD, "a/hosts.yaml"), parse_inventory(GOOD, "b.yaml")
    assert one == two and one.source == "a/hosts.yaml"


@pytest.mark.parametrize(
    ("text", "size"),
    [("8g", 8 << 30), ("64m", 64 << 20), ("1024K", 1 << 20), ("2GiB", 2 << 30), ("1048576", 1 << 20)],
)
def test_shm_sizes(text: str, size: int) -> None:
    assert parse_inventory(f"{GOOD}shm_size: '{text}'\n", "a").shm_bytes == size


def test_mount_paths_take_their_normal_form() -> None:
    mounts = parse_inventory(GOOD + "mounts: ['//a//b/:/c/']\n", "a").mounts
    assert mounts == (Mount("/a/b", "/c"),)


def test_environment_does_not_depend_on_the_order_of_writing() -> None:
    one = parse_inventory(GOOD + "env: {A: x, B: y}\n", "a")
    assert one == parse_inventory(GOOD + "env: {B: y, A: x}\n", "a")


def test_invalid_cases() -> None:
    parts = (f"== {name}\n" + "".join(f"{p}\n" for p in refused(text)) for name, text in CASES.items())
    assert len(CASES) >= 60
    check_golden("spec/invalid.txt", "\n".join(parts))


@for_each("name", CASES)
def test_messages_are_ours(name: str) -> None:
    for problem in refused(CASES[name]):
        text = str(problem)
        assert text.isprintable()
        assert len(text) < 300
        assert "hunter2" not in text and "12345678" not in text and "01234" not in text
        assert not any(word in text.lower() for word in ("pydantic", "type=", "input should", "nonetype"))


def test_problems_come_in_the_file_s_order() -> None:
    lines = [problem.line or 0 for problem in refused(CASES["many"])]
    assert lines == sorted(lines)
    assert len(lines) == 8


def test_exit_code_and_text_of_the_error() -> None:
    with pytest.raises(BadInput) as caught:
        parse_inventory(GOOD + "lancher: mpirun\n", "my.yaml")
    assert caught.value.exit_code == 2
    assert str(caught.value) == "my.yaml: 1 problem\n  line 4: lancher: unknown key; did you mean 'launcher'?"


def test_a_flood_of_problems_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    near = difflib.get_close_matches
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda *given: compared.append(given[0]) or near(*given)
    )
    start = time.process_time()
    problems = refused(GOOD + "".join(f"k{n}: 1\n" for n in range(20_000)))
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message == f"and {20_000 - MAX_PROBLEMS} more problems"
    assert all("; " in problem.message for problem in problems[:-1])
    assert len(compared) <= 10 * MAX_PROBLEMS
    assert time.process_time() - start < 10


def test_a_thousand_hosts() -> None:
    host = "    address: 10.1.{0}.{1}\n    user: alice\n    slots: 8\n    env:\n      A: 'x'\n"
    text = HEAD + "hosts:\n" + "".join(f"  gpu{n}:\n" + host.format(n // 250, n % 250) for n in range(1000))
    start = time.process_time()
    assert len(parse_inventory(text, "hosts.yaml").hosts) == 1000
    # Well under 1 s on any machine; the bound only catches what grows faster than the file.
    assert time.process_time() - start < 5


def test_schema() -> None:
    schema = json_schema()
    assert schema["required"] == ["cluster", "image", "hosts"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["launcher"]["enum"] == list(fields.LAUNCHER_NAMES)
    assert schema["properties"]["launcher"]["default"] == "auto"
    assert schema["properties"]["worker_port"]["minimum"] == 1024
    described = [schema, *schema["$defs"].values()]
    assert all(p.get("description") for model in described for p in model["properties"].values())


def test_pydantic_is_imported_only_for_parsing() -> None:
    code = (
        "import sys, toolkit.hostsfile.parse, toolkit.hostsfile.checks; sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES.parent, check=False).returncode == 0
