"""What `lab up` and `lab down` would do, found by looking and told as lines; nothing is changed."""

from __future__ import annotations

from pathlib import Path

from toolkit.lab.engine import Found, LabEngine
from toolkit.lab.files import is_edited
from toolkit.lab.manage import refuse_other_settings
from toolkit.lab.spec import LabSpec
from toolkit.lab.topology import lab_hosts


def preview_up(spec: LabSpec) -> tuple[str, ...]:
    """Return a line for each thing that ``lab_up`` would make or start; empty when all is there.

    Raises:
        MissingTool: no docker command or no engine.
        LabError: the lab exists with other settings.
    """
    found = LabEngine().find(spec.name)
    refuse_other_settings(spec, found)
    return missing(spec, found)


def missing(spec: LabSpec, found: Found) -> tuple[str, ...]:
    """Return a line for each thing that the lab lacks, and for each that does not run."""
    lines = [] if found.networks else [f"make network {spec.network}"]
    volumes = {volume.name for volume in found.volumes}
    # Names do not depend on the network, which the engine chooses.
    for host in lab_hosts(spec, "10.77.0.0/24"):
        there = found.hosts.get(host.name)
        made = [name for name, _ in host.volumes if name not in volumes]
        lines += [f"make volume {name}" for name in made]
        volumes.update(made)  # hosts share one
        if there is None:
            lines.append(f"make {host.name}: container {host.container}, engine {host.engine}")
        elif there.status != "running":
            lines.append(f"start {host.name}: container {host.container} is {there.status}")
    # A lab of an earlier version has no record of what it wrote, so that any text counts as edited here.
    kept = is_edited(Path(spec.folder))
    name = "hosts.new.yaml if hosts.yaml was edited, else hosts.yaml" if kept else "hosts.yaml"
    write = f"write {spec.folder}/{name}"
    return (*lines, write) if lines else ()


def preview_down(name: str, keep_images: bool) -> tuple[str, ...]:
    """Return a line for each thing that ``lab_down`` would remove; empty when there is nothing.

    Raises:
        MissingTool: no docker command or no engine.
    """
    found = LabEngine().find(name)
    containers = [*found.hosts.values(), *found.helpers]
    lines = [f"remove container {container.name}" for container in containers]
    lines += [f"remove network {network.name}" for network in found.networks]
    lines += [] if keep_images else [f"remove volume {volume.name}" for volume in found.volumes]
    return (*lines, f"remove the files in {found.folder}") if found.folder else tuple(lines)
