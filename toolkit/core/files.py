"""The files that a person asks for, written where the person says."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.core.local_writer import Destination, LocalWriter
from toolkit.errors import BadInput, Problem, ToolkitError


def write_file(path: str | Path, text: str, replace: bool = True, program: bool = False) -> Path:
    """Write a file that a person asked for, into a folder that is there; return its path.

    Args:
        replace: write over a file that is there.
        program: make it executable.

    Raises:
        BadInput: it cannot be written, or it is there and may not be replaced.
    """
    path = Path(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
        with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if program:
            path.chmod(0o755)
    except FileExistsError as error:
        raise _there(path) from error
    except (OSError, ValueError) as error:
        problem = Problem("", f"cannot be written: {getattr(error, 'strerror', None) or error}")
        raise BadInput(str(path), (problem,)) from error
    return path


def write_page(name: str, text: str) -> Path:
    """Write a page into the working directory under a name that is made of a job's id; return its path.

    A link of that name is replaced, not followed: an earlier download may have left it.

    Raises:
        BadInput: the page cannot be written.
    """
    try:
        with LocalWriter(Destination(Path())) as writer:
            page = writer.create(name)
            page.write(text.encode())
            page.commit()
    except (OSError, ToolkitError) as error:
        problem = Problem("", f"cannot be written: {getattr(error, 'strerror', None) or error}")
        raise BadInput(name, (problem,)) from error
    return Path(name)


def refuse_file(path: str | Path, replace: bool) -> None:
    """Refuse a file that ``write_file`` would refuse as far as that can be told before.

    Raises:
        BadInput: it is there and may not be replaced, is a folder, or would lie in none.
    """
    path = Path(path)
    try:
        folder, there, around = path.is_dir(), path.exists(), path.parent.is_dir()
    except (OSError, ValueError):
        return  # what cannot be looked at is told when it is written
    if there and not replace:
        raise _there(path)
    if folder or not around:
        why = "it is a folder" if folder else f"there is no folder {path.parent}"
        raise BadInput(str(path), (Problem("", f"cannot be written: {why}"),))


def _there(path: str | Path) -> BadInput:
    problem = Problem("", "is there already, and is left as it is")
    return BadInput(str(path), (problem,), "--force writes over it; -o names another file")
