"""The layout: hosts file and facts combined; every other value is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from toolkit.cluster.gpus import share_gpus
from toolkit.cluster.ownership import ours, refuse_foreign
from toolkit.cluster.ports import worker_port
from toolkit.core.facts import Facts
from toolkit.core.image import LATE_FIX, ImageFacts, image_arch, listed_name, missing_fix, unsendable
from toolkit.errors import ImageError, NotReady, ToolkitError, together
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import DataPath, Evidence, absent, choose_paths, cidrs
from toolkit.network.fabric import choose_fabric
from toolkit.network.settings import Setting, all_settings
from toolkit.protocol.names import container_user, identity_reference

# The fix for hosts with different images, by the file's ``pull``.
_SAME = {
    "never": "toolkit image send  # after you build or load the image on your machine",
    "missing": "in hosts.yaml: set pull: always, or set image: to a name with @sha256:…",
    "always": "run the same command again, or in hosts.yaml: set image: to a name with @sha256:…"
    "  # the tag might have moved during the pull",
}


@dataclass(frozen=True)
class Place:
    """One host with all information about it.

    Args:
        slots: the number of ranks that it can run.
        gpus: the GPUs of the container, as indexes or UUIDs.
        user: the user name inside the container.
    """

    name: str
    role: str
    facts: Facts
    path: DataPath
    slots: int
    gpus: tuple[str, ...]
    user: str

    @property
    def state(self) -> str:
        """The toolkit's folder for this cluster on this host."""
        return self.facts.state_dir


@dataclass(frozen=True)
class Layout:
    """The wanted state of a cluster.

    Args:
        places: hosts that answered and can take part, in the file's order.
        paths: data paths, also of hosts that did not answer but whose address is in the file. The files of a
            host can have other addresses of such hosts, see ``kept``.
        user: the one user name inside all containers. While main does not answer, each host keeps its own,
            and a host without one gets the name of the others.
        port: the port of sshd in worker containers; 0 without sshd.
        image: the image that every host must have.
        refused: errors of hosts that answered but cannot take part.
    """

    inventory: Inventory
    places: tuple[Place, ...]
    paths: tuple[DataPath, ...]
    user: str
    port: int
    image: ImageFacts
    refused: tuple[NotReady, ...] = ()

    @property
    def reference(self) -> str:
        """The image's reference on every host, made from its content digest."""
        return identity_reference(self.image.identity)

    def place(self, name: str) -> Place | None:
        """Return a host's place, None if it did not answer or was refused."""
        return next((p for p in self.places if p.name == name), None)

    def has_sshd(self, place: Place) -> bool:
        """Return True if an sshd of the cluster runs in this host's container."""
        return bool(self.port) and place.name != self.inventory.main

    def kept(self, place: Place) -> tuple[tuple[str, str], ...]:
        """Return the addresses in this host's files of hosts that did not answer, as (host, address).

        They are unchanged, and used only for the files of this host. ``data_address`` takes precedence.
        """
        return tuple(pair for pair in place.facts.remembered.addresses if pair[0] in self._unsettled)

    @cached_property
    def _unsettled(self) -> frozenset[str]:
        """Hosts that did not answer and have no ``data_address``."""
        answered = {path.host for path in self.paths if path.interface}
        hosts = self.inventory.hosts
        return frozenset(h.name for h in hosts if h.name not in answered and not h.data_address)

    def paths_with(self, kept: tuple[tuple[str, str], ...]) -> tuple[DataPath, ...]:
        """Return the data paths for the files of a host that keeps these addresses; see ``kept``."""
        paths = {path.host: path for path in self.paths}
        paths |= {name: absent(name, address) for name, address in kept}
        return tuple(paths[name] for name in self.inventory.names if name in paths)

    @cached_property
    def settings(self) -> dict[str, tuple[Setting, ...]]:
        """The network settings of the ranks of each host."""
        facts = {p.name: p.facts for p in self.places}
        paths = {p.host: p for p in self.paths}
        fabric = choose_fabric(self.inventory.network, facts, paths)
        return all_settings(paths, cidrs(paths), fabric, facts)

    @property
    def main(self) -> Place | None:
        """Main's place, None as for any host."""
        return self.place(self.inventory.main)

    @property
    def workers(self) -> tuple[Place, ...]:
        return tuple(p for p in self.places if p.name != self.inventory.main)


@dataclass(frozen=True)
class Observed:
    """The input of a layout; ``Session.observe`` returns it.

    Args:
        facts: of the hosts that answered; at least one.
        local_image: the image in this machine's engine, None if it has none or was not queried.
        by_name: use the hosts' image of the file's name, even while they run another image.
        evidence: results of connections between the hosts, if the choice of addresses depends on them.
        lost_ports: see ``worker_port``.
        running: use the running cluster: it is not up if no host has the image or a container.
        errors: of the hosts that did not answer.
        local_silence: the reason why it is unknown if this machine has the image.
    """

    facts: Mapping[str, Facts]
    local_image: ImageFacts | None = None
    by_name: bool = False
    evidence: Evidence = field(default_factory=Evidence)
    lost_ports: frozenset[int] = frozenset()
    running: bool = False
    errors: Mapping[str, ToolkitError] = field(default_factory=dict)
    local_silence: str = ""


