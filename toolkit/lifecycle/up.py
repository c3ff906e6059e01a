"""The plan of `up`: image, files, keys, containers, a login of main on every worker, services."""

from __future__ import annotations

import functools
import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from toolkit import __version__
from toolkit.cluster.applied import FILE as APPLIED
from toolkit.cluster.applied import applied_text
from toolkit.cluster.container_status import REMOVE_OWN, lost_steps, runs_already, start_step
from toolkit.cluster.containers import (
    EMPTY,
    SSHD_ARGV,
    cluster_container,
    group_file,
    hosts_file,
    passwd_file,
    runs_sshd_as_root,
    ssh_config,
    worker_sshd_config,
)
from toolkit.cluster.keys import CLUSTER_KEY, HOST_KEY, key_step, trust_steps
from toolkit.cluster.layout import Layout, Place
from toolkit.cluster.state_folders import known_files
from toolkit.core.command import Ref, command, script
from toolkit.core.engines import ENGINE_FAILED
from toolkit.core.facts import Facts
from toolkit.core.image import listed_name
from toolkit.core.report import FailureCause
from toolkit.data.plan import folder_steps, plan_data
from toolkit.hostsfile.inventory import DataSet
from toolkit.network.settings import variables
from toolkit.plan.steps import (
    Failure,
    File,
    Folder,
    Phase,
    Plan,
    Run,
    SendImage,
    Stamp,
    Step,
    Upload,
    WaitFor,
)
from toolkit.protocol.names import MAIN, WORKER, container_name, image_names, program
from toolkit.protocol.shards import Content
from toolkit.protocol.transport import NOT_FOUND, without_sshd
from toolkit.services.plan import lost_services, service_folders, service_phases

_FOLDERS = ("jobs", "home", "etc")
# Those that a role alone has, and those of both.
_OF_ROLE = {
    MAIN: (CLUSTER_KEY, f"{CLUSTER_KEY}.pub"),
    WORKER: (HOST_KEY, f"{HOST_KEY}.pub", "authorized_keys", "sshd_config"),
}
_OF_SSH = ("conf/ssh_config", "conf/known_hosts", "etc/ssh_config")
# Another user can have created the folder to read the keys, so its owner is checked. Each folder gets its
# mode when it is created, because a default ACL of a parent folder takes the place of the umask.
# Arguments: the container of the other role, its owner, a folder that must belong to this user or "", files
# to remove, "--", folders to create, each after its parent.
_MAKE_FOLDERS = f"""umask 077{REMOVE_OWN}base=$1; shift
if [ -n "$base" ]; then
  mkdir -p -m 700 "$base" || exit
  [ "$(stat -c %u "$base")" = "$(id -u)" ] || {{ echo "$base belongs to another user" >&2; exit 1; }}
fi
while [ "$1" != -- ]; do [ ! -e "$1" ] && [ ! -L "$1" ] || rm -f "$1" || exit; shift; done
shift
# Again: the removal of the user's last other cluster can remove a parent folder between two steps.
mkdir -p -m 700 "$@" 2>/dev/null || mkdir -p -m 700 "$@"
"""
_FOLDERS_ARE_THERE = """
[ -z "$1" ] || ! docker container inspect "$1" || exit 1; shift 3
while [ "$1" != -- ]; do [ ! -e "$1" ] || exit 1; shift; done
shift
for f; do [ -d "$f" ] || exit 1; done
"""
# sshd's own words, and their meaning if the port was free during the probe.
_NOT_BOUND = r"Bind to port \d+ on .* failed: Address already in use"
_EXIT_CODE = "the container exited with "
_LAST_WORDS = f"""
docker logs --tail 3 "$1" 2>&1
docker inspect --format '{{{{if not .State.Running}}}}{_EXIT_CODE}{{{{.State.ExitCode}}}}{{{{end}}}}' "$1"
"""
# The engine can rotate the log, so the line is not required of $2, a container whose sshd listened during the
# probe; empty for none.
_LISTENS = """
[ -n "$2" ] && [ "$(docker inspect --format '{{.Id}} {{.State.Running}}' "$1")" = "$2 true" ] ||
  docker logs "$1" 2>&1 | grep -q "^Server listening on "
"""
_PORT_TAKEN = "another process took the port while sshd started"


