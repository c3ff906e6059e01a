"""Odd answers of hosts: each becomes a value or an error that names the host."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit import cluster_world as world
from tests.unit.bench import test_tuning
from tests.unit.checks import cases_network
from tests.unit.cluster import test_probe
from tests.unit.each import for_each
from tests.unit.frames_here import NONCE, framed
from tests.unit.image import test_engines, test_on_hosts
from tests.unit.protocol.mutations import ends_of_ranges, odd_json, odd_lines
from toolkit.checks import containers as inside
from toolkit.checks import reach
from toolkit.checks.registry import CHECKS, STAGES
from toolkit.checks.registry import judge as judge_checks
from toolkit.cli.predict_text import as_value
from toolkit.cli.predict_text import text as predict_text
from toolkit.cluster.container_probe import look_inside
from toolkit.cluster.container_status import why_not_running
from toolkit.cluster.gpu_usage import gpus_text
from toolkit.cluster.pairs import Ways, parse_ways
from toolkit.cluster.ports import _held_port
from toolkit.cluster.probe import LEASE, parse_facts
from toolkit.cluster.probe_containers import Look
from toolkit.core.answers import LineStream, Tail, answer_of, read_answer
from toolkit.core.command import Result, command
from toolkit.core.disk_space import parse_room
from toolkit.core.engines import DOCKER, PODMAN
from toolkit.core.facts import ContainerFacts
from toolkit.core.gauges import job_gauges, parse_gauges
from toolkit.core.image import config_identity
from toolkit.core.runner import ContainerRunner, LocalRunner
from toolkit.data import send as data
from toolkit.data.plan import DataRow, data_text
from toolkit.data.plan import parse_held as parse_data
from toolkit.diagnose import why
from toolkit.diagnose.verdict import judge
from toolkit.errors import ToolkitError
from toolkit.image import list_and_prune as images
from toolkit.image.layer_reader import LayerReader, Unreadable
from toolkit.image.layers import parse_holdings
from toolkit.image.on_hosts import _row, images_text, parse_held
from toolkit.jobs import exec_mode as parts
from toolkit.jobs import logs, records
from toolkit.jobs.executors import _Talk, start_daemons
from toolkit.jobs.status import job_json, jobs_table, parse_status, shifted, together
from toolkit.monitor.job_report import make_report
from toolkit.monitor.prometheus import prometheus_text
from toolkit.monitor.report_html import report_html
from toolkit.monitor.top import top_json, top_text
from toolkit.network.candidates import candidates
from toolkit.network.measured import parse_measured
from toolkit.network.tuning import parse_timings, parse_tunings, tuning_json
from toolkit.plan.executors import _differing
from toolkit.predict.ask import Options, predict_training
from toolkit.predict.model import parse_probed
from toolkit.protocol.account import Account
from toolkit.protocol.bench import AlgorithmTime
from toolkit.protocol.decode import DecodeError, decode, load_json
from toolkit.protocol.jobs import ENDED, Ended, JobRow, Record, SessionAnswer, Status
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_PORT, LABEL_ROLE, WORKER
from toolkit.protocol.relay import DataDone, DataSeen
from toolkit.remote.container_session import ContainerSession
from toolkit.transfer.host import Member
from toolkit.transfer.relay import Relay
from toolkit.transfer.schedule import Line

HOST, ASKED = "gpu1", "this"
CAUSE = {"rank": 3, "exit_code": 7, "ended": 8.0, "last": ["boom"], "host": "gpu1"}
RESTART = {"at": 7.0, "reason": "rank 1 ended", "host": "gpu1", "hosts": ["gpu1", "gpu2"], "from": 12}
STATUS = {
    **{"state": "failed", "exit_code": 7, "started": 5.0, "ended": 9.0, "pid": 12, "reason": "rank 3 ended"},
    **{"unswept": ["gpu2"], "hosts": {"gpu1": [0, 1]}, "restarts": [RESTART], "cause": CAUSE, "asked": None},
}
RECORD = {
    **{"owner": "alice", "launcher": "mpirun", "transport": "exec", "command": ["python", "a.py"]},
    "hosts": [{"name": "gpu1", "address": "10.0.0.1", "slots": 2, "taken": [0, 1], "gpus": []}],
}
ROWS = [{"id": world.JOB_ID, "alive": True, "status": STATUS, "record": RECORD, "now": 100.0}]
MESSAGES: list[dict[str, Any]] = [
    {"jobs": ROWS},
    {"buckets": [1, 2]},
    {"needs": [[0, 3], [5, 5]]},
    {"done": True},
    {"host": "gpu2", "command": "orted -x"},
    {"refused": "no room", "fix": "toolkit gc"},
]

MORE_INFO = {
    "CDISpecDirs": ["/etc/cdi"],
    "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}],
    "Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}},
    "RegistryConfig": {"Mirrors": []},
    "Containerd": {"Address": "/run/containerd/containerd.sock"},
}
IMAGE: dict[str, Any] = {
    **test_probe.IMAGE,
    "Config": {"Env": ["A=b"], "Cmd": ["bash"], "Labels": {"a": "b"}, "Volumes": {"/data": {}}},
    "Size": 12,
    "RepoDigests": ["a@sha256:b"],
}
_STAT = " ".join(map(str, range(1, 21)))
_WORDS = "\0".join(LEASE)
_CLAIM = base64.b64encode(f"python3\0{_WORDS}\0j1\0--slots\x000,1\0".encode()).decode()
MORE_SECTIONS = {
    "links": "./eth0/operstate:up\n./eth0/carrier:1\n./eth0/speed:1000\n./eth0/mtu:1500\n./eth0/type:1\n",
    "shaping": "qdisc tbf 8001: dev eth0 root refcnt 2 rate 1.5Mbit burst 32Kb\n",
    "rdma": "./mlx5_0/ports/1/state:4: ACTIVE\n./mlx5_0/ports/1/rate:100 Gb/sec (4X EDR)\n"
    "./mlx5_0/ports/1/gids/3:0000:0000:0000:0000:0000:ffff:0a4d:0002\n",
    "apps": f"app|GPU-1a|123|512|alice|{'c' * 64}|j1|python\n",
    "claims": f"claim|77|alice|S {_STAT}|={_CLAIM}\n",
}
LISTENING, LOOKED = '{"ports": {}}', '{"pairs": {}, "now": 1.0}'
LOOK = {
    **{
        "shm": 4,
        "limits": {"memlock": -1, "nofile": 1024},
        "versions": {"python": "3.11"},
        "gpus": ["GPU 0"],
    },
    **{"names": {"gpu2": ["10.77.0.3"]}, "lacks": ["mpirun"], "shared": {"/out": ["gpu1"]}, "now": 1.0},
    **{
        "mounts": {"/out": "write: denied"},
        "faults": {"worker": "in use"},
        "logins": {"gpu2": {"error": "x"}},
    },
    "pairs": {
        "gpu2": {"any": {"answer": "open", "sent": 3, "seen": "10.0.0.9"}, "master": {"answer": "mute"}}
    },
}
NETWORK = {
    **{"hosts": ["gpu1", "gpu2"], "allreduce": [{"bytes": 1048576, "ranks": 2, "seconds": 0.0093}]},
    "pairs": [{"from": "gpu1", "to": "gpu2", "mbit": 941.2, "latency_us": 61.0}],
    **{"engine": "mpi", "faults": ["gpu1 to gpu2"]},
}
STEPS = {
    **{
        "parameters": 3,
        "gradients": {"bfloat16": 4, "float32": 4},
        "seconds": 0.5,
        "least": 0.4,
        "most": 0.6,
    },
    **{"steps": 10, "device": "cpu"},
}
TRANSFER: list[dict[str, Any]] = [
    {"ready": True, "zstd": True},
    {"port": 40000},
    {"loaded": 0, "status": 0, "said": "Loaded image"},
    {"at": 3, "limit": 9, "busy": False, "wire": 12},
    {"takes": "gpu2", "at": 3},
    {"lost": "gpu2", "begun": True, "gone": 2, "why": "the host is too slow"},
    {"missing": "no python3"},
]
RANK = {
    **{"rank": 0, "age": 4.0, "lines": ["step 3"], "tail": "step 3\n", "exit_code": None, "ended": None},
    "processes": [
        {
            **{"pid": 50, "parent": 1, "name": "python", "state": "D", "states": "SD", "call": "futex"},
            **{"target": "/x", "cpu": 0.5, "no_stack": "", "moved": False, "woken": 2, "still": True},
            "threads_seen": [
                {"first": True, "frames": [{"name": "main", "file": "/code/a.py", "line": 3, "text": "x()"}]}
            ],
        }
    ],
    "dumps": {"comm_lib_trace_rank_0": "AAAA"},
}
SEEN: dict[str, Any] = {
    **{"host": HOST, "at": 5.0, "gpus": [{"index": "0", "busy": "100", "watts": "71.3", "mib": "1024"}]},
    "job": {
        "id": world.JOB_ID,
        "hosts": [{"name": HOST, "address": "10.0.0.1", "slots": 1}],
        "owner": "alice",
    },
    "sockets": [
        {"pid": 50, "peer": "10.0.0.2:4", "state": "ESTABLISHED", "unsent": 1, "unread": 0, "retries": 2}
    ],
    **{"ranks": [RANK], "ras": "", "oom_kills": 0, "py_spy": True, "output": "out", "lease": ""},
}
SEEN["kept"] = {
    "at": 4.0,
    "why": "silent",
    "slots": {HOST: [0, 1], "gpu2": [0]},
    "over": False,
    "hosts": [{**SEEN, "kept": None}, {"host": "gpu2", "error": "gone"}],
}
SAMPLE = {
    **{"at": 5.0, "cpu": {"cores": 4, "busy": 1.0, "load": 0.5}, "memory": {"used": 5, "total": 9}},
    **{"network": {"interface": "eth0", "in": 1.0, "out": 2.0, "mbit": 1000}},
    **{"disk": {"read": 0.0, "written": 1.0, "free": 5}},
    "gpus": [{"index": 0, "uuid": "GPU-1", "utilization": 97.0, "memory_total": 24576.0}],
}
GAUGES = {
    **SAMPLE,
    "ranks": [{"job": "j1", "rank": 0, "cpu": 1.0, "memory": 5, "silent": 1.0, "line": "step 3", "step": 3}],
    "jobs": {"j1": {"world_size": 1, "launcher": "mpirun", "command": ["a"], "owner": "alice"}},
}
ACCOUNT = {
    **{
        "host": HOST,
        "record": RECORD,
        "status": STATUS,
        "alive": False,
        "now": 100.0,
        "versions": {"python": "3"},
    },
    **{"preparation": {"spans": [["code", HOST, 0.0, 1.0]]}, "up": {"spans": [], "at": 1.0}},
    "ranks": [
        {
            **{"rank": 0, "starts": [6.0], "first_output": 6.5, "first_step": 7.0, "ended": 8.0},
            **{"exit_code": 7, "signal": 0, "oom": False, "last": ["boom"], "attempt": 0},
        }
    ],
    **{
        "throughput": [[7.0, 1, 2.0, None]],
        "gauges": [SAMPLE, SAMPLE],
        "network": {"job": "b", "text": "{}"},
    },
}


# The readers


def listed(text: str) -> object:
    rows = read_answer(tuple[JobRow, ...], text, HOST, ASKED)
    known = records._parse(rows)
    jobs_table(known)
    json.dumps(list(map(job_json, known)))
    if rows:
        together({str(number): shifted(row.status, -row.now) for number, row in enumerate(rows)})
    return [(job.final, job.ranks, job.error) for job in known]


def ended(text: str) -> object:
    found = read_answer(Ended, text, HOST, ASKED)
    job = parse_status("x", shifted(found.status, found.now))
    return job.error, jobs_table([job])


def heard(text: str) -> object:
    container_session = ContainerSession(ContainerRunner(Printing(text), "c"))
    found = [container_session.receive(ASKED)]
    while found[-1] != ENDED:
        found.append(container_session.receive(ASKED))
    container_session.finish()
    return found


def section(name: str, engine: str = DOCKER) -> Callable[[str], object]:
    """A reader of one section of the probe's answer."""

    def read(text: str) -> object:
        facts = parse_facts(HOST, "demo", {**test_probe.answer(), **MORE_SECTIONS, name: text}, engine=engine)
        candidates({HOST: facts})
        gpus_text([facts])
        for container in facts.containers:
            why_not_running(container, facts)
        return [one.network for one in facts.interfaces], facts.state_dir.encode()

    return read


