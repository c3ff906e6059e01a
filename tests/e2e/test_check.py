"""Faults made for real on a practice host, and found: the right host and cause in the first line."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.e2e.world import Toolkit, sh

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Fault:
    """What is done to a host as root, what takes it back, and the check that must find it."""

    check: str
    make: str
    mend: str
    words: str
    verdict: str = "error"
    host: str = "box2"


FAULTS = (
    Fault("docker", "mv /usr/bin/docker /root/", "mv /root/docker /usr/bin/", "docker is not installed"),
    Fault("docker", "gpasswd -d trainer docker", "gpasswd -a trainer docker", "may not use docker"),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.check}-{f.words}")
def test_a_fault_is_found(two: Toolkit, fault: Fault) -> None:
    before = worst_of(two)
    assert before != "error", "healthy to begin with"
    sh(fault.host, fault.make)
    try:
        done = two.run("check", "--json")
    finally:
        sh(fault.host, fault.mend)
    found = [f for f in done.json["findings"] if f["verdict"] in ("error", "warning")]
    assert (found[0]["check"], found[0]["host"]) == (fault.check, fault.host)
    assert found[0]["verdict"] == fault.verdict and fault.words in found[0]["what"] and found[0]["fix"]
    assert done.status == (1 if fault.verdict == "error" else 0)
    assert worst_of(two) == before, "mended"


def worst_of(toolkit: Toolkit) -> str:
    return str(toolkit.run("check", "--json").json["verdict"])
