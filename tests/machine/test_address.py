"""Interleaving, held to the definition: one byte at a time."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError
from cxlemu.plan.address import AddressMap, StridedRun, rank_cards
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

POOL_GRANULES = [2**power for power in range(8, 25)]  # 256 B .. 16 MiB

few = examples(60)


def defined(amap: AddressMap, offset: int) -> tuple[int, int]:
    """The definition, written out."""
    granule, within = divmod(amap.start + offset, amap.granularity_bytes)
    row, slot = divmod(granule, amap.cards)
    return amap.first_card + slot, amap.base + row * amap.granularity_bytes + within


@st.composite
def maps(draw: st.DrawFn, granules: list[int]) -> AddressMap:
    granule = draw(st.sampled_from(granules))
    return AddressMap(
        first_card=draw(st.integers(0, 5)),
        cards=draw(st.integers(1, 33)),
        granularity_bytes=granule,
        base=draw(st.integers(0, 10)) * 64,
        start=draw(st.one_of(st.just(0), st.integers(0, 40 * granule))),
    )


@st.composite
def ranges(draw: st.DrawFn) -> tuple[AddressMap, int, int]:
    """A small map and a range of a few dozen granules, ends often at or beside a granule's edge."""
    amap = draw(maps([64, 192, 256]))
    size = amap.granularity_bytes

    def position() -> int:
        near = draw(st.integers(0, 20)) * size - amap.start % size + draw(st.sampled_from([-1, 0, 1]))
        return max(0, draw(st.one_of(st.just(near), st.integers(0, 20 * size))))

    first, second = sorted((position(), position()))
    return amap, first, second - first


