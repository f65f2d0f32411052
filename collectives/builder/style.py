"""Variants: where blocks lie, how many chunks they are cut into, and what travels with a doorbell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    """How words become instructions."""

    name: str
    interleaved: bool = True  # blocks spread over cards; otherwise allocated one after another
    chunks: int = 1  # at most so many doorbells a block
    overlap: bool = False  # publishing and retrieving are streams of their own
    line: bool = False  # payload inside the doorbell's line, nothing in data slots
    heap: bool = False  # zero copy: the input is published where it lies in the heap
    levels: bool = False  # inside clusters and across them (collectives/algorithms/hierarchical)
    checked: bool = False  # a checksum travels with every doorbell, and what is read is compared with it
    slice_bytes: int = (
        0  # not 0: ranks send slices of at most so many bytes to each other (collectives/algorithms/nccl/words.py)
    )


NAIVE = Style("naive", interleaved=False)
AGGREGATE = Style("aggregate")
ALL = Style("all", chunks=4, overlap=True)
LINE = Style("line", line=True)
ZERO_COPY = Style("zero_copy", chunks=8, overlap=True, heap=True)
HIERARCHICAL = Style("hierarchical", chunks=4, overlap=True, levels=True)
STYLES = {style.name: style for style in (NAIVE, AGGREGATE, ALL, LINE, ZERO_COPY)}
