"""Finds what an algorithm asks of a ring: how many blocks a rank publishes in a round, and of how many bytes."""

from collectives.builder.recipes import Recipe
from collectives.builder.slots import Loop
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Layout
from faults.prove.rounds import ASKING, Asking


def loops_of(recipe: Recipe, call: Call) -> list[Loop]:
    """The loops over rounds in which a one-level algorithm of ours moves a call's blocks, as the root asks for them."""
    layout = Layout(call.ranks, 1, 1, LINE_BYTES, 1, LINE_BYTES)
    asking = ASKING.get(recipe.builder, Asking)(call, layout, recipe.spec, call.root)
    recipe.algorithm(asking)
    return asking.loops
