"""Start a program of toolkit.container: ``run.py job.lease JOB``.

`up` installs this file on each host, next to the packages that the program imports.
"""

from __future__ import annotations

import os
import stat
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader


def main() -> int | None:
    """Run the program named by the first argument, and return its exit code."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if sys.path[:1] != [folder]:  # PYTHONSAFEPATH and links keep it out
        sys.path.insert(0, folder)
    cache = f"/tmp/toolkit-bytecode-{os.getuid()}"
    # In containers, the folder is mounted read-only, so Python cannot keep compiled modules in it.
    if not os.access(folder, os.W_OK) and _is_private(cache):
        keep_bytecode(folder, cache)
    name = sys.argv[1]
    sys.argv[:2] = [name]
    module = __import__(f"toolkit.container.{name}", fromlist=["main"])
    code: int | None = module.main()
    return code


def _is_private(folder: str) -> bool:
    """Create the folder if it does not exist; return whether only this user can write to it."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return False
    about = os.lstat(folder)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077


def keep_bytecode(folder: str, cache: str) -> None:
    """Let Python keep the compiled modules of ``folder`` in ``cache``.

    Otherwise, Python compiles all modules at each start. ``sys.pycache_prefix`` would also apply to the
    modules of Python and of scripts.
    """

    class Loader(SourceFileLoader):
        def get_data(self, path: str) -> bytes:
            return super().get_data(place(path))

        def set_data(  # type: ignore[override]  # its data has a type that Python 3.10 does not name
            self, path: str, data: bytes, *, _mode: int = 0o666
        ) -> None:
            super().set_data(place(path), data, _mode=_mode)

    def place(path: str) -> str:
        return cache + path[len(folder) :] if path.endswith(".pyc") else path

    def finder(path: str) -> FileFinder:
        if path != folder and not path.startswith(f"{folder}{os.sep}"):
            raise ImportError
        return FileFinder(path, (Loader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.pop(folder, None)


if __name__ == "__main__":
    sys.exit(main())
