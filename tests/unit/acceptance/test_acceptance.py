"""scripts/acceptance: judges with recorded outputs, the report, deadlines, runs with a mock of nvidia-smi."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.acceptance import __main__ as program
from scripts.acceptance.items import ALLREDUCE, ITEMS, judge_checks, judge_gauges, judge_smi, judge_xids
from scripts.acceptance.report import (
    Failed,
    Result,
    Skipped,
    State,
    error_line,
    exit_status,
    judge_fault,
    judge_program,
    markdown,
)
from tests.golden import check_golden
from tests.unit.checks.scenes import scene
from tests.unit.each import for_each
from toolkit.checks import gpu, gpu_setup
from toolkit.cluster.gpus import parse_smi
from toolkit.container.bench.allreduce import result_line
from toolkit.container.monitor.gauges import gpu_row

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "tests" / "unit" / "nvidia_smi"
BY_NAME = {item.name: item for item in ITEMS}


def refused(judge: Callable[[], str]) -> str:
    """Return the reason of a judge that fails."""
    with pytest.raises(Failed) as caught:
        judge()
    return str(caught.value)


# Judges


@for_each("name", sorted(path.stem for path in RECORDED.glob("*.txt")))
def test_recorded_lists_of_gpus(name: str) -> None:
    gpus, trouble = parse_smi((RECORDED / f"{name}.txt").read_text())
    if name.startswith("driver-") or name == "warning":
        text = judge_smi(gpus, trouble, len(gpus))
        assert gpus[0].name in text and f"driver {gpus[0].driver}" in text
        assert ("infoROM" in text) == (name == "warning") and ("MIG devices" in text) == ("mig" in name)
    else:
        assert refused(lambda: judge_smi(gpus, trouble, 1))


def test_lists_of_gpus_that_differ() -> None:
    gpus, trouble = parse_smi((RECORDED / "driver-550.txt").read_text())
    assert judge_smi(gpus, trouble, 8).startswith("8 NVIDIA H100 80GB HBM3, driver 550.90.07, 81559 MiB")
    assert "nvidia-smi lists 8 GPUs, torch finds 7" in refused(lambda: judge_smi(gpus, trouble, 7))


def test_findings_about_the_machine_are_no_failures() -> None:
    seen = scene(gpu_health="")
    found = [one for check in (*gpu.CHECKS, *gpu_setup.CHECKS) for one in check.judged(seen)]
    text = judge_checks(found, 2, 2)
    assert "error" in text or "warning" in text or "not checked" in text
    assert "lists 1 GPUs, the probe of every command 2" in refused(lambda: judge_checks(found, 1, 2))


def test_gauges_of_a_busy_gpu() -> None:
    lines = (
        "0, GPU-1, 97, 20000, 24576, 349.12, 71, 1695, 2100",
        "1, GPU-2, 0, 3, 24576, [Not Supported], 35, 210, 2100",
    )
    rows = [row for line in lines if (row := gpu_row(line))]
    assert judge_gauges(rows, 2) == "97 %, 20000.0 of 24576.0 MiB, 349.12 W, 71.0 °C, 1695.0 of 2100.0 MHz"
    assert refused(lambda: judge_gauges(rows, 3)) == "2 of 3 GPUs have gauges"
    assert "utilization of 0.0 %" in refused(lambda: judge_gauges(rows[1:], 1))
    split = gpu_row("0, GPU-1, [N/A], 20000, 24576, 349.12, 71, 1695, 2100")
    assert split is not None and "split by MIG" in refused(lambda: judge_gauges([split], 1))


def test_lines_of_the_kernel_log() -> None:
    line = "[ 8843.3] NVRM: Xid (PCI:0000:21:00): {}, pid=4711, name=python, Ch 00000008"
    assert judge_xids([line.format(31), line.format(79), line.format(31)]) == "Xid 31: 2, Xid 79: 1"
    assert judge_xids([]) == "no Xid since boot"
    assert "1 lines" in refused(lambda: judge_xids([line.format(31), "NVRM: Xid 31 of a new form"]))


TRACEBACK = """\
IndexKernel.cu:113: operator(): block: [0,0,0], thread: [0,0,0] Assertion `index out of bounds` failed.
Traceback (most recent call last):
  File "train.py", line 3, in <module>
