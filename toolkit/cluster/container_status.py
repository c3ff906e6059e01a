"""The state of a host's container, for `status` and `run`, and the step that starts one for `up`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from toolkit.cluster.containers import start_failures
from toolkit.cluster.state_folders import lost_mounts
from toolkit.cluster.versions import version_note
from toolkit.core.command import Kind, command, script
from toolkit.core.container import Container, docker_run_args
from toolkit.core.engines import ENGINE_FAILED, PODMAN
from toolkit.core.facts import ContainerFacts, Facts
from toolkit.core.image import listed_name
from toolkit.core.printable import counted
from toolkit.errors import NotReady, ToolkitError
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import DataPath, choose_paths
from toolkit.plan.steps import Failure, Run
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_CONFIG, LABEL_SERVICE, LABEL_VERSION, container_name
from toolkit.protocol.transport import NOT_FOUND, without_sshd

UP = "toolkit up"


@dataclass(frozen=True)
class HostState:
    """One host as `status` shows it; ``state`` is running, no container, unreachable, or Docker's word.

    Args:
        version: of the toolkit that wrote the host's files last; empty for none.
        note: a remark that `status` prints.
        fix: the fix for it.
    """

    host: str
    role: str
    state: str
    address: str = ""
    image: str = ""
    docker: str = ""
    version: str = ""
    note: str = ""
    fix: str = ""

    @property
    def ok(self) -> bool:
        return self.state == "running"


def host_states(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    errors: Mapping[str, ToolkitError],
    inside: Mapping[str, str],
) -> list[HostState]:
    """Return the state of every host of the file.

    Args:
        errors: of the hosts that did not answer.
        inside: name and text of this toolkit's container programs.
    """
    paths: Mapping[str, DataPath] = {}
    unclear: ToolkitError | None = None
    try:
        paths = choose_paths(inventory, facts)
    except NotReady as error:
        unclear = error  # `up` will refuse it; the states of the containers are shown anyway
    states = []
    for name in inventory.names:
        if name in errors:
            what, fix = errors[name].what, errors[name].fix
            states.append(HostState(name, inventory.role(name), "unreachable", note=what, fix=fix))
            continue
        address = paths[name].address if name in paths else ""
        state = _host_state(inventory, facts[name], address, inside)
        if unclear and unclear.host == name:
            state = replace(state, note=unclear.what, fix=unclear.fix)
        states.append(state)
    return states


def _host_state(inventory: Inventory, facts: Facts, address: str, inside: Mapping[str, str]) -> HostState:
    role = inventory.role(facts.host)
    wanted = container_name(inventory.cluster, role)
    found = next((c for c in facts.containers if c.name == wanted), None)
    image = next((i.identity for i in facts.images if found and i.id == found.image), "")
    named = (i.identity for i in facts.images if listed_name(inventory.image, i.tags))
    image = image or next(named, "absent")
    version, fix = version_note(inventory.cluster, facts, inside)
    why = why_not_running(found, facts) if found else ""
    others = sum(c.labels.get(LABEL_CLUSTER) != inventory.cluster for c in facts.containers)
    if found is None:
        state = "no container"
    elif found.state == "running":
        state = "running"
    else:
        state = f"{found.state} ({found.exit_code})"
    return HostState(
        host=facts.host,
        role=role,
        state=state,
        address=address,
        image=image,
        docker=facts.docker,
        version=facts.version,
        note="; ".join(
            filter(
                None,
                (
                    why,
                    version,
                    f"the host has {counted(others, 'container')} of other clusters" if others else "",
                ),
            )
        ),
        fix=fix or ("" if state == "running" else fix_of(found, inventory.image)),
    )


def why_not_running(container: ContainerFacts, facts: Facts) -> str:
    """Return the reason why a container is not running; empty if it runs."""
    if container.state == "running":
        return ""
    if not container.started:
        return "the container never started"
    if container.started < facts.booted:
        return f"the host rebooted at {_clock(facts.booted)}, after the start of the container"
    if container.state in ("exited", "dead"):
        when = f" at {_clock(container.ended)}" if container.ended else ""
        return f"the container exited{when} with exit code {container.exit_code}"
    return f"the container is {container.state}"


def fix_of(container: ContainerFacts | None, image: str) -> str:
    """Return the fix for a missing or stopped container; ``image`` is the image in hosts.yaml."""
    return without_sshd(image) if container is not None and lacks_sshd(container) else UP


def lacks_sshd(container: ContainerFacts) -> bool:
    """Return True if a container exited because its image has no sshd: another `up` would fail, too."""
    if LABEL_CONFIG not in container.labels:  # the label of those with an sshd
        return False
    return container.state in ("exited", "dead") and container.exit_code == NOT_FOUND


def runs_already(container: Container, facts: Facts) -> str | None:
    """Return the Id of a running container with the wanted settings, None without one."""
    found = next((c for c in facts.containers if c.name == container.name), None)
    as_wanted = found and found.state == "running" and found.digest == container.digest()
    return found.id if found and as_wanted else None


def _why_start(container: Container, facts: Facts) -> str:
    """Return the reason why `up` replaces a container; empty if there is none, or if it stays."""
    found = next((c for c in facts.containers if c.name == container.name), None)
    if found is None:
        return ""
    if reason := why_not_running(found, facts):
        return reason
    if found.digest == container.digest():
        return ""
    by = found.labels.get(LABEL_VERSION, "")
    if by != dict(container.labels).get(LABEL_VERSION):
        creator = f"toolkit {by}" if by else "an older toolkit"
        return f"recreated: {creator} created the container with other settings"
    return "recreated: the container settings changed"


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


# Another user can have created a container of this name since the probe: then it stays, and the engine
# refuses a second one of the name. The container can end before its removal; then the removal fails and
# nothing is left. Status 125 as of the engine, so that the step is tried again (``ENGINE_FAILED``).
# Arguments: the container, its required owner.
REMOVE_SERVICE = r"""
owner=$(docker container inspect --format '{{index .Config.Labels "toolkit.owner"}}' "$1" 2>/dev/null)
[ "$owner" != "$2" ] || failed=$(docker rm --force "$1" 2>&1) ||
  ! docker container inspect "$1" >/dev/null 2>&1 || { printf '%s\n' "$failed" >&2; exit 125; }
