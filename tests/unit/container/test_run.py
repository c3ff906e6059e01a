"""run.py keeps compiled modules in a folder of its user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.container_world import copied_programs
from toolkit.container.run import _is_private

CODE = """
import sys
sys.path[:0] = [{folder!r}, {scripts!r}]
import run
run.keep_bytecode({folder!r}, {cache!r})
import script
from toolkit.protocol import outcomes
print(getattr(outcomes, "ADDED", None))
"""


def test_python_compiles_a_module_again_only_after_a_change(tmp_path: Path) -> None:
    folder, cache, scripts = copied_programs(tmp_path / "inside"), tmp_path / "cache", tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "script.py").touch()
    code = CODE.format(folder=str(folder), cache=str(cache), scripts=str(scripts))
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}

    def added() -> str:
        argv = [sys.executable, "-S", "-c", code]
        return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout.strip()

    assert added() == "None"
    (kept,) = (cache / "toolkit" / "protocol" / "__pycache__").glob("outcomes.*.pyc")
    before = kept.stat().st_mtime_ns
    assert added() == "None" and kept.stat().st_mtime_ns == before
    assert not list((folder / "toolkit").rglob("*.pyc")) and list(scripts.rglob("*.pyc"))
    names = {path.name.split(".")[0] for path in cache.rglob("*.pyc")}
    assert names.isdisjoint({"script", "re", "json"})

    module = folder / "toolkit" / "protocol" / "outcomes.py"
    about = module.stat()
    module.write_text(f"{module.read_text()}ADDED = 3\n")
    os.utime(module, (about.st_atime, about.st_mtime + 2))
    assert added() == "3"


def test_only_a_folder_of_this_user_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, open_to_all, link = tmp_path / "mine", tmp_path / "open", tmp_path / "link"
    assert _is_private(str(mine)) and _is_private(str(mine))
    assert mine.stat().st_mode & 0o777 == 0o700
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(mine)
    assert not _is_private(str(open_to_all)) and not _is_private(str(link))
    assert not _is_private(str(tmp_path / "missing" / "folder"))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not _is_private(str(mine))
