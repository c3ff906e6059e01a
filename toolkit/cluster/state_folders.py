"""Directories that lead to a cluster's state and the check for unsafe ones, and the files in the state.

The state directory contains keys, and programs that run in the containers. If another user owns one of the
directories above it, or can write to one, that user can replace both.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Iterable

from toolkit.core.container import Container
from toolkit.core.facts import Facts, StateFile, StateFolder
from toolkit.errors import ToolkitError, UnsafeState
from toolkit.protocol.frames import lines_of

# Numbers alone, one line for each directory from the innermost outward, so that no directory's name can
# forge an answer. "-" for one that does not exist. Only STATE_DIR itself can be behind a link.
# Arguments: $3 cluster, $4 host.
QUESTION = r"""
numbers() { stat "$@" 2>/dev/null || echo -; }
state() {
  for folder in "$mine" "$outer/toolkit/$3" "$outer/toolkit"; do numbers -c '%u %f' -- "$folder"; done
  if [ -n "${TOOLKIT_STATE_DIR-}" ]; then
    numbers -c '%u %f' -- "$outer"
    numbers -L -c '%u %f' -- "$TOOLKIT_STATE_DIR"
  fi
}
outer="${XDG_STATE_HOME:-$HOME/.local/state}"
mine="$outer/toolkit/$3/$4"
# One process is enough if all exist.
[ -z "${TOOLKIT_STATE_DIR-}" ] &&
  state=$(stat -c '%u %f' -- "$mine" "$outer/toolkit/$3" "$outer/toolkit" 2>/dev/null) ||
  state=$(state "$@")
