"""Capabilities of an image: launchers and transport that work, and a fix for each missing part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolkit.cluster.probe_containers import InspectedImage
from toolkit.core.printable import table
from toolkit.launchers import NEEDS
from toolkit.protocol.probes import ImageReport
from toolkit.protocol.transport import EXEC, WITHOUT_SSH, transport_for, transport_text

_APT = "RUN apt-get update && apt-get install -y --no-install-recommends"
# Lines of a Dockerfile, or a command, that add a part to an image, by its name in ``NEEDS``.
ADDED_BY = {
    "horovodrun": "toolkit image build --onto {image} --with horovod",
    "mpirun": f"{_APT} openmpi-bin",
    "torchrun": "RUN pip install torch",
    "python:accelerate": "RUN pip install accelerate",
    "python:deepspeed": "RUN pip install deepspeed",
    "python:mpi4py": "RUN pip install mpi4py",
    "python:ray": "RUN pip install ray",
}


@dataclass(frozen=True)
class Capability:
    """One part of an image.

    Args:
        part: its name, such as ``launcher torchrun``.
        works: True if jobs can use it.
        found: version, path, or the missing programs.
        fix: line of a Dockerfile, or command, that adds it; empty if nothing is missing.
    """

    part: str
    works: bool
    found: str
    fix: str = ""


def capabilities(name: str, report: ImageReport) -> tuple[Capability, ...]:
    """Return the parts of an image in the order of the output.

    Args:
        name: its reference, for the commands that add a part.
    """
    transport = transport_for(report.lacks)
    add_ssh = f"toolkit image build --onto {name}"
    return (
        Capability("python", True, f"{_python(report)} ({report.executable})"),
        Capability("transport", True, transport_text(transport), add_ssh if transport == EXEC else ""),
        *(_launcher(name, launcher, report, transport, add_ssh) for launcher in NEEDS),
        _optional("mpi4py", report.versions.get("mpi4py", ""), ADDED_BY["python:mpi4py"]),
        _optional(
            "py-spy for toolkit why", "" if "py-spy" in report.lacks else "found", "RUN pip install py-spy"
        ),
        _optional("torch", report.versions.get("torch", ""), "RUN pip install torch"),
        _optional("CUDA of torch", report.cuda, ""),
        _optional("NCCL", report.nccl, ""),
        _optional("C compiler", report.compiler, f"{_APT} gcc g++ libc6-dev"),
        _optional("Python.h", "found" if report.headers else "", f"{_APT} python3-dev"),
    )


def capabilities_text(image: InspectedImage) -> str:
    """Return the output of `toolkit image inspect`."""
    facts, found = image.facts, capabilities(image.name, image.report)
    cells = [(one.part, "yes" if one.works else "no", one.found, one.fix) for one in found]
    unused = [
        f"toolkit does not use the {part} of the image: {text}"
        for part, text in (("ENTRYPOINT", " ".join(facts.entrypoint)), ("USER", facts.user))
        if text
    ]
    return "\n".join((table(("part", "works", "found", "fix"), cells), *unused))


def capabilities_json(image: InspectedImage) -> dict[str, Any]:
    """Return the result of `toolkit image inspect --json`."""
    facts, report = image.facts, image.report
    found = capabilities(image.name, report)
    works = {one.part: one.works for one in found}
    launchers = {launcher: works[f"launcher {launcher}"] for launcher in NEEDS}
    return {
        "image": image.name,
        "identity": facts.identity,
        "entrypoint": list(facts.entrypoint),
        "user": facts.user,
        "python": _python(report),
        "executable": report.executable,
        "transport": transport_for(report.lacks),
        "launchers": launchers,
        "versions": report.versions,
        "missing": list(report.lacks),
        "mpirun": report.mpirun,
        "cuda": report.cuda,
        "nccl": report.nccl,
        "compiler": report.compiler,
        "python_headers": report.headers,
        "fixes": {one.part: one.fix for one in found if one.fix},
    }


def _python(report: ImageReport) -> str:
    return ".".join(map(str, report.python))


def _launcher(image: str, launcher: str, report: ImageReport, transport: str, add_ssh: str) -> Capability:
    part = f"launcher {launcher}"
    missing = [need for need in NEEDS[launcher] if need in report.lacks]
    if missing:
        names = ", ".join(need.removeprefix("python:") for need in missing)
        return Capability(part, False, f"{names} not found", ADDED_BY[missing[0]].format(image=image))
    if transport == EXEC and launcher not in WITHOUT_SSH:
        return Capability(part, False, "needs ssh and sshd", add_ssh)
    return Capability(part, True, report.mpirun if launcher == "mpirun" else "")


def _optional(part: str, found: str, fix: str) -> Capability:
    return Capability(part, bool(found), found or "not found", "" if found else fix)
