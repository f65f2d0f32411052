"""One host initializes a table and says "ready" without a fence in between: lines arrive in any order, and another host
works on an entry that is not there yet.

cxlemu explore examples/protocols/early_ready.py:broken
cxlemu run --protocol examples/protocols/early_ready.py:broken --adversary off
"""

from faults import Fence, Flush, Invalidate, Load, Signal, Steps, Store, Wait, protocol

EMPTY = 99  # what an initialized entry holds


def initialize(rank: int, *, fence: bool) -> Steps[None]:
    if rank == 0:
        for entry in ("entry0", "entry1"):
            yield Store(entry, EMPTY)
            yield Flush(entry)
        if fence:
            yield Fence()
        yield Signal("ready", 1)
    else:
        yield Wait("ready", 1)
        for entry in ("entry0", "entry1"):
            yield Invalidate(entry)
            value = yield Load(entry)
            assert value == EMPTY, f"{entry} is not initialized"


@protocol("ready", "entry0", "entry1")
def broken(rank: int, ranks: int) -> Steps[None]:
    return initialize(rank, fence=False)


@protocol("ready", "entry0", "entry1")
def fixed(rank: int, ranks: int) -> Steps[None]:
    return initialize(rank, fence=True)
