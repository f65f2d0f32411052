"""Small zero-copy calls: where their arrays lie in the heap, without a communicator that would have placed them."""

from __future__ import annotations

from dataclasses import replace

from cxlemu.plan import Call, InHeap, Layout

HEAP_INPUT, HEAP_OUTPUT = 192, 40 << 10
HEAP_RANK_BYTES = 80 << 10


def lent(call: Call, *, output: bool = False) -> Call:
    """The call with its input in the heap and, asked for or in place, its output."""
    place = HEAP_INPUT if call.in_place else HEAP_OUTPUT if output else None
    return replace(call, heap=InHeap(HEAP_INPUT, output=place))


def lent_if_zero_copy(call: Call) -> Call:
    return lent(call) if call.algorithm == "zero_copy" else call


def may_be_in_place(collective: str, variant: str) -> bool:
    """With zero copy peers would still read what they are to replace."""
    return (collective, variant) != ("all_to_all", "zero_copy")


def with_heap(layout: Layout) -> Layout:
    """The layout with HEAP_RANK_BYTES of heap for every rank."""
    return replace(layout, heap_card_bytes=HEAP_RANK_BYTES * -(-layout.ranks // layout.pool_cards))
