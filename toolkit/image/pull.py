"""What comes before `up` where the hosts fetch the image themselves: `docker pull` on each that should."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.core.command import Command, script
from toolkit.core.facts import Facts
from toolkit.core.image import image_arch
from toolkit.errors import ImageError
from toolkit.hostsfile.inventory import Inventory
from toolkit.plan.steps import Failure, Phase, Plan, PullImage

# How engines of both image stores word it, what it means, what to do on the host; the first that fits counts.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"no basic auth credentials|unauthorized|authentication required|access denied|denied: |Forbidden",
        "the registry does not let the host's user have it",
        "is it the right name? Else on {host}: docker login {registry}",
    ),
    (
        r"no matching manifest|no match for platform",
        "the registry has it, but not for the host's processor",
        "build and push it for that processor, or take {host} out of the hosts file",
    ),
    (
        r"toomanyrequests|Too Many Requests",
        "the registry gives no more for now",
        "on {host}: docker login {registry}",
    ),
    (
        r"no space left on device",
        "the host's disk is full",
        "on {host}: docker system df, docker image prune",
    ),
    (
        r"HTTP response to HTTPS client|not look like a TLS handshake|x509:|certificate",
        "the host's engine does not trust the registry's connection",
        "on {host}: the registry's CA in /etc/docker/certs.d/{registry}/ca.crt, or insecure-registries in"
        " /etc/docker/daemon.json",
    ),
    (
        r"dial tcp|no such host|connection refused|timeout|deadline exceeded|unreachable|EOF",
        "the host does not reach the registry",
        "name, network, proxy or firewall of {host}; with pull: never the image is sent from this machine",
    ),
    (
        r"manifest unknown|no such manifest|not found|name unknown|does not exist",
        "the registry has no such image",
        "correct image: in the hosts file, or push it",
    ),
)


# Asks the registry for the image's manifest, as a pull does first, and fetches nothing else. Without a
# verified certificate only if the engine is configured so: the request carries the password of the login.
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
        or (missing and not any(inventory.image in image.tags for image in f.images))
    )


def ask_registry(image: str) -> Command:
    """Return the command by which a host asks the image's registry whether the image can be pulled."""
    return script(_ASK, image, registry_of(image), _INSECURE)


def plan_pull(inventory: Inventory, facts: Mapping[str, Facts]) -> Plan:
    """Return the plan by which hosts pull the image; without steps where none should.

    Which image that is nobody knows before: after it the hosts are asked anew, and must all hold the same.

    Raises:
        ImageError: the hosts have different processors, so no image can be the same on all.
    """
    tag = inventory.image
    asked = pulling(inventory, facts)
    arches = {image_arch(f.arch): f.host for f in facts.values()}
    if asked and len(arches) > 1:
        who = ", ".join(f"{f.host} is {image_arch(f.arch)}" for f in facts.values())
        fix = "take the hosts of one kind out of the hosts file"
        raise ImageError(f"the hosts have different processors, and a cluster has one image: {who}", fix)
    steps = tuple(PullImage(f.host, f"pull {tag}", tag, pull_failures(f.host, tag)) for f in asked)
    return Plan(f"pull {tag}", (Phase("pull", steps),) if steps else ())


def registry_of(image: str) -> str:
    """Return the registry's host and port; by docker's rule the first part, if it can be one, or the Hub."""
    first, slash, _ = image.partition("/")
    return first if slash and (first == "localhost" or set(first) & {".", ":"}) else "docker.io"


def pull_failures(host: str, image: str) -> tuple[Failure, ...]:
    """Return the ways in which a host fails to pull an image."""
    about = {"host": host, "registry": registry_of(image)}
    return tuple(Failure(says, what, fix.format(**about)) for says, what, fix in _FAILURES)
