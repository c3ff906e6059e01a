"""Names, labels and paths that the toolkit gives to things; all state on the hosts is found by these."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import PurePosixPath

LABEL = "toolkit"
LABEL_CLUSTER = "toolkit.cluster"
LABEL_ROLE = "toolkit.role"
LABEL_HOST = "toolkit.host"
LABEL_OWNER = "toolkit.owner"
# On a service's container: its name in the hosts file.
LABEL_SERVICE = "toolkit.service"
LABEL_PORT = "toolkit.port"
LABEL_CONFIG = "toolkit.config"
LABEL_VERSION = "toolkit.version"
LABEL_DIGEST = "toolkit.digest"
# On images: the identity of the image that this one is a part of.
LABEL_PART = "toolkit.part"

MAIN, WORKER, SERVICE = "main", "worker", "service"

# A repository name that no registry owns: verified images have a tag made of their content digest.
IDENTITY_REPOSITORY = "toolkit.local/verified"
# During a transfer, images of this repository keep the layers; toolkit removes them after the transfer.
PARTIAL_REPOSITORY = "toolkit-part"

# Folders inside every container of a cluster.
CONF = PurePosixPath("/run/toolkit/conf")
INSIDE = PurePosixPath("/run/toolkit/inside")
JOBS = PurePosixPath("/run/toolkit/jobs")

# In the main container's conf: time spans of the last `up` that changed something.
UP_TIMES = "up.json"

# On this machine: the folder below which `get` and `down` put what they download. It is never sent as code.
RUNS = "runs"

DEFAULT_WORKER_PORT = 12345
# Default of ranks with GPUs in a container of Docker; ``by_gpus`` in container/job/rank.py has the reason.
WITHOUT_NUMA_CALLS = {"NCCL_CUMEM_HOST_ENABLE": "0"}
# Begins each line that toolkit adds to the output of ranks and launchers.
OWN_LINE = "[toolkit] "
# The most that one log of a job takes on a host's disk.
DEFAULT_LOG_BYTES = 64 * 1024**2


def program(name: str, *options: str) -> tuple[str, ...]:
    """Return the words that start a program of toolkit in a container, such as ``job.rank``.

    Args:
        options: of Python.
    """
    return ("python3", *options, str(INSIDE / "run.py"), name)


def container_name(cluster: str, role: str) -> str:
    """Return the name of a cluster's container on a host; toolkit creates one per cluster and host."""
    return f"toolkit-{cluster}-{role}"


def service_container(cluster: str, service: str) -> str:
    """Return the name of a service's container."""
    return container_name(cluster, f"{SERVICE}-{service}")


def job_id(start: datetime, program: str, token: str) -> str:
    """Return a job's id: sortable by time, readable, unique by ``token`` (4 hexadecimal digits).

    >>> job_id(datetime(2026, 1, 2, 3, 4, 5), "examples/train_ddp.py", "a1b2")
    '20260102-030405-train-ddp-a1b2'
    """
    stem = PurePosixPath(program).name.rsplit(".", 1)[0]
    word = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:24].strip("-") or "job"
    return f"{start:%Y%m%d-%H%M%S}-{word}-{token}"


# A job's id names folders on the hosts and here: never empty, hidden, or a path.
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def job_word(text: str) -> str:
    """Return a word that identifies a job for users: its id, or the last part of it.

    Raises:
        ValueError: no job is called so.
    """
    if not JOB_ID.fullmatch(text):
        raise ValueError("a job id looks like 20260102-030405-train-a1b2; `toolkit jobs` lists the job ids")
    return text


# Names that the generated passwd file has for others already.
_TAKEN = ("root", "sshd", "nobody")


def container_user(login: str) -> str:
    """Return the name inside containers of the user with this login on a host.

    Directory services assign names with a domain, which sshd would read as a pattern of user and host.

    >>> container_user("alice@corp.example.com"), container_user(r"CORP\\alice.smith")
    ('alice', 'alice.smith')
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "_", login.rpartition("\\")[2].partition("@")[0])
    name = re.sub(r"^[^A-Za-z0-9_]", "_", name) or "user"
    return f"{name}_" if name in _TAKEN else name


def identity_reference(identity: str) -> str:
    """Return the local reference of a verified image, equal on every engine and image store."""
    return f"{IDENTITY_REPOSITORY}:{identity}"


def image_names(identity: str, name: str) -> tuple[str, ...]:
    """Return the tags of an image on a host: its content digest, and its name in the hosts file.

    The second is left out if the name is a digest, because a digest cannot be assigned as a tag.
    """
    return (identity_reference(identity), *(() if "@" in name else (name,)))


def part_name(identity: str, token: str, number: int) -> str:
    """Return the name of what has come so far of an image that is on its way.

    Args:
        token: of this try to send it, 4 hexadecimal digits, so that two at once do not remove each other's.
        number: how many layers it holds.
    """
    return f"{PARTIAL_REPOSITORY}:{identity}-{token}-{number}"
