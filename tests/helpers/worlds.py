"""Worlds of threads, each a rank that runs a program of its communicator."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


LOOKS = 200


@contextmanager
def looks_limited(context: RankContext, over: Callable[[], bool]) -> Iterator[None]:
    """Let a wait of a rank fail that looks on and on after ``over()``, when it can see all that it will ever see."""
    looks, since = context.session.looks, 0

    def limited(deadline_s: float) -> Iterator[int]:
        nonlocal since
        for look in looks(deadline_s):
            since += over()
            assert since < LOOKS, "nothing ends this wait but its deadline"
            yield look

    context.session.looks = limited  # type: ignore[method-assign]
    try:
        yield
    finally:
        context.session.looks = looks  # type: ignore[method-assign]
