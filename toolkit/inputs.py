"""What a person gives: the hosts file, names of hosts; and the programs that travel to the hosts."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from toolkit.core.command import command
from toolkit.effects.ssh_config import Target, resolve_target
from toolkit.errors import BadInput, Problem
from toolkit.spec.inventory import Inventory
from toolkit.spec.parse import parse_inventory

# Linux takes at most 128 KiB for one variable with its name.
MAX_SECRET = 64 * 1024

INSIDE_FOLDER = Path(__file__).resolve().parent / "inside"


def load_inventory(path: str | Path) -> Inventory:
    """Return the validated hosts file.

    Raises:
        BadInput: it cannot be read, or something in it is wrong; names every problem at once.
    """
    path = Path(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        fix = "write one (see examples/hosts.yaml), or name it: --hosts FILE or TOOLKIT_HOSTS"
        problem = Problem("", error.strerror or str(error))
        raise BadInput(str(path), (problem,), fix) from error
    inventory = parse_inventory(text, str(path))
    missing = tuple(
        Problem(f"hosts/{h.name}/identity_file", f"there is no file {h.identity_file}")
        for h in inventory.hosts
        if h.identity_file and not Path(h.identity_file).expanduser().is_file()
    )
    if missing:
        raise BadInput(str(path), missing)
    return inventory


def read_secrets(inventory: Inventory) -> tuple[tuple[str, str], ...]:
    """Return the variables of ``secrets:`` with the content of their files, less one line end at the close.

    Raises:
        BadInput: names every file that is not there, not readable, open to all users, empty or no text.
    """
    values: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for name, where in inventory.secrets:
        try:
            values.append((name, _secret(Path(inventory.source).parent / Path(where).expanduser())))
        except (ValueError, RuntimeError) as error:
            problems.append(Problem(f"secrets/{name}", str(error)))
    if problems:
        raise BadInput(inventory.source, tuple(problems))
    return tuple(values)


def _secret(path: Path) -> str:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path} is not a file")
        if about.st_mode & stat.S_IRWXO:
            # The group may: that is how several people who steer one cluster share it.
            cure = command("chmod", "o=", str(path)).line()
            raise ValueError(f"every user of this machine may use {path}; {cure}")
        if about.st_size > MAX_SECRET:
            raise ValueError(f"{path} has {about.st_size} bytes; at most {MAX_SECRET} fit into a variable")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8, and a variable is text") from None
    if not text:
        raise ValueError(f"{path} is empty")
    if "\0" in text:
        raise ValueError(f"{path} holds a NUL byte, which no variable can")
    return text


def inside_programs() -> dict[str, str]:
    """Return name and text of the programs that run inside the containers."""
    return {
        path.name: path.read_text()
        for path in sorted(INSIDE_FOLDER.iterdir())
        if path.suffix in (".py", ".sh") and path.name != "__init__.py"
    }


def target_of(inventory: Inventory, name: str) -> Target:
    """Return where to connect to for a host of the inventory; asks ``ssh -G``."""
    host = inventory.host(name)
    return resolve_target(
        name=name,
        address=host.address,
        user=host.user,
        port=host.port,
        identity_file=host.identity_file,
        jump=host.jump,
        known_hosts=inventory.known_hosts,
    )


def choose_hosts(inventory: Inventory, only: Sequence[str], exclude: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts that ``--only`` and ``--exclude`` leave, in the file's order.

    Raises:
        BadInput: a name that is not in the file, or nothing is left.
    """
    unknown = [name for name in (*only, *exclude) if name not in inventory.names]
    if unknown:
        known = ", ".join(inventory.names)
        problems = tuple(Problem(name, f"is not a host of the file; there are: {known}") for name in unknown)
        raise BadInput("command line", problems)
    left = tuple(n for n in inventory.names if (not only or n in only) and n not in exclude)
    if not left:
        raise BadInput("command line", (Problem("", "--only and --exclude leave no host"),))
    return left
