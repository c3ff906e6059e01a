"""The base of the parts of ``Cluster``, such as ``cluster.image``."""

from __future__ import annotations

from toolkit.api.connection import Connection


class Part:
    """Acts on one subject of a cluster."""

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cluster!r})"
