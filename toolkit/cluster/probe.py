"""Facts: one read-only script for a host, and the parser of what it prints."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from toolkit.cluster import links, probe_uses, state_folders
from toolkit.cluster.addresses import parse_interfaces, parse_listeners, parse_routes
from toolkit.cluster.applied import parse_applied
from toolkit.cluster.nvidia import SMI, parse_cdi, parse_smi
from toolkit.cluster.probe_cluster import (
    boot_time,
    container_facts,
    is_named_as_labeled,
    programs,
    remembered,
)
from toolkit.core.answers import answer_of
from toolkit.core.causes import cause_of, words_of
from toolkit.core.command import Command, script
from toolkit.core.engine_info import parse_info
from toolkit.core.engines import DOCKER, PODMAN
from toolkit.core.facts import Facts
from toolkit.core.image import ImageFacts, image_facts
from toolkit.core.text import json_list
from toolkit.errors import CommandFailed, NotReady, ToolkitError
from toolkit.protocol.decode import DecodeError, decode
from toolkit.protocol.engine import ContainerInspect, EngineInfo, ImageInspect
from toolkit.protocol.frames import CELL, framed_script, lines_of, read_cell
from toolkit.protocol.hosts import Who
from toolkit.protocol.names import IDENTITY_REPOSITORY
from toolkit.protocol.numbers import whole

# A device node below /dev/infiniband.
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")

# Each section is a call of `say`, see ``toolkit.protocol.frames``. What contains `case` is a function first:
# old shells end a command substitution at its first bracket.
_SCRIPT = (
    CELL
    + r"""
say begun "$(date +%s.%N)"
# fish without a locale, as sshd starts it, hands on a home with other letters than ASCII garbled.
[ -d "$HOME" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
# All questions look where the hosts file says; where it says nothing, where the user's login does.
[ -z "${TOOLKIT_STATE_DIR-}" ] || XDG_STATE_HOME="$TOOLKIT_STATE_DIR/$(id -un)"
export XDG_STATE_HOME
# Directory services give groups names with spaces; -z is not known to every id.
groups=$(id -Gnz 2>/dev/null | tr '\0' '\t')
[ -n "$groups" ] || groups=$(id -Gn | tr ' ' '\t')
say who "$(id -un; id -u; id -g; id -G
  printf '%s\n' "$groups" "$(cell "$HOME")" "$(cell "${XDG_STATE_HOME:-$HOME/.local/state}")")"
say machine "$(uname -n; uname -m)"
say ssh "$SSH_CONNECTION"
engine=$(timeout -k 2 20 docker info --format '{{json .}}' 2>&1)
# An engine that hangs must not take the other questions along.
case $? in 124|137) engine='no answer within 20 s'; docker() { :; } ;; esac
say docker "$engine"
ids=$(docker ps -aq --no-trunc --filter label=toolkit.cluster 2>/dev/null)
said=; [ -z "$ids" ] || said=$(docker inspect $ids 2>/dev/null)
say containers "$said"
# Those of containers too: somebody may have taken their names away; they need not travel again for that.
used=$(printf "%s\n" "$said" | sed -n 's/^ *"Image": "\(sha256:[0-9a-f]*\)".*/\1/p')
# What an engine with the containerd store can inspect need not be whole; what it lists is.
case $engine in *io.containerd.snapshotter*) say listed "$(docker images -aq --no-trunc 2>/dev/null)" ;; esac
ids=$(docker images -q --no-trunc "$2" 2>/dev/null)
say images "$(docker image inspect "$1" $ids $used 2>/dev/null)"
say interfaces "$(ip -o -4 addr show 2>/dev/null)"
say routes "$(cat /proc/net/route 2>/dev/null)"
say addresses "$(cat /proc/net/fib_trie 2>/dev/null)"
say tcp "$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null)"
@network@
smi() {
@@SMI@@
[ "${smi-}" != hangs ]
}
gpus=$(smi) || smi=hangs
say gpus "$gpus"
@@USES@@
@@STATE@@
say runtime "$(command -v nvidia-container-runtime-hook)"
say cdi "$(for f in /etc/cdi/* /var/run/cdi/*; do
  ! grep -q 'nvidia\.com/gpu' "$f" 2>/dev/null || grep -h 'name"*:' "$f"