def checked(name: str) -> Callable[[str], object]:
    """A reader of the answer to one question of ``toolkit check``."""
    asking = [check for check in CHECKS if any(probe.name == name for probe in check.probes)]

    def read(text: str) -> object:
        scene = cases_network.GOOD
        seen = scene.seen["gpu2"]
        odd = replace(seen, answers={**seen.answers, name: text})
        return list(judge_checks(replace(scene, seen={**scene.seen, "gpu2": odd}), STAGES, asking))

    return read


def files_there(text: str) -> object:
    step: Any = SimpleNamespace(every=(), host=HOST)
    context: Any = None
    return _differing(step, context, text)


def ways(text: str) -> object:
    return parse_ways(HOST, Ways(("10.0.0.2",), (("10.0.0.2", 12345),)), text)


def images_of_host(text: str) -> object:
    with answer_of(HOST, ASKED):
        held = parse_held({"images-listed": f"sha256:{'a' * 64}\n", "images-held": text})
    return images_text(_row(HOST, "other", image) for image in held)


def data_of_host(text: str) -> object:
    mark = base64.b64encode(text.encode(errors="replace")).decode()
    (held,) = parse_data(f"folder|/x\nthere\nmark|={mark}\n").values()
    return data_text([DataRow(HOST, "/x", "/x", "whole", held.size, held.files, since=held.since)])


