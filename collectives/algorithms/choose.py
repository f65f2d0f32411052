"""``auto``: which variant a call takes, and why. The choice depends on nothing that could differ between ranks."""

from __future__ import annotations

from typing import NamedTuple

from collectives.algorithms import catalog, modelled
from collectives.algorithms.hierarchical.estimate import CHUNKED_MIN_BYTES, TWO_SHOT_MIN_BYTES, TwoLevelEstimate
from collectives.algorithms.hierarchical.levels import HIERARCHICAL
from collectives.builder import PUSH
from collectives.contracts import COLLECTIVES
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import DTYPES
from cxlemu.units import counted, format_bytes

LINE_MAX_BYTES = 8 * PAYLOAD_BYTES
INTEGERS = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in "iub")
ZERO_COPY_MIN_BYTES = 64 << 10
PUSH_MIN_BYTES = 1 << 20  # below, two waits for a peer cost more than the copy that is saved
PROCESS_MIN_BYTES = (
    8 << 20
)  # of an array: NumPy has smaller ones in pages of 4 KiB, which the kernel looks up one by one
TWO_SHOT_OF_PAIRS_MIN_BYTES = 1 << 20  # above what caches hold, where passes over memory are what a call costs
TREE_MIN_RANKS = 4  # from which on a root that folds everything by itself is what all wait for
DOUBLING_BYTES = range(CHUNKED_MIN_BYTES, 512 << 10)  # smaller vectors take one shot, larger ones are worth two


class Choice(NamedTuple):
    """The variant that a call takes, and why, for people."""

    variant: str
    reason: str


def choose(
    collective: str,
    nbytes: int,
    ranks: int,
    *,
    in_pool: bool = False,
    in_process: bool = False,
    out_in_pool: bool = False,
    ways: TwoLevelEstimate | None = None,
    dtype: str = "",
    copies: modelled.Copies | None = None,
) -> Choice:
    """Choose the variant of a call.

    Args:
        collective: The collective's name.
        nbytes: The size of one block, as in Call.
        ranks: The number of ranks.
        in_pool: Whether x is a whole array that comm.heap made. It does not count for scatter, as its root alone has x:
            there zero copy has to be asked for.
        in_process: Whether peers may read x in the rank's process.
        out_in_pool: Whether out is a whole array that comm.heap made, and x is none. It does not count where there is a
            root: whoever writes to results cannot know where they lie before it chooses.
        ways: The estimate for ranks in clusters, which take two levels where those are faster by the cost model.
        dtype: The dtype's name. Integers may take a tree, as their results have the same bits in whatever order they
            are folded; floats are folded in rank order.
        copies: What copies cost on a modelled fabric (default: this machine's own memory).
    """
    if not COLLECTIVES[collective].moves_data:
        return Choice("line", "no data: doorbells only")
    if nbytes == 0:
        return Choice("line", "nothing to move")
    size = format_bytes(nbytes)
    if in_pool and nbytes >= ZERO_COPY_MIN_BYTES and COLLECTIVES[collective].among_all and collective != "scatter":
        return Choice(
            "zero_copy", f"{size} that lie in the pool: peers read them there, nothing is copied to be published"
        )
    is_large = nbytes >= PUSH_MIN_BYTES and nbytes % LINE_BYTES == 0
    if out_in_pool and is_large and PUSH.name in catalog.pushing(collective) and not COLLECTIVES[collective].rooted:
        return Choice(PUSH.name, f"{size} for results that lie in the pool: peers write them there, with one copy")
    its = COLLECTIVES[collective]
    x_bytes = nbytes * (ranks if its.input_blocks == "ranks" else 1)
    if in_process and its.among_all and not its.reduces and x_bytes >= PROCESS_MIN_BYTES:  # a fold would copy twice
        return Choice("zero_copy", f"{size} in the ranks' processes: peers read them there, with one copy")
    lines = -(-nbytes // PAYLOAD_BYTES)
    asked = None if copies is None else modelled.Asked(nbytes, ranks, dtype in INTEGERS, copies)
    if nbytes <= (LINE_MAX_BYTES if asked is None else modelled.lines_max(collective, asked) * PAYLOAD_BYTES):
        return Choice("line", f"{size} fit in {counted(lines, 'doorbell line')}: no data lines, no fence")
    if ways is not None and COLLECTIVES[collective].basic:
        levels_ns, flat_ns = ways.times_ns(collective, nbytes, ranks)
        if levels_ns < flat_ns:
            return Choice(
                HIERARCHICAL,
                f"{size} on clusters of {ways.cluster}: about {levels_ns / 1e3:,.0f} us on two levels, "
                f"{flat_ns / 1e3:,.0f} us on one, by the cost model's figures",
            )
    if asked is not None:
        return Choice(*modelled.modelled(collective, asked))
    if dtype in INTEGERS and ranks >= TREE_MIN_RANKS:
        if collective == "reduce" and nbytes >= CHUNKED_MIN_BYTES:
            return Choice("binomial", f"{size} of integers on {ranks} ranks: a tree folds them, not the root alone")
        if collective == "all_reduce" and nbytes in DOUBLING_BYTES:
            return Choice("doubling", f"{size} of integers on {ranks} ranks: log2(N) vectors are read, not N - 1")
    if collective == "all_reduce" and ranks > 2 and nbytes >= TWO_SHOT_MIN_BYTES:
        return Choice(
            "two_shot", f"{size} on {ranks} ranks: reading 2(N-1)/N instead of N-1 vectors pays for a second step"
        )
    if collective == "all_reduce" and ranks == 2 and nbytes >= TWO_SHOT_OF_PAIRS_MIN_BYTES:
        return Choice("two_shot", f"{size} on 2 ranks: each folds one half, so that a vector is read once, not twice")
    if nbytes >= CHUNKED_MIN_BYTES:
        return Choice("all", f"{size} are worth chunks: peers retrieve while the rest is published")
    return Choice("aggregate", f"{size} are too small for chunks")
