"""Sizes and bandwidths as in nccl-tests, held to worked examples."""

import pytest

from collectives.contracts import COLLECTIVES
from collectives.sizes import algbw_gbytes_per_s, block_bytes, busbw_factor, busbw_gbytes_per_s, size_bytes

PER_RANK = ["all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"]


@pytest.mark.parametrize("collective", PER_RANK)
def test_a_size_is_split_over_the_ranks(collective: str) -> None:
    assert block_bytes(collective, 1024, 4, 4) == 256
    assert size_bytes(collective, 256, 4) == 1024


@pytest.mark.parametrize("collective", PER_RANK)
def test_blocks_are_rounded_down_to_whole_elements(collective: str) -> None:
    assert block_bytes(collective, 1000, 3, 4) == 332  # 83 elements; the size column says 996
    assert size_bytes(collective, 332, 3) == 996
    assert block_bytes(collective, 15, 4, 4) == 0


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
def test_without_a_block_per_rank_the_size_is_the_block(collective: str) -> None:
    assert block_bytes(collective, 1022, 4, 4) == 1020
    assert size_bytes(collective, 1020, 4) == 1020


def test_a_barrier_has_no_size() -> None:
    assert block_bytes("barrier", 1 << 20, 4, 4) == 0
    assert size_bytes("barrier", 0, 4) == 0
    assert busbw_factor("barrier", 4) == 0


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_size_used_is_as_large_as_wanted_or_a_little_less(collective: str) -> None:
    for wanted in (0, 1, 4095, 4096, 1 << 20):
        for ranks in range(1, 10):
            used = size_bytes(collective, block_bytes(collective, wanted, ranks, 8), ranks)
            assert used <= wanted
            assert COLLECTIVES[collective].moves_data is False or wanted - used < 8 * ranks


def test_busbw_factors() -> None:
    assert {name: busbw_factor(name, 4) for name, its in COLLECTIVES.items() if its.basic and its.moves_data} == {
        "all_reduce": 1.5,
        **dict.fromkeys(PER_RANK, 0.75),
        "broadcast": 1.0,
        "reduce": 1.0,
        "send": 1.0,
    }
    assert busbw_factor("all_reduce", 1) == 0


def test_bandwidths() -> None:
    assert algbw_gbytes_per_s(1 << 20, 1 << 19) == 2.0
    assert busbw_gbytes_per_s("all_reduce", 4, 2.0) == 3.0
