"""A queue that flushes what it carries and forgets its index: the reader sees the item when the writer's cache happens
to evict the index, which may be never.

cxlemu explore examples/protocols/unflushed_index.py:broken
cxlemu run --protocol examples/protocols/unflushed_index.py:broken --adversary off --deadline-s 2
"""

from faults import Fence, Flush, Invalidate, Load, Steps, Store, protocol


def queue(rank: int, *, flush_index: bool) -> Steps[None]:
    if rank == 0:
        yield Store("item", 42)
        yield Flush("item")
        yield Fence()
        yield Store("index", 1)
        if flush_index:
            yield Flush("index")
    else:
        while (yield Load("index")) == 0:
            yield Invalidate("index")
        yield Invalidate("item")
        item = yield Load("item")
        assert item == 42, item


@protocol("index", "item")
def broken(rank: int, ranks: int) -> Steps[None]:
    return queue(rank, flush_index=False)


@protocol("index", "item")
def fixed(rank: int, ranks: int) -> Steps[None]:
    return queue(rank, flush_index=True)
