"""Meeting hosts that no file names yet: asks all at once what they are, and makes a better draft of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from toolkit.api import Session
from toolkit.check import first_look
from toolkit.checks import host_probes, judge
from toolkit.checks.model import Scene
from toolkit.checks.shares import SHARES, CommonShare, common_shares
from toolkit.checks.survey import PODMAN_INFO, Met, engine_of, survey
from toolkit.core.engines import DOCKER
from toolkit.core.facts import Remembered
from toolkit.core.names import LABEL_CLUSTER, LABEL_OWNER
from toolkit.errors import ToolkitError
from toolkit.network.evidence import Evidence
from toolkit.spec.draft import Draft
from toolkit.spec.draft_text import hosts_file
from toolkit.spec.inventory import Inventory
from toolkit.spec.parse import parse_inventory


@dataclass(frozen=True)
class Meeting:
    """What the hosts of a draft said.

    Args:
        met: of every host of the draft, by its name there.
        engine: docker or podman, for all of them.
        evidence: what connections between them say of the networks, where there are several.
    """

    met: Mapping[str, Met]
    scene: Scene
    engine: str = DOCKER
    evidence: Evidence = field(default_factory=Evidence)

    def owners(self, cluster: str) -> dict[str, str]:
        """Return the users who have a cluster of this name, by host."""
        return {host: user for host, name, user in self._clusters() if name == cluster}

    def strangers(self, cluster: str) -> dict[str, str]:
        """Return the other users who have a cluster of this name, by host."""
        return {host: u for host, name, u in self._clusters() if name == cluster and u != self._me(host)}

    def foreign_names(self) -> frozenset[str]:
        """Return the names of other users' clusters."""
        return frozenset(name for host, name, user in self._clusters() if user != self._me(host))

    def _me(self, host: str) -> str:
        return self.scene.facts[host].user

    def _clusters(self) -> Iterator[tuple[str, str, str]]:
        for host, facts in self.scene.facts.items():
            for labels in (container.labels for container in facts.containers):
                yield host, labels.get(LABEL_CLUSTER, ""), labels.get(LABEL_OWNER, facts.user)

    def shares(self, hosts: Collection[str]) -> tuple[CommonShare, ...]:
        """Return the file systems that these hosts have in common."""
        return common_shares([self.scene.seen[name] for name in hosts])


def inventory_of(draft: Draft) -> Inventory:
    """Return the inventory that the draft's file would give.

    Raises:
        BadInput: the file would be refused.
    """
    return parse_inventory(hosts_file(draft), "what init would write")


def meet(draft: Draft, away: Mapping[str, ToolkitError]) -> Meeting:
    """Connect to the draft's hosts at once and ask each what it is; changes nothing there.

    Where more of them have Podman than docker, they are asked once more in its words.

    Args:
        away: hosts that are known not to answer, and why; they are not tried.
    """
    meeting = _meet(inventory_of(draft), away)
    if meeting.engine != draft.engine:
        again = _meet(inventory_of(replace(draft, engine=meeting.engine)), away)
        meeting = replace(again, engine=meeting.engine)
    return meeting


def _meet(inventory: Inventory, away: Mapping[str, ToolkitError]) -> Meeting:
    questions = [(p.name, p.text) for p in (*host_probes(), SHARES, PODMAN_INFO)]
    names = [name for name in inventory.names if name not in away]
    with Session.open(inventory, names, questions=questions) as session:
        session.errors |= away
        # An `up` under the same name may have settled addresses; the file to come may have another name.
        session.facts = {n: replace(f, remembered=Remembered()) for n, f in session.facts.items()}
        scene = first_look(session)
        evidence = session.evidence if session.facts else Evidence()
    heard = {name: seen for name, seen in scene.seen.items() if seen.facts is not None}
    findings = judge(replace(scene, seen=heard), ("host",))
    return Meeting(survey(scene, findings), scene, engine_of(scene), evidence)
