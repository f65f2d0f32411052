"""Variants: where blocks lie, how many chunks they are cut into, and what travels with a doorbell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """How words become instructions."""

    name: str
    interleaved: bool = True  # blocks spread over cards; otherwise allocated one after another
    chunks: int = 1  # at most this many doorbells per block
    overlap: bool = False  # publishing and retrieving are streams of their own
    in_lines: bool = False  # payload inside the doorbell's line, nothing in data slots
    zero_copy: bool = False  # the input is published where it lies in the heap
    takes_clusters: bool = False  # inside clusters and across them (collectives/algorithms/hierarchical)
    checked: bool = False  # a checksum travels with every doorbell, and what is read is compared with it
    slice_bytes: int = 0  # not 0: ranks send each other slices of at most this size (collectives/algorithms/nccl)


NAIVE = VariantSpec("naive", interleaved=False)
AGGREGATE = VariantSpec("aggregate")
ALL = VariantSpec("all", chunks=4, overlap=True)
LINE = VariantSpec("line", in_lines=True)
ZERO_COPY = VariantSpec("zero_copy", chunks=8, overlap=True, zero_copy=True)
HIERARCHICAL = VariantSpec("hierarchical", chunks=4, overlap=True, takes_clusters=True)
VARIANTS = {spec.name: spec for spec in (NAIVE, AGGREGATE, ALL, LINE, ZERO_COPY)}
