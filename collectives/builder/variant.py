"""Variants: where blocks lie, how many chunks they are cut into, and what travels with a doorbell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """States how a variant makes instructions of words; `carriers.carrier_of` finds the carrier that does so."""

    name: str
    interleaved: bool = True  # blocks spread over cards; otherwise allocated one after another
    chunks: int = 1  # at most this many doorbells per block
    overlap: bool = False  # publishing and retrieving are streams of their own
    in_lines: bool = False  # payload inside the doorbell's line, nothing in data slots
    zero_copy: bool = False  # the input is published where it lies in the heap
    pushes: bool = False  # ranks write to their peers' results, which lie in the heap
    checked: bool = False  # a checksum travels with every doorbell, and what is read is compared with it
    staged: bool = False  # what is folded is read into scratch memory first, from one peer after another
    finely: bool = True  # a block that all read is dealt over all cards in smaller granules than the pool's
    slice_bytes: int = 0  # the largest slice in which ranks send to each other (collectives/algorithms/nccl)

    @property
    def takes_heap(self) -> bool:
        """Whether arrays of the call lie in the heap."""
        return self.zero_copy or self.pushes


NAIVE = VariantSpec("naive", interleaved=False)
AGGREGATE = VariantSpec("aggregate")
ALL = VariantSpec("all", chunks=4, overlap=True)
LINE = VariantSpec("line", in_lines=True)
ZERO_COPY = VariantSpec("zero_copy", chunks=8, overlap=True, zero_copy=True)
STAGED = VariantSpec("staged", chunks=8, overlap=True, staged=True)
PUSH = VariantSpec("push", chunks=4, overlap=True, pushes=True)
VARIANTS = {spec.name: spec for spec in (NAIVE, AGGREGATE, ALL, LINE, ZERO_COPY, STAGED)}
