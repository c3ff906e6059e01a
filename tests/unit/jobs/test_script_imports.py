"""Imports of a script, and the launcher that they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.each import for_each
from toolkit.jobs.launcher import read_sources
from toolkit.jobs.script_imports import Choice, files_of, imports_of, launcher_for, local_rank_option
from toolkit.launchers import LAUNCHERS


@for_each(
    ("source", "names"),
    [
        ("import a.b, c as d", {"a.b", "c"}),
        ("from a.b import c, d", {"a.b", "a.b.c", "a.b.d"}),
        ("from a import (\n  b,  # one\n  c)", {"a", "a.b", "a.c"}),
        ("from . import b\nfrom .c import d\nfrom .. import *", {".", ".b", ".c", ".c.d", ".."}),
        ("def f():\n    import late", {"late"}),
        ('"""import words"""\n# import comment\nx = "import text"', set()),
        # Of another Python: line by line.
        ("import a, b\nprint 'old'\n    from c.d import e\n", {"a", "b", "c.d"}),
        ("import a\n\0", {"a"}),
        ("", set()),
    ],
)
def test_the_names_that_are_imported(source: str, names: set[str]) -> None:
    assert imports_of(source) == names


@for_each(
    ("names", "choice"),
    [
        ({"horovod.torch", "torch"}, Choice("horovodrun", "horovod")),
        ({"horovod", "torch.distributed"}, Choice("horovodrun", "horovod")),
        ({"deepspeed", "torch.distributed", "torch"}, Choice("deepspeed", "deepspeed")),
        ({"accelerate", "accelerate.Accelerator", "deepspeed"}, Choice("accelerate", "accelerate")),
        ({"torch.distributed.fsdp"}, Choice("torchrun", "torch")),
        ({"torch", "torch.nn"}, Choice("torchrun", "torch")),
        ({"transformers", "transformers.Trainer"}, Choice("torchrun", "transformers")),
        ({"mpi4py.MPI", "numpy"}, Choice("mpirun", "mpi4py")),
        ({"mpi4py.MPI", "torch.distributed"}, Choice("mpirun", "mpi4py")),
        ({"torchvision", "horovodish", "ray_tracer"}, Choice("python")),
        (set(), Choice("python")),
    ],
)
def test_imports_decide_the_launcher(names: set[str], choice: Choice) -> None:
    assert launcher_for(names) == choice


def test_auto_chooses_existing_launchers_only() -> None:
    words = ("ray", "horovod", "accelerate", "deepspeed", "lightning", "mpi4py", "torch", "numpy")
    assert {launcher_for({word}).launcher for word in words} <= set(LAUNCHERS)


def test_the_files_that_a_name_may_stand_for() -> None:
    assert files_of("a.b", "") == ("a/b.py", "a/b/__init__.py", "a.py", "a/__init__.py")
    assert files_of(".a", "lib/x") == ("lib/x/a.py", "lib/x/a/__init__.py")
    assert files_of("..a", "lib/x") == ("lib/a.py", "lib/a/__init__.py")
    assert files_of(".", "lib") == ()


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        ('p.add_argument("--local_rank", type=int)', True),
        ("p.add_argument('--local-rank', type=int)", True),
        ('click.option("--rank", "--local_rank")', True),
        ('local: int = typer.Option(0, "--local_rank")', True),
        ('arg = p.add_argument\narg("--local_rank")', True),
        ('add = p.add_argument\nadd("--local_rank")', True),
        ('configargparse.ArgParser().add("--local_rank", type=int)', True),
        ('local: int = HfArg(aliases=["--rank", "--local_rank"], default=0)', True),
        ('p.add_argument("--local_rank"); print "Python 2"', True),
        ('os.environ["LOCAL_RANK"]', False),
        ("# --local_rank", False),
        ('p.add_argument("--epochs")  # no "--local_rank" since torch 2', False),
        ('"""Without "--local_rank"."""', False),
        ('run(["old.py", "--local_rank", "0"])', False),
        ('sys.argv.remove("--local_rank")', False),
        ('words.append("--local_rank")', False),
    ],
)
def test_scripts_that_take_local_rank(source: str, takes: bool) -> None:
    assert bool(local_rank_option([source])) is takes


def test_a_script_is_read_with_what_it_imports_beside_it(tmp_path: Path) -> None:
    files = {
        "src/train.py": "import model\nfrom lib.data import load\nimport torch",
        "src/model.py": "import train, horovod.torch",
        "lib/__init__.py": "from . import data",
        "lib/data.py": "import numpy",
        "torch.txt": "import no",
        "other.py": "import never",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_sources(tmp_path, "src/train.py")
    assert list(found) == ["src/train.py", "lib/data.py", "lib/__init__.py", "src/model.py"]
    assert launcher_for(frozenset().union(*map(imports_of, found.values()))).launcher == "horovodrun"


def test_many_files_that_import_each_other_are_read_to_a_bound(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"m{number}.py").write_text(f"import m{number + 1}")
    assert len(read_sources(tmp_path, "m0.py")) == 200
    assert read_sources(tmp_path, "gone.py") == {}
