"""Facts: one read-only script for a host, and the parser of what it prints."""

from __future__ import annotations

import ipaddress
import json
import struct
from collections.abc import Sequence
from typing import Any

from toolkit.core.command import Command, script
from toolkit.core.facts import ContainerFacts, Facts, Gpu, Interface, Remembered
from toolkit.core.image import image_facts
from toolkit.core.json_text import json_list
from toolkit.core.names import IDENTITY_REPOSITORY
from toolkit.errors import CommandFailed, NotReady, ToolkitError
from toolkit.plan import links

# A login shell's banner may come first, so every section opens with a line that no banner holds.
_MARK = "@@toolkit@@"

_SCRIPT = r"""
mark() { printf '\n@@toolkit@@ %s\n' "$1"; }
LC_ALL=C; export LC_ALL
mark begun; date +%s.%N
mark who; id -un; id -u; id -g; id -G; id -Gn; printf '%s\n' "$HOME" "${XDG_STATE_HOME:-$HOME/.local/state}"
mark machine; uname -n; uname -m
mark ssh; printf '%s\n' "$SSH_CONNECTION"
mark docker; docker info --format '{{json .}}' 2>&1
mark containers
ids=$(docker ps -aq --no-trunc --filter label=toolkit.cluster 2>/dev/null)
[ -z "$ids" ] || docker inspect $ids 2>/dev/null
mark images
ids=$(docker images -q --no-trunc "$2" 2>/dev/null)
docker image inspect "$1" $ids 2>/dev/null
mark interfaces; ip -o -4 addr show 2>/dev/null
mark routes; cat /proc/net/route 2>/dev/null
mark addresses; cat /proc/net/fib_trie 2>/dev/null
mark tcp; cat /proc/net/tcp /proc/net/tcp6 2>/dev/null
@network@
mark gpus
nvidia-smi --query-gpu=index,uuid,name,driver_version,memory.total --format=csv,noheader,nounits 2>/dev/null
mark cluster
mine="${XDG_STATE_HOME:-$HOME/.local/state}/toolkit/$3/$4"
cat "$mine/etc/hosts" "$mine/conf/known_hosts" "$mine/conf/authorized_keys" 2>/dev/null
mark infiniband; ls /dev/infiniband 2>/dev/null
mark disk; df -Pk "${HOME:-/}" 2>/dev/null
mark ended; date +%s.%N
mark end
exit 0
""".replace("@network@", links.QUESTIONS.strip())


def probe_command(image: str, cluster: str, host: str, more: Sequence[tuple[str, str]] = ()) -> Command:
    """Return the command whose output ``parse_facts`` reads. It changes nothing on the host.

    Args:
        more: further questions as (name, shell text); ``probe_answers`` has what they print.
    """
    # Each in a shell of its own: none can end the script, or change what the next one sees.
    asked = "".join(f"mark {name}; (\n{text}\n) 2>/dev/null\n" for name, text in more)
    return script(
        _SCRIPT.replace("mark ended;", f"{asked}mark ended;"), image, IDENTITY_REPOSITORY, cluster, host
    )


def probe_answers(text: str) -> dict[str, str]:
    """Return what each question's shell text printed, by the question's name; the facts' own included."""
    parts: dict[str, str] = {}
    for piece in text.split(f"\n{_MARK} ")[1:]:
        name, _, body = piece.partition("\n")
        parts[name.strip()] = body.strip("\n")
    return parts


def parse_facts(host: str, cluster: str, text: str, need_docker: bool = True) -> Facts:
    """Return what the probe's output says.

    Args:
        host: inventory name of the host.
        cluster: whose state folder ``state_dir`` is.
        need_docker: whether it is an error when docker cannot be used; otherwise ``docker`` is empty then.

    Raises:
        ToolkitError: the output is cut short, or docker is missing, stopped or forbidden there.
    """
    parts = probe_answers(text)
    if "end" not in parts:
        raise ToolkitError("its answer to the first questions is cut short", "toolkit status -v", host)
    who = parts["who"].splitlines()
    user, uid, gid, home, state = who[0], int(who[1]), int(who[2]), who[5], who[6]
    ids, names = who[3].split(), who[4].split()
    # Names with spaces, as directory services give them, cannot be told apart: then the ids stand for them.
    groups = tuple(zip(map(int, ids), names if len(names) == len(ids) else ids, strict=True))
    machine = parts["machine"].splitlines()
    try:
        info = docker_info(host, user, parts["docker"])
    except ToolkitError:
        if need_docker:
            raise
        info = {}
    ssh = parts["ssh"].split()
    return Facts(
        host=host,
        user=user,
        uid=uid,
        gid=gid,
        groups=groups,
        home=home,
        state_dir=f"{state}/toolkit/{cluster}/{host}",
        hostname=machine[0],
        arch=machine[1],
        docker=str(info.get("ServerVersion", "")),
        store=_store(info),
        rootless=any("rootless" in str(o) for o in info.get("SecurityOptions") or ()),
        ssh_address=ssh[2] if len(ssh) == 4 else "",
        interfaces=_interfaces(parts),
        listening=_listening(parts["tcp"]),
        containers=tuple(_container(c) for c in json_list(parts["containers"])),
        images=tuple({i.id: i for i in map(image_facts, json_list(parts["images"]))}.values()),
        gpus=parse_gpus(parts["gpus"]),
        remembered=_remembered(parts["cluster"]),
        infiniband=tuple(f"/dev/infiniband/{n}" for n in parts["infiniband"].split()),
        free_bytes=_free(parts["disk"]),
        links=links.parse_links(parts.get("links", ""), parts.get("shaping", "")),
        routes=links.parse_routes(parts["routes"]),
        rdma=links.parse_rdma(parts.get("rdma", "")),
    )


