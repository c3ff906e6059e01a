"""Query hosts before a hosts file exists, all at once, and complete the draft with the answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit.checks.gpu_setup import fitting_variant
from toolkit.checks.model import Scene
from toolkit.checks.preflight import first_look
from toolkit.checks.registry import host_probes, judge
from toolkit.cluster.session import Session
from toolkit.core.container import Mount
from toolkit.core.engines import DOCKER
from toolkit.core.facts import Remembered
from toolkit.core.files import refuse_file, write_file
from toolkit.core.printable import printable_line
from toolkit.errors import BadInput, NotReady, Problem, ToolkitError
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import read_some, unreadable
from toolkit.hostsfile.parse import parse_inventory
from toolkit.image.cuda import CPU_IMAGE, CudaVariant
from toolkit.init.answers import cluster_name, free_name
from toolkit.init.draft import Draft, DraftHost, faults_between, hosts_file, named, read_host
from toolkit.init.filling import choice_of, filled, image_for
from toolkit.init.hostfile import parse_hostfile
from toolkit.init.shares import SHARES, CommonShare, common_shares
from toolkit.init.survey import PODMAN_INFO, SurveyedHost, engine_of, summarize
from toolkit.network.choose import Choice, Evidence
from toolkit.protocol.host_list import host_list
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER


@dataclass(frozen=True)
class Survey:
    """The answers of the hosts of a draft.

    Args:
        hosts: every host of the draft, by its name in the draft.
        engine: docker or podman, for all of them.
        evidence: results of connections between the hosts, if they share several networks.
    """

    hosts: Mapping[str, SurveyedHost]
    scene: Scene
    engine: str = DOCKER
    evidence: Evidence = field(default_factory=Evidence)

    def owners(self, cluster: str) -> dict[str, str]:
        """Return the users who have a cluster of this name, by host."""
        return {host: user for host, name, user in self._clusters() if name == cluster}

    def other_owners(self, cluster: str) -> dict[str, str]:
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

    def cuda_variant(self, hosts: Collection[str]) -> CudaVariant | None:
        """Return the CUDA variant of the GPU image that fits these hosts, None if no variant does."""
        seen = {name: one for name, one in self.scene.seen.items() if name in hosts}
        return fitting_variant(replace(self.scene, seen=seen))

    def shares(self, hosts: Collection[str]) -> tuple[CommonShare, ...]:
        """Return the file systems that these hosts have in common."""
        return common_shares([self.scene.seen[name] for name in hosts])


def inventory_of(draft: Draft) -> Inventory:
    """Return the inventory that the draft's file would give.

    Raises:
        BadInput: the file would be refused.
    """
    return parse_inventory(hosts_file(draft), "the draft of toolkit init")


def survey_hosts(draft: Draft, away: Mapping[str, ToolkitError]) -> Survey:
    """Connect to the draft's hosts at once and query each; change nothing on the hosts.

    If more hosts have Podman than Docker, toolkit queries the hosts again with Podman commands.

    Args:
        away: hosts that are known not to answer, and why; they are not tried.
    """
    survey = _survey(inventory_of(draft), away)
    if survey.engine != draft.engine:
        again = _survey(inventory_of(replace(draft, engine=survey.engine)), away)
        survey = replace(again, engine=survey.engine)
    return survey


def _survey(inventory: Inventory, away: Mapping[str, ToolkitError]) -> Survey:
    questions = [(p.name, p.text) for p in (*host_probes(), SHARES, PODMAN_INFO)]
    names = [name for name in inventory.names if name not in away]
    with Session.open(inventory, names, questions=questions) as session:
        session.errors |= away
        # An earlier `up` with the same name can have set addresses; the new file can have another name.
        session.facts = {n: replace(f, remembered=Remembered()) for n, f in session.facts.items()}
        scene = first_look(session)
        evidence = session.try_networks() if session.facts else Evidence()
    answered = {name: seen for name, seen in scene.seen.items() if seen.facts is not None}
    findings = judge(replace(scene, seen=answered), ("host",))
    return Survey(summarize(scene, findings), scene, engine_of(scene), evidence)


def leave_out(draft: Draft, survey: Survey, hosts: Collection[str]) -> Draft:
    """Return the draft without these hosts, with the reasons as notes."""
    # Named before any is removed: those that stay keep their names.
    all_ = named(draft.hosts)
    why = tuple((h.address, survey.hosts[h.name].what) for h in all_ if h.name in hosts)
    return replace(draft, hosts=tuple(h for h in all_ if h.name not in hosts), left_out=why)


def fill(
    draft: Draft, survey: Survey, cluster: str, image: str, mounts: tuple[Mount, ...]
) -> tuple[Draft, Choice]:
    """Return the draft with the facts about its hosts and their data addresses.

    Args:
        cluster: its name; image: empty for the one that the GPUs ask for.
        mounts: file systems of all hosts that ranks are to see.

    Raises:
        NotReady: another user has a cluster of that name there.
    """
    for host, owner in survey.other_owners(cluster).items():
        what = f"a cluster named {cluster} of user {printable_line(owner)} already exists on the host"
        raise NotReady(what, "run the same command again with a different --cluster NAME", host)
    surveyed = survey.hosts
    usable = [surveyed[host.name] for host in named(draft.hosts) if surveyed[host.name].usable]
    choice = choice_of(draft, survey.scene, surveyed, survey.evidence)
    draft = replace(
        draft,
        cluster=cluster,
        image=image or image_for(usable, survey.cuda_variant([one.host for one in usable])),
        mounts=mounts,
        engine=survey.engine,
    )
    return filled(draft, surveyed, choice), choice


def first_file(
    hosts: Sequence[str],
    path: str | Path,
    cluster: str = "",
    image: str = "",
    user: str = "",
    replace_it: bool = False,
) -> Path:
    """Try hosts and write the first hosts file for those that can be used, without a question.

    Args:
        hosts: as ``[NAME=][USER@]ADDRESS[:SLOTS]``.
        cluster: its name; after the file or its folder by default.
        image: by the GPUs by default.
        user: of hosts that name none.
        replace_it: write over a file that is there.

    Raises:
        BadInput: a host is not written so, or the file cannot be written; no host was contacted.
        ToolkitError: none of the hosts can be used; or another user has a cluster of that name there.
    """
    refuse_file(path, replace_it)
    draft = Draft(cluster or "demo", image or CPU_IMAGE, _drafted(hosts, user))
    survey = survey_hosts(draft, {})
    lost = [name for name, one in survey.hosts.items() if not one.usable]
    if len(lost) == len(survey.hosts):
        reasons: dict[str, list[str]] = {}
        for name in lost:
            reasons.setdefault(survey.hosts[name].what, []).append(name)
        each = "; ".join(f"{host_list(names)}: {what}" for what, names in reasons.items())
        raise ToolkitError(f"no host can be used: {each}", survey.hosts[lost[0]].fix)
    draft = leave_out(draft, survey, lost)
    shares = survey.shares([host.name for host in draft.hosts])
    name = cluster or free_name(
        cluster_name(Path(path).stem, Path(path).absolute().parent.name), survey.foreign_names()
    )
    draft, _ = fill(draft, survey, name, image, tuple(share.mount for share in shares))
    return write_file(path, hosts_file(draft), replace=replace_it)


def _drafted(hosts: Sequence[str], user: str) -> tuple[DraftHost, ...]:
    found, problems = [], []
    for word in hosts:
        try:
            found.append(read_host(word))
        except ValueError as error:
            problems.append(Problem(word, str(error)))
    problems += [Problem(hosts[index], what) for index, what in faults_between(found) if not problems]
    if not hosts:
        problems.append(Problem("", "the list contains no host"))
    if problems:
        raise BadInput("hosts", tuple(problems))
    return tuple(replace(host, user=host.user or user) for host in found)


def read_hostfile(path: str) -> tuple[DraftHost, ...]:
    """Return the hosts of an Open MPI hostfile.

    Raises:
        BadInput: it cannot be read, or something in it is wrong.
    """
    try:
        data = read_some(path)
    except (OSError, ValueError) as error:
        raise BadInput(path, (unreadable(error),)) from error
    return parse_hostfile(data, path)
