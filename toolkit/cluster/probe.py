"""Facts: one read-only script for a host, and the parser of its output.

The script reads the host's user and engine, the cluster's containers and files, the processes that use its
GPUs, and the jobs that reserve them. ``interfaces``, ``gpus`` and ``state_folders`` add more probes.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from toolkit.cluster import state_folders
from toolkit.cluster.applied import parse_applied
from toolkit.cluster.gpus import ABSENT, ASK_GPUS, LIST_GPUS, parse_cdi, parse_smi
from toolkit.cluster.ownership import OWN_PROCESSES
from toolkit.core.answers import answer_of, json_list
from toolkit.core.causes import cause_of, words_of
from toolkit.core.command import Command, Kind, script
from toolkit.core.engines import DOCKER, PODMAN, parse_info, seconds_of
from toolkit.core.facts import Claim, ContainerFacts, Facts, GpuProcess, Remembered, StateFile
from toolkit.core.host_programs import packed
from toolkit.core.image import ImageFacts, image_facts, image_id
from toolkit.core.printable import counted
from toolkit.errors import CommandFailed, NotReady, ToolkitError
from toolkit.network import interfaces
from toolkit.protocol.decode import MOST, DecodeError, decode, whole
from toolkit.protocol.engine import (
    ContainerConfig,
    ContainerInspect,
    ContainerState,
    EngineInfo,
    ImageInspect,
)
from toolkit.protocol.frames import ROW, framed_script, lines_of, read_frames, rows
from toolkit.protocol.names import (
    IDENTITY_REPOSITORY,
    LABEL_CLUSTER,
    container_name,
    container_user,
    program,
)
from toolkit.protocol.probes import Who

# The kernel counts in USER_HZ, which is 100 on every architecture that Docker runs on (man 5 proc).
_TICKS_PER_SECOND = 100
# Seconds since the epoch; twice as many are still a date.
_LATEST = 10**11
# Its arguments in /proc contain the resources of a running job, readable for every user of the host.
LEASE = program("job.lease")[1:]

# The probe defines `row`. One call of `ask_gpus` for both sections; $smi is set for other probes.
# A process that ended meanwhile is left out; if /proc hides processes of other users, kill still finds them.
# The path of the control group names the innermost container last.
USES = (
    OWN_PROCESSES
    + ASK_GPUS
    + r"""
also="echo $nonce
nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits"
list_gpus() {
@list@
}
smi= listed="@absent@"
! command -v nvidia-smi >/dev/null 2>&1 || listed=$(list_gpus) || smi=hangs
say gpus "${listed%%"$nonce"*}"
owner_of() {
  owner=$(stat -c %U "$1" 2>/dev/null)
  [ "$owner" != UNKNOWN ] || owner=$(stat -c %u "$1" 2>/dev/null)
}
apps() {
set -f; IFS='
'
for line in ${listed#*"$nonce"}; do
  IFS=' ,'; set -- $line; unset IFS
  gpu=$1 pid=${2-} memory=${3-}
  case $pid in ''|*[!0-9]*) continue ;; esac
  case $(kill -0 "$pid" 2>&1) in *[Nn]'o such process'*) continue ;; esac
  owner_of "/proc/$pid"; name= job=
  read -r name 2>/dev/null <"/proc/$pid/comm"
  inside=$(sed -n 's/.*\([0-9a-f]\{64\}\).*/\1/p' "/proc/$pid/cgroup" 2>/dev/null | head -n 1)
  [ -z "$(echo "/proc/$pid/environ" | of_this_user)" ] ||
    job=$(tr '\0\n' '\n ' 2>/dev/null <"/proc/$pid/environ" | sed -n 's/^TOOLKIT_JOB=//p' | head -n 1)
  row app "$gpu" "$pid" "$memory" "$owner" "$inside" "$job" "$name"
