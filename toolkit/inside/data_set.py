"""What is asked of a data set's folder on a host; see data_folder.py.

usage: data_set.py look FOLDER      what is there of the shards that are wanted, and how much room
       data_set.py finish FOLDER    once they are whole: what is no longer wanted goes, the mark is written
       data_set.py remove FOLDER    all that was written goes

Runs as the ssh user. What is wanted comes as JSON on standard input, the answer is one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from data_folder import JOURNAL, MARK, PART, Entry, Fault, Folder, words_of, written


def look(root: str, wanted: list[str]) -> dict[str, object]:
    """Say which shards are missing, by their numbers, and how much room there is."""
    folder = Folder(root)
    missing = [number for number, shard in enumerate(wanted) if not folder.holds(shard)]
    room = os.statvfs(root)
    return {
        "missing": missing,
        "set": folder.mark().get("set", ""),
        "free": room.f_bavail * room.f_frsize,
        "inodes": room.f_favail if room.f_files else -1,
        "block": room.f_frsize,
    }


def finish(root: str, wanted: list[str], mark: dict[str, object]) -> dict[str, object]:
    """Give large files their names, remove what is no longer wanted, write the mark."""
    folder = Folder(root, lock=True)
    lacking = sum(not folder.holds(shard) for shard in wanted)
    if lacking:
        raise Fault(f"{lacking} of {len(wanted)} shards are not whole")
    entries = [entry for shard in wanted for entry in folder.begun[shard]]
    for entry in entries:
        if entry[0] == "p" and not written(folder.path(entry[1]), entry):
            part = folder.part_of(entry)
            os.chmod(part, entry[2])
            os.utime(part, ns=(entry[3], entry[3]))
            folder.replace(part, entry[1])
    keep = set(wanted)
    old = {name: found for name, found in folder.begun.items() if name not in keep}
    _drop_parts(folder, old)
    gone, stay = folder.clear([e for found in old.values() for e in found], {entry[1] for entry in entries})
    new = f"{folder.path(JOURNAL)}.new"
    with open(new, "wb") as file:
        for shard in wanted:
            for line in (
                {"shard": shard, "entries": folder.begun[shard]},
                {"whole": shard, "bytes": mark["bytes"]},
            ):
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, folder.path(JOURNAL))
    # File systems that keep a journal bring the names that were given before to the disk with this.
    with open(f"{folder.path(MARK)}.new", "w", encoding="ascii") as text:
        text.write(json.dumps({**mark, "since": int(time.time())}) + "\n")
        text.flush()
        os.fsync(text.fileno())
    os.replace(f"{folder.path(MARK)}.new", folder.path(MARK))
    return {"gone": gone, "stay": stay}


def remove(root: str) -> dict[str, object]:
    """Remove what we wrote, but for the folder itself, which may be mounted."""
    folder = Folder(root, lock=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder.path(MARK))
    _drop_parts(folder, folder.begun)
    gone, stay = folder.clear([entry for found in folder.begun.values() for entry in found])
    for name in (JOURNAL, f"{JOURNAL}.new", f"{MARK}.new"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder.path(name))
    left = len(os.listdir(root))
    return {"gone": gone, "stay": stay, "left": left}


def _drop_parts(folder: Folder, shards: dict[str, list[Entry]]) -> None:
    """Remove what was being written when a transfer ended."""
    for shard, entries in shards.items():
        if shard not in folder.whole:
            for number, entry in enumerate(entries):
                above = folder.path(os.path.dirname(entry[1]))
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(above, f"{PART}{shard[:16]}-{number}"))


def main(argv: list[str]) -> int:
    what, root = argv
    try:
        order = json.loads(sys.stdin.buffer.read() or b"{}")
        if what == "look":
            said = look(root, order["wanted"])
        elif what == "finish":
            said = finish(root, order["wanted"], order["mark"])
        else:
            said = remove(root)
    except (OSError, ValueError, LookupError, TypeError, Fault) as error:
        sys.stderr.write(f"{words_of(error)}\n")
        return 3
    sys.stdout.write(json.dumps(said) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
