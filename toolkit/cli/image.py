"""toolkit image: build, inspect, send, list and remove images."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from toolkit.api.image import ImagePart, prepare_image_prune, prepare_image_send
from toolkit.cli import complete
from toolkit.cli.common import (
    COMMON,
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connection_of,
    load,
    put_json,
    put_text,
    say,
    show_notice,
)
from toolkit.cli.line import CommandLine, listed
from toolkit.cli.plans import carry_out, carry_out_after_pull, exit_with
from toolkit.cluster.image_probe import inspect_here
from toolkit.core.printable import without_color
from toolkit.hostsfile.fields import image as image_name
from toolkit.hostsfile.load import is_file
from toolkit.image.build import build_image, exclusive_build
from toolkit.image.build_plan import EXTRAS, FLAVOURS, HOROVOD, NCCL, ImageRecipe
from toolkit.image.build_values import ImageBuild, build_progress
from toolkit.image.capabilities import capabilities_json, capabilities_text
from toolkit.image.cuda import CUDA_NAMES, DEFAULT_CUDA
from toolkit.image.lock import unlocked_text
from toolkit.image.make_build import known_flavor, make_build, make_onto
from toolkit.image.on_hosts import images_text

_TORCH_INDEX = "TOOLKIT_TORCH_INDEX"


def build(
    flavor: Annotated[
        str,
        typer.Option(
            metavar="cpu|gpu",
            help="Kind of image (default: gpu if you use --cuda or --nccl, or if your machine has a GPU; "
            "otherwise cpu)",
            autocompletion=complete.flavors,
        ),
    ] = "",
    cuda: Annotated[
        str,
        typer.Option(
            metavar="12|13",
            help="CUDA version in the GPU image; 12 is for older drivers and GPUs (default: 13)",
            autocompletion=complete.cudas,
        ),
    ] = "",
    nccl: Annotated[
        str,
        typer.Option(
            metavar="VERSION", help="NCCL version in the GPU image (default: the version that torch pins)"
        ),
    ] = "",
    tag: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the image (default: toolkit:FLAVOR, or toolkit:gpu-cuda12 with --cuda 12). With "
            "--onto, the default is IMAGE-ssh, or IMAGE-horovod if you add --with horovod",
        ),
    ] = "",
    base_image: Annotated[
        str,
        typer.Option(
            metavar="IMAGE",
            help="Base image (default: debian:bookworm-slim). The new image has the processor architecture "
            "of the base image if your machine has the base image, otherwise the architecture of your "
            "machine",
        ),
    ] = "",
    onto: Annotated[
        str,
        typer.Option(
            metavar="IMAGE",
            help="Add sshd, ssh, iproute2 and rsync to IMAGE instead of building an image from a base image",
        ),
    ] = "",
    build_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a build argument (ARG) of the Dockerfile"),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME[,NAME]",
            help=f"Add packages to the image: {', '.join(EXTRAS)}. The gpu image cannot contain tensorflow. "
            f"With --cuda 12, deepspeed is not available. With --onto, you can add only {HOROVOD}",
            autocompletion=complete.extras,
        ),
    ] = None,
    pip: Annotated[
        str,
        typer.Option("--pip", metavar="FILE", help="Add the Python packages of the requirements file FILE"),
    ] = "",
    torch_index: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar=_TORCH_INDEX,
            help="Package index or folder that contains the CPU wheel of torch (default: pip's index, then "
            "PyTorch's CPU index)",
        ),
    ] = "",
    certificate: Annotated[
        str,
        typer.Option(
            metavar="FILE", envvar="TOOLKIT_CA", help="File with CA certificates that the build trusts"
        ),
    ] = "",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not use the Docker build cache")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print the complete output of the build", rich_help_panel=COMMON
        ),
    ] = False,
) -> None:
    """Build the image on your machine.

    By default, the image contains Open MPI, PyTorch, Horovod and sshd. Your machine downloads the packages,
    so the hosts need no internet access.

    Examples:
        toolkit image build
        toolkit image build --flavor gpu --with transformers,deepspeed
        toolkit image build --cuda 12
        toolkit image build --flavor gpu --nccl 2.30.7 --tag my-image:2
        toolkit image build --flavor cpu --tag my-image:1 --pip requirements.txt
        toolkit image build --onto registry.example.com/pytorch:1.0
        toolkit image build --onto registry.example.com/pytorch:1.0 --with horovod
    """
    line = CommandLine()
    if flavor:
        line.one_of("--flavor", flavor, FLAVOURS)
    if cuda:
        line.one_of("--cuda", cuda, CUDA_NAMES)
        if flavor == "cpu":
            line.refuse("--cuda", "this option is available only for flavor gpu, found cpu")
    if tag:
        line.value("--tag", image_name, tag)
    if base_image:
        line.value("--base-image", image_name, base_image)
    for argument in build_arg or []:
        if not re.match("[^=]+=", argument):
            line.refuse(f"--build-arg {argument}", "should be NAME=VALUE")
    extras = tuple(filter(None, listed(with_)))
    if onto:
        line.value("--onto", image_name, onto)
        others = {
            "--flavor": flavor,
            "--cuda": cuda,
            "--nccl": nccl,
            "--base-image": base_image,
            "--build-arg": build_arg,
            "--pip": pip,
            # The variable can be set for other builds.
            "--torch-index": torch_index != os.environ.get(_TORCH_INDEX, "") and torch_index,
        }
        for option in (option for option, value in others.items() if value):
            line.refuse(option, "cannot be combined with --onto")
        for name in {*extras} - {HOROVOD}:
            line.refuse(f"--with {name}", f"cannot be combined with --onto, which can add only {HOROVOD}")
    for option, file in (("--pip", pip), ("--certificate", certificate)):
        if file and not is_file(file):
            line.refuse(option, f"there is no file {file}")
    line.end()
    if onto:
        known, kind, lock = "onto", f"additions to {onto}", "onto"
        make = partial(make_onto, onto, tag, HOROVOD in extras, certificate, no_cache)
    else:
        # Of two values for one ARG, the last one counts.
        given = [word.partition("=")[::2] for word in build_arg or []]
        given += [pair for pair in (("BASE_IMAGE", base_image), (NCCL, nccl)) if pair[1]]
        recipe = ImageRecipe(
            known_flavor(flavor or ("gpu" if cuda or nccl else "")),
            tag,
            tuple(given),
            torch_index=torch_index,
            no_cache=no_cache,
            extras=extras,
            cuda=int(cuda or DEFAULT_CUDA),
        )
        known, kind, lock = recipe.flavor, recipe.kind, recipe.kind
        make = partial(make_build, recipe, certificate, pip)
    with nullcontext() if dry_run else exclusive_build(lock, say):
        subject = make()
        if subject.unlocked:
            say(unlocked_text(subject.unlocked))
        if dry_run:
            _show_plan(subject, as_json)
        else:
            _build(subject, known, kind, verbose, as_json)


def _show_plan(subject: ImageBuild, as_json: bool) -> None:
    if as_json:
        put_json({"title": f"image build {subject.tag}", "dry_run": True, "plan": list(subject.lines())})
    else:
        put_text("\n".join(subject.lines()))


def _build(subject: ImageBuild, flavor: str, kind: str, verbose: bool, as_json: bool) -> None:
    start = time.monotonic()
    say(f"building {subject.tag} ({kind})")
    size = build_image(subject, _notifier(verbose))
    seconds = time.monotonic() - start
    limit = f" (limit: {subject.limit_bytes / 1e6:.0f} MB)" if subject.limit_bytes else ""
    say(f"{subject.tag}: {size / 1e6:.0f} MB{limit}, built in {seconds:.0f} s")
    if as_json:
        put_json({"image": subject.tag, "flavor": flavor, "bytes": size, "seconds": round(seconds, 1)})


def _notifier(verbose: bool) -> Callable[[str, str], None]:
    start = time.monotonic()
    last = ""

    def notify(title: str, line: str) -> None:
        nonlocal last
        if verbose:
            say(f"  {without_color(line)}")
            return
        shown = build_progress(line) if title == "build" else title
        if shown and shown != last:
            last = shown
            say(f"  {time.monotonic() - start:5.0f} s  {' '.join(shown.split())[:110]}")

    return notify


def inspect(
    image: Annotated[
        str, typer.Argument(metavar="[IMAGE]", help="Name of the image (default: the image in hosts.yaml)")
    ] = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    as_json: Json = False,
) -> None:
    """Show the launchers, libraries and compilers of an image.

    toolkit starts one short-lived container from the image on your machine, without network access and
    without the image's ENTRYPOINT. The output contains the transport that `transport: auto` selects, and a
    fix for each program or library that is missing from the image.

    Examples:
        toolkit image inspect
        toolkit image inspect registry.example.com/team/trainer:1.0
    """
    line = CommandLine()
    if image:
        line.value("IMAGE", image_name, image)
    line.end()
    found = inspect_here(image or load(hosts).image)
    if as_json:
        put_json(capabilities_json(found))
    else:
        put_text(capabilities_text(found))


def send(
    hosts: HostsFile = DEFAULT_HOSTS, dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False
) -> None:
    """Copy the image to every host, or let hosts pull it.

    toolkit sends only layers that are missing on a host, or the complete image if toolkit cannot read
    individual layers. With `pull: always` in hosts.yaml, each host pulls the image from the registry. With
    `pull: missing` in hosts.yaml, only hosts without the image pull the image. `toolkit up` copies the image
    or lets hosts pull it, as `toolkit image send` does.

    Examples:
        toolkit image send
        toolkit image send --dry-run
    """
    with prepare_image_send(connection_of(load(hosts), verbose, show_notice)) as prepared:
        report = carry_out_after_pull(prepared, dry_run, as_json, verbose)
    exit_with(report)


def list_(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show which host has which image.

    toolkit lists the image in hosts.yaml, other images that toolkit sent, and layers of transfers that are in
    progress or were interrupted. The next transfer reuses layers of interrupted transfers. Images that
    toolkit sent have a tag that contains their content digest.

    Examples:
        toolkit image ls
        toolkit image ls --json
    """
    inventory = load(hosts)
    rows = ImagePart(connection_of(inventory, verbose)).rows()
    if as_json:
        put_json({"image": inventory.image, "rows": [asdict(row) for row in rows]})
    else:
        put_text(images_text(rows))
    if any(row.state == "unreachable" for row in rows):
        raise typer.Exit(1)


def prune(
    hosts: HostsFile = DEFAULT_HOSTS, dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False
) -> None:
    """Remove old images that toolkit sent to the hosts.

    `toolkit image prune` removes layers of interrupted transfers, and old images that toolkit sent.
    `toolkit image prune` keeps the image in hosts.yaml, images that a running or stopped container uses, and
    images with a tag other than their content digest. `toolkit image prune` keeps the two newest images of
    each flavor (cpu or gpu), and the two newest images without a flavor.

    Examples:
        toolkit image prune --dry-run
        toolkit image prune
    """
    with prepare_image_prune(connection_of(load(hosts), verbose, show_notice)) as prepared:
        report = carry_out(prepared, dry_run, as_json, verbose)
    exit_with(report)
