"""Single values of hosts.yaml: text in, normal form out, ValueError with a sentence for the user.

In this order: hosts and jobs, containers, services, mounts and data.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
import shlex

from toolkit.core.container import Mount
from toolkit.core.engines import ENGINES
from toolkit.hostsfile.errors import fits, meant, require, shown
from toolkit.protocol.names import CONF
from toolkit.protocol.transport import TRANSPORTS

# Names of toolkit.launchers' registry, and auto; this folder must not import it, and a test compares them.
LAUNCHER_NAMES = (
    "accelerate",
    "auto",
    "deepspeed",
    "horovodrun",
    "horovodrun-gloo",
    "mpirun",
    "python",
    "ray",
    "torchrun",
)
# Networks between ranks; toolkit.network.fabric defines each.
NETWORKS = ("auto", "ethernet", "infiniband", "efa")

CLUSTER = r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?"
HOST_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
ADDRESS = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}"
USER = r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,63}"
_HOP = r"([A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*(:[0-9]{1,5})?"
JUMP = rf"{_HOP}(,{_HOP})*"
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
SHM_SIZE = r"[0-9]{1,12}([bB]|[kKmMgGtT]([iI]?[bB])?)?"

# https://github.com/distribution/reference/blob/main/regexp.go, without IPv6 registries.
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_WORD = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
IMAGE = (
    rf"({_LABEL}(\.{_LABEL})*(:[0-9]+)?/)?{_WORD}(/{_WORD})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[A-Za-z][A-Za-z0-9+._-]*:[0-9a-fA-F]{32,})?"
)

# Variables by which ranks find each other. rank.py sets them last, so a value from the file would be lost.
_RANK_NAMES = frozenset(
    (
        *(
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "GROUP_RANK",
            "ROLE_RANK",
            "ROLE_WORLD_SIZE",
        ),
        *("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK"),
        *("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED"),
    )
)
_RANK_PREFIXES = ("TOOLKIT_", "OMPI_COMM_WORLD_", "PMIX_", "TORCHELASTIC_")
# Parameters of PMIx, such as PMIX_MCA_gds; ranks do not find each other by them.
_PARAMETER_PREFIX = "PMIX_MCA_"
# Read when a container is created, before any rank; toolkit sets them then.
_CONTAINER_NAMES = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")

_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SHM_LEAST, _SHM_MOST, _LOG_LEAST = 1024**2, 64 * 1024**4, 64 * 1024


_SHORT_NAME = "a name of 1 to 32 characters of a-z, 0-9 and '-', with a letter or digit at both ends"


def _not_an_option(text: str) -> None:
    if text.startswith("-"):
        raise ValueError(f"should not begin with '-', found {shown(text)}")


def cluster(text: str) -> str:
    require(fits(CLUSTER, text), _SHORT_NAME, text)
    return text


def host_name(text: str) -> str:
    if fits(HOST_NAME, text.lower()) and text != text.lower():
        fix = f"rename the host to {text.lower()} and set its key 'address: {text}'"
        raise ValueError(f"a host name must be lowercase; {fix}")
    name, at, place = text.rpartition("@")
    if (at or "." in text) and fits(ADDRESS, place) and (not at or fits(USER, name)):
        keys = f"keys 'address: {place}' and 'user: {name}'" if at else f"key 'address: {place}'"
        raise ValueError(f"{shown(text)} is an address; write a name such as gpu1 and set its {keys}")
    if fits(HOST_NAME, text.replace("_", "-")) and "_" in text:
        fix = f"rename the host to {text.replace('_', '-')} and set its key 'address: {text}'"
        raise ValueError(f"a host name must not contain '_'; {fix}")
    require(
        fits(HOST_NAME, text),
        "a host name: 1 to 63 characters of a-z, 0-9 and '-', with a letter or digit at both ends",
        text,
    )
    if fits(r"[0-9]+|0x[0-9a-f]+", text):
        raise ValueError(f"programs can read {shown(text)} as an IPv4 address; begin the name with a letter")
    if text == "localhost":
        raise ValueError("on each host, 'localhost' means the host itself; choose another name")
    return text


def address(text: str) -> str:
    _not_an_option(text)
    should = "a host name, an IPv4 address or an alias from ~/.ssh/config"
    require(len(text) <= 300, should, text)
    name, at, rest = text.partition("@")
    if at and fits(USER, name) and fits(ADDRESS, rest):
        raise ValueError(f"should not contain a user; write 'address: {rest}' and 'user: {name}'")
    name, colon, rest = text.partition(":")
    if colon and fits(ADDRESS, name) and rest.isdecimal():
        raise ValueError(f"should not contain a port; write 'address: {name}' and 'port: {rest}'")
    if fits(r"\[?[0-9a-fA-F:]*:[0-9a-fA-F:.]*\]?", text):
        raise ValueError("should not be an IPv6 address; write an alias from ~/.ssh/config instead")
    require(fits(ADDRESS, text), should, text)
    if fits(r"[0-9.]+", text):
        _ipv4(text)
    return text


def _ipv4(text: str) -> ipaddress.IPv4Address:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError(f"should be an IPv4 address such as 10.0.0.1, found {shown(text)}") from None


def data_address(text: str) -> str:
    parsed = _ipv4(text)
    if parsed.is_loopback or parsed.is_unspecified or parsed.is_multicast or parsed.is_reserved:
        raise ValueError(
            f"ranks on other hosts cannot reach {text}; write an address that other hosts can reach"
        )
    return text


def user(text: str) -> str:
    _not_an_option(text)
    require(fits(USER, text), "a user name", text)
    return text


def jump(text: str) -> str:
    _not_an_option(text)
    require(fits(JUMP, text), "[user@]host[:port], or a list of jump hosts separated by ','", text)
    return text


def path(text: str) -> str:
    """A path on the machine where toolkit runs."""
    _not_an_option(text)
    require(text.strip() != "" and text.isprintable(), "a path", text)
    return text


def identity_file(text: str) -> str:
    path(text)
    if text.endswith(".pub"):
        raise ValueError(
            f"{shown(text)} is the path of a public key; "
            f"write the path of the private key, {shown(text[:-4])}"
        )
    return text


def secret_file(text: str) -> str:
    """As ``path``; the message does not repeat the text, which can be the secret itself."""
    if text.startswith("-") or text.strip() == "" or not text.isprintable():
        raise ValueError("should be the path of a file that contains the secret")
    return text


def image(text: str) -> str:
    if len(text) <= 512 and fits(IMAGE, text.lower()) and not fits(IMAGE, text):
        raise ValueError(f"a repository name must be lowercase, found {shown(text)}")
    should = "an image such as trainer:1.2 or registry:5000/team/trainer:1.2"
    require(len(text) <= 512 and fits(IMAGE, text), should, text)
    return text


def between(number: int, least: int, most: int) -> int:
    require(least <= number <= most, f"{least} to {most}", number)
    return number


def network(text: str) -> str:
    if text not in NETWORKS:
        raise ValueError(f"no network is called {shown(text)}; {meant(text, NETWORKS)}")
    return text


def engine(text: str) -> str:
    if text not in ENGINES:
        raise ValueError(f"should be one of {', '.join(ENGINES)}, found {shown(text)}")
    return text


def transport(text: str) -> str:
    if text not in TRANSPORTS:
        raise ValueError(f"should be one of {', '.join(TRANSPORTS)}, found {shown(text)}")
    return text


def launcher(text: str) -> str:
    if text not in LAUNCHER_NAMES:
        raise ValueError(f"no launcher is called {shown(text)}; {meant(text, LAUNCHER_NAMES)}")
    return text


def shm_size(text: str) -> str:
    require(fits(SHM_SIZE, text), "a size such as 8g or 512m", text)
    if not _SHM_LEAST <= size_bytes(text) <= _SHM_MOST:
        raise ValueError(
            f"should be 1m to 64t, found {shown(text)}; the units are b (default), k, m, g and t"
        )
    return text


def log_size(text: str) -> str:
    require(fits(SHM_SIZE, text), "a size such as 64m or 1g", text)
    if not _LOG_LEAST <= size_bytes(text) <= _SHM_MOST:
        raise ValueError(
            f"should be 64k to 64t, found {shown(text)}; the units are b (default), k, m, g and t"
        )
    return text


def size_bytes(text: str) -> int:
    """Return a checked size in bytes; units count in 1024, as docker's --shm-size does."""
    digits = re.match("[0-9]+", text)
    assert digits is not None
    return int(digits[0]) * _UNITS[text[digits.end() : digits.end() + 1].lower() or "b"]