shift 2
"""
# With the anonymous volumes, because no other command would find them. Those of a service can contain the
# user's data, for example of a database, so only `down` removes them.
REMOVE_OWN = REMOVE_SERVICE.replace("rm --force", "rm --force --volumes")


def lost_steps(container: Container, facts: Facts) -> tuple[Run, ...]:
    """Return the step that removes a container with lost mounts, before `up` creates them again."""
    lost = lost_mounts(container, facts)
    if not lost:
        return ()
    volumes = "" if _is_service(container) else " --volumes"
    return (
        Run(
            facts.host,
            f"remove {container.name}, because directories or files of its mounts were deleted",
            script(_removal(container), container.name, facts.user),
            unless=script('for f; do [ -e "$f" ] || exit 1; done', *lost),
            again=ENGINE_FAILED,
            fix=f"on {facts.host}: {facts.engine} rm --force{volumes} {container.name}",
        ),
    )


def _is_service(container: Container) -> bool:
    return LABEL_SERVICE in dict(container.labels)


def _removal(container: Container) -> str:
    return REMOVE_SERVICE if _is_service(container) else REMOVE_OWN


def _is_only_paused(container: Container, facts: Facts) -> bool:
    """Return True if a container with the wanted settings is paused."""
    found = next((c for c in facts.containers if c.name == container.name), None)
    return found is not None and found.state == "paused" and found.digest == container.digest()


def start_step(
    container: Container, facts: Facts, saves: str = "container", failures: tuple[Failure, ...] = ()
) -> Run:
    """Return the step that starts a container on a host, unless it runs with the wanted settings.

    Args:
        saves: the name under which its Id is saved for later steps.
        failures: failures that only this container can have.
    """
    # Not .State.Running, which is also true for a paused container.
    running = script(
        'test "$(docker inspect --format '
        '"{{.State.Status}} {{index .Config.Labels \\"toolkit.digest\\"}}" "$1")" = "running $2"',
        container.name,
        container.digest(),
    )
    # Podman has no daemon with a log.
    shows_errors = "podman info" if facts.engine == PODMAN else "sudo journalctl -u docker -n 20"
    # An existing container of this name is stopped, dead or made from another specification.
    start = script(f'{_removal(container)}exec "$@"', container.name, facts.user, *docker_run_args(container))
    paused = _is_service(container) and _is_only_paused(container, facts)
    if paused:
        start = command("docker", "unpause", container.name)
    return Run(
        facts.host,
        f"start container {container.name}",
        start,
        unless=running,
        reads=command("docker", "inspect", "--format", "{{.Id}}", container.name),
        prints=not paused,
        saves=saves,
        kind=Kind.CONTAINER_ID,
        known=runs_already(container, facts),
        again=ENGINE_FAILED,
        failures=(*failures, *start_failures(container, facts.host, facts.engine)),
        fix=f"on {facts.host}: {shows_errors}"
        "  # on your machine, toolkit render docker -o DIR writes a script that starts the container",
        why=_why_start(container, facts),
    )
