"""The lower bound of a command: connect to all hosts at once, and run one command on each. Prints nothing.

    connect_all.py FILE [MODULE…]

FILE contains {"known_hosts": PATH, "key": PATH, "user": NAME, "commands": [[ADDRESS, COMMAND], …]}. The
program imports the modules first. Its exit status is 1 if a command failed.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko


@contextmanager
def program(
    known: str, key: str, user: str, commands: Iterable[tuple[str, str]], *modules: str
) -> Iterator[list[str]]:
    """Yield the words that start this program."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"known_hosts": known, "key": key, "user": user, "commands": list(commands)}, file)
        file.flush()
        yield [sys.executable, __file__, file.name, *modules]


def main() -> None:
    for module in sys.argv[2:]:
        importlib.import_module(module)
    about = json.loads(Path(sys.argv[1]).read_text())
    own = paramiko.Ed25519Key.from_private_key_file(about["key"])
    failed = []

    def run(address: str, command: str) -> None:
        client = paramiko.SSHClient()
        client.load_host_keys(about["known_hosts"])
        failed.append(address)
        client.connect(address, username=about["user"], pkey=own, look_for_keys=False, allow_agent=False)
        _, out, _ = client.exec_command(command)
        out.read()
        if out.channel.recv_exit_status() == 0:
            failed.remove(address)
        client.close()

    threads = [threading.Thread(target=run, args=pair) for pair in about["commands"]]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
