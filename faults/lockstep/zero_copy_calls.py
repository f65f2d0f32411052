"""Small zero-copy calls: where their arrays lie in the heap, without a communicator that would have placed them."""

from __future__ import annotations

from dataclasses import replace

from collectives.algorithms import catalog
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES, buffers
from collectives.in_heap import results_in_heap
from cxlemu.plan import Call, InHeap, Layout
from cxlemu.plan.layout import DATA_ALIGN_BYTES
from cxlemu.rounding import round_up

HEAP_INPUT, HEAP_OUTPUT = 192, 40 << 10
HEAP_RANK_BYTES = 80 << 10


def lent(call: Call, *, output: bool = False) -> Call:
    """Place a call's input in the heap, at HEAP_INPUT.

    Args:
        call: Any call.
        output: Place the output in the heap as well, at HEAP_OUTPUT. In place it always is, where the input is.
    """
    place = HEAP_INPUT if call.in_place else HEAP_OUTPUT if output else None
    return replace(call, heap=InHeap(HEAP_INPUT, output=place, told=True))


def lent_if_zero_copy(call: Call, its: Recipe | None = None) -> Call:
    """Place a call's input in the heap if its algorithm is declared as zero copy.

    For one that writes to peers' results, place the output there, at HEAP_OUTPUT; else return the call as it is.

    Args:
        call: Any call.
        its: The algorithm's recipe; default: that of the algorithm that the call names.
    """
    its = its or catalog.recipe(call.collective, call.algorithm)
    if its.spec.pushes:
        return replace(call, heap=InHeap(None, output=HEAP_OUTPUT, told=True))
    return lent(call) if its.spec.zero_copy else call


def may_be_in_place(collective: str, variant: str) -> bool:
    """Say whether a variant works in place: with zero copy, peers would still read what they are to replace.

    Args:
        collective: Name of the collective.
        variant: Name of one of its variants.
    """
    contract = COLLECTIVES[collective]
    replaced = contract.input_blocks == contract.output_blocks == "ranks"
    return not (replaced and catalog.recipe(collective, variant).spec.zero_copy)


def with_heap(layout: Layout) -> Layout:
    """Return the layout with HEAP_RANK_BYTES of heap for every rank."""
    return replace(layout, heap_card_bytes=HEAP_RANK_BYTES * -(-layout.ranks // layout.pool_cards))


def in_heap(call: Call, layout: Layout) -> tuple[Call, Layout]:
    """Place a call's arrays in a heap that is large enough, from its beginning on.

    Args:
        call: Any call. In place, the larger one of input and output lies at the beginning; else only the input is
            placed.
        layout: A layout, whose heap does not matter.

    Returns:
        The call, and the layout with this heap.
    """
    return _at(call, layout, pushes=False)


def placed(its: Recipe, call: Call, layout: Layout) -> tuple[Call, Layout]:
    """Place a call's arrays in a heap, as `in_heap`, as far as its algorithm takes them there.

    Args:
        its: The algorithm's recipe. If it writes to peers' results, the output is placed instead of the input.
        call: Any call.
        layout: A layout, whose heap does not matter.
    """
    return _at(call, layout, its.spec.pushes) if its.spec.takes_heap else (call, layout)


def _at(call: Call, layout: Layout, pushes: bool) -> tuple[Call, Layout]:
    sizes = [[buffer.nbytes for buffer in buffers(call, rank)] for rank in range(call.ranks)]
    needed = max(max(pair) if call.in_place else sum(pair) for pair in sizes)
    first, last = buffers(call, call.ranks - 1)
    step = call.nbytes if call.in_place and first.inside and first.nbytes < last.nbytes else 0
    output = None
    if COLLECTIVES[call.collective].reduces and call.in_place:
        output = 0
    card_bytes = round_up(needed, DATA_ALIGN_BYTES) * -(-call.ranks // layout.pool_cards)
    heap = results_in_heap() if pushes else InHeap(0, step, output, told=True)
    return replace(call, heap=heap), replace(layout, heap_card_bytes=card_bytes)
