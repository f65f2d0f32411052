"""The contract of each collective: which bytes a rank brings, and which bytes it must end up with.

``nbytes`` of a call is the size of one block. Blocks are numbered by rank: block k of a gathered or scattered buffer
belongs to rank k. In-place calls follow NCCL: the smaller buffer is the rank's own block of the larger one.

Blocks of uneven collectives have sizes of their own, ``counts`` of the call in bytes: one for each rank, or for
all_to_allv one for each pair of ranks, N rows of what a rank sends. ``nbytes`` is then the largest; blocks lie one
after another. A call without counts, as tools make it, has a staircase of them, from nothing to ``nbytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cxlemu.choices import REDOPS
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES, Buffer, Call, Plan
from cxlemu.suggest import unknown

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Collective:
    """What a collective takes and gives: everything that is particular to it follows from this row."""

    name: str  # the collective's name, which is also its verb's
    input_blocks: str  # blocks that a rank brings: "one", "ranks" (one for each rank) or "none"
    output_blocks: str  # blocks that a rank gets: "one", "ranks" or "none"
    reduces: bool = False  # the result is a fold of all ranks' blocks, so the call has an operation such as "sum"
    rooted_input: bool = False  # only the root brings a buffer
    rooted_output: bool = False  # only the root gets a buffer
    to_next: bool = False  # only the rank after the root gets a buffer: a message between two ranks
    # yields what a rank's output must be, as `postcondition` does, where that does not follow from the rest
    pieces: Callable[[Call, int], Iterator[Piece]] | None = None
    uneven: bool = False  # blocks have sizes of their own, and may be empty
    spares_first: bool = False  # rank 0 gets nothing

    @property
    def basic(self) -> bool:
        """Whether its blocks are equal, and its result follows from the row."""
        return self.pieces is None and not self.uneven

    @property
    def moves_data(self) -> bool:
        """Whether any rank gets bytes: every collective but the barrier."""
        return self.output_blocks != "none"

    @property
    def rooted(self) -> bool:
        """Whether only the root brings a buffer, or only the root gets one."""
        return self.rooted_input or self.rooted_output

    @property
    def among_all(self) -> bool:
        """Whether tables of collectives have it by default: every rank takes part, and moves equal blocks."""
        return self.moves_data and not self.to_next and self.basic

    def brings(self, rank: int, root: int) -> bool:
        """Whether a rank brings a buffer in a call with this root."""
        return self.input_blocks != "none" and (rank == root or not self.rooted_input)

    def gets(self, rank: int, root: int, ranks: int) -> bool:
        """Whether a rank gets a buffer in a call of ``ranks`` ranks with this root."""
        if not self.moves_data:
            return False
        if self.to_next:
            return rank == (root + 1) % ranks
        return (rank == root or not self.rooted_output) and not (self.spares_first and rank == 0)

    @property
    def per_rank(self) -> bool:
        """Whether the input or the output has a block for every rank."""
        return "ranks" in (self.input_blocks, self.output_blocks)

    @property
    def per_pair(self) -> bool:
        """Whether every rank has a block for every other."""
        return self.input_blocks == self.output_blocks == "ranks"

    @property
    def replaces(self) -> bool:
        """Whether the result replaces the input where no other array is given for it."""
        return self.input_blocks == self.output_blocks == "one" and not self.to_next

    @property
    def one_buffer(self) -> bool:
        """Whether a rank has one array: the root's is sent, every other rank's is overwritten."""
        return self.replaces and self.rooted_input

    @property
    def shared_result(self) -> bool:
        """Whether every rank ends with the same reduced block, so that each can fold a part of it for all."""
        return self.reduces and self.replaces and not self.rooted_output and self.pieces is None

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that a call may have: "none" where nothing is reduced, and no average of some ranks alone."""
        return ("none",) if not self.reduces else REDOPS if self.pieces is None else _PREFIX_OPS


_PREFIX_OPS = tuple(op for op in REDOPS if op != "avg")


def _prefix(call: Call, rank: int) -> Iterator[Piece]:
    """The fold of all ranks up to this one; without this one where rank 0 gets nothing."""
    last = rank if COLLECTIVES[call.collective].spares_first else rank + 1
    if call.nbytes:
        yield Piece(0, call.nbytes, tuple((source, 0) for source in range(last)))


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("all_gather", "one", "ranks"),
        Collective("broadcast", "one", "one", rooted_input=True),
        Collective("gather", "one", "ranks", rooted_output=True),
        Collective("scatter", "ranks", "one", rooted_input=True),
        Collective("all_reduce", "one", "one", reduces=True),
        Collective("reduce_scatter", "ranks", "one", reduces=True),
        Collective("reduce", "one", "one", reduces=True, rooted_output=True),
        Collective("all_to_all", "ranks", "ranks"),
        Collective("barrier", "none", "none"),
        Collective("send", "one", "one", rooted_input=True, to_next=True),
        Collective("all_gatherv", "one", "ranks", uneven=True),
        Collective("gatherv", "one", "ranks", rooted_output=True, uneven=True),
        Collective("scatterv", "ranks", "one", rooted_input=True, uneven=True),
        Collective("reduce_scatterv", "ranks", "one", reduces=True, uneven=True),
        Collective("all_to_allv", "ranks", "ranks", uneven=True),
        Collective("scan", "one", "one", reduces=True, pieces=_prefix),
        Collective("exscan", "one", "one", reduces=True, pieces=_prefix, spares_first=True),
    )
}