def env_name(text: str) -> str:
    """Also for names from the command line. Messages do not repeat the name, which can contain the value."""
    if "=" in text:
        raise ValueError("write a variable as NAME: 'value', without '='")
    if not fits(ENV_NAME, text):
        raise ValueError(
            "a variable name consists of letters, digits and '_', and does not begin with a digit"
        )
    is_reserved = text in _RANK_NAMES or text.startswith(_RANK_PREFIXES)
    if is_reserved and not text.startswith(_PARAMETER_PREFIX):
        raise ValueError("this variable is reserved for toolkit and the launchers; remove the variable")
    if text in _CONTAINER_NAMES:
        raise ValueError(
            "toolkit sets this variable for containers; remove the variable. To choose GPUs, set the key gpus"
        )
    return text


# The hosts' handling of a missing image: none (it is sent to them), pull it if missing, pull it always.
PULLS = ("never", "missing", "always")

# The names that docker's --ulimit knows (https://docs.docker.com/reference/cli/docker/container/run/#ulimit),
# with the number by which Linux and the errors of container runtimes call each (asm-generic/resource.h).
ULIMITS = {
    **{"cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7},
    **{"memlock": 8, "locks": 10, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15},
}
UNLIMITED = "unlimited"

_HEX = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The second form of a MIG device, GPU/instance/compute instance, is that of drivers before 470.
GPU_ID = rf"(GPU|MIG)-{_HEX}|MIG-GPU-{_HEX}/[0-9]{{1,3}}/[0-9]{{1,3}}"

LABEL = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?"
# Ours, and those that Docker keeps for itself (https://docs.docker.com/engine/manage-resources/labels/).
_KEPT_LABELS = ("toolkit.", "com.docker.", "io.docker.", "org.dockerproject.")


def pull(text: str) -> str:
    if text not in PULLS:
        raise ValueError(f"should be one of {', '.join(PULLS)}, found {shown(text)}")
    return text


def ulimit_name(text: str) -> str:
    if text not in ULIMITS:
        raise ValueError(f"no limit is called {shown(text)}; {meant(text, ULIMITS)}")
    return text


def limit_number(number: int) -> int:
    if number == -1:
        raise ValueError("write unlimited instead of -1")
    require(number >= 0, "0 or more, or unlimited", number)
    return number


def limit_text(text: str) -> str:
    require(text == UNLIMITED, "a number without a unit, or unlimited", text)
    return text


def limit(value: int | str) -> int:
    """Return a checked number, -1 for ``unlimited``."""
    return -1 if isinstance(value, str) else value


def gpu_id(text: str) -> str:
    if text.isdecimal():
        raise ValueError(f"should be an index without quotes, or a UUID, found {shown(text)}")
    should = "a UUID as `nvidia-smi -L` prints it: GPU-… or MIG-… with 32 lowercase hexadecimal digits"
    require(fits(GPU_ID, text), should, text)
    return text


def label_name(text: str) -> str:
    should = "a name of 1 to 128 letters, digits, '.', '_', '-' or '/', with a letter or digit at both ends"
    require(fits(LABEL, text), should, text)
    for kept in _KEPT_LABELS:
        if f"{text}.".startswith(kept):
            whose = "toolkit" if kept == "toolkit." else "Docker"
            raise ValueError(f"labels that begin with {kept!r} are reserved for {whose}; choose another name")
    return text


def label_value(text: str) -> str:
    require(text.isprintable(), "text on one line", text)
    return text


# Part of a container's name, together with the cluster's name.
SERVICE_NAME = r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?"
# RFC 3986, 3.3: characters of a path, and of a query after "?", that need no %XX escape.
HEALTH = r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*"


def service_name(text: str) -> str:
    require(fits(SERVICE_NAME, text), _SHORT_NAME, text)
    return text


def health(text: str) -> str:
    require(fits(HEALTH, text), "a URL path such as /healthz", text)
    return text


def command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"toolkit cannot split {shown(text)} into words: {error}") from None
    require(bool(words), "a command", text)
    return text


