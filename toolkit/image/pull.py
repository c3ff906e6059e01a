"""Image pull before `up`: `docker pull` on each host that fetches the image from a registry."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.core.command import Command, script
from toolkit.core.engines import DOCKER, PODMAN
from toolkit.core.facts import Facts
from toolkit.core.image import image_arch, listed_name, pull_name, registry_of
from toolkit.errors import ImageError
from toolkit.hostsfile.inventory import Inventory
from toolkit.plan.steps import Failure, Phase, Plan, PullImage

# Error texts of engines with either image store, their meaning, and the fix; the first match counts.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"no basic auth credentials|unauthorized|authentication required|access denied|denied: |Forbidden",
        "the registry denies the SSH user access to the image",
        "on {host}: {engine} login {registry}  # or set image: in hosts.yaml to the correct image name",
    ),
    (
        r"no matching manifest|no match for platform",
        "the registry has the image, but not for the processor architecture of the host",
        "build and push an image for the architecture of {host}, or remove {host} from hosts.yaml",
    ),
    (
        r"toomanyrequests|Too Many Requests",
        "the rate limit of the registry is exceeded",
        "on {host}: {engine} login {registry}  # can raise the limit; or wait, and run the command again",
    ),
    (
        r"no space left on device",
        "the disk of the host is full",
        "on {host}: {engine} system df; {engine} image prune  # then run the same command again",
    ),
    (
        r"HTTP response to HTTPS client|not look like a TLS handshake|x509:|certificate",
        "the container engine of the host does not trust the certificate of the registry, or the registry "
        "uses HTTP",
        "on {host}: install the CA certificate of the registry as {certificates}/{registry}/ca.crt  # if "
        "the registry uses HTTP: {insecure}",
    ),
    (
        r"dial tcp|no such host|connection refused|timeout|deadline exceeded|unreachable|EOF",
        "the host cannot reach the registry",
        "check the registry name in hosts.yaml, and the network, proxy and firewall of {host}  # or in "
        "hosts.yaml: set image: {{name: {image}, pull: never}}, so that your machine sends the image",
    ),
    (
        r"manifest unknown|no such manifest|not found|name unknown|does not exist",
        "the registry does not contain the image",
        "in hosts.yaml: set image: to an image that the registry contains  # or push the image to the "
        "registry",
    ),
)


# Where each engine finds certificates of registries, and its setting for registries without one.
_SETTINGS = {
    DOCKER: {
        "certificates": "/etc/docker/certs.d",
        "insecure": "add the registry to insecure-registries in /etc/docker/daemon.json, and run "
        "sudo systemctl reload docker",
    },
    PODMAN: {
        "certificates": "/etc/containers/certs.d",
        "insecure": "set insecure = true for the registry in /etc/containers/registries.conf",
    },
}


# Requests the image's manifest from the registry, the first step of a pull, and fetches nothing else.
# Unverified certificates are accepted only if the engine is configured so: the request contains the login
# password.
_ASK = """
said=$(timeout 15 docker manifest inspect "$1" 2>&1 >/dev/null </dev/null) && exit
if timeout 15 docker info --format "$3" 2>/dev/null </dev/null | grep -qxF -- "$2"; then
    timeout 15 docker manifest inspect --insecure "$1" >/dev/null 2>&1 </dev/null && exit
fi
printf '%s\n' "$said" >&2
exit 1
"""
_INSECURE = (
    "{{range $name, $about := .RegistryConfig.IndexConfigs}}"
    "{{if not $about.Secure}}{{println $name}}{{end}}{{end}}"
)


def pulling(inventory: Inventory, facts: Mapping[str, Facts]) -> tuple[Facts, ...]:
    """Return the hosts that pull the image at the next `up`."""
    missing = inventory.pull == "missing"
    return tuple(
        f
        for f in facts.values()
        if inventory.pull == "always"
        or (missing and not any(listed_name(inventory.image, image.tags) for image in f.images))
    )


def ask_registry(image: str) -> Command:
    """Return the command by which a host checks that it can pull the image from its registry.

    Args:
        image: of ``pull_name``.
    """
    return script(_ASK, image, registry_of(image), _INSECURE)


def plan_pull(inventory: Inventory, facts: Mapping[str, Facts]) -> Plan:
    """Return the plan by which hosts pull the image; without steps if no host needs to.

    The content of the image is unknown before the pull. Afterwards the hosts are probed again, and all of
    them must have the same image.

    Raises:
        ImageError: the hosts have different processors, so they cannot all have the same image.
    """
    tag = pull_name(inventory.image, inventory.engine)
    to_pull = pulling(inventory, facts)
    arches = {image_arch(f.arch): f.host for f in facts.values()}
    if to_pull and len(arches) > 1:
        who = ", ".join(f"{f.host} is {image_arch(f.arch)}" for f in facts.values())
        fix = "in hosts.yaml: keep only hosts with the same processor architecture"
        what = f"the hosts have different processor architectures ({who}), but a cluster has only one image"
        raise ImageError(what, fix)
    steps = tuple(
        PullImage(f.host, f"pull {tag}", tag, pull_failures(f.host, tag, inventory.engine)) for f in to_pull
    )
    return Plan(f"pull {tag}", (Phase("pull", steps),) if steps else ())


def pull_failures(host: str, image: str, engine: str = DOCKER) -> tuple[Failure, ...]:
    """Return the known failures of an image pull on a host."""
    about = {"host": host, "image": image, "registry": registry_of(image), "engine": engine}
    about |= _SETTINGS[engine]
    return tuple(Failure(says, what, fix.format(**about)) for says, what, fix in _FAILURES)
