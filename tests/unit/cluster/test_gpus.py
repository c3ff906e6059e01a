"""GPUs: what nvidia-smi says with drivers of all ages, what the file wants, what the engine is asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.each import for_each
from toolkit.bench.smoke_plan import judge_gpus, plan_gpu_smoke
from toolkit.cluster import connect
from toolkit.cluster.containers import cluster_container, worker_sshd_config
from toolkit.cluster.gpus import (
    LIST_GPUS,
    SMI_SECONDS,
    explain,
    given_gpus,
    gpu_access,
    gpu_failures,
    parse_smi,
    usable_uuids,
)
from toolkit.cluster.layout import Layout, Observed, make_layout
from toolkit.core.container import Container
from toolkit.core.engines import PODMAN
from toolkit.core.facts import Facts, Gpu, Mig
from toolkit.core.report import Outcome, Report
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Host
from toolkit.protocol.decode import DecodeError

SAID = Path(__file__).parents[1] / "nvidia_smi"
ANSWERS = sorted(path.stem for path in SAID.glob("*.txt"))


def said(name: str) -> tuple[tuple[Gpu, ...], str]:
    return parse_smi((SAID / f"{name}.txt").read_text())


# What nvidia-smi says


def test_every_answer_of_nvidia_smi_as_it_is_understood() -> None:
    lines: list[str] = []
    for name in ANSWERS:
        gpus, trouble = said(name)
        lines.append(f"== {name}")
        for gpu in gpus:
            lines.append(f"{gpu.index} {gpu.uuid} {gpu.name}, driver {gpu.driver}, {gpu.memory_mib} MiB")
            lines += [f"  part {mig.index} {mig.uuid} {mig.profile}" for mig in gpu.migs]
        if trouble:
            what, fix = explain(trouble, "gpu1")
            lines += [f"trouble: {what}", f"fix: {fix}"]
    check_golden("gpus/nvidia-smi.txt", "\n".join(lines) + "\n")


@for_each("name", ANSWERS)
def test_there_are_gpus_or_there_is_a_reason(name: str) -> None:
    gpus, trouble = said(name)
    assert gpus or trouble
    assert bool(gpus) == (name.startswith("driver-") or name in ("gpu-lost-of-two", "warning"))
    assert all(gpu.index == number for number, gpu in enumerate(gpus))


def test_nothing_at_all_is_a_reason_too() -> None:
    assert parse_smi("") == ((), "")
    assert explain("", "gpu1") == ("nvidia-smi lists no GPU", "on gpu1: nvidia-smi")
    assert "some new words" in explain("some new words", "gpu1")[0]


def test_a_lost_gpu_explains_that_no_other_is_found() -> None:
    trouble = said("gpu-lost")[1]
    alone = "Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error No devices were found"
    for text in (trouble, alone):
        what, fix = explain(text, "gpu1")
        assert "a GPU has stopped responding" in what and "sudo reboot" in fix


def test_a_line_that_controls_a_terminal_names_no_gpu() -> None:
    """UUIDs become arguments of `docker run`, which `render docker` prints."""
    for odd in ("\x1b[2J", "\u202e", "\x9b"):
        gpus, rest = parse_smi(
            f"0, GPU-1a{odd}, NVIDIA A100, 550.54.14, 81920\n1, GPU-2b, NVIDIA A100, 550.54.14, 81920\n"
            f"GPU 1: NVIDIA A100 (UUID: GPU-2b)\n  MIG 1g.5gb Device 0: (UUID: MIG-5{odd})\n"
        )
        assert [(gpu.uuid, gpu.migs) for gpu in gpus] == [("GPU-2b", ())]
        assert odd in rest


def test_the_question_holds_no_word_of_the_scripts_around_it() -> None:
    # The query is in the middle of the probe, which has its own arguments.
    assert not re.search(r"\$[0-9@*#]|\bset\b|\bshift\b|\bexit\b", LIST_GPUS)


def test_the_probe_has_time_for_the_gpus_of_a_host_without_persistence_mode() -> None:
    assert SMI_SECONDS > 60 and connect._PROBE_SECONDS > 2 * SMI_SECONDS


# What the file asks for

PLAIN, SPLIT = said("driver-535")[0], said("driver-525-mig")[0]
ID = PLAIN[0].uuid


def facts(gpus: tuple[Gpu, ...] = PLAIN, **changes: object) -> Facts:
    return world.facts(gpus=gpus, nvidia_runtime=True, **changes)


def host(*ids: str, number: int | None = None) -> Host:
    return Host("gpu1", "gpu1", gpus=len(ids) if ids else number, gpu_ids=ids)


@pytest.mark.parametrize(("number", "given"), [(None, ("0", "1")), (2, ("0", "1")), (1, ("0",)), (0, ())])
def test_a_number_takes_the_first(number: int | None, given: tuple[str, ...]) -> None:
    assert given_gpus(host(number=number), facts()) == given


def test_a_list_is_taken_as_it_stands() -> None:
    assert given_gpus(host("1"), facts()) == ("1",)
    assert given_gpus(host(PLAIN[1].uuid), facts()) == (PLAIN[1].uuid,)
    parts = (SPLIT[0].migs[0].uuid, SPLIT[0].migs[3].uuid, SPLIT[1].uuid)
    assert given_gpus(host(*parts), facts(SPLIT)) == parts
    assert usable_uuids(parts, facts(SPLIT)) == set(parts)


def test_a_gpu_that_is_split_stands_for_its_parts() -> None:
    assert usable_uuids(("0",), facts(SPLIT)) == {mig.uuid for mig in SPLIT[0].migs}
    assert usable_uuids(("0", "1"), facts(SPLIT)) == {*SPLIT[0].usable, SPLIT[1].uuid}


@for_each(
    ("wanted", "has", "trouble", "what", "fix"),
    [
        (host("0", "5"), PLAIN, "", f"declares GPU 5, but nvidia-smi on the host lists 2 GPUs: 0 {ID}", "-L"),
        (host("GPU-x"), PLAIN, "", "hosts.yaml declares GPU GPU-x", "hosts/gpu1/gpus"),
        (host("MIG-x"), SPLIT, "", f"split: {SPLIT[0].migs[0].uuid}", "hosts/gpu1/gpus"),
        (host(number=4), PLAIN, "", "declares 4 GPUs, but nvidia-smi on the host lists 2", "hosts/gpu1/gpus"),
        (host(number=2), said("gpu-lost-of-two")[0], said("gpu-lost-of-two")[1], "Unknown Error", "-L"),
        (host(number=1), (), said("no-driver")[1], "hosts.yaml declares 1 GPU", "modprobe nvidia"),
        (host("0"), (), said("mismatch-550")[1], "runs the old driver", "reboot  # or set hosts/"),
        (host(number=1), (), said("no-devices")[1], "the NVIDIA driver finds no GPU", "lspci"),
        (host(number=1), (), said("absent")[1], "nvidia-smi is not on the PATH", "install the NVIDIA driver"),
        (host(number=1), (), said("hangs")[1], "nvidia-smi is too slow or hangs", "nvidia-smi -pm 1  # "),
        (host(SPLIT[0].uuid, SPLIT[0].migs[0].uuid), SPLIT, "", "declares both", "keep only one"),
    ],
)  # fmt: skip
def test_gpus_that_are_not_there(
    wanted: Host, has: tuple[Gpu, ...], trouble: str, what: str, fix: str
) -> None:
    with pytest.raises(NotReady) as caught:
        given_gpus(wanted, facts(has, gpu_trouble=trouble))
    assert what in caught.value.what and fix in caught.value.fix and caught.value.host == "gpu1"


def lacking(*hosts: str) -> str:
    text = world.HOSTS
    for host, address in (("gpu1", "10.77.0.2"), ("gpu2", "10.77.0.3"), ("cpu3", "10.77.0.4")):
        if host in hosts:
            text = text.replace(f"address: {address}", f"gpus: [9]\n    address: {address}")
    return text.replace("    slots: 3\n", "")


def test_a_host_that_lacks_gpus_is_refused_and_the_others_go_on() -> None:
    made = make_layout(world.inventory(lacking("gpu1", "cpu3")), Observed(world.cluster_facts()))
    assert [place.name for place in made.places] == ["gpu2"]
    assert [error.host for error in made.refused] == ["gpu1", "cpu3"]
    # It keeps its place in the files of the others, like a host that is away.
    assert made.paths == world.layout().paths


def test_when_every_host_lacks_gpus_all_are_named_at_once() -> None:
    with pytest.raises(NotReady) as caught:
        make_layout(world.inventory(lacking("gpu1", "gpu2", "cpu3")), Observed(world.cluster_facts()))
    assert "3 hosts are not ready" in caught.value.what
    assert (
        "gpu1: hosts.yaml declares GPU 9" in caught.value.what
        and "cpu3: hosts.yaml declares GPU 9" in caught.value.what
    )


# What the engine is asked for


@for_each(
    ("given", "runtime", "cdi", "asked"),
    [
        ((), True, (), ("", ())),
        (("0", "1"), True, (), ("all", ())),
        (("1",), True, (), ("1", ())),
        ((PLAIN[1].uuid, PLAIN[0].uuid), True, (), (f"{PLAIN[1].uuid},{PLAIN[0].uuid}", ())),
        # NVIDIA's runtime first, CDI where it is all there is; without either the engine says what it lacks.
        (("0", "1"), True, ("0", "1", "all"), ("all", ())),
        (("0", "1"), False, (), ("all", ())),
        (("0", "1"), False, ("0", "1", "all"), ("", ("nvidia.com/gpu=all",))),
        (("0", "1"), False, ("0", "1"), ("", ("nvidia.com/gpu=0", "nvidia.com/gpu=1"))),
        (("1",), False, ("0", "1", "all"), ("", ("nvidia.com/gpu=1",))),
        (("1",), False, ("gpu0", "gpu1", "all"), ("", ("nvidia.com/gpu=gpu1",))),
        (("1",), False, (PLAIN[0].uuid, PLAIN[1].uuid), ("", (f"nvidia.com/gpu={PLAIN[1].uuid}",))),
        ((PLAIN[1].uuid,), False, ("0", "1", "all"), ("", ("nvidia.com/gpu=1",))),
    ],
)  # fmt: skip
def test_by_which_of_the_engines_ways(
    given: tuple[str, ...], runtime: bool, cdi: tuple[str, ...], asked: tuple[str, tuple[str, ...]]
) -> None:
    assert gpu_access(given, replace(facts(), nvidia_runtime=runtime, cdi=cdi)) == asked


def test_podman_gets_gpus_by_cdi_because_old_versions_ignore_the_option_gpus() -> None:
    podman = replace(facts(), engine=PODMAN, nvidia_runtime=True, cdi=("0", "1", "all"))
    assert gpu_access(("0", "1"), podman) == ("", ("nvidia.com/gpu=all",))
    with pytest.raises(NotReady, match="does not contain GPUs 0, 1") as caught:
        gpu_access(("0", "1"), replace(podman, cdi=()))
    assert "nvidia-ctk cdi generate" in caught.value.fix


@pytest.mark.parametrize(
    "names", [("0:0", "0:1"), ("mig0:0", "mig0:1"), tuple(m.uuid for m in SPLIT[0].migs)]
)
def test_parts_of_a_gpu_by_cdi(names: tuple[str, ...]) -> None:
    given = (SPLIT[0].migs[0].uuid, SPLIT[0].migs[1].uuid)
    found = gpu_access(given, replace(facts(SPLIT), nvidia_runtime=False, cdi=names))
    assert found == ("", tuple(f"nvidia.com/gpu={name}" for name in names[:2]))


@for_each(
    ("given", "cdi", "found"),
    [
        # nvidia-ctk names no GPU that is split by MIG, only its parts.
        (("0",), ("0:0", "0:1", "0:2", "0:3", "1", "all"), ("0:0", "0:1", "0:2", "0:3")),
        (("1", "0"), ("0:0", "0:1", "0:2", "0:3", "1"), ("1", "0:0", "0:1", "0:2", "0:3")),
        ((SPLIT[0].uuid,), tuple(m.uuid for m in SPLIT[0].migs), tuple(m.uuid for m in SPLIT[0].migs)),
        # A specification from before the split.
        (("0",), ("0", "0:0", "0:1", "0:2", "0:3"), ("0:0", "0:1", "0:2", "0:3")),
    ],
)
def test_a_gpu_that_is_split_by_cdi(
    given: tuple[str, ...], cdi: tuple[str, ...], found: tuple[str, ...]
) -> None:
    asked = gpu_access(given, replace(facts(SPLIT), nvidia_runtime=False, cdi=cdi))
    assert asked == ("", tuple(f"nvidia.com/gpu={name}" for name in found))


def test_a_specification_without_a_part_of_a_gpu() -> None:
    with pytest.raises(NotReady, match="does not contain GPU 0") as caught:
        gpu_access(("0",), replace(facts(SPLIT), nvidia_runtime=False, cdi=("0", "0:0", "1")))
    assert "nvidia-ctk cdi generate" in caught.value.fix


def test_a_specification_that_does_not_know_a_gpu() -> None:
    with pytest.raises(NotReady, match="its CDI specification does not contain GPU 1") as caught:
        gpu_access(("0", "1"), replace(facts(), nvidia_runtime=False, cdi=("0",)))
    assert "nvidia-ctk cdi generate" in caught.value.fix


def containers(text: str = "", **changes: object) -> dict[str, Container]:
    hosts = world.cluster_facts()
    hosts["gpu1"] = replace(hosts["gpu1"], **changes)  # type: ignore[arg-type]
    written = (
        world.HOSTS.replace("address: 10.77.0.2", f"{text}\n    address: 10.77.0.2") if text else world.HOSTS
    )
    made = make_layout(world.inventory(written), Observed(hosts))
    return {place.name: cluster_container(made, place) for place in made.places}


def test_variables_that_go_with_gpus() -> None:
    found = {name: dict(c.env) for name, c in containers().items()}
    assert found["gpu1"]["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert not [n for n in found["gpu2"] if n.startswith("NVIDIA_")]
    # The engine sets the GPUs; toolkit must not set another value.
    assert "NVIDIA_VISIBLE_DEVICES" not in found["gpu1"]
    # An image that asks for all GPUs would get them where NVIDIA's runtime is the default one.
    none = dict(containers("gpus: 0")["gpu1"].env)
    assert none["NVIDIA_VISIBLE_DEVICES"] == "void" and "NVIDIA_DRIVER_CAPABILITIES" not in none
    # The same without a GPU of nvidia-smi: if the driver is broken, the runtime would refuse the container.
    broken = dict(containers("gpus: 0", gpus=(), nvidia_runtime=True)["gpu1"].env)
    assert broken["NVIDIA_VISIBLE_DEVICES"] == "void"


CHANNELS = ("/dev/nvidia-caps-imex-channels/channel0", "/dev/nvidia-caps-imex-channels/channel1")


def test_imex_channels_are_for_containers_with_gpus() -> None:
    verbs = ("/dev/infiniband/uverbs0",)
    assert containers(infiniband=verbs, imex=CHANNELS)["gpu1"].devices == (*verbs, *CHANNELS)
    assert containers("gpus: 0", infiniband=verbs, imex=CHANNELS)["gpu1"].devices == verbs


def test_selinux_denies_labeled_containers_the_gpus() -> None:
    assert containers(selinux=True)["gpu1"].security == ("no-new-privileges", "label=disable")
    # Without GPUs the container stays confined.
    assert containers("gpus: 0", selinux=True)["gpu1"].security == ("no-new-privileges",)
    assert containers()["gpu1"].security == ("no-new-privileges",)


def test_sessions_do_not_hear_which_gpus_the_image_asks_for() -> None:
    image = replace(world.IMAGE, env=(("NVIDIA_VISIBLE_DEVICES", "all"), ("LANG", "C.UTF-8")))
    made = replace(world.layout(), image=image)
    text = worker_sshd_config(made, made.places[1])
    assert "NVIDIA_VISIBLE_DEVICES" not in text and "LANG=C.UTF-8" in text


def test_a_list_reaches_the_container() -> None:
    assert containers("gpus: [1]")["gpu1"].gpus == "1"
    assert containers("gpus: [1]", cdi=("0", "1", "all"))["gpu1"].cdi == ("nvidia.com/gpu=1",)
    assert containers(cdi=("0", "1", "all"))["gpu1"].gpus == ""


# Engines' words for it, seen on 20.10, 26.1 and in reports


@for_each(
    ("words", "what", "fix"),
    [
        ('could not select device driver "" with capabilities: [[gpu]].', "Toolkit is missing", "nvidia-ctk"),
        ("failed to discover GPU vendor from CDI: no known GPU vendor found", "is missing", "nvidia-ctk"),
        ("Unknown runtime specified nvidia.", "Toolkit is missing", "restart docker"),
        ("unknown or invalid runtime name: nvidia.", "Toolkit is missing", "restart docker"),
        ('could not select device driver "cdi" with capabilities: [].', "is disabled", '{"cdi": true}'),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=7.", "contain", "generate"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "cannot use", "smi"),
        ("nvidia-container-cli: device error: GPU-1: unknown device: unknown", "cannot give", "smi -L"),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8", "newer", "CUDA"),
    ],
)  # fmt: skip
def test_what_engines_say_when_they_cannot_give_gpus(words: str, what: str, fix: str) -> None:
    text = f"docker: Error response from daemon: {words}"
    found = next(f for f in gpu_failures("gpu1") if re.search(f.says, text))
    assert what in found.what and fix in found.fix and "gpu1" in found.fix


# Smoke


def asked(facts_up: bool = True, **changes: object) -> Layout:
    hosts = world.facts_when_up() if facts_up else world.cluster_facts()
    hosts["gpu1"] = replace(hosts["gpu1"], gpus=PLAIN, **changes)  # type: ignore[arg-type]
    return make_layout(world.inventory(), Observed(hosts))


def test_a_fresh_container_and_the_clusters_own_are_asked() -> None:
    steps = plan_gpu_smoke(asked()).steps
    assert [(s.host, s.title) for s in steps] == [
        ("gpu1", "nvidia-smi in a fresh container"),
        ("gpu1", "nvidia-smi in the cluster's container"),
    ]
    fresh, own = (s.command.line() for s in steps)  # type: ignore[union-attr]
    assert "--gpus all" in fresh and "--env NVIDIA_DRIVER_CAPABILITIES=compute,utility" in fresh
    assert own.startswith("docker exec toolkit-demo-main sh -c")
    assert [s.title for s in plan_gpu_smoke(asked(False)).steps] == ["nvidia-smi in a fresh container"]
    by_cdi = plan_gpu_smoke(asked(cdi=("all",))).steps[0]
    assert "--device nvidia.com/gpu=all" in by_cdi.command.line()  # type: ignore[union-attr]
    with_selinux = plan_gpu_smoke(asked(selinux=True)).steps[0]
    assert "--security-opt label=disable" in with_selinux.command.line()  # type: ignore[union-attr]


def judged(fresh: str, own: str = "", **changes: object) -> list[str]:
    outputs = {
        "nvidia-smi in a fresh container": fresh,
        "nvidia-smi in the cluster's container": own or fresh,
    }
    outcomes = tuple(Outcome("gpus", step, "gpu1", "ok", output=text) for step, text in outputs.items())
    rows, problems = judge_gpus(asked(**changes), Report("smoke", outcomes))
    assert all(row.host == "gpu1" for row in rows)
    return [str(problem) for problem in problems]


ALL = (SAID / "driver-535.txt").read_text()
ONE = "\n".join(line for line in ALL.splitlines() if line.startswith(("0,", "GPU 0")))


def test_containers_that_see_what_they_were_given() -> None:
    assert judged(ALL) == []


def test_a_container_that_sees_fewer() -> None:
    (problem,) = judged(ALL, ONE)
    assert (
        "gpu1: container toolkit-demo-main should have 2 GPUs, but nvidia-smi lists 1 of the expected GPUs"
        in problem
    )
    assert f"missing: {PLAIN[1].uuid}" in problem
    assert "fix: on gpu1: docker rm -f toolkit-demo-main  # then toolkit up" in problem


def test_a_container_with_other_gpus_than_declared() -> None:
    stranger = ALL.replace(PLAIN[1].uuid, "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff")
    problem = judged(stranger, ALL)[0]
    assert f"missing: {PLAIN[1].uuid}; unexpected: GPU-ffffffff" in problem


def test_a_container_without_nvidia_smi_or_with_a_driver_in_trouble() -> None:
    problem = judged("nvidia-smi is not on the PATH", ALL)[0]
    assert (
        "lists 0 of the expected GPUs" in problem
        and "nvidia-smi is not on the PATH" in problem
        and "fix:" in problem
    )
    problem = judged((SAID / "mismatch-550.txt").read_text(), ALL)[0]
    assert "the kernel still runs the old driver" in problem and "on gpu1: sudo reboot" in problem


def test_a_driver_in_trouble_is_told_where_nobody_declared_gpus() -> None:
    hosts = world.facts_when_up()
    hosts["gpu1"] = replace(hosts["gpu1"], gpus=(), gpu_trouble=said("no-driver")[1])
    hosts["cpu3"] = replace(hosts["cpu3"], gpu_trouble=said("absent")[1])
    made = make_layout(world.inventory(), Observed(hosts))
    _, problems = judge_gpus(made, Report("smoke", ()))
    (text,) = map(str, problems)
    assert (
        text.startswith("gpu1: the host uses no GPU: the NVIDIA driver is not")
        and "set hosts/gpu1/gpus to 0" in text
    )
    hosts["gpu1"] = replace(hosts["gpu1"], gpu_trouble=said("no-devices")[1])
    _, problems = judge_gpus(make_layout(world.inventory(), Observed(hosts)), Report("smoke", ()))
    (text,) = map(str, problems)
    # A paste of the fix does not run the alternative.
    assert "nvrm  # or, to run ranks on the CPU, set hosts/gpu1/gpus to 0 in hosts.yaml" in text
    quiet = world.inventory(world.HOSTS.replace("address: 10.77.0.2", "gpus: 0\n    address: 10.77.0.2"))
    assert judge_gpus(make_layout(quiet, Observed(hosts)), Report("smoke", ())) == ((), ())


def test_a_mig_is_a_part() -> None:
    assert Gpu(0, "GPU-a", "A100", "550", 1, (Mig(0, "MIG-a", "1g.5gb"),)).usable == ("MIG-a",)


def test_a_list_of_very_many_gpus_is_refused() -> None:
    """To read it would take hours."""
    assert len(parse_smi("".join(f"{number}, GPU-{number}, x, 1, 1\n" for number in range(64)))[0]) == 64
    with pytest.raises(DecodeError, match="gpus: the list contains more than 4096 lines"):
        parse_smi("x\n" * 4097)
