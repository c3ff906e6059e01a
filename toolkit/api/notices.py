"""Notices: reports of a command before its plan runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from toolkit.core.finding import Finding


class Topic(Enum):
    """The subject of a notice."""

    ENVIRONMENT = "variables that ranks would get"
    CHANGES = "keys of hosts.yaml that changed since up"
    VERSION = "hosts on which a newer toolkit created the cluster"
    LAUNCHER = "choice of the launcher"
    CODE = "files that are not sent"
    JOB = "problems of the job"
    HOSTS = "problems of the hosts"
    TRANSPORT = "choice of the transport"
    PULL = "hosts that pull the image first"
    ENDING = "a running job that toolkit stops first"


@dataclass(frozen=True)
class Notice:
    """Findings or a text about one topic."""

    topic: Topic
    findings: tuple[Finding, ...] = ()
    text: str = ""
