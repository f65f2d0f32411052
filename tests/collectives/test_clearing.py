"""A new communicator's doorbells are zero in the pool, whatever its memory; a rank that clears for long is heard."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives.communicator.heap.clearing import clear_doorbells
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan.address import Extent
from cxlemu.pool.session_area import HEARTBEAT_S

CARD_BYTES = 4096
PLACES = [(512, (Extent(0, 0, 2 * LINE_BYTES), Extent(1, 1024, LINE_BYTES))), (2048, (Extent(1, 64, 3 * LINE_BYTES),))]


class Slow:
    """A session whose clock shows ``step_s`` more at every look, and the beats it was asked for."""

    def __init__(self, step_s: float) -> None:
        self.step_s, self.now_s, self.beats = step_s, 0.0, 0
        self.clock = SimpleNamespace(now=self.now)

    def now(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def beat(self) -> None:
        self.beats += 1


def cleared(spec: MemorySpec, session: Any) -> None:
    cards = [np.full(CARD_BYTES, 7, np.uint8) for _ in range(2)]
    memory = spec.open(cards, host_cache=HostCache.private(cards), host=0, rank=0)
    clear_doorbells(memory, session, PLACES)
    wanted = [np.full(CARD_BYTES, 7, np.uint8) for _ in range(2)]
    for base, extents in PLACES:
        for card, offset, nbytes in extents:
            wanted[card][base + offset : base + offset + nbytes] = 0
    assert np.array_equal(cards, wanted)  # in the pool: no host's cache has them alone


@pytest.mark.parametrize(
    "spec",
    [MemorySpec("shm"), MemorySpec("dax"), MemorySpec(), MemorySpec(seed=3)],
    ids=["shm", "dax", "never-evict", "adversary"],
)
def test_the_lines_are_zero_in_the_pool_and_no_others(spec: MemorySpec) -> None:
    cleared(spec, Slow(0.0))


@pytest.mark.parametrize(("beats", "of_a_heartbeat"), [(1, 0.4), (1, 0.6), (3, 1.1)])
def test_a_rank_that_clears_for_long_beats(beats: int, of_a_heartbeat: float) -> None:
    session = Slow(of_a_heartbeat * HEARTBEAT_S)
    cleared(MemorySpec(), session)
    assert session.beats == beats
