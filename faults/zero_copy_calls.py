"""Small zero-copy calls: where their arrays lie in the heap, without a communicator that would have placed them."""

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
    """Place a call's input in the heap, at HEAP_INPUT; in place, or if asked to, the output as well."""
    place = HEAP_INPUT if call.in_place else HEAP_OUTPUT if output else None
    return replace(call, heap=InHeap(HEAP_INPUT, output=place, told=True))


def lent_if_zero_copy(call: Call, recipe: Recipe | None = None) -> Call:
    """Place a call's input in the heap if its algorithm is declared as zero copy.

    For one that writes to peers' results, place the output there, at HEAP_OUTPUT; else return the call as it is.
    """
    recipe = recipe or catalog.recipe(call.collective, call.algorithm)
    if recipe.spec.pushes:
        return replace(call, heap=InHeap(None, output=HEAP_OUTPUT, told=True))
    return lent(call) if recipe.spec.zero_copy else call


def with_heap(layout: Layout) -> Layout:
    """Return the layout with HEAP_RANK_BYTES of heap for every rank."""
    return replace(layout, heap_card_bytes=HEAP_RANK_BYTES * -(-layout.ranks // layout.pool_cards))


def in_heap(call: Call, layout: Layout) -> tuple[Call, Layout]:
    """Place a call's input at the beginning of a large enough heap; in place, the larger one of input and output."""
    return _at(call, layout, pushes=False)


def placed(recipe: Recipe, call: Call, layout: Layout) -> tuple[Call, Layout]:
    """Place a call's arrays as `in_heap` does, or the output alone if the algorithm writes to peers' results."""
    return _at(call, layout, recipe.spec.pushes) if recipe.spec.takes_heap else (call, layout)


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
