"""Answers of hosts about their users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from toolkit.protocol.decode import Number, Text

Name = Annotated[str, Text(most=256)]
Id = Annotated[int, Number(0, 2**32 - 1)]
Folder = Annotated[str, Text(pattern="(/.*)?")]


@dataclass(frozen=True)
class Who:
    """The SSH user: ``groups`` are ids and names, ``state`` the folder above those of toolkit."""

    user: Name
    uid: Id
    gid: Id
    groups: tuple[tuple[Id, Name], ...]
    home: Folder
    state: Folder