def plan_up(
    layout: Layout,
    inside: Mapping[str, str],
    prepare: bool = False,
    data: Sequence[tuple[DataSet, str, Content]] = (),
) -> Plan:
    """Return the plan that starts or repairs the cluster.

    Args:
        layout: from ``make_layout``.
        inside: path and text of each file of the folder of programs.
        prepare: stop before containers start, for users who start the containers themselves.
        data: what is staged first, see ``toolkit.data.plan``; without it its folders are made.
    """
    places, workers, main = layout.places, layout.workers, layout.main
    phases = [
        Phase("image", tuple(s for p in places for s in image_steps(layout, p))),
        *_data_phases(layout, data),
        Phase("files", _all_file_steps(layout, inside)),
    ]
    if layout.port:
        phases += [
            Phase("keys", tuple(key_step(layout, p) for p in places)),
            Phase("trust", trust_steps(layout)),
        ]
    if not prepare:
        phases += [
            Phase("containers", tuple(start_step(cluster_container(layout, p), p.facts) for p in places)),
            Phase("sshd", tuple(_wait_step(layout, p) for p in workers if layout.has_sshd(p))),
            Phase("login", (_prove_step(layout, main),) if main and workers and layout.port else ()),
            *service_phases(layout),
            # Last, so that a host on which `up` failed keeps the record of what it still runs.
            Phase("record", tuple(_record_step(layout, p) for p in places)),
        ]
    return Plan(f"up {layout.inventory.cluster}", tuple(p for p in phases if p.steps))


def _data_phases(layout: Layout, data: Sequence[tuple[DataSet, str, Content]]) -> tuple[Phase, ...]:
    if not data:
        return (
            Phase("data", tuple(s for p in layout.places for s in folder_steps(layout.inventory, p.name))),
        )
    facts = {place.name: place.facts for place in layout.places}
    paths = {path.host: path for path in layout.paths}
    return plan_data(layout.inventory, facts, paths, data, layout.reference).phases


def image_steps(layout: Layout, place: Place) -> tuple[Step, ...]:
    """Return the steps that send the image to a host that does not have it, and tag it by its digest."""
    present = next((i for i in place.facts.images if i.identity == layout.image.identity), None)
    tag = layout.inventory.image
    if present is None:
        image = layout.image
        link = place.facts.link(place.path.interface)
        title, mbit = f"send image {tag}", link.rate if link else 0.0
        about = (image.identity, image.id, place.path.address, mbit, layout.inventory.cluster)
        return (SendImage(place.name, title, tag, *about),)
    # The name that the image has already: another tag of Podman would hide the next image that is pulled.
    names = image_names(layout.image.identity, listed_name(tag, present.tags) or tag)
    name = script('id=$1; shift; for name; do docker tag "$id" "$name" || exit; done', present.id, *names)
    there = script(
        # Podman prints it without the algorithm.
        "id=${1#sha256:}; shift; for name; do "
        'is=$(docker image inspect --format "{{.Id}}" "$name"); [ "${is#sha256:}" = "$id" ] || exit; done',
        present.id,
        *names,
    )
    known = "" if set(names) <= set(present.tags) else None
    return (Run(place.name, "tag the image with its content digest", name, unless=there, known=known),)


def plan_image_send(layout: Layout) -> Plan:
    """Return the plan that sends the image to every host."""
    steps = tuple(step for place in layout.places for step in image_steps(layout, place))
    return Plan(f"image send {layout.inventory.image}", (Phase("image", steps),))


_Text = tuple[str]


def _all_file_steps(layout: Layout, inside: Mapping[str, str]) -> tuple[Step, ...]:
    @functools.cache
    def texts(kept: tuple[tuple[str, str], ...], user: str) -> tuple[_Text, _Text]:
        # What is the same for all is made once: with a thousand hosts it is long.
        paths = layout.paths_with(kept)
        client = ssh_config(paths, layout.port, user) if layout.port else ""
        return (hosts_file(paths),), (client,)

    programs = tuple(
        File(name, (inside[name],), 0o755 if name.endswith(".sh") else 0o644, in_place=name.endswith(".sh"))
        for name in sorted(inside)
    )
    return tuple(
        s for p in layout.places for s in _file_steps(layout, p, programs, *texts(layout.kept(p), p.user))
    )


