"""Lamport's bakery (1974): whoever comes draws a number above all others, and the lowest goes first. While a rank
draws, the others wait for it; else two that draw at once may each miss that the other has the same number.

cxlemu explore examples/protocols/bakery.py:broken
cxlemu explore examples/protocols/bakery.py:fixed -n 3
"""

from collections.abc import Mapping, Sequence

from faults import Fence, Flush, Invalidate, Load, Steps, Store, protocol

RANKS = range(4)  # at most


def publish(word: str, value: int) -> Steps[None]:
    yield Store(word, value)
    yield Flush(word)
    yield Fence()


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def lock(rank: int, ranks: int, *, wait_for_draws: bool) -> Steps[None]:
    others = [other for other in range(ranks) if other != rank]
    yield from publish(f"draws{rank}", 1)
    mine = 1
    for other in others:
        mine = max(mine, 1 + (yield from fresh(f"number{other}")))
    yield from publish(f"number{rank}", mine)
    yield from publish(f"draws{rank}", 0)
    for other in others:
        while wait_for_draws and (yield from fresh(f"draws{other}")):
            pass
        while True:
            theirs = yield from fresh(f"number{other}")
            if theirs == 0 or (mine, rank) < (theirs, other):
                break


def count() -> Steps[None]:
    """What the lock protects."""
    value = yield from fresh("count")
    yield from publish("count", value + 1)


def nothing_is_lost(memory: Mapping[str, int], results: Sequence[None]) -> None:
    assert memory["count"] == len(results), f"{len(results)} ranks count to {memory['count']}"


def customer(rank: int, ranks: int, *, wait_for_draws: bool) -> Steps[None]:
    yield from lock(rank, ranks, wait_for_draws=wait_for_draws)
    yield from count()
    yield from publish(f"number{rank}", 0)


LINES = ("count", *(f"draws{rank}" for rank in RANKS), *(f"number{rank}" for rank in RANKS))


@protocol(*LINES, final=nothing_is_lost)
def broken(rank: int, ranks: int) -> Steps[None]:
    return customer(rank, ranks, wait_for_draws=False)


@protocol(*LINES, final=nothing_is_lost)
def fixed(rank: int, ranks: int) -> Steps[None]:
    return customer(rank, ranks, wait_for_draws=True)
