"""A slot whose reader says "free" before it has copied the message out: the writer's next one is what it copies.

cxlemu explore examples/protocols/early_free.py:broken
cxlemu run --protocol examples/protocols/early_free.py:broken --seeds 400 -x
"""

from faults import Fence, Flush, Invalidate, Load, Signal, Steps, Store, Wait, protocol

MESSAGES = (11, 22)


def mailbox(rank: int, *, copy_first: bool) -> Steps[None]:
    if rank == 0:
        for number, message in enumerate(MESSAGES):
            yield Wait("freed", number)
            yield Store("message", message)
            yield Flush("message")
            yield Fence()
            yield Signal("filled", number + 1)
    else:
        for number, expected in enumerate(MESSAGES):
            yield Wait("filled", number + 1)
            yield Invalidate("message")
            if not copy_first:
                yield Signal("freed", number + 1)
            message = yield Load("message")
            assert message == expected, f"message {number} is {message} and not {expected}"
            if copy_first:
                yield Signal("freed", number + 1)


@protocol("filled", "freed", "message")
def broken(rank: int, ranks: int) -> Steps[None]:
    return mailbox(rank, copy_first=False)


@protocol("filled", "freed", "message")
def fixed(rank: int, ranks: int) -> Steps[None]:
    return mailbox(rank, copy_first=True)
