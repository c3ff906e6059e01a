"""Programs of toolkit/container as they are sent to hosts: as files for `up`, or packed into one text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_CONTAINER = _PACKAGE / "container"
# Files in the folder itself, next to the packages.
_AT_TOP = ("kubexec.sh", "run.py")
_PACKAGES = ("container", "launchers", "protocol")
# Lines of toolkit's own modules, which import whole modules at the top, one in each statement.
_IMPORT = re.compile(r"^from (toolkit\.[\w.]+) import ", re.MULTILINE)
_PACKED = """import sys, types
for name, text in {texts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
sys.exit(module.main())
"""


def container_programs() -> dict[str, str]:
    """Return path and text of each file in the folder that containers see as /run/toolkit/inside.

    It holds run.py, which starts the programs, and the packages that they import. The launchers are among
    them because a job that is restarted on other hosts gets its launches there.
    """
    at_top = [_CONTAINER / name for name in _AT_TOP]
    paths = [path for name in _PACKAGES for path in sorted((_PACKAGE / name).rglob("*.py"))]
    packages = {f"toolkit/{path.relative_to(_PACKAGE)}": path for path in paths if path not in at_top}
    files = {path.name: path for path in at_top} | packages
    # The package's own __init__.py is for the client.
    return {"toolkit/__init__.py": ""} | {name: path.read_text("utf-8") for name, path in files.items()}


@functools.cache
def packed(name: str) -> str:
    """Return a program as one Python text that needs no files: a module and all that it imports of toolkit.

    Args:
        name: below ``toolkit.container``, such as ``transfer.relay``.
    """
    texts: dict[str, str] = {}
    _add(f"toolkit.container.{name}", texts)
    return _PACKED.format(texts=texts)


def _add(module: str, texts: dict[str, str]) -> None:
    """Add a module after those that it imports."""
    text = _PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")
    for imported in imports_of(text):
        if imported not in texts:
            _add(imported, texts)
    texts[module] = text


def imports_of(text: str) -> Iterator[str]:
    """Yield each module of toolkit that the text of a module imports at its top."""
    # Not ast.parse: several threads call this at once, for which Python 3.11 can raise SystemError
    # (python/cpython#106905).
    yield from _IMPORT.findall(text)
