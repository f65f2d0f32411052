"""NCCL's algorithms as plans: what runs over RDMA between hosts, or over an XLink, where there is no pool.

They run like all others, on any memory: ``--variant ring``, ``tree``, ``chain`` or ``grouped``. `words` says how ranks
send to each other, and `protocols` what NCCL's protocols make of a modelled fabric.
"""

from typing import Any

from collectives.algorithms.nccl import grouped, rings, tree
from collectives.algorithms.nccl.words import Sends
from collectives.builder import VariantSpec
from collectives.builder.recipes import Recipe
from cxlemu.plan import UNIFORM_ORDER

SLICE_BYTES = {"ring": 1 << 20, "tree": 1 << 20, "chain": 512 << 10, "grouped": 512 << 10}

_ALGORITHMS = {
    ("all_gather", "ring"): rings.ring_all_gather,
    ("reduce_scatter", "ring"): rings.ring_reduce_scatter,
    ("all_reduce", "ring"): rings.ring_all_reduce,
    ("all_reduce", "tree"): tree.tree_all_reduce,
    ("broadcast", "chain"): rings.chain_broadcast,
    ("reduce", "chain"): rings.chain_reduce,
    ("gather", "grouped"): grouped.grouped_gather,
    ("scatter", "grouped"): grouped.grouped_scatter,
    ("all_to_all", "grouped"): grouped.grouped_all_to_all,
}


def _recipe(collective: str, name: str) -> Recipe:
    spec = VariantSpec(name, overlap=True, slice_bytes=SLICE_BYTES[name])
    # Around a ring or up a tree: in an order of their own.
    function: Any = _ALGORITHMS[collective, name]
    return Recipe(collective, name, function, spec, UNIFORM_ORDER, builder=Sends)


RECIPES = {key: _recipe(*key) for key in _ALGORITHMS}


def recipes(collective: str) -> list[Recipe]:
    """The recipes that NCCL may choose among for a collective; an empty list for one that it does not have."""
    return [recipe for (name, _), recipe in RECIPES.items() if name == collective]


__all__ = ["RECIPES", "SLICE_BYTES", "Sends", "recipes"]
