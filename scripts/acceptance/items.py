"""The acceptance items: each tries one thing on this machine, and returns a detail or raises the reason.

An item runs in its own process, so it may block or die. It uses toolkit's own parsers, checks and programs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from scripts.acceptance.report import Failed, Skipped, judge_fault, judge_program
from toolkit.checks import gpu, gpu_setup
from toolkit.checks.leftovers import MARKS
from toolkit.checks.model import Scene, Seen
from toolkit.cluster.gpus import SMI, explain, is_known, parse_smi
from toolkit.cluster.probe import parse_facts, parse_processes, probe_command, read_probe
from toolkit.container.monitor.gauges import GPU_FIELDS, Gpus
from toolkit.core.command import Command
from toolkit.core.facts import Facts, Gpu
from toolkit.core.finding import Finding
from toolkit.core.printable import counted
from toolkit.hostsfile.inventory import Host, Inventory

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs.py")
ROTARY = ROOT / "examples" / "text" / "train_rotary.py"
# Packages that the commands of toolkit need beyond the modules that the other items use.
_PACKAGES = ("docker", "fabric", "jinja2", "paramiko", "pathspec", "pydantic", "rich", "typer", "yaml")
# The start of the result line of the all-reduce.
ALLREDUCE = r"all-reduce over \d+ ranks?: "
_LEARNED = r"^rank 0: test loss \d+\.\d+$"
_HOST = "here"


@dataclass(frozen=True)
class Machine:
    """The part of this machine that items use.

    Args:
        gpus: number of GPUs of torch and nvidia-smi, 0 in a rehearsal on the CPU.
        hosts: a hosts file to use instead of this machine over SSH, or None.
        image: the image for the item with Docker, which must be in the engine of this machine.
    """

    gpus: int
    hosts: Path | None = None
    image: str = "toolkit:gpu"

    @property
    def ranks(self) -> int:
        return self.gpus or 2


@dataclass(frozen=True)
class Item:
    """One item.

    Args:
        seconds: deadline; without a result until then the item has failed.
        on_cpu: it is useful in a rehearsal without a GPU.
        torch: it needs torch.
    """

    name: str
    title: str
    run: Callable[[Machine], str]
    seconds: int
    on_cpu: bool = False
    torch: bool = True


def shell(text: str, seconds: float = 60) -> str:
    """Return what a shell script prints, errors included."""
    done = subprocess.run(
        ["sh", "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds,
    )
    return done.stdout.decode(errors="replace")


def run(
    argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> tuple[int, str]:
    """Return exit status and output of a program; the deadline of the item limits it."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    text = done.stdout.decode(errors="replace")
    sys.stdout.write(text)
    return done.returncode, text


