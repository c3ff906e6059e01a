"""Operations on a data set's folder on a host; see data_folder.py, also for the account.

usage: data_set look FOLDER ACCOUNT      which wanted shards exist, and free space
       data_set adopt FOLDER ACCOUNT     adopt existing files that match the entries, then as look
       data_set finish FOLDER ACCOUNT    when all shards are complete: remove what is no longer wanted, write
                                         the mark
       data_set remove FOLDER ACCOUNT    remove all written files

Runs as the ssh user. The wanted shards are JSON on standard input, the answer is one line of JSON.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator

from toolkit.container.transfer.data_folder import (
    JOURNAL,
    MARK,
    OLD,
    Fault,
    Folder,
    parse_entries,
    shard_line,
    sync_disk,
    whole_line,
    words_of,
)
from toolkit.protocol.shards import shard_name


def look(folder: Folder, wanted: list[str]) -> dict[str, object]:
    """Return the numbers of the missing shards and the free space."""
    missing = [number for number, shard in enumerate(wanted) if not folder.holds(shard)]
    room = os.statvfs(folder.root)
    return {
        "missing": missing,
        "set": folder.account.mark().get("set", ""),
        # Without an account, the origin of existing files is unknown.
        "unknown": not folder.begun and not set(OLD).issuperset(folder.names()),
        "free": room.f_bavail * room.f_frsize,
        "inodes": room.f_favail if room.f_files else -1,
        "block": room.f_frsize,
    }


def adopt(folder: Folder, wanted: list[str], packed: str) -> dict[str, object]:
    """Start an account with the shards whose files all match by path, size and time."""
    texts = [text.encode() for text in json.loads(zlib.decompress(base64.b64decode(packed)))]
    if [shard_name(text) for text in texts] != wanted:
        raise Fault("the list of data files was damaged during the transfer")
    found, total = [], 0
    for text in texts:
        shard, entries = shard_name(text), parse_entries(text)
        if all(folder.written(entry) for entry in entries):
            total += 4 + len(text) + sum(entry[-1] for entry in entries if entry[0] in "fp")
            found += [shard_line(shard, text), whole_line(shard, total)]
    if found:
        sync_disk(folder.root)
        folder.account.save(JOURNAL, found)
        folder.read_account()
    return look(folder, wanted)


def finish(folder: Folder, wanted: list[str], mark: dict[str, object]) -> dict[str, object]:
    """Rename large files to their final names, remove what is no longer wanted, write the mark."""
    lacking = sum(not folder.holds(shard) for shard in wanted)
    if lacking:
        raise Fault(
            f"the data set is incomplete: {lacking} of {len(wanted)} shards did not arrive completely"
        )
    entries = [entry for shard in wanted for entry in folder.begun[shard]]
    for entry in entries:
        if entry[0] == "p" and (folder.stat(folder.part_of(entry)) or not folder.written(entry)):
            file = folder.open_part(entry)
            try:
                if os.fstat(file).st_size != entry[4]:
                    raise Fault(f"{folder.path(entry[1])} was changed during the transfer")
                os.fchmod(file, entry[2])
                os.utime(file, ns=(entry[3], entry[3]))
            finally:
                os.close(file)
            folder.replace(os.path.basename(folder.part_of(entry)), entry[1])
    keep = set(wanted)
    old = {name: found for name, found in folder.begun.items() if name not in keep}
    folder.drop_parts(old)
    gone, stay = folder.clear([e for found in old.values() for e in found], {entry[1] for entry in entries})
    size = mark["bytes"]
    if type(size) is not int:
        raise Fault("the data set's size is not a number")

    def lines() -> Iterator[bytes]:
        for shard in wanted:
            text = json.dumps(folder.begun[shard], separators=(",", ":")).encode()
            yield shard_line(shard, text)
            yield whole_line(shard, size)

    folder.account.save(JOURNAL, lines())
    # On journaling file systems, this also writes the earlier renames to the disk.
    folder.account.save(MARK, [json.dumps({**mark, "since": int(time.time())}).encode() + b"\n"])
    folder.drop_old()
    return {"gone": gone, "stay": stay}


def remove(folder: Folder) -> dict[str, object]:
    """Remove the written files, but not the folder itself, which can be a mount point."""
    folder.account.drop(MARK)
    folder.drop_parts(folder.begun)
    gone, stay = folder.clear([entry for found in folder.begun.values() for entry in found])
    folder.account.drop(JOURNAL, f"{JOURNAL}.new", f"{MARK}.new")
    folder.drop_old()
    return {"gone": gone, "stay": stay, "left": len(folder.names())}


def main() -> int:
    what, root, account = sys.argv[1:]
    try:
        order = json.loads(sys.stdin.buffer.read() or b"{}")
        folder = Folder(root, account, lock=what != "look")
        if what == "look":
            result = look(folder, order["wanted"])
        elif what == "adopt":
            result = adopt(folder, order["wanted"], order["entries"])
        elif what == "finish":
            result = finish(folder, order["wanted"], order["mark"])
        else:
            result = remove(folder)
    except (OSError, ValueError, LookupError, TypeError, zlib.error, Fault) as error:
        sys.stderr.write(f"{words_of(error)}\n")
        return 3
    sys.stdout.write(json.dumps(result) + "\n")
    return 0
