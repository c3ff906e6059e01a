"""The kinds of step that bring something to a host, start something on it, or bring something home.

A part of ``toolkit.plan.steps``, from which others import them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from toolkit.core.code import CodeTree
from toolkit.plan.failure import Failure
from toolkit.protocol.shards import Content


@dataclass(frozen=True)
class SendImage:
    """Bring an image from this machine's engine to a host: the layers that the host lacks.

    Args:
        reference: the tag under which this machine's engine knows it.
        identity: what the host must hold afterwards (see ``toolkit.core.image``).
        image: its Id in this machine's engine, which stays when the tag is moved; empty for unknown.
        address: of the host on the data network, at which other hosts can give it what they got.
        mbit: what its link carries at most, in Mbit/s; 0 for unknown.
        cluster: whose mark the processes carry that the transfer needs on the host.
    """

    host: str
    title: str
    reference: str
    identity: str
    image: str = ""
    address: str = ""
    mbit: float = 0.0
    cluster: str = ""


@dataclass(frozen=True)
class PullImage:
    """Let a host pull an image from its registry, as the ssh user and with that user's own login.

    Nothing was done when the engine has the same image under this name afterwards as before.

    Args:
        reference: the image's name.
        failures: as in ``Run``.
    """

    host: str
    title: str
    reference: str
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class SendCode:
    """Make a job's folder on a host: the job file, and a snapshot of a local folder as ``code``.

    Args:
        container: through which it is written, so that it belongs to the user that ranks run as.
        target: the job's folder inside the container.
        source: local folder; empty for none.
        tree: what of it goes (see ``toolkit.jobs.code``).
        job: the job file's text, without the job's variables.
    """

    host: str
    title: str
    container: str
    target: str
    source: str
    tree: CodeTree
    job: str = field(repr=False)


@dataclass(frozen=True)
class StartJob:
    """Start a job's supervisor in a container, where it goes on by itself.

    Args:
        container: main's, or any host's where each has a part of the job.
        job: the job's id; its folder is there.
        variables: of its ranks, for the supervisor's memory alone: in no repr and on no command line.
    """

    host: str
    title: str
    container: str
    job: str
    variables: str = field(default="", repr=False)


@dataclass(frozen=True)
class StartDaemons:
    """Start on other hosts what a job's launcher asks for, each under a supervisor of its own.

    Args:
        container: main's, in which the launcher runs.
        job: the job's id; its folder is there, and on the others.
        others: hosts and their containers.
        variables: for each of these hosts, as in ``StartJob``.
    """

    host: str
    title: str
    container: str
    job: str
    others: tuple[tuple[str, str], ...]
    variables: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class SendData:
    """Stage a data set to a folder of a host: what it lacks comes, then what is no longer wanted goes.

    Args:
        source: folder or file on this machine.
        content: what it holds, as the plan was made for.
        path: the folder on the host, made if it is not there.
        account: the folder that says what was written to ``path``; only the ssh user can read or write it.
        image: in whose container the host's part runs where the host has no Python.
        user: the ssh user there, as ``uid:gid``.
        address, mbit, cluster: as in ``SendImage``.
    """

    host: str
    title: str
    source: str
    content: Content
    path: str
    account: str
    image: str
    user: str
    address: str = ""
    mbit: float = 0.0
    cluster: str = ""


@dataclass(frozen=True)
class RemoveData:
    """Remove from a folder of a host what ``SendData`` wrote there, and nothing else.

    Args:
        account, image, user, cluster: as in ``SendData``.
        keep: leave the folder itself: a container sees it, and would not see another one in its place.
    """

    host: str
    title: str
    path: str
    account: str
    image: str
    user: str
    keep: bool = False
    cluster: str = ""


@dataclass(frozen=True)
class Fetch:
    """Bring jobs' records, logs and what they wrote to a local folder.

    Args:
        inside: the words of ``docker`` in front of a command that sees the jobs as the container does.
    """

    host: str
    title: str
    inside: tuple[str, ...]
    into: str