def _file_steps(
    layout: Layout, place: Place, programs: tuple[File, ...], hosts: _Text, client: _Text
) -> tuple[Step, ...]:
    state, facts = place.state, place.facts
    own = sorted({"inside", *(f"inside/{folder}" for file in programs for folder in _parents(file.path))})
    empty = (EMPTY,) if runs_sshd_as_root(layout, place) else ()
    others = (*_FOLDERS, *empty, *service_folders(layout.inventory, place.name))
    folders = [f"{state}/{name}" for name in ("conf", *own, *others)]
    # What the host had in its other role: a worker keeps no key that opens workers, main accepts no login.
    role = WORKER if place.role == MAIN else MAIN
    stale = [f"{state}/conf/{name}" for name in _OF_ROLE[role]]
    if not layout.port:  # or another transport, which needs no key
        stale += [f"{state}/conf/{name}" for name in _OF_ROLE[place.role]]
        stale += [f"{state}/{name}" for name in _OF_SSH]
    base = state.rsplit("/", 3)[0] if layout.inventory.state_dir else ""
    other = container_name(layout.inventory.cluster, role)
    outer = (state.rsplit("/", 2)[0], state.rsplit("/", 1)[0], state)
    about = (facts.user, base, *stale, "--", *outer, *folders)
    make = script(_MAKE_FOLDERS, other, *about)
    # Only one that existed during the probe is searched for again.
    there = script(
        _FOLDERS_ARE_THERE, other if any(c.name == other for c in facts.containers) else "", *about
    )
    myself = {
        "cluster": layout.inventory.cluster,
        "host": place.name,
        "address": place.path.address,
        "interface": place.path.interface,
        "network": variables(layout.settings.get(place.name, ())),
    }
    files = [
        File(f"{state}/conf/host.json", (json.dumps(myself, sort_keys=True) + "\n",)),
        *_ssh_files(layout, place, client),
        # Mounted one by one, so the inode must stay; sessions of other users never see this folder.
        File(f"{state}/etc/hosts", hosts, 0o644, in_place=True),
        File(f"{state}/etc/passwd", (passwd_file(facts, place.user),), 0o644, in_place=True),
        File(f"{state}/etc/group", (group_file(facts, place.user),), 0o644, in_place=True),
    ]
    # Last, so that it is true of all the others.
    files.append(File(f"{state}/version", (f"{__version__}\n",)))
    shared = Folder(f"{state}/inside", programs)
    # In the order of Upload.every, which is slower for a thousand hosts.
    paths = (*(f"{shared.path}/{file.path}" for file in programs), *(file.path for file in files))
    known = known_files(facts, paths)
    return (
        *lost_steps(cluster_container(layout, place), facts),
        *lost_services(layout, place),
        Run(
            place.name,
            "create the state directories",
            make,
            unless=there,
            known="" if _have_folders(facts, other, folders, stale) else None,
        ),
        Upload(place.name, "write the configuration", tuple(files), (shared,), known),
    )


def _have_folders(facts: Facts, other: str, folders: Sequence[str], stale: Sequence[str]) -> bool:
    """Return True if the facts show the folders, no stale file, and no container of the other role."""
    there = {f"{facts.state_dir}/{file.path}": file.mode for file in facts.state_files}
    named = any(container.name == other for container in facts.containers)
    return (
        not named
        and all(stat.S_ISDIR(there.get(path, 0)) for path in folders)
        and there.keys().isdisjoint(stale)
    )


def _parents(path: str) -> list[str]:
    return [str(folder) for folder in PurePosixPath(path).parents[:-1]]


def _ssh_files(layout: Layout, place: Place, client: _Text) -> tuple[File, ...]:
    if not layout.port:
        return ()
    state = place.state
    files = (
        File(f"{state}/conf/ssh_config", client),
        File(f"{state}/etc/ssh_config", client, 0o644, in_place=True),
    )
    if not layout.has_sshd(place):
        return files
    return (*files, File(f"{state}/conf/sshd_config", (worker_sshd_config(layout, place),)))


def _wait_step(layout: Layout, place: Place) -> Step:
    name = container_name(layout.inventory.cluster, WORKER)
    taken = "toolkit up"
    if layout.inventory.worker_port_fixed:
        taken = (
            f"on {place.name}: sudo ss -ltnp 'sport = :{layout.port}'"
            "  # prints the process that uses the port; or remove worker_port from hosts.yaml"
        )
    there = runs_already(cluster_container(layout, place), place.facts) or ""
    known = (place.path.address, layout.port) in place.facts.listening and there != ""
    return WaitFor(
        place.name,
        f"wait for sshd on {place.path.address}:{layout.port}",
        ready=script(_LISTENS, name, there if known else ""),
        alive=script('test "$(docker inspect --format "{{.State.Running}}" "$1")" = true', name),
        explain=script(_LAST_WORDS, name),
        known=known,
        deadline=30,
        failures=(
            Failure(
                rf"(?m)^{_EXIT_CODE}{NOT_FOUND}$",
                f"the image does not contain {SSHD_ARGV[0]}",
                without_sshd(layout.inventory.image),
            ),
            Failure(_NOT_BOUND, _PORT_TAKEN, taken, FailureCause.PORT_TAKEN),
        ),
        fix=f"on {place.name}: {place.facts.engine} logs {name}",
        id="sshd listens",
    )


def _record_step(layout: Layout, place: Place) -> Step:
    text = applied_text(layout.inventory, place.name, layout.image.identity)
    file = File(f"{place.state}/{APPLIED}", (text,))
    known = known_files(place.facts, (file.path,))
    return Upload(place.name, "record the settings", (file,), known=known)


def _prove_step(layout: Layout, main: Place) -> Step:
    name = container_name(layout.inventory.cluster, MAIN)
    workers = [Ref(p.name, "container", f"{p.name}=") for p in layout.workers]
    # For these very containers, and the address from which workers admit main.
    own = Ref(main.name, "container", f"{main.path.address}=", "\n")
    proved = (own, *(replace(each, after="\n") for each in workers))
    return Run(
        main.name,
        "test the SSH login from the main container to every worker container",
        command("docker", "exec", name, *program("check.login"), *workers),
        unless=Stamp(f"{main.state}/conf/proved", proved),
        known=main.facts.proved or None,
        timeout=90,
        again=ENGINE_FAILED,
        fix="toolkit status  # if every worker container runs, check the firewall between the data addresses",
    )