def torchrun(ranks: int, script: Path, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a script with this number of ranks on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = ("--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port))
    argv = (sys.executable, "-m", "torch.distributed.run", *place, "--nproc-per-node", str(ranks))
    # One machine: its own addresses are enough, and are the same everywhere.
    given = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **(env or {})}
    return run((*argv, script, *words), given)


# The host's side of toolkit


def nvidia_smi(machine: Machine) -> str:
    """List the GPUs by the query and the parser of the probe."""
    gpus, trouble = parse_smi(shell(SMI))
    return judge_smi(gpus, trouble, machine.gpus)


def judge_smi(gpus: Sequence[Gpu], trouble: str, expected: int) -> str:
    """Return the GPUs in words.

    Raises:
        Failed: nvidia-smi reports a known error, or its list differs from torch's.
    """
    if not gpus or (trouble and is_known(trouble)):
        raise Failed(explain(trouble, _HOST)[0])
    split = sum(len(one.migs) for one in gpus)
    if len(gpus) != expected and not split:
        raise Failed(f"nvidia-smi lists {len(gpus)} GPUs, torch finds {expected}")
    names = ", ".join(f"{count} {name}" for name, count in Counter(one.name for one in gpus).items())
    memory = f"{gpus[0].memory_mib} MiB" if gpus[0].memory_mib else "memory not reported"
    parts = f", {split} MIG devices" if split else ""
    more = f"; not understood: {trouble}" if trouble else ""
    return f"{names}, driver {gpus[0].driver}, {memory}{parts}{more}"


def probe(more: Sequence[tuple[str, str]] = ()) -> tuple[Facts, dict[str, str]]:
    """Run the probe of a host on this machine, and return its facts and its sections."""
    nonce = secrets.token_hex(16)
    asked = probe_command("toolkit:gpu", "acceptance", _HOST, nonce, more)
    done = subprocess.run(_argv(asked), input=asked.stdin or b"", stdout=subprocess.PIPE, check=False)
    parts = read_probe(done.stdout, nonce)
    return parse_facts(_HOST, "acceptance", parts, need_docker=False), parts


def _argv(asked: Command) -> list[str]:
    return [str(word) for word in asked.argv]


def probed(machine: Machine) -> str:
    """Run the probe that every command starts with."""
    facts, _ = probe()
    if machine.gpus and not facts.gpus:
        raise Failed(f"the probe found no GPU: {facts.gpu_trouble}")
    engine = f"docker {facts.docker} ({facts.store})" if facts.docker else "no usable docker"
    gives = (
        "NVIDIA runtime" if facts.nvidia_runtime else f"CDI {', '.join(facts.cdi)}" if facts.cdi else "none"
    )
    rdma = f", {counted(len(facts.rdma), 'RDMA port')}" if facts.rdma else ""
    gpus = counted(len(facts.gpus), "GPU")
    return f"{gpus}, {facts.arch}, {engine}, GPUs in containers: {gives}{rdma}"


def checks(machine: Machine) -> str:
    """Run all GPU checks on this machine."""
    asked = (gpu.GPUS, MARKS)
    facts, parts = probe([(one.name, one.text) for one in asked])
    scene = Scene(
        Inventory("acceptance", "toolkit:gpu", _HOST, (Host(_HOST, "127.0.0.1"),)),
        {_HOST: Seen(_HOST, parts, facts)},
    )
    cards = gpu.answers(scene.seen[_HOST]).cards
    found = [finding for check in (*gpu.CHECKS, *gpu_setup.CHECKS) for finding in check.judged(scene)]
    return judge_checks(found, len(cards), len(facts.gpus))


def judge_checks(found: Sequence[Finding], cards: int, gpus: int) -> str:
    """Return the findings in words. A finding about the machine is no failure of the item.

    Args:
        cards: GPUs that the probe of the checks printed; ``gpus`` that of every command.

    Raises:
        Failed: the two probes differ.
    """
    if cards != gpus:
        raise Failed(f"the probe of the checks lists {cards} GPUs, the probe of every command {gpus}")
    counts = Counter(finding.verdict for finding in found)
    told = [f"{one.check}: {one.what}" for one in found if one.verdict in ("error", "warning", "not checked")]
    numbers = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{numbers}. {'; '.join(told)}" if told else numbers


@contextmanager
def busy_gpu() -> Iterator[int]:
    """Keep the first GPU busy, and yield the process id."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAMS), "load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            if not process.stdout.readline().startswith("busy"):
                raise Failed("the program that loads the GPU did not start")
            yield process.pid
        finally:
            process.stdin.close()


def gauges(machine: Machine) -> str:
    """Read the gauges of `top` while a program uses the first GPU."""
    reader = Gpus(1.0)
    best: dict[str, dict[str, object]] = {}
    with busy_gpu():
        until = time.monotonic() + 12
        try:
            while time.monotonic() < until:
                time.sleep(1.0)
                for row in reader.sample(time.monotonic()):
                    last = best.setdefault(str(row["uuid"]), row)
                    if _number(row["utilization"]) >= _number(last["utilization"]):
                        best[str(row["uuid"])] = row
        finally:
            reader.close()
    return judge_gauges(tuple(best.values()), machine.gpus)


def judge_gauges(rows: Sequence[Mapping[str, object]], expected: int) -> str:
    """Return the gauges of the busiest GPU.

    Args:
        rows: the busiest reading of each GPU.

    Raises:
        Failed: a GPU is missing, or none of them was busy.
    """
    if len(rows) < expected:
        raise Failed(f"{len(rows)} of {expected} GPUs have gauges")
    most = max(rows, key=lambda row: _number(row["utilization"]))
    absent = [name for name in GPU_FIELDS.values() if most[name] is None]
    if "utilization" in absent:
        raise Failed("nvidia-smi does not report utilization (a GPU that is split by MIG reports none)")
    if _number(most["utilization"]) < 50:
        raise Failed(f"the busiest GPU has a utilization of {most['utilization']} %")
    missing = f"; not reported: {', '.join(absent)}" if absent else ""
    values = (
        f"{most['utilization']:.0f} %, {most['memory_used']} of {most['memory_total']} MiB, {most['power']} W"
    )
    return f"{values}, {most['temperature']} °C, {most['clock']} of {most['clock_max']} MHz{missing}"


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else -1.0


def processes(machine: Machine) -> str:
    """Find a process that uses the GPU in the list from which GPU reservations are checked."""
    with busy_gpu() as pid:
        _, parts = probe()
        listed = shell("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits")
    found = [one for one in parse_processes(parts.get("apps", "")) if one.pid == pid]
    if found:
        return f"{found[0].program} holds {found[0].memory_mib} MiB for user {found[0].user}"
    if str(pid) in re.findall(r"^\d+", listed, re.MULTILINE):
        raise Failed("nvidia-smi lists the process, the probe does not")
    raise Skipped("nvidia-smi lists no process of this PID namespace (the script runs in a container)")


def kernel_log(machine: Machine) -> str:
    """Read Xid errors from the kernel log as the check gpu-xid does."""
    _, parts = probe([(gpu.GPUS.name, gpu.GPUS.text)])
    lines = gpu.answers(Seen(_HOST, parts)).tagged("log")
    if not lines:
        raise Skipped("this user cannot read the kernel log")
    return judge_xids([line for line in lines if "Xid" in line])


def judge_xids(lines: Sequence[str]) -> str:
    """Return the Xid numbers in lines of the kernel log.

    Raises:
        Failed: a line has another form than the check expects.
    """
    found = [gpu.xid_of(line) for line in lines]
    if bad := [line for line, xid in zip(lines, found, strict=True) if xid is None]:
        raise Failed(f"{len(bad)} lines about Xid errors have an unknown form, for example: {bad[0]}")
    counts = Counter(xid[1] for xid in found if xid)
    return ", ".join(f"Xid {code}: {count}" for code, count in sorted(counts.items())) or "no Xid since boot"


# Programs that compile or train


def headers(machine: Machine) -> str:
    """Compile a C module that includes Python.h, as Triton does for each launcher of a kernel."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Failed("no C compiler on the PATH, which Triton needs")
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "probe.c"), Path(folder, "probe.so")
        source.write_text(
            "#include <Python.h>\n"
            'static struct PyModuleDef probe = {PyModuleDef_HEAD_INIT, "probe", NULL, -1, NULL};\n'
            "PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&probe); }\n"
        )
        include = sysconfig.get_path("include")
        status, text = run((compiler, "-shared", "-fPIC", f"-I{include}", source, "-o", built))
        if status:
            raise Failed(
                f"{compiler}: {text.strip().splitlines()[0] if text.strip() else f'exit status {status}'}"
            )
        spec = importlib.util.spec_from_file_location("probe", built)
        assert spec is not None
        importlib.util.module_from_spec(spec)
    return f"{Path(compiler).name} with {include}"


