"""Communicators that their members make alone, in room that comes back, and whose calls wait for no other one's."""

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, cast

import numpy as np
import pytest

from collectives.communicator.communicator import Communicator
from collectives.communicator.membership import opening
from cxlemu.errors import ArgumentError, MismatchError, PeerLostError, RankFailures, RevokedError
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.pool.board import Board, Notice
from cxlemu.pool.ledger import LINES_MAX
from cxlemu.world import RankContext, launch
from tests.helpers import worlds
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S
from tests.helpers.worlds import LOOKS, looks_limited, with_cards_of

LAPTOP = "laptop"
SHM, WORST = MemorySpec("shm"), MemorySpec()


def together(main: Callable[[RankContext], Any], ranks: int = 3, **where: Any) -> list[Any]:
    return launch(main, ranks=ranks, **{"topology": LAPTOP, "memory": WORST, "deadline_s": PATIENT_S} | where)


on_ranks = partial(worlds.on_ranks, by=together)


def total(comm: Communicator) -> int:
    return int(comm.all_reduce(np.full(1000, comm.members[comm.rank] + 1, np.int64))[0])


# --- members alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [SHM, WORST, MemorySpec("emulated", seed=3)], ids=["shm", "worst", "adversary"])
def test_a_group_needs_no_rank_but_its_members(memory: MemorySpec) -> None:
    made = threading.Event()

    def main(context: RankContext) -> list[int]:
        if context.rank == 1:
            assert made.wait(PATIENT_S)  # takes part in nothing until the others are through
            return []
        with Communicator.of(context, [2, 0]) as comm:
            found = [comm.rank, *comm.members, total(comm)]
        made.set()
        return found

    assert together(main, memory=memory) == [[1, 2, 0, 4], [], [0, 2, 0, 4]]


def test_groups_of_a_group_by_its_own_numbers() -> None:
    def main(context: RankContext) -> list[Any]:
        world = Communicator.world(context)
        if context.rank == 0:
            return [total(world)]
        upper = world.group([3, 2, 1])
        pair = upper.group([2, 0]) if upper.rank != 1 else None
        return [total(world), upper.members, total(upper), pair and (pair.members, total(pair))]

    upper = [10, (3, 2, 1), 9]
    assert together(main, 4) == [[10], [*upper, ((1, 3), 6)], [*upper, None], [*upper, ((1, 3), 6)]]


