"""The programs that travel to the hosts, with the launchers that they import."""

from __future__ import annotations

from pathlib import Path

INSIDE_FOLDER = Path(__file__).resolve().parent.parent / "inside"
_CORE_OF_LAUNCHERS = ("names", "openmpi", "transport")
_LAUNCHERS_NEED = ("__init__.py", "core/__init__.py", *(f"core/{name}.py" for name in _CORE_OF_LAUNCHERS))


def inside_programs() -> dict[str, str]:
    """Return name and text of the programs that run inside the containers.

    The launchers are among them, under the names by which they are imported: a job that is started again
    on other hosts gets its launches there.
    """
    found = {
        path.name: path.read_text()
        for path in sorted(INSIDE_FOLDER.iterdir())
        if path.suffix in (".py", ".sh") and path.name != "__init__.py"
    }
    package = INSIDE_FOLDER.parent
    launchers = [f"launchers/{path.name}" for path in sorted((package / "launchers").glob("*.py"))]
    shipped = [*_LAUNCHERS_NEED, *(name for name in launchers if name != "launchers/slots.py")]
    return found | {f"toolkit/{name}": (package / name).read_text() for name in shipped}