def allreduce(machine: Machine) -> str:
    """Sum a tensor over all GPUs of this machine, with the program of `toolkit smoke`."""
    status, text = torchrun(machine.ranks, PROGRAMS, "allreduce", env={"NCCL_DEBUG": "INFO"})
    found = judge_program(status, text, rf"{ALLREDUCE}.*$")
    ways = Counter(re.findall(r"NCCL INFO Channel .* via (\S+)", text))
    return f"{found}{f'; NCCL channels: {dict(ways)}' if ways else ''}"


def compiles(machine: Machine) -> str:
    """Compile a function for values and gradients with torch.compile."""
    return judge_program(*run((sys.executable, PROGRAMS, "compile")), r"^compiled forward and backward .*$")


def rotary(machine: Machine, *words: str, ranks: int = 1, native: str = "1") -> str:
    """Train the rotary language model of the examples.

    Args:
        native: "1" disables the kernels that torch compiles for eager operators.
    """
    short = ("--steps", "40") if machine.gpus else ("--steps", "6", "--batch-size", "2")
    with tempfile.TemporaryDirectory() as folder:
        given = (*short, "--checkpoints", folder, *words)
        status, text = torchrun(ranks, ROTARY, *given, env={"TORCH_DISABLE_NATIVE_JIT": native})
    loss = judge_program(status, text, _LEARNED)
    return f"{loss}, {judge_program(status, text, r'^[0-9]+ bytes/s on [0-9]+ ranks$')}"


# Deliberate faults, as `toolkit why` reads them


def fault(program: str, expected: str) -> str:
    """Run a program that fails, and look its output up in the known errors of `toolkit why`."""
    if importlib.util.find_spec("yaml") is None:
        raise Skipped("needs PyYAML, which reads the known errors")
    from toolkit.diagnose.known_errors import match

    status, text = run((sys.executable, PROGRAMS, program))
    return judge_fault(status, text, [error.name for error in match(text.splitlines())], expected)


# Docker


def docker(machine: Machine) -> str:
    """Start a cluster on this machine with the commands of a user: up, smoke, run, why, down."""
    if absent := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise Skipped(f"needs the packages of toolkit (pip install .): {', '.join(absent)}")
    with tempfile.TemporaryDirectory() as folder:
        hosts = machine.hosts or _hosts_file(machine, Path(folder))
        return _session(machine, hosts)


