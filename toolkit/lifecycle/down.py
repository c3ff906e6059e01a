"""The plan of `down`: download job records, remove the cluster by its label, and check that it is gone."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence

from toolkit.cluster.ownership import END_LEFT, OWN_PROCESSES, ours
from toolkit.core.command import quoted, script
from toolkit.core.container import CONFINED
from toolkit.core.facts import ContainerFacts, Facts
from toolkit.core.image import listed_name
from toolkit.hostsfile.inventory import Inventory
from toolkit.image.on_hosts import PARTS
from toolkit.plan.steps import Fetch, Phase, Plan, Run, Step
from toolkit.protocol.decode import whole
from toolkit.protocol.files import NO_JOB_FILES
from toolkit.protocol.names import JOBS, LABEL_CLUSTER, LABEL_HOST, LABEL_OWNER, LABEL_PORT

# The cluster's containers of this user only: another user can have created some since the probe.
# Arguments: cluster, user as in ``_in_json``.
_OWN = r"""
own() {
  docker ps -a --no-trunc --filter "label=toolkit.cluster=$1" \
    --format '{{.ID}} {{.Names}} {{json (.Label "toolkit.owner")}}' | while read -r id name owner; do
    # The label can come from an image, the name cannot. As JSON, a label with a newline is still one line.
    case $name in "toolkit-$1-"*) ;; *) continue ;; esac
    case $owner in '""'|"\"$2\"") echo "$id" ;; esac
  done
}
"""


def _on_own(call: str) -> str:
    """Return a script that calls the engine with the ids of the cluster's containers, if there are any."""
    return f"""{_OWN}
docker version >/dev/null || exit 1
for _ in 1 2 3 4 5 6 7 8 9 10; do
  ids=$(own "$1" "$2")
  [ -n "$ids" ] || exit 0
  # Fails while another `down`, perhaps an interrupted one, removes them.
  why=$({call} $ids 2>&1) && exit 0
  sleep 1
done
echo "$why" >&2
exit 1
"""


# `podman container stop` fails for a paused container.
_STOP = _on_own("docker unpause $ids >/dev/null 2>&1; docker container stop -t 0")
_REMOVE = _on_own("docker rm --force --volumes")
_NO_CONTAINER = f'{_OWN}test -z "$(own "$1" "$2")"'

# Succeeds if the folder of the jobs, $1, is empty or does not exist. The folder is not empty if ls fails.
_EMPTY = '{ [ ! -e "$1" ] || [ -z "$(ls -A "$1" 2>&1)" ]; }'

# By the tag of the cluster, never by name. The containers are already removed: remaining processes ran
# outside of them, or receive an image whose sender died while the connection stayed open.
_MARKED = (
    OWN_PROCESSES
    + r"""
cluster=$1
left() {
  with_variable "TOOLKIT_CLUSTER=$cluster" | while read -r file; do
    ! grep -qsz '^TOOLKIT_\(JOB\|RELAY\)=' "$file" || echo "$file"
  done
}
"""
)
_END = f"{_MARKED}{END_LEFT}"
_NONE_MARKED = f'{_MARKED}test -z "$(left)"'

# Arguments: identities.
_IDLE_PARTS = f"""{PARTS}
idle=$(for identity; do
  names=$(parts "$identity") || exit
  [ -n "$(doubt "$identity")" ] || echo $names
done) || exit
"""
_REMOVE_PARTS = f"""{_IDLE_PARTS}
for name in $idle; do docker rmi "$name" >/dev/null || exit; done
"""
_NO_PARTS = f'{_IDLE_PARTS}test -z "$idle"'

# The kernel's table of mounts contains paths without links, and blanks as numbers.
_MOUNTS = r"""
mounts() {
  at=$(readlink -f -- "$1") || at=$1
  at=$(printf '%s' "$at" | sed 's/\\/\\134/g; s/ /\\040/g; s/\t/\\011/g')
  while read -r _ on _; do case $on/ in "$at"/*) printf '%s\n' "$on" ;; esac; done </proc/self/mounts
}
"""
# A function of shell that removes a folder in which ranks can have left folders without write permission.
# chmod -R ignores links below the folder. A rank can replace the folder by a link; rm removes only the link.
REMOVE_TREE = rf"""{_MOUNTS}
remove_tree() {{
  on=$([ -L "$1" ] || mounts "$1")
  [ -z "$on" ] || {{
echo "a file system is mounted at $on; unmount the file system, because toolkit removes no mounted files" >&2
    return 1
  }}
  rm -rf "$1" 2>/dev/null || {{ chmod -R u+rwX "$1" 2>/dev/null; rm -rf "$1"; }}
}}
"""
# The folder of a cluster, $1. The parents go too if this was the last cluster; otherwise rmdir leaves them.
REMOVE_STATE = f"""{REMOVE_TREE}
remove_tree "$1" || exit 1
rmdir "${{1%/*}}" "${{1%/*/*}}" 2>/dev/null
exit 0
"""

