"""A call of one of our algorithms, or of a user's, as the prover wants it: its plan, with any root, on its ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collectives.algorithms.catalog import build
from collectives.builder.recipes import Recipe
from cxlemu.plan import Call, Layout, Plan
from faults.lockstep.zero_copy_calls import placed
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
    """Prove that a call is right on a ring, whatever calls come before and after.

    Args:
        recipe: The algorithm. If it takes arrays in a heap, the call's are placed there.
        layout: The ring.
        call: The call; its root does not matter.
        roots: The roots to prove it for; default: as `prove` chooses them.
        progress: Called after each sequence of calls, with the number of sequences done and their count.

    Returns:
        The proof. A call of many equal rounds is proved with fewer rounds: ``rounds_alike`` counts the rounds left out.

    Raises:
        ArgumentError: The algorithm has no such call.
    """
    if call.heap is None:
        call, layout = placed(recipe, call, layout)
    call, alike = shortened(recipe, layout, call)

    def of_root(root: int) -> Plan:
        return build(recipe, layout, replace(call, root=root))

    return replace(prove(of_root(call.root), rooted=of_root, roots=roots, progress=progress), rounds_alike=alike)
