"""Every check on recorded answers: each of its verdicts has a case, and the healthy cluster raises none."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checks.cases import CASES as HOST_CASES
from tests.unit.checks.cases_network import NETWORK_CASES
from tests.unit.checks.net_scenes import with_inside
from tests.unit.checks.recorded import place, places
from tests.unit.checks.scenes import Case, scene
from tests.unit.each import for_each
from toolkit.checks.machine import clock_offset
from toolkit.checks.model import Check
from toolkit.checks.registry import CHECKS, STAGES, host_probes, judge
from toolkit.core.finding import Finding, alarms, findings_text, graver_first, worst

CASES = (*HOST_CASES, *NETWORK_CASES)
_SAYS = {"error": "error(", "warning": "warning(", "not checked": "unchecked("}


@for_each("case", CASES, ids=lambda c: f"{c.check}-{c.verdict}-{c.words}")
def test_a_case_has_the_expected_finding(case: Case) -> None:
    (check,) = (c for c in CHECKS if c.id == case.check)
    found = [f for f in check.judged(case.scene) if f.host == (case.host if check.host else f.host)]
    assert worst(found) == case.verdict, found
    (finding, *_) = (f for f in found if f.verdict == case.verdict)
    assert case.words in finding.what and case.fix in finding.fix
    assert finding.fix or finding.verdict in ("ok", "not checked"), "an error or warning has a fix"
    # The others' outcomes are intact.
    assert check.whole or {f.host for f in check.judged(case.scene)} == set(case.scene.facts)


def test_words_of_hosts_are_quoted_in_fixes() -> None:
    folder = "/data/x; reboot"
    base = scene()
    mounts = tuple(replace(mount, source=folder) for mount in base.inventory.mounts[:1])
    said = (
        places(mounts=place("mount", folder, kind="")),
        places(mounts=place("mount", folder, kind="") + "broken\n"),
        places(mounts=f"at|mount|{folder}\n").removesuffix("looked\n"),
        places(mounts=place("mount", folder, may="")),
        places(mounts=place("mount", folder, may="rx")),
        places(mounts=place("mount", folder, on="ext4|/dev/sdb|ro")),
        places(mounts=place("mount", folder, free=0)),
        places(mounts=place("mount", folder, inodes_free=9)),
        places(mounts=place("mount", folder, more="link|a|/else; reboot/x\n")),
    )
    fixes = set()
    for text in said:
        there = scene(places=text)
        changed = replace(there, inventory=replace(there.inventory, mounts=mounts))
        fixes |= {one.fix for one in judge(changed, ("host",)) if one.subject == folder and one.fix}
    state = scene(marks="state||$(reboot)|gpu2\nlooked\n")
    fixes |= {one.fix for one in judge(state, ("host",)) if one.check == "left-state" and one.fix}
    assert len(fixes) > 5
    for fix in fixes:
        bare = re.sub("' ?/[^']*'", "", fix)
        assert "reboot" in fix and "reboot" not in bare, fix


@for_each("check", CHECKS, ids=lambda c: c.id)
def test_every_verdict_of_a_check_has_a_case(check: Check) -> None:
    judge_ = check.host or check.whole
    assert judge_ is not None and not (check.host and check.whole)
    text = inspect.getsource(judge_)
    verdicts = {"ok"} | {verdict for verdict, call in _SAYS.items() if call in text}
    assert verdicts <= {case.verdict for case in CASES if case.check == check.id}


def test_the_page_has_a_row_for_every_check_with_its_verdicts() -> None:
    text = Path("docs/reference/checks.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line[:3] == "| `"]
    told = {row[0].strip("|` "): row for row in rows}
    assert set(told) == {check.id for check in CHECKS}
    for name, row in told.items():
        verdicts = {case.verdict for case in CASES if case.check == name} - {"ok"}
        assert set(row[2].split(", ")) - {"ok"} == verdicts, name


def test_ids_are_unique_and_probes_of_one_name_are_one() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    probes = [probe for check in CHECKS for probe in check.probes]
    assert len({probe.name for probe in probes}) == len(set(probes))
    assert all(probe.text for probe in host_probes())


def test_a_healthy_cluster_raises_no_alarm() -> None:
    findings = tuple(judge(scene(), STAGES))
    assert worst(findings) in ("ok", "not checked"), [f for f in findings if f.verdict != "ok"]


@pytest.mark.parametrize(
    "host_says",
    [{"may": "rx"}, {"on": "ext4|/dev/sdb|ro"}, {"may": "x"}],
    ids=["no write permission", "read-only", "not readable"],
)
def test_a_mount_that_cannot_be_used_has_one_finding_in_up_and_in_check(host_says: dict[str, str]) -> None:
    mounts = place("mount", "/data/digits") + place("mount", "/scratch/out", **host_says)
    there = scene(places=places(mounts=mounts))
    both = with_inside(there, "gpu2", mounts={"/out": "write: Permission denied"})
    (before_up,) = alarms(judge(both, ("host",)))
    assert alarms(judge(both, STAGES)) == (before_up,) and before_up.subject == "/scratch/out"


def test_a_mount_finding_from_a_container_has_the_same_severity_and_fix() -> None:
    mounts = place("mount", "/data/digits") + place("mount", "/scratch/out", may="rx")
    (by_host,) = alarms(judge(scene(places=places(mounts=mounts)), STAGES))
    only_inside = with_inside(scene(), "gpu2", mounts={"/out": "write: Permission denied"})
    (by_container,) = alarms(judge(only_inside, STAGES))
    assert (by_container.verdict, by_container.fix) == (by_host.verdict, by_host.fix)
    assert "sudo chown alice /scratch/out" in by_host.fix and "/scratch/out:/out:ro" in by_host.fix


@pytest.mark.parametrize(
    ("launcher", "lacks", "fixes"),
    [
        ("horovodrun", "/usr/sbin/sshd", ("set transport: exec and launcher: mpirun in hosts.yaml,",)),
        ("mpirun", "ssh", ("set transport: exec in hosts.yaml,",)),
        (
            "horovodrun",
            "ssh mpirun horovodrun",
            (
                "transport: exec and launcher: torchrun in hosts.yaml,",
                "in hosts.yaml: set launcher: torchrun  # or",
            ),
        ),
        (
            "mpirun",
            "/usr/sbin/sshd ssh mpirun horovodrun torchrun",
            (
                "transport: exec and launcher: python in hosts.yaml,",
                "in hosts.yaml: set launcher: python  # or",
            ),
        ),
    ],
)
def test_an_image_without_a_tool_has_a_fix_that_this_image_can_meet(
    launcher: str, lacks: str, fixes: tuple[str, ...]
) -> None:
    base = scene()
    base = replace(base, inventory=replace(base.inventory, launcher=launcher, transport="ssh"))
    found = alarms(judge(with_inside(base, "gpu2", lacks=lacks.split()), STAGES))
    assert {finding.verdict for finding in found} == {"error"} and len(found) == len(fixes)
    for finding, fix in zip(found, fixes, strict=True):
        build = "--onto toolkit:cpu" if finding.subject == "transport" else "--flavor gpu"
        assert fix in finding.fix and f"toolkit image build {build}" in finding.fix


def test_an_image_without_sshd_is_no_fault_if_the_transport_is_chosen() -> None:
    base = scene()
    base = replace(base, inventory=replace(base.inventory, launcher="torchrun"))
    without = with_inside(base, "gpu2", lacks=["/usr/sbin/sshd"])
    assert alarms(judge(without, STAGES)) == ()
    needs_ssh = replace(without, inventory=replace(base.inventory, launcher="horovodrun"))
    (found,) = alarms(judge(needs_ssh, STAGES))
    assert (found.verdict, found.subject) == ("error", "launcher")
    assert "transport is exec" in found.what and "launcher: mpirun" in found.fix


def test_needs_of_another_transport_or_launcher_are_no_finding() -> None:
    lacks = ["/usr/sbin/sshd", "ssh", "mpirun", "horovodrun", "python:ray"]
    bare = with_inside(scene(), "gpu2", lacks=lacks)
    exec_ = replace(bare.inventory, transport="exec", launcher="torchrun")
    alone = replace(bare.inventory, hosts=bare.inventory.hosts[:1], launcher="torchrun")
    automatic = replace(bare.inventory, transport="exec", launcher="auto")
    for inventory in (exec_, alone, automatic):
        (check,) = (check for check in CHECKS if check.id == "in-programs")
        assert alarms(check.judged(replace(bare, inventory=inventory))) == ()


@pytest.mark.parametrize("ahead", [-100.0, -0.5, 0.0, 3600.0])
def test_the_clock_offset_allows_for_an_asymmetric_delay(ahead: float) -> None:
    # 0.1 s there, 0.5 s of work, 0.3 s back.
    offset, doubt = clock_offset(1000.0, 1000.9, str(1000.1 + ahead), str(1000.6 + ahead))
    assert offset is not None
    assert abs(offset - ahead) <= doubt + 1e-6 and doubt == pytest.approx(0.2)


def test_printed_findings_merge_equal_ones_and_count_the_rest() -> None:
    fix = "on {}: sudo usermod -aG docker alice  # then log in again"
    findings = [
        Finding("clock", "ok", "clocks agree", "", "a"),
        *(Finding("docker", "error", "no permission", fix.format(h), h) for h in ("a", "b")),
        Finding("mtu", "warning", "MTU 9000 here, 1500 on a", "ip link", "b", "eth0"),
        Finding("xid", "not checked", "dmesg may not be read", "", "b"),
    ]
    text = findings_text(graver_first(findings), ["a", "b"])
    assert "ERROR  a, b: no permission  [docker]" in text and text.count("usermod") == 1
    assert "on a, b: sudo" in text and "eth0: MTU" in text and "dmesg" not in text
    assert text.endswith("not ready; -v lists the skipped checks and their reasons\n")
    assert "dmesg" in findings_text(findings, ["a", "b"], everything=True)


# Many hosts


class Tries(dict[Any, Any]):
    """Results of connections, and the number of searches in all of them."""

    searches = 0

    def items(self) -> Any:
        self.searches += 1
        return super().items()


def test_results_of_connections_are_searched_once_and_not_for_each_pair_of_hosts() -> None:
    base = scene()
    tries = Tries(
        {
            (source, path.address, port): "open"
            for source in base.facts
            for target, path in base.paths.items()
            if source != target
            for port in (12345, 29500)
        }
    )
    tried = replace(base, evidence=replace(base.evidence, tries=tries), inside={})
    assert not [f for f in judge(tried, STAGES) if f.verdict == "error" and f.host]
    assert tries.searches == 1
    assert tried.facts is tried.facts  # judges of pairs of hosts read it for each pair
