"""Room in the pool, claimed by single ranks: no two ever hold the same bytes, and what is given back is used again."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from math import factorial

import numpy as np
import pytest

from cxlemu.errors import ArgumentError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.arena import Arena
from cxlemu.pool.ledger import (
    ALL_CARDS,
    FIRST_HOLD,
    IDENTITY,
    Hold,
    HoldState,
    Identity,
    Ledger,
    ledger_bytes,
    ledger_lines,
)
from cxlemu.pool.orders import NUMBERED, ORDERS, in_order, order_of
from cxlemu.pool.rooms import NoRoomError, Rooms
from cxlemu.pool.superblock import CARD_BYTES_MAX, CARDS_MAX
from tests.helpers.tables import with_rows

PAGE, LINES, SESSION = 4096, 16, 7
ARENA = Arena(16 * PAGE, 48 * PAGE)


def memories(ranks: int) -> list[HostMemory]:
    """Each rank on a host of its own, behind a cache that nothing keeps coherent."""
    cards = [np.zeros(ARENA.end, np.uint8) for _ in range(2)]
    return [MemorySpec().open(cards, host_cache=HostCache.private(cards), host=h, rank=h) for h in range(ranks)]


def rooms_on(opened: Sequence[HostMemory], session: int = SESSION) -> list[Rooms]:
    ledgers = [Ledger(memory, PAGE, LINES, session, rank) for rank, memory in enumerate(opened)]
    return [Rooms(ledger, len(opened), session, Identity(FIRST_HOLD, 1, 2)) for ledger in ledgers]


def all_rooms(ranks: int) -> list[Rooms]:
    return rooms_on(memories(ranks))


def pages(count: int) -> int:
    return count * PAGE


def take(rooms: Rooms, name: int, count: int, card: int = ALL_CARDS) -> Hold:
    return rooms.claim(name, ARENA, lambda largest: pages(count), card)


def test_claims_of_all_ranks_lie_side_by_side() -> None:
    ranks = all_rooms(3)
    held = [take(rooms, name, 3) for name, rooms in enumerate(ranks * 3)]
    assert [(hold.at, hold.end) for hold in held] == [
        (ARENA.at + pages(3 * k), ARENA.at + pages(3 * k + 3)) for k in range(9)
    ]
    assert all(hold.state == HoldState.HELD for hold in held)


def test_room_that_was_given_back_is_claimed_again() -> None:
    first, second = all_rooms(2)
    for name in range(100):  # more often than a rank has lines
        assert take(first, name, 32).at == ARENA.at
        with pytest.raises(NoRoomError, match="0 are free"):
            take(second, 1000 + name, 1)
        first.release(name)
        assert take(second, 2000 + name, 32).at == ARENA.at
        second.release(2000 + name)
    assert first.held == second.held == []


def test_rooms_of_one_card_lie_beside_those_of_another() -> None:
    first, second = all_rooms(2)
    assert take(first, 1, 8, card=0).at == take(second, 2, 8, card=1).at == ARENA.at
    assert take(second, 3, 8, card=0).at == take(first, 4, 8).at - pages(8) == ARENA.at + pages(8)


def test_a_room_is_taken_until_its_last_holder_lets_it_go() -> None:
    leader, member, other = all_rooms(3)
    room = take(leader, 5, 32)
    found = member.find(0, 5)
    assert found == room and member.join(0, found)
    leader.release(5)
    with pytest.raises(NoRoomError):
        take(other, 6, 32)
    member.release(5)
    assert take(other, 6, 32).at == room.at


def test_who_finds_a_room_too_late_does_not_hold_it() -> None:
    leader, member = all_rooms(2)
    room = take(leader, 5, 4)
    found = member.find(0, 5)
    leader.release(5)
    assert found == room and not member.join(0, found) and member.held == [] and member.find(0, 5) is None


def test_a_room_that_is_handed_on_during_a_look_is_seen_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """From rank 2, which is looked at last, to rank 1, which was looked at already: one look sees it at neither."""
    claimer, member, leader = all_rooms(3)
    post, holds, events = claimer.ledger.post, claimer.ledger.holds, []

    def claim_first(line: int, hold: Hold | None) -> None:
        if not events:  # between the claimer's look for free room and its claim
            events.append(take(leader, 7, 4))
        post(line, hold)

    def hand_on(rank: int) -> list[Hold]:
        found = list(holds(rank))
        if rank == member.ledger.rank and len(events) == 1:
            events.append(member.join(leader.ledger.rank, events[0]))
            leader.release(7)
        return found

    monkeypatch.setattr(claimer.ledger, "post", claim_first)
    monkeypatch.setattr(claimer.ledger, "holds", hand_on)
    held = take(claimer, 8, 4)
    assert len(events) == 2 and member.held and not held.overlaps(member.held[0])


def test_a_claim_that_may_be_withdrawn_is_no_room_to_join() -> None:
    leader, member = all_rooms(2)
    leader._post(FIRST_HOLD, Hold(5, ARENA.at, ARENA.end, ALL_CARDS, HoldState.CLAIMED))
    assert member.find(0, 5) is None


def test_a_refusal_is_told_and_forgotten_in_time() -> None:
    leader, member = all_rooms(2)
    for name in range(1, 100):
        leader.refuse(name)
        found = member.find(0, name)
        assert found is not None and found.state == HoldState.REFUSED
    assert len(leader.held) < LINES - FIRST_HOLD and take(member, 1, 32).at == ARENA.at


def test_a_rank_with_as_many_rooms_as_lines_says_so() -> None:
    (rooms,) = all_rooms(1)
    for name in range(LINES - FIRST_HOLD):
        take(rooms, name, 1)
    with pytest.raises(ArgumentError, match="rank 0 holds 14 rooms of the pool, the most that it can"):
        take(rooms, 99, 1)


def test_what_a_rank_wrote_by_lines_has_arrived_before_a_room_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a board's line may arrive in a room that another rank has claimed meanwhile."""
    (memory,) = memories(1)
    (rooms,) = rooms_on([memory])
    take(rooms, 1, 4)
    done: list[str] = []
    signal, fence = memory.signal, memory.fence
    monkeypatch.setattr(memory, "signal", lambda *line: (done.append("signal"), signal(*line)))
    monkeypatch.setattr(memory, "fence", lambda: (done.append("fence"), fence()))
    rooms.release(1)
    assert done == ["fence", "signal", "fence"]


