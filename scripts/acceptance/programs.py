"""Programs with torch that acceptance items start as processes; a program fails if its own test fails.

python scripts/acceptance/programs.py NAME      # or under torchrun
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def about() -> None:
    """Print versions and GPUs as JSON."""
    import torch

    # The library that torch has loaded; torch.cuda.nccl.version() is the release that torch was built with.
    # A torch that contains NCCL loads no library.
    number = ctypes.c_int()
    if torch.cuda.is_available():
        with suppress(OSError):
            ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    major, rest = divmod(number.value, 10000)
    nccl = f"{major}.{rest // 100}.{rest % 100}" if number.value else ""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found = {"torch": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl, "gpus": names}
    print(json.dumps(found))


def allreduce() -> None:
    """Run the all-reduce of `toolkit smoke`, which tests the sum on every rank."""
    from toolkit.container.bench.allreduce import main

    sys.exit(main())


def compiles() -> None:
    """Compile a function with torch.compile, and compare its values and gradients with eager mode."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ weight).softmax(-1).square().sum()

    torch.manual_seed(1)
    x = torch.randn(128, 256, device=device)
    weights = [torch.randn(256, 64, device=device).div_(16).requires_grad_() for _ in range(2)]
    weights[1].data.copy_(weights[0].data)
    began = time.monotonic()
    values = [torch.compile(function, fullgraph=True)(x, weights[0]), function(x, weights[1])]
    for value in values:
        value.backward()
    torch.testing.assert_close(values[0], values[1], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(weights[0].grad, weights[1].grad, rtol=1e-2, atol=1e-3)
    print(f"compiled forward and backward on {device} in {time.monotonic() - began:.0f} s")


def load() -> None:
    """Keep the first GPU busy until standard input ends."""
    import select

    import torch

    x = torch.randn(4096, 4096, device="cuda")
    held = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    print(f"busy pid {os.getpid()} with {held.numel() >> 20} MiB", flush=True)
    while not select.select([0], [], [], 0)[0]:
        for _ in range(20):
            x = (x @ x).div_(64).clamp_(-1, 1)
        torch.cuda.synchronize()


def asserts() -> None:
    """Use an index out of range on the GPU, which a kernel refuses by a device-side assert."""
    import torch

    table = torch.zeros(4, device="cuda")
    print(table[torch.tensor([9], device="cuda")].cpu())


def strays() -> None:
    """Write outside of a buffer on the GPU, where no memory is mapped."""
    import torch

    held = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")

    class Longer:
        """The buffer with a false length, which PyTorch does not check."""

        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (1 << 36,),
            "typestr": "|u1",
            "data": (held.data_ptr(), False),
            "version": 3,
        }

    torch.as_tensor(Longer(), device="cuda")[(1 << 36) - 16 :].fill_(1)
    torch.cuda.synchronize()


def fills() -> None:
    """Allocate more memory than the GPU has."""
    import torch

    held = torch.empty(torch.cuda.get_device_properties(0).total_memory * 2, dtype=torch.uint8, device="cuda")
    print(held.numel())


PROGRAMS = {
    "about": about,
    "allreduce": allreduce,
    "compile": compiles,
    "load": load,
    "assert": asserts,
    "illegal": strays,
    "memory": fills,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
