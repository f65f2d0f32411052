"""The communicator: verbs on arrays, planned once and run again and again."""

from typing import TYPE_CHECKING

from cxlemu.lazy import imported_when_asked_for

if TYPE_CHECKING:
    from collectives.communicator.communicator import Communicator

__all__ = ["Communicator"]

__getattr__ = imported_when_asked_for(__name__, communicator=["Communicator"])
