"""A call of one of our algorithms, or of a user's, as the prover wants it: its plan, with any root, on its ring."""

from __future__ import annotations

from dataclasses import replace

from collectives.catalog import build
from collectives.contracts import COLLECTIVES, buffers
from collectives.recipes import Recipe
from cxlemu.plan import Call, InHeap, Layout, Plan
from cxlemu.plan.layout import DATA_ALIGN_BYTES
from cxlemu.rounding import round_up
from faults.prove.proof import Proof
from faults.prove.rounds import shortened
from faults.prove.sequences import Progress, prove


def prove_case(recipe: Recipe, layout: Layout, call: Call, *, progress: Progress | None = None) -> Proof:
    """Whether the call is right on a ring of this layout, of every root. Raises ArgumentError where there is none."""
    if recipe.style.heap and call.heap is None:
        call, layout = _lent(call, layout)
    call, alike = shortened(recipe, layout, call)

    def of_root(root: int) -> Plan:
        return build(recipe, layout, replace(call, root=root))

    return replace(prove(of_root(call.root), rooted=of_root, progress=progress), rounds_alike=alike)


def _lent(call: Call, layout: Layout) -> tuple[Call, Layout]:
    """The call with its arrays in a heap that is large enough: the larger one from its beginning on, in place."""
    sizes = [[buffer.nbytes for buffer in buffers(call, rank)] for rank in range(call.ranks)]
    needed = max(max(pair) if call.in_place else sum(pair) for pair in sizes)
    first, last = buffers(call, call.ranks - 1)
    step = call.nbytes if call.in_place and first.inside and first.nbytes < last.nbytes else 0
    output = None
    if COLLECTIVES[call.collective].reduces and call.in_place:
        output = 0
    card_bytes = round_up(needed, DATA_ALIGN_BYTES) * -(-call.ranks // layout.pool_cards)
    return replace(call, heap=InHeap(0, step, output)), replace(layout, heap_card_bytes=card_bytes)
