"""A lock that rank 0 grants to the others in turn: every line has one writer. A rank that gives it back
before its own store has arrived lets the next one in too early.

cxlemu explore examples/protocols/granted_lock.py:broken
cxlemu run --protocol examples/protocols/granted_lock.py:broken --adversary off
cxlemu explore examples/protocols/granted_lock.py:fixed -n 3
"""

from faults import Fence, Flush, Invalidate, Load, Signal, Steps, Store, Wait, protocol

RANKS = range(4)  # at most


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def grant(ranks: int) -> Steps[None]:
    left = list(range(1, ranks))
    while left:
        for rank in list(left):
            if (yield from fresh(f"wants{rank}")) == 1:
                yield Signal(f"granted{rank}", 1)
                yield Wait(f"wants{rank}", 2)
                left.remove(rank)
    counted = yield from fresh("count")
    assert counted == ranks - 1, f"{ranks - 1} ranks count to {counted}"


def count(rank: int, *, fence: bool) -> Steps[None]:
    yield Signal(f"wants{rank}", 1)
    yield Wait(f"granted{rank}", 1)
    value = yield from fresh("count")
    yield Store("count", value + 1)
    yield Flush("count")
    if fence:
        yield Fence()
    yield Signal(f"wants{rank}", 2)


LINES = ("count", *(f"wants{rank}" for rank in RANKS), *(f"granted{rank}" for rank in RANKS))


@protocol(*LINES)
def broken(rank: int, ranks: int) -> Steps[None]:
    return grant(ranks) if rank == 0 else count(rank, fence=False)


@protocol(*LINES)
def fixed(rank: int, ranks: int) -> Steps[None]:
    return grant(ranks) if rank == 0 else count(rank, fence=True)