def holdings(text: str) -> object:
    layers, comma, names = text[1:-1].partition("], [")
    with answer_of(HOST, ASKED):
        images = f"{layers}] [{names}" if comma else text
        return parse_holdings(framed(NONCE, driver="[]", images=images, room=""), NONCE)


def looked(text: str) -> object:
    """Hold the look of a host that prints this, and judge what came of it."""
    look = Look(HOST, command("true"), b"", "10.0.0.1", False)
    found = look_inside((look,), {HOST: Printing(f"{text}\n{LISTENING}\n{LOOKED}")})[HOST]
    scene = cases_network.GOOD
    for name in (scene.inventory.main, "gpu2"):
        seen = replace(scene, inside={**scene.inside, name: replace(found, up=True)})
        for check in (*inside.CHECKS, *reach.CHECKS):
            list(
                check.whole(seen) if check.whole else check.host(seen.seen[name], seen) if check.host else ()
            )
    if found.error:
        raise ToolkitError(found.error, "", HOST)
    return found


def transfer(text: str) -> object:
    segment: Any = SimpleNamespace(first=0, end=4, size=10)
    member = Member(Printing(""), "10.0.0.1", 0, lambda done, whole: None, lambda: None)
    member.segments = (segment,)
    member._hear(text.encode(errors="replace") + b"\n")
    payload: Any = None
    relay: Any = Relay(payload, (HOST, "gpu2"))
    relay._line, relay._apply = Line({HOST: 0, "gpu2": 0}, 4), list
    relay._hear(member, 1.0)
    return member.brought(relay._line, 0.0)


