"""Every module keeps the layer rule, and the checker sees each way of breaking it."""

from __future__ import annotations

from pathlib import Path

import pytest

import toolkit
from tests.unit.each import for_each
from tests.unit.layers import BELONGS, ORDER, PURE, layer_of, violations

PACKAGE = Path(toolkit.__file__).parent


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py")) if "_data" not in path.parts}


@for_each("module", MODULES)
def test_layer_rule(module: str) -> None:
    assert violations(module, MODULES[module].read_text(encoding="utf-8")) == []


def test_every_layer_is_there() -> None:
    found = {layer_of(module) for module in MODULES} - {""}
    assert found == {*ORDER, "effects", "inside"}
    assert all(f"toolkit.{name}" in MODULES for name in BELONGS)


@for_each(
    ("module", "text"),
    [
        ("toolkit.core.x", "from toolkit.spec.inventory import Host"),
        ("toolkit.core.x", "import toolkit.plan.steps"),
        ("toolkit.errors", "from toolkit.core.names import MAIN"),
        ("toolkit.network.x", "from toolkit import plan"),
        ("toolkit.plan.x", "from toolkit.show import plan_text"),
        ("toolkit.plan.x", "def f():\n    from toolkit.execute import execute"),
        ("toolkit.show", "if 1:\n    from toolkit.executors import EXECUTORS"),
        ("toolkit.plan.x", "from toolkit.effects.ssh import wire"),
        ("toolkit.show", "import toolkit.effects"),
        ("toolkit.effects.x", "from toolkit.spec.inventory import Host"),
        ("toolkit.effects.x", "from toolkit.plan.steps import Plan"),
        ("toolkit.executors", "from toolkit.jobs import start"),
        ("toolkit.execute", "from toolkit.api import Session"),
        ("toolkit.jobs", "from toolkit.lab.files import claim"),
        ("toolkit.api", "from toolkit.cli.common import say"),
        ("toolkit.lab.x", "from toolkit.cli import app"),
        ("toolkit.cli.x", "from toolkit.inside import rank"),
        ("toolkit.api", "import toolkit.inside.rank"),
        ("toolkit.plan.x", "from . import steps"),
        ("toolkit.plan.x", "from ..effects import ssh"),
        ("toolkit.helpers", ""),
        ("toolkit.cli.x", "from toolkit.helpers import x"),
        ("toolkit", "from toolkit.api import Session"),
        ("toolkit.inside.rank", "from toolkit.core.names import JOBS"),
        ("toolkit.inside.rank", "import yaml"),
        ("toolkit.inside.rank", "from .common import fail"),
        ("toolkit.inside.rank", "def f():\n    import torch"),
        ("toolkit.inside.allreduce", "import torch"),
    ],
)
def test_the_checker_sees_a_wrong_import(module: str, text: str) -> None:
    assert len(violations(module, text)) == 1


@for_each("layer", PURE)
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
def test_the_checker_sees_what_is_not_pure(layer: str, text: str) -> None:
    module = f"toolkit.{layer}" if layer in ("errors", "show") else f"toolkit.{layer}.x"
    assert len(violations(module, text)) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("toolkit.core.x", "from datetime import datetime\nfrom pathlib import PurePosixPath"),
        ("toolkit.render.templates", "from pathlib import Path"),
        ("toolkit.effects.x", "import time, socket\nfrom toolkit.core.names import MAIN"),
        ("toolkit.executors", "from toolkit.effects.ssh import wire\nfrom toolkit.show import plan_text"),
        ("toolkit.lab.x", "from toolkit.effects.ssh import wire\nimport toolkit.api"),
        ("toolkit.cli.x", "from toolkit import __version__\nfrom toolkit.jobs import start"),
        ("toolkit.inside.allreduce", "def f():\n    import torch"),
        ("toolkit.inside.rank", "import os\nfrom common import fail"),
    ],
)
def test_the_checker_lets_pass_what_is_right(module: str, text: str) -> None:
    assert violations(module, text) == []