# Collectives that have no zero copy in place, each with the reason.
NO_ZERO_COPY_IN_PLACE = {"all_to_all": "peers still read what the result would replace: pass out"}


def contract_of(collective: str) -> Collective:
    """Look up a collective by name. Raises ArgumentError, which lists the collectives, for an unknown one."""
    if ".py:" in collective or collective.endswith(".py"):
        function = "" if ".py:" in collective else ":FUNCTION"
        raise ArgumentError(f"{collective!r} is not the name of a collective: write --algorithm {collective}{function}")
    if collective not in COLLECTIVES:
        raise ArgumentError(unknown("collective", collective, COLLECTIVES))
    return COLLECTIVES[collective]


# --- blocks of uneven collectives -----------------------------------------------------------------------------------


@lru_cache(256)
def block_sizes(call: Call) -> Ints:
    """Return the bytes of every block of an uneven call: those that rank s sends to rank t at [s, t], shape (N, N).

    Where a rank sends all others the same block, as in all_gatherv, it stands in each column.
    """
    n, collective = call.ranks, call.collective
    square = COLLECTIVES[collective].per_pair
    if call.counts:
        counts = np.array(call.counts, np.int64).reshape((n, n) if square else (n,))
    else:
        item = DTYPES[call.dtype].itemsize
        steps = np.add.outer(np.arange(n), np.arange(n)) + 1 if square else np.arange(n) + 1
        counts = call.nbytes // item * (steps % n if n > 1 else steps) // max(n - 1, 1) * item
    if not square:
        by_source = COLLECTIVES[collective].input_blocks == "one"
        counts = np.broadcast_to(counts[:, None] if by_source else counts, (n, n))
    counts.flags.writeable = False
    return counts


def sent_sizes(call: Call, rank: int) -> Ints:
    """Return the bytes of each block in a rank's input: one, or N by the rank that it is for; shape (1,) or (N,)."""
    row: Ints = block_sizes(call)[rank]
    return row[:1] if COLLECTIVES[call.collective].input_blocks == "one" else row


def received_sizes(call: Call, rank: int) -> Ints:
    """Return the bytes of each block in a rank's output: one, or N by the rank that it is from; shape (1,) or (N,)."""
    column = block_sizes(call)[:, rank]
    return column[:1] if COLLECTIVES[call.collective].output_blocks == "one" else column


def begins(sizes: Ints) -> Ints:
    """Return where blocks of these sizes begin that lie one after another, shape as ``sizes``."""
    return np.cumsum(sizes) - sizes


def check_counts(call: Call) -> None:
    """Check that a call's counts are those of its collective."""
    collective = COLLECTIVES[call.collective]
    if call.counts and not collective.uneven:
        raise ArgumentError(f"{call.collective} has equal blocks, and takes no counts")
    if call.counts:
        n, item = call.ranks, DTYPES[call.dtype].itemsize
        wanted = n * n if collective.per_pair else n
        if len(call.counts) != wanted:
            raise ArgumentError(f"{call.collective} of {n} ranks takes {wanted} counts, not {len(call.counts)}")
        if any(count < 0 or count % item or count > call.nbytes for count in call.counts):
            raise ArgumentError(
                f"{call.collective}: counts are whole numbers of {call.dtype} elements, up to the largest block's"
            )
    if call.in_place and collective.uneven and collective.per_pair:
        sizes = block_sizes(call)
        if not np.array_equal(sizes, sizes.T):
            raise ArgumentError(
                f"{call.collective} in place: each rank sends a peer as much as it gets from it; pass out"
            )


def _uneven_buffers(call: Call, rank: int) -> tuple[Buffer, Buffer]:
    collective = COLLECTIVES[call.collective]
    source = Buffer("input", int(sent_sizes(call, rank).sum()) if collective.brings(rank, call.root) else 0)
    target = Buffer(
        "output", int(received_sizes(call, rank).sum()) if collective.gets(rank, call.root, call.ranks) else 0
    )
    if not call.in_place or not source.nbytes or not target.nbytes:
        return source, target
    if collective.input_blocks == "one":
        offset = int(received_sizes(call, rank)[:rank].sum())
        return Buffer("input", source.nbytes, inside="output", at=offset), target
    if collective.output_blocks == "one":
        offset = int(sent_sizes(call, rank)[:rank].sum())
        return source, Buffer("output", target.nbytes, inside="input", at=offset)
    return Buffer("input", source.nbytes, inside="output", at=0), target


