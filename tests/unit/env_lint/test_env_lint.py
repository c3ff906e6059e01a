"""Environment lint: tutorials' settings are named, good ones pass, and no secret is repeated."""

from __future__ import annotations

import json
import random
import re
import string
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import toolkit.cluster.session
import toolkit.env_lint
from tests.unit import cluster_world as world
from tests.unit.conftest import handlers_kept
from tests.unit.each import for_each
from tests.unit.env_cases import FAULTS, GOOD, GOOD_FOR_ONE_HOST
from tests.unit.hosts_here import FakePrepared
from toolkit.cli import app, common, plans
from toolkit.core.finding import Finding
from toolkit.env_lint.lint import _LATER, _NOTES, lint_environment, lint_inventory, lint_nccl
from toolkit.env_lint.values import _KINDS, c_number, judge_value
from toolkit.env_lint.variables import Variable, every_table, nearest, table_of
from toolkit.errors import NotReady
from toolkit.jobs.request import Request, environment_findings, nccl_findings
from toolkit.network.settings import usual_variables

TABLES = every_table()
NAMES = [(table, variable) for table in TABLES.values() for variable in table.variables.values()]
FILES = sorted((Path(toolkit.env_lint.__file__).parent / "tables").iterdir())


def pairs(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in text.split())]


def lint(text: str, host: str = "") -> tuple[Finding, ...]:
    return lint_environment(pairs(text), f"hosts/{host}/env/" if host else "env/", host)


@for_each(("text", "name", "verdict", "says"), FAULTS)
def test_a_setting_without_effect_is_reported(text: str, name: str, verdict: str, says: str) -> None:
    found = [f for f in lint(text, "gpu1") if f.subject == f"hosts/gpu1/env/{name}"]
    assert found, lint(text)
    assert any(f.verdict == verdict and says in f"{f.what}; {f.fix}" for f in found), found
    assert all(f.check == "environment" and f.what and f.fix and f.host == "gpu1" for f in found)


@for_each("text", GOOD)
def test_a_good_setting_passes(text: str) -> None:
    assert lint(text) == ()


@for_each("text", GOOD_FOR_ONE_HOST)
def test_a_good_setting_of_one_host_passes(text: str) -> None:
    assert lint(text, "gpu1") == ()


def test_both_lists_have_enough_cases() -> None:
    assert len(FAULTS) >= 60
    assert len(GOOD) + len(GOOD_FOR_ONE_HOST) >= 60


@pytest.mark.parametrize("name", sorted(usual_variables()))
def test_a_variable_per_host_is_not_set_for_all_hosts(name: str) -> None:
    value = usual_variables()[name].lower()
    (found,) = lint_environment([(name, value)], "env/")
    assert (found.verdict, found.host, found.subject) == ("warning", "", f"env/{name}")
    assert f"on all hosts, {name} replaces" in found.what and "hosts/NAME/env" in found.fix
    assert lint_environment([(name, value)], "hosts/gpu1/env/", "gpu1") == ()


# The tables


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_table_names_its_source(path: Path) -> None:
    head = path.read_text().split("\nlibrary ")[0]
    assert "Source: " in head and re.search(r"Read on \d{4}-\d\d-\d\d", head)
    assert re.search(r"https://|ucx_info|ompi_info", head)
    assert path.stem in TABLES


def test_every_name_of_the_tables_is_known() -> None:
    assert len(NAMES) > 1800
    for _, variable in NAMES:
        found = lint_environment([(variable.name, "")], "env/")
        assert not any("reads no variable" in f.what for f in found if variable.kind != "unread")
        other = table_of(variable.name)
        assert other is not None and other.variables[variable.name] == variable, variable


def test_every_kind_of_the_tables_is_understood() -> None:
    for _, variable in NAMES:
        kinds = (*_KINDS, *_NOTES, _LATER)
        assert kinds.count(variable.kind) == 1, variable
        assert variable.kind != _LATER or re.fullmatch(r"\d+\.\d+", variable.words[0]), variable
        if variable.kind in ("number", "whole") and variable.words:
            low, dots, high = variable.words[0].partition("..")
            assert dots and (not high or int(low) < int(high)), variable


