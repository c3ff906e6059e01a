"""Every module keeps the rules about folders and imports, and the checker sees each way of breaking one."""

from __future__ import annotations

import pytest

from tests.unit import layers
from tests.unit.each import for_each
from tests.unit.layers import (
    ACTING,
    ACTING_FOLDERS,
    AGAINST,
    BY_NAME,
    CIRCLES,
    LATE,
    ORDER,
    READS_WORDS,
    SHARED_NAMES,
    violations,
)

MODULES = layers.texts()


@for_each("module", MODULES)
def test_layer_rule(module: str) -> None:
    assert violations(module, MODULES[module]) == []


def test_every_folder_is_there() -> None:
    found = {layers.folder_of(module) for module in MODULES} - {""}
    assert found == {*ORDER, "container"}


def test_no_folder_has_too_many_modules() -> None:
    assert layers.crowded(MODULES) == {}
    many = [
        f"toolkit.{folder}.m{number}" for folder in ("core", "cli", "container.job") for number in range(21)
    ]
    assert layers.crowded(["toolkit.core", "toolkit.cli", *many]) == {
        "toolkit.core": 21,
        "toolkit.container.job": 21,
    }
    assert layers.crowded(many[1:21]) == {}


def test_the_lists_of_what_is_left_name_nothing_that_is_mended() -> None:
    """They may only become shorter; a name that is in a list for nothing would let it come back."""
    assert layers.against(MODULES) == AGAINST
    assert layers.circles(MODULES) == set(CIRCLES)
    assert layers.shared_names(MODULES) == SHARED_NAMES
    assert layers.acting(MODULES) == ACTING
    assert layers.reads_words(MODULES) == set(READS_WORDS)
    late = layers.late(MODULES)
    assert late == LATE.keys()
    assert layers.by_name(MODULES) == BY_NAME


@for_each(
    ("module", "text"),
    [
        ("toolkit.core.x", "from toolkit.hostsfile.inventory import Host"),
        ("toolkit.core.x", "import toolkit.plan.steps"),
        ("toolkit.errors", "from toolkit.protocol.names import MAIN"),
        ("toolkit.protocol.x", "from toolkit.core.report import Report"),
        ("toolkit.network.x", "from toolkit import cluster"),
        ("toolkit.plan.x", "class X:\n    from toolkit.cluster.layout import Layout"),
        ("toolkit.image.x", "if 1:\n    from toolkit.jobs.status import JobStatus"),
        ("toolkit.cluster.x", "from toolkit.image.on_hosts import HeldImage"),
        ("toolkit.checks.x", "from toolkit.cleanup.plan import Stray"),
        ("toolkit.api.x", "from toolkit.cli.common import say"),
        ("toolkit.api.x", "from toolkit.lab.files import claim"),
        ("toolkit.lab.x", "from toolkit.api.cluster import Cluster"),
        ("toolkit.lab.x", "from toolkit.cli import app"),
        ("toolkit.cli.x", "from toolkit.container.job import rank"),
        ("toolkit.api.x", "import toolkit.container.job.rank"),
        ("toolkit.plan.x", "from . import steps"),
        ("toolkit.plan.x", "from ..core import names"),
        ("toolkit.helpers", ""),
        ("toolkit.cli.x", "from toolkit.helpers import x"),
        ("toolkit", "from toolkit.cluster.session import Session"),
        ("toolkit.cli.x", "def f():\n    from toolkit.protocol.names import JOBS"),
        ("toolkit.remote.x", "def f():\n    def g():\n        import time"),
        ("toolkit.core.templates", "def f():\n    import json"),
        ("toolkit.cli.x", "from importlib import import_module\nimport_module('toolkit.cli.up')"),
        ("toolkit.remote.x", "import importlib\nimportlib.import_module('docker')"),
        ("toolkit.container.job.rank", "from toolkit.core.report import Report"),
        ("toolkit.container.job.rank", "def f():\n    from toolkit.container.conventions import root"),
        ("toolkit.container.job.restarts", "from toolkit.launchers import about_job"),
        ("toolkit.launchers.x", "from toolkit.core.report import Report"),
        ("toolkit.launchers.x", "from toolkit.errors import NotReady"),
        ("toolkit.container.job.rank", "import yaml"),
        ("toolkit.container.job.rank", "from .common import fail"),
        ("toolkit.container.job.rank", "def f():\n    import torch"),
        ("toolkit.container.bench.allreduce", "import torch"),
    ],
)
def test_the_checker_sees_a_wrong_import(module: str, text: str) -> None:
    assert len(violations(module, text)) == 1


