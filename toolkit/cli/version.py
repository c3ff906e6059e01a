"""toolkit version: print the installed versions, for bug reports."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from typing import Annotated, Any

import typer

from toolkit import __version__
from toolkit.cli.common import Json, put_json, put_text
from toolkit.errors import MissingTool

# Longer than a healthy engine takes to answer, and a short wait if the engine hangs.
_ENGINE_SECONDS = 2.0


def version(
    as_json: Json = False,
    engine: Annotated[
        bool, typer.Option(help="Also print the version of the Docker engine on your machine")
    ] = True,
) -> None:
    """Print the versions of toolkit, libraries, SSH and Docker.

    Include the output of `toolkit version` in a bug report.

    Examples:
        toolkit version
        toolkit version --no-engine --json
    """
    found = _versions(engine)
    if as_json:
        put_json(found)
        return
    libraries = "".join(f"\n    {name} {number}" for name, number in found["libraries"].items())
    put_text(
        f"toolkit {found['toolkit']}\n"
        f"  Python {found['python']} on {found['platform']}\n"
        f"  ssh: {found['ssh'] or 'not installed'}\n"
        + (f"  Docker engine: {found['engine'] or 'no engine answers'}\n" if engine else "")
        + f"  libraries:{libraries or ' unknown, because toolkit is not installed as a package'}\n"
    )


def _versions(engine: bool) -> dict[str, Any]:
    about = {
        "toolkit": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True) + " " + platform.machine(),
        "ssh": _ssh(),
    }
    return about | ({"engine": _engine()} if engine else {}) | {"libraries": _libraries()}


def _libraries() -> dict[str, str]:
    """Return name and version of each required package; empty if toolkit is not installed as a package."""
    try:
        wanted = metadata.requires("gpu-boxes-toolkit") or []
    except metadata.PackageNotFoundError:
        return {}
    names = [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in wanted if "extra ==" not in line]
    found = {}
    for name in sorted(names):
        with suppress(metadata.PackageNotFoundError):  # this version of Python does not need it
            found[name] = metadata.version(name)
    return found


def _ssh() -> str:
    try:
        done = subprocess.run(["ssh", "-V"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stderr or done.stdout).strip().partition(",")[0]


def _engine() -> str:
    from toolkit.remote.engine import Engine, connect_client

    try:
        return Engine(connect_client(_ENGINE_SECONDS)).version()
    except MissingTool:
        return ""
