"""The steps of `up` that make keys where they belong, and write who may log in where."""

from __future__ import annotations

from toolkit.core.command import Ref, script
from toolkit.core.names import MAIN, WORKER
from toolkit.core.typed import Kind
from toolkit.plan.layout import Layout, Place
from toolkit.plan.steps import File, Run, Step, Upload
from toolkit.render.ssh import authorized_keys_line, known_hosts_line

HOST_KEY, CLUSTER_KEY = "ssh_host_ed25519_key", "id_ed25519"
_BEGIN, _END = "<key:", ">"
# By the host's own ssh-keygen, as a container takes ten times as long to start; by the image's where there is
# none, or where its policy allows no such key. Half a pair would make it ask. Arguments: the private key's
# path, its comment, the command that makes it in a container.
_MAKE_KEY = """
key=$1 comment=$2; shift 2
rm -f "$key" "$key.pub"
ssh-keygen -q -t ed25519 -N "" -C "$comment" -f "$key" </dev/null >/dev/null 2>&1 && exit
rm -f "$key" "$key.pub"
exec "$@"
"""


def key_step(layout: Layout, place: Place) -> Step:
    """Make a key pair where it belongs; only the public half is read."""
    name, what = (CLUSTER_KEY, "cluster") if place.role == MAIN else (HOST_KEY, "host")
    key = f"{place.state}/conf/{name}"
    comment = f"{layout.inventory.cluster}/{place.name}"
    in_container = (
        *("docker", "run", "--rm", "--network", "none", *place.facts.as_user),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--mount", f"type=bind,source={place.state}/conf,target=/keys"),
        # ssh-keygen asks who it runs as.
        *("--mount", f"type=bind,source={place.state}/etc/passwd,target=/etc/passwd,readonly"),
        *(layout.reference, "ssh-keygen", "-q", "-t", "ed25519", "-N", ""),
        *("-C", comment, "-f", f"/keys/{name}"),
    )
    return Run(
        place.name,
        f"make the {what} key",
        script(_MAKE_KEY, key, comment, *in_container),
        unless=script('[ -s "$1" ] && [ -s "$1.pub" ]', key),
        # Without the comment: type and key alone.
        reads=script('read -r type key rest <"$1.pub" && printf "%s %s" "$type" "$key"', key),
        saves=what,
        kind=Kind.PUBLIC_KEY,
    )


def trust_steps(layout: Layout) -> tuple[Step, ...]:
    """Write on hosts whom they know and who may log in; keys of hosts that are away are those remembered."""
    main = layout.inventory.main
    known = [p.facts.remembered for p in layout.places]
    keys = {name: key for r in known for name, key in r.keys}
    main_key = next((r.main_key for r in known if r.main_key), "")
    hosts: list[str | Ref] = []
    for path in layout.paths:
        if path.host != main:
            line = known_hosts_line(path, layout.port, f"{_BEGIN}{path.host}{_END}")
            hosts.append(_with_key(line, path.host, "host", keys.get(path.host, "")))
    # The same for all, made once: with a thousand hosts it is long.
    whom = tuple(hosts)
    address = next((p.address for p in layout.paths if p.host == main), "")
    # While main has never answered nobody may log in: then there is no such file.
    who: tuple[str | Ref, ...] = ()
    if address and (layout.main or main_key):
        line = authorized_keys_line(address, f"{_BEGIN}{main}{_END}")
        who = (_with_key(line, main, "cluster", main_key),)
    steps = []
    for place in layout.places:
        files = [File(f"{place.state}/conf/known_hosts", whom)]
        if place.role == WORKER and who:
            files.append(File(f"{place.state}/conf/authorized_keys", who))
        steps.append(Upload(place.name, "write who may log in where", tuple(files)))
    return tuple(steps)


def _with_key(line: str, host: str, name: str, remembered: str) -> Ref:
    before, after = line.split(f"{_BEGIN}{host}{_END}")
    return Ref(host, name, before, after, otherwise=remembered)
