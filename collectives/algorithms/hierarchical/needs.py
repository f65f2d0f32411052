"""The layout that algorithms on two levels need: how many blocks a rank has on each level, and how large they are."""

from typing import NamedTuple

from collectives.contracts import COLLECTIVES
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call

SLICED = ("all_reduce", "broadcast", "reduce")  # whose blocks are slices, one for each position in a cluster


class Needs(NamedTuple):
    inside: int
    across: int
    block_bytes: int


def needs(call: Call) -> Needs:
    """The blocks that an algorithm on two levels needs for a call of ranks in clusters."""
    clusters = call.ranks // call.cluster
    if call.collective in SLICED:
        across = 2 if COLLECTIVES[call.collective].shared_result else 1
        return Needs(call.cluster + 1, across, -(-call.nbytes // (call.cluster * LINE_BYTES)) * LINE_BYTES)
    many = COLLECTIVES[call.collective].input_blocks == "ranks"
    across = call.ranks if call.collective == "all_to_all" else clusters if many else 1
    return Needs(call.ranks if many else clusters, across, call.nbytes)
