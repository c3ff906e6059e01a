"""Parts of command lines: correct lines of every verb, and changes that make them wrong for certain."""

from __future__ import annotations

import random
from collections.abc import Callable

GOOD_HOSTS = (
    b"cluster: demo\nimage: toolkit:cpu\nhosts:\n  gpu1: {slots: 2}\n  gpu2: {slots: 3}\n"
    b"data:\n  - {source: ./folder, path: /scratch/x, target: /data}\n"
    b"services: {board: {command: tensorboard, ports: [6006]}, plain: {command: x}}\n"
)
FILES = {
    "hosts.yaml": GOOD_HOSTS,
    "bad.yaml": b"cluster: No!\nimage: X\nhosts: {}\n",
    "not.yaml": b"hosts: [gpu1\n\t}",
    "mpi": b"gpu1 slots=8\ngpu2\n",
    "bad-mpi": b"gpu1 slots=x\n+e\n",
    "train.py": b"",
    "folder/x": b"",
    ".ssh/config": b"Host gpu1 gpu2\n  User alice\n",
}

# Leaves out what schedulers cannot express, and gives the number of GPUs, so that no host is queried.
_LEFT = ("--leave-out", "services", "--gpus", "0")
# Correct command lines. Each verb is in this list (a test checks it), with most of its options.
RIGHT: tuple[tuple[str, ...], ...] = (
    ("init", "gpu1:8", "gpu2=alice@10.0.0.2", "--user", "bob", "--output", "new.yaml"),
    ("init", "--from-hostfile", "mpi", "--cluster", "x", "--image", "a:b", "-o", "new.yaml", "--json"),
    ("init", "--force", "--dry-run"),
    ("init", "--find", "--force", "--dry-run", "--json"),
    ("init", "gpu1", "alice@gpu2", "--try", "--yes", "-o", "new.yaml"),
    ("init", "--yes", "--cluster", "x", "--image", "a:b", "--force"),
    ("image", "build", "--flavor", "cpu", "--tag", "x:y", "--dry-run", "--json"),
    (
        "image",
        "build",
        "--build-arg",
        "TORCH_VERSION=2.13.0",
        "--no-cache",
        "--base-image",
        "debian:x",
        "--torch-index",
        "x",
    ),
    ("image", "build", "--onto", "debian:x", "--no-cache", "--dry-run"),
    ("image", "inspect", "x:y", "--json"),
    ("image", "send", "--json", "-v"),
    ("image", "ls", "--json"),
    ("image", "prune", "--dry-run", "--json", "-v"),
    ("data", "send", "--dry-run", "--json"),
    ("data", "ls", "--json", "-v"),
    ("data", "rm", "--json"),
    ("trust", "gpu1", "gpu2", "--yes", "--replace", "--json"),
    ("trust", "--dry-run"),
    ("up", "--prepare", "--force", "--json"),
    ("up", "--hosts", "hosts.yaml", "--dry-run", "-v"),
    ("smoke", "--launcher", "torchrun", "--dry-run", "--json"),
    ("check", "--check", "docker", "--only", "clock", "--strict", "--json"),
    ("check", "--fix", "--dry-run", "-v"),
    ("check", "--quick"),
    ("network", "explain", "--json"),
    ("network", "tune", "--backend", "mpi", "--budget", "12", "--only", "gpu1", "--only", "gpu2", "--json"),
    ("network", "tune", "--forget", "--dry-run", "-v"),
    ("bench", "network", "--only", "gpu1", "--backend", "mpi", "--most", "4", "--report", "net.html", "-v"),
    ("bench", "scaling", "--on", "1,2", "--seconds", "5", "--batch", "all", "train.py", "--epochs", "9"),
    ("bench", "scaling", "--only", "gpu1", "--report", "s.html", "--json", "--", "python3", "train.py"),
    ("bench", "network", "--seconds", "0", "--streams", "2", "--budget", "5", "--dry-run", "--json"),
    ("bench", "tune", "--backend", "mpi", "--budget", "12", "--json"),
    ("bench", "predict", "--rate", "1gbit", "--model", "resnet50", "--step-time", "250ms"),
    ("predict", "--rate", "1gbit", "--model", "resnet50", "--step-time", "250ms", "--json"),
    ("predict", "--rate", "10mbit", "--params", "25.6M", "--up-to", "8", "--latency", "200us"),
    (
        "run",
        "--np",
        "2",
        "--only",
        "gpu1",
        "--env",
        "A=b",
        "--launcher",
        "mpirun",
        "train.py",
        "--epochs",
        "3",
    ),
    (
        "run",
        "--exclude",
        "gpu2",
        "--timeout",
        "60",
        "--on-interrupt",
        "detach",
        "--share",
        "-d",
        "--",
        "true",
    ),
    ("run", "--workdir", "folder", "--raw", "--json", "--dry-run", "x"),
    ("status", "--json"),
    ("top", "--interval", "1.5", "--json"),
    ("top", "--once", "-v"),
    ("top", "--prometheus", "toolkit.prom", "--interval", "5"),
    ("jobs", "--all", "--json"),
    ("attach", "x", "--tail", "3", "--on-interrupt", "stop", "--no-fold", "--raw", "--json"),
    ("logs", "20260102-030405-x-a1b2", "-f", "--since", "10m", "--tail", "5", "--host", "gpu1"),
    ("logs", "x", "--rank", "3", "--no-fold", "--raw"),
    ("logs", "x", "--save", "kept"),
    ("wait", "x", "--timeout", "5", "--json"),
    ("report", "x", "-o", "page.html", "--compare", "y", "--json", "-v"),
    ("why", "x", "--save", "kept.tar.gz", "--json", "-v"),
    ("stop", "x", "--dry-run", "--json", "--grace", "2"),
    ("stop", "x", "--now"),
    ("get", "out", "*.pt", "--job", "x", "--host", "gpu2", "-o", "folder", "--dry-run", "--json"),
    ("get", "--all-hosts", "--force", "--keep-modes", "/data/x", "-v"),
    ("forward", "board", "--port", "7000", "--json", "-v"),
    ("logs", "--service", "board", "-f", "--tail", "3"),
    ("shell", "gpu2", "-v"),
    ("exec", "gpu1", "--", "ls", "-l"),
    ("exec", "--all", "--timeout", "5", "--json", "hostname"),
    ("render", "compose", "-o", "out", "--json"),
    ("render", "docker", "-v"),
    ("render", "ssh", "-o", "out"),
    ("render", "slurm", *_LEFT, "--runtime", "pyxis", "--sbatch", "--partition=x", "--slots", "1", "x"),
    ("render", "slurm", *_LEFT, "--grace", "5", "--image", "a:b", "--env", "A", "-o", "out", "--", "x"),
    (
        "render",
        "kubernetes",
        *_LEFT,
        "--slots",
        "1",
        "--launcher",
        "torchrun",
        "--resource",
        "r/x=1",
        "--json",
        "x",
    ),
    (
        "render",
        "kubernetes",
        *_LEFT,
        "--slots",
        "1",
        "--launcher",
        "mpirun",
        "--host-network",
        "--node-selector",
        "a=b",
        "x",
    ),
    ("down", "--no-save", "--dry-run", "--json"),
    ("gc", "--older-than", "30", "--state", "--dry-run", "--json", "-v"),
    ("lab", "up", "--name", "x", "--count", "3", "--engine", "old,new", "--rate", "1mbit", "--slots", "2"),
    ("lab", "up", "--interfaces", "same", "--user", "root", "--image", "a:b", "--folder", "f", "--dry-run"),
    ("lab", "down", "--all", "--keep-images", "--folder", "f", "--json"),
    ("lab", "status", "--json"),
    ("schema", "-o", "s.json"),
    ("version", "--no-engine", "--json"),
)