def command_words(value: str | list[str]) -> tuple[str, ...]:
    """Return a checked command's words; variables and patterns in them are not expanded."""
    return tuple(shlex.split(value) if isinstance(value, str) else value)


MOUNT = r"/[^:]*:/[^:]*(:(ro|rw))?"

# Inside the container these are the kernel's, Docker's or ours (passwd, group and hosts are generated).
_RESERVED_TREES = (str(CONF.parent), "/proc", "/sys", "/dev")
_RESERVED_FILES = ("/etc/passwd", "/etc/group", "/etc/hosts")
# Folders that the system needs; data must be below another folder of the host.
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")


def mount(text: str) -> Mount:
    """Return ``/source:/target[:ro]`` as a Mount."""
    parts = text.split(":")
    should = "/source:/target or /source:/target:ro"
    require(len(parts) in (2, 3) and (len(parts) == 2 or parts[2] in ("ro", "rw")), should, text)
    return Mount(mount_source(parts[0]), mount_target(parts[1]), parts[2:] == ["ro"])


def mount_source(text: str) -> str:
    """A path on the hosts, whose home folders can differ from those of this machine."""
    if text.startswith(("~", "$")):
        raise ValueError(f"the source should be an absolute path on the hosts, found {shown(text)}")
    return _absolute("source", text)