def bytes_per_card(amap: AddressMap, nbytes: int) -> int:
    """How much the map's first ``nbytes`` need at most of a card, from ``base``: bytes in whole granules."""
    granules = -(-(amap.start + nbytes) // amap.granularity_bytes)
    return -(-granules // amap.cards) * amap.granularity_bytes


@few
@given(maps(POOL_GRANULES), st.integers(0, 2**44))
def test_locate_and_logical_are_inverse_at_every_pool_granularity(amap: AddressMap, offset: int) -> None:
    address = amap.locate(offset)
    assert address == defined(amap, offset)
    assert amap.logical(*address) == offset
    assert amap.first_card <= address.card < amap.first_card + amap.cards
    assert amap.base <= address.offset < amap.base + bytes_per_card(amap, offset + 1)


def test_two_cards_take_turns() -> None:
    amap = AddressMap(first_card=3, cards=2, granularity_bytes=256, base=4096)
    assert [amap.locate(o) for o in (0, 255, 256, 511, 512, 768)] == [
        (3, 4096), (3, 4351), (4, 4096), (4, 4351), (3, 4352), (4, 4352),
    ]  # fmt: skip


def test_bytes_of_different_offsets_never_meet() -> None:
    amap = AddressMap(first_card=0, cards=3, granularity_bytes=64, start=100)
    assert len({amap.locate(offset) for offset in range(2000)}) == 2000


@few
@given(ranges())
def test_extents_are_the_bytes_of_the_range(case: tuple[AddressMap, int, int]) -> None:
    amap, offset, nbytes = case
    extents = amap.extents(offset, nbytes)
    assert len({extent.card for extent in extents}) == len(extents) <= amap.cards
    covered = [(e.card, e.offset + k) for e in extents for k in range(e.nbytes)]
    assert Counter(covered) == Counter(defined(amap, offset + k) for k in range(nbytes))
    assert amap.end_on_cards(offset + nbytes) == max(
        (e.offset + e.nbytes for e in amap.extents(0, offset + nbytes)), default=0
    )
    assert [(e.card, e.offset) for e in extents[:1]] == [defined(amap, offset)][: len(extents)]


@few
@given(ranges())
def test_runs_pair_every_local_byte_with_its_place(case: tuple[AddressMap, int, int]) -> None:
    amap, offset, nbytes = case
    runs = amap.runs(offset, nbytes)
    assert len(runs) <= amap.cards + 2
    pairs = [
        (run.local_offset + block * run.stride_bytes + k, (run.card, run.card_offset + block * run.block_bytes + k))
        for run in runs
        for block in range(run.blocks)
        for k in range(run.block_bytes)
    ]
    assert sorted(pairs) == [(k, defined(amap, offset + k)) for k in range(nbytes)]


@few
@given(ranges(), st.integers(0, 2**32))
def test_a_region_written_run_by_run_reads_back(case: tuple[AddressMap, int, int], seed: int) -> None:
    amap, offset, nbytes = case
    cards = np.zeros((amap.first_card + amap.cards, amap.base + bytes_per_card(amap, offset + nbytes)), np.uint8)
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    for run in amap.runs(offset, nbytes):
        cards[run.card, run.card_offset : run.card_offset + run.nbytes] = run.local(data).reshape(-1)
    back = np.zeros_like(data)
    for run in amap.runs(offset, nbytes):
        piece = cards[run.card, run.card_offset : run.card_offset + run.nbytes]
        run.local(back)[:] = piece.reshape(run.blocks, run.block_bytes)
    assert np.array_equal(back, data)


def test_a_gigabyte_in_256_byte_granules_is_a_handful_of_runs() -> None:
    amap = AddressMap(first_card=0, cards=6, granularity_bytes=256, start=1)
    runs = amap.runs(3, 2**30)
    assert len(runs) == 8
    assert sum(run.nbytes for run in runs) == 2**30


def test_one_card_is_one_run() -> None:
    amap = AddressMap(first_card=2, cards=1, granularity_bytes=256, base=64)
    assert amap.runs(100, 5000) == [StridedRun(2, 164, 0, 5000, 1, 5000)]


def test_an_empty_range_has_no_bytes() -> None:
    amap = AddressMap(first_card=0, cards=2, granularity_bytes=64)
    assert amap.runs(10, 0) == amap.extents(10, 0) == []


def test_local_is_a_view_of_the_buffer() -> None:
    buffer = np.zeros(10, np.uint8)
    StridedRun(card=0, card_offset=0, local_offset=1, block_bytes=2, blocks=3, stride_bytes=3).local(buffer)[:] = 7
    assert buffer.tolist() == [0, 7, 7, 0, 7, 7, 0, 7, 7, 0]


@pytest.mark.parametrize("buffer", [np.zeros(8, np.uint8), np.zeros(9, np.int8), np.zeros((3, 3), np.uint8)])
def test_local_refuses_a_buffer_that_does_not_hold_the_run(buffer: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match="local buffer of 9 or more uint8"):
        StridedRun(card=0, card_offset=0, local_offset=1, block_bytes=2, blocks=3, stride_bytes=3).local(buffer)


@with_rows(
        {"cards": 0}, {"granularity_bytes": 0}, {"granularity_bytes": 96}, {"granularity_bytes": -64},
        {"first_card": -1}, {"base": -64}, {"start": -1},
)  # fmt: skip
def test_impossible_maps_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentError):
        AddressMap(**{"first_card": 0, "cards": 2, "granularity_bytes": 64, **wrong})


@pytest.mark.parametrize(("card", "offset"), [(1, 4096), (4, 4096), (2, 4095), (3, 0), (2, 4096)])
def test_addresses_outside_the_region_are_refused(card: int, offset: int) -> None:
    amap = AddressMap(first_card=2, cards=2, granularity_bytes=64, base=4096, start=64)
    assert amap.logical(3, 4096) == 0
    with pytest.raises(ArgumentError, match="outside the region"):
        amap.logical(card, offset)


def test_negative_ranges_are_refused() -> None:
    amap = AddressMap(first_card=0, cards=2, granularity_bytes=64, start=1000)
    for call in (lambda: amap.locate(-1), lambda: amap.runs(-1, 5), lambda: amap.extents(0, -1)):
        with pytest.raises(ArgumentError):
            call()


@given(st.integers(1, 40), st.integers(1, 40))
def test_ranks_share_the_cards_evenly(ranks: int, cards: int) -> None:
    shares = [rank_cards(rank, ranks, cards) for rank in range(ranks)]
    if ranks <= cards:
        assert [card for s in shares for card in range(s.first_card, s.first_card + s.cards)] == list(range(cards))
        assert max(s.cards for s in shares) - min(s.cards for s in shares) <= 1
        assert {s.sharers_before for s in shares} == {0}
    else:
        assert len({(s.first_card, s.sharers_before) for s in shares}) == ranks
        users = Counter(s.first_card for s in shares)
        assert max(users.values()) - min(users.values()) <= 1
        assert all(s.cards == 1 and s.sharers_before < users[s.first_card] for s in shares)


@pytest.mark.parametrize(("rank", "ranks", "cards"), [(2, 2, 4), (-1, 2, 4), (0, 1, 0), (0, 0, 1)])
def test_ranks_and_cards_that_do_not_exist_are_refused(rank: int, ranks: int, cards: int) -> None:
    with pytest.raises(ArgumentError):
        rank_cards(rank, ranks, cards)
