"""Room in the pool for a group, without atomics: rank 0 claims it and rank 1 joins, while rank 2 wants the same room.

Each rank says in a line of its own what it holds. A claim is good when no other rank holds or claims the same. With one
look at the others' lines, rank 2 may see rank 1's before rank 1 holds the room, and rank 0's after rank 0 let it go.
As a room is handed on once, two looks do not miss it: this is how communicators find room (cxlemu/pool/rooms.py).

cxlemu explore examples/protocols/group_room.py:broken -n 3
cxlemu explore examples/protocols/group_room.py:fixed -n 3
"""

from faults import Fence, Flush, Invalidate, Load, Steps, Store, protocol

NOTHING, CLAIMED, HELD = range(3)


def publish(word: str, value: int) -> Steps[None]:
    yield Store(word, value)
    yield Flush(word)
    yield Fence()


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def use(rank: int) -> Steps[None]:
    """What only holders of the room may do: nobody else stores there meanwhile."""
    yield from publish("room", rank)
    there = yield from fresh("room")
    assert there == rank, f"rank {rank} has stored to a room that rank {there} uses"


def claim(rank: int, ranks: int, looks: int) -> Steps[bool]:
    yield from publish(f"holds{rank}", CLAIMED)
    for _ in range(looks):
        for other in reversed(range(ranks)):
            if other != rank and (yield from fresh(f"holds{other}")) != NOTHING:
                yield from publish(f"holds{rank}", NOTHING)
                return False
    return True


def join(rank: int, leader: int) -> Steps[bool]:
    if (yield from fresh(f"holds{leader}")) != HELD:
        return False
    yield from publish(f"holds{rank}", HELD)
    if (yield from fresh(f"holds{leader}")) == HELD:  # then rank 1's line was there before rank 0's goes
        return True
    yield from publish(f"holds{rank}", NOTHING)
    return False


def ranks_that_meet(rank: int, ranks: int, *, looks: int) -> Steps[None]:
    if rank == 0 and (yield from claim(rank, ranks, looks)):
        yield from publish("holds0", HELD)
        yield from publish("holds0", NOTHING)  # at any time: it may have closed, or its deadline may be over
    if rank == 1 and (yield from join(rank, leader=0)):
        yield from use(rank)
    if rank == 2 and (yield from claim(rank, ranks, looks)):
        yield from use(rank)


LINES = ("room", "holds0", "holds1", "holds2")


@protocol(*LINES)
def broken(rank: int, ranks: int) -> Steps[None]:
    return ranks_that_meet(rank, ranks, looks=1)


@protocol(*LINES)
def fixed(rank: int, ranks: int) -> Steps[None]:
    return ranks_that_meet(rank, ranks, looks=2)
