"""Takes out of what has been seen the values that nobody else should read."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from variables import kept

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
    """The same without these values in any of its texts."""
    if isinstance(value, str):
        for secret in sorted(secrets, key=len, reverse=True):
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, dict):
        return {key: masked(each, secrets) for key, each in value.items()}
    return [masked(each, secrets) for each in value] if isinstance(value, list) else value
