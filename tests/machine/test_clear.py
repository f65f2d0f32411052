"""Many ranges are cleared in one call: these bytes and no others, and none outside a card."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.memory.dax import DaxMemory
from cxlemu.memory.direct import DirectMemory
from tests.helpers.tables import with_rows

CARD_BYTES = 512
EXTENT = st.tuples(st.integers(0, 1), st.integers(0, 200), st.integers(0, 200))


@pytest.mark.parametrize("kind", [DirectMemory, DaxMemory])
@given(base=st.integers(0, 112), extents=st.lists(EXTENT, max_size=9))
def test_zeros_are_where_they_are_asked_for(
    kind: type[DirectMemory], base: int, extents: list[tuple[int, int, int]]
) -> None:
    cards = [np.full(CARD_BYTES, 7, np.uint8) for _ in range(2)]
    kind(cards).clear(base, np.array(extents, np.int64).reshape(-1, 3))
    wanted = np.full((2, CARD_BYTES), 7)
    for card, offset, nbytes in extents:
        wanted[card, base + offset : base + offset + nbytes] = 0
    assert np.array_equal(cards, wanted)


@with_rows(
    (0, (2, 0, 1)),
    (0, (-1, 0, 1)),
    (0, (0, 512, 1)),
    (513, (0, 0, 0)),
    (1, (0, 2**63 - 1, 1)),
    (8, (1, 8, -1)),
    (2**62, (0, 2**62, 2**62)),
    (0, (0, 0, 513)),
    (0, (0, -64, 64)),
)
def test_what_lies_outside_a_card_is_refused_and_nothing_is_cleared(base: int, extent: tuple[int, int, int]) -> None:
    cards = [np.full(CARD_BYTES, 7, np.uint8) for _ in range(2)]
    with pytest.raises(ValueError, match="outside its card"):
        DirectMemory(cards).clear(base, np.array([(0, 0, 64), extent], np.int64))
    assert all((card == 7).all() for card in cards)
