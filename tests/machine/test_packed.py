"""Records as the virtual engine keeps them: they come out as they went in, and repeats take no room."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.sweep.sweep import Case
from collectives.sweep.virtual.plans import planned
from collectives.sweep.virtual.simulated import check_memory
from cxlemu import _virtual
from cxlemu.engines.virtual import VirtualCall
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call
from cxlemu.plan.instructions import RECORD_DTYPE, Records
from cxlemu.topology import Topology

WORDS = RECORD_DTYPE.itemsize // 8
THOUSAND = Topology.load("thousand-hosts")

small = st.integers(0, 3)
block = st.tuples(st.integers(0, 2**32), st.integers(1, 10), st.integers(1, 40), st.booleans())


def repeated(seed: int, period: int, turns: int, sparse: bool) -> np.ndarray:
    """A block of random words, each of which grows by the same in each turn."""
    random = np.random.default_rng(seed)
    base, growth = random.integers(0, 2**64, (2, period, WORDS), dtype=np.uint64, endpoint=False)
    if sparse:
        base *= random.integers(0, 2, base.shape).astype(np.uint64)
        growth *= (random.integers(0, 4, base.shape) == 0).astype(np.uint64)
    rows = [base + np.uint64(turn) * growth for turn in range(turns)]
    return np.concatenate(rows)


@given(st.lists(block, max_size=6))
def test_records_come_out_as_they_went_in(blocks: list[tuple[int, int, int, bool]]) -> None:
    words = np.concatenate([np.zeros((0, WORDS), np.uint64), *(repeated(*its) for its in blocks)])
    nbytes, out = _virtual.repacked(words)
    assert out == words.tobytes()
    assert nbytes <= 16 * (len(words) + 1) + 2 * words.nbytes


@pytest.mark.parametrize("period", range(1, 9))
def test_repeats_take_no_room(period: int) -> None:
    few, many = (_virtual.repacked(repeated(1, period, turns, False))[0] for turns in (5, 5000))
    assert few == many == 8 * (2 + period * (1 + 2 * WORDS))


def test_a_repeat_ends_where_one_word_differs() -> None:
    words = repeated(1, 3, 10, False)
    words[14, 5] += np.uint64(1)
    assert _virtual.repacked(words)[1] == words.tobytes()


def call_of(collective: str, ranks: int, nbytes: int) -> VirtualCall:
    redop = "sum" if collective == "reduce_scatter" else "none"
    plan, _ = planned(THOUSAND, Case(Call(collective, "auto", ranks, nbytes, "f32", redop), in_place=False))
    return VirtualCall(plan)


def test_a_plan_of_thousands_of_ranks_takes_little_memory() -> None:
    plan = call_of("reduce_scatter", 1024, 16 << 20).plan
    streams: list[Records] = [stream.records for stream in plan.part(1).streams]
    nbytes = 1024 * sum(_virtual.repacked(records)[0] for records in streams)
    assert sum(map(len, streams)) * 1024 > 70_000_000
    assert nbytes < 64 << 20  # they would be 6.9 GiB


def test_what_would_take_hours_is_refused() -> None:
    check_memory([call_of("all_to_all", 4096, 16 << 10)])
    with pytest.raises(ArgumentError, match=r"some 1,056,784,384 instructions of 4096 ranks .*limits are 150,000,000"):
        check_memory([call_of("all_to_all", 4096, 1 << 20)])
