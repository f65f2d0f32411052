"""Collectives are programs for the machine: plans, what they must achieve, and the communicator users call.

`Communicator` calls them on arrays; `algorithm` and `Builder` write new ones (docs/algorithms.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cxlemu.lazy import imported_when_asked_for

if TYPE_CHECKING:
    from collectives.builder import Builder
    from collectives.builder.recipes import algorithm
    from collectives.communicator.communicator import Communicator
    from collectives.communicator.messages.requests import (
        ANY,
        ANY_SOURCE,
        ANY_TAG,
        PROC_NULL,
        UNDEFINED,
        Request,
        Status,
    )

__all__ = [
    "ANY",
    "ANY_SOURCE",
    "ANY_TAG",
    "PROC_NULL",
    "UNDEFINED",
    "Builder",
    "Communicator",
    "Request",
    "Status",
    "algorithm",
]

__getattr__ = imported_when_asked_for(
    __name__,
    builder=["Builder"],
    builder__recipes=["algorithm"],
    communicator__communicator=["Communicator"],
    communicator__messages__requests=["ANY", "ANY_SOURCE", "ANY_TAG", "PROC_NULL", "UNDEFINED", "Request", "Status"],
)
