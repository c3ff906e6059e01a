"""Parts of images that never arrived, as a piece of shell that others build on."""

from __future__ import annotations

from toolkit.plan.ownership import OWN_PROCESSES
from toolkit.plan.steps import CANNOT_TELL

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
