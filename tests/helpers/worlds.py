"""Worlds of threads, each a rank that runs a program of its communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives import Communicator
from cxlemu import RankContext, Topology, launch
from cxlemu.memory import MemorySpec
from tests.helpers.tiers import PATIENT_S

Program = Callable[[Communicator], Any]


def together(
    program: Program,
    ranks: int = 2,
    memory: MemorySpec | str = "shm",
    engine: str = "native",
    *,
    topology: Topology | str | None = "laptop",
    **given: Any,
) -> list[Any]:
    """What ``program`` returns on every rank, in a communicator made with what is ``given``."""

    def main(context: RankContext) -> Any:
        with Communicator.world(context, engine=engine, **given) as comm:
            return program(comm)

    return launch(main, ranks=ranks, topology=topology, memory=memory, deadline_s=PATIENT_S)
