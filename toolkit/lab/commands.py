"""Docker commands that create a practice cluster, with the reasons for their options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from toolkit.core.command import Command
from toolkit.lab.spec import ENGINES, LabSpec, rate_bits
from toolkit.lab.topology import (
    LABEL_LAB,
    LABEL_LAB_FOLDER,
    LABEL_LAB_HOST,
    LABEL_LAB_IMAGE,
    LABEL_LAB_SETTINGS,
    Card,
    LabHost,
    Means,
    host_settings,
)

CGROUP_ROOT = "toolkit-lab"
IMAGE = "toolkit-lab-host"  # name of the images of practice hosts
HOST_PROGRAM = "/usr/local/sbin/toolkit-lab-host"


def image_reference(engine: str, recipe: bytes) -> str:
    """Return the host image's tag; ``recipe`` is the content of the files it is built from."""
    kind = ENGINES[engine]
    subject = json.dumps([kind.suite, kind.packages]).encode() + recipe
    return f"{IMAGE}:{kind.suite}-{hashlib.sha256(subject).hexdigest()[:12]}"


def build_command(engine: str, reference: str, folder: str, proxies: Iterable[str] = ()) -> Command:
    """Return the command that builds the host image from the recipe in ``folder``.

    Args:
        proxies: names of environment variables for the build; the command line does not contain their values.
    """
    kind = ENGINES[engine]
    passed = tuple(token for name in proxies for token in ("--build-arg", name))
    return Command(
        (
            "docker", "build",
            "--network=host",  # a mirror or proxy can listen only on addresses of this machine
            "--build-arg", f"BASE_IMAGE={kind.base}",
            "--build-arg", f"PACKAGES={' '.join(kind.packages)}",
            *passed,
            "--label", f"{LABEL_LAB_IMAGE}={kind.suite}",
            "--tag", reference,
            "--file", f"{folder}/Dockerfile.host",
            folder,
        )
    )  # fmt: skip


def network_command(spec: LabSpec, name: str, subnet: str) -> Command:
    """Return the command that creates one of the lab's networks."""
    # Not --internal: the engine would drop packets of other networks, such as link-local ones.
    cable = ("--opt", "com.docker.network.driver.mtu=9000")
    return Command(
        (
            "docker", "network", "create",
            *_labels(spec),
            *(cable if name in spec.cable_networks else ()),
            # From its own pool Docker could assign 172.17.0.0/16, which every host's docker0 also uses.
            "--subnet", subnet,
            name,
        )
    )  # fmt: skip


def volume_commands(spec: LabSpec, host: LabHost) -> tuple[Command, ...]:
    """Return the commands that create a host's volumes; docker does not change existing ones."""
    return tuple(Command(("docker", "volume", "create", *_labels(spec), name)) for name, _ in host.volumes)


def start_commands(spec: LabSpec, host: LabHost, means: Means, image: str) -> tuple[Command, ...]:
    """Return the command lines that create a host and start it with all its network interfaces."""
    kind = ENGINES[host.engine]
    env = {
        "TOOLKIT_LAB_CARDS": " ".join(map(_card, host.cards)),
        "TOOLKIT_LAB_CGROUP": "" if means.private_cgroups else f"/{CGROUP_ROOT}/{spec.name}/{host.name}",
        "TOOLKIT_LAB_STORE": kind.store,
        "TOOLKIT_LAB_USER": spec.user,
    }
    create = Command(
        (
            "docker", "create",
            "--name", host.container,
            "--hostname", host.name,
            *_labels(spec),
            "--label", f"{LABEL_LAB_HOST}={host.name}",
            "--label", f"{LABEL_LAB_SETTINGS}={host_settings(spec, host)}",
            "--network", host.cards[0].network,
            "--ip", host.cards[0].address,
            "--init",  # reaps the orphaned processes of the engine inside
            "--tmpfs", "/run",  # empty after a restart, as after a boot: no stale sockets and pid files
            "--stop-timeout", "30",  # the engine inside ends its own containers first
            *_privileges(means),
            *(token for name, path in host.volumes for token in ("--volume", f"{name}:{path}")),
            *(token for key, value in env.items() for token in ("--env", f"{key}={value}")),
            image,
        )
    )  # fmt: skip
    more = (
        Command(("docker", "network", "connect", "--ip", card.address, card.network, host.container))
        for card in host.cards[1:]
    )
    # Attach all cards before the start, as in a real host; `docker run` accepts only one network.
    return (create, *more, Command(("docker", "start", host.container)))


