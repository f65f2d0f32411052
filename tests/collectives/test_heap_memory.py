"""A sparse pool: how much memory it has, counted by the system, as communicators and arrays come and go."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Communicator
from collectives.communicator.heap.heap_memory import PAGE_BYTES, StripMemory
from cxlemu import RankContext
from cxlemu.errors import ArgumentError, MismatchError, PoolError, RankFailures
from cxlemu.memory import MemorySpec
from cxlemu.pool import room
from cxlemu.pool.board import board_bytes
from cxlemu.pool.ledger import ledger_bytes
from cxlemu.pool.pool import Pool
from cxlemu.pool.segments import Segment
from cxlemu.pool.shm import ShmPool
from cxlemu.topology import Topology
from cxlemu.world.context import ignore_message
from cxlemu.world.threads import run_threads
from cxlemu.world.world import World
from tests.helpers.tiers import PATIENT_S

MIB = 1 << 20
CARD_BYTES = 4 << 30  # address space
HEAP_BYTES = 1 << 30


def taken(pool: Pool) -> int:
    """Bytes of memory that the system has given the pool's cards."""
    return sum(Segment(pool.name, "card", card).path.stat().st_blocks * 512 for card in range(len(pool.cards)))


def test_a_sparse_pool_has_memory_for_its_ledger_from_the_beginning() -> None:
    """Ranks write there before any of them has room of its own, and where /dev/shm is full they would die of SIGBUS."""
    topology = Topology.load("laptop")
    emulation = topology.emulation.model_copy(update={"card_bytes": CARD_BYTES})
    world = World(
        2, topology.model_copy(update={"emulation": emulation}), MemorySpec("shm"), PATIENT_S, "threads", sparse=True
    )
    with world.create_pool(None) as pool, Segment(pool.name, "card", 0).path.open("rb") as card:
        begin = pool.card_bytes - ledger_bytes(world.ranks, pool.card_bytes)
        assert os.lseek(card.fileno(), begin, os.SEEK_DATA) == begin
        assert os.lseek(card.fileno(), begin, os.SEEK_HOLE) == pool.card_bytes


def together(main: Callable[[Communicator, Callable[[], int]], Any], kind: str = "shm", ranks: int = 2) -> list[Any]:
    """Run ``main(comm, taken)`` on ranks of a sparse pool; ``taken`` is collective."""
    topology = Topology.load("laptop")
    emulation = topology.emulation.model_copy(update={"card_bytes": CARD_BYTES})
    world = World(
        ranks, topology.model_copy(update={"emulation": emulation}), MemorySpec(kind), PATIENT_S, "threads", sparse=True
    )
    meet = threading.Barrier(ranks)

    def run(context: RankContext) -> Any:
        def counted() -> int:
            meet.wait(PATIENT_S)
            found = taken(context.pool)
            meet.wait(PATIENT_S)
            return found

        with Communicator.world(context, heap_bytes=HEAP_BYTES) as comm:
            return main(comm, counted)

    with world.create_pool(None) as pool:
        return run_threads(run, world, pool, ignore_message, keep_names=True).in_rank_order()


