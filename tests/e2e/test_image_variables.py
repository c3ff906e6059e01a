"""The tables of variables against the image: its Open MPI's own list, and what ranks really stop at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import toolkit.env_lint
from toolkit.env_lint.lint import lint_environment

pytestmark = pytest.mark.docker
TABLES = Path(toolkit.env_lint.__file__).parent / "tables"

GLOO = (
    "import torch.distributed as d, torch; d.init_process_group('gloo'); d.all_reduce(torch.ones(1));"
    "d.destroy_process_group()"
)
MPI = "from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1)"
HOROVOD = "import horovod.torch as h, torch; h.init(); h.allreduce(torch.ones(1))"
# A program, a setting, whether ranks go on with it.
TRIED = [
    (GLOO, "GLOO_SOCKET_IFNAME=lo", True),
    (GLOO, "GLOO_SOCKET_IFNAME==lo", False),
    (GLOO, "TORCH_DISTRIBUTED_DEBUG=TRUE", False),
    (GLOO, "TORCH_GLOO_LAZY_INIT=on", False),
    (MPI, "OMPI_MCA_btl=self,vader,tcp", True),
    (MPI, "OMPI_MCA_btl=^openib,uct", True),
    (MPI, "OMPI_MCA_btl=tcp", False),
    (MPI, "OMPI_MCA_btl=self,sm,tcp", False),
    (MPI, "OMPI_MCA_btl=self,^openib", False),
    (MPI, "OMPI_MCA_btl_base_verbose=loud", False),
    (MPI, "OMPI_MCA_mpi_cuda_support=1", False),
    (HOROVOD, "HOROVOD_CPU_OPERATIONS=mpi", True),
    (HOROVOD, "HOROVOD_CPU_OPERATIONS=gloo", False),
    (HOROVOD, "HOROVOD_CPU_OPERATIONS=nccl", False),
]
TRY = """
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 RANK=0 WORLD_SIZE=1 GLOO_SOCKET_IFNAME=lo
one() { env "$2" python -c "$1"; }
two() { mpirun -np 2 --oversubscribe --mca pml ob1 env "$2" python -c "$1"; }
while [ $# -gt 0 ]; do
    case $1 in *"'gloo'"*) run=one ;; *) run=two ;; esac
    $run "$1" "$2" >/dev/null 2>&1; echo "$?"
    shift 2
done
"""


def in_image(*argv: str) -> str:
    whole = ["docker", "run", "--rm", "--network", "none", "toolkit:cpu", *argv]
    return subprocess.run(whole, capture_output=True, text=True, check=True, timeout=300).stdout


def test_the_table_of_open_mpi_is_what_the_image_says() -> None:
    told = in_image("ompi_info", "--all", "--parsable")
    make = [sys.executable, "scripts/variable_tables.py", "openmpi"]
    lines = subprocess.run(make, input=told, capture_output=True, text=True, check=True).stdout
    head, mark, rest = (TABLES / "openmpi.txt").read_text().partition("# Names that are read.\n")
    assert head and mark
    assert rest == lines


@pytest.mark.rare
def test_ranks_stop_at_what_is_called_an_error_and_at_nothing_good() -> None:
    words = [word for program, setting, _ in TRIED for word in (program, setting)]
    codes = in_image("sh", "-c", TRY, "sh", *words).split()
    assert [code == "0" for code in codes] == [goes_on for _, _, goes_on in TRIED]
    for _, setting, goes_on in TRIED:
        name, _, value = setting.partition("=")
        verdicts = {f.verdict for f in lint_environment([(name, value)], "hosts/x/env/", "x")}
        assert ("error" in verdicts) != goes_on, setting
