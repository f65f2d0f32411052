"""A ring whose reader trusts checksums: on the second lap its cache still holds the first lap's bucket, which is valid.
A checksum says that a bucket is whole, not that it is the new one.

cxlemu explore examples/protocols/ring_queue.py:broken
cxlemu run --protocol examples/protocols/ring_queue.py:broken --seeds 5
"""

from faults import Fence, Flush, Invalidate, Load, Signal, Steps, Store, Wait, protocol

ITEMS = (11, 22)
SALT = 7  # so that an empty bucket has no valid checksum


def write(items: tuple[int, ...]) -> Steps[None]:
    for number, item in enumerate(items):
        yield Wait("tail", number)  # the one bucket is free again
        yield Store("item", item)
        yield Store("checksum", item + SALT)
        yield Flush("item")
        yield Fence()
        yield Signal("head", number + 1)


def read_while_invalid(items: tuple[int, ...]) -> Steps[None]:
    for number, expected in enumerate(items):
        while True:
            item = yield Load("item")
            checksum = yield Load("checksum")
            if checksum == item + SALT:
                break
            yield Invalidate("item")
        assert item == expected, f"item {number} is {item} and not {expected}"
        yield Signal("tail", number + 1)


def read_when_signalled(items: tuple[int, ...]) -> Steps[None]:
    for number, expected in enumerate(items):
        yield Wait("head", number + 1)
        yield Invalidate("item")
        item = yield Load("item")
        checksum = yield Load("checksum")
        assert checksum == item + SALT, "torn"
        assert item == expected, f"item {number} is {item} and not {expected}"
        yield Signal("tail", number + 1)


@protocol("head", "tail", "item checksum")
def broken(rank: int, ranks: int) -> Steps[None]:
    return write(ITEMS) if rank == 0 else read_while_invalid(ITEMS)


@protocol("head", "tail", "item checksum")
def fixed(rank: int, ranks: int) -> Steps[None]:
    return write(ITEMS) if rank == 0 else read_when_signalled(ITEMS)
