"""Input of the user: the hosts file, the files that it names, and names of hosts."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from toolkit.core.command import command
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.parse import parse_inventory
from toolkit.hostsfile.yaml import MAX_BYTES
from toolkit.protocol.host_list import host_list
from toolkit.remote.ssh_config import Target, resolve_target

# Linux takes at most 128 KiB for one variable with its name.
MAX_SECRET = 64 * 1024
# A definition of Kubernetes has up to 1.5 MiB, and its indented form is several times as long.
_MOST_YAML = 16 * MAX_BYTES


def load_inventory(path: str | Path) -> Inventory:
    """Return the validated hosts file.

    Raises:
        BadInput: it cannot be read, or something in it is wrong; names every problem at once.
    """
    try:
        text = read_some(path)
    except (OSError, ValueError) as error:
        fix = "toolkit init  # or set --hosts FILE or TOOLKIT_HOSTS to an existing file"
        if not isinstance(error, FileNotFoundError):
            fix = "set --hosts FILE or TOOLKIT_HOSTS to a readable file"
        if os.environ.get("TOOLKIT_HOSTS") == str(path):
            fix = "unset TOOLKIT_HOSTS  # toolkit then reads hosts.yaml in the current folder"
        raise BadInput(str(path), (unreadable(error),), fix) from error
    inventory = parse_inventory(text, str(path))
    missing = [
        Problem(f"hosts/{h.name}/identity_file", f"there is no file {h.identity_file}")
        for h in inventory.hosts
        if h.identity_file and not _is(h.identity_file, lambda key: key.expanduser().is_file())
    ]
    if not _is(inventory.known_hosts, lambda file: bool(file.expanduser())):
        missing.append(
            Problem(
                "known_hosts",
                f"toolkit cannot resolve the home folder in {inventory.known_hosts}; write an absolute path",
            )
        )
    if missing:
        raise BadInput(str(path), tuple(missing))
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


def private_files(inventory: Inventory) -> tuple[Path, ...]:
    """Return the files of this machine that no host can receive: hosts file, secrets, keys that log in."""
    source = Path(inventory.source)
    # Secrets are relative to the hosts file's folder, keys to the working directory.
    places = [(source.parent, where) for _, where in inventory.secrets]
    places += [(Path(), host.identity_file) for host in inventory.hosts if host.identity_file]
    found = [source]
    for folder, where in places:
        # An unknown home folder: the file does not exist either.
        with contextlib.suppress(RuntimeError):
            found.append(folder / Path(where).expanduser())
    return tuple(found)


def _secret(path: Path) -> str:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path} is not a regular file")
        if about.st_mode & stat.S_IRWXO:
            # The group is allowed: several users of one cluster share the file in this way.
            chmod = command("chmod", "o=", str(path)).line()
            raise ValueError(f"other users of your machine can read or write {path}; run `{chmod}`")
        if about.st_size > MAX_SECRET:
            raise ValueError(
                f"{path} has {about.st_size} bytes, but a secret can have at most {MAX_SECRET} bytes"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except OSError as error:
        raise ValueError(f"toolkit cannot read {path}: {error.strerror}") from None
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text, but a variable must be UTF-8 text") from None
    if not text:
        raise ValueError(f"{path} is empty")
    if "\0" in text:
        raise ValueError(f"{path} contains a NUL byte, which a variable cannot contain")
    return text


def is_file(path: str | Path) -> bool:
    """Return whether a file exists; False also for an impossible name."""
    return _is(path, Path.is_file)


def is_folder(path: str | Path) -> bool:
    """Return whether a folder exists; False also for an impossible name."""
    return _is(path, Path.is_dir)


def _is(path: str | Path, test: Callable[[Path], bool]) -> bool:
    # A name that is too long, a byte 0, the home of an unknown user.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        return test(Path(path))
    return False


def read_some(path: str | Path) -> bytes:
    """Return a file's bytes, but no more than the parser takes: /dev/zero has no end."""
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)


def unreadable(error: OSError | ValueError) -> Problem:
    """Return why a file that the user named cannot be read."""
    return Problem("", getattr(error, "strerror", None) or str(error))


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML or JSON file that the user named.

    Raises:
        BadInput: it cannot be read, or is neither.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_YAML + 1)
    except (OSError, ValueError) as error:
        raise BadInput(str(path), (unreadable(error),)) from error
    if len(data) > _MOST_YAML:
        what = f"the file exceeds the maximum of {_MOST_YAML} bytes"
        raise BadInput(str(path), (Problem("", what),))
    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML raises the others for values that do not fit their type, such as a date with month 99.
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(str(path), (Problem("", f"the file is not valid YAML: {first}"),)) from error


def target_of(inventory: Inventory, name: str) -> Target:
    """Return the SSH target of a host of the inventory; runs ``ssh -G``."""
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
        known = host_list(inventory.names)
        problems = tuple(
            Problem("", f"{name} is not a host in hosts.yaml, which lists {known}") for name in unknown
        )
        raise BadInput("command line", problems)
    left = tuple(n for n in inventory.names if (not only or n in only) and n not in exclude)
    if not left:
        raise BadInput("command line", (Problem("", "--only and --exclude leave no host for the command"),))
    return left
