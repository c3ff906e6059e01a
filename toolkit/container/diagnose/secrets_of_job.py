"""Secret values of a job that other users must not read."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from toolkit.container.job.variables import kept
from toolkit.protocol.redact import secret_pairs, secret_values


def secrets_of(folder: Path, environs: list[dict[str, str]], named: Collection[str]) -> tuple[str, ...]:
    """Return the values of the named variables and of those with a secret-like name, for redaction."""
    job = kept(folder) or {"env": {}, "override": {}, "token": ""}
    pairs = [pair for env in (*environs, job["env"], job["override"]) for pair in env.items()]
    by_name = [value for name, value in pairs if name in named]
    return secret_values(map(str, (*by_name, *secret_pairs(pairs), job["token"])))