done
}
apps=
case $listed in *"$nonce"*) apps=$(apps) ;; esac
say apps "$apps"
claims() {
for f; do
  line=; read -r line 2>/dev/null <"${f%/cmdline}/stat" || continue
  pid=${f#/proc/}; owner_of "${f%/cmdline}"
  # A variable holds no zero bytes, so the command line is encoded as it is.
  printf '%s|=%s\n' "$(row claim "${pid%/*}" "$owner" "${line##*) }")" \
    "$(base64 2>/dev/null <"$f" | tr -d '\n')"
done
}
claims= leases=$(in_processes cmdline -slzFx @lease@)
[ -z "$leases" ] || claims=$(claims $leases)
say claims "$claims"
""".replace("@lease@", LEASE[1])
    .replace("@list@", LIST_GPUS.strip())
    .replace("@absent@", ABSENT)
)

# "uid=1000(alice) gid=1000(alice) groups=1000(alice),27(sudo) context=…", the output of `id`. Directory
# services give groups names with spaces. The limits keep the time proportional to the length of an answer.
_IDS = re.compile(r"uid=([0-9]{1,10})(?:\((.{,256})\))? gid=([0-9]{1,10})(?:\(.{,256}\))?")
_GROUPS = re.compile(r",(?=[0-9]{1,10}(?:[(,]|$))")
# A device node below /dev/infiniband.
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_CHANNEL = re.compile(r"channel[0-9]+")

# The sections of the engine by docker commands. The first argument is 124 for an engine that did not respond.
_BY_COMMANDS = r"""
# After an answer that does not come, no other question: an engine that hangs must not take the host along.
asks() { [ -n "$late" ] || timeout -k 2 20 "$@"; }
is_late() { case $1 in 124|137) late=$2 ;; esac; }
by_commands() {
  late= said= listed= images=
  case $1 in 124) late="docker ${seen:-info}" ;; esac
  shift
  engine=$(asks docker info --format '{{json .}}' 2>&1) || is_late $? 'docker info'
  # A container that is removed meanwhile makes inspect fail.
  list() { asks docker ps -aq --no-trunc --filter label=@label@; }
  unlisted=
  # A list that failed is not an empty one.
  ids=$(list 2>/dev/null) || { is_late $? 'docker ps'; ids=$(list 2>/dev/null); } ||
    unlisted="status $? $(list 2>&1 >/dev/null)"
  [ -z "$ids" ] || said=$(asks docker inspect $ids 2>/dev/null) ||
    { is_late $? 'docker inspect'; said=$(asks docker inspect $(list) 2>/dev/null); }
  # Images of containers too: another user can have removed their tags, but toolkit can use them.
  used=$(printf "%s\n" "$said" | sed -n 's/^ *"Image": "\(sha256:[0-9a-f]*\)".*/\1/p')
  # With the containerd store, an engine can inspect incomplete images, but lists only complete images.
  case $engine in
    *io.containerd.snapshotter*)
      listed=$(asks docker images -aq --no-trunc 2>/dev/null) || is_late $? 'docker images' ;;
  esac
  ids=$(asks docker images -q --no-trunc "$2" 2>/dev/null) || is_late $? 'docker images'
  images=$(asks docker image inspect "$1" $ids $used 2>/dev/null) || is_late $? 'docker image inspect'
  # Otherwise images that the engine did not list in time would count as absent.
  [ -z "$late" ] || { engine="no answer within 20 s to $late" unlisted= said= images=; }
  say docker "$engine"
  say containers "$said"
  say unlisted "$unlisted"
  case $engine in *io.containerd.snapshotter*) say listed "$listed" ;; esac
  say images "$images"
  root=
  case $engine in *'"DockerRootDir":"'*) root=${engine#*'"DockerRootDir":"'}; root=${root%%'"'*} ;; esac
  seen=$(printf '%s\n' "$said" |
    sed -n '/"Running": true/,/"Running": false/s/^ *"Source": "\(.*\)",$/|\1|/p')
}
""".replace("@label@", LABEL_CLUSTER)
# The same sections by one process, see ``toolkit.container.check.engine_api``. Both set variables for other
# probes, see ``toolkit.checks.model.Probe``.
_BY_API = """
{ seen=$(python3 -I -S -c @program@ "$nonce" "$(command -v docker)" 3 "$1" "$2" @label@ 3>&1 >&4 2>/dev/null)
asked=$?; } 4>&1
case $asked in 0) root=${seen%%"|"*} ;; *) by_commands $asked "$@" ;; esac
""".replace("@label@", LABEL_CLUSTER)

# Sections that consist of files, of the state directory or of the kernel. The script prints all these files
# in the section ``contents``.
FILES_OF = {
    "cluster": ("etc/hosts", "etc/passwd", "conf/known_hosts", "conf/authorized_keys"),
    "version": ("version",),
    "applied": ("applied.json",),
    "tuned": ("conf/tuned.json",),
    "proved": ("conf/proved",),
    "routes": ("/proc/net/route",),
    "tcp": ("/proc/net/tcp", "/proc/net/tcp6"),
}
_FILES = tuple(path for paths in FILES_OF.values() for path in paths)
_OWN_FILES = tuple(path for path in _FILES if not path.startswith("/"))
_TABLES = tuple(path for path in _FILES if path.startswith("/"))

# Each section is a call of `say`, see ``toolkit.protocol.frames``. Code with `case` is in a function, because
# old shells end a command substitution at its first bracket.
_SCRIPT = (
    ROW
    + r"""