def _hosts_file(machine: Machine, folder: Path) -> Path:
    if shutil.which("docker") is None:
        raise Skipped("docker is not installed")
    facts, _ = probe()
    if not facts.docker:
        raise Skipped("this user cannot use docker")
    if machine.gpus and not (facts.nvidia_runtime or facts.cdi):
        raise Skipped("docker cannot give GPUs to containers: the NVIDIA Container Toolkit is missing")
    if run(("docker", "image", "inspect", "--format", "{{.Id}}", machine.image))[0]:
        raise Skipped(f"docker has no image {machine.image} (toolkit image build --flavor gpu)")
    if run(("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "localhost", "true"))[0]:
        raise Skipped("ssh -o BatchMode=yes localhost fails; toolkit needs SSH without a password")
    file = folder / "hosts.yaml"
    hosts = {_HOST: {"address": "localhost"}}
    file.write_text(json.dumps({"cluster": "acceptance", "image": machine.image, "hosts": hosts}))
    return file


def _session(machine: Machine, hosts: Path) -> str:
    def toolkit(*words: str) -> tuple[int, str]:
        argv = (sys.executable, "-m", "toolkit", *words)
        return run(argv, {"TOOLKIT_HOSTS": str(hosts)})

    train = ("run", "--no-fold", "--launcher", "torchrun", "--workdir", str(ROTARY.parent), ROTARY.name)
    steps = ("--steps", "20", "--precision", "bf16", *(() if machine.gpus else ("--batch-size", "2")))
    try:
        judge_program(*toolkit("up"), r"")
        smoke = judge_program(*toolkit("smoke"), rf"{ALLREDUCE}[^,]*")
        loss = judge_program(*toolkit(*train, *steps), r"rank 0: test loss \d+\.\d+")
        found = f"up; {smoke}; {loss}"
        if machine.gpus:
            words = ("run", "--launcher", "python", "--np", "1", "--workdir", str(PROGRAMS.parent))
            status, text = toolkit(*words, PROGRAMS.name, "assert")
            told = toolkit("why")[1]
            if "device-side assert" not in text or "known error cuda-assert" not in told:
                raise Failed(f"a device-side assert (exit status {status}) was not recognized by why")
            found += "; why recognizes a device-side assert"
    finally:
        with suppress(OSError):
            status, text = toolkit("down", "--no-save")
    judge_program(status, text, r"")
    return f"{found}; down"


ITEMS = (
    Item("nvidia-smi", "Parser of the output of `nvidia-smi`", nvidia_smi, 45, torch=False),
    Item("probe", "Probe of the host", probed, 60, on_cpu=True, torch=False),
    Item("checks", "All GPU checks", checks, 90, on_cpu=True, torch=False),
    Item("kernel-log", "Xid errors in the kernel log", kernel_log, 60, torch=False),
    Item("gauges", "Gauges of `top` while a GPU is busy", gauges, 60),
    Item("processes", "Detection of GPU processes", processes, 60),
    Item("headers", "Compilation of a C module with `Python.h`", headers, 60, on_cpu=True, torch=False),
    Item("allreduce", "All-reduce over all GPUs of the machine", allreduce, 90, on_cpu=True),
    Item("compile", "`torch.compile`, forward and backward", compiles, 150, on_cpu=True),
    Item(
        "rotary", "Rotary model, eager, with TORCH_DISABLE_NATIVE_JIT=1", lambda m: rotary(m), 90, on_cpu=True
    ),
    Item(
        "rotary-native",
        "Rotary model, eager, with TORCH_DISABLE_NATIVE_JIT=0",
        lambda m: rotary(m, native="0"),
        120,
    ),
    Item("rotary-compile", "Rotary model, compiled", lambda m: rotary(m, "--compile"), 200, on_cpu=True),
    Item(
        "bf16",
        "Rotary model, bf16 with DDP on all GPUs",
        lambda m: rotary(m, "--precision", "bf16", ranks=m.ranks),
        90,
        on_cpu=True,
    ),
    Item("assert", "A device-side assert, recognized by `why`", lambda m: fault("assert", "cuda-assert"), 60),
    Item(
        "illegal",
        "An access outside of a buffer, recognized by `why`",
        lambda m: fault("illegal", "cuda-illegal-access"),
        60,
    ),
    Item("memory", "A full GPU, recognized by `why`", lambda m: fault("memory", "cuda-memory"), 60),
    Item("docker", "`up`, `smoke`, `run`, `down` in containers", docker, 300, on_cpu=True, torch=False),
)
