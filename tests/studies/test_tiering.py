"""Placement and policies against brute force: what lies where is known exactly, and no page is lost or doubled."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError
from studies.tiering.placement import Move, Placement, fill
from studies.tiering.policies import POLICIES, Hotness, Lru, Policy, Prefetch, Static

ROOMS = st.builds(
    lambda nearest, others: [nearest, *others], st.integers(1, 5), st.lists(st.integers(0, 5), max_size=4)
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Rooms of tiers, and accesses to pages that they can hold."""
    room = draw(ROOMS)
    pages = draw(st.integers(1, sum(room)))
    return room, draw(st.lists(st.integers(0, pages - 1), min_size=1, max_size=60))


def followed(policy: Policy, room: Sequence[int], schedule: list[int]) -> list[tuple[list[int], list[Move]]]:
    """Where pages lie and what moved, before the first access and after each of them; moves are checked on the way."""
    placement = fill(range(max(schedule) + 1), room)
    lies = dict(enumerate(placement.tier_of.tolist()))
    seen = []
    for step in range(-1, len(schedule)):
        moves = policy.begin(placement, schedule) if step < 0 else policy.touched(step, schedule[step])
        for move in moves:
            assert lies[move.page] == move.source != move.target, "a page moves from where it lies"
            lies[move.page] = move.target
        assert lies == dict(enumerate(placement.tier_of.tolist())), "what moved is what the placement says"
        held = Counter(lies.values())
        assert all(held[tier] <= its for tier, its in enumerate(room)), "no tier holds more than its room"
        assert placement.free == [its - held[tier] for tier, its in enumerate(room)]
        seen.append((placement.tier_of.tolist(), moves))
    return seen


@pytest.mark.parametrize("name", POLICIES)
@given(run=runs())
def test_no_policy_loses_a_page_or_overfills_a_tier(name: str, run: tuple[list[int], list[int]]) -> None:
    followed(POLICIES[name](), *run)


@given(run=runs())
def test_static_moves_nothing(run: tuple[list[int], list[int]]) -> None:
    assert all(not moves for _, moves in followed(Static(), *run))


@given(run=runs())
def test_lru_is_a_stack_cut_where_tiers_are_full(run: tuple[list[int], list[int]]) -> None:
    """Brute force: who was touched last lies nearest. Pages that were never touched keep their order behind those."""
    room, schedule = run
    pages = max(schedule) + 1
    seen = followed(Lru(), room, schedule)
    for step in range(len(schedule)):
        last = {page: at for at, page in enumerate(schedule[: step + 1])}
        stack = sorted(last, key=lambda page: -last[page])
        nearest = stack[: room[0]]
        assert all(seen[step + 1][0][page] == 0 for page in nearest)
        if len(last) == pages:  # then the whole order is known, except for room that was never needed
            tiers = [seen[step + 1][0][page] for page in stack]
            assert tiers == sorted(tiers)


def test_lru_on_a_cycle_that_does_not_fit_never_hits() -> None:
    cycle = list(range(5)) * 4
    seen = followed(Lru(), [3, 3], cycle)
    assert [lies[page] for (lies, _), page in zip(seen[5:], cycle[5:], strict=False)] == [1] * 15


def test_lru_moves_one_page_up_and_at_most_one_down_a_tier() -> None:
    seen = followed(Lru(), [1, 1, 2], [0, 1, 2, 3, 0])
    assert seen[3][1] == [Move(1, 0, 1), Move(0, 1, 2), Move(2, 2, 0)]
    assert seen[3][0] == [2, 1, 0, 2]


def test_hotness_brings_up_what_is_clearly_hotter_and_leaves_equals() -> None:
    policy = Hotness(period=8, ratio=2.0)
    hot_page_far = [3, 3, 3, 3, 0, 0, 1, 2]
    seen = followed(policy, [2, 2], hot_page_far)
    assert seen[-1][1] == [Move(1, 0, 1), Move(3, 1, 0)]
    equal = [0, 1, 2, 3] * 16
    assert all(not moves for _, moves in followed(Hotness(period=8, ratio=2.0), [2, 2], equal))


