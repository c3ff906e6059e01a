"""toolkit predict: its output, its refusals, and that it contacts no host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.network.measured import Measured
from toolkit.predict.ask import Options, hosts_of, load_of, parse_options
from toolkit.predict.model import MODELS, Probed


@pytest.fixture
def call(run: Run) -> Run:
    """Call the verb in an empty folder: status, standard output, standard error."""
    return lambda *words: run("predict", *words)


SLOW_PORT = ("--params", "1.2M", "--step-time", "0.8s", "--rate", "1gbit", "--rate", "host2=10mbit")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slow-port", f"{' '.join(SLOW_PORT)} --up-to 2"),
        ("resnet50", "--model resnet50 --rate 10gbit"),
        ("no-step-time", "--params 340M --rate 1gbit --dtype bf16 --up-to 4"),
        (
            "slots",
            "--model vgg16 --rate 25gbit --slots 8 --up-to 3 --bucket horovod --algorithm hierarchical "
            "--mtu 9000 --latency 20us --overhead 10us",
        ),
    ],
)
def test_what_it_prints(call: Run, name: str, words: str) -> None:
    status, out, err = call(*words.split())
    assert (status, err) == (0, "")
    check_golden(f"predict/{name}.txt", out)


def test_the_verdict_is_the_last_line(call: Run) -> None:
    assert call(*SLOW_PORT, "--up-to", "2")[1].endswith(
        "\n2 hosts would take 2.8 × as long as 1 host for the same samples, "
        "because the link of host2 has a rate of 10 Mb/s\n"
    )


def test_json_says_the_same_and_more(call: Run) -> None:
    status, out, _ = call(*SLOW_PORT, "--up-to", "2", "--batch", "16", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["verdict"] == (
        "2 hosts would take 2.8 × as long as 1 host for the same samples, "
        "because the link of host2 has a rate of 10 Mb/s"
    )
    assert [row["hosts"] for row in told["rows"]] == [1, 2]
    assert told["rows"][0]["throughput"] == pytest.approx(20)
    step = told["rows"][1]["step"]
    assert step["least"] < step["likely"] < step["most"] == pytest.approx(4.88, abs=0.01)
    assert len(told["rows"][1]["ways"]) == 8
    assert told["model"]["bytes"] == 4_800_000 and told["model"]["step_from"] == "given"
    assert told["network"]["hosts"][1]["shown_rate"] == 10e6


def hosts_file(folder: Path, main: str, **hosts: str) -> None:
    rows = "".join(f"  {name}: {settings}\n" for name, settings in hosts.items())
    (folder / "hosts.yaml").write_text(f"cluster: demo\nimage: toolkit:cpu\nmain: {main}\nhosts:\n{rows}")


def test_the_hosts_file_says_who_takes_part(call: Run, tmp_path: Path) -> None:
    hosts_file(tmp_path, "gpu2", gpu1="{slots: 2}", gpu2="{gpus: 4}", gpu3="")
    words = ("--params", "1M", "--rate", "1gbit", "--rate", "gpu3=10mbit", "--json")
    told = json.loads(call(*words)[1])
    assert [(h["name"], h["slots"]) for h in told["network"]["hosts"]] == [
        ("gpu2", 4),
        ("gpu1", 2),
        ("gpu3", 1),
    ]
    assert told["verdict"].endswith("the link of gpu3 has a rate of 10 Mb/s")
    assert "(toolkit assumes one slot on gpu3; to change the number, set --slots)" in call(*words[:-1])[1]
    status, _, err = call("--params", "1M", "--rate", "1gbit", "--rate", "gpu9=1gbit")
    assert status == 2
    assert "--rate gpu9: this host is not one of the predicted hosts: gpu2, gpu1, gpu3" in err


def test_a_main_without_slots_takes_no_part(call: Run, tmp_path: Path) -> None:
    hosts_file(tmp_path, "head", head="{slots: 0}", gpu1="{slots: 1}", gpu2="{slots: 1}")
    told = json.loads(call("--params", "1M", "--rate", "1gbit", "--json")[1])
    assert [h["name"] for h in told["network"]["hosts"]] == ["gpu1", "gpu2"]


def test_measurements_from_a_file(call: Run, tmp_path: Path) -> None:
    pairs = [{"from": a, "to": b, "mbit": 94.0, "latency_us": 80} for a, b in (("a", "b"), ("b", "a"))]
    rows = [{"bytes": size, "ranks": 2, "seconds": 1e-3 + size * 8 / 90e6} for size in (2**10, 2**20, 2**24)]
    (tmp_path / "net.json").write_text(json.dumps({"hosts": ["a", "b"], "pairs": pairs, "allreduce": rows}))
    status, out, _ = call("--from", "net.json", "--params", "25M", "--step-time", "1s")
    assert status == 0
    assert (
        "a ring model fitted to 3 measured all-reduces (error at most 0 %), 500 us overhead per message; "
        "measured rates of 2" in out
    )
    assert "link between a and b has a rate of 94 Mb/s" in out
    told = json.loads(call("--from", "net.json", "--params", "25M", "--json")[1])
    assert told["rows"][1]["wire"] == pytest.approx(100e6 * 8 / 90e6 + 5 * 1e-3, rel=1e-6)
    (tmp_path / "net.json").write_bytes(b"\xff")
    assert call("--from", "net.json", "--params", "25M")[0] == 2
    assert "gone.json: 1 problem\n  No such file" in call("--from", "gone.json", "--params", "25M")[2]


ENOUGH = "--params 1M --rate 1gbit"


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (
            "",
            [
                "--rate: this option is required unless",
                "--params: exactly one of --params, --model and --probe is required, found none",
            ],
        ),
        (
            "--rate 1GB --rate gpu2=x --rate =1gbit --model resnet --params 3x",
            [
                "--rate: should be a number with bit, kbit, mbit or gbit, as in 1gbit, found '1GB'",
                "--rate gpu2: should be a number with bit",
                "--rate: should be RATE or HOST=RATE, found '=1gbit'",
                "--params: exactly one of --params, --model and --probe is required, "
                "found --params and --model",
                "--model: 'resnet' is not a known model; for other models, set --params; "
                "did you mean 'resnet",
                "--params: should be a number, optionally with k, M or B",
            ],
        ),
        (
            f"{ENOUGH} --rate 1gbit --rate a=1gbit --rate a=2gbit",
            ["--rate: is set twice", "--rate a: is set twice"],
        ),
        (
            f"{ENOUGH} --dtype fp8 --algorithm tree --bucket big",
            [
                "--dtype: should be one of fp32, fp16, bf16",
                "--algorithm: should be one of ring,",
                "--bucket: should be ddp, horovod",
            ],
        ),
        (
            f"{ENOUGH} --latency 5 --overhead x --inside-rate 1 --mtu 100 --step-time 0s --bucket 1B",
            [
                "--mtu: should be 576 to 65535 bytes",
                "--latency: should",
                "--overhead: should",
                "--inside-rate: should",
                "--step-time: should be more than 0 s",
                "--bucket: should be 1KiB",
            ],
        ),
        (
            f"{ENOUGH} --up-to 0 --slots 65 --batch 0",
            ["--batch: should be 1", "--up-to: should be 1 to 4096, found 0", "--slots: should be 1 to 64"],
        ),
        (
            "--model vgg16 --rate 1gbit --batch 32",
            ["--batch: the published step time is for 64 samples, but --batch is 32"],
        ),
        (
            "--probe x.py --rate 1gbit --step-time 1s",
            ["--step-time: this option cannot be combined with --probe"],
        ),
        (f"{ENOUGH} extra", ["extra: is not an option; arguments of a script need"]),
    ],
)
def test_what_it_refuses(call: Run, words: str, problems: list[str]) -> None:
    status, out, err = call(*words.split())
    assert (status, out) == (2, "")
    lines = err.splitlines()
    assert lines[0] == f"toolkit: command line: {len(problems)} problem{'s' if len(problems) > 1 else ''}"
    assert all(any(p in line for line in lines[1:]) for p in problems), err
    assert len(lines) == len(problems) + 1


def test_a_probe_needs_a_script_and_a_hosts_file(call: Run, tmp_path: Path) -> None:
    words = ("--probe", "train.py", "--rate", "1gbit")
    assert call(*words)[0] == 2
    assert "hosts.yaml: 1 problem\n  No such file" in call(*words)[2]
    (tmp_path / "hosts.yaml").write_text("cluster: demo\nimage: toolkit:cpu\nhosts: [gpu1, gpu2]\n")
    status, _, err = call(*words)
    assert status == 2
    assert "train.py: does not exist in" in err


def options(**changes: object) -> Options:
    return Options(**{"rate": ("1gbit",), "params": "1M", **changes})  # type: ignore[arg-type]


def test_hosts_beyond_those_that_are_known() -> None:
    found = Measured(("host2", "b"), (), ())
    assert hosts_of(parse_options(options()), None, None)[0] == tuple((f"host{i}", 1) for i in range(1, 9))
    assert hosts_of(parse_options(options(slots=2)), None, found)[0] == (("host2", 2), ("b", 2))
    more = hosts_of(parse_options(options(up_to=4)), None, found)[0]
    assert [name for name, _ in more] == ["host2", "b", "host3", "host4"]
    again = hosts_of(parse_options(options(up_to=3)), None, Measured(("b", "host3"), (), ()))[0]
    assert [name for name, _ in again] == ["b", "host3", "more-host3"]
    assert hosts_of(parse_options(options(up_to=1)), None, found)[0] == (("host2", 1),)
    inventory = world.inventory("cluster: demo\nimage: x\nhosts:\n  a: {slots: 3}\n  b: {gpus: 2}\n  c:\n")
    assert hosts_of(parse_options(options(slots=5)), inventory, None) == ((("a", 3), ("b", 5), ("c", 5)), "")


def test_a_host_without_gpus_has_one_slot() -> None:
    inventory = world.inventory("cluster: demo\nimage: x\nhosts:\n  a: {gpus: 0}\n  b: {gpus: 0, slots: 3}\n")
    assert hosts_of(parse_options(options()), inventory, None) == ((("a", 1), ("b", 3)), "")
    assert hosts_of(parse_options(options(slots=2)), inventory, None) == ((("a", 2), ("b", 3)), "")


SPARE = "cluster: demo\nimage: x\nspares: [b]\nhosts:\n  a: {slots: 1}\n  b:\n  c: {slots: 2}\n"


@for_each(
    ("up_to", "measured", "names", "note"),
    [
        (None, None, "a c", False),
        (None, ("a", "c"), "a c", False),
        (None, ("a", "b"), "a b c", True),
        (1, None, "a", False),
        (3, None, "a c b", True),
        (4, None, "a c b host4", True),
    ],
)
def test_a_spare_host_takes_part_if_it_was_measured_or_if_more_hosts_are_requested(
    up_to: int | None, measured: tuple[str, ...] | None, names: str, note: bool
) -> None:
    found = Measured(measured, (), ()) if measured else None
    rows, text = hosts_of(parse_options(options(up_to=up_to)), world.inventory(SPARE), found)
    assert [name for name, _ in rows] == names.split()
    assert ("toolkit assumes one slot on b" in text) == bool(text) == note


def test_a_models_published_step_is_used_unless_another_is_given() -> None:
    ask = parse_options(options(params="", model="vgg16"))
    assert (ask.parameters, ask.compute, ask.batch) == (138_357_544, pytest.approx(64 / 154), 64)
    assert ask.compute_from.startswith("published: one P100, fp32, 64 samples; https://")
    ask = parse_options(options(params="", model="vgg16", step_time="0.1s", batch=8))
    assert (ask.compute, ask.batch, ask.compute_from) == (0.1, 8, "given")
    ask = parse_options(options(params="", model="gpt2"))
    assert (ask.compute, ask.batch, ask.compute_from) == (None, None, "")
    for name in MODELS:
        parse_options(options(params="", model=name))


def test_a_probe_says_what_travels_unless_another_kind_is_asked_for() -> None:
    probed = Probed(1000, 2000, "bf16", 0.5, 0.4, 0.6, 10, "cpu")
    load = load_of(parse_options(options(params="", probe="x.py")), probed)
    assert (load.size, load.dtype, load.compute) == (2000, "bf16", 0.5)
    load = load_of(parse_options(options(params="", probe="x.py", dtype="fp32")), probed)
    assert (load.size, load.dtype) == (4000, "fp32")