def test_every_word_that_a_table_allows_passes() -> None:
    for _, variable in NAMES:
        if variable.kind in ("knows", "exactly", "only", "tokens", "per-function", "mca-level"):
            assert [w for w in variable.words if judge_value(variable, w)] == [], variable


def test_the_advice_of_a_table_names_known_variables() -> None:
    """A recommended name must itself have an effect."""
    advised = [
        (variable.name, name)
        for _, variable in NAMES
        if variable.kind in _NOTES and variable.kind != "build"
        for name in re.findall(
            r"\b(?:NCCL|TORCH|GLOO|HOROVOD|OMPI_MCA|UCX|OFI_NCCL|FI)_\w+", " ".join(variable.words)
        )
    ]
    assert len(advised) > 40
    for old, new in advised:
        table = table_of(new)
        assert table and new in table.variables, (old, new)
        assert table.variables[new].kind not in _NOTES, (old, new)


def test_a_table_is_read_only_for_its_own_names() -> None:
    """A job without variables of these libraries reads no table."""
    text = (
        "from toolkit.env_lint import variables as v, lint\n"
        "lint.lint_environment([('HF_HOME', '/x'), ('WANDB_MODE', 'x')], 'env/')\n"
        "none = v._read.cache_info().currsize\n"
        "lint.lint_environment([('HOROVOD_AUTOTUNE', '1')], 'env/')\n"
        "print(none, v._read.cache_info().currsize)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


@for_each(
    ("name", "near"),
    [
        ("NCCL_BUFF_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_SOCKET_NTHREAD", "NCCL_SOCKET_NTHREADS"),
        ("NCCL_IB_GIDINDEX", "NCCL_IB_GID_INDEX"),
        ("NCCL_DESYNC", ""),
        ("NCCL_RESULTS_FOLDER", ""),
        ("HOROVOD_HIERARCHICAL_ALL_REDUCE", "HOROVOD_HIERARCHICAL_ALLREDUCE"),
        ("HOROVOD_JOB", ""),
        ("UCX_NETDEVICES", "UCX_NET_DEVICES"),
        ("GLOO_SOCKET_IF_NAME", "GLOO_SOCKET_IFNAME"),
    ],
)
def test_the_nearest_name(name: str, near: str) -> None:
    table = table_of(name)
    assert table is not None
    assert nearest(name, table) == near


# Values


@for_each(
    ("text", "number"),
    [
        ("12", 12),
        (" 7", 7),
        ("-1", -1),
        ("0x10", 16),
        ("010", 8),
        ("089", 89),
        ("4M", 4),
        ("true", 0),
        ("", 0),
        ("1e3", 1),
        ("9" * 5000, int("9" * 40)),
    ],
)
def test_numbers_as_c_reads_them(text: str, number: int) -> None:
    assert c_number(text) == number


def test_no_value_of_an_unknown_or_free_variable_is_repeated() -> None:
    secret = "hunter2,hunter3"
    free = [v.name for _, v in NAMES if v.kind == "text" or v.kind in _NOTES]
    unknown = ["NCCL_TOKEN", "HOROVOD_PASSWORD", "UCX_SECRET_KEY", "OMPI_MCA_token", "GLOO_API_KEY", "OTHER"]
    for name in [*free, *unknown]:
        for found in lint_environment([(name, secret)], "env/"):
            assert "hunter" not in f"{found}", found


@for_each(
    "text",
    [
        "FI_PROVIDER=hunter2 FI_EFA_USE_DEVICE_RDMA=1",
        "NCCL_NET=Socket NCCL_NET_PLUGIN=hunter2",
        "OMPI_MCA_btl_tcp_if_exclude=hunter2",
        "HOROVOD_AUTOTUNE_LOG=hunter2",
        "HOROVOD_TIMELINE=hunter2",
    ],
)
def test_a_rule_about_a_free_variable_does_not_repeat_its_value(text: str) -> None:
    findings = lint_environment(pairs(text), "env/")
    assert findings and "hunter" not in f"{findings}"


def test_no_value_raises_an_error() -> None:
    dice = random.Random(7)
    values = ["", " ", ",", "^", "=", "^=", ";", ":", "a;", ":b;c", "-", "0x", "1..2", "٣", "\n", "9" * 5000]
    names = [v.name for _, v in NAMES]
    for _ in range(3000):
        env = {
            dice.choice(names): dice.choice(values)
            if dice.random() < 0.5
            else "".join(dice.choices(string.printable, k=dice.randrange(12)))
            for _ in range(dice.randrange(1, 6))
        }
        assert all(f.what and f.fix for f in lint_environment(list(env.items()), "env/"))


# All variables of a cluster


TWO = """
cluster: demo
image: toolkit:gpu
env: {NCCL_IB_DISABLE: "1", NCCL_DEBUG: TRACE, TOKEN: hunter2}
hosts:
  gpu1: {}
  gpu2: {env: {NCCL_IB_HCA: mlx5_0, NCCL_TIMEOUT: "9"}}
"""


def places(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(f.host, f.subject) for f in findings]


def test_each_finding_is_reported_once_at_its_place() -> None:
    findings = lint_inventory(world.inventory(TWO))
    assert places(findings) == [
        ("", "env/NCCL_DEBUG"),
        ("gpu2", "hosts/gpu2/env/NCCL_TIMEOUT"),
        # A shared variable contradicts a variable of one host, so the finding belongs to that host.
        ("gpu2", "env/NCCL_IB_DISABLE"),
    ]


def test_overridden_variables_are_not_checked() -> None:
    override = (("NCCL_DEBUG", "WARN"), ("NCCL_IB_DISABLE", "0"), ("NCCL_NRINGS", "4"))
    assert places(lint_inventory(world.inventory(TWO), override)) == [
        ("", "--env NCCL_NRINGS"),
        ("gpu2", "hosts/gpu2/env/NCCL_TIMEOUT"),
    ]
    only = lint_inventory(world.inventory(TWO), override, ("gpu1",))
    assert places(only) == [("", "--env NCCL_NRINGS")]


def test_findings_of_a_request_cover_its_hosts_errors_first() -> None:
    request = Request(("true",), env=(("OMPI_MCA_btl", "tcp"),), exclude=("gpu2",))
    found = environment_findings(world.inventory(TWO), request)
    assert [(f.verdict, f.subject) for f in found] == [
        ("error", "--env OMPI_MCA_btl"),
        ("warning", "env/NCCL_DEBUG"),
    ]


LATER = """
cluster: demo
image: vendor/pytorch:1
env: {NCCL_IB_OOO_RQ: "1", NCCL_IB_TIMEOUT: "20"}
hosts:
  gpu1: {}
  gpu2: {env: {NCCL_RMA_DISABLE: "1"}}
"""


@for_each(
    ("nccl", "hosts"),
    [
        ("2.29.7", ["", "gpu2"]),
        ("2.29.7-1", ["", "gpu2"]),
        ("2.3.7", ["", "gpu2"]),  # numbers, not text
        ("2.30.3", []),
        ("2.31", []),
        *((text, []) for text in ("", "unknown", "9" * 5000, "9" * 5000 + ".1")),  # unknown versions
    ],
)
def test_variables_of_newer_releases_are_compared_with_the_nccl_of_the_image(
    nccl: str, hosts: list[str]
) -> None:
    inventory = world.inventory(LATER)
    assert lint_inventory(inventory) == ()
    found = lint_nccl(inventory, nccl)
    assert [f.host for f in found] == hosts
    for finding in found:
        assert finding.what.startswith("only NCCL 2.30 or newer reads NCCL_")
        assert finding.what.endswith(f", but the image has NCCL {nccl.partition('-')[0]}")
    image = replace(world.IMAGE, env=(("NCCL_VERSION", nccl),) if nccl else ())
    request = Request(("true",), env=(("NCCL_IB_OOO_RQ", "0"),), exclude=("gpu2",))
    subjects = [f.subject for f in nccl_findings(inventory, request, image)]
    assert subjects == (["--env NCCL_IB_OOO_RQ"] if hosts else [])


def test_no_message_names_a_version_that_the_image_can_differ_in() -> None:
    for table in TABLES.values():
        assert not re.search(r"\d", table.library), table.library


def test_a_variable_by_its_table() -> None:
    table = table_of("NCCL_IB_TIMEOUT")
    assert table is not None
    assert table.variables["NCCL_IB_TIMEOUT"] == Variable("NCCL_IB_TIMEOUT", "number", ("1..22",), "NCCL")
    assert table_of("PATH") is None


# The command line


def test_warnings_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    findings = lint("NCCL_TIMEOUT=1800")
    common.warn(findings)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("warning: env/NCCL_TIMEOUT: no library in toolkit's images reads")
    assert "\n  fix: set the time limit of PyTorch with" in output.err
    (warning,) = common.as_warnings(findings)["warnings"]
    assert warning["check"] == "environment" and warning["subject"] == "env/NCCL_TIMEOUT"


@pytest.mark.parametrize(
    ("words", "subjects"),
    [
        (("up",), ["env/NCCL_DEBUG", "gpu2: hosts/gpu2/env/NCCL_TIMEOUT", "gpu2: env/NCCL_IB_DISABLE"]),
        (("run", "--only", "gpu1", "true"), ["env/NCCL_DEBUG"]),
        (
            ("run", "--env", "NCCL_DEBUG=WARN", "--env", "NCCL_NRINGS=4", "--only", "gpu1", "true"),
            ["--env NCCL_NRINGS"],
        ),
        (("run", "--env", "NCCL_DEBUG=WARN", "--only", "gpu1", "true"), []),
    ],
)
def test_up_and_run_warn_once_before_they_contact_a_host(
    words: tuple[str, ...],
    subjects: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def contacted(*args: object, **kwargs: object) -> None:
        print("CONTACTED", file=sys.stderr)
        raise NotReady("no host is queried in this test", "none")

    (tmp_path / "hosts.yaml").write_text(TWO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toolkit.cluster.session.Session, "open", contacted)
    monkeypatch.setattr(sys, "argv", ["toolkit", *words])
    with handlers_kept(), pytest.raises(SystemExit) as end:
        app.main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (3, "")
    before, _, after = err.partition("CONTACTED")
    assert re.findall(r"^warning: ((?:gpu2: )?[^:]*): ", before, re.MULTILINE) == subjects
    assert "warning: " not in after and "hunter2" not in err


def test_the_json_of_up_has_the_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    prepared, findings = FakePrepared(world.plans()["up"]), lint("NCCL_TIMEOUT=1800")
    for dry_run in (True, False):
        plans.carry_out(prepared, dry_run, True, False, warnings=findings)
        (warning,) = json.loads(capsys.readouterr().out)["warnings"]
        assert warning["subject"] == "env/NCCL_TIMEOUT"
    plans.carry_out(prepared, False, True, False)
    assert "warnings" not in json.loads(capsys.readouterr().out)


def test_a_dry_run_prints_the_open_steps_if_they_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    prepared = FakePrepared(world.plans()["up"])
    (step,) = prepared.to_do()
    plans.carry_out(prepared, True, False, False, to_do=prepared.to_do)
    assert f"1 of {len(prepared.plan.steps)} steps would run now:\n  {step.host}: {step.title}" in (
        capsys.readouterr().err
    )
    plans.carry_out(prepared, True, False, False)
    assert "to do" not in capsys.readouterr().err
    plans.carry_out(prepared, True, True, False, to_do=prepared.to_do)
    out, err = capsys.readouterr()
    assert json.loads(out)["to_do"] == [{"host": step.host, "step": step.title}] and err == ""
