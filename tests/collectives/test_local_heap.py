"""Arrays in the pool that a rank makes alone: where they lie, when their places come back, how they are sent."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Communicator
from collectives.communicator.heap.local_heap import LocalBlocks, size_class
from cxlemu.errors import ArgumentError
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.units import counted
from tests.helpers import worlds
from tests.helpers.card_files import MIB, real_cards

MEMORIES = {"shm": MemorySpec("shm"), "adversary": MemorySpec(seed=5, rates=AdversaryRates())}
HEAP_BYTES = 1 << 20


together = partial(worlds.together, topology=None, heap_bytes=HEAP_BYTES)
on_ranks = partial(worlds.on_ranks, by=together)


@given(st.integers(0, 1 << 40))
def test_a_block_has_whole_lines_and_little_more_than_was_asked_for(nbytes: int) -> None:
    room = size_class(nbytes)
    assert room % 64 == 0 and nbytes <= room <= max(nbytes * 5 // 4, nbytes + 64)
    assert size_class(room) == room


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000), st.integers(0, 5000)), max_size=60))
def test_blocks_never_overlap_and_all_of_them_come_back(steps: list[tuple[bool, int, int]]) -> None:
    strip = LocalBlocks(1 << 14)
    held: list[tuple[int, int]] = []
    for takes, nbytes, lowest in steps:
        lowest = min([lowest] + [at for at, _ in held])  # arrays of all ranks lie below all of these
        if takes:
            room = size_class(nbytes)
            at = strip.take(room, min(lowest, strip.floor))
            if at is None:
                free = np.ones(strip.nbytes // 64, bool)
                for begin, size in held:
                    free[begin // 64 : (begin + size) // 64] = False
                runs = "".join("1" if line else "0" for line in free[min(lowest, strip.floor) // 64 + 1 :])
                assert "1" * (room // 64) not in runs
                continue
            assert at % 64 == 0 and min(lowest, at) <= at and at + room <= strip.nbytes
            assert all(at + room <= begin or begin + size <= at for begin, size in held)
            held.append((at, room))
            assert strip.floor <= min(at for at, _ in held)
        elif held:
            strip.dropped.append(held.pop(nbytes % len(held)))
    strip.dropped.extend(held)
    strip.trim()
    assert strip.floor == strip.nbytes
    assert strip.take(strip.nbytes, 0) == 0


def test_nothing_is_taken_below_what_belongs_to_all_ranks() -> None:
    strip = LocalBlocks(4096)
    assert strip.take(2048, 2048) == 2048
    assert strip.take(64, 2048) is None
    assert strip.take(64, 1984) == 1984


@pytest.mark.parametrize("memory", [*MEMORIES, "dax"])
def test_one_rank_alone_makes_arrays_and_collectives_take_them(memory: str, tmp_path: Path) -> None:
    spec = real_cards(tmp_path, nbytes=16 * MIB) if memory == "dax" else MEMORIES[memory]

    def main(comm: Communicator) -> bool:
        sizes = (20_000, 1, 300) if comm.rank == 0 else (20_000,)
        held = [comm.heap.local.empty(size, np.float32) for size in sizes]
        shared = comm.heap.full(5000, -1.0, np.float32)  # collective, beside them
        for number, x in enumerate(held):
            x[:] = comm.rank + number + 1
        comm.all_reduce(held[0])
        right = bool((held[0] == 3).all() and (shared == -1).all())
        right &= all((x == comm.rank + number + 1).all() for number, x in enumerate(held) if number)
        comm.all_reduce(held[0], variant="zero_copy")
        elsewhere = comm.heap.local.empty(20_000, np.float32)  # at another place on each rank: auto copies
        elsewhere[:] = comm.rank
        comm.all_reduce(elsewhere)
        return right and bool((held[0] == 6).all() and (elsewhere == 1).all())

    assert together(main, memory=spec) == [True, True]


@on_ranks(gives=[True, True])
def test_an_array_that_was_dropped_leaves_its_place_to_the_next_of_its_size(comm: Communicator) -> bool:
    x = comm.heap.local.empty(1000, np.int64)
    view, place = np.from_dlpack(x)[10:], x.ctypes.data
    del x
    other = comm.heap.local.empty(1000, np.int64)
    apart = other.ctypes.data != place  # the view keeps the first one
    del view
    again = comm.heap.local.empty((10, 100), np.int64)
    return apart and again.ctypes.data == place and len(comm.heap.leaks()) == 2


@pytest.mark.parametrize("memory", [*MEMORIES])
def test_arrays_at_other_places_are_read_where_they_lie(memory: str) -> None:
    def main(comm: Communicator) -> bool:
        before = [comm.heap.local.empty(64 + number, np.uint8) for number in range(2 * comm.rank)]
        x = comm.heap.local.empty(50_000, np.float32)
        places = comm.all_gather(np.array([x.ctypes.data - comm.heap.memory.ctypes.data]))
        right = len({*places.reshape(-1).tolist()}) == comm.size
        for number in range(5):  # more calls than slots
            x[:] = comm.rank + number
            comm.all_reduce(x, variant="zero_copy")
            right &= bool((x == 1 + 2 * number).all())
        return right and len(before) == 2 * comm.rank

    assert together(main, memory=MEMORIES[memory]) == [True, True]


def test_a_heap_that_is_full_says_what_takes_it() -> None:
    def main(comm: Communicator) -> list[str]:
        said = []
        shared = comm.heap.empty(HEAP_BYTES // 2, np.uint8)
        mine = comm.heap.local.empty(HEAP_BYTES // 4, np.uint8) if comm.rank else None
        try:
            comm.heap.local.empty(HEAP_BYTES * 3 // 4, np.uint8)
        except ArgumentError as error:
            said.append(str(error))
        try:
            comm.heap.empty(HEAP_BYTES * 3 // 8, np.uint8)  # on every rank: one has an array there
        except ArgumentError as error:
            said.append(str(error))
        del mine
        return [*said, str(comm.heap.empty(HEAP_BYTES * 3 // 8, np.uint8).size), str(shared.size)]

    for rank, said in enumerate(together(main)):
        its = f"{counted(rank, 'array')} of this rank {HEAP_BYTES // 4 * rank}"
        assert f"for {HEAP_BYTES * 3 // 4} bytes of this rank alone" in said[0] and its in said[0]
        assert f"arrays of single ranks take all from byte {HEAP_BYTES * 3 // 4} on" in said[1]
        assert said[2:] == [str(HEAP_BYTES * 3 // 8), str(HEAP_BYTES // 2)]


@on_ranks(ranks=1, gives=[True])
def test_an_array_that_is_held_keeps_the_room_of_its_communicator(comm: Communicator) -> bool:
    group = comm.dup()
    x = group.heap.local.empty(1000, np.uint8)
    x[:] = comm.rank
    rooms = comm._context.rooms
    held = [hold.name for hold in rooms.held]
    with pytest.warns(ResourceWarning, match="1 array in the pool"):
        group.close()
    assert [hold.name for hold in rooms.held] == held
    others = [comm.dup() for _ in range(3)]
    for other in others:
        other.all_reduce(np.ones(100_000, np.float32))
    return bool((x == comm.rank).all())