NASTY = (
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "=",
        "--=",
        "-=x",
        "~",
        "~x/y",
        ".",
        "..",
        "../..",
        "/",
        "/etc/passwd",
        "/dev/null",
    ),
    *(
        "/dev/zero",
        "/dev/full",
        "\n",
        "\t",
        "\x7f",
        "\x1b[31m",
        "\u202e",
        "é",
        "日本",
        "\udcff",
        "\ud800",
        "🙂",
    ),
    *(
        "%s",
        "{}",
        "{0.__class__}",
        "$(id)",
        "`id`",
        "'",
        '"',
        "\\",
        ";",
        "|",
        "*",
        "a" * 300,
        "a" * 5000,
        "9" * 400,
    ),
    *(
        "0",
        "-1",
        "1e9",
        "nan",
        "inf",
        "0x10",
        "１",
        "٣",
        "true",
        "None",
        "null",
        "[]",
        "@",
        "a@b@c",
        ":",
        "a:b:c",
    ),
    *(
        "gpu1",
        "gpu9",
        "hosts.yaml",
        "bad.yaml",
        "not.yaml",
        "gone.yaml",
        "folder",
        "mpi",
        "bad-mpi",
        "train.py",
    ),
    *("--json", "--help", "-h", "--version", "--dry-run", "-v", "--hosts", "--np", "-o", "--show-completion"),
    *("up", "run", "lab", "image", "init"),
)

Spoiler = Callable[[random.Random, list[str]], list[str]]


def verb_of(words: tuple[str, ...] | list[str]) -> int:
    """Return the number of words that name the verb."""
    return 2 if words[0] in ("bench", "data", "image", "lab", "network", "render") else 1


