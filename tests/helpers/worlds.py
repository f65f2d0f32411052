"""Worlds of threads, each a rank that runs a program of its communicator."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any

from collectives import Communicator
from cxlemu import RankContext, launch
from cxlemu.memory import MemorySpec
from cxlemu.plan import Call
from tests.helpers.tiers import PATIENT_S

if TYPE_CHECKING:  # ranks that are processes import this module, and need no model of topologies
    from cxlemu import Topology

Program = Callable[[Communicator], Any]


def together(
    program: Program,
    ranks: int = 2,
    memory: MemorySpec | str = "shm",
    engine: str = "native",
    *,
    topology: "Topology | str | None" = "laptop",
    **given: Any,
) -> list[Any]:
    """What ``program`` returns on every rank, in a communicator made with what is ``given``."""

    def main(context: RankContext) -> Any:
        with Communicator.world(context, engine=engine, **given) as comm:
            return program(comm)

    return launch(main, ranks=ranks, topology=topology, memory=memory, deadline_s=PATIENT_S)


def with_cards_of(nbytes: int) -> "Topology":
    from cxlemu import Topology

    laptop = Topology.load("laptop")
    return laptop.model_copy(update={"emulation": laptop.emulation.model_copy(update={"card_bytes": nbytes})})


ANYTHING = object()


def on_ranks(
    *where: Any,
    gives: Any = ANYTHING,
    of: int | None = None,
    by: Callable[..., list[Any]] = together,
    asks: str = "",
    **given: Any,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of the program below, which every rank runs: ``gives`` is what comes of all, or of the rank ``of``.

    The program takes the communicator, then fixtures and parameters; ``by``, the world, takes what it ``asks`` for.
    """

    def test_of(program: Callable[..., Any]) -> Callable[..., None]:
        @wraps(program)
        def test(**fixtures: Any) -> None:
            world = {name: fixtures.pop(name) for name in asks.split()}
            found = by(partial(program, **fixtures), *where, **given, **world)
            found = found if of is None else found[of]
            assert gives is ANYTHING or found == gives, f"{found} is not {gives}"

        _, *others = signature(program).parameters.values()
        others += [Parameter(name, Parameter.KEYWORD_ONLY) for name in asks.split()]
        test.__signature__ = Signature(others)  # type: ignore[attr-defined]
        return test

    return test_of


def calls_of(comm: Communicator) -> list[Call]:
    """The calls that a communicator plans from now on, as they are planned."""
    taken: list[Call] = []
    planned = comm._planner.collective

    def watched(*asked: Any, **how: Any) -> Any:
        plan = planned(*asked, **how)
        taken.append(plan.call)
        return plan

    comm._planner.collective = watched  # type: ignore[method-assign]
    return taken


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
