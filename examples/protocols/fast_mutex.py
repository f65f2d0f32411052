"""Lamport's fast mutex (1987): a rank that is alone takes a few steps. Whoever finds another name in x waits until no
rank is on its way any more; without that wait two of them get in.

cxlemu explore examples/protocols/fast_mutex.py:broken
cxlemu explore examples/protocols/fast_mutex.py:fixed
"""

from collections.abc import Mapping, Sequence

from faults import Fence, Flush, Invalidate, Load, Steps, Store, protocol

RANKS = range(3)  # at most


def publish(word: str, value: int) -> Steps[None]:
    yield Store(word, value)
    yield Flush(word)
    yield Fence()


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def until_free(word: str) -> Steps[None]:
    while (yield from fresh(word)):
        pass


def lock(rank: int, ranks: int, *, wait_for_all: bool) -> Steps[None]:
    me = rank + 1
    while True:
        yield from publish(f"tries{rank}", 1)
        yield from publish("x", me)
        if (yield from fresh("y")):
            yield from publish(f"tries{rank}", 0)
            yield from until_free("y")
            continue
        yield from publish("y", me)
        if (yield from fresh("x")) == me:
            return
        yield from publish(f"tries{rank}", 0)
        if wait_for_all:
            for other in range(ranks):
                yield from until_free(f"tries{other}")
        if (yield from fresh("y")) == me:
            return
        yield from until_free("y")


def count() -> Steps[None]:
    """What the lock protects."""
    value = yield from fresh("count")
    yield from publish("count", value + 1)


def nothing_is_lost(memory: Mapping[str, int], results: Sequence[None]) -> None:
    assert memory["count"] == len(results), f"{len(results)} ranks count to {memory['count']}"


def locked(rank: int, ranks: int, *, wait_for_all: bool) -> Steps[None]:
    yield from lock(rank, ranks, wait_for_all=wait_for_all)
    yield from count()
    yield from publish("y", 0)
    yield from publish(f"tries{rank}", 0)


LINES = ("count", "x", "y", *(f"tries{rank}" for rank in RANKS))


@protocol(*LINES, final=nothing_is_lost)
def broken(rank: int, ranks: int) -> Steps[None]:
    return locked(rank, ranks, wait_for_all=False)


@protocol(*LINES, final=nothing_is_lost)
def fixed(rank: int, ranks: int) -> Steps[None]:
    return locked(rank, ranks, wait_for_all=True)