def _with(*choices: tuple[str, ...]) -> Spoiler:
    """A spoiler that puts one of these groups of words right behind the verb."""

    def spoil(rng: random.Random, words: list[str]) -> list[str]:
        n = verb_of(words)
        return [*words[:n], *rng.choice(choices), *words[n:]]

    return spoil


def _extra(rng: random.Random, words: list[str]) -> list[str]:
    return [*words, rng.choice(("extra", "gpu1", "x=y"))]


def _option(name: str, *values: str) -> Spoiler:
    return _with(*((name, value) for value in values))


_NUMBERS = ("0", "-1", "x", "1.5", "1e3", "", "9" * 400, "１", "+", " ")
_NO_HOSTS = _option(
    "--hosts", "gone.yaml", "bad.yaml", "not.yaml", "folder", "", "a" * 5000, "/dev/zero", "mutant"
)
_NO_NAME = _option("--name", "", "No!", "../x", "a" * 80, "-")
_UNKNOWN = _with(("--frobnicate",), ("--no-such=x",), ("--Json",))
_NO_TIME = _option("--timeout", "0", "-1", "x", "nan", "inf", "1e300", "", "9" * 400)
_NO_LAUNCHER = _option("--launcher", "mpiexec", "MPIRUN", "é", "a" * 300)