# Every process of a cluster's container has TOOLKIT_CLUSTER in its environment and runs as the SSH user, who
# also owns the listener. Arguments: cluster, user as in ``_in_json``, port, folders, "--", identities.
_PROOF = (
    f"""{_OWN}{_MOUNTS}{PARTS}"""
    + r"""
left=''
docker version >/dev/null || exit 1
ids=$(own "$1" "$2")
[ -z "$ids" ] || left="$left containers: $ids;"
for file in $(with_variable "TOOLKIT_CLUSTER=$1"); do
  file=${file#/proc/}; left="$left process ${file%/environ};"
done
port=$(printf ':%04X' "$3") me=$(id -u)
found=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ at _ state _ _ _ uid _; do
  case "$at $state $uid" in *"$port 0A $me") echo "$at" ;; esac
done)
[ "$3" = 0 ] || [ -z "$found" ] || left="$left a listener on port $3;"
shift 3
while [ "$1" != -- ]; do
  [ ! -e "$1" ] || left="$left files: $1;"
  on=$(mounts "$1")
  [ -z "$on" ] || left="$left mounts: $on;"
  shift
done
shift
doubts=''
for identity; do
  names=$(parts "$identity") || exit 1
  [ -n "$names" ] || continue
  doubt=$(doubt "$identity")
  if [ -n "$doubt" ]; then doubts=${doubts:+$doubts; }$doubt
  else left="$left partial transfers of an image: $(echo $names);"; fi
done
[ -z "$left" ] || { echo "leftovers on the host:$left" >&2; exit 1; }
[ -z "$doubts" ] || refuse "$doubts"
"""
)


def plan_down(
    inventory: Inventory, facts: Mapping[str, Facts], save_to: str = "", identities: Sequence[str] = ()
) -> Plan:
    """Return the plan that removes the cluster from every host that answered.

    Args:
        save_to: local folder for the jobs' records, logs and results; empty means not to save them.
        identities: content digests of images whose transfer to the hosts possibly started.
    """
    wanted = tuple(sorted({*identities, *(i for f in facts.values() for i in _identities(inventory, f))}))
    hosts = [facts[name] for name in inventory.names if name in facts]
    states = [(f, state) for f in hosts for state in _states(inventory.cluster, f)]
    # Another `down` finds an earlier state directory only through the containers, so they are removed later.
    earlier = {f.host for f, state in states if state != f.state_dir}
    phases = [
        Phase("records", _fetch_steps(inventory.cluster, hosts, save_to) if save_to else ()),
        Phase(
            "containers",
            tuple((_stop_step if f.host in earlier else _remove_step)(inventory.cluster, f) for f in hosts),
        ),
        Phase("processes", tuple(_end_step(inventory.cluster, f) for f in hosts)),
        Phase("files", tuple(_files_step(f, state) for f, state in states)),
        Phase(
            "stopped containers",
            tuple(_remove_step(inventory.cluster, f) for f in hosts if f.host in earlier),
        ),
        Phase("images", tuple(_parts_step(f, wanted) for f in hosts) if wanted else ()),
        Phase("proof", tuple(_proof_step(inventory, f, wanted) for f in hosts)),
    ]
    return Plan(f"down {inventory.cluster}", tuple(p for p in phases if p.steps))


def _states(cluster: str, facts: Facts) -> tuple[str, ...]:
    """Return the state directories of the cluster on a host: the present one first, then those in use."""
    used = (_state_of(container, facts) for container in ours(cluster, facts))
    return tuple(dict.fromkeys((facts.state_dir, *used)))


def _state_of(container: ContainerFacts, facts: Facts) -> str:
    """Return the state directory that a container of this user mounts; the present one if it mounts no other.

    They differ after a change of ``state_dir`` or of the host's name in hosts.yaml.
    """
    labels = container.labels
    if labels.get(LABEL_OWNER) == facts.user:
        end = f"/toolkit/{labels.get(LABEL_CLUSTER)}/{labels.get(LABEL_HOST)}/jobs"
        for state in (path.removesuffix("/jobs") for path in container.mounts if path.endswith(end)):
            # A mount of hosts.yaml can have one of these paths. Engines normalize the paths of mounts.
            if f"{state}/conf" in container.mounts and state != posixpath.normpath(facts.state_dir):
                return state
    return facts.state_dir


def _fetch_steps(cluster: str, hosts: Sequence[Facts], save_to: str) -> tuple[Step, ...]:
    return tuple(_fetch_step(cluster, f, s, save_to) for f in hosts for s in _states(cluster, f))


