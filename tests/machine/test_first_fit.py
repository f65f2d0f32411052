"""The allocator, against a bitmap that knows every byte."""

from hypothesis import given
from hypothesis import strategies as st

from cxlemu.capacity.first_fit import FirstFit
from tests.helpers.tiers import examples

TOTAL = 40


@examples(200, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(0, 99)), max_size=40))
def test_the_lowest_place_that_fits_and_holes_that_never_touch(steps: list[tuple[bool, int, int]]) -> None:
    heap, taken = FirstFit(TOTAL), [False] * TOTAL
    held: list[tuple[int, int]] = []
    for takes, nbytes, which in steps:
        if takes:
            fits = (at for at in range(TOTAL - nbytes + 1) if not any(taken[at : at + nbytes]))
            at = heap.take(nbytes)
            assert at == next(fits, None)
            if at is not None:
                held.append((at, nbytes))
                taken[at : at + nbytes] = [True] * nbytes
        elif held:
            at, nbytes = held.pop(which % len(held))
            heap.give_back(at, nbytes)
            taken[at : at + nbytes] = [False] * nbytes
        edges = [False, *(not here for here in taken), False]
        begins = [at for at in range(TOTAL + 1) if edges[at + 1] and not edges[at]]
        ends = [at for at in range(TOTAL + 1) if edges[at] and not edges[at + 1]]
        assert heap.holes == list(zip(begins, ends, strict=True))
        assert heap.free_bytes == taken.count(False)
        assert heap.largest_bytes == max((end - begin for begin, end in heap.holes), default=0)