def _uneven_pieces(call: Call, rank: int) -> Iterator[Piece]:
    """Block k of the output is what rank k has for this rank: the one block it has, or the one that is meant for it."""
    collective, sizes = COLLECTIVES[call.collective], block_sizes(call)
    everyone = range(call.ranks)
    starts = [0 if collective.input_blocks == "one" else int(sizes[source, :rank].sum()) for source in everyone]
    own = int(sizes[call.root if collective.rooted_input else 0, rank])
    divisor = call.ranks if call.redop == "avg" else 1
    if collective.reduces:
        pieces = [Piece(0, own, tuple(zip(everyone, starts, strict=True)), divisor)]
    elif collective.rooted_input:
        pieces = [Piece(0, own, ((call.root, starts[call.root]),))]
    else:
        at = begins(sizes[:, rank]).tolist()
        pieces = [Piece(at[s], int(sizes[s, rank]), ((s, starts[s]),)) for s in everyone]
    yield from (piece for piece in pieces if piece.nbytes)


def buffers(call: Call, rank: int) -> tuple[Buffer, Buffer]:
    """Describe a rank's input and output, empty where only the root has one, and in place which lies in the other."""
    collective = COLLECTIVES[call.collective]
    if collective.uneven:
        return _uneven_buffers(call, rank)
    blocks = {"none": 0, "one": 1, "ranks": call.ranks}
    n_in = blocks[collective.input_blocks] if collective.brings(rank, call.root) else 0
    n_out = blocks[collective.output_blocks] if collective.gets(rank, call.root, call.ranks) else 0
    source, target = Buffer("input", n_in * call.nbytes), Buffer("output", n_out * call.nbytes)
    if not call.in_place or not n_in or not n_out:
        return source, target
    if n_in < n_out:
        return Buffer("input", source.nbytes, inside="output", at=rank * call.nbytes), target
    if n_out < n_in:
        return source, Buffer("output", target.nbytes, inside="input", at=rank * call.nbytes)
    return Buffer("input", source.nbytes, inside="output", at=0), target


def check_buffers(plan: Plan) -> None:
    """Check that the first two buffers of every rank are its call's input and output."""
    if plan.call.gemm is not None or plan.call.collective not in COLLECTIVES:
        return
    for part in plan.each_part():
        shown, right = part.buffers[:2], buffers(plan.call, part.rank)
        if shown != right:
            raise ArgumentError(f"rank {part.rank} has {_named(shown)}; its call takes {_named(right)}")


def _named(names: Sequence[Buffer]) -> str:
    texts = (f"{b.name} of {b.nbytes} B" + (f" at {b.at} of {b.inside}" if b.inside else "") for b in names)
    return ", ".join(texts) or "no buffers"


class Piece(NamedTuple):
    """Output bytes [at, at + nbytes) are, byte by byte, the fold of these contributions from the left.

    Where the call's ``fold_order`` is "uniform", any order or tree is right that all holders of the piece share.
    """

    at: int  # where the piece begins in the output, in bytes
    nbytes: int
    # what is folded, in order: each a rank and an offset in that rank's input
    contributions: tuple[tuple[int, int], ...]
    divisor: int = 1  # what the fold is divided by at the end; 1: nothing
    apart: int = 1  # groups of this many consecutive contributions are each folded first, and then their results


def postcondition(call: Call, rank: int) -> Iterator[Piece]:
    """State what a rank's output must be, in pieces; none where the rank gets no output.

    Reductions fold in rank order, so that results are bitwise reproducible, unless the call declares another order. On
    clusters each cluster's ranks are folded in rank order, and then the clusters in their order: another rounding of
    floats than without, but the same on every rank and in every run.
    """
    collective, m, everyone = COLLECTIVES[call.collective], call.nbytes, range(call.ranks)
    if buffers(call, rank)[1].nbytes == 0:
        return
    if collective.pieces is not None:
        yield from collective.pieces(call, rank)
        return
    if collective.uneven:
        yield from _uneven_pieces(call, rank)
        return
    divisor = call.ranks if call.redop == "avg" else 1
    own_block = rank * m if collective.input_blocks == "ranks" else 0
    if collective.reduces:
        yield Piece(0, m, tuple((source, own_block) for source in everyone), divisor, call.cluster)
    elif collective.rooted_input:
        yield Piece(0, m, ((call.root, own_block),))
    else:
        for source in everyone:
            yield Piece(source * m, m, ((source, own_block),))
