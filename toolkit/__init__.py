"""Multi-node training on plain GPU boxes: SSH and Docker, nothing else.

from toolkit import Cluster
"""

from __future__ import annotations

# As typing has it, which takes longer to import than most of what is here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from toolkit.api.cluster import Cluster

__version__ = "0.1.0"
__all__ = ["Cluster", "__version__"]


def __getattr__(name: str) -> object:
    # Not at once: a command that needs a tenth of it would wait for all of it.
    if name == "Cluster":
        from toolkit.api.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
