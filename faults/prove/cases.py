"""A call of one of our algorithms, or of a user's, as the prover wants it: its plan, with any root, on its ring."""

from collections.abc import Sequence
from dataclasses import replace

from collectives.algorithms.catalog import build
from collectives.builder.recipes import Recipe
from cxlemu.plan import Call, Layout, Plan
from faults.prove.proof import Proof
from faults.prove.rounds import shortened
from faults.prove.sequences import Progress, prove
from faults.zero_copy_calls import placed


def prove_case(
    recipe: Recipe,
    layout: Layout,
    call: Call,
    *,
    roots: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Proof:
    """Prove that a call is right on a ring, whatever calls surround it; ``rounds_alike`` counts the rounds left out."""
    if call.heap is None:
        call, layout = placed(recipe, call, layout)
    plan, alike = shortened(recipe, layout, call)

    def of_root(root: int) -> Plan:
        return build(recipe, layout, replace(plan.call, root=root))

    return replace(prove(plan, rooted=of_root, roots=roots, progress=progress), rounds_alike=alike)