def data_seen(text: str) -> object:
    return data._answer(DataSeen, Printing(text), command("x"), {}, refused)


def data_done(text: str) -> object:
    return data._answer(DataDone, Printing(text), command("x"), {}, refused)


def refused(result: Result) -> ToolkitError:
    return ToolkitError(result.output, "", HOST)


def layers(text: str) -> object:
    reader: Any = LayerReader(None, "x", ["sha256:a"])
    reader._ways = lambda: iter([("overlay2", [])])
    reader._run = lambda *words: nullcontext(iter([f"{text}\n".encode(errors="replace")]))
    try:
        return reader.describe(config_identity({}))
    except Unreadable as error:
        raise ToolkitError(error.what, "", HOST) from error


def gauges(text: str) -> object:
    found = parse_gauges(HOST, text.encode(errors="replace"))
    hosts = (found,) if found else ()
    prometheus_text("demo", hosts, {})
    return job_gauges(hosts), top_text(hosts, {}), json.dumps(top_json(hosts, {}))


def ranks(text: str) -> object:
    """Ask a session of one host why its job hangs."""
    session: Any = SimpleNamespace(
        errors={},
        facts={HOST: None},
        inventory=SimpleNamespace(
            names=(HOST,), main=HOST, cluster="demo", secrets=(), role=lambda host: "main"
        ),
        container=lambda host: Printing(text),
        runners={HOST: Printing('{"Running": true}')},
    )
    said = why._look_on(session, world.JOB_ID, HOST, ("s3cret",))
    job = parse_status(world.JOB_ID, Status("running"))
    found = why._evidence(job, {HOST: (said.seen, said.container)})
    kept = why._kept({HOST: said}, HOST)
    verdict = judge(found)
    files = why.bundle_files(why.Answer(job, found, verdict, (), {HOST: said}), "", {})
    assert all(name.count("/") <= 2 and ".." not in name for name in files)
    assert kept is None or judge(why._before(job, kept))
    if said.seen.error:
        raise ToolkitError(said.seen.error, "", HOST)
    return why._known(job, {HOST: said}, found)


