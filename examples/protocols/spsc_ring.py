"""A ring of two slots between one writer and one reader, with an index each. A reader that
looks anew at the index only finds the first lap's items in its cache when it comes round again.

cxlemu explore examples/protocols/spsc_ring.py:broken
cxlemu run --protocol examples/protocols/spsc_ring.py:broken --adversary off
cxlemu explore examples/protocols/spsc_ring.py:fixed
"""

from faults import Fence, Flush, Invalidate, Load, Steps, Store, protocol

SLOTS, ITEMS = 2, (11, 22, 33, 44)


def publish(word: str, value: int) -> Steps[None]:
    yield Store(word, value)
    yield Flush(word)
    yield Fence()


def fresh(word: str) -> Steps[int]:
    yield Invalidate(word)
    value = yield Load(word)
    return value


def cached(word: str) -> Steps[int]:
    value = yield Load(word)
    return value


def write() -> Steps[None]:
    freed = 0
    for number, item in enumerate(ITEMS):
        while number - freed == SLOTS:
            freed = yield from fresh("freed")
        yield from publish(f"slot{number % SLOTS}", item)
        yield from publish("filled", number + 1)


def read(*, look_again: bool) -> Steps[None]:
    filled = 0
    for number, expected in enumerate(ITEMS):
        while filled == number:
            filled = yield from fresh("filled")
        slot = f"slot{number % SLOTS}"
        item = yield from fresh(slot) if look_again else cached(slot)
        assert item == expected, f"item {number} is {item} and not {expected}"
        yield from publish("freed", number + 1)


@protocol("filled", "freed", "slot0", "slot1")
def broken(rank: int, ranks: int) -> Steps[None]:
    return write() if rank == 0 else read(look_again=False)


@protocol("filled", "freed", "slot0", "slot1")
def fixed(rank: int, ranks: int) -> Steps[None]:
    return write() if rank == 0 else read(look_again=True)
