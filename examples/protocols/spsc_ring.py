"""A ring of two slots between one writer and one reader, with an index each. A writer that believes the index in its
cache never sees that the reader has gone on.

cxlemu explore examples/protocols/spsc_ring.py:broken
cxlemu explore examples/protocols/spsc_ring.py:fixed
"""

from faults.explore.programs import Fence, Flush, Invalidate, Load, Steps, Store, protocol

SLOTS, ITEMS = 2, (11, 22, 33, 44)


def publish(word: str, value: int) -> Steps[None]:
    yield Store(word, value)
    yield Flush(word)
    yield Fence()


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def write(*, look_again: bool) -> Steps[None]:
    freed = 0
    for number, item in enumerate(ITEMS):
        while number - freed == SLOTS:
            if look_again:
                yield Invalidate("freed")
            freed = yield Load("freed")
        yield from publish(f"slot{number % SLOTS}", item)
        yield from publish("filled", number + 1)


def read() -> Steps[None]:
    filled = 0
    for number, expected in enumerate(ITEMS):
        while filled == number:
            filled = yield from fresh("filled")
        item = yield from fresh(f"slot{number % SLOTS}")
        assert item == expected, f"item {number} is {item} and not {expected}"
        yield from publish("freed", number + 1)


@protocol("filled", "freed", "slot0", "slot1")
def broken(rank: int, ranks: int) -> Steps[None]:
    return write(look_again=False) if rank == 0 else read()


@protocol("filled", "freed", "slot0", "slot1")
def fixed(rank: int, ranks: int) -> Steps[None]:
    return write(look_again=True) if rank == 0 else read()