def data_source(text: str) -> str:
    """Files on this machine, from the hosts file's folder on."""
    require(bool(text.strip()) and "\0" not in text, "a folder or a file on your machine", text)
    if text.startswith("$"):
        raise ValueError(f"should not begin with '$', found {shown(text)}")
    return text


def data_path(text: str) -> str:
    """A folder of the hosts in which toolkit can write and remove files."""
    if text.startswith(("~", "$")):
        raise ValueError(f"the path should be an absolute path on the hosts, found {shown(text)}")
    path = _absolute("path", text)
    if path == "/" or any(_within(path, folder) for folder in _SYSTEM):
        raise ValueError(f"the path should not be / or in a system folder such as /usr, found {shown(text)}")
    if "," in path:
        raise ValueError(f"the path should contain no ',', found {shown(text)}")
    return path


def state_dir(text: str) -> str:
    """A folder on the hosts for the state of toolkit."""
    if text.startswith(("~", "$")):
        raise ValueError(f"should be an absolute path on the hosts, found {shown(text)}")
    path = _absolute("folder", text)
    if path == "/":
        raise ValueError("should be a folder on a local disk, such as /scratch, found '/'")
    return path


def mount_target(text: str) -> str:
    """A path inside the container that hides no file that the container needs."""
    path = _absolute("target", text)
    for tree in _RESERVED_TREES:
        if _within(path, tree):
            raise ValueError(
                f"the target should not be in {tree}, which the system or toolkit uses, found {shown(text)}"
            )
    if any(_within(own, path) for own in (*_RESERVED_TREES, *_RESERVED_FILES)):
        raise ValueError(
            f"the target {shown(text)} hides files that the container needs; write another target"
        )
    return path


def _within(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(f"{folder}/")


def _absolute(end: str, text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"the {end} should be an absolute path, found {shown(text)}")
    if ":" in text or not text.isprintable():
        raise ValueError(
            f"the {end} should contain no ':' and no unprintable characters, found {shown(text)}"
        )
    if any(part in (".", "..") for part in text.split("/")):
        raise ValueError(f"the {end} should contain no '.' or '..' component, found {shown(text)}")
    # normpath keeps two leading slashes, which POSIX lets mean something else.
    return posixpath.normpath("/" + text.lstrip("/"))