def account(text: str) -> object:
    said = read_answer(Account, text, HOST, ASKED)
    status = parse_status(world.JOB_ID, said.status or Status(), said.alive, said.record)
    report = make_report("demo", status, {HOST: said}, {}, {HOST: 5.0})
    return json.dumps(report.as_json()), report_html(report, "now", None, None)


def measured(text: str) -> object:
    return parse_measured(text, f"what {HOST} printed")


def timings(text: str) -> object:
    return parse_timings("x", read_answer(tuple[AlgorithmTime, ...], text, HOST, ASKED))


def steps(text: str) -> object:
    with answer_of(HOST, ASKED):
        probed = parse_probed(f"toolkit-steptime {text}\nbye")
    assert probed
    made = predict_training(world.inventory(), Options(("1gbit",), probe="x"), None, lambda *_: probed)
    about = (made.network, made.load, made.prediction, made.source)
    return predict_text(*about, made.ask, made.note, probed), json.dumps(as_value(*about, ""))


def config(text: str) -> object:
    with answer_of(HOST, ASKED):
        return config_identity(load_json(text))


class Printing(LocalRunner):
    """A host on which each program prints the same; it does not wait for standard input."""

    name = HOST

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, *given: object, **more: object) -> Result:
        return Result(0, self.text)

    def stream(
        self,
        command: object,
        sink: Callable[[bytes], None],
        source: object = None,
        silence: float | None = None,
    ) -> Result:
        sink(self.text.encode(errors="replace") + b"\n")
        return Result(0)


# Name, reader, and a sound answer.
JSON: tuple[tuple[str, Callable[[str], object], Any], ...] = (
    ("the list of jobs", listed, ROWS),
    ("the end of a job", ended, {"status": STATUS, "now": 100.0}),
    *((f"message {next(iter(one))}", heard, one) for one in MESSAGES),
    ("docker info", section("docker"), {**test_probe.NEW_INFO, **MORE_INFO}),
    ("podman info", section("docker", engine=PODMAN), test_engines.INFO),
    ("containers", section("containers"), [test_probe.CONTAINER]),
    ("images", section("images"), [IMAGE]),
    ("applied keys", section("applied"), {"image": "0123", "main": "4567"}),
    ("data of a host", data_of_host, {"set": "x", "files": 1, "bytes": 3, "since": 1700000000}),
    ("images of a host", images_of_host, [test_on_hosts.inspected("a"), IMAGE]),
    ("layers of images", holdings, [["sha256:a"], ["toolkit.part/x:1"]]),
    *((f"transfer: {next(iter(one))}", transfer, one) for one in TRANSFER),
    ("a folder of data", data_seen, {"missing": [0, 2], "set": "x", "free": 5, "inodes": -1, "block": 4096}),
    ("the end of data", data_done, {"gone": 1, "stay": 0, "left": 0}),
    ("layers of this machine", layers, {"config": "e30=", "sizes": [5]}),
    ("gauges", gauges, GAUGES),
    ("what ranks do", ranks, SEEN),
    ("what is known of a job", account, ACCOUNT),
    ("ports of a look", looked, {"ports": {"any": 5000, "worker": 12345}}),
    ("report of a look", looked, LOOK),
    ("measurements of a network", measured, NETWORK),
    ("times of algorithms", timings, [{"algorithm": "5:65536", "bytes": 65536, "seconds": 0.02}]),
    ("tunings", parse_tunings, {"tuned": [tuning_json(test_tuning.a_tuning())]}),
    ("steps of a script", steps, STEPS),
    (
        "the config of an image",
        config,
        {"os": "linux", "config": IMAGE["Config"], "rootfs": {"diff_ids": []}},
    ),
)
LINES: tuple[tuple[str, Callable[[str], object], str], ...] = (
    ("files that are there", files_there, f"0 1\n{'a' * 64} {'b' * 64}\n644 600\n"),
    ("ways between hosts", ways, "asked\nroute 10.0.0.2 dev eth0\nopen 10.0.0.2:12345\ntried\n"),
    ("free room", parse_room, "room|/|/dev/vda 479079112 98000000 356700000 22% /|/dev/vda 5 4 1 80% /\n"),
    *(
        (f"section {name}", section(name), text)
        for name, text in {**test_probe.answer(), **MORE_SECTIONS}.items()
        if name not in ("docker", "containers", "images", "tuned")
    ),
    *(
        (f"check {name}", checked(name), text)
        for name, text in cases_network.GOOD.seen["gpu2"].answers.items()
    ),
)
_EACH = 60


