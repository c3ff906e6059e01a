"""What `down` does: records come home, what carries the cluster's label goes, nothing is left: proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit.core.command import Command, script
from toolkit.core.facts import Facts
from toolkit.core.names import JOBS, LABEL_PORT
from toolkit.plan.ownership import ours
from toolkit.plan.steps import Fetch, Phase, Plan, Run, Step
from toolkit.spec.inventory import Inventory

_REMOVE = r"""
ids=$(docker ps -aq --no-trunc --filter "label=toolkit.cluster=$1") || exit 1
[ -z "$ids" ] || docker rm --force --volumes $ids
"""

_NO_CONTAINER = 'test -z "$(docker ps -aq --filter "label=toolkit.cluster=$1")"'

# The parents go too when this was the last cluster; rmdir leaves them when it was not.
_REMOVE_FILES = r"""
rm -rf "$1" || exit 1
rmdir "${1%/*}" "${1%/*/*}" 2>/dev/null
exit 0
"""

# Every process of a cluster's container carries TOOLKIT_CLUSTER in its environment. The kernel shows it for
# our own processes; those of others are not ours.
_PROOF = r"""
left=''
ids=$(docker ps -aq --filter "label=toolkit.cluster=$1") || exit 1
[ -z "$ids" ] || left="$left containers: $ids;"
[ ! -e "$2" ] || left="$left files: $2;"
for p in /proc/[0-9]*; do
  if tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -qx "TOOLKIT_CLUSTER=$1"; then
    left="$left process ${p#/proc/};"
  fi
done
port=$(printf ':%04X' "$3")
found=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ at _ state _; do
  case "$at $state" in *"$port 0A") echo "$at" ;; esac
done)
[ "$3" = 0 ] || [ -z "$found" ] || left="$left a listener on port $3;"
[ -z "$left" ] || { echo "still there:$left" >&2; exit 1; }
"""


def plan_down(inventory: Inventory, facts: Mapping[str, Facts], save_to: str = "") -> Plan:
    """Return the plan that removes the cluster from every host that answered.

    Args:
        save_to: local folder for the jobs' records, logs and results; empty means not to save them.
    """
    hosts = [facts[name] for name in inventory.names if name in facts]
    phases = [
        Phase("records", _fetch_steps(inventory.cluster, hosts, save_to) if save_to else ()),
        Phase("containers", tuple(_remove_step(inventory.cluster, f) for f in hosts)),
        Phase("files", tuple(_files_step(f) for f in hosts)),
        Phase("proof", tuple(_proof_step(inventory, f) for f in hosts)),
    ]
    return Plan(f"down {inventory.cluster}", tuple(p for p in phases if p.steps))


def _fetch_steps(cluster: str, hosts: Sequence[Facts], save_to: str) -> tuple[Step, ...]:
    title = "bring records, logs and results"
    steps: list[Step] = []
    for facts in hosts:
        found = ours(cluster, facts)
        running = next((c.name for c in found if c.state == "running"), "")
        image = next((c.image for c in found), "") or next((i.id for i in facts.images), "")
        jobs = f"{facts.state_dir}/jobs"
        if running:
            steps.append(Fetch(facts.host, title, ("docker", "exec", running), save_to))
        elif image:
            # After a reboot, or when somebody removed the container, the jobs are there all the same.
            mount = f"type=bind,source={jobs},target={JOBS},readonly"
            user = f"{facts.uid}:{facts.gid}"
            # A cluster that never got as far as a job may have an image in which nothing runs.
            look = ("sh", "-c", '[ "$(ls -A "$1" 2>/dev/null)" ] || exit 0; shift; exec "$@"', "sh", jobs)
            run = ("docker", "run", "--rm", "--network", "none", "--cap-drop", "ALL", "--user", user)
            steps.append(Fetch(facts.host, title, (*look, *run, "--mount", mount, image), save_to))
        else:
            empty = script(
                '[ -z "$(ls -A "$1" 2>/dev/null)" ] || { echo "$1 holds jobs" >&2; exit 1; }', jobs
            )
            fix = "no image of the cluster is there to read them with; to lose them: toolkit down --no-save"
            steps.append(Run(facts.host, title, empty, unless=empty, fix=fix))
    return tuple(steps)


def _remove_step(cluster: str, facts: Facts) -> Step:
    remove: Command = script(_REMOVE, cluster)
    return Run(facts.host, "remove the containers", remove, unless=script(_NO_CONTAINER, cluster))


def _files_step(facts: Facts) -> Step:
    return Run(
        facts.host,
        "remove keys, configuration and jobs",
        script(_REMOVE_FILES, facts.state_dir),
        unless=script('[ ! -e "$1" ]', facts.state_dir),
    )


def _proof_step(inventory: Inventory, facts: Facts) -> Step:
    ports = [c.labels.get(LABEL_PORT, "") for c in ours(inventory.cluster, facts)]
    port = next((p for p in ports if p.isdigit()), "0")
    others = any(
        c.labels.get(LABEL_PORT) == port and c not in ours(inventory.cluster, facts) for c in facts.containers
    )
    return Run(
        facts.host,
        "nothing is left",
        # A second cluster may listen on the same port at another address: then its listener is no remnant.
        script(_PROOF, inventory.cluster, facts.state_dir, "0" if others else port),
        fix=f"on {facts.host}: docker ps -a --filter label=toolkit.cluster={inventory.cluster}",
    )
