"""Building an image: what this machine has goes in, a plan comes out, the plan is carried out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from toolkit.core.build import ImageBuild
from toolkit.effects.image_build import (
    Notify,
    build_image,
    default_cache,
    read_sources,
    source_folder,
    wheelhouse_files,
)
from toolkit.plan.image import CONTEXT_FILES, PROXY_VARIABLES, ImageRecipe, plan_image, wheelhouse_of

__all__ = ["ImageRecipe", "build", "make_build", "pick_flavour"]


def pick_flavour() -> str:
    """Return ``gpu`` where this machine's nvidia-smi lists a GPU, else ``cpu``."""
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith("GPU "):
            return "gpu"
    return "cpu"


def make_build(recipe: ImageRecipe, certificate: str = "") -> ImageBuild:
    """Return what would be done to build the image, given what is in the wheelhouse already.

    Raises:
        BadInput: an ARG that the Dockerfile lacks.
    """
    name = f"Dockerfile.{recipe.flavour}"
    sources = read_sources(source_folder(), (name, *CONTEXT_FILES))
    cache = default_cache(os.environ)
    wheelhouse = wheelhouse_of(recipe, sources[name], cache)
    return plan_image(
        recipe,
        sources,
        wheelhouse_files(wheelhouse),
        cache=cache,
        python=sys.executable,
        proxies=[name for name in PROXY_VARIABLES if os.environ.get(name)],
        certificate=certificate,
    )


def build(subject: ImageBuild, notify: Notify) -> int:
    """Build the image and return its size in bytes; see ``toolkit.effects.image_build.build_image``."""
    return build_image(subject, notify)