def outcome(reader: Callable[[str], object], text: str) -> str:
    """Return ``value``, ``error``, or a description of what else a reader did."""
    try:
        reader(text)
    except ToolkitError as error:
        return "error" if error.host == HOST or HOST in error.what else f"names no host: {error.what}"
    except BaseException as error:
        return f"{type(error).__name__}: {error} for {text[:300]}"
    return "value"


def test_sound_answers_are_read() -> None:
    for name, reader, value in JSON:
        assert outcome(reader, json.dumps(value)) == "value", name
    for name, reader, text in LINES:
        assert outcome(reader, text) == "value", name


def test_an_odd_answer_is_a_value_or_an_error_that_names_the_host() -> None:
    rng, found = Random(13), {"value": 0, "error": 0}
    for name, reader, value in JSON:
        for text in odd_json(value, rng, _EACH):
            what = outcome(reader, text)
            assert what in found, (name, what)
            found[what] += 1
    for name, reader, recorded in LINES:
        for text in odd_lines(recorded, rng, _EACH):
            what = outcome(reader, text)
            assert what in found, (name, what)
            found[what] += 1
    assert min(found.values()) > 100, "the changes are neither all harmless nor all fatal"


def test_what_is_at_the_end_of_a_range_is_shown_or_refused() -> None:
    """Ranges are those of the values that all parts of toolkit compute with and show."""
    found = {"value": 0, "error": 0}
    for name, reader, value in JSON:
        for text in ends_of_ranges(value):
            what = outcome(reader, text)
            assert what in found, (name, what)
            found[what] += 1
    assert min(found.values()) > 100


def test_a_process_that_began_at_no_possible_time_is_shown() -> None:
    argv = base64.b64encode(f"python3\0{_WORDS}\0j1\0--gpus\0GPU-1a\0".encode()).decode()
    claim = f"claim|77|alice|S {' '.join(['9' * 18] * 20)}|={argv}\n"
    facts = parse_facts(HOST, "demo", {**test_probe.answer(), **MORE_SECTIONS, "claims": claim})
    assert "j1" in gpus_text([facts])


def test_a_host_without_python_tells_so() -> None:
    with pytest.raises(ToolkitError, match="no python3"):
        data_seen('{"missing": "no python3"}')


@for_each("name", tuple(test_probe.answer()))
def test_a_section_that_is_missing_is_named(name: str) -> None:
    sections = {key: text for key, text in test_probe.answer().items() if key != name}
    with pytest.raises(ToolkitError, match=f"{name}: is missing") as caught:
        parse_facts(HOST, "demo", sections)
    assert caught.value.host == HOST


@for_each("address", ("999.1.1.1", "10.0.0.1\x1b", "x", "10.0.0.0/8"))
def test_an_address_that_a_host_remembers_is_one(address: str) -> None:
    facts = parse_facts(HOST, "demo", test_probe.answer(cluster=f"{address} gpu9\n10.77.0.3 gpu2\n"))
    assert facts.remembered.addresses == (("gpu2", "10.77.0.3"),)


@for_each("name", ("..", "../sda", "-x", "a b/c", "a:b:rwm/x"))
def test_a_device_is_one_below_its_folder(name: str) -> None:
    found = parse_facts(HOST, "demo", test_probe.answer(infiniband=f"{name}\nuverbs0")).infiniband
    assert all(path.count("/") == 3 and ".." not in path for path in found)
    assert "/dev/infiniband/uverbs0" in found
    assert parse_facts(HOST, "demo", test_probe.answer(imex=f"{name}\nchannel-1\nchannel7")).imex == (
        "/dev/nvidia-caps-imex-channels/channel7",
    )


