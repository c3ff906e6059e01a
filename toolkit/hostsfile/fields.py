"""What the single values of hosts.yaml may be: text in, normal form out, ValueError with our sentence."""

from __future__ import annotations

import ipaddress
import re

from toolkit.core.engines import ENGINES
from toolkit.hostsfile.words import fits, meant, require, shown
from toolkit.protocol.transport import TRANSPORTS

# Names of toolkit.launchers' registry, and auto; this folder may not import it, and a test compares them.
LAUNCHERS = (
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
# What ranks use between hosts; toolkit.network.fabric says what each stands for.
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
# Read when a container is made, which is before any rank; there we set them ourselves.
_CONTAINER_NAMES = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")

_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SHM_LEAST, _SHM_MOST, _LOG_LEAST = 1024**2, 64 * 1024**4, 64 * 1024


def _not_an_option(text: str) -> None:
    if text.startswith("-"):
        raise ValueError(f"should not begin with '-', like an option, found {shown(text)}")


def cluster(text: str) -> str:
    require(
        fits(CLUSTER, text),
        "1 to 32 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
        text,
    )
    return text


def host_name(text: str) -> str:
    if fits(HOST_NAME, text.lower()) and text != text.lower():
        raise ValueError(f"host names are lower-case; write {text.lower()} and under it 'address: {text}'")
    require(
        fits(HOST_NAME, text),
        "a host name: 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
        text,
    )
    if fits(r"[0-9]+|0x[0-9a-f]+", text):
        raise ValueError(f"{shown(text)} is read as an IPv4 address; begin the name with a letter")
    if text == "localhost":
        raise ValueError("'localhost' is another machine for each host; choose another name")
    return text


def address(text: str) -> str:
    _not_an_option(text)
    should = "a host name, an IPv4 address or an alias of ~/.ssh/config"
    require(len(text) <= 300, should, text)
    name, at, rest = text.partition("@")
    if at and fits(USER, name) and fits(ADDRESS, rest):
        raise ValueError(f"should be a host alone; write 'address: {rest}' and 'user: {name}'")
    name, colon, rest = text.partition(":")
    if colon and fits(ADDRESS, name) and rest.isdecimal():
        raise ValueError(f"should be a host alone; write 'address: {name}' and 'port: {rest}'")
    if fits(r"\[?[0-9a-fA-F:]*:[0-9a-fA-F:.]*\]?", text):
        raise ValueError("IPv6 addresses are not read here; give the host an alias in ~/.ssh/config")
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
        raise ValueError(f"ranks on other hosts cannot reach {text}; write an address of a network card")
    return text


def user(text: str) -> str:
    _not_an_option(text)
    require(fits(USER, text), "a user name", text)
    return text


def jump(text: str) -> str:
    _not_an_option(text)
    require(fits(JUMP, text), "[user@]host[:port], several with ',' between", text)
    return text


def path(text: str) -> str:
    """A path on the machine where the toolkit runs."""
    _not_an_option(text)
    require(text.strip() != "" and text.isprintable(), "a path", text)
    return text


def identity_file(text: str) -> str:
    path(text)
    if text.endswith(".pub"):
        raise ValueError(f"names the public key; write the private one, {shown(text[:-4])}")
    return text


def secret_file(text: str) -> str:
    """As ``path``; the message does not repeat what may be the secret itself, written in the wrong place."""
    if text.startswith("-") or text.strip() == "" or not text.isprintable():
        raise ValueError("should be the path of a file that holds the secret")
    return text


def image(text: str) -> str:
    if len(text) <= 512 and fits(IMAGE, text.lower()) and not fits(IMAGE, text):
        raise ValueError(f"image names are lower-case, found {shown(text)}")
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
    if text not in LAUNCHERS:
        raise ValueError(f"no launcher is called {shown(text)}; {meant(text, LAUNCHERS)}")
    return text


def shm_size(text: str) -> str:
    require(fits(SHM_SIZE, text), "a size such as 8g or 512m", text)
    if not _SHM_LEAST <= size_bytes(text) <= _SHM_MOST:
        raise ValueError(f"should be 1m to 64t, found {shown(text)}; the units are k, m, g and t")
    return text


def log_size(text: str) -> str:
    require(fits(SHM_SIZE, text), "a size such as 64m or 1g", text)
    if not _LOG_LEAST <= size_bytes(text) <= _SHM_MOST:
        raise ValueError(f"should be 64k to 64t, found {shown(text)}; the units are k, m, g and t")
    return text


def size_bytes(text: str) -> int:
    """Return a checked size in bytes; units count in 1024, as docker's --shm-size does."""
    digits = re.match("[0-9]+", text)
    assert digits is not None
    return int(digits[0]) * _UNITS[text[digits.end() : digits.end() + 1].lower() or "b"]


def env_name(text: str) -> str:
    """Also for names from the command line. Messages do not repeat the name, which may hold the value."""
    if "=" in text:
        raise ValueError("a name and its value are written as NAME: 'value', without '='")
    if not fits(ENV_NAME, text):
        raise ValueError("a variable name has letters, digits and '_', and no digit first")
    if text in _RANK_NAMES or text.startswith(_RANK_PREFIXES):
        raise ValueError("is set for every rank by the toolkit or the launcher; remove it")
    if text in _CONTAINER_NAMES:
        raise ValueError("has no effect on a rank; which GPUs a host gives is said by hosts/NAME/gpus")
    return text
