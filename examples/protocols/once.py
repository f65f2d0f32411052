"""Whoever comes first initializes a table, under a lock; whoever sees that it is ready takes no lock. Both lines have
to be looked up anew: nature may have brought the table into a cache before.

cxlemu explore examples/protocols/once.py:broken
cxlemu explore examples/protocols/once.py:fixed
"""

from faults import Fence, Flush, Invalidate, Load, Steps, Store, protocol

TABLE = 42


def publish(word: str, value: int) -> Steps[None]:
    yield Store(word, value)
    yield Flush(word)
    yield Fence()


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def lock(rank: int) -> Steps[None]:
    """Peterson's (1981), of two ranks."""
    yield from publish(f"wants{rank}", 1)
    yield from publish("last", rank)
    while (yield from fresh("last")) == rank and (yield from fresh(f"wants{1 - rank}")):
        pass


def once(rank: int, *, look_again: bool) -> Steps[None]:
    if (yield from fresh("ready")) == 0:
        yield from lock(rank)
        if (yield from fresh("ready")) == 0:
            yield from publish("table", TABLE)
            yield from publish("ready", 1)
        yield from publish(f"wants{rank}", 0)
    if look_again:
        yield Invalidate("table")
    table = yield Load("table")
    assert table == TABLE, f"the table is {table}"


@protocol("ready", "table", "last", "wants0", "wants1")
def broken(rank: int, ranks: int) -> Steps[None]:
    return once(rank, look_again=False)


@protocol("ready", "table", "last", "wants0", "wants1")
def fixed(rank: int, ranks: int) -> Steps[None]:
    return once(rank, look_again=True)