def _fetch_step(cluster: str, facts: Facts, state: str, save_to: str) -> Step:
    title = _title("download records, logs and results", facts, state)
    found = ours(cluster, facts)
    running = (c.name for c in found if c.state == "running" and _state_of(c, facts) == state)
    image = next((c.image for c in found), "") or next((i.id for i in facts.images), "")
    jobs = f"{state}/jobs"
    readable = (
        f'on {facts.host}: sudo chown -R "$(id -u)" {quoted(jobs)} && chmod -R u+rwX {quoted(jobs)}  '
        "# gives all files of jobs to the SSH user; then run `toolkit down` again"
    )
    if name := next(running, ""):
        return Fetch(facts.host, title, ("docker", "exec", name), save_to, readable)
    if image:
        # After a reboot, or when a user removed the container, the jobs are still on the host.
        mount = f"type=bind,source={jobs},target={JOBS},readonly"
        # A cluster without a job can have an image in which no program runs.
        look = script(f"{_EMPTY} && {{ echo '{NO_JOB_FILES}'; exit; }}; shift; exec \"$@\"", jobs).argv
        run = ("docker", "run", "--rm", "--network", "none", *CONFINED, *facts.as_user)
        inside = (*map(str, look), *run, "--mount", mount, image)
        return Fetch(facts.host, title, inside, save_to, readable)
    empty = script(f'{_EMPTY} || {{ echo "$1 contains job records" >&2; exit 1; }}', jobs)
    fix = (
        "toolkit down --no-save  # deletes the job records; to download them, toolkit needs the "
        "container or the image of the cluster on the host"
    )
    return Run(facts.host, title, empty, unless=empty, fix=fix)


def _title(title: str, facts: Facts, state: str) -> str:
    return title if state == facts.state_dir else f"{title} in {state}"


def _identities(inventory: Inventory, facts: Facts) -> tuple[str, ...]:
    """Of the image that the cluster has on a host, and of what the hosts file's name means there."""
    used = {c.image for c in ours(inventory.cluster, facts)}
    named = [i for i in facts.images if i.id in used or listed_name(inventory.image, i.tags)]
    return tuple(i.identity for i in named)


def _in_json(user: str) -> str:
    r"""Return a user as Docker prints it between the quotes of a JSON string: ``CORP\\alice``."""
    return json.dumps(user, ensure_ascii=False)[1:-1]


def _remove_step(cluster: str, facts: Facts) -> Step:
    own = (cluster, _in_json(facts.user))
    return Run(facts.host, "remove the containers", script(_REMOVE, *own), unless=script(_NO_CONTAINER, *own))


def _stop_step(cluster: str, facts: Facts) -> Step:
    return Run(facts.host, "stop the containers", script(_STOP, cluster, _in_json(facts.user)))


def _end_step(cluster: str, facts: Facts) -> Step:
    return Run(
        facts.host,
        "stop leftover processes of jobs and transfers",
        script(_END, cluster),
        unless=script(_NONE_MARKED, cluster),
        fix=f"on {facts.host}: ps -eo pid,stat,comm  # to stop a process in state D, reboot the host",
    )


def _parts_step(facts: Facts, identities: Sequence[str]) -> Step:
    return Run(
        facts.host,
        "remove partial images",
        script(_REMOVE_PARTS, *identities),
        unless=script(_NO_PARTS, *identities),
        fix=f"on {facts.host}: {facts.engine} images toolkit-part  # lists the remaining partial images",
    )


def _files_step(facts: Facts, state: str) -> Step:
    return Run(
        facts.host,
        _title("remove SSH keys, configurations and job records", facts, state),
        script(REMOVE_STATE, state),
        unless=script('[ ! -e "$1" ]', state),
        fix="toolkit down  # after other commands for the cluster finish; if `down` fails again, "
        f"on {facts.host}: ls -la {quoted(state)}",
    )


def _proof_step(inventory: Inventory, facts: Facts, identities: Sequence[str]) -> Step:
    ports = [c.labels.get(LABEL_PORT, "") for c in ours(inventory.cluster, facts)]
    port = next((p for p in ports if whole(p, 65535) is not None), "0")
    others = any(
        c.labels.get(LABEL_PORT) == port and c not in ours(inventory.cluster, facts) for c in facts.containers
    )
    return Run(
        facts.host,
        "verify the removal",
        script(
            _PROOF,
            inventory.cluster,
            _in_json(facts.user),
            # A second cluster can listen on the same port at another address; its listener is no leftover.
            "0" if others else port,
            *_states(inventory.cluster, facts),
            "--",
            *identities,
        ),
        fix="toolkit down  # after other commands for the cluster finish; if `down` fails again, on "
        f"{facts.host}: {facts.engine} ps -a --filter label=toolkit.cluster={inventory.cluster}",
        unsure="toolkit down  # after the transfer has finished",
        proof=True,
    )
