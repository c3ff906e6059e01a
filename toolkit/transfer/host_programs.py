"""Commands that run a program of toolkit/container directly on a host that has no files of toolkit yet."""

from __future__ import annotations

import base64
import zlib

from toolkit.core.command import Command, command, script
from toolkit.core.container import CONFINED
from toolkit.core.host_programs import packed

_START = r"""
no() { echo "{\"missing\": \"$1\"}"; exit; }
command -v python3 >/dev/null || no "the host has no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' || no "the python3 of the host is older than 3.8"
# These variables let `toolkit down` find the program if its connection hangs, and protect the partial images
# of the image that it receives.
TOOLKIT_CLUSTER=$1 TOOLKIT_RELAY=$2 TOOLKIT_LOAD='docker load --quiet'
export TOOLKIT_CLUSTER TOOLKIT_RELAY TOOLKIT_LOAD; shift 2
exec python3 -I -S -c 'import base64, sys, zlib; exec(zlib.decompress(base64.b64decode(sys.argv.pop())))' "$@"
"""
# Arguments: the data folder, its record, the cluster, the fallback image, then USER:GROUP and the network of
# its container.
_START_IN = r"""
folder=$1 account=$2 cluster=$3 image=$4 user=$5 network=$6; shift 6; umask 022
TOOLKIT_CLUSTER=$cluster; export TOOLKIT_CLUSTER
no() { echo "{\"missing\": \"$1\"}"; exit; }
mkdir -p "$folder" && (umask 077; mkdir -p "$account") || exit
code='import base64, sys, zlib; exec(zlib.decompress(base64.b64decode(sys.argv.pop())))'
if command -v python3 >/dev/null && python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))'; then
  exec python3 -I -S -c "$code" "$@"
fi
docker image inspect "$image" >/dev/null 2>&1 || no "the host and its images have no python3 3.8 or newer"
exec docker run --rm -i --network "$network" --user "$user" @confined@ \
  --env TOOLKIT_CLUSTER --mount "type=bind,source=$folder,target=$folder" \
  --mount "type=bind,source=$account,target=$account" "$image" python3 -I -S -c "$code" "$@"
""".replace("@confined@", " ".join(CONFINED))


def relay_program(cluster: str, identity: str, address: str) -> Command:
    """Return the command that starts relay.py for an image, under the host's own Python.

    It prints ``{"missing": …}`` if there is no Python. Address: reachable from other hosts.
    """
    return script(_START, cluster, identity, address, _compressed("transfer.relay"))


def load_program(cluster: str, identity: str) -> Command:
    """Return the command that loads an archive of this image, with the same variables as relay.py."""
    variables = (f"TOOLKIT_CLUSTER={cluster}", f"TOOLKIT_RELAY={identity}")
    return command("env", *variables, "docker", "load", "--quiet")


def data_program(folder: str, account: str, cluster: str, image: str, user: str, word: str) -> Command:
    """Return the command that starts data_set.py on a data set's folder; see there for ``word``.

    Args:
        folder, account: data folder and its record; created if missing.
        cluster: name by which `toolkit down` finds the program if its connection hangs.
        image: fallback image, whose container runs the program on a host without Python.
        user: the SSH user there, as ``uid:gid``.
    """
    text = _compressed("transfer.data_set")
    return script(_START_IN, folder, account, cluster, image, user, "none", word, folder, account, text)


def data_relay_program(
    folder: str, account: str, cluster: str, image: str, user: str, address: str
) -> Command:
    """Return the command that starts relay.py for a data set; arguments as above."""
    text = _compressed("transfer.relay")
    return script(_START_IN, folder, account, cluster, image, user, "host", address, text)


def _compressed(name: str) -> str:
    """Return a program as one word; it is most of the traffic if few shards are missing."""
    return base64.b64encode(zlib.compress(packed(name).encode(), 9)).decode()
