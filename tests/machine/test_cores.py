"""Whether ranks spin: as many cores as ranks on a machine, whatever each of them is bound to."""

import numpy as np

from cxlemu.engines.cores import MOST_CORES, cores_here, have_a_core_each


def row(machine: int, *cores: int) -> np.ndarray:
    mask = sum(1 << core for core in cores)
    return np.frombuffer(bytes([machine] * 16) + mask.to_bytes(MOST_CORES // 8, "little"), np.uint8)


def test_ranks_bound_to_a_core_each_have_one_each() -> None:
    rows = np.stack([row(1, 0), row(1, 900)])
    assert have_a_core_each(rows, 0) and have_a_core_each(rows, 1)


def test_ranks_bound_to_one_core_share_it() -> None:
    assert not have_a_core_each(np.stack([row(1, 3), row(1, 3)]), 0)


def test_ranks_of_another_machine_do_not_count() -> None:
    rows = np.stack([row(1, 0, 1), row(2, 0), row(1, 0, 1), row(2, 0)])
    assert have_a_core_each(rows, 0) and not have_a_core_each(rows, 1)


def test_this_rank_has_a_core() -> None:
    assert have_a_core_each(cores_here()[None], 0)
