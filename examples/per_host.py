"""Two ranks a host: one of them fetches for both, as what is fresh in a host's cache is fresh for all of its ranks.

cxlemu explore examples/per_host.py:fixed -n 4
cxlemu explore examples/per_host.py:broken -n 4
cxlemu run --protocol examples/per_host.py:broken -n 4 --seeds 200 -x
"""

from faults import Fence, Flush, Invalidate, Load, Signal, Steps, Store, Wait, protocol

PER_HOST = 2


def broadcast(rank: int, *, ask_neighbour: bool) -> Steps[None]:
    fetched = f"fetched{rank // PER_HOST}"  # within a host nobody need flush or invalidate it
    if rank == 0:
        yield Store("data", 42)
        yield Flush("data")
        yield Fence()
        yield Signal("published", 1)
        yield Store(fetched, 1)
    elif rank % PER_HOST == 0:
        yield Load("data")  # an old copy is in this host's cache
        yield Wait("published", 1)
        yield Invalidate("data")
        yield Store(fetched, 1)
    else:
        if ask_neighbour:
            while (yield Load(fetched)) == 0:
                pass
        else:
            yield Wait("published", 1)
        value = yield Load("data")
        assert value == 42, f"the old copy: {value}"


@protocol("published", "data", "fetched0", "fetched1", ranks_per_host=PER_HOST)
def broken(rank: int, ranks: int) -> Steps[None]:
    return broadcast(rank, ask_neighbour=False)


@protocol("published", "data", "fetched0", "fetched1", ranks_per_host=PER_HOST)
def fixed(rank: int, ranks: int) -> Steps[None]:
    return broadcast(rank, ask_neighbour=True)
