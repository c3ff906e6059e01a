"""Creation and removal of a practice cluster, and a preview of both that changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from docker.errors import DockerException, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.models.volumes import Volume
from requests.exceptions import RequestException, Timeout

from toolkit.core.command import quoted
from toolkit.core.files import locked
from toolkit.core.printable import counted
from toolkit.core.report import Report
from toolkit.errors import LabError, ToolkitError
from toolkit.lab import commands as cmd
from toolkit.lab import files
from toolkit.lab.build import Book, Builder, Progress, silent, why_recreated
from toolkit.lab.engine import Found, LabEngine
from toolkit.lab.spec import LabSpec
from toolkit.lab.status import lab_status
from toolkit.lab.topology import LABEL_LAB_SETTINGS, host_settings, lab_hosts

_Object = Container | Network | Volume
_PHASES = {"container": "hosts", "network": "network", "volume": "volumes"}
# Docker 20.10 can count a connection of a removed container until the engine restarts.
_STALE_ENDPOINT = "has active endpoints"
# Common to all users, because names of containers and networks are.
_LOCKS = Path("/tmp")

__all__ = [
    "Progress",
    "lab_down",
    "lab_names",
    "lab_owner",
    "lab_status",
    "lab_up",
    "preview_down",
    "preview_up",
]


def lab_up(spec: LabSpec, progress: Progress = silent) -> Report:
    """Create or repair the lab according to ``spec``; the report has 0 changes if nothing was needed.

    Missing hosts are created; hosts that stopped or whose engine died are started again. If this call fails,
    it removes everything that it created.

    Args:
        progress: receives one line for each finished step.

    Raises:
        MissingTool: the docker command is missing, or no engine answers.
        LabError: the lab exists with other settings, or a host does not start.
        CommandFailed: a docker command line failed.
    """
    with _exclusive(spec.name, progress):
        return _up(spec, progress)


def _up(spec: LabSpec, progress: Progress) -> Report:
    engine = LabEngine()
    before = engine.find(spec.name)
    refuse_other_settings(spec, before)
    folder = Path(spec.folder)
    claimed = files.claim(folder, spec.name)
    builder = Builder(engine, spec, Book(progress))
    try:
        return builder.go(before)
    except BaseException:
        # Also on KeyboardInterrupt: a partial lab is useless.
        progress("lab up did not finish: removing the containers, networks and volumes that this run created")
        keep = {c.id for c in before.hosts.values()} | {n.id for n in before.networks}
        keep |= {v.name for v in before.volumes}
        try:
            try:
                # Without a common lock, another user can have created a lab of this name meanwhile.
                _remove(engine, spec.name, engine.find(spec.name).in_folder(spec.folder), keep)
            finally:
                if claimed:
                    files.remove_files(folder, spec.name)
        except ToolkitError as error:
            progress(f"could not remove everything that this run created: {error}")
        raise


def lab_down(name: str, keep_images: bool = False, folder: str = "", progress: Progress = silent) -> Report:
    """Remove all objects with the lab's label, its cgroups and files; verify that none is left.

    Args:
        keep_images: keep the hosts' volumes, so that the next lab of this name has the images already.
        folder: folder of the lab's files if no container or network with a label is left.

    Raises:
        LabError: the lab belongs to another user, or an object could not be removed.
    """
    with _exclusive(name, progress):
        return _down(name, keep_images, folder, progress)


def _down(name: str, keep_images: bool, folder: str, progress: Progress) -> Report:
    engine = LabEngine()
    book = Book(progress)
    found = engine.find(name)
    _refuse_foreign(name, found)
    kept = (v.name for v in found.volumes if v.name and not v.name.endswith("-shared"))
    keep = set(kept) if keep_images else set()
    _remove(engine, name, found, keep, book)
    since = time.monotonic()
    place = found.folder or folder
    if place and files.remove_files(Path(place), name):
        book.note("files", f"files in {place} removed", "", True, since)
    left = engine.find(name)
    if left.hosts or left.helpers or left.networks or (left.volumes and not keep_images):
        raise LabError(
            f"practice cluster {name} still has containers, networks or volumes",
            f"toolkit lab down --name {name}",
        )
    return book.report(f"lab {name} down")


def _exclusive(name: str, progress: Progress) -> AbstractContextManager[None]:
    """Wait until no other process creates or removes the lab, and let other processes wait meanwhile.

    A failed ``lab_up`` removes everything that was created since it began.

    Raises:
        ToolkitError: another process holds the lock for too long.
    """
    line = f"waiting for another command that creates or removes practice cluster {name}"
    return locked(_LOCKS / f"toolkit-lab-{name}.lock", lambda: progress(line))


def _refuse_foreign(name: str, found: Found) -> None:
    if os.geteuid() != 0 and (owner := files.foreign_owner(found.folder)):
        raise LabError(
            f"practice cluster {name} belongs to user {owner}",
            f"as user {owner}: toolkit lab down --name {name}",
        )


def lab_names() -> tuple[str, ...]:
    """Return the names of all labs on this machine that have any object.

    Raises:
        MissingTool: no docker command or no engine.
    """
    return LabEngine().labs()


def lab_owner(name: str) -> str:
    """Return the owner of a lab that this user cannot remove; otherwise empty."""
    return "" if os.geteuid() == 0 else files.foreign_owner(LabEngine().find(name).folder)


def _remove(
    engine: LabEngine, name: str, found: Found, keep: Collection[str | None], book: Book | None = None
) -> None:
    """Remove the objects except those in ``keep``, also if some objects cannot be removed.

    Raises:
        LabError: names each object that was not removed.
    """
    book = book or Book(silent)
    image = next((c.attrs["Image"] for c in found.hosts.values()), "") or engine.lab_image()
    failures: list[str] = []

    def remove(kind: str, things: Sequence[tuple[str, str, _Object]], **options: bool) -> None:
        since = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            reasons = list(pool.map(lambda each: _delete(kind, each[2], **options), things))
        failures.extend(filter(None, reasons))
        for (host, text, _), reason in zip(things, reasons, strict=True):
            if not reason:
                book.note(_PHASES[kind], text, host, True, since)

    doomed = [(host, c) for host, c in found.hosts.items() if c.id not in keep]
    doomed += [("", c) for c in found.helpers]
    remove("container", [(host, "container removed", c) for host, c in doomed], force=True, v=True)
    remove("network", [("", "network removed", net) for net in found.networks if net.id not in keep])
    volumes = [volume for volume in found.volumes if volume.name not in keep]
    remove("volume", [("", f"volume {volume.name} removed", volume) for volume in volumes])
    if failures:
        fix = f"toolkit lab down --name {name}"
        if any(_STALE_ENDPOINT in failure for failure in failures):
            fix = f"sudo systemctl restart docker  # Docker counts removed containers as connected\n{fix}"
        raise LabError(f"cannot remove practice cluster {name} completely: {'; '.join(failures)}", fix)
    # Also if the user removed the containers manually.
    if image and not (found.empty or found.hosts.keys() - {host for host, _ in doomed}):
        since = time.monotonic()
        engine.do(cmd.sweep_command(name, engine.helper(name), image))
        book.note("hosts", "control groups removed", "", True, since)


def _delete(kind: str, thing: _Object, **options: bool) -> str:
    """Remove an object of the engine, unless another `lab down` has removed it meanwhile.

    Returns:
        The object and the reason if the engine refused, or did not answer in time; otherwise "".
    """
    try:
        with suppress(NotFound):
            thing.remove(**options)
    except Timeout:
        return f"Docker did not remove {kind} {thing.name} in time"
    except (DockerException, RequestException) as error:
        return f"{kind} {thing.name}: {error}"
    return ""


def refuse_other_settings(spec: LabSpec, found: Found) -> None:
    """Raise LabError if a lab of this name exists with settings that cannot be changed to ``spec``."""
    fix = (
        f"toolkit lab down --name {spec.name}  # then run the same command again; to keep {spec.name}, "
        "choose another --name"
    )
    if found.folder and found.folder != spec.folder:
        if owner := files.foreign_owner(found.folder):
            raise LabError(
                f"practice cluster {spec.name} belongs to user {owner}",
                "toolkit lab up --name NAME  # choose another name, and add the options of your command",
            )
        raise LabError(
            f"the files of practice cluster {spec.name} are in the folder {found.folder}, "
            f"not in {spec.folder}",
            f"toolkit lab up --name {spec.name} --folder {quoted(found.folder)}\n{fix}",
        )
    wanted = {
        host.name: host_settings(spec, host) for host in lab_hosts(spec, "10.77.0.0/24", "10.77.1.0/24")
    }
    for name, container in found.hosts.items():
        if name not in wanted:
            raise LabError(
                f"practice cluster {spec.name} has {counted(len(found.hosts), 'host')}, but the command"
                f" requests {spec.hosts}",
                fix,
            )
        has = container.labels.get(LABEL_LAB_SETTINGS, "")
        if has != wanted[name]:
            raise LabError(
                f"practice cluster {spec.name} already exists with different settings: {name} was created "
                f"with the settings {has}",
                fix,
            )


def preview_up(spec: LabSpec) -> tuple[str, ...]:
    """Return a line for each object that ``lab_up`` would create or start; empty if the lab is complete.

    Raises:
        MissingTool: the docker command is missing, or no engine answers.
        LabError: the lab exists with other settings.
    """
    found = LabEngine().find(spec.name)
    refuse_other_settings(spec, found)
    return missing(spec, found)


def missing(spec: LabSpec, found: Found) -> tuple[str, ...]:
    """Return a line for each missing object of the lab, and for each container to start or recreate."""
    networks = {network.name for network in found.networks}
    lines = [f"create network {name}" for name in spec.networks if name not in networks]
    fresh = bool(lines)
    volumes = {volume.name for volume in found.volumes}
    # Names do not depend on the network, which the engine chooses.
    for host in lab_hosts(spec, "10.77.0.0/24"):
        there = found.hosts.get(host.name)
        made = [name for name, _ in host.volumes if name not in volumes]
        lines += [f"create volume {name}" for name in made]
        volumes.update(made)  # several hosts share one volume
        if there is None:
            lines.append(f"create {host.name}: container {host.container}, engine {host.engine}")
        elif why := why_recreated(fresh, there.status):
            lost = "toolkit deletes all files of the host that are not in a volume"
            lines.append(f"recreate {host.name}: container {host.container}, because {why}; {lost}")
        elif there.status != "running":
            lines.append(f"start {host.name}: container {host.container} (state: {there.status})")
    # A lab of an earlier version has no record of its files, so any text counts as edited.
    kept = files.is_edited(Path(spec.folder))
    name = "hosts.yaml, or hosts.new.yaml if you edited hosts.yaml" if kept else "hosts.yaml"
    write = f"write {spec.folder}/{name}"
    return (*lines, write) if lines else ()


def preview_down(name: str, keep_images: bool) -> tuple[str, ...]:
    """Return a line for each object that ``lab_down`` would remove; empty if there is none.

    Raises:
        MissingTool: the docker command is missing, or no engine answers.
        LabError: the lab belongs to another user.
    """
    found = LabEngine().find(name)
    _refuse_foreign(name, found)
    containers = [*found.hosts.values(), *found.helpers]
    lines = [f"remove container {container.name}" for container in containers]
    lines += [f"remove network {network.name}" for network in found.networks]
    lines += [] if keep_images else [f"remove volume {volume.name}" for volume in found.volumes]
    return (*lines, f"remove the files in {found.folder}") if found.folder else tuple(lines)