def make_layout(inventory: Inventory, observed: Observed) -> Layout:
    """Return the layout.

    Raises:
        NotReady: a host has no data address, the port is taken, the cluster name belongs to another user,
            no host has the GPUs of the file, or the cluster is not up.
        ImageError: no host has the image, or hosts have different images and this machine has none.
    """
    facts = observed.facts
    paths = choose_paths(inventory, facts, observed.evidence)
    for f in facts.values():
        refuse_foreign(inventory.cluster, f)
    image = _image(inventory, observed)
    _refuse_other_processors(image, inventory.image, facts)
    given, refused = share_gpus(inventory, facts)
    kept = {name: f.remembered.user for name, f in facts.items() if inventory.main not in facts}
    # "root" as in ``_user``.
    remembered = set(kept.values()) - {"", "root"}
    user = remembered.pop() if len(remembered) == 1 else _user(inventory, facts)
    places = tuple(
        Place(
            h.name,
            inventory.role(h.name),
            facts[h.name],
            paths[h.name],
            slots,
            gpus,
            kept.get(h.name) or user,
        )
        for h in inventory.hosts
        if h.name in given
        for gpus in [given[h.name]]
        for slots in [(len(gpus) or 1) if h.slots is None else h.slots]
    )
    return Layout(
        inventory=inventory,
        places=places,
        paths=tuple(paths[n] for n in inventory.names if n in paths),
        user=user,
        port=worker_port(inventory, facts, paths, observed.lost_ports),
        image=image,
        refused=refused,
    )


def _image(inventory: Inventory, observed: Observed) -> ImageFacts:
    try:
        return reference_image(
            inventory, observed.facts, observed.local_image, observed.by_name, observed.local_silence
        )
    except ImageError as error:
        own = (c for facts in observed.facts.values() for c in ours(inventory.cluster, facts))
        if not observed.running or any(own):
            raise
        # This machine was not queried and possibly has the image.
        raise NotReady("the cluster is not up", "toolkit up") from error


def _refuse_other_processors(image: ImageFacts, name: str, facts: Mapping[str, Facts]) -> None:
    """Refuse hosts whose processor the image is not made for, before anything is sent.

    Raises:
        ImageError: names all such hosts.
    """
    others = [f for f in facts.values() if image.arch and image_arch(f.arch) != image.arch]
    if others:
        who = ", ".join(f"{f.host} is {image_arch(f.arch)}" for f in others)
        fix = (
            "in hosts.yaml: keep only hosts of one architecture, "
            "and set image: to an image for this architecture"
        )
        raise ImageError(f"the image {name} is for {image.arch}, but {who}", fix, others[0].host)


def refuse_unsendable(layout: Layout, observed: Observed) -> Layout:
    """Refuse hosts without the image if hosts pull nothing and this machine has no image to send.

    Raises:
        NotReady: no host is left.
    """
    inventory, image = layout.inventory, layout.image
    if inventory.pull != "never" or observed.local_image is not None:
        return layout
    places: list[Place] = []
    refused: list[NotReady] = []
    for place in layout.places:
        if any(held.identity == image.identity for held in place.facts.images):
            places.append(place)
        else:
            about = (inventory.image, place.name, place.facts.engine, observed.local_silence)
            refused.append(NotReady(*unsendable(*about), place.name))
    if refused and not places:
        raise together(refused)
    return replace(layout, places=tuple(places), refused=(*layout.refused, *refused))


def _user(inventory: Inventory, facts: Mapping[str, Facts]) -> str:
    # The user of main, if it is not root: "root" must be the name of uid 0, any other name can belong to it.
    order = sorted((n for n in inventory.names if n in facts), key=lambda n: n != inventory.main)
    return next((container_user(facts[n].user) for n in order if facts[n].uid), "root")


def reference_image(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    local: ImageFacts | None,
    by_name: bool,
    silence: str = "",
) -> ImageFacts:
    """Return the image that every host must hold.

    Args:
        local: the image of the file's name in this machine's engine; None to ignore it.
        by_name: use the hosts' image of that name, not the image of running containers.
        silence: the reason why it is unknown if this machine has the image.

    Raises:
        ImageError: no host has the image, or hosts have different images.
    """
    if local is not None:
        return local
    tag = inventory.image
    running = {
        i.identity: i
        for f in facts.values()
        for c in ours(inventory.cluster, f)
        for i in f.images
        if c.state == "running" and i.id == c.image
    }
    # If Podman has an image with this name below localhost/ and another below docker.io/, the former counts.
    found = {
        name: i
        for name, f in facts.items()
        for i in sorted(f.images, key=lambda i: tag in i.tags)
        if listed_name(tag, i.tags)
    }
    if len(running) == 1 and not (by_name and found):
        return next(iter(running.values()))
    identities = {i.identity for i in found.values()}
    if not identities:
        if inventory.pull != "never":
            raise ImageError(
                f"no host that answered has the image {tag}", "toolkit up  # the hosts pull the image"
            )
        if silence:
            raise ImageError(f"no host that answered has the image {tag}, and {silence}", LATE_FIX)
        what = f"neither your machine nor any host that answered has the image {tag}"
        raise ImageError(what, missing_fix(tag))
    if len(identities) > 1:
        who = ", ".join(f"{name} has {i.identity}" for name, i in sorted(found.items()))
        what = f"the hosts have different images with the tag {tag}: {who}"
        if silence:
            raise ImageError(f"{silence}, and {what}", LATE_FIX)
        raise ImageError(what, _SAME[inventory.pull])
    return found.get(inventory.main) or next(iter(found.values()))
