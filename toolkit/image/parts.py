"""Parts of images that never arrived: functions of shell, and the step that removes parts."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.cluster.ownership import OWN_PROCESSES
from toolkit.core.command import script
from toolkit.plan.steps import CANNOT_TELL, Run, Step

# Every program that receives an image has the image's identity in its environment, where other users can
# neither read nor forge it. While one runs, its parts and those of a broken transfer look alike.
# Argument of each function: the image's identity.
PARTS = (
    OWN_PROCESSES
    + r"""
parts() {
  names=$(docker images --filter "label=toolkit.part=$1" --format '{{.Repository}}:{{.Tag}}') || return
  printf '%s\n' "$names" | sed -n '/^toolkit-part:/p'
}
doubt() {
  pids=$(with_variable "TOOLKIT_RELAY=$1" | tr -dc '0-9\n')
  [ -z "$pids" ] ||
    echo "cannot tell whether parts of image $1 are left over: its transfer to this host runs as pid" $pids
}
refuse() { echo "$1" >&2; exit @cannot_tell@; }
""".replace("@cannot_tell@", str(CANNOT_TELL))
)
# Arguments: the image's identity, then names of its parts.
_REMOVE = rf"""{PARTS}
doubt=$(doubt "$1")
[ -z "$doubt" ] || refuse "$doubt"
shift
for name; do ! docker image inspect "$name" >/dev/null 2>&1 || docker rmi "$name" >/dev/null || exit; done
"""
_GONE = 'for name; do ! docker image inspect "$name" >/dev/null 2>&1 || exit 1; done'


def remove_part(host: str, identity: str, names: Sequence[str], again: str) -> Step:
    """Return the step that removes a part of an image, unless a transfer of that image is in progress.

    Args:
        identity: of the image.
        names: of the part.
        again: the command to repeat after such a transfer.
    """
    return Run(
        host,
        f"remove image {names[0]}",
        script(_REMOVE, identity, *names),
        unless=script(_GONE, *names),
        unsure=f"{again}, once that transfer has ended",
        why=f"a part of {identity}, which never arrived",
    )