def test_memory_of_a_card_comes_and_goes_page_by_page() -> None:
    with ShmPool.create(cards=1, card_bytes=CARD_BYTES, interleave_bytes=4096, hosts=0, sparse=True) as pool:
        begun = taken(pool)
        assert begun < MIB
        pool.back(0, CARD_BYTES // 2 + 5000, 5000)  # of three pages
        assert taken(pool) - begun == 2 * PAGE_BYTES
        pool.cards[0][CARD_BYTES // 2 + 5000 :][:5000] = 7
        pool.unback(0, CARD_BYTES // 2 + 4096, 2 * PAGE_BYTES - 1)  # no more than whole pages
        assert taken(pool) - begun == PAGE_BYTES
        found = pool.cards[0][CARD_BYTES // 2 + 5000 :][:5000]
        assert not found[: 8192 - 5000].any() and (found[8192 - 5000 :] == 7).all()


@pytest.mark.parametrize("kind", ["shm", "emulated"])
def test_a_heap_takes_memory_for_its_arrays_alone_and_gives_it_back(kind: str) -> None:
    def main(comm: Communicator, taken: Callable[[], int]) -> list[int]:
        mapped = kind == "shm"
        begun = taken()
        found = [comm.heap.held_bytes]
        mine = comm.heap.local.empty(4 * MIB + 1, np.uint8)  # 5 MiB is the next size of a block
        found.append(comm.heap.held_bytes - 5 * MIB)
        found.append(taken() - begun - 2 * 5 * MIB * mapped)
        mine[:] = comm.rank
        shared = comm.heap.full(2 * MIB, 1.0, np.float32)
        comm.all_reduce(shared)
        found.append(int((shared != 2).sum()))
        found.append(taken() - begun - 2 * (13 if mapped else 8) * MIB)  # behind a cache calls store what is shared
        found.append(comm.heap.held_bytes - 13 * MIB)
        del mine
        found.append(comm.heap.held_bytes - 13 * MIB)  # kept for the next one
        found.append(comm.heap.local.trim() - 5 * MIB)
        found.append(taken() - begun - 2 * 8 * MIB)
        del shared
        taken()  # all have let it go
        found.append(comm.heap.trim() - 8 * MIB)
        found += [taken() - begun, comm.heap.held_bytes, int(comm.heap.memory[PAGE_BYTES : 8 * MIB - PAGE_BYTES].any())]
        again = comm.heap.full(1000, 3.0, np.float32)
        comm.all_reduce(again)
        return [*found, comm.heap.held_bytes - PAGE_BYTES, int((again != 6).sum())]

    assert together(main, kind) == [[0] * 15] * 2


def test_a_communicator_that_closes_gives_back_the_memory_of_its_heap() -> None:
    def main(comm: Communicator, taken: Callable[[], int]) -> list[int]:
        with comm.dup():  # whose room has memory from now on
            pass
        begun = taken()
        with comm.dup() as group:
            x = group.heap.empty(MIB, np.uint8)
            group.heap.local.empty(MIB, np.uint8)
            found = [taken() - begun - 4 * MIB]
            del x
        return [*found, taken() - begun]

    assert together(main) == [[0, 0]] * 2


def test_a_world_made_again_waits_for_the_room_of_the_one_before() -> None:
    """Its leader closed that sooner than others, and would find less room."""

    def main(comm: Communicator, taken: Callable[[], int]) -> bool:
        context = comm._context
        second = Communicator.world(context, heap_bytes=HEAP_BYTES)
        its, known = second.layout, {hold.name for hold in context.rooms.held}
        while comm.rank != 0 and all(hold.name in known for hold in context.rooms.ledger.holds(0)):
            time.sleep(0)  # until rank 0 has claimed room, or asks for it
        second.close()
        with Communicator.world(context, heap_bytes=HEAP_BYTES) as third:
            return third.layout == its

    assert together(main) == [True] * 2


def test_a_world_in_less_room_takes_memory_for_no_more_than_it_has_there() -> None:
    def main(comm: Communicator, taken: Callable[[], int]) -> int:
        others = [comm]
        while others[-1].layout == others[len(others) // 2].layout:
            begun = taken()
            others.append(Communicator.world(comm._context))
        layout, mail = others[-1].layout, others[-1]._terms.furnished.mailboxes
        its = len(comm._context.pool.cards) * (
            layout.heap_offset + mail.nbytes + board_bytes(comm.size) + 2 * PAGE_BYTES
        )
        found = taken() - begun - its
        for other in others[1:]:
            other.close()
        return found

    assert max(together(main)) <= 0


def test_a_group_takes_little_memory_in_a_large_pool_and_none_where_a_group_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = 1 << 50
    monkeypatch.setattr(room, "available_bytes", lambda: left)

    def main(comm: Communicator, taken: Callable[[], int]) -> int:
        nonlocal left
        begun = taken()
        with comm.dup():
            pass
        found = taken() - begun
        left = 0
        taken()
        with comm.dup() as group:  # in the same room
            x = np.ones(100_000)
            group.all_reduce(x)
            return found + int((x != 2).sum())

    found = together(main)
    assert max(found) < 16 * MIB  # a ring of 8 MiB, and mailboxes


def test_a_rank_without_memory_says_so_and_no_rank_has_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.local()
    monkeypatch.setattr(room, "available_bytes", lambda: getattr(left, "nbytes", 1 << 50))

    def main(comm: Communicator, taken: Callable[[], int]) -> list[str]:
        left.nbytes = MIB if comm.rank else 1 << 50
        said = []
        for make in (comm.heap.empty, comm.heap.local.empty):
            try:
                make(2 * MIB, np.uint8)
            except ArgumentError as error:
                said.append(str(error))
        x = comm.heap.full(MIB // 8, comm.rank, np.float32)
        comm.all_reduce(x)
        assert (x == 1).all() and len(comm.heap.leaks()) == 1
        return said

    first, second = together(main)
    why = f"{2 * MIB} more bytes are needed; memory and /dev/shm have {MIB} left"
    assert first == [f"rank 1 has no memory for {2 * MIB} bytes in the heap"]
    assert second == [f"{first[0]}: {why}", f"there is no memory for {2 * MIB} bytes in the heap: {why}"]


def test_ranks_of_which_one_trims_are_told() -> None:
    def main(comm: Communicator, taken: Callable[[], int]) -> None:
        comm.heap.trim() if comm.rank else comm.heap.empty(64, np.uint8)

    with pytest.raises(RankFailures) as raised:
        together(main)
    assert isinstance(raised.value.failures[0], MismatchError)
    assert "for an array of 64 bytes, rank 1 for none, to trim" in str(raised.value)


@dataclass
class Pages:
    """Memory that a strip took, page by page; only so much is there."""

    may_lack: ClassVar[bool] = True
    there: set[int] = field(default_factory=set)
    most: int = 1 << 30

    def take(self, at: int, nbytes: int) -> None:
        assert not at % PAGE_BYTES and not nbytes % PAGE_BYTES and nbytes > 0
        wanted = self.there | set(range(at // PAGE_BYTES, (at + nbytes) // PAGE_BYTES))
        if len(wanted) > self.most:
            raise PoolError("none")
        self.there = wanted

    def give_back(self, at: int, nbytes: int) -> None:
        assert not at % PAGE_BYTES and not nbytes % PAGE_BYTES and nbytes > 0
        self.there -= set(range(at // PAGE_BYTES, (at + nbytes) // PAGE_BYTES))


PLACES = st.integers(0, 12 * PAGE_BYTES).map(lambda at: at // 64 * 64)


@given(st.lists(st.tuples(st.sampled_from(["up", "down", "shrink"]), PLACES, PLACES), max_size=30), st.integers(4, 12))
def test_what_is_taken_has_memory_and_nothing_is_counted_wrong(steps: list[tuple[str, int, int]], most: int) -> None:
    pages = Pages(most=most)
    strip = StripMemory(12 * PAGE_BYTES, pages)
    low, high = 0, strip.extent.nbytes  # what arrays take: all below low, and all from high on
    for what, first, second in steps:
        try:
            if what == "up":
                strip.reach_up(min(max(low, first), high))
                low = min(max(low, first), high)
            elif what == "down":
                strip.reach_down(max(min(high, first), low))
                high = max(min(high, first), low)
            else:
                before = len(pages.there)
                low, high = min(low, first), max(high, second)
                assert strip.shrink(low, high) == (before - len(pages.there)) * PAGE_BYTES
        except PoolError:
            pass
        taken_pages = {at // PAGE_BYTES for at in range(0, strip.extent.nbytes, 64) if at < low or at >= high}
        assert taken_pages <= pages.there
        assert strip.held_bytes == len(pages.there) * PAGE_BYTES
        if what == "shrink":
            assert taken_pages == pages.there