done)"
mine="${XDG_STATE_HOME:-$HOME/.local/state}/toolkit/$3/$4"
say cluster "$(cat "$mine/etc/hosts" "$mine/conf/known_hosts" "$mine/conf/authorized_keys" 2>/dev/null)"
say version "$(cat "$mine/version" 2>/dev/null)"
say applied "$(cat "$mine/applied.json" 2>/dev/null)"
say tuned "$(cat "$mine/conf/tuned.json" 2>/dev/null)"
say programs "$( (cd "$mine/inside" && find * -type f -exec sha256sum {} +) 2>/dev/null)"
say boot "$(grep '^btime' /proc/stat 2>/dev/null; cat /proc/1/stat 2>/dev/null)"
say infiniband "$(for f in /dev/infiniband/*; do [ ! -c "$f" ] || echo "${f##*/}"; done)"
say disk "$(df -Pk "${HOME:-/}" 2>/dev/null)"
@@MORE@@
say ended "$(date +%s.%N)"
""".replace("@@SMI@@", SMI.strip())
    .replace("@@USES@@", probe_uses.QUESTIONS.strip())
    .replace("@@STATE@@", state_folders.QUESTION.strip())
    .replace("@network@", links.QUESTIONS.strip())
)


def probe_command(
    image: str,
    cluster: str,
    host: str,
    nonce: str,
    more: Sequence[tuple[str, str]] = (),
    sources: Sequence[str] = (),
    state_dir: str = "",
) -> Command:
    """Return the command whose output ``toolkit.protocol.frames.read_frames`` reads. It changes nothing.

    Args:
        nonce: delimits the sections; new in every call.
        more: further questions as (name, shell text), which become sections of these names.
        sources: of the mounts; questions find them as ``$5`` and on.
        state_dir: of the hosts file.
    """
    # Each in a shell of its own: none can end the script, or change what the next one sees.
    asked = "\n".join(f'ask() {{\n{text}\n}}\nsay {name} "$(ask "$@" 2>/dev/null)"' for name, text in more)
    text = framed_script(_SCRIPT.replace("@@MORE@@", asked), nonce)
    asking = script(text, image, IDENTITY_REPOSITORY, cluster, host, *sources)
    return asking.within("env", f"TOOLKIT_STATE_DIR={state_dir}") if state_dir else asking


def parse_facts(
    host: str, cluster: str, parts: Mapping[str, str], need_docker: bool = True, engine: str = DOCKER
) -> Facts:
    """Return what the probe's sections say.

    Args:
        host: inventory name of the host.
        cluster: whose state folder ``state_dir`` is.
        parts: content of each section, by its name.
        engine: what the hosts file says that the host has.
        need_docker: whether it is an error when docker cannot be used; otherwise ``docker`` is empty then.

    Raises:
        ToolkitError: docker is missing, stopped or forbidden there, or a section cannot be read.
    """
    with answer_of(host, "its user, its engine and its devices"):
        return _facts(host, cluster, Sections(parts), need_docker, engine)


class Sections(dict[str, str]):
    """Sections of an answer; one that is missing makes the answer unreadable."""

    def __missing__(self, name: str) -> str:
        raise DecodeError(name, "is missing")


def _facts(host: str, cluster: str, parts: Sections, need_docker: bool, engine: str) -> Facts:
    who, machine = _who(parts["who"]), _lines(parts["machine"], "machine", ("name", "arch"))
    state_dir = f"{who.state}/toolkit/{cluster}/{host}"
    try:
        info = docker_info(host, who.user, parts["docker"], engine)
    except ToolkitError:
        if need_docker:
            raise
        info = EngineInfo()
    ssh = parts["ssh"].split()
    gpus, gpu_trouble = parse_smi(parts["gpus"])
    listed = map(container_facts, json_list(ContainerInspect, parts["containers"]))
    containers = tuple(filter(is_named_as_labeled, listed))
    return Facts(
        host=host,
        user=who.user,
        uid=who.uid,
        gid=who.gid,
        groups=who.groups,
        home=who.home,
        state_dir=state_dir,
        state_folders=state_folders.parse_state_folders(host, state_dir, parts["state"]),
        hostname=machine["name"],
        arch=machine["arch"],
        docker=info.version,
        store="containerd" if info.uses_containerd else info.driver,
        engine=info.engine,
        rootless=info.is_rootless,
        ssh_address=ssh[2] if len(ssh) == 4 else "",
        interfaces=parse_interfaces(parts["interfaces"], parts["routes"], parts["addresses"]),
        listening=parse_listeners(parts["tcp"]),
        containers=containers,
        images=_images(parts, {container.image for container in containers}),
        gpus=gpus,
        gpu_trouble=gpu_trouble,
        # The engine gives GPUs when it found the hook at its start; who configures it names a runtime.
        nvidia_runtime=bool(parts["runtime"].strip()) or "nvidia" in (info.runtimes or {}),
        cdi=parse_cdi(info, parts["cdi"]),
        remembered=remembered(parts["cluster"]),
        booted=boot_time(parts["boot"]),
        version=parts["version"].strip(),
        applied=parse_applied(parts.get("applied", "")),
        tuned=parts["tuned"],
        programs=programs(parts["programs"]),
        infiniband=tuple(f"/dev/infiniband/{n}" for n in parts["infiniband"].split() if _DEVICE.fullmatch(n)),
        free_bytes=_free(parts["disk"]),
        links=links.parse_links(parts.get("links", ""), parts.get("shaping", "")),
        routes=parse_routes(parts["routes"]),
        rdma=links.parse_rdma(parts.get("rdma", "")),
        gpu_processes=probe_uses.parse_processes(parts.get("apps", "")),
        claims=probe_uses.parse_claims(parts.get("claims", ""), parts["boot"]),
    )


def docker_info(host: str, user: str, text: str, engine: str = DOCKER) -> EngineInfo:
    """Return what ``docker info --format '{{json .}}'`` printed on a host, errors included.

    Raises:
        ToolkitError: docker is missing, stopped or forbidden to that user, or its answer cannot be read.
    """
    with answer_of(host, "its engine"):
        info = parse_info(text)
    if info is not None:
        if info.engine == PODMAN and engine == DOCKER:
            what = "docker is Podman under another name there"
            raise NotReady(what, "engine: podman in the hosts file; or install Docker", host)
        if info.version:
            return info
        text = "; ".join(info.errors or ()) or text
    if "no answer within" in text:
        what, fix = (
            f"the docker engine does not answer: {words_of(text)}",
            f"on {host}: sudo systemctl restart docker",
        )
        raise NotReady(what, fix, host)
    if engine == PODMAN and re.search(r"podman(: command)?(:)? not found", text):
        raise NotReady("podman is not installed", f"on {host}: install it; or engine: docker", host)
    if cause := cause_of(text, host, user):
        raise NotReady(f"{cause.what}: {words_of(text)}", cause.fix, host)
    raise CommandFailed("docker info", 1, text, host)


def _images(parts: Mapping[str, str], used: Collection[str]) -> tuple[ImageFacts, ...]:
    """The images that are whole; one that a container is made from may have lost its name, and its place."""
    found = {image.id: image for image in map(image_facts, json_list(ImageInspect, parts["images"]))}
    if "listed" in parts:
        whole = {*parts["listed"].split(), *used}
        found = {id_: image for id_, image in found.items() if id_ in whole}
    return tuple(found.values())


def _free(text: str) -> int:
    words = lines_of(text)[-1].split() if text else []
    return (whole(words[3], 2**53) or 0) * 1024 if len(words) > 3 else 0


def _who(text: str) -> Who:
    lines = _lines(text, "who", ("user", "uid", "gid", "ids", "names", "home", "state"))
    ids = [whole(word) for word in lines["ids"].split()]
    names = [name for name in lines["names"].split("\t") if name]
    # Groups without a name, or names that cannot be told apart: then the ids stand for them.
    groups = list(map(list, zip(ids, names if len(names) == len(ids) else map(str, ids), strict=True)))
    numbers = {"uid": whole(lines["uid"]), "gid": whole(lines["gid"]), "groups": groups}
    places = {name: read_cell(lines[name]) for name in ("home", "state")}
    return decode(Who, {**lines, **places, **numbers}, "who")


def _lines(text: str, section: str, names: Sequence[str]) -> dict[str, str]:
    """The lines of a section by name; more can follow."""
    lines = lines_of(text)
    if len(lines) < len(names):
        raise DecodeError(section, f"{len(lines)} lines, not {len(names)}")
    return dict(zip(names, lines, strict=False))
