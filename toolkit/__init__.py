"""Multi-node training on GPU hosts over SSH and Docker.

from toolkit import Cluster
"""

from __future__ import annotations

# Not imported from typing, whose import takes longer than most of this package.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from toolkit.api.cluster import Cluster

__version__ = "0.1.0"
__all__ = ["Cluster", "__version__"]


def __getattr__(name: str) -> object:
    # Imported on demand: most commands need only a tenth of the modules.
    if name == "Cluster":
        from toolkit.api.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
