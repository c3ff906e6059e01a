"""Takes out of what has been seen the values that nobody else should read."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.job.variables import kept

SECRET_NAME = re.compile(r"TOKEN|SECRET|KEY|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
MASK = "***"
LEAST_SECRET = 4  # a value shorter than this stands in too many places for other reasons
PLAIN = frozenset(("true", "false", "none", "null", "auto"))  # as of TOKENIZERS_PARALLELISM


def read(path: Path) -> Any:
    """What a JSON file holds, None where there is none that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def secrets_of(folder: Path, environs: list[dict[str, str]], named: Collection[str]) -> set[str]:
    """Values that nobody else should read: those of variables that are named, or named like a secret."""
    job = kept(folder) or {"env": {}, "override": {}, "token": ""}
    pairs = [pair for env in (*environs, job["env"], job["override"]) for pair in env.items()]
    found = {str(value) for name, value in pairs if name in named or SECRET_NAME.search(name)}
    if job["token"]:
        found.add(job["token"])
    return {value for value in found if len(value) >= LEAST_SECRET and value.lower() not in PLAIN}


def masked(value: Any, secrets: set[str]) -> Any:
    """Return the same JSON value without these values in any of its texts and dumps."""
    if isinstance(value, str):
        for secret in sorted(secrets, key=len, reverse=True):
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, dict):
        return {
            key: masked_dumps(each, secrets) if key == "dumps" else masked(each, secrets)
            for key, each in value.items()
        }
    return [masked(each, secrets) for each in value] if isinstance(value, list) else value


def masked_dumps(dumps: Any, secrets: set[str]) -> dict[str, str]:
    """Return dumps, name -> base64, without these values.

    Each byte of a value becomes ``*``: formats with lengths stay valid. What is no base64 is left out.
    """
    found: dict[str, str] = {}
    for name, text in dumps.items() if isinstance(dumps, dict) else ():
        with suppress(TypeError, ValueError):  # kept evidence has answers of other hosts
            data = base64.b64decode(text, validate=True)
            for secret in sorted((secret.encode() for secret in secrets), key=len, reverse=True):
                data = data.replace(secret, b"*" * len(secret))
            found[name] = base64.b64encode(data).decode()
    return found