def test_what_a_run_before_held_is_free() -> None:
    opened = memories(2)
    take(rooms_on(opened)[0], 1, 32)
    assert take(rooms_on(opened, SESSION + 1)[1], 1, 32).at == ARENA.at


def test_what_a_rank_posts_is_in_the_pool_before_it_looks_at_others() -> None:
    (memory,), did = memories(1), []

    class Noted:
        def __getattr__(self, name: str) -> object:
            did.append(name)
            return getattr(memory, name)

    (rooms,) = rooms_on([Noted()])  # type: ignore[list-item]
    did.clear()
    rooms.ledger.post(FIRST_HOLD, GOOD)
    assert did == ["signal", "fence"]


@with_rows(
    ({}, True),
    ({"at": ARENA.at - PAGE}, False),
    ({"end": ARENA.end + PAGE}, False),
    ({"at": ARENA.at + 64}, False),
    ({"end": ARENA.end - 64}, False),
    ({"end": ARENA.at}, False),
    ({"card": 1}, False),
    ids=str,
)
def test_a_room_of_another_rank_is_taken_where_it_can_be_one(change: dict[str, int], fits: bool) -> None:
    (rooms,) = all_rooms(1)
    assert rooms.fits(GOOD._replace(**({"card": ALL_CARDS} | change)), ARENA) == fits


GOOD = Hold(5, ARENA.at, ARENA.end, 1, HoldState.HELD)


@pytest.mark.parametrize(
    "line",
    [
        GOOD._replace(at=ARENA.end + 1),
        GOOD._replace(end=CARD_BYTES_MAX + 1),
        GOOD._replace(card=ALL_CARDS - 1),
        GOOD._replace(card=CARDS_MAX),
    ],
)
def test_a_sealed_hold_that_cannot_be_is_none(line: Hold) -> None:
    first, second = all_rooms(2)
    first.ledger.identify(Identity(LINES, 1, 2))
    first.ledger.post(FIRST_HOLD, line)
    first.ledger.post(FIRST_HOLD + 1, GOOD)
    assert list(second.ledger.holds(0)) == [GOOD]


