"""Collectives are programs for the machine: plans, what they must achieve, and the communicator users call.

`Communicator` calls them on arrays; `algorithm` and `Builder` write new ones (docs/algorithms.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectives.builder import Builder
    from collectives.builder.recipes import algorithm
    from collectives.communicator.communicator import Communicator

__all__ = ["Builder", "Communicator", "algorithm"]

_HOMES = {
    "Builder": "collectives.builder",
    "Communicator": "collectives.communicator.communicator",
    "algorithm": "collectives.builder.recipes",
}


def __getattr__(name: str) -> Any:
    """Imported when it is asked for, so that commands which need none of it start at once."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
