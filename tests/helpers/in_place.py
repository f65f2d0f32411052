"""Which calls of a variant may be in place."""

from collectives.algorithms import catalog
from collectives.contracts import COLLECTIVES


def may_be_in_place(collective: str, variant: str) -> bool:
    """Say whether a variant works in place: with zero copy, peers would still read what they are to replace."""
    contract = COLLECTIVES[collective]
    replaced = contract.input_blocks == contract.output_blocks == "ranks"
    return not (replaced and catalog.recipe(collective, variant).spec.zero_copy)
