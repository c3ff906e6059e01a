"""A Ray cluster on the hosts of one job, and the driver on it.

    job.ray JOB node               a node of it, on this host; the first host's is the head
    job.ray JOB driver COMMAND...  becomes the command after all nodes have joined

Nodes and drivers authenticate with the job's token (RAY_AUTH_MODE, Ray 2.52 and later): without it, any
client that reaches a node's ports could run programs there. Ray reads the token from a path in memory.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec

from toolkit.container.conventions import RANK_TAG, exit_code_of, fail, job_folder, temporary_folder
from toolkit.container.job.child import capability_dropper
from toolkit.container.job.rank import Place, rank_env
from toolkit.container.job.variables import Variables, require, token_path
from toolkit.container.job_file import HostFile, Job, load_host, load_job
from toolkit.container.logs.log import last_lines
from toolkit.protocol.outcomes import EXIT_LOST, EXIT_USAGE

READY_S = 90.0  # for all nodes to join; a busy host takes 20 s to start one
LOOK_S = 0.3
# Otherwise Ray Train's workers print each line twice: to their logger and unchanged (patch_print.py).
QUIET = {"RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}
_ADD_RAY = "add Ray to the image (for example: `toolkit image build --with ray`), then run `toolkit up`"
# Only for the driver: Ray assigns places to its workers.
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[2] not in ("node", "driver"):
        fail(EXIT_USAGE, "usage: job.ray JOB node | job.ray JOB driver COMMAND...")
    job, host = load_job(sys.argv[1]), load_host()
    variables = require(job, host["host"])
    known = token_env(job)
    capability_dropper()()  # Ray's workers run the user's code, like the driver
    if sys.argv[2] == "node":
        return serve(job, host, variables, known)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ.update(known, RAY_ADDRESS=head_of(job))
    wait_for_head(job, host["host"])
    wait_for_nodes(job)
    own = job["hosts"][0]["slots"]
    place = {"RANK": 0, "WORLD_SIZE": job["world_size"], "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": own}
    os.environ.update({name: str(value) for name, value in place.items()})
    return os.execvp(sys.argv[3], sys.argv[3:])


def head_of(job: Job) -> str:
    return f"{job['master_address']}:{job['master_port']}"


def token_env(job: Job) -> dict[str, str]:
    """Return the variables that admit a process of this host to the job's Ray, without the token itself."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path(job_folder(job["id"])))}


def node_argv(job: Job, host: HostFile) -> list[str]:
    """Return the command that starts this host's node in the foreground."""
    own = next(each for each in job["hosts"] if each["name"] == host["host"])
    head = job["hosts"][0]["name"] == host["host"]
    argv = ["ray", "start", "--block", "--disable-usage-stats", "--log-style=record", "--log-color=false"]
    if head:
        # Ray Train queries the dashboard's server about its controller; it listens on loopback, also with the
        # token.
        argv += ["--head", f"--port={job['master_port']}", "--dashboard-host=127.0.0.1"]
        if find_spec("grpc"):  # with grpc, Ray also starts a client server, at a free port
            argv += [f"--ray-client-server-port={free_port()}"]
        # Folder of all nodes. Ray makes it readable by all users, so it is inside a private folder. Its name
        # is short: it contains sockets, whose paths are limited to 107 characters.
        argv += [f"--temp-dir={temporary_folder(job['id']) / 'r'}"]
    else:
        argv += [f"--address={head_of(job)}"]
    gpus = own["visible"].split(",") if own["visible"] else own["gpus"]
    argv += [f"--node-ip-address={own['address']}", f"--num-gpus={len(gpus)}"]
    # With GPUs, slots are GPUs; without, a slot is a Ray CPU, so that ranks are spread by slots.
    if not own["gpus"]:
        argv += [f"--num-cpus={own['slots']}"]
    # Any free ports: another job can use Ray's default ports.
    return [*argv, "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]


def free_port() -> int:
    """Return a port that is free at this moment."""
    with socket.create_server(("", 0)) as trial:
        port: int = trial.getsockname()[1]
    return port


def node_env(job: Job, host: HostFile, variables: Variables) -> dict[str, str]:
    """Return the environment of Ray's node and its workers: that of a rank without a place.

    Ray divides the GPUs of CUDA_VISIBLE_DEVICES among its workers.
    """
    env = rank_env(os.environ, host, job, variables, Place(0, job["world_size"], 0, 1))
    for name in (*_PLACE, RANK_TAG):
        del env[name]
    # Files of killed daemons are removed with the job.
    return {**QUIET, **env, "TMPDIR": str(temporary_folder(job["id"]))}


def serve(job: Job, host: HostFile, variables: Variables, known: dict[str, str]) -> int:
    """Run this host's node until it is ended; Ray's output goes to a log next to those of the ranks."""
    name = host["host"]
    if name != job["hosts"][0]["name"]:
        wait_for_head(job, name)
    logs = job_folder(job["id"]) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"ray-{name}.log"
    with path.open("wb") as log:
        try:
            process = subprocess.Popen(
                node_argv(job, host),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**node_env(job, host, variables), **known},
            )
        except FileNotFoundError:
            fail(127, f"{name}: the image has no Ray; {_ADD_RAY}")
    code = exit_code_of(process.wait())
    for line in last_lines(path):
        print(f"[toolkit] {name}: ray: {line}", file=sys.stderr)
    return code


def wait_for_head(job: Job, name: str) -> None:
    """Wait until the first host's node listens."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection((job["master_address"], job["master_port"]), 3.0):
            return
        time.sleep(LOOK_S)
    first = job["hosts"][0]["name"]
    fail(EXIT_LOST, f"{name}: Ray on {first} did not listen on {head_of(job)} within {READY_S:.0f} s")


def wait_for_nodes(job: Job) -> None:
    """Wait until Ray has the nodes of all hosts, with the slots of the job."""
    try:
        import ray
    except ImportError as error:
        fail(127, f"the image has no Ray ({error}); {_ADD_RAY}")
    ray.init(address=head_of(job), log_to_driver=False, logging_level="ERROR", configure_logging=False)
    wanted = {host["address"]: host for host in job["hosts"]}
    until = time.monotonic() + READY_S
    there: dict[str, dict[str, float]] = {}
    while time.monotonic() < until and not wanted.keys() <= there.keys():
        there = {node["NodeManagerAddress"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        time.sleep(LOOK_S)
    ray.shutdown()
    if late := [host["name"] for address, host in wanted.items() if address not in there]:
        who, head = ", ".join(late), head_of(job)
        fail(EXIT_LOST, f"Ray on {who} did not join the Ray head at {head} within {READY_S:.0f} s")
    for address, host in wanted.items():
        what, slots = ("GPU", len(host["gpus"])) if host["gpus"] else ("CPU", host["slots"])
        has = there[address].get(what, 0)
        if has != slots:
            about = f"the number of {what}s in Ray is {has:g}, but the job requires {slots}"
            fail(EXIT_USAGE, f"{host['name']}: {about}")
