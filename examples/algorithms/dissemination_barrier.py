"""Dissemination barrier: in step k every rank signals the rank 2^k further on, once it has heard in the step before.

Steps: ceil(log2 N). Rung and waited for per rank: ceil(log2 N) doorbells, no data; after step k a rank has heard of
2^(k + 1) ranks, itself among them.
Source: Hensgen, Finkel, Manber, Two algorithms for barrier synchronization, IJPP 1988.

cxlemu run --algorithm examples/algorithms/dissemination_barrier.py:dissemination_barrier
"""

from collectives import Builder, algorithm


@algorithm("barrier")
def dissemination_barrier(b: Builder) -> None:
    steps, heard = (b.ranks - 1).bit_length(), None
    with b.bells(steps) as turn:
        for step in range(steps):
            b.signal(turn, bell=step, after=heard)
            heard = b.wait(turn, (b.rank - (1 << step)) % b.ranks, bell=step)