def test_a_ledger_is_not_read_past_its_end() -> None:
    first, second = all_rooms(2)
    first.ledger.identify(Identity(LINES + 1, 1, 2))
    second.ledger.post(IDENTITY, GOOD)  # where line LINES of rank 0 would be
    assert second.ledger.identity(0) is None and list(second.ledger.holds(0)) == []


def test_a_hold_of_another_session_or_place_is_none() -> None:
    opened = memories(2)
    first, _ = rooms_on(opened)
    first.ledger.post(FIRST_HOLD, GOOD)
    before, after = rooms_on(opened, SESSION + 1)
    before.ledger.identify(Identity(LINES, 1, 2))
    assert list(after.ledger.holds(0)) == []  # of the session before, in a line that this one uses
    before.ledger.post(FIRST_HOLD, GOOD)
    copied = opened[0].poll(0, before.ledger.place(0, FIRST_HOLD))
    opened[0].signal(0, before.ledger.place(0, FIRST_HOLD + 1), *copied)
    assert list(after.ledger.holds(0)) == [GOOD]


def test_names_agree_on_all_members_and_never_repeat() -> None:
    first, second = all_rooms(2)
    asked = [((0, 1), ""), ((0, 1), ""), ((0, 1), "a"), ((1, 0), "")]
    names = [first.name(*which) for which in asked]
    assert [second.name(*which) for which in asked] == names and len(set(names)) == 4
    assert first.name((0, 1), "") not in names


def test_dropped_rooms_come_back_with_the_next_claim() -> None:
    (rooms,) = all_rooms(1)
    take(rooms, 1, 32)
    rooms.later(lambda: rooms.release(1))
    assert rooms.held and take(rooms, 2, 32).at == ARENA.at


def test_ranks_that_claim_at_once_never_hold_the_same_bytes() -> None:
    """Every holder writes its number over its room and finds nobody else's there, on hosts without coherence."""
    opened = memories(4)
    ranks, over = rooms_on(opened), threading.Event()
    users: dict[int, tuple[int, int]] = {}  # page: who holds it now

    def live(rank: int) -> int:
        chance, claimed = random.Random(rank), 0
        for name in range(60):
            try:
                hold = take(ranks[rank], 1000 * rank + name, chance.randint(4, 14))
            except NoRoomError:
                continue
            claimed += 1
            mine = (rank, name)
            for page in range(hold.at, hold.end, PAGE):
                assert users.setdefault(page, mine) == mine, (hold, users[page])
            for page in range(hold.at, hold.end, PAGE):
                assert users.pop(page) == mine
            ranks[rank].release(hold.name)
        over.set()
        return claimed

    with ThreadPoolExecutor(4) as threads:
        assert all(claimed > 0 for claimed in threads.map(live, range(4)))
    assert not users and all(not rooms.held for rooms in ranks)


@pytest.mark.parametrize(("ranks", "card_bytes"), [(1, 1 << 16), (4, 8 << 20), (1024, 32 << 20), (16, 1 << 20)])
def test_ledgers_leave_the_card_to_the_arena(ranks: int, card_bytes: int) -> None:
    assert FIRST_HOLD < ledger_lines(ranks, card_bytes) <= 256
    assert ledger_bytes(ranks, card_bytes) <= card_bytes // 8


def test_an_order_is_a_number_and_the_number_is_an_order() -> None:
    for count in range(6):
        members = [3 * k + 1 for k in range(count)]
        orders = {order_of(each): list(each) for each in permutations(members)}
        assert sorted(orders) == list(range(factorial(count)))
        assert all(in_order(members, number) == each for number, each in orders.items())
        assert order_of(members) == 0 and in_order(members, factorial(count)) is None
    longest = list(range(NUMBERED))
    assert in_order(longest, order_of(longest[::-1])) == longest[::-1] and order_of(longest[::-1]) < ORDERS
    longer = list(range(NUMBERED + 1))
    assert order_of(longer) != order_of(longer[::-1]) and in_order(longer, order_of(longer)) is None
