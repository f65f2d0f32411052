"""Which choice runs fastest on this machine, found by successive halving: many are called once, the better half of them
more often, and so on, until a few have been called often enough to tell them apart.

What is tried stands for tiles, order and transport; the default is among it to the end, so that what is found is not
slower than that, as measured. A search has a budget of time: where that is short, fewer are tried.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product

from collectives.fused.choice import Operator, Tiling, call_of
from collectives.fused.shapes import TRANSPORTS, shapes
from collectives.sweep.fused.tuner import Tuned
from cxlemu.units import counted

KEPT = 1 / 3  # of those that were called
FINALISTS = 3
PARTS = (1, 2, 4, 8)  # of a shard in a communication tile; in a compute tile of rows up to the third
ORDERS_TRIED = ("shifted", "own_last")

# Choices, how often each is called, and for how many seconds at most -> what each call took, in ns; nothing of choices
# that had no turn in that time.
Race = Callable[[tuple[Tiling, ...], int, float], list[list[int]]]


def candidates(operator: Operator, ranks: int) -> list[Tiling]:
    """List choices for an operator: the default first, the others in an order that favours none."""
    gathers = operator.kind == "all_gather_gemm"
    call = call_of(operator, "fused", ranks, Tiling())
    assert call.gemm is not None
    rows, columns = operator.m // ranks, shapes(call).n
    default = Tiling(
        call.gemm.comm_tile_rows, (call.gemm.tile_rows, call.gemm.tile_cols), call.gemm.order, call.gemm.transport
    )
    orders = ORDERS_TRIED[:1] if gathers else ORDERS_TRIED  # they are of destinations
    transports = TRANSPORTS[operator.kind] if gathers else TRANSPORTS[operator.kind][:1]
    comm = dict.fromkeys(max(rows // part, 1) for part in PARTS)
    tiles = dict.fromkeys(
        (max(rows // down, 1), max(columns // across, 1)) for down in PARTS[:3] for across in PARTS[:2]
    )
    others = [Tiling(*values) for values in product(comm, tiles, orders, transports)]
    random.Random(0).shuffle(others)
    return list(dict.fromkeys((default, *others)))


def halve(
    choices: Sequence[Tiling],
    race: Race,
    budget_s: float,
    seen: Callable[[str], None] = lambda what: None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Find the fastest choice by successive halving in about ``budget_s``; the first, the default, stays to the end."""
    ends = clock() + budget_s
    default, left, rounds, tried = choices[0], list(choices), 1, 0
    while True:
        last = len(left) <= FINALISTS
        limit_s = max(ends - clock(), 0.0) / (1 if last else 2)
        seen(f"{counted(len(left), 'choice')} {counted(rounds, 'time')}, {limit_s:.0f} s at most")
        calls = race(tuple(left), rounds, limit_s)
        medians = {choice: statistics.median(call) for choice, call in zip(left, calls, strict=True) if call}
        tried = tried or len(medians)
        best = sorted(medians, key=lambda choice: medians[choice])
        if last or clock() >= ends:
            return Tuned(best[0], round(medians[best[0]]), tried)
        left = best[: max(round(len(best) * KEPT), FINALISTS - 1)]
        left += [default] * (default not in left)
        rounds *= 2
