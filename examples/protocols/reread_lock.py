"""A lock taken by writing one's name into it, flushing and reading it again: both hosts may read their own name, one
after the other. Without atomics it takes an algorithm such as Burns' with one bit for each host.

cxlemu explore examples/protocols/reread_lock.py:broken
cxlemu run --protocol examples/protocols/reread_lock.py:broken --seeds 400 -x
"""

from faults import Fence, Flush, Invalidate, Load, Steps, Store, protocol


def publish(word: str, value: int) -> Steps[None]:
    yield Store(word, value)
    yield Flush(word)
    yield Fence()


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def inside(rank: int) -> Steps[None]:
    """What the lock protects: nobody else is in here."""
    yield from publish(f"inside{rank}", 1)
    other = yield from fresh(f"inside{1 - rank}")
    assert other == 0, "both hosts are inside"
    yield from publish(f"inside{rank}", 0)


@protocol("owner", "inside0", "inside1")
def broken(rank: int, ranks: int) -> Steps[None]:
    me = rank + 1
    while True:
        if (yield from fresh("owner")) == 0:
            yield from publish("owner", me)
            if (yield from fresh("owner")) == me:
                break
    yield from inside(rank)
    yield from publish("owner", 0)


@protocol("wants0", "wants1", "inside0", "inside1")
def fixed(rank: int, ranks: int) -> Steps[None]:
    mine, other = f"wants{rank}", f"wants{1 - rank}"
    while True:
        yield from publish(mine, 1)
        if (yield from fresh(other)) == 0:
            break
        if rank == 1:  # the later host steps back and lets the other one pass
            yield from publish(mine, 0)
            while (yield from fresh(other)) == 1:
                pass
    yield from inside(rank)
    yield from publish(mine, 0)