@on_ranks(2, gives=[[2 * ord("a"), 2 * ord("b")]] * 2)
def test_keys_tell_groups_of_the_same_members_apart(context: RankContext) -> list[int]:
    keys = ["a", "b"] if context.rank else ["b", "a"]
    made: dict[str, Communicator] = {}

    def make(key: str) -> None:
        made[key] = Communicator.of(context, [0, 1], key=key)

    threads = [threading.Thread(target=make, args=[key]) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [int(made[key].all_reduce(np.array([ord(key)]))[0]) for key in "ab"]


@with_rows(
    ([0, 3], "rank 3 cannot be in a group: the ranks are 0..1"),
    ([0, 0], r"a group has each rank once, not \[0, 0\]"),
    ([], r"rank \d is not in the group \[\], and only members make a group"),
    ("ab", "a group is a list of ranks, not 'ab'"),
)
def test_a_group_is_a_list_of_ranks_with_this_one(ranks: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        together(lambda context: Communicator.of(context, ranks), 2)


ORDERS = [
    ([0, 1], [1, 0]),
    ([1, 0], [0, 1]),
    ([0, 1, 2], [0, 1, 2], [0, 2, 1]),
    ([2, 1, 0], [1, 2, 0], [1, 2, 0]),
    ([0, 1, 2], [1, 2, 0], [2, 0, 1]),
]


@pytest.mark.each_value_once
@pytest.mark.parametrize("how", ["group", "of"])
@pytest.mark.parametrize("lists", ORDERS, ids=str)
def test_members_that_list_each_other_in_other_orders_are_told_so(lists: tuple[list[int], ...], how: str) -> None:
    looked = [0.0] * len(lists)

    def main(context: RankContext) -> None:
        rank, mine = context.rank, lists[context.rank]

        def over() -> bool:
            looked[rank] += 1
            return min(count for other, count in enumerate(looked) if other != rank) >= LOOKS

        with Communicator.world(context) as comm:
            make = comm.group if how == "group" else partial(Communicator.of, context)
            with looks_limited(context, over), pytest.raises(MismatchError, match="in the same order") as raised:
                make(mine)
            looked[rank] = inf
            named = {str(each) for each in lists if str(each) in str(raised.value)}
            assert len(named) == 2 and str(mine) in named
            assert total(comm) == sum(range(len(lists) + 1))  # which goes on
            with make(lists[0]) as group:
                assert group.members == tuple(lists[0]) and total(group) == total(comm)

    together(main, len(lists))


def test_members_that_ask_for_other_sizes_are_told_so() -> None:
    looked = [0.0, 0.0]

    def main(context: RankContext) -> None:
        def over() -> bool:
            looked[context.rank] += 1
            return looked[1 - context.rank] >= LOOKS

        with looks_limited(context, over), pytest.raises(MismatchError, match="all ranks ask for the same sizes"):
            Communicator.of(context, [0, 1], heap_bytes=4096 << 16 * context.rank)
        looked[context.rank] = inf
        Communicator.of(context, [0, 1]).close()

    together(main, 2)


def test_a_member_that_left_before_is_named() -> None:
    def main(context: RankContext) -> None:
        if context.rank == 0:
            Communicator.of(context, [0, 1])

    with pytest.raises(RankFailures) as raised:
        together(main, 2)
    error = raised.value.failures[0]
    assert isinstance(error, PeerLostError) and error.ranks == (1,)
    assert "rank 1 left while this rank makes" in str(error)


def test_members_hear_that_there_is_no_room() -> None:
    def main(context: RankContext) -> list[str]:
        messages = []
        for heap_bytes in (1 << 30, None):
            try:
                Communicator.of(context, [0, 1], heap_bytes=heap_bytes)
            except ArgumentError as error:
                messages.append(str(error))
        return messages

    leader, member = together(main, 2)
    assert len(leader) == len(member) == 1 and "or make fewer communicators" in member[0]


# --- room that comes back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [SHM, pytest.param(WORST, marks=pytest.mark.deep)], ids=["shm", "emulated"])
@on_ranks(2, gives=[(450, True)] * 2, asks="memory")
def test_groups_without_end_in_a_row(context: RankContext) -> tuple[int, bool]:
    sums = 0
    for _ in range(150):
        with Communicator.of(context, [1, 0]) as comm:
            sums += total(comm)
    return sums, context.rooms.held == []


@pytest.mark.deep
@on_ranks(2, memory=SHM, gives=[0, 0])
def test_ten_thousand_groups_in_a_row(context: RankContext) -> int:
    for _ in range(10_000):
        Communicator.of(context, [0, 1]).close()
    return len(context.rooms.held)


@on_ranks(2, gives=[0, 0])
def test_a_group_that_is_dropped_gives_its_room_back(context: RankContext) -> int:
    world = Communicator.world(context)
    for _ in range(40):
        world = world.group([0, 1])  # the one before is dropped
        assert total(world) == 3
    del world
    end = time.monotonic() + PATIENT_S
    while context.rooms.held and time.monotonic() < end:  # a collection does nothing while another thread's runs
        gc.collect()
        context.rooms.collect()
    return len(context.rooms.held)


def drop_many_groups(context: RankContext) -> int:
    gc.disable()
    world = Communicator.world(context)
    for _ in range(20):
        assert total(world.group([0, 1])) == 3
    return len(context.rooms.held)


@pytest.mark.deep
def test_dropped_groups_give_their_room_back_where_nothing_collects() -> None:
    """As in training scripts, which turn collection off; a dropped communicator is in reference cycles."""
    cards: dict[str, Any] = {"topology": with_cards_of(512 << 10), "heap_bytes": "cards"}
    held = together(drop_many_groups, 2, how="processes", memory=SHM, **cards)
    assert max(held) < 20


def drop_more_groups_than_lines(context: RankContext) -> int:
    gc.disable()
    for _ in range(LINES_MAX + 10):
        Communicator.of(context, [0, 1], region_bytes=1 << 16, heap_bytes=1 << 12)
    return len(context.rooms.held)


@pytest.mark.deep
def test_dropped_groups_give_their_lines_back_where_nothing_collects() -> None:
    held = together(drop_more_groups_than_lines, 2, how="processes", memory=SHM, topology=with_cards_of(256 << 20))
    assert max(held) < LINES_MAX


@pytest.mark.parametrize("config", ["laptop", "six-cards"])
def test_successive_splits_leave_room_for_more(config: str) -> None:
    def main(context: RankContext) -> list[int]:
        comms = [Communicator.world(context)]
        for _ in range(12):
            part = comms[-1].split(0)
            assert part is not None
            comms.append(part)
        return [total(comm) for comm in comms]

    assert together(main, 2, topology=config) == [[3] * 13] * 2


def test_a_closed_communicator_refuses_calls_and_leaves_its_peers_the_room() -> None:
    closed = threading.Event()

    def main(context: RankContext) -> int:
        comm = Communicator.of(context, [0, 1])
        if context.rank == 1:
            assert closed.wait(PATIENT_S)
            assert not comm.closed and len(list(context.rooms.ledger.holds(0))) == 0
            first = Communicator.of(context, [1])
            return int(first._stay.room.at >= comm._stay.room.end)
        comm.close()
        comm.close()
        closed.set()
        for call in (comm.barrier, comm.shrink, lambda: comm.group([0]), comm.persistent.barrier):
            with pytest.raises(RevokedError, match="this communicator is closed"):
                call()
        return int(comm.closed)

    assert together(main, 2) == [1, 1]


@on_ranks(1, memory=SHM, gives=[[0]])
def test_arrays_in_the_pool_keep_their_room_until_they_are_dropped(context: RankContext) -> list[int]:
    comm = Communicator.of(context, [context.rank])
    x = comm.heap.full(100, 7, np.int64)
    with pytest.warns(ResourceWarning, match="still holds 1 array"):
        comm.close()
    other = Communicator.of(context, [context.rank])
    assert len(context.rooms.held) == 2
    other.heap.full(100, 8, np.int64)
    assert x[0] == 7
    del x
    gc.collect()
    other.close()
    return [len(context.rooms.held)]


# --- one beside the other -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [SHM, WORST, MemorySpec("emulated", seed=5)], ids=["shm", "worst", "adversary"])
@pytest.mark.parametrize("engine", ["native", "reference"])
@on_ranks(2, gives=[[2, 20]] * 2, asks="memory")
def test_calls_of_two_groups_in_different_orders_all_end(context: RankContext, engine: str) -> list[int]:
    """In one queue for both, rank 0 would wait in the first group for rank 1, which waits in the second for rank 0."""
    first = Communicator.of(context, [0, 1], engine=engine)
    pair = [first, first.group([0, 1])]
    arrays = [np.full(20_000, 10**k, np.int64) for k in range(2)]
    order = [0, 1] if context.rank else [1, 0]
    handles = {}
    for which in order:
        handles[which] = pair[which].all_reduce(arrays[which], async_op=True)
        if which == order[0]:
            handles[which].test()
    return [int(handles[which].wait()[-1]) for which in range(2)]


@on_ranks(2, memory=MemorySpec("emulated", seed=9), how="threads", gives=[[150] * 3] * 2)
def test_threads_call_groups_of_their_own_at_once(context: RankContext) -> list[int]:
    comms = [Communicator.of(context, [0, 1], key=str(k)) for k in range(3)]
    sums = [0, 0, 0]

    def call(which: int) -> None:
        for _ in range(50):
            sums[which] += total(comms[which])

    threads = [threading.Thread(target=call, args=[which]) for which in range(3)]
    for thread in threads[:: 1 - 2 * context.rank]:
        thread.start()
    for thread in threads:
        thread.join()
    return sums


@pytest.mark.parametrize("memory", [SHM, WORST], ids=["shm", "worst"])
def test_a_group_finds_no_message_of_the_group_whose_room_it_took(memory: MemorySpec) -> None:
    def main(context: RankContext) -> tuple[set[int], list[Any]]:
        rooms, found = set(), []
        with Communicator.world(context) as world:
            for turn in range(3):
                with world.group([0, 1]) as pair:
                    rooms.add(pair._stay.room.at)
                    if pair.rank == 1:
                        found.append(pair.iprobe(0))  # before rank 0 sends anything: a look at the mailbox
                    world.barrier()
                    for k in range(20):  # more than a mailbox has slots, so that each slot's last epoch is above 1
                        if pair.rank == 0:
                            pair.send(np.array([turn, k]), 1)
                        else:
                            pair.recv(message := np.zeros(2, np.int64), 0)
                            found.append(message.tolist())
                world.barrier()  # both have closed the group: the next one gets the same room
        return rooms, found

    (rooms, _), (_, found) = together(main, 2, memory=memory)
    assert len(rooms) == 1, "the room did not come back: this test shows nothing"
    assert found == [each for turn in range(3) for each in [None, *([turn, k] for k in range(20))]]


# --- giving up ----------------------------------------------------------------------------------------------------


def test_who_closed_a_communicator_stores_no_notice_where_others_have_the_room() -> None:
    """Neither later, nor between the last look at whether it is closed and the store."""
    notices: list[str] = []

    def main(context: RankContext) -> None:
        comm = Communicator.world(context)
        runner, closing = comm._runner, threading.Thread(target=comm.close)
        post = Board.post

        def close_first(board: Board, rank: int, notice: Notice) -> None:
            closing.start()
            closing.join(0.2)  # it has to wait for this notice
            notices.append("held" if comm._terms.room in context.rooms.held else "given back")
            post(board, rank, notice)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Board, "post", close_first)
            comm.revoke()
            closing.join()
            comm.abort()
            runner.give_up(RevokedError("another thread was about to"))
        assert comm.closed and not context.rooms.held

    together(main, 1)
    assert notices == ["held"]


@on_ranks(2, gives=[["REVOKED"]] * 2)
def test_a_rank_tells_once_why_it_gave_up(context: RankContext) -> list[str]:
    """A second notice over the first one could tear it, and peers that have not looked yet would never hear."""
    comm = Communicator.world(context)
    if context.rank == 0:
        comm._runner.give_up(RevokedError("first"))
        comm._runner.give_up(PeerLostError("second", (1,)))
    context.session.barrier(PATIENT_S)
    return [notice.cause.name for notice in comm._board.notices().values()]


def test_a_rank_that_does_not_open_a_communicator_tells_those_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a member for dead that is not; the others have all votes, and would wait for it in vain."""
    ready = opening.await_ready

    def suspicious(context: RankContext, board: Board, members: Any, deadline_s: float, look: Any) -> None:
        ready(context, board, members, deadline_s, look)
        if context.rank == 2 and len(members) < 4:
            raise PeerLostError("rank 0 gave no sign of life", (0,))

    monkeypatch.setattr("collectives.communicator.communicator.await_ready", suspicious)

    def main(context: RankContext) -> str:
        comm = Communicator.world(context)
        if context.rank == 3:
            return ""
        with pytest.raises(PeerLostError) as raised:
            comm.group([0, 1, 2]).barrier()
        return str(raised.value).partition(";")[0]

    told = together(main, 4)
    assert told == ["rank 2 declared this rank, 0, lost", "rank 0 is lost, as rank 2 reports", told[2], ""]


def test_what_a_rank_wrote_before_it_failed_to_move_in_has_left_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that were not flushed would be written back later, over what others have there then."""

    def interrupted(memory: Any, session: Any, places: Any) -> None:
        for base, extents in places:
            for card, offset, nbytes in extents:
                memory.write(card, base + offset, np.zeros(nbytes, np.uint8))
        raise RevokedError("between the store and the flush")

    monkeypatch.setattr("collectives.communicator.membership.premises.clear_doorbells", interrupted)

    def main(context: RankContext) -> list[bool]:
        with pytest.raises(RevokedError):
            Communicator.world(context)
        assert not context.rooms.held
        first, last = (at // LINE_BYTES for at in (context.arena.at, context.arena.end))
        for card in context.pool.cards:
            card[context.arena.at : context.arena.end] = 7  # others', from now on
        for cached in cast(ShadowMemory, context.memory).cache.cards:
            cached.evict(first, last, np.ones(last - first, bool))
        return [bool((card[context.arena.at : context.arena.end] == 7).all()) for card in context.pool.cards]

    assert all(together(main, 1, topology=with_cards_of(1 << 20), heap_bytes="cards")[0])