def test_hotness_without_hysteresis_would_go_to_and_fro() -> None:
    """Two pages that take turns in being slightly hotter: a ratio of 1 swaps them again and again, of 2 never."""
    turns = [0, 0, 0, 1, 1, 1, 1, 1, 0, 0] * 20
    moved = {ratio: sum(len(m) for _, m in followed(Hotness(5, 5, ratio), [1, 1], turns)) for ratio in (1.0, 2.0)}
    assert moved[1.0] > 20
    assert moved[2.0] == 0


def test_hotness_moves_no_more_than_it_may() -> None:
    schedule = [page for page in range(8, 16) for _ in range(4)]
    seen = followed(Hotness(period=32, moves_max=3), [8, 8], schedule)
    assert sum(move.target < move.source for move in seen[-1][1]) == 3


@given(run=runs(), ahead=st.integers(1, 6))
def test_prefetch_has_what_is_touched_when_there_is_room_for_all_that_is_near(
    run: tuple[list[int], list[int]], ahead: int
) -> None:
    room, schedule = run
    seen = followed(Prefetch(ahead), room, schedule)
    if room[0] >= ahead + 1:
        assert all(lies[page] == 0 for (lies, _), page in zip(seen, schedule, strict=False))


def test_prefetch_displaces_nothing_that_is_needed_sooner() -> None:
    seen = followed(Prefetch(ahead=2), [1, 3], [0, 0, 1, 0])
    assert [lies[0] for lies, _ in seen] == [0] * 5, "page 1 is needed once, between two uses of page 0"


def test_prefetch_displaces_what_is_needed_last() -> None:
    """Belady's rule: of pages 0, 1 and 2 in the nearest tier, page 1 comes last, and gives way."""
    seen = followed(Prefetch(ahead=1), [3, 3], [0, 3, 2, 0, 1])
    assert seen[1][1] == [Move(1, 0, 1), Move(3, 1, 0)]


def test_prefetch_misses_what_its_room_cannot_hold() -> None:
    seen = followed(Prefetch(ahead=2), [1, 3], [0, 1, 2, 3])
    assert [lies[page] for (lies, _), page in zip(seen, [0, 1, 2, 3], strict=False)] != [0, 0, 0, 0]


def test_pages_fill_the_nearest_tier_first() -> None:
    placement = fill([3, 1, 0, 2], [1, 2, 5])
    assert placement.tier_of.tolist() == [1, 1, 2, 0]
    assert placement.free == [0, 0, 4]


def test_room_without_bounds_takes_no_memory() -> None:
    """A page may be smaller than the working set that it stands for: its memory has room for a great many."""
    assert fill([1, 0], [1, 1 << 60, 1 << 60]).tier_of.tolist() == [1, 0]


def test_a_page_that_moves_leaves_room_behind() -> None:
    placement = fill([0, 1, 2], [2, 3])
    assert placement.move(0, 1) == Move(0, 0, 1)
    assert (placement.tier_of.tolist(), placement.free) == ([1, 0, 1], [1, 1])
    assert placement.move(2, 0) == Move(2, 1, 0)
    assert (placement.tier_of.tolist(), placement.free) == ([1, 0, 0], [0, 2])


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ArgumentError, match="7 pages do not fit tiers with room for 6"):
        fill(range(7), [1, 5])
    placement = fill(range(3), [1, 2])
    with pytest.raises(ArgumentError, match="page 2 does not fit tier 0, which is full"):
        placement.move(2, 0)
    with pytest.raises(ArgumentError, match="tier 0 has room for 1 pages, not for 2"):
        Placement(np.array([0, 0]), [1])
    with pytest.raises(ArgumentError, match="tiers 0 to 0"):
        Placement(np.array([1]), [1])
