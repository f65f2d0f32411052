"""CCCL's table with every assumed figure of the fabrics a quarter lower and higher, one at a time.

Hosts' and cards' figures are the same on the test bed and on more hosts, so they are varied on both. What is fitted
stays, the sizes are fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from studies.published.cccl import BASELINE, SIZES, TEST_BED, Reproduction
from studies.published.variation import AS_ASSUMED, FACTORS, assumed, beside, predictions, varied

FEW = SIZES[::6]


def otherwise(work: Reproduction, sizes: Sequence[int] = FEW) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
    """Vary every assumed figure of both fabrics, one at a time, by a quarter."""
    ours, grown, baseline = work.ours.topology, work.grown.topology, work.nccl.topology
    usual = predictions(work.on(ours, grown, baseline, sizes).each_row())
    yield AS_ASSUMED, beside(usual, usual)
    for key, name in assumed(ours):
        its = (work.on(varied(ours, key, by), varied(grown, key, by), baseline, sizes) for by in FACTORS)
        yield f"{TEST_BED}: {name}", beside(*(predictions(one.each_row()) for one in its))
    for key, name in assumed(baseline):
        its = (work.on(ours, grown, varied(baseline, key, by), sizes) for by in FACTORS)
        yield f"{BASELINE}: {name}", beside(*(predictions(one.each_row()) for one in its))