say state "$state"
"""
# The files that `up` compares, so that a second `up` needs no other query: modes, then sums. Folders of jobs,
# users and services can have any number of files, so they are only named. $mine is the state directory. The
# programs are at most three folders deep.
FILES = r"""
files() {
  cd "$mine" || return
  set -- conf/* etc/* inside/* inside/*/* inside/*/*/* inside/*/*/*/*
  stat -c '%f %n' -- * services/* "$@"
  sha256sum -- version applied.json "$@"
}
say files "$(files 2>/dev/null)"
keys=
for key in id_ed25519 ssh_host_ed25519_key; do
  [ ! -s "$mine/conf/$key" ] || ! read -r type text rest 2>/dev/null <"$mine/conf/$key.pub" ||
    keys="$keys$key $type $text
"
done
say keys "$keys"
"""
# How many directories belong to the user: the cluster's host directory, two above it, and STATE_DIR/USER.
_OWN = 4
_SHARED_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Folders of the state directory with keys, configurations and programs, which `up` writes.
_WRITTEN = ("conf", "etc", "inside")


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
            what = f"the host sent an invalid line about the owner and mode of {state_dir}: {line[:60]!r}"
            raise ToolkitError(what, "toolkit status -v", host)
        path = path.rpartition("/")[0] or "/"
    return tuple(found)


def parse_state_files(text: str) -> tuple[StateFile, ...]:
    """Return the entries that the section ``files`` lists; a line of another form counts as absent."""
    modes: dict[str, int] = {}
    sums: dict[str, str] = {}
    for line in lines_of(text):
        if found := re.fullmatch(r"([0-9a-f]{1,8}) ([^ ].*)", line):
            # A file name with a line break can forge a line only after that of its directory.
            modes.setdefault(found[2], int(found[1], 16))
        elif found := re.fullmatch(r"([0-9a-f]{64})  (.+)", line):
            sums[found[2]] = found[1]
    return tuple(
        StateFile(path, mode, sums.get(path, "") if stat.S_ISREG(mode) else "")
        for path, mode in modes.items()
    )


def known_files(facts: Facts, paths: Iterable[str]) -> str:
    """Return the answer to the query of an ``Upload`` with files of these absolute paths, from the facts.

    See ``toolkit.plan.executors.upload_question``. A file that the facts do not list counts as absent.
    """
    there = {f"{facts.state_dir}/{file.path}": file for file in facts.state_files if file.sum}
    found = [(number, there[path]) for number, path in enumerate(paths) if path in there]
    columns = (
        (str(number) for number, _ in found),
        (file.sum for _, file in found),
        (f"{stat.S_IMODE(file.mode):o}" for _, file in found),
    )
    return "\n".join(map(" ".join, columns))


def lost_mounts(container: Container, facts: Facts) -> tuple[str, ...]:
    """Return the paths in the state directory that a container has mounted and that do not exist any more.

    The container keeps the deleted directories and files. Only a new container gets those that `up` creates.
    """
    if not any(c.name == container.name and c.digest == container.digest() for c in facts.containers):
        return ()
    there = {f"{facts.state_dir}/{file.path}" for file in facts.state_files}
    sources = (mount.source for mount in container.mounts)
    return tuple(s for s in sources if s.startswith(f"{facts.state_dir}/") and s not in there)


def refuse_unsafe_state(facts: Facts) -> None:
    """Refuse a host on which another user could read or replace the state of toolkit.

    Every directory from STATE_DIR/USER (by default: from ~/.local/state/toolkit) inward must be a directory
    and no link, belong to the SSH user, and be writable for that user alone. STATE_DIR itself can belong to
    any user, but only its owner must be able to rename its entries: it is sticky, as /tmp, or it is not
    writable for group and others. Directories with keys, configurations and programs in the state directory
    must not be writable for group and others either.

    Raises:
        UnsafeState: names the outermost such directory, the reason and a fix.
    """
    for folder in (*reversed(facts.state_folders), *_shared_inside(facts, _WRITTEN)):
        what, fix = _fault(facts, folder)
        if what:
            raise UnsafeState(f"the state directory is not safe: {what}", fix, facts.host)


def _shared_inside(facts: Facts, names: tuple[str, ...] = ()) -> tuple[StateFolder, ...]:
    """Return the known directories in the state directory that group or others can write to.

    Args:
        names: folders of the state directory to which the result is limited.
    """
    return tuple(
        StateFolder(f"{facts.state_dir}/{file.path}", facts.uid, file.mode)
        for file in facts.state_files
        if stat.S_ISDIR(file.mode) and file.mode & _SHARED_WRITE
        if not names or file.path.split("/")[0] in names
    )


def _fault(facts: Facts, folder: StateFolder) -> tuple[str, str]:
    on, path = f"on {facts.host}: ", shlex.quote(folder.path)
    elsewhere = "  # or in hosts.yaml: set state_dir: to another folder"
    aside = f"{on}sudo mv {path} {shlex.quote(f'{folder.path}.unsafe')}{elsewhere}"
    if stat.S_ISLNK(folder.mode):
        return (
            f"{folder.path} is a symbolic link",
            f"{on}rm {path}  # to use another disk, set state_dir: in hosts.yaml",
        )
    if not stat.S_ISDIR(folder.mode):
        return f"{folder.path} is not a directory", aside
    shared = bool(folder.mode & _SHARED_WRITE)
    mode = f"mode {stat.S_IMODE(folder.mode):04o}"
    if folder.outer:
        if shared and not folder.mode & stat.S_ISVTX:
            return (
                f"{folder.path} is writable by other users and has no sticky bit ({mode})",
                f"{on}sudo chmod +t {path}{elsewhere}",
            )
        return "", ""
    if folder.uid != facts.uid:
        return f"{folder.path} belongs to user ID {folder.uid} instead of {facts.user} ({facts.uid})", aside
    if shared:
        # All of them: a default ACL of a parent folder applies to each.
        own = [one for one in facts.state_folders if not one.outer and one.mode & _SHARED_WRITE]
        paths = [shlex.quote(one.path) for one in own]
        change = [f"chmod go-w {' '.join(paths)}"] if paths else []
        if _shared_inside(facts):
            change.append(f"chmod -R go-w {shlex.quote(facts.state_dir)}")
        look = f"find {path} ! -user {facts.uid}"
        fix = f"{on}{'; '.join((*change, look))}"
        return (
            f"{folder.path} is writable by other users ({mode})",
            f"{fix}  # then remove the listed files, which belong to other users",
        )
    return "", ""