def docker_info(host: str, user: str, text: str) -> dict[str, Any]:
    """Return what ``docker info --format '{{json .}}'`` printed on a host, errors included.

    Raises:
        ToolkitError: docker is missing, stopped or forbidden to that user.
    """
    for line in text.splitlines():
        if line.startswith("{"):
            info: dict[str, Any] = json.loads(line)
            if info.get("ServerVersion"):
                return info
            text = "; ".join(info.get("ServerErrors") or ()) or text
    low = text.lower()
    if "not found" in low and "docker" in low:
        raise NotReady("docker is not installed", "https://docs.docker.com/engine/install/", host)
    if "permission denied" in low:
        fix = f"on {host}: sudo usermod -aG docker {user}, then log in anew"
        raise NotReady(f"user {user} may not use docker", fix, host)
    if "cannot connect" in low or "is the docker daemon running" in low:
        raise NotReady("the docker engine is not running", f"on {host}: sudo systemctl start docker", host)
    raise CommandFailed("docker info", 1, text, host)


def _store(info: dict[str, Any]) -> str:
    status = [" ".join(map(str, pair)) for pair in info.get("DriverStatus") or ()]
    containerd = any("io.containerd.snapshotter" in line for line in status)
    return "containerd" if containerd else str(info.get("Driver", ""))


def _container(item: dict[str, Any]) -> ContainerFacts:
    state = item.get("State") or {}
    return ContainerFacts(
        id=str(item.get("Id", "")),
        name=str(item.get("Name", "")).lstrip("/"),
        state=str(state.get("Status", "")),
        labels={str(k): str(v) for k, v in ((item.get("Config") or {}).get("Labels") or {}).items()},
        exit_code=int(state.get("ExitCode") or 0),
        image=str(item.get("Image", "")),
    )


def _interfaces(parts: dict[str, str]) -> tuple[Interface, ...]:
    found = []
    for line in parts["interfaces"].splitlines():
        words = line.split()
        if len(words) > 3 and words[2] == "inet":
            address, _, prefix = words[3].partition("/")
            found.append(Interface(words[1], address, int(prefix or 32)))
    return tuple(found) or _interfaces_from_proc(parts["routes"], parts["addresses"])


def _interfaces_from_proc(routes: str, trie: str) -> tuple[Interface, ...]:
    """Addresses and interfaces without iproute2, from /proc/net/route and /proc/net/fib_trie.

    A host's own addresses are the trie's ``/32 host LOCAL`` leaves; each belongs to the interface
    whose directly connected network (a route without a gateway) contains it.
    """
    networks = []
    for line in routes.splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and int(words[2], 16) == 0 and words[7] != "00000000":
            prefix = bin(int(words[7], 16)).count("1")
            networks.append((words[0], ipaddress.ip_network(f"{_little_endian(words[1])}/{prefix}", False)))
    own: list[str] = []
    last = ""
    for line in trie.splitlines():
        words = line.replace("|--", "").split()
        if line.strip().startswith("|--") and words:
            last = words[0]
        elif "/32 host LOCAL" in line and last not in own:
            own.append(last)
    found = [Interface("lo", a, 8) for a in own if a.startswith("127.")]
    for address in own:
        for name, network in networks:
            if ipaddress.ip_address(address) in network:
                found.append(Interface(name, address, network.prefixlen))
                break
    return tuple(found)


def _little_endian(word: str) -> str:
    return str(ipaddress.IPv4Address(struct.pack("<L", int(word, 16))))


def _listening(text: str) -> tuple[tuple[str, int], ...]:
    """Listeners from /proc/net/tcp and tcp6 (state 0A); the format is in Linux' Documentation/networking."""
    found = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[3] == "0A":
            address, _, port = words[1].partition(":")
            if len(address) == 8:
                found.add((_little_endian(address), int(port, 16)))
            else:
                found.add((_v6(address), int(port, 16)))
    return tuple(sorted(found))


def _v6(word: str) -> str:
    # Four 32-bit words, each in the machine's (little-endian) order.
    raw = b"".join(struct.pack("<L", int(word[i : i + 8], 16)) for i in range(0, 32, 8))
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs in ``nvidia-smi --query-gpu=index,uuid,name,driver_version,memory.total`` as CSV."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdigit():
            memory = int(cells[4]) if cells[4].isdigit() else 0
            found.append(Gpu(int(cells[0]), cells[1], cells[2], cells[3], memory))
    return tuple(found)


def _free(text: str) -> int:
    words = text.splitlines()[-1].split() if text else []
    return int(words[3]) * 1024 if len(words) > 3 and words[3].isdigit() else 0


def _remembered(text: str) -> Remembered:
    """What `up` wrote on this host before: /etc/hosts, known_hosts and authorized_keys of the cluster."""
    addresses, keys, main_key = [], [], ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("restrict,") and len(words) == 3:
            main_key = " ".join(words[1:])
        elif len(words) == 3 and words[1].startswith("ssh-"):
            keys.append((words[0].partition(",")[0], " ".join(words[1:])))
        elif len(words) == 2 and words[1] != "localhost":
            addresses.append((words[1], words[0]))
    return Remembered(tuple(addresses), tuple(keys), main_key)
