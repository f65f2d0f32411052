"""cxlemu is a machine: a pool of CXL memory cards that several hosts map, with no coherence between them.

`launch` runs a function on every rank of a world, `Topology` says of which machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cxlemu.version import __version__

if TYPE_CHECKING:
    from cxlemu.topology import Topology
    from cxlemu.world import RankContext, launch


__all__ = ["RankContext", "Topology", "__version__", "launch"]

_HOMES = {"RankContext": "cxlemu.world", "Topology": "cxlemu.topology", "launch": "cxlemu.world"}


def __getattr__(name: str) -> Any:
    """Imported when it is asked for, so that commands which need none of it start at once."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