# Changes that make any command line of this verb wrong.
SPOILERS: dict[str, tuple[Spoiler, ...]] = {
    "init": (
        _UNKNOWN,
        _option("--cluster", "No!", "", "a" * 80),
        _option("--image", "X Y", "", "UP"),
        _option("--user", "-x", "a b"),
        _option("--from-hostfile", "gone", "bad-mpi", "folder"),
        _with(("--find", "gpu9"), ("--find", "--from-hostfile", "mpi")),
    ),
    "image build": (
        _UNKNOWN,
        _option("--flavor", "tpu", "CPU"),
        _option("--build-arg", "X", "=y", ""),
        _extra,
    ),
    "image inspect": (_UNKNOWN, _with(("a:b", "c:d"))),
    "image send": (_UNKNOWN, _NO_HOSTS, _extra),
    "image ls": (_UNKNOWN, _NO_HOSTS, _extra),
    "image prune": (_UNKNOWN, _NO_HOSTS, _extra),
    "data send": (_UNKNOWN, _NO_HOSTS, _extra),
    "data ls": (_UNKNOWN, _NO_HOSTS, _extra),
    "data rm": (_UNKNOWN, _NO_HOSTS, _extra),
    "trust": (_UNKNOWN, _NO_HOSTS, lambda rng, words: [*words, rng.choice(("gpu9", "GPU1", "", "é"))]),
    "up": (_UNKNOWN, _NO_HOSTS, _extra),
    "check": (_UNKNOWN, _NO_HOSTS, _extra, _option("--check", "no-such-check", "", "é")),
    "smoke": (_UNKNOWN, _NO_HOSTS, _NO_LAUNCHER, _extra),
    "bench scaling": (
        *(_UNKNOWN, _NO_HOSTS, _NO_LAUNCHER),
        _option("--on", "0", "x", "1,,2", "-1"),
        _option("--seconds", "0", "x", "inf"),
        _option("--batch", "both", "ALL"),
        _option("--predicted", "gone", "folder"),
        _option("--only", "gpu9", "", "é"),
    ),
    "bench network": (
        *(_UNKNOWN, _NO_HOSTS, _extra),
        _option("--backend", "rccl", "", "MPI"),
        _option("--streams", "0", "x", "65", "-1"),
        _option("--seconds", "-1", "61", "nan", "x"),
        _option("--budget", "0", "1e9", "inf", "x"),
        _option("--most", "-1", "x", "1.5", "1000000"),
        _option("--only", "gpu9", "", "é"),
    ),
    "network tune": (
        *(_UNKNOWN, _NO_HOSTS, _extra),
        _option("--backend", "gloo", "", "MPI"),
        _option("--budget", "1", "601", "nan", "inf", "x"),
        _option("--only", "gpu9", "", "é"),
    ),
    "predict": (
        _UNKNOWN,
        _option("--rate", "fast", "0bit", "gpu9=", "-1gbit"),
        _option("--latency", "0.1", "x", "-1us"),
        _option("--model", "resnet51", "A"),
        _option("--up-to", "0", "x", "-3"),
    ),
    "network explain": (_UNKNOWN, _NO_HOSTS, _extra),
    "run": (
        *(_UNKNOWN, _NO_HOSTS, _NO_LAUNCHER, _NO_TIME),
        _option("--np", *_NUMBERS, "6"),
        _option("--env", "RANK=1", "1X=2", "NOT_SET_ANYWHERE", "", "A B=c"),
        _option("--only", "gpu9", "", "é"),
        _option("--exclude", "gpu9", ""),
        _option("--on-interrupt", "", "kill"),
        _option("--workdir", "gone", "train.py", "a" * 5000),
    ),
    "status": (_UNKNOWN, _NO_HOSTS, _extra),
    "top": (
        _UNKNOWN,
        _NO_HOSTS,
        _extra,
        _option("--interval", "0.1", "0", "x", ""),
        _with(("--prometheus", "f", "--once"), ("--prometheus", "f", "--json")),
        _with(
            ("--prometheus", "no/such/f"),
        ),
    ),
    "jobs": (_UNKNOWN, _NO_HOSTS, _extra),
    "attach": (
        *(_UNKNOWN, _NO_HOSTS, _extra),
        _option("--tail", "-1", "x", "1.5"),
        _option("--on-interrupt", "", "kill"),
    ),
    "logs": (
        *(_UNKNOWN, _NO_HOSTS, _extra),
        _option("--tail", "-1", "x", "1.5"),
        _option("--rank", "-1", "x", "1.5"),
        _option("--since", "yesterday", "1x", "-5m", "9" * 400 + "h", "2026-99-01"),
        _option("--host", "gpu9", "é"),
        _option("--service", "bord", "é"),
    ),
    "forward": (
        *(_UNKNOWN, _NO_HOSTS, _option("--port", "0", "65536", "x", "-1")),
        lambda rng, words: [*words, rng.choice(("bord", "plain", "é"))],
    ),
    "wait": (_UNKNOWN, _NO_HOSTS, _NO_TIME, _extra),
    "report": (_UNKNOWN, _NO_HOSTS, _extra, _option("--scaling", "nowhere.json")),
    "why": (_UNKNOWN, _NO_HOSTS, _extra, _option("--save", "kept", "folder", ".tar.gz", "x.tar")),
    "stop": (_UNKNOWN, _NO_HOSTS, _extra, _option("--grace", "-1", "x", "inf")),
    "get": (
        *(_UNKNOWN, _NO_HOSTS),
        _option("--job", "../x", "-", " "),
        _option("--output", "hosts.yaml", "train.py"),
        _with(("--all-hosts", "--host", "gpu1")),
    ),
    "shell": (_UNKNOWN, _NO_HOSTS, _extra),
    "exec": (_UNKNOWN, _NO_HOSTS, _NO_TIME, _with(("gpu9", "--", "x"), ("é", "--"))),
    "render compose": (_UNKNOWN, _NO_HOSTS, _extra, _option("--output", "hosts.yaml")),
    "render docker": (_UNKNOWN, _NO_HOSTS, _extra, _option("--output", "hosts.yaml")),
    "render ssh": (_UNKNOWN, _NO_HOSTS, _extra, _option("--output", "hosts.yaml")),
    "render slurm": (
        *(_UNKNOWN, _NO_HOSTS),
        _option("--output", "hosts.yaml"),
        _option("--runtime", "", "podman"),
        _option("--gpus", "-1", "x", "1.5"),
        _option("--slots", *_NUMBERS),
        _option("--leave-out", "x", ""),
        _option("--sbatch", "", "partition"),
    ),
    "render kubernetes": (
        *(_UNKNOWN, _NO_HOSTS),
        _option("--output", "hosts.yaml"),
        _option("--gpus", "-1", "x", "1.5"),
        _option("--leave-out", "x", ""),
        _option("--resource", "x", "=1"),
        _option("--node-selector", "x", "=1"),
        _option("--crd", "gone"),
    ),
    "down": (_UNKNOWN, _NO_HOSTS, _extra),
    "gc": (_UNKNOWN, _NO_HOSTS, _extra, _option("--older-than", "-1", "x", "1.5", "")),
    "lab up": (
        *(_UNKNOWN, _NO_NAME, _extra),
        _option("--count", *_NUMBERS, "999"),
        _option("--slots", *_NUMBERS, "99"),
        _option("--engine", "newer", "", "new,,old"),
        _option("--rate", "1", "fast", "0mbit"),
        _option("--image", "X Y", ""),
        _option("--interfaces", "x", ""),
        _option("--user", "alice", ""),
    ),
    "lab down": (_UNKNOWN, _NO_NAME, _extra),
    "lab status": (_UNKNOWN, _NO_NAME, _extra),
    "schema": (_UNKNOWN, _extra),
    "version": (_UNKNOWN, _extra),
}
# Second names of verbs.
SPOILERS |= {"bench tune": SPOILERS["network tune"], "bench predict": SPOILERS["predict"]}
COMPLETION = ("--install-completion", "--show-completion")
# Options that a later one of the same name would overrule, so that a spoiled one must be the last.
REPEATABLE = (
    "--env",
    "--only",
    "--exclude",
    "--check",
    "--build-arg",
    "--sbatch",
    "--resource",
    "--node-selector",
)
