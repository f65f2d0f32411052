"""Sizes and speeds as nccl-tests has them (its doc/PERFORMANCE.md), so that its users can read our tables.

A collective's *size* is that of all blocks together where there is a block per rank, else that of one block.
"""

from collectives.contracts import COLLECTIVES


def _blocks(collective: str, ranks: int) -> int:
    if not COLLECTIVES[collective].moves_data:
        return 0
    return ranks if COLLECTIVES[collective].per_rank else 1


def block_bytes(collective: str, total_bytes: int, ranks: int, itemsize: int) -> int:
    """Compute one block's bytes (``Call.nbytes``) of a wanted size, in whole elements; 0 for one that moves no data."""
    blocks = _blocks(collective, ranks)
    return total_bytes // (blocks * itemsize) * itemsize if blocks else 0


def size_bytes(collective: str, block_bytes: int, ranks: int) -> int:
    """Compute the bytes that are really moved, for the table's size column; 0 where the collective moves no data."""
    return block_bytes * _blocks(collective, ranks)


def busbw_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth per algorithm bandwidth: how many bytes the hardware carries for each byte of size.

    all_reduce 2(N-1)/N; all_gather, reduce_scatter, all_to_all, gather, scatter (N-1)/N; broadcast, reduce 1.
    """
    contract = COLLECTIVES[collective]
    if contract.shared_result:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if contract.per_rank else float(contract.moves_data)


def algbw_gbytes_per_s(size_bytes: int, time_ns: float) -> float:
    """Divide a size in bytes by a time in ns: the algorithm bandwidth in GB/s (10^9 bytes per second)."""
    return size_bytes / time_ns


def busbw_gbytes_per_s(collective: str, ranks: int, algbw_gbytes_per_s: float) -> float:
    """Convert a collective's algorithm bandwidth among ``ranks`` ranks to its bus bandwidth, both in GB/s."""
    return algbw_gbytes_per_s * busbw_factor(collective, ranks)
