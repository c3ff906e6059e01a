"""Run the acceptance items on this machine, and write a Markdown report.

    python3 -m scripts.acceptance [--cpu] [--only NAME]... [--report FILE]    # in the repository

Needs Python 3.10 and torch. An item that needs more is skipped, and the report contains the reason. Each item
runs in its own process, with a deadline. The exit status is 0 if an item passed and none failed, 1 if an item
failed, and 3 if no item could run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from scripts.acceptance.items import ITEMS, PROGRAMS, ROOT, Item, Machine, shell
from scripts.acceptance.report import Failed, Result, Skipped, exit_status, last_line, markdown
from toolkit.cluster.gpus import SMI, SMI_SECONDS, explain, is_absent, parse_smi

# Every process of an item carries this variable, so that none outlives its deadline.
_TAG = "TOOLKIT_ACCEPTANCE"
# Seconds from SIGTERM to SIGKILL.
_GRACE = 10
_TOTAL = 600


def arguments() -> argparse.Namespace:
    names = [item.name for item in ITEMS]
    parser = argparse.ArgumentParser(
        prog="gpu-acceptance", description="Run toolkit's acceptance items on your machine."
    )
    parser.add_argument(
        "--cpu", action="store_true", help="rehearse on the CPU the items that can run without a GPU"
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=names,
        help=f"run this item (repeatable): {', '.join(names)}",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=Path,
        default=Path("gpu-acceptance.md"),
        help="file for the report (default: gpu-acceptance.md)",
    )
    parser.add_argument(
        "--hosts",
        metavar="FILE",
        type=Path,
        help="hosts file for the item docker (default: your machine over SSH)",
    )
    parser.add_argument(
        "--image", default="", help="image for the item docker (default: toolkit:gpu, with --cpu toolkit:cpu)"
    )
    parser.add_argument(
        "--seconds", type=int, default=_TOTAL, help="time limit in seconds of the complete run (default: 600)"
    )
    parser.add_argument("--child", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--gpus", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def child(item: Item, machine: Machine, file: Path) -> None:
    """Run one item in this process, and write its result."""
    try:
        state, detail = "passed", item.run(machine)
    except Failed as error:
        state, detail = "failed", str(error)
    except Skipped as error:
        state, detail = "skipped", str(error)
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps([state, detail]))
    unfinished.replace(file)


def perform(item: Item, words: list[str], limit: float) -> Result:
    """Run one item in its own process within its deadline, and end everything that it started."""
    began = time.monotonic()
    tag = secrets.token_hex(8)
    seconds = min(item.seconds, limit)
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "result.json"), Path(folder, "output.txt")
        # Compiled code of earlier runs would hide a missing compiler.
        caches = {name: f"{folder}/{name}" for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "scripts.acceptance",
                    "--only",
                    item.name,
                    "--child",
                    str(file),
                    *words,
                ],
                cwd=ROOT,
                env={**os.environ, **caches, _TAG: tag},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end_processes(tag)
                process.wait()
        took = time.monotonic() - began
        if status is None:
            return Result(item.name, item.title, "failed", f"no result within {seconds:.0f} s", took)
        try:
            state, detail = json.loads(file.read_text())
        except (OSError, ValueError):
            text = log.read_text(errors="replace")
            state, detail = "failed", f"the item ended with status {status}: {last_line(text)}"
        if state == "failed":
            sys.stderr.write(log.read_text(errors="replace")[-4000:])
        return Result(item.name, item.title, state, detail, took)


def end_processes(tag: str) -> None:
    """End every process that carries the tag, first by SIGTERM."""
    until = time.monotonic() + _GRACE
    while tagged(tag, signal.SIGTERM) and time.monotonic() < until:
        time.sleep(0.2)
    while tagged(tag, signal.SIGKILL) and time.monotonic() < until + _GRACE:
        time.sleep(0.2)


def tagged(tag: str, send: signal.Signals) -> int:
    """Send a signal to each process that carries the tag, and return their number."""
    mark, found = f"{_TAG}={tag}".encode(), 0
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found += 1
                os.kill(int(folder.name), send)
    return found


def about_torch() -> dict[str, object]:
    """Return versions and GPUs of torch; empty without torch."""
    with suppress(subprocess.SubprocessError, ValueError):
        done = subprocess.run([sys.executable, str(PROGRAMS), "about"], capture_output=True, timeout=120)
        found: dict[str, object] = json.loads(done.stdout)
        return found
    return {}


def facts_of(about: dict[str, object], names: list[str]) -> dict[str, str]:
    """Return the properties of this machine for the report; the name of the machine is not among them."""
    system = platform.system()
    with suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    driver = last_line(
        shell("nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1")
    )
    commit = last_line(shell(f"git -C '{ROOT}' rev-parse --short=12 HEAD 2>/dev/null"))
    docker = last_line(shell("timeout 20 docker version --format '{{.Server.Version}}' 2>/dev/null"))
    gpus = ", ".join(f"{count} × {name}" for name, count in Counter(names).items())
    torch = (
        f"{about['torch']}, CUDA {about['cuda'] or 'none'}, NCCL {about['nccl'] or 'none'}"
        if about
        else "none"
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "GPUs": gpus or "none",
        "NVIDIA driver": driver or "none",
        "torch": torch,
        "Python": platform.python_version(),
        "Machine": f"{platform.machine()}, {os.cpu_count()} CPU cores, {memory:.0f} GiB",
        "System": f"{system}, Linux {platform.release()}",
        "Docker": docker or "none",
        "toolkit": commit or "no Git repository",
        "Date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def reason_to_skip(item: Item, gpus: int, cpu: bool, has_torch: bool, trouble: str) -> str:
    """Return the reason why an item cannot run, empty if it can.

    Args:
        trouble: the error of nvidia-smi.
    """
    if not gpus and not cpu:
        return (
            "no NVIDIA GPU" if is_absent(trouble) else f"no usable NVIDIA GPU: {explain(trouble, 'here')[0]}"
        )
    if not gpus and not item.on_cpu:
        return "no NVIDIA GPU (not part of the rehearsal)"
    return "torch is not installed" if item.torch and not has_torch else ""


def main() -> int:
    args = arguments()
    image = args.image or ("toolkit:cpu" if args.cpu else "toolkit:gpu")
    chosen = [item for item in ITEMS if not args.only or item.name in args.only]
    if args.child:
        child(chosen[0], Machine(args.gpus, args.hosts, image), args.child)
        return 0
    began = time.monotonic()
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    about = about_torch()
    gpus, trouble = ((), "") if args.cpu else parse_smi(shell(SMI, SMI_SECONDS + 10))
    listed = about.get("gpus") or [gpu.name for gpu in gpus]
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    words = ["--gpus", str(len(names)), "--image", image, *(["--cpu"] if args.cpu else [])]
    words += ["--hosts", str(args.hosts.resolve())] if args.hosts else []
    results = []
    for item in chosen:
        left = args.seconds - (time.monotonic() - began)
        reason = reason_to_skip(item, len(names), args.cpu, bool(about), trouble)
        reason = reason or ("" if left > 5 else f"the time limit of this run ({args.seconds} s) is over")
        result = Result(item.name, item.title, "skipped", reason, 0) if reason else perform(item, words, left)
        results.append(result)
        print(f"{result.state:8} {item.name:15} {result.seconds:4.0f} s  {result.detail}", flush=True)
    text = markdown(facts_of(about, names), results, args.cpu)
    args.report.write_text(text, encoding="utf-8")
    print(f"\nreport: {args.report}")
    return exit_status(results)


if __name__ == "__main__":
    sys.exit(main())