say begun "$(date +%s.%N)"
ids=$(id 2>/dev/null)
uid=${ids#uid=}; uid=${uid%%[!0-9]*}
# Without a name, the user's number.
case $ids in *") gid="*) user=${ids%%") gid="*}; user=${user#*"("} ;; *) user=$uid ;; esac
# Without a locale, as under sshd, fish garbles a home path with non-ASCII letters.
[ -d "$HOME" ] || HOME=$(getent passwd "$uid" | cut -d: -f6)
# All probes use the folder in the hosts file; without one, they use the folder of the user's login.
[ -z "${TOOLKIT_STATE_DIR-}" ] || XDG_STATE_HOME="$TOOLKIT_STATE_DIR/$user"
export XDG_STATE_HOME
say who "$ids"
say home "$HOME"
say state-home "${XDG_STATE_HOME:-$HOME/.local/state}"
machine=$(uname -n -m)
say machine "${machine% *}
${machine##* }"
say ssh "$SSH_CONNECTION"
@@ENGINE@@
interfaces=$(ip -o -4 addr show 2>/dev/null)
say interfaces "$interfaces"
trie=
[ -n "$interfaces" ] || trie=$(cat /proc/net/fib_trie 2>/dev/null)
say addresses "$trie"
@network@
@@USES@@
@@STATE@@
runtime=
! command -v nvidia-container-runtime-hook >/dev/null || runtime=yes
say runtime "$runtime"
cdi=
for f in /etc/cdi/* /var/run/cdi/*; do
  [ ! -f "$f" ] || ! grep -q 'nvidia\.com/gpu' "$f" 2>/dev/null || cdi="$cdi$(grep -h 'name"*:' "$f")
"
done
say cdi "$cdi"
@@FILES@@
# One grep reads all of these files, and prints the path in front of each line.
say contents "$(cd "$mine" 2>/dev/null && set -- @own@ || set --; grep -asH '' "$@" @shared@)"
say boot "$(grep -sh -e '^btime' -e '^1 (' /proc/stat /proc/1/stat)"
infiniband=
for f in /dev/infiniband/*; do [ ! -c "$f" ] || infiniband="$infiniband ${f##*/}"; done
say infiniband "$infiniband"
imex=
for f in /dev/nvidia-caps-imex-channels/channel*; do
  [ ! -c "$f" ] || [ ! -r "$f" ] || imex="$imex ${f##*/}"
done
say imex "$imex"
say disk "$(df -Pk "${HOME:-/}" 2>/dev/null)"
@@MORE@@
say ended "$(date +%s.%N)"
""".replace("@@USES@@", USES.strip())
    .replace("@@STATE@@", state_folders.QUESTION.strip())
    .replace("@@FILES@@", state_folders.FILES.strip())
    .replace("@network@", interfaces.LINK_QUESTIONS.strip())
    .replace("@own@", " ".join(_OWN_FILES))
    .replace("@shared@", " ".join((*_TABLES, *interfaces.LINK_FILES)))
)


def probe_command(
    image: str,
    cluster: str,
    host: str,
    nonce: str,
    more: Sequence[tuple[str, str]] = (),
    sources: Sequence[str] = (),
    state_dir: str = "",
    engine: str = DOCKER,
) -> Command:
    """Return the command whose output ``read_probe`` reads. It changes nothing.

    Args:
        nonce: delimits the sections; new in every call.
        more: further probes as (name, shell text), which become sections of these names.
        sources: of the mounts; probes have them as ``$5`` and the following.
        state_dir: of the hosts file.
        engine: of the hosts, see ``toolkit.core.engines``. Podman usually has no socket.
    """
    # Each in a separate shell: none can end the script, or change the environment of the next one.
    asked = "\n".join(f'ask() {{\n{text}\n}}\nsay {name} "$(ask "$@" 2>/dev/null)"' for name, text in more)
    program = shlex.quote(packed("check.engine_api"))
    by_engine = _BY_COMMANDS + (
        'by_commands 0 "$@"\n' if engine == PODMAN else _BY_API.replace("@program@", program)
    )
    text = framed_script(_SCRIPT.replace("@@MORE@@", asked).replace("@@ENGINE@@", by_engine.strip()), nonce)
    asking = script(text, image, IDENTITY_REPOSITORY, cluster, host, *sources)
    return asking.within("env", f"TOOLKIT_STATE_DIR={state_dir}") if state_dir else asking


def read_probe(data: bytes, nonce: str) -> dict[str, str]:
    """Return the sections of the probe by name; each file that ``contents`` contains is in its own section.

    Raises:
        FrameError: the output is truncated, or does not consist of sections.
    """
    found = read_frames(data, nonce)
    if "contents" not in found:  # the facts name the missing section
        return found
    files: dict[str, list[str]] = defaultdict(list)
    links = []
    for line in lines_of(found.pop("contents")):
        path, _, text = line.partition(":")
        if path.startswith(interfaces.SYS_NET):
            links.append(line)
        else:
            files[path].append(text)
    links += lines_of(found.pop("link-paths", ""))
    own = {name: [text for path in paths for text in files[path]] for name, paths in FILES_OF.items()}
    own["links"] = [f"./{line.removeprefix(interfaces.SYS_NET)}" for line in links]
    return found | {name: "\n".join(lines) for name, lines in own.items()}


def parse_facts(
    host: str, cluster: str, parts: Mapping[str, str], need_docker: bool = True, engine: str = DOCKER
) -> Facts:
    """Return the facts in the probe's sections.

    Args:
        host: inventory name of the host.
        cluster: the cluster of the state directory ``state_dir``.
        parts: content of each section, by its name, see ``read_probe``.
        engine: the engine of the host according to the hosts file.
        need_docker: raise an error if docker cannot be used; otherwise ``docker`` is empty.

    Raises:
        ToolkitError: docker is missing, stopped or forbidden on the host, or a section is invalid.
    """
    with answer_of(host, "the description of the user, engine and devices"):
        return _facts(host, cluster, Sections(parts), need_docker, engine)


class Sections(dict[str, str]):
    """Sections of an answer; a missing section makes the answer invalid."""

    def __missing__(self, name: str) -> str:
        raise DecodeError(name, "is missing")


def _facts(host: str, cluster: str, parts: Sections, need_docker: bool, engine: str) -> Facts:
    who, machine = _who(parts), _named_lines(parts["machine"], "machine", ("name", "arch"))
    state_dir = f"{who.state}/toolkit/{cluster}/{host}"
    try:
        info = docker_info(host, who.user, parts["docker"], engine)
    except ToolkitError:
        if need_docker:
            raise
        info = EngineInfo()
    if info.version and (failed := parts.get("unlisted", "")):
        status, _, words = failed.removeprefix("status ").partition(" ")
        raise CommandFailed("docker ps", whole(status, 255) or 1, words, host)
    ssh = parts["ssh"].split()
    gpus, gpu_trouble = parse_smi(parts["gpus"])
    listed = map(_container_facts, json_list(ContainerInspect, parts["containers"]))
    containers = tuple(filter(_is_named_as_labeled, listed))
    files = state_folders.parse_state_files(parts["files"])
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
        interfaces=interfaces.parse_interfaces(parts["interfaces"], parts["routes"], parts["addresses"]),
        listening=interfaces.parse_listeners(parts["tcp"]),
        containers=containers,
        images=_images(parts, {container.image for container in containers}),
        gpus=gpus,
        gpu_trouble=gpu_trouble,
        # The engine can give GPUs if it found the hook at its start, or has a runtime in its configuration.
        nvidia_runtime=bool(parts["runtime"].strip()) or "nvidia" in (info.runtimes or {}),
        cdi=parse_cdi(info, parts["cdi"]),
        remembered=_remembered(parts["cluster"]),
        booted=_boot_time(parts["boot"]),
        version=parts["version"].strip(),
        applied=parse_applied(parts.get("applied", "")),
        tuned=parts["tuned"],
        programs=_programs(files),
        state_files=files,
        proved=parts.get("proved", ""),
        public_keys=_public_keys(parts.get("keys", "")),
        infiniband=tuple(f"/dev/infiniband/{n}" for n in parts["infiniband"].split() if _DEVICE.fullmatch(n)),
        imex=tuple(
            f"/dev/nvidia-caps-imex-channels/{name}"
            for name in parts["imex"].split()
            if _CHANNEL.fullmatch(name)
        ),
        selinux=info.uses_selinux,
        free_bytes=_free(parts["disk"]),
        links=interfaces.parse_links(parts.get("links", ""), parts.get("shaping", "")),
        routes=interfaces.parse_routes(parts["routes"]),
        rdma=interfaces.parse_rdma(parts.get("rdma", "")),
        gpu_processes=parse_processes(parts.get("apps", "")),
        claims=parse_claims(parts.get("claims", ""), parts["boot"]),
    )


def docker_info(host: str, user: str, text: str, engine: str = DOCKER) -> EngineInfo:
    """Parse the output of ``docker info --format '{{json .}}'`` on a host, errors included.

    Raises:
        ToolkitError: docker is missing, stopped or forbidden to that user, or its answer is invalid.
    """
    with answer_of(host, "the description of the container engine"):
        info = parse_info(text)
    if info is not None:
        if info.engine == PODMAN and engine == DOCKER:
            what = "the command `docker` starts Podman on this host"
            raise NotReady(what, f"in hosts.yaml: set engine: podman  # or install Docker on {host}", host)
        if info.version:
            return info
        text = "; ".join(info.errors or ()) or text
    if "no answer within" in text:
        if text.strip().endswith(f" to {engine} info"):
            what, fix = "the docker engine does not respond", f"on {host}: sudo systemctl restart docker"
            if engine == PODMAN:  # which has no daemon
                often = "a common cause is a hung disk with ~/.local/share/containers"
                fix = f"on {host}: podman info  # {often}"
        else:
            # It has described itself: it is slow, for example with many images, or hangs in one question.
            what = "the docker engine is too slow"
            restart = "" if engine == PODMAN else ", or restart the engine"  # Podman has no daemon
            fix = f"on {host}: {engine} system df  # then remove unused images{restart}"
        raise NotReady(f"{what.replace(DOCKER, engine)}: {words_of(text)}", fix, host)
    if engine == PODMAN and re.search(r"podman(: command)?(:)? not found", text):
        fix = f"on {host}: install podman  # or in hosts.yaml: set engine: docker"
        raise NotReady("podman is not installed", fix, host)
    if cause := cause_of(text, host, user):
        raise NotReady(f"{cause.what}: {words_of(text)}", cause.fix, host)
    raise CommandFailed("docker info", 1, text, host)


def _images(parts: Mapping[str, str], used: Collection[str]) -> tuple[ImageFacts, ...]:
    """Return the complete images; the image of a container counts even if it lost its name."""
    found = {image.id: image for image in map(image_facts, json_list(ImageInspect, parts["images"]))}
    if "listed" in parts:
        whole = {*parts["listed"].split(), *used}
        found = {id_: image for id_, image in found.items() if id_ in whole}
    return tuple(found.values())


def _free(text: str) -> int:
    words = lines_of(text)[-1].split() if text else []
    return (whole(words[3], 2**53) or 0) * 1024 if len(words) > 3 else 0


def _who(parts: Mapping[str, str]) -> Who:
    ids, _, listed = parts["who"].partition(" context=")[0].partition(" groups=")
    found = _IDS.fullmatch(ids)
    if found is None:
        raise DecodeError("who", f"id printed {parts['who'][:80]!r}")
    uid, user, gid = found.groups()
    # Users and groups without a name are represented by their ids.
    # BusyBox lists no groups if the process has only its primary group.
    pairs = (group.partition("(") for group in _GROUPS.split(listed or ids.rpartition(" gid=")[2]))
    groups = [[whole(number), name.removesuffix(")") or number] for number, _, name in pairs]
    places = {"home": parts["home"], "state": parts["state-home"]}
    return decode(
        Who, {"user": user or uid, "uid": whole(uid), "gid": whole(gid), "groups": groups, **places}, "who"
    )


def _named_lines(text: str, section: str, names: Sequence[str]) -> dict[str, str]:
    """Return the lines of a section by name; more can follow."""
    lines = lines_of(text)
    if len(lines) < len(names):
        raise DecodeError(section, f"should have at least {counted(len(names), 'line')}, found {len(lines)}")
    return dict(zip(names, lines, strict=False))


def _is_named_as_labeled(container: ContainerFacts) -> bool:
    """Return True if a container has a name of the cluster in its label.

    An image can define labels for every container made from it, but no container names.
    """
    return container.name.startswith(container_name(container.labels.get(LABEL_CLUSTER, ""), ""))


def _container_facts(item: ContainerInspect) -> ContainerFacts:
    """Return one container from its ``docker inspect`` object."""
    state = item.state or ContainerState()
    return ContainerFacts(
        id=item.id,
        name=item.name.lstrip("/"),
        state=state.status,
        labels=(item.config or ContainerConfig()).labels or {},
        exit_code=state.exit_code or 0,
        image=image_id(item.image),
        started=seconds_of(state.started or ""),
        ended=seconds_of(state.finished or ""),
        mounts=tuple(sorted(mount.source for mount in item.mounts or ())),
    )


def _begun(text: str, stat: str) -> float:
    """Return the start time of a process in seconds since the epoch, 0 if it is not known.

    Args:
        text: with a line ``btime SECONDS``; stat: the part of /proc/PID/stat after the process's name.
    """
    line = next((line for line in lines_of(text) if line.startswith("btime ")), "")
    boot = _number(line.split(), 1, _LATEST)
    ticks = _number(stat.split(), 19, _LATEST * _TICKS_PER_SECOND)
    return boot + ticks / _TICKS_PER_SECOND if boot and ticks else 0.0


def _number(words: list[str], at: int, most: int = MOST) -> int:
    """Return the number in a place, 0 without a number."""
    return (whole(words[at], most) if len(words) > at else None) or 0


def _boot_time(text: str) -> float:
    """Return the start time of the host's first process, from the lines of /proc/stat and /proc/1/stat.

    A container that serves as a host shares the kernel of its machine, and starts later than the kernel.

    Args:
        text: ``btime SECONDS``, and ``1 (NAME) STATE …``, whose field 22 is in ticks since then (man 5 proc).
    """
    boot = ticks = 0
    for line in lines_of(text):
        words = line.rpartition(")")[2].split()
        if line.startswith("btime "):
            boot = _number(words, 1, _LATEST)
        elif line.startswith("1 ("):
            ticks = _number(words, 19, _LATEST * _TICKS_PER_SECOND)
    return boot + ticks / _TICKS_PER_SECOND if boot else 0.0


# The same on most hosts of a cluster, and long in large clusters.
@functools.lru_cache(maxsize=64)
def _remembered(text: str) -> Remembered:
    """Return the values of an earlier `up`: /etc/hosts, /etc/passwd, known_hosts and authorized_keys.

    Lines whose key, address or user is not valid are left out.
    """
    addresses, keys, main_key = [], [], ""
    for line in lines_of(text):
        words = line.split()
        if len(words) == 2 and words[1] != "localhost" and Kind.ADDRESS.accepts(words[0]):
            if words[0].startswith("::ffff:"):
                continue  # the same address as in the line of the host's name
            addresses.append((words[1], words[0]))
        elif len(words) == 3 and Kind.PUBLIC_KEY.accepts(key := " ".join(words[1:])):
            if words[0].startswith("restrict,"):
                main_key = key
            else:
                keys.append((words[0].partition(",")[0], key))
    return Remembered(tuple(addresses), tuple(keys), main_key, _user_of(lines_of(text)))


def _user_of(lines: Iterable[str]) -> str:
    """Return the user in the lines of ``toolkit.cluster.containers.passwd_file``; empty without the file."""
    names = [cells[0] for line in lines if len(cells := line.split(":")) == 7]
    return next((name for name in names if container_user(name) == name), "root" if "root" in names else "")


def _programs(files: Iterable[StateFile]) -> tuple[tuple[str, str], ...]:
    """Return name and sum of each program in the folder that containers see as /run/toolkit/inside."""
    inside = "inside/"
    return tuple((f.path.removeprefix(inside), f.sum) for f in files if f.sum and f.path.startswith(inside))


def _public_keys(text: str) -> tuple[tuple[str, str], ...]:
    """Return name and public key in each line; a line of another form counts as no key."""
    pairs = (line.partition(" ") for line in lines_of(text))
    return tuple((name, key) for name, _, key in pairs if Kind.PUBLIC_KEY.accepts(key))


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Return the lines of the section ``apps``."""
    found = []
    for word, cells in rows(text):
        if word == "app" and len(cells) == 7 and (pid := whole(cells[1])) is not None:
            gpu, _, memory, user, container, job, program = cells
            # Drivers print "[N/A]" or "[Not Supported]" for an unknown value.
            found.append(GpuProcess(gpu, pid, whole(memory) or 0, user, program, container, job))
    return tuple(found)


def parse_claims(text: str, boot: str) -> tuple[Claim, ...]:
    """Return the GPU reservations of processes on the host.

    Args:
        text: lines of the section ``claims``; the argv in each decides if it is a reservation.
        boot: with the line ``btime`` of /proc/stat.
    """
    found = (_claim(cells, boot) for word, cells in rows(text) if word == "claim" and len(cells) == 4)
    return tuple(claim for claim in found if claim)


def _claim(cells: tuple[str, ...], boot: str) -> Claim | None:
    pid, user, stat, argv = whole(cells[0]), *cells[1:]
    words = argv.split("\0")
    if pid is None or len(words) < 4 or tuple(words[1:3]) != LEASE or not words[3]:
        return None
    if not words[0].rpartition("/")[2].startswith("python"):
        return None
    options = dict(zip(words[4::2], words[5::2], strict=False))
    return Claim(
        job=words[3],
        cluster=options.get("--cluster", ""),
        owner=options.get("--owner", ""),
        slots=tuple(
            slot for word in options.get("--slots", "").split(",") if (slot := whole(word, 65535)) is not None
        ),
        gpus=tuple(filter(None, options.get("--gpus", "").split(","))),
        user=user,
        pid=pid,
        since=_begun(boot, stat),
    )