# One bad host


class Hosts:
    """A session whose hosts print the given texts."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.facts = {host: world.facts_when_up()[host] for host in texts}
        self.runners = {host: self.container(host) for host in texts}
        self.errors: dict[str, ToolkitError] = {}
        self.started: dict[str, tuple[str, ...]] = {}
        names = tuple(texts)
        about = {"cluster": "demo", "main": names[0], "names": names}
        self.inventory = SimpleNamespace(**about, answering=names, in_parts=True)

    def container(self, host: str) -> Any:
        runner = Printing(self.texts[host])
        runner.name = host
        return runner


ODD_LISTS = ("", "nonsense", "[1]", "{}", '[{"id": "x"}]', '[{"id": "../x", "alive": true}]', "[" * 100000)


@for_each("text", ODD_LISTS)
def test_a_host_with_an_odd_list_of_jobs_stops_no_other(text: str) -> None:
    both = {**RECORD, "hosts": [{"name": "gpu1"}, {"name": "gpu2"}]}
    session: Any = Hosts(gpu1=text, gpu2=json.dumps([{**ROWS[0], "record": both}]))
    assert records.running_jobs(session) == [world.JOB_ID]
    (found,) = records.job_parts(session)
    assert tuple(found.statuses) == ("gpu2",) and found.silent == ("gpu1",)
    with pytest.raises(ToolkitError, match="cannot read the job list") as caught:
        records._ask(session, "gpu1")
    assert caught.value.host == "gpu1"


@for_each("text", ("", "[]", '{"state": 1}', '{"started": NaN}'))
def test_a_host_with_an_odd_word_about_the_end_stops_no_other(text: str) -> None:
    session: Any = Hosts(gpu1=text, gpu2=json.dumps(STATUS))
    ended, errors = parts.end_parts(session, world.JOB_ID, ("gpu1", "gpu2"))
    assert tuple(ended) == ("gpu2",) and tuple(errors) == ("gpu1",)
    assert errors["gpu1"].host == "gpu1" and f"the final state of job {world.JOB_ID}" in errors["gpu1"].what


def test_the_field_is_named() -> None:
    odd = [{**ROWS[0], "status": {**STATUS, "started": "now"}}]
    session: Any = Hosts(gpu1=json.dumps(odd))
    with pytest.raises(ToolkitError, match=r"\[0\].status.started: not a number: 'now'"):
        records.known_jobs(session)


def test_an_odd_end_of_a_followed_job_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("{}", '{"status": 1}', '{"status": {}, "now": "x"}', "[[["):
        monkeypatch.setattr(logs, "copy", lambda *_, text=text: text)
        session: Any = SimpleNamespace(
            inventory=SimpleNamespace(main=HOST, in_parts=False),
            container_sessions=SimpleNamespace(take=lambda host: None),
            main=None,
        )
        with pytest.raises(ToolkitError, match=f"cannot read the final state of job {world.JOB_ID}"):
            logs.follow(session, world.JOB_ID, print)
        own = {"_sink": SimpleNamespace(close=lambda: None), "_put": print, "_what": logs.ALL}
        part: Any = SimpleNamespace(**own, host=HOST, _job=world.JOB_ID)
        with pytest.raises(ToolkitError, match=f"cannot read the final state of job {world.JOB_ID}"):
            logs._Part._follow(part, None)  # type: ignore[arg-type]
    assert Status().state == ""


def test_a_host_with_odd_images_stops_no_other() -> None:
    sections = {
        name: {"images-held": f"=used\n=images\n{text}"} for name, text in (("gpu1", "[1]"), ("gpu2", "[]"))
    }
    session: Any = Hosts(gpu1="", gpu2="")
    session.replies = {name: SimpleNamespace(sections=one) for name, one in sections.items()}
    assert images._held(session) == {"gpu2": ()}
    assert "cannot read the image list that the host sent: [0]: not an object" in session.errors["gpu1"].what


@for_each("label", ("x", "\u00b2", "-1", "9" * 5000, "70000", ""))
def test_a_port_label_is_a_port_or_none(label: str) -> None:
    labels = {LABEL_CLUSTER: "demo", LABEL_ROLE: WORKER, LABEL_PORT: label}
    facts = replace(world.facts("gpu2"), containers=(ContainerFacts("c", "worker", "running", labels),))
    assert _held_port("demo", facts) == 0


class Says:
    """A container session that says these messages, the last of them again and again."""

    def __init__(self, *messages: SessionAnswer) -> None:
        self.messages, self.sent = list(messages), 0

    def receive(self, about: str, seconds: float | None = None) -> SessionAnswer:
        return self.messages.pop(0) if len(self.messages) > 1 else self.messages[0]

    def send(self, message: object, data: object = ()) -> None: ...

    def send_bytes(self, data: object) -> None: ...


def a_talk(*messages: SessionAnswer) -> Any:
    tree = SimpleNamespace(digest="d", number=4, marks=b"", entries=[1, 2, 3], of_buckets=list)
    step: Any = SimpleNamespace(tree=tree, target="/x/j1", source="/code", job={}, record={}, host=HOST)
    container_session: Any = Says(*messages)
    return _Talk(step, container_session, lambda done, whole: None)


@for_each(
    ("message", "words"),
    [
        (SessionAnswer(buckets=(0, 1)), "did not finish after 50 requests from the host"),
        (SessionAnswer(needs=((0, 2), (0, 2))), "more files than the code contains"),
        (SessionAnswer(needs=((0, 2**32),) * 1000), "more files than the code contains"),
    ],
)
def test_a_host_cannot_ask_for_code_without_end(message: SessionAnswer, words: str) -> None:
    with pytest.raises(ToolkitError, match=words) as caught:
        a_talk(message).hold()
    assert caught.value.host == HOST
    assert (
        a_talk(SessionAnswer(buckets=(1,)), SessionAnswer(needs=((0, 0), (2, 2))), SessionAnswer(done=True))
        .hold()
        .done
    )


def test_a_launcher_starts_nothing_on_a_host_outside_of_its_job() -> None:
    container_session: Any = Says(SessionAnswer(host="gpu9", command="orted"))
    context: Any = SimpleNamespace(
        container_sessions=SimpleNamespace(open=lambda runner, container: container_session),
        runners={HOST: None, "gpu2": None},
    )
    step: Any = SimpleNamespace(
        others=(("gpu2", "c"),), variables=("",), host=HOST, container="c", job=world.JOB_ID
    )
    with pytest.raises(ToolkitError, match="an unexpected process on 'gpu9'") as caught:
        start_daemons(step, context, lambda done, whole: None)
    assert caught.value.host == HOST


def test_a_stream_without_a_newline_is_bounded() -> None:
    stream = LineStream(HOST, 10)
    assert stream.take(b"ab") == [] and stream.take(b"c\nd\ne") == [b"abc", b"d"]
    with pytest.raises(ToolkitError, match="a line of more than 10 bytes") as caught:
        stream.take(b"x" * 10)
    assert caught.value.host == HOST


def test_of_a_stream_without_end_only_the_end_is_kept() -> None:
    """`stop` and `pull` read streams that last as long as the host wants."""
    tail = Tail(16)
    for _ in range(1000):
        tail.take(b"\nnoise" * 100)
    tail.take(b"\npull")
    tail.take(b"ed\n")
    assert tail.text == "se\nnoise\npulled"


def test_a_line_in_many_pieces_takes_as_much_memory_as_in_one() -> None:
    tracemalloc.start()
    try:
        stream = LineStream(HOST)
        for _ in range(200_000):
            assert stream.take(b"xy" * 2) == []
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
    assert stream.take(b"\n") == [b"xy" * 400_000]


def test_a_host_cannot_make_a_job_of_any_size() -> None:
    """A few bytes per host stand for thousands of ranks."""
    hosts = [{"name": f"h{number}", "slots": 4096} for number in range(17)]
    with pytest.raises(DecodeError, match="more than 65536 slots"):
        decode(Record, {"hosts": hosts})
    with pytest.raises(DecodeError, match="more than 65536 slots"):
        decode(Status, {"hosts": {f"h{number}": [0] for number in range(70_000)}})
    record = decode(Record, {"hosts": hosts[:16]})
    tracemalloc.start()
    try:
        rows = [parse_status("j", Status(), True, record) for _ in range(1000)]
        assert rows[0].ranks == 65536 and tracemalloc.get_traced_memory()[0] < 16 << 20
    finally:
        tracemalloc.stop()
