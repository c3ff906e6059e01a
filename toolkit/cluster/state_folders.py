"""Owner, type and mode of the directories that lead to a cluster's state, and the check for unsafe ones.

The state directory contains keys, and programs that run in the containers. If another user owns one of the
directories above it, or can write to one, that user can replace both.
"""

from __future__ import annotations

import re
import shlex
import stat

from toolkit.core.facts import Facts, StateFolder
from toolkit.errors import ToolkitError, UnsafeState
from toolkit.protocol.frames import lines_of

# Numbers alone, one line for each directory from the innermost outward, so that no directory's name can
# forge an answer. "-" for one that does not exist. Only STATE_DIR itself can be behind a link.
# Arguments: $3 cluster, $4 host.
QUESTION = r"""
numbers() { stat "$@" 2>/dev/null || echo -; }
state() {
  outer="${XDG_STATE_HOME:-$HOME/.local/state}"
  for folder in "$outer/toolkit/$3/$4" "$outer/toolkit/$3" "$outer/toolkit"; do
    numbers -c '%u %f' -- "$folder"
  done
  if [ -n "${TOOLKIT_STATE_DIR-}" ]; then
    numbers -c '%u %f' -- "$outer"
    numbers -L -c '%u %f' -- "$TOOLKIT_STATE_DIR"
  fi
}
say state "$(state "$@")"
"""
# How many directories belong to the user: the cluster's host directory, two above it, and STATE_DIR/USER.
_OWN = 4
_SHARED_WRITE = stat.S_IWGRP | stat.S_IWOTH


def parse_state_folders(host: str, state_dir: str, text: str) -> tuple[StateFolder, ...]:
    """Return the directories that exist, from the innermost outward.

    Args:
        state_dir: absolute path of the innermost.
        text: the answer to ``QUESTION``.

    Raises:
        ToolkitError: the answer has lines of another form.
    """
    found = []
    path = state_dir
    for index, line in enumerate(lines_of(text)):
        numbers = re.fullmatch(r"([0-9]{1,10}) ([0-9a-f]{1,8})", line)
        if numbers:
            found.append(StateFolder(path, int(numbers[1]), int(numbers[2], 16), outer=index >= _OWN))
        elif line != "-":
            raise ToolkitError(f"cannot read the owners of {state_dir}: {line[:60]!r}", "", host)
        path = path.rpartition("/")[0] or "/"
    return tuple(found)


def refuse_unsafe_state(facts: Facts) -> None:
    """Refuse a host on which another user could read or replace the state of toolkit.

    Every directory from STATE_DIR/USER (by default: from ~/.local/state/toolkit) inward must be a directory
    and no link, belong to the ssh user, and be writable for that user alone. STATE_DIR itself can belong to
    any user, but only its owner must be able to rename its entries: it is sticky, as /tmp, or it is not
    writable for group and others.

    Raises:
        UnsafeState: names the outermost such directory, the reason and a fix.
    """
    for folder in reversed(facts.state_folders):
        what, fix = _fault(facts, folder)
        if what:
            raise UnsafeState(f"the state directory is not safe: {folder.path} {what}", fix, facts.host)


def _fault(facts: Facts, folder: StateFolder) -> tuple[str, str]:
    on, path = f"on {facts.host}: ", shlex.quote(folder.path)
    elsewhere = "  # or in hosts.yaml: another state_dir:"
    aside = f"{on}sudo mv {path} {shlex.quote(f'{folder.path}.unsafe')}{elsewhere}"
    if stat.S_ISLNK(folder.mode):
        return "is a symbolic link", f"{on}rm {path}  # for another disk, set state_dir: in hosts.yaml"
    if not stat.S_ISDIR(folder.mode):
        return "is not a directory", aside
    shared = bool(folder.mode & _SHARED_WRITE)
    mode = f"mode {stat.S_IMODE(folder.mode):04o}"
    if folder.outer:
        if shared and not folder.mode & stat.S_ISVTX:
            return (
                f"is writable by other users and has no sticky bit ({mode})",
                f"{on}sudo chmod +t {path}{elsewhere}",
            )
        return "", ""
    if folder.uid != facts.uid:
        return f"belongs to user ID {folder.uid} instead of {facts.user} ({facts.uid})", aside
    if shared:
        theirs = f"find {path} ! -user {facts.uid}"
        fix = f"{on}{theirs}; chmod go-w {path}  # first remove the listed files of other users"
        return f"is writable by other users ({mode})", fix
    return "", ""
