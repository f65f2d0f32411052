"""The algorithms we ship, one page each. Importing this package registers them."""

from collectives.algorithms import (
    all_gather,
    all_reduce,
    all_reduce_two_shot,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_reduce_two_shot",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]
