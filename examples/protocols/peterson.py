"""Peterson's lock (1981), for any number of ranks: at each level all but the last to come may go on. Without a fence
the level is still on its way to the pool when its rank looks at those of the others.

cxlemu explore examples/protocols/peterson.py:broken
cxlemu explore examples/protocols/peterson.py:fixed -n 3
"""

from collections.abc import Mapping, Sequence

from faults import Fence, Flush, Invalidate, Load, Steps, Store, protocol

RANKS = range(3)  # at most


def publish(word: str, value: int, *, fence: bool = True) -> Steps[None]:
    yield Store(word, value)
    yield Flush(word)
    if fence:
        yield Fence()


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def others_are_lower(rank: int, ranks: int, level: int) -> Steps[bool]:
    for other in range(ranks):
        if other != rank and (yield from fresh(f"level{other}")) >= level:
            return False
    return True


def lock(rank: int, ranks: int, *, fence: bool) -> Steps[None]:
    for level in range(1, ranks):
        yield from publish(f"level{rank}", level, fence=fence)
        yield from publish(f"last{level}", rank, fence=fence)
        while (yield from fresh(f"last{level}")) == rank:
            if (yield from others_are_lower(rank, ranks, level)):
                break


def count() -> Steps[None]:
    """What the lock protects."""
    value = yield from fresh("count")
    yield from publish("count", value + 1)


def nothing_is_lost(memory: Mapping[str, int], results: Sequence[None]) -> None:
    assert memory["count"] == len(results), f"{len(results)} ranks count to {memory['count']}"


def locked(rank: int, ranks: int, *, fence: bool) -> Steps[None]:
    yield from lock(rank, ranks, fence=fence)
    yield from count()
    yield from publish(f"level{rank}", 0)


LINES = ("count", *(f"level{rank}" for rank in RANKS), *(f"last{rank}" for rank in RANKS))


@protocol(*LINES, final=nothing_is_lost)
def broken(rank: int, ranks: int) -> Steps[None]:
    return locked(rank, ranks, fence=False)


@protocol(*LINES, final=nothing_is_lost)
def fixed(rank: int, ranks: int) -> Steps[None]:
    return locked(rank, ranks, fence=True)
