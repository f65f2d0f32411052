"""The communicator: verbs on arrays, planned once and run again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectives.communicator.communicator import Communicator

__all__ = ["Communicator"]


def __getattr__(name: str) -> Any:
    if name == "Communicator":
        from collectives.communicator.communicator import Communicator

        return Communicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
