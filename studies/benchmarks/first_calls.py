"""How long a first call plans, in Python: ``python -m studies.benchmarks.first_calls [RANKS ...]``.

A call unlike all before it is planned: a variant is chosen, its plan is built and held to the rules, and C binds it.
Time is rank 0's own on its core, the least of several, so that other load on the machine counts for little.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from statistics import mean, median

import numpy as np

from collectives import Communicator
from collectives.algorithms.catalog import plan_of
from cxlemu import RankContext, launch

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")
SIZES = tuple(1 << exponent for exponent in range(6, 25, 2))  # of a rank's input, in bytes
ROUNDS = 3


def planned(context: RankContext, sizes: tuple[int, ...], rounds: int) -> dict[tuple[str, int], float] | None:
    """Return on rank 0 how long each collective of each size was planned, in seconds; None elsewhere."""
    found: dict[tuple[str, int], float] = {}
    with Communicator.world(context) as comm:
        for _ in range(rounds if comm.rank == 0 else 0):
            plan_of.cache_clear()
            for name in COLLECTIVES:
                for nbytes in sizes:
                    x = np.ones(max(nbytes // 4, comm.size) // comm.size * comm.size, np.float32)
                    begin = time.thread_time()
                    getattr(comm.persistent, name)(x)
                    took = time.thread_time() - begin
                    found[name, nbytes] = min(took, found.get((name, nbytes), took))
    return found or None


def measured(ranks: int, sizes: tuple[int, ...] = SIZES, rounds: int = ROUNDS) -> dict[tuple[str, int], float]:
    """Return how long first calls of ``ranks`` ranks are planned: (collective, bytes of input) -> seconds."""
    of_rank_0 = launch(
        partial(planned, sizes=sizes, rounds=rounds),
        ranks=ranks,
        topology="twelve-hosts",
        how="threads",
        deadline_s=600,
        heap_bytes="cards",
    )[0]
    assert of_rank_0 is not None
    return of_rank_0


if __name__ == "__main__":
    for ranks in [int(given) for given in sys.argv[1:]] or (2, 8):
        times = sorted(1e3 * seconds for seconds in measured(ranks).values())
        print(f"{ranks} ranks: median {median(times):.2f} ms, mean {mean(times):.2f}, most {times[-1]:.1f}")
