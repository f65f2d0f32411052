"""Copies of plans: each byte arrives, and none beside it, wherever both sides lie and in every way."""

import numpy as np
import pytest

from cxlemu import _native
from cxlemu.memory.protocol import LINE_BYTES

PAGE = 4096
WAYS = (0, 1, 2)  # as plans do, by vectors, past the caches
OFFSETS = (0, 1, 16, 31, 32, 63)
SHORT = (0, 1, 31, 32, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 2047, 2048, 2049, 4111)
LONG = (2112, (512 << 10) - 1, 512 << 10, (512 << 10) + 65)  # around the sizes between which vectors may be taken


def copied(offset: int, begin: int, nbytes: int, way: int) -> None:
    memory = np.full(offset + nbytes + PAGE, 7, np.uint8)
    source = np.random.default_rng(nbytes).integers(0, 256, begin + nbytes, np.uint8)[begin:]
    expected = memory.copy()
    expected[offset : offset + nbytes] = source
    _native.copy(memory, offset, source, way)
    _native.fence()
    assert memory.tobytes() == expected.tobytes(), (offset, begin, nbytes)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_copy_stores_its_bytes_and_no_others(offset: int, way: int) -> None:
    for begin in OFFSETS:
        for nbytes in SHORT:
            copied(offset, begin, nbytes, way)


@pytest.mark.parametrize("nbytes", LONG)
def test_a_large_copy_stores_its_bytes_and_no_others(nbytes: int) -> None:
    for way in WAYS:
        copied(16, 0, nbytes, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("nbytes", LONG)
def test_a_large_copy_between_places_that_are_alike_in_their_lines(nbytes: int, offset: int, way: int) -> None:
    memory, given = np.full(nbytes + 2 * LINE_BYTES, 7, np.uint8), np.arange(nbytes + LINE_BYTES).astype(np.uint8)
    begin = (memory.ctypes.data + offset - given.ctypes.data) % LINE_BYTES
    source = given[begin : begin + nbytes]
    _native.copy(memory, offset, source, way)
    _native.fence()
    assert memory[offset : offset + nbytes].tobytes() == source.tobytes()
    assert (memory[:offset] == 7).all() and (memory[offset + nbytes :] == 7).all()


def test_a_copy_outside_its_card_is_refused() -> None:
    memory = np.full(PAGE, 7, np.uint8)
    for offset, nbytes in ((-1, 1), (PAGE, 1), (1, PAGE)):
        with pytest.raises(ValueError, match="outside a card"):
            _native.copy(memory, offset, np.zeros(nbytes, np.uint8), 1)
    assert (memory == 7).all()


@pytest.mark.parametrize("way", [-1, 3])
def test_another_way_is_refused(way: int) -> None:
    with pytest.raises(ValueError, match="there is no way"):
        _native.copy(np.zeros(64, np.uint8), 0, np.zeros(1, np.uint8), way)
