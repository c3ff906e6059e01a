"""SSH keys of a cluster: the steps that create them on the hosts, and write who may log in where."""

from __future__ import annotations

import functools

from toolkit.cluster.layout import Layout, Place
from toolkit.cluster.state_folders import known_files
from toolkit.core.command import Kind, Ref, script
from toolkit.core.container import CONFINED
from toolkit.core.templates import render_template
from toolkit.network.choose import DataPath
from toolkit.plan.steps import File, Run, Step, Upload
from toolkit.protocol.names import MAIN, WORKER

HOST_KEY, CLUSTER_KEY = "ssh_host_ed25519_key", "id_ed25519"
# The placeholder of a key in a line of a template.
_KEY = "<key>"
# Use the host's ssh-keygen, because a container takes ten times as long to start; use the image's if the host
# has none, or its policy allows no such key. ssh-keygen would ask about half a pair, and gives the file a
# wider mode if the folder has a default ACL. Arguments: the private key's path, its comment, the command that
# creates it in a container.
_MAKE_KEY = """
key=$1 comment=$2; shift 2
rm -f "$key" "$key.pub"
ssh-keygen -q -t ed25519 -N "" -C "$comment" -f "$key" </dev/null >/dev/null 2>&1 || {
  rm -f "$key" "$key.pub"
  "$@" || exit
}
chmod 600 "$key"
"""


def known_hosts_line(path: DataPath, port: int, key: str) -> str:
    """Return a host's line; ``key`` is the public half as ``ssh-ed25519 AAAA…``."""
    return render_template("ssh/known_hosts.j2", path=path, port=port, key=key)


def authorized_keys_line(main_address: str, key: str) -> str:
    """Return the line that admits main, only from main's address."""
    return render_template("ssh/authorized_keys.j2", address=main_address, key=key)


def key_step(layout: Layout, place: Place) -> Step:
    """Return the step that creates a key pair on its host; only the public half is read."""
    name, what = (CLUSTER_KEY, "cluster") if place.role == MAIN else (HOST_KEY, "host")
    key = f"{place.state}/conf/{name}"
    comment = f"{layout.inventory.cluster}/{place.name}"
    in_container = (
        *("docker", "run", "--rm", "--network", "none", *CONFINED, *place.facts.as_user),
        *("--mount", f"type=bind,source={place.state}/conf,target=/keys"),
        # ssh-keygen looks up its user name.
        *("--mount", f"type=bind,source={place.state}/etc/passwd,target=/etc/passwd,readonly"),
        *(layout.reference, "ssh-keygen", "-q", "-t", "ed25519", "-N", ""),
        *("-C", comment, "-f", f"/keys/{name}"),
    )
    return Run(
        place.name,
        f"create the {what} key",
        script(_MAKE_KEY, key, comment, *in_container),
        unless=script('[ -s "$1" ] && [ -s "$1.pub" ]', key),
        # Without the comment: type and key alone.
        reads=script('read -r type key rest <"$1.pub" && printf "%s %s" "$type" "$key"', key),
        saves=what,
        kind=Kind.PUBLIC_KEY,
        known=dict(place.facts.public_keys).get(name),
    )


def trust_steps(layout: Layout) -> tuple[Step, ...]:
    """Return steps that write the known workers to each host and, on workers, the key of main.

    For a host that did not answer, or that fails, each file keeps its own earlier line: one host does not
    decide about the content on another. While main is unreachable, ``authorized_keys`` is not written.
    """
    main = layout.main

    # Hosts that remember the same values share one tuple: with a thousand hosts it is long.
    @functools.cache
    def known_hosts(
        kept: tuple[tuple[str, str], ...], keys: tuple[tuple[str, str], ...]
    ) -> tuple[str | Ref, ...]:
        own = dict(keys)
        return tuple(
            _with_key(known_hosts_line(path, layout.port, _KEY), path.host, "host", own.get(path.host, ""))
            for path in layout.paths_with(kept)
            if path.host != layout.inventory.main
        )

    steps = []
    for place in layout.places:
        remembered = place.facts.remembered
        known = known_hosts(layout.kept(place), remembered.keys)
        files = [File(f"{place.state}/conf/known_hosts", known)]
        if place.role == WORKER and main is not None:
            line = authorized_keys_line(main.path.address, _KEY)
            let_in = _with_key(line, main.name, "cluster", remembered.main_key)
            files.append(File(f"{place.state}/conf/authorized_keys", (let_in,)))
        there = known_files(place.facts, (file.path for file in files))
        title = "write SSH keys for logins between containers"
        steps.append(Upload(place.name, title, tuple(files), known=there))
    return tuple(steps)


def _with_key(line: str, host: str, name: str, remembered: str) -> Ref:
    before, after = line.split(_KEY)
    return Ref(host, name, before, after, otherwise=remembered)
