"""What comes before `up` where the hosts fetch the image themselves: `docker pull` on each that should."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.core.facts import Facts
from toolkit.core.image import image_arch
from toolkit.errors import ImageError
from toolkit.plan.steps import Failure, Phase, Plan, PullImage
from toolkit.spec.inventory import Inventory

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
        r"manifest unknown|not found|name unknown|does not exist",
        "the registry has no such image",
        "correct image: in the hosts file, or push it",
    ),
)


def plan_pull(inventory: Inventory, facts: Mapping[str, Facts]) -> Plan:
    """Return the plan by which hosts pull the image; without steps where none should.

    Which image that is nobody knows before: after it the hosts are asked anew, and must all hold the same.

    Raises:
        ImageError: the hosts have different processors, so no image can be the same on all.
    """
    tag = inventory.image
    pulling = [
        f
        for f in facts.values()
        if inventory.pull == "always"
        or (inventory.pull == "missing" and not any(tag in image.tags for image in f.images))
    ]
    arches = {image_arch(f.arch): f.host for f in facts.values()}
    if pulling and len(arches) > 1:
        who = ", ".join(f"{f.host} is {image_arch(f.arch)}" for f in facts.values())
        fix = "take the hosts of one kind out of the hosts file"
        raise ImageError(f"the hosts have different processors, and a cluster has one image: {who}", fix)
    steps = tuple(PullImage(f.host, f"pull {tag}", tag, _failures(f.host, tag)) for f in pulling)
    return Plan(f"pull {tag}", (Phase("pull", steps),) if steps else ())


def registry_of(image: str) -> str:
    """Return the registry's host and port; by docker's rule the first part, if it can be one, or the Hub."""
    first, slash, _ = image.partition("/")
    return first if slash and (first == "localhost" or set(first) & {".", ":"}) else "docker.io"


def _failures(host: str, image: str) -> tuple[Failure, ...]:
    about = {"host": host, "registry": registry_of(image)}
    return tuple(Failure(says, what, fix.format(**about)) for says, what, fix in _FAILURES)
