"""A call of one of our algorithms, or of a user's, as the prover wants it: its plan, with any root, on its ring."""

from __future__ import annotations

from collections.abc import Sequence
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


def prove_case(
    recipe: Recipe,
    layout: Layout,
    call: Call,
    *,
    roots: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Proof:
    """Whether the call is right on a ring of this layout, of these roots (default: as `prove` chooses them).

    Raises ArgumentError where there is no such call.
    """
    call, layout = lent(recipe, layout, call)
    call, alike = shortened(recipe, layout, call)

    def of_root(root: int) -> Plan:
        return build(recipe, layout, replace(call, root=root))

    return replace(prove(of_root(call.root), rooted=of_root, roots=roots, progress=progress), rounds_alike=alike)


def lent(recipe: Recipe, layout: Layout, call: Call) -> tuple[Call, Layout]:
    """The call with its arrays in a heap that is large enough, the larger one from its beginning on, in place; the same
    call and layout where the algorithm takes none."""
    if not recipe.style.heap or call.heap is not None:
        return call, layout
    sizes = [[buffer.nbytes for buffer in buffers(call, rank)] for rank in range(call.ranks)]
    needed = max(max(pair) if call.in_place else sum(pair) for pair in sizes)
    first, last = buffers(call, call.ranks - 1)
    step = call.nbytes if call.in_place and first.inside and first.nbytes < last.nbytes else 0
    output = None
    if COLLECTIVES[call.collective].reduces and call.in_place:
        output = 0
    card_bytes = round_up(needed, DATA_ALIGN_BYTES) * -(-call.ranks // layout.pool_cards)
    return replace(call, heap=InHeap(0, step, output)), replace(layout, heap_card_bytes=card_bytes)