@for_each(
    "text",
    [
        "if outcome.detail.startswith(PORT_TAKEN): pass",
        "if error.what == 'interrupted': pass",
        "if 'No such file' in one.seen.error: pass",
        "named = f'rank {seen.rank} ' in evidence.reason",
        "if 'denied' in str(error).lower(): pass",
        "if fix != UP: pass",
        "if result.stderr.strip().endswith((b'busy', b'gone')): pass",
        "found = re.search('rank [0-9]+', error.what)",
        "if _PATTERN.match(outcome.detail): pass",
        "if tried.errors[-1].startswith('then it'): pass",
        "match error.what:\n    case 'lost': pass",
    ],
)
def test_a_decision_on_words_is_seen(text: str) -> None:
    assert layers.reads_words({"toolkit.jobs.x": text}) == {"jobs.x"}


@for_each(
    "text",
    [
        "if outcome.cause is FailureCause.PORT_TAKEN: pass",
        "if not error.fix: pass",
        "if reason == '': pass",
        "line = f'{error.host}: {error.what}'",
        "if status.state in FINAL: pass",
        "if error.what == other.what: pass",
        "if text.startswith('['): pass",
    ],
)
def test_what_is_no_decision_on_words_is_not_taken_for_one(text: str) -> None:
    assert layers.reads_words({"toolkit.jobs.x": text}) == set()


@for_each("folder", [name for name in ORDER if name not in ACTING_FOLDERS])
@for_each(
    "text",
    [
        *(f"import {name}" for name in ("time", "random", "secrets", "os", "socket", "subprocess")),
        *(f"import {name}" for name in ("threading", "pathlib", "platform", "importlib", "requests")),
        "import os.path",
        "from pathlib import Path",
        "from pathlib import PurePosixPath, Path",
        "class X:\n    import time",
        "from datetime import datetime\nstart = datetime.now()",
        "import datetime\nday = datetime.date.today",
        "text = open('x')",
        "print('x')",
        "key = hash('x')",
        "os = __import__('os')",
    ],
)
def test_the_checker_sees_what_is_not_pure(folder: str, text: str) -> None:
    module = "toolkit.errors" if folder == "errors" else f"toolkit.{folder}.x"
    assert len(violations(module, text)) == 1


def test_the_checker_sees_a_pure_module_that_imports_one_that_acts() -> None:
    assert violations("toolkit.image.x", "from toolkit.remote.ssh import wire") == [
        "is pure and imports remote.ssh, which acts"
    ]
    assert violations("toolkit.jobs.x", "from toolkit.jobs.control import start") != []
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toolkit.jobs.control import start"
    assert violations("toolkit.jobs.x", text) == []
    assert violations("toolkit.jobs.x", "from toolkit.jobs.control import start", ["jobs.x"]) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("toolkit.core.x", "from datetime import datetime\nfrom pathlib import PurePosixPath"),
        ("toolkit.core.templates", "from pathlib import Path"),
        ("toolkit.remote.x", "import time, socket\nfrom toolkit.protocol.names import MAIN"),
        ("toolkit.core.templates", "def f():\n    import jinja2"),
        ("toolkit.lab.x", "from toolkit.remote.ssh import wire\nimport toolkit.cluster.session"),
        ("toolkit.cli.x", "from toolkit import __version__\nfrom toolkit.lab.files import claim"),
        ("toolkit.container.bench.allreduce", "def f():\n    import torch"),
        ("toolkit.container.job.rank", "import os\nfrom toolkit.container.conventions import fail"),
    ],
)
def test_the_checker_lets_pass_what_is_right(module: str, text: str) -> None:
    assert violations(module, text) == []


def test_the_checker_sees_circles_and_names_for_two_things() -> None:
    made = {
        "toolkit.jobs.a": "import toolkit.jobs.logs\nclass Point: ...",
        "toolkit.jobs.logs": "from toolkit.jobs import records\nclass _Own: ...",
        "toolkit.jobs.records": "def f():\n    import toolkit.jobs.logs\nclass Point: ...\nclass _Own: ...",
        "toolkit.container.job.rank": "class Point: ...",
    }
    assert layers.circles(made) == {frozenset(("jobs.logs", "jobs.records"))}
    assert layers.shared_names(made) == {"Point"}
    assert layers.against({"toolkit.core.x": "def f():\n    from toolkit.jobs import logs"}) == {
        ("core.x", "jobs.logs")
    }
    assert layers.acting({"toolkit.jobs.x": "import time", "toolkit.image.x": "import toolkit.jobs.x"}) == {
        "jobs.x",
        "image.x",
    }
