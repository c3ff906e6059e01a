"""Tests of the parts of an image that `toolkit image inspect` prints."""

from __future__ import annotations

from toolkit.cluster.probe_containers import InspectedImage
from toolkit.core.image import ImageFacts
from toolkit.image.capabilities import capabilities, capabilities_json, capabilities_text
from toolkit.protocol.probes import ImageReport

FULL = ImageReport(
    "/usr/bin/python3", (3, 12, 3), {"torch": "2.7.1"}, (), "mpirun (Open MPI) 4.1.7", "12.8", "2.26.2"
)


def by_part(report: ImageReport) -> dict[str, tuple[bool, str]]:
    return {one.part: (one.works, one.fix) for one in capabilities("lab:1", report)}


def test_without_ssh_the_launchers_that_need_it_do_not_work() -> None:
    parts = by_part(ImageReport(FULL.executable, FULL.python, lacks=("/usr/sbin/sshd", "python:ray")))
    onto = "toolkit image build --onto lab:1"
    assert parts["transport"] == (True, onto)
    assert parts["launcher horovodrun"] == parts["launcher deepspeed"] == (False, onto)
    assert parts["launcher ray"] == (False, "RUN pip install ray")
    assert parts["launcher mpirun"] == parts["launcher torchrun"] == (True, "")
    assert parts["py-spy for toolkit why"] == (True, "")
    assert parts["mpi4py"] == (False, "RUN pip install mpi4py")


def test_without_py_spy_the_fix_adds_it() -> None:
    parts = by_part(ImageReport(FULL.executable, FULL.python, lacks=("py-spy",)))
    assert parts["py-spy for toolkit why"] == (False, "RUN pip install py-spy")


def test_every_missing_part_of_a_launcher_has_a_fix() -> None:
    missing = ("torchrun", "mpirun", "horovodrun", "python:accelerate", "python:deepspeed", "python:ray")
    parts = by_part(ImageReport(FULL.executable, FULL.python, lacks=missing))
    launchers = {part: value for part, value in parts.items() if part.startswith("launcher ")}
    assert launchers.pop("launcher python") == (True, "")
    assert all(not works and fix for works, fix in launchers.values())


def test_text_and_json_name_what_is_not_used() -> None:
    facts = ImageFacts("sha256:1", "a" * 16, (), entrypoint=("/opt/entrypoint.sh",), user="1234")
    image = InspectedImage("lab:1", facts, FULL)
    text = capabilities_text(image)
    assert "toolkit does not use the ENTRYPOINT of the image: /opt/entrypoint.sh" in text
    assert "toolkit does not use the USER of the image: 1234" in text
    value = capabilities_json(image)
    assert value["transport"] == "ssh" and value["launchers"]["horovodrun"] is True
    assert value["python"] == "3.12.3" and value["cuda"] == "12.8" and value["nccl"] == "2.26.2"
