"""Every module keeps the rules about folders and imports, and the checker sees each way of breaking one."""

from __future__ import annotations

import pytest

from tests.unit import layers
from tests.unit.each import for_each
from tests.unit.layers import ACTING, ACTING_FOLDERS, AGAINST, CIRCLES, ORDER, SHARED_NAMES, violations

MODULES = layers.texts()


@for_each("module", MODULES)
def test_layer_rule(module: str) -> None:
    assert violations(module, MODULES[module]) == []


def test_every_folder_is_there() -> None:
    found = {layers.folder_of(module) for module in MODULES} - {""}
    assert found == {*ORDER, "inside"}


def test_the_lists_of_what_is_left_name_nothing_that_is_mended() -> None:
    """They may only become shorter; a name that is in a list for nothing would let it come back."""
    assert layers.against(MODULES) == AGAINST
    assert layers.circles(MODULES) == set(CIRCLES)
    assert layers.shared_names(MODULES) == SHARED_NAMES
    assert layers.acting(MODULES) == ACTING


@for_each(
    ("module", "text"),
    [
        ("toolkit.core.x", "from toolkit.hostsfile.inventory import Host"),
        ("toolkit.core.x", "import toolkit.plan.steps"),
        ("toolkit.errors", "from toolkit.core.names import MAIN"),
        ("toolkit.protocol.x", "from toolkit.core.names import MAIN"),
        ("toolkit.network.x", "from toolkit import cluster"),
        ("toolkit.plan.x", "def f():\n    from toolkit.cluster.layout import Layout"),
        ("toolkit.image.x", "if 1:\n    from toolkit.jobs.status import JobStatus"),
        ("toolkit.cluster.x", "from toolkit.image.inventory import HeldImage"),
        ("toolkit.checks.x", "from toolkit.cleanup.plan import Stray"),
        ("toolkit.api.x", "from toolkit.cli.common import say"),
        ("toolkit.api.x", "from toolkit.lab.files import claim"),
        ("toolkit.lab.x", "from toolkit.api.cluster import Cluster"),
        ("toolkit.lab.x", "from toolkit.cli import app"),
        ("toolkit.cli.x", "from toolkit.inside import rank"),
        ("toolkit.api.x", "import toolkit.inside.rank"),
        ("toolkit.plan.x", "from . import steps"),
        ("toolkit.plan.x", "from ..core import names"),
        ("toolkit.helpers", ""),
        ("toolkit.cli.x", "from toolkit.helpers import x"),
        ("toolkit", "from toolkit.cluster.session import Session"),
        ("toolkit.inside.rank", "from toolkit.core.names import JOBS"),
        ("toolkit.inside.rank", "import yaml"),
        ("toolkit.inside.rank", "from .common import fail"),
        ("toolkit.inside.rank", "def f():\n    import torch"),
        ("toolkit.inside.allreduce", "import torch"),
    ],
)
def test_the_checker_sees_a_wrong_import(module: str, text: str) -> None:
    assert len(violations(module, text)) == 1


@for_each("folder", [name for name in ORDER if name not in ACTING_FOLDERS])
@for_each(
    "text",
    [
        *(f"import {name}" for name in ("time", "random", "secrets", "os", "socket", "subprocess")),
        *(f"import {name}" for name in ("threading", "pathlib", "platform", "importlib", "requests")),
        "import os.path",
        "from pathlib import Path",
        "from pathlib import PurePosixPath, Path",
        "def f():\n    import time",
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
        ("toolkit.remote.x", "import time, socket\nfrom toolkit.core.names import MAIN"),
        ("toolkit.lab.x", "from toolkit.remote.ssh import wire\nimport toolkit.cluster.session"),
        ("toolkit.cli.x", "from toolkit import __version__\nfrom toolkit.lab.files import claim"),
        ("toolkit.inside.allreduce", "def f():\n    import torch"),
        ("toolkit.inside.rank", "import os\nfrom common import fail"),
    ],
)
def test_the_checker_lets_pass_what_is_right(module: str, text: str) -> None:
    assert violations(module, text) == []


def test_the_checker_sees_circles_and_names_for_two_things() -> None:
    made = {
        "toolkit.jobs.a": "import toolkit.jobs.logs\nclass Point: ...",
        "toolkit.jobs.logs": "from toolkit.jobs import records\nclass _Own: ...",
        "toolkit.jobs.records": "def f():\n    import toolkit.jobs.logs\nclass Point: ...\nclass _Own: ...",
        "toolkit.inside.rank": "class Point: ...",
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
