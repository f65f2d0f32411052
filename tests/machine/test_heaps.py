"""Heaps of model size: how large they are, and that a launched world takes no memory for them before arrays do."""

import sys
from typing import Literal

import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, launch
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.topology import Topology
from cxlemu.world import heaps
from cxlemu.world.world import World
from tests.helpers.tiers import PATIENT_S
from tests.machine.test_launchers import start, torchrun

MIB, GIB = 1 << 20, 1 << 30
SHM, EMULATED = MemorySpec("shm"), MemorySpec()


def world_of(ranks: int, memory: MemorySpec = SHM, topology: str = "six-cards") -> World:
    return World(ranks, Topology.load(topology), memory, PATIENT_S, "threads")


def test_a_heap_is_a_share_of_what_the_machine_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    left = 8 * GIB
    monkeypatch.setattr(heaps, "available_bytes", lambda: left)

    def sizes(world: World) -> tuple[int, int | None, bool]:
        return world.card_bytes, world.heap_bytes, world.sparse

    assert sizes(world_of(2).with_heaps()) == (32 * MIB + 4 * GIB, 2 * GIB, True)
    assert sizes(world_of(8).with_heaps()) == (32 * MIB + 2 * GIB, 512 * MIB, True)  # two ranks to a card
    emulated = world_of(2, EMULATED).with_heaps().heap_bytes
    assert emulated is not None and 5.0 < 2 * GIB / emulated < 5.1  # 1 + 2 caches of 2 and flags
    assert sizes(world_of(2).with_heaps(4 * GIB)) == (32 * MIB + 8 * GIB, 4 * GIB, True)
    assert sizes(world_of(2).with_heaps(4 * MIB + 1)) == (42 * MIB, 5 * MIB, True)
    with pytest.raises(
        ArgumentError, match=r"heaps of 4 GiB for 2 ranks and 2 emulated caches can take 40\..* but 8 GiB are left: ask"
    ):
        world_of(2, EMULATED).with_heaps(4 * GIB)
    with pytest.raises(ArgumentError, match="heap_bytes is a whole number from 0 on, not -1"):
        world_of(2).with_heaps(-1)
    assert world_of(2, topology="laptop").with_heaps().card_bytes == GIB  # no larger than the topology's cards are
    left = 64 * MIB
    assert sizes(world_of(2).with_heaps()) == (32 * MIB, None, False)  # the topology's own cards are as good


@pytest.mark.parametrize("ranks", [1, 2, 7, 12])
@pytest.mark.parametrize("heap_bytes", [0, MIB, 5 * MIB, 3 * GIB])
def test_the_size_of_heaps_is_known_from_the_pool(ranks: int, heap_bytes: int) -> None:
    for card_bytes in (32 * MIB, 33 * MIB + 4096):
        its = heaps.card_bytes_with_heaps(card_bytes, 6, ranks, heap_bytes)
        found = heaps.heap_bytes_in(its, card_bytes, 6, ranks)
        assert found == heap_bytes or its == card_bytes
    assert heaps.heap_bytes_in(card_bytes, card_bytes, 6, ranks) is None


@pytest.mark.parametrize("memory", [SHM, EMULATED], ids=["shm", "emulated"])
def test_launched_ranks_make_arrays_of_model_size(memory: MemorySpec) -> None:
    def main(context: RankContext) -> tuple[int, int, int]:
        with Communicator.world(context) as comm:
            begun = comm.heap.held_bytes
            x = comm.heap.full(48 * MIB, 1 + comm.rank, np.uint8)  # more than a card of the topology has
            comm.all_reduce(x)
            return begun, comm.heap.held_bytes, int((x != 3).sum())

    assert launch(main, ranks=2, topology="six-cards", memory=memory, deadline_s=PATIENT_S) == [(0, 48 * MIB, 0)] * 2


def test_a_heap_is_as_large_as_it_is_asked_for() -> None:
    def heap_of(context: RankContext) -> tuple[int, int]:
        with Communicator.world(context) as comm, Communicator.world(context) as another:
            return comm.heap.nbytes, another.heap.nbytes

    def launched(heap_bytes: int | Literal["cards"]) -> tuple[int, int]:
        first, second = launch(heap_of, ranks=2, topology="six-cards", memory=SHM, heap_bytes=heap_bytes)
        assert first == second
        return first

    assert launched(100 * MIB) == (100 * MIB, 100 * MIB)
    assert launched("cards")[0] < 8 * MIB
    assert launched(0)[0] == 0


PROGRAM = """
import sys
from collectives import Communicator
from cxlemu.errors import CxlemuError
from cxlemu.memory import MemorySpec
from cxlemu.world import from_environment

try:
    asked = {} if sys.argv[1] == "-" else {"heap_bytes": int(sys.argv[1])}
    with from_environment(topology="six-cards", memory=MemorySpec(sys.argv[2]), deadline_s=5.0, **asked) as context:
        with Communicator.world(context) as comm:
            x = comm.heap.full(40 << 20, 1, "u1")
            comm.all_reduce(x)
            print(comm.heap.nbytes, (x == 2).all())
except CxlemuError as error:
    print(error)
"""


def started(memory: str, *asked: str) -> list[str]:
    ranks = [
        start([sys.executable, "-c", PROGRAM, heap, memory], **torchrun(rank, len(asked)))
        for rank, heap in enumerate(asked)
    ]
    return [rank.communicate(timeout=PATIENT_S)[0].strip() for rank in ranks]


@pytest.mark.deep
@pytest.mark.parametrize("memory", ["shm", pytest.param("emulated", marks=pytest.mark.deep)])
def test_ranks_of_a_launcher_take_the_size_of_the_heaps_from_the_pool(memory: str) -> None:
    first, second = started(memory, "-", "-")
    assert first == second
    nbytes, same = first.split()
    assert int(nbytes) >= 40 * MIB and same == "True"


@pytest.mark.deep
def test_ranks_of_a_launcher_that_ask_for_other_heaps_are_told() -> None:
    first, second = started("shm", str(64 * MIB), str(65 * MIB))
    assert second == "this rank asks for heaps of 65 MiB, rank 0 made 64 MiB: all ranks ask for the same heap_bytes"
    assert "rank 1" in first
    assert "64 MiB, rank 0 made none" in started("shm", "0", str(64 * MIB))[1]
    assert started("shm", str(64 * MIB), "-") == [f"{64 * MIB} True"] * 2
