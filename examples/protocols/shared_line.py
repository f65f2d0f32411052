"""Two hosts, each with a field of its own, and both fields in one line: whole lines travel, so the later write-back
takes the other host's field back to what it was.

cxlemu explore examples/protocols/shared_line.py:broken
cxlemu run --protocol examples/protocols/shared_line.py:broken --seeds 30
"""

from collections.abc import Mapping, Sequence

from faults import Fence, Flush, Steps, Store, protocol


def announce(rank: int) -> Steps[None]:
    yield Store(f"here{rank}", 1)
    yield Flush(f"here{rank}")
    yield Fence()


def both_are_here(memory: Mapping[str, int], results: Sequence[None]) -> None:
    assert memory["here0"] == memory["here1"] == 1, "an announcement is lost"


@protocol("here0 here1", final=both_are_here)
def broken(rank: int, ranks: int) -> Steps[None]:
    return announce(rank)


@protocol("here0", "here1", final=both_are_here)
def fixed(rank: int, ranks: int) -> Steps[None]:
    return announce(rank)
