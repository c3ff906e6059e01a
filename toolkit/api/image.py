"""The image: built here, sent to the hosts, and what they keep of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.api.connection import Connection
from toolkit.api.part import Part
from toolkit.api.prepared import Notices, PreparedAfterPull, PreparedPlan, closed_on_error, report_silent
from toolkit.cluster.layout import Layout
from toolkit.core.report import Report, refuse_failed
from toolkit.image.inventory import ImageRow
from toolkit.image.manage import (
    QUESTIONS,
    ImageRecipe,
    build,
    known_flavour,
    list_images,
    make_build,
    own_arch,
    prune_plan,
)
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
    """Connect to the hosts and plan what brings the image to each host that is without it."""
    session = cluster.connect(local_image=cluster.inventory.pull == "never")
    with closed_on_error(session):
        return PreparedImageSend(cluster, session, Notices(cluster))


def prepare_image_prune(cluster: Connection) -> PreparedPlan:
    """Connect to the hosts and plan what removes the images of toolkit that nobody needs."""
    session = cluster.connect(questions=QUESTIONS, local_image=cluster.inventory.pull == "never")
    with closed_on_error(session):
        return PreparedPlan(cluster, session, Notices(cluster), prune_plan(session))


class ImagePart(Part):
    """The image: built here, sent to the hosts, and what they keep of ours."""

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
    ) -> int:
        """Build the image on this machine and return its size in bytes.

        Args:
            flavor: cpu or gpu; by what this machine has by default.
            tag: the hosts file's name for the image by default.
            extras: frameworks to add; requirements: file of further packages.
            arguments: ARGs of the Dockerfile.
            torch_index: index or folder with the CPU wheel of torch.
            certificate: CA bundle that the build shall trust.

        Raises:
            BadInput: an ARG that the Dockerfile lacks, or what cannot be added.
            ImageError: it could not be built.
        """
        recipe = ImageRecipe(
            known_flavour(flavor),
            tag or self._cluster.inventory.image,
            tuple((arguments or {}).items()),
            arch=own_arch(),
            torch_index=torch_index,
            no_cache=no_cache,
            extras=tuple(extras),
        )
        return build(make_build(recipe, str(certificate), str(requirements)), lambda title, line: None)

    def rows(self) -> tuple[ImageRow, ...]:
        """Return what every host holds of the image, and what else of ours it keeps."""
        with self._cluster.connect(questions=QUESTIONS) as session:
            return list_images(session)

    def prepare_prune(self) -> PreparedPlan:
        """Plan ``prune``, see ``Prepared``."""
        return prepare_image_prune(self._cluster)

    def prune(self) -> Report:
        """Remove images of ours that nobody needs from every host; never one that is used, or that you named.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.prepare_prune() as prepared:
            return refuse_failed(prepared.execute(self._cluster.listen))

    def prepare_send(self) -> PreparedImageSend:
        """Plan ``send``, see ``Prepared``."""
        return prepare_image_send(self._cluster)

    def send(self) -> Report:
        """Bring the image to every host that lacks it: the layers that it lacks, or its own pull.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.prepare_send() as prepared:
            return refuse_failed(prepared.execute(self._cluster.listen))
