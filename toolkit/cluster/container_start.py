"""The step that makes a container be there as it is wanted, whatever stands in its place."""

from __future__ import annotations

from toolkit.cluster.container_status import runs_already, why_start
from toolkit.cluster.containers import start_failures
from toolkit.cluster.docker import docker_run_args
from toolkit.core.command import command, script
from toolkit.core.container import Container
from toolkit.core.engines import ENGINE_FAILED
from toolkit.core.facts import Facts
from toolkit.core.typed import Kind
from toolkit.plan.steps import Failure, Run

# Somebody else may have made a container of this name since the host was asked: then it stays, and ours is
# refused by its name. Arguments: the container, whose it must be.
REMOVE_OWN = r"""
owner=$(docker container inspect --format '{{index .Config.Labels "toolkit.owner"}}' "$1" 2>/dev/null)
[ "$owner" != "$2" ] || docker rm --force "$1" >/dev/null 2>&1
shift 2
"""


def start_step(
    container: Container, facts: Facts, saves: str = "container", failures: tuple[Failure, ...] = ()
) -> Run:
    """Return the step that starts a container on a host, unless it runs as it is to be.

    Args:
        saves: under which its Id is saved for later steps.
        failures: ways to fail that are this container's own.
    """
    running = script(
        'test "$(docker inspect --format '
        '"{{.State.Running}} {{index .Config.Labels \\"toolkit.digest\\"}}" "$1")" = "true $2"',
        container.name,
        container.digest(),
    )
    # What stands there under this name is stopped, dead or made from another specification.
    start = script(f'{REMOVE_OWN}exec "$@"', container.name, facts.user, *docker_run_args(container))
    return Run(
        facts.host,
        f"start container {container.name}",
        start,
        unless=running,
        reads=command("docker", "inspect", "--format", "{{.Id}}", container.name),
        saves=saves,
        kind=Kind.CONTAINER_ID,
        known=runs_already(container, facts),
        again=ENGINE_FAILED,
        failures=(*failures, *start_failures(container, facts.host)),
        fix=f"toolkit render docker -o DIR writes it as a script to try on {facts.host};"
        f" there, sudo journalctl -u docker -n 20 says more",
        why=why_start(container, facts),
    )
