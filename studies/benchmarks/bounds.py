"""The collectives that are furthest above their lower bounds, of all that `auto` takes on shipped pools.

python -m studies.benchmarks.bounds
python -m studies.benchmarks.bounds --bytes 16M --rows 20
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.bounds import MOVES
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.topology import Topology
from cxlemu.units import format_bytes, parse_bytes

POOLS = {
    "laptop": (2, 4),
    "six-cards": (3, 4, 8),
    "titan2-6xcz120": (3,),
    "twelve-hosts": (3, 12),
    "thousand-hosts": (8, 32),
    "cxl-8xh100": (8,),
}
SIZES = (1 << 20, 16 << 20)


class Above(NamedTuple):
    """A call and its bound."""

    ratio: float  # its time by the bound of its bytes
    started: float  # its time by the bound that also has what no plan hides (collectives/sweep/virtual/bounds.py)
    config: str
    ranks: int  # how many ranks call
    collective: str  # what they call
    nbytes: int  # its size, as nccl-tests counts it
    variant: str  # what `auto` took
    bound_by: str  # what the bound is spent on


def survey(sizes: Sequence[int] = SIZES) -> list[Above]:
    """Simulate every collective on every pool."""
    found = []
    for config, worlds in POOLS.items():
        topology = Topology.load(config)
        for ranks in (n for n in worlds if n <= topology.place_count):
            for collective in MOVES:
                for case in Sweep((collective,), list(sizes)).cases(ranks):
                    row, _ = simulate_case(topology, case)
                    if row.bound_us and row.started_bound_us:
                        ratio, started = row.time_us / row.bound_us, row.time_us / row.started_bound_us
                        its = (config, ranks, collective, case.size_bytes, row.variant, row.bound_by)
                        found.append(Above(ratio, started, *its))
    return sorted(found, reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the calls that are furthest above their lower bounds.")
    parser.add_argument("--bytes", type=parse_bytes, action="append", help="a size; several may be given")
    parser.add_argument("--rows", type=int, default=10, help="how many rows")
    asked = parser.parse_args()
    rows = survey(asked.bytes or SIZES)
    print("ratio: a call's time by the least that its bytes take; started: by the same with what no plan hides,")
    print("its launch, a write's start, a doorbell and the start of the read behind it")
    heads = f"{'ratio':>6} {'started':>7} {'config':<16} {'ranks':>5} {'collective':<15} {'size':>7}"
    print(f"{heads} {'variant':<20} bound by")
    for its in rows[: asked.rows]:
        size = format_bytes(its.nbytes)
        words = f"{its.ratio:>6.2f} {its.started:>7.2f} {its.config:<16} {its.ranks:>5} {its.collective:<15} {size:>7}"
        print(f"{words} {its.variant:<20} {its.bound_by}")
    within, started = (sum(value <= 1.5 for value in column) for column in zip(*(row[:2] for row in rows), strict=True))
    print(f"{within} of {len(rows)} calls within 1.5 times their bounds, {started} where starts count")


if __name__ == "__main__":
    main()
