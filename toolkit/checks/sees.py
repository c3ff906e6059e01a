"""Check of what the docker engine, being root, may see: on shares that keep root out it can mount nothing."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.model import Check, Probe, Scene, Seen, error, unchecked
from toolkit.core.finding import Finding
from toolkit.protocol.frames import CELL, rows

# The engine itself looks at a mount's source before it looks for the image, and no engine has this one: so
# it says whether it may, and makes nothing. In a folder it must be able to find a name. Our own folders are
# for nobody else, and lie where there may be none like them yet: ~/.ssh is another such, if on the same disk.
# What a container of ours that runs has been given, the engine sees; ``$said`` is what it says of containers.
SEES = Probe(
    "engine-sees",
    CELL
    + r"""
told() { printf '%s|%s|%s\n' "$1" "$2" "$(cell "$3")"; }
csv() { printf '"source=%s"' "$(printf '%s' "$1" | sed 's/"/""/g')"; }
seen=$(printf '%s\n' "$said" |
  sed -n '/"Running": true/,/"Running": false/s/^ *"Source": "\(.*\)",$/|\1|/p')
look() {
  mount="type=bind,$(csv "$3"),target=/x"
  said=$(timeout -s KILL 10 docker create --pull never --mount "$mount" toolkit.local/none:none x 2>&1)
  case $said in
    *"mount config"*ermission\ denied*) told shut "$1" "$2" ;;
    *"mount config"*|*"o such image"*) told open "$1" "$2" ;;
  esac
}
there="${XDG_STATE_HOME:-$HOME/.local/state}/toolkit/$3/$4"
while [ ! -e "$there" ]; do there=${there%/*}; done; there=${there:-/}
case $seen in
  *"|$there/conf|"*) told open state "$there" ;;
  *)
    look state "$there" "$there/toolkit-looks"
    if [ -d "$HOME/.ssh" ] && [ "$(stat -c %d "$HOME/.ssh")" = "$(stat -c %d "$there")" ]; then
      look state "$there" "$HOME/.ssh/toolkit-looks"
    fi ;;
esac
shift 4
for source; do
  case $seen in *"|$source|"*) told open mount "$source"; continue ;; esac
  ! timeout -s KILL 5 test -e "$source" || look mount "$source" "$source"
done
""",
)


def _sees(seen: Seen, scene: Scene) -> Iterator[Finding]:
    told = [(word, *cells) for word, cells in rows(seen.answer(SEES)) if len(cells) == 2]
    if not told:
        yield unchecked("the engine does not say what it may see")
    shut = dict.fromkeys((role, path) for word, role, path in told if word == "shut")
    for role, path in shut:
        if role == "state":
            what = f"the engine, being root, may not enter our folders in {path}: a share that keeps root out"
            yield error(
                what, "state_dir: in the hosts file, a folder on the hosts' local disks", subject=path
            )
        else:
            what = (
                f"the engine, being root, may not see {path}: the share keeps root out of a folder above it"
            )
            fix = f"on {seen.host}: chmod o+x the folders above it; or mount the highest that is closed"
            yield error(what, fix, subject=path)


CHECKS = (Check("engine-sees", "the engine may see what containers are given", host=_sees, probes=(SEES,)),)
