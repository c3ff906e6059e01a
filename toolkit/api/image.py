"""The image: build it locally, send it to the hosts, list and remove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.api.connection import Connection, Part
from toolkit.api.prepared import (
    Notices,
    PreparedAfterPull,
    PreparedPlan,
    closed_on_error,
    completed,
    report_silent,
)
from toolkit.cluster.image_probe import inspect_here
from toolkit.cluster.layout import Layout
from toolkit.cluster.probe_containers import InspectedImage
from toolkit.core.report import Report
from toolkit.image.build import build_image, exclusive_build
from toolkit.image.build_plan import ImageRecipe
from toolkit.image.cuda import DEFAULT_CUDA
from toolkit.image.list_and_prune import list_images, prune_plan
from toolkit.image.make_build import known_flavor, make_build
from toolkit.image.on_hosts import QUESTIONS, ImageRow
from toolkit.lifecycle.up import plan_image_send
from toolkit.plan.execute import Listener
from toolkit.plan.steps import Plan


class PreparedImageSend(PreparedAfterPull):
    """See ``prepare_image_send``."""

    def _plan(self, layout: Layout) -> Plan:
        return plan_image_send(layout)

    def _run(self, layout: Layout, plan: Plan, listen: Listener) -> Report:
        report_silent(self.session, listen)
        return self.session.execute(plan, listen)


def prepare_image_send(cluster: Connection) -> PreparedImageSend:
    """Connect to the hosts and plan the transfer of the image to each host that does not have it."""
    session = cluster.connect(local_image=cluster.inventory.pull == "never")
    with closed_on_error(session):
        return PreparedImageSend(cluster, session, Notices(cluster))


def prepare_image_prune(cluster: Connection) -> PreparedPlan:
    """Connect to the hosts and plan the removal of unused toolkit images."""
    session = cluster.connect(questions=QUESTIONS, local_image=cluster.inventory.pull == "never")
    with closed_on_error(session):
        return PreparedPlan(cluster, session, Notices(cluster), prune_plan(session))


class ImagePart(Part):
    """The image on your machine and on the hosts."""

    def build(
        self,
        flavor: str = "",
        tag: str = "",
        extras: Sequence[str] = (),
        requirements: str | Path = "",
        arguments: Mapping[str, str] | None = None,
        torch_index: str = "",
        certificate: str | Path = "",
        no_cache: bool = False,
        cuda: int = DEFAULT_CUDA,
    ) -> int:
        """Build the image on your machine and return its size in bytes.

        Args:
            flavor: cpu or gpu; by default chosen by the hardware of your machine.
            tag: tag of the image; by default ``image`` of the hosts file.
            extras: frameworks to add.
            requirements: file of further packages.
            arguments: values for ARGs of the Dockerfile.
            torch_index: index or folder with the CPU wheel of torch.
            certificate: CA bundle that the build trusts.
            cuda: major version of the GPU image's CUDA, 12 or 13.

        Raises:
            BadInput: the Dockerfile has no such ARG, or an extra or the CUDA version is unknown.
            ImageError: the build failed.
        """
        recipe = ImageRecipe(
            known_flavor(flavor),
            tag or self._cluster.inventory.image,
            tuple((arguments or {}).items()),
            torch_index=torch_index,
            no_cache=no_cache,
            extras=tuple(extras),
            cuda=cuda,
        )
        with exclusive_build(recipe.kind, lambda line: None):
            build = make_build(recipe, str(certificate), str(requirements))
            return build_image(build, lambda title, line: None)

    def inspect(self) -> InspectedImage:
        """Run the probe in the image of the hosts file on your machine.

        Raises:
            ToolkitError: the image is not on your machine, or cannot run jobs.
        """
        return inspect_here(self._cluster.inventory.image)

    def rows(self) -> tuple[ImageRow, ...]:
        """Return the image in hosts.yaml, other images that toolkit sent, and partial transfers, by host."""
        with self._cluster.connect(questions=QUESTIONS) as session:
            return list_images(session)

    def prepare_prune(self) -> PreparedPlan:
        """Plan ``prune``; see ``Prepared``."""
        return prepare_image_prune(self._cluster)

    def prune(self) -> Report:
        """Remove from every host the old images that toolkit sent.

        The two newest images of each flavor, the image in hosts.yaml, images with a tag other than their
        content digest, and images that a container uses stay on the hosts.

        Raises:
            PlanFailed: a step failed on a host; contains the report.
        """
        return completed(self.prepare_prune())

    def prepare_send(self) -> PreparedImageSend:
        """Plan ``send``; see ``Prepared``."""
        return prepare_image_send(self._cluster)

    def send(self) -> Report:
        """Copy the missing layers of the image to every host, or let hosts pull the image.

        Raises:
            PlanFailed: a step failed on a host; contains the report.
        """
        return completed(self.prepare_send())