torch.AcceleratorError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call.
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED
"""


def test_programs_that_end_in_any_way() -> None:
    assert judge_program(0, "W: x\n  sum 3 right\n", r"sum \d+ .*$") == "sum 3 right"
    assert "without its result line; its last line: W: x" in refused(
        lambda: judge_program(0, "W: x\n", "sum")
    )
    assert refused(lambda: judge_program(-9, "", "sum")) == "signal 9: "
    assert refused(lambda: judge_program(1, TRACEBACK, "sum")) == (
        "exit status 1: torch.AcceleratorError: CUDA error: device-side assert triggered"
    )
    assert error_line("one\n\x1b[31mtwo\x1b[0m\n\n") == "two"


@for_each("size", [1, 8])
def test_the_result_of_the_all_reduce_is_found(size: int) -> None:
    line = result_line(size, 36.0, 0.001, "nccl")
    assert judge_program(0, f"NCCL INFO\n{line}\n", rf"{ALLREDUCE}.*$") == line
    assert ("busbw" in line) == (size > 1), "one rank sends nothing"


def test_deliberate_faults() -> None:
    from toolkit.diagnose.known_errors import match

    names = [error.name for error in match(TRACEBACK.splitlines())]
    assert judge_fault(1, TRACEBACK, names, "cuda-assert") == "recognized as cuda-assert"
    assert "succeeded" in refused(lambda: judge_fault(0, TRACEBACK, names, "cuda-assert"))
    assert "no known error was found" in refused(lambda: judge_fault(1, "x", [], "cuda-assert"))
    late = ["cuda-launch", "cuda-assert"]
    assert (
        refused(lambda: judge_fault(1, "x", late, "cuda-assert"))
        == "cuda-launch was found before cuda-assert"
    )


# Report


def results(*states: State) -> list[Result]:
    return [Result("one", "First | item", state, "a | b\nc", 1.4) for state in states]


def test_the_report() -> None:
    facts = {
        "GPUs": "2 × NVIDIA A10",
        "NVIDIA driver": "580.65.06",
        "torch": "2.13.0, CUDA 13.0, NCCL 2.29.7",
    }
    some = [*results("passed", "failed"), Result("two", "Second", "skipped", "x" * 400, 0)]
    check_golden("acceptance/report.md", markdown(facts, some, rehearsal=False))
    assert markdown({}, some, rehearsal=True).startswith("#### Rehearsal without a GPU: no GPU\n")


def test_exit_status() -> None:
    assert exit_status(results("passed", "skipped")) == 0
    assert exit_status(results("passed", "failed", "skipped")) == 1
    assert exit_status(results("skipped")) == 3


def test_reasons_to_skip() -> None:
    absent = (RECORDED / "absent.txt").read_text()
    broken = (RECORDED / "no-driver.txt").read_text()
    skip = program.reason_to_skip
    assert skip(BY_NAME["probe"], 0, False, True, absent) == "no NVIDIA GPU"
    assert "the NVIDIA driver is not loaded" in skip(BY_NAME["probe"], 0, False, True, broken)
    assert "rehearsal" in skip(BY_NAME["gauges"], 0, True, True, "")
    assert skip(BY_NAME["rotary"], 1, False, False, "") == "torch is not installed"
    assert skip(BY_NAME["rotary"], 1, False, True, "") == skip(BY_NAME["probe"], 0, True, False, "") == ""


def test_items_can_all_end_before_the_limit() -> None:
    assert len(BY_NAME) == len(ITEMS) and all(item.seconds <= 300 for item in ITEMS)


# Runs


def test_an_item_without_a_result_fails_at_its_deadline_and_leaves_no_process() -> None:
    found = program.perform(replace(BY_NAME["probe"], seconds=0), ["--cpu"], 600)
    assert (found.state, found.detail) == ("failed", "no result within 0 s")


def test_an_item_that_dies_is_a_failed_item() -> None:
    found = program.perform(BY_NAME["probe"], ["--no-such-option"], 600)
    assert found.state == "failed" and "unrecognized arguments: --no-such-option" in found.detail


def accept(tmp_path: Path, recorded: str, status: int, *words: str) -> tuple[int, str]:
    """Run the script with a mock of nvidia-smi that prints a recorded output; return status and report."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "nvidia-smi"
    text = (RECORDED / f"{recorded}.txt").read_text().splitlines(keepends=True)
    for name, lines in (
        ("query", [line for line in text if not line.strip().startswith(("GPU ", "MIG "))]),
        ("list", [line for line in text if line.strip().startswith(("GPU ", "MIG "))]),
    ):
        (folder / name).write_text("".join(lines))
    path.write_text(
        f"#!/bin/sh\ncase $1 in -L) cat {folder}/list ;; --query-gpu=index,*) cat {folder}/query ;; esac\n"
        f"exit {status}\n"
    )
    path.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": sys.executable}
    report = tmp_path / "report.md"
    script = ("sh", "scripts/gpu-acceptance.sh", "--report", str(report), *words)
    done = subprocess.run(script, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert report.exists(), done.stderr
    return done.returncode, report.read_text()


def test_a_machine_with_gpus_and_without_torch(tmp_path: Path) -> None:
    status, report = accept(tmp_path, "driver-550", 0, "--only", "nvidia-smi", "--only", "probe")
    assert status == 0 and "| GPUs | 8 × NVIDIA H100 80GB HBM3 |" in report
    assert "8 NVIDIA H100 80GB HBM3, driver 550.90.07, 81559 MiB |" in report
    assert "| Probe of the host | passed |" in report and "8 GPUs, " in report


def test_a_machine_whose_driver_is_not_loaded(tmp_path: Path) -> None:
    status, report = accept(tmp_path, "no-driver", 9)
    assert status == 3 and "0 passed, 0 failed" in report
    assert report.count("the NVIDIA driver is not loaded") == len(ITEMS)


def test_the_result_of_an_item_is_written_as_json(tmp_path: Path) -> None:
    def ends(error: Exception | None) -> list[str]:
        def run(machine: program.Machine) -> str:
            if error:
                raise error
            return "fine"

        program.child(replace(BY_NAME["probe"], run=run), program.Machine(0), tmp_path / "result.json")
        found: list[str] = json.loads((tmp_path / "result.json").read_text())
        return found

    assert ends(None) == ["passed", "fine"]
    assert ends(Failed("broken")) == ["failed", "broken"]
    assert ends(Skipped("absent")) == ["skipped", "absent"]