def _card(card: Card) -> str:
    """Return address, name, rate, bucket and prefix of a card in the format of host.sh."""
    rate = (card.rate, str(_burst(card.rate))) if card.rate else ("", "")
    prefix = (str(card.prefix),) if card.prefix else ()
    return ",".join((card.address, card.interface, *rate, *prefix))


def ready_command(host: LabHost, seconds: int, public_key: str) -> Command:
    """Return the command that waits for a host, authorizes the key, and prints its engine and host key."""
    argv = ("docker", "exec", "--interactive", host.container, HOST_PROGRAM, "ready", str(seconds))
    return Command(argv, public_key.encode())


def report_command(container: str) -> Command:
    """Return the command that prints a host's engine version and image store."""
    return Command(("docker", "exec", container, HOST_PROGRAM, "report"))


def _labels(spec: LabSpec) -> tuple[str, ...]:
    return ("--label", f"{LABEL_LAB}={spec.name}", "--label", f"{LABEL_LAB_FOLDER}={spec.folder}")


def _privileges(means: Means) -> tuple[str, ...]:
    rights: tuple[str, ...] = ("--privileged",)
    if not means.privileged:
        # The rights of --privileged without the one capability that is missing in small virtual machines.
        rights = ("--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE")
        for option in ("seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"):
            rights = (*rights, "--security-opt", option)
    if means.private_cgroups:
        return (*rights, "--cgroupns=private")
    return (*rights, "--cgroupns=host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw")


def _burst(rate: str) -> int:
    """Return tbf's bucket in bytes: 10 ms of the rate; with less, the timer tick limits fast links."""
    return max(64 * 1024, rate_bits(rate) // 8 // 100)


def sweep_command(name: str, helper: str, image: str) -> Command:
    """Return the command that removes the cgroups of a lab in a container, without root on this machine.

    Args:
        helper: name of the container.
    """
    text = (
        'for top in /sys/fs/cgroup /sys/fs/cgroup/*; do [ -d "$top/$1" ] || continue; '
        # Killed processes keep their cgroup busy for a moment.
        'for _ in 1 2 3 4 5 6 7 8 9 10; do find "$top/$1/$2" -depth -type d -exec rmdir {} + 2>/dev/null; '
        '[ -d "$top/$1/$2" ] || break; sleep 0.3; done; '
        '[ ! -d "$top/$1/$2" ] || { echo "the control group $top/$1/$2 is in use" >&2; exit 1; }; '
        'rmdir "$top/$1" 2>/dev/null; done; exit 0'
    )
    return Command(
        (
            "docker", "run", "--rm", "--network", "none", "--cgroupns=host",
            "--name", helper, "--label", f"{LABEL_LAB}={name}",
            "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw",
            "--entrypoint", "sh", image, "-c", text, "sh", CGROUP_ROOT, name,
        )
    )  # fmt: skip


def try_privileged_command(spec: LabSpec, helper: str, image: str) -> Command:
    """Return the command that succeeds if the engine can start privileged containers.

    Args:
        helper: name of the container.
    """
    return Command(
        (
            "docker", "run", "--rm", "--network", "none", "--privileged",
            "--name", helper, *_labels(spec), "--entrypoint", "true", image,
        )
    )  # fmt: skip
