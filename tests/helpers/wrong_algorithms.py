"""A user's file: algorithms that are wrong for some calls only, or decline some, for `cxlemu prove --algorithm`."""

from collections.abc import Callable

from collectives.algorithms.hierarchical import PAGES
from collectives.algorithms.hierarchical.levels import Levels
from collectives.builder import Builder, Chunk
from collectives.builder.recipes import algorithm, recipes_of
from cxlemu.errors import ArgumentError
from cxlemu.plan import NOTHING, Op
from cxlemu.rounding import round_up


def folded(b: Builder, at: int, nbytes: int, *, stuck: bool = False) -> None:
    """``stuck``: each chunk of its own is the first one."""
    for chunks in b.rounds(nbytes, spread="ranges"):
        sent = [b.publish(chunk, b.input(at + chunk.offset), overwritten=True) for chunk in chunks]
        for chunk, event in zip(chunks, sent, strict=True):
            mine = b.input(at if stuck else at + chunk.offset)
            b.fold(b.output(at + chunk.offset), chunk, mine, after=event)


@algorithm("all_reduce")
def never_divides(b: Builder) -> None:
    folded(b, 0, b.nbytes)
    for name, stream in b.written.streams.items():
        b.written.streams[name] = [i._replace(flags=0, arg=0) if i.op == Op.REDUCE else i for i in stream]


@algorithm("all_reduce")
def splits_f64(b: Builder) -> None:
    """In two halves of whole f32."""
    half = min(round_up(b.nbytes // 2, 4), b.nbytes)
    folded(b, 0, half)
    folded(b, half, b.nbytes - half)


@algorithm("all_reduce")
def only_pairs(b: Builder) -> None:
    """Of elements of any dtype: a last odd one is left out."""
    folded(b, 0, b.nbytes // 16 * 16)


@algorithm("all_reduce")
def pairs_of_folded_bytes(b: Builder) -> None:
    """A last odd byte is left out."""
    folded(b, 0, b.nbytes // 2 * 2)


def offset_of(chunk: Chunk) -> int:
    return chunk.offset


def gathered(b: Builder, nbytes: int, peers: list[int], at: Callable[[Chunk], int] = offset_of) -> None:
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(at(chunk)))
        for peer in peers:
            for chunk in chunks:
                b.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, peer)


@algorithm("all_reduce")
def wrong_in_place(b: Builder) -> None:
    """The result replaces what is still being published."""
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
            b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset))


@algorithm("all_gather")
def up_to_five(b: Builder) -> None:
    gathered(b, b.nbytes, b.peers[:4])


@algorithm("broadcast")
def root_zero(b: Builder) -> None:
    if b.rank == 0:
        b.copy(b.output(), b.input(), b.nbytes)
    in_place_alone(b)


@algorithm("broadcast")
def in_place_alone(b: Builder) -> None:
    """Out of place, rank 0 has an output of its own, which stays empty."""
    for chunks in b.rounds(b.nbytes, writers=[0], spread="cards"):
        for chunk in chunks:
            if b.rank == 0:
                b.publish(chunk, b.input(chunk.offset))
            else:
                b.retrieve(b.output(chunk.offset), chunk, 0)


@algorithm("broadcast")
def echo(b: Builder) -> None:
    """The last rank publishes what it retrieved, and no rank reads it."""
    last = (b.root - 1) % b.ranks
    if b.is_root:
        b.copy(b.output(), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, writers=sorted({b.root, last}), spread="cards"):
        for chunk in chunks:
            if b.is_root:
                b.publish(chunk, b.input(chunk.offset))
                continue
            came = b.retrieve(b.output(chunk.offset), chunk, b.root)
            if b.rank == last:
                b.publish(chunk, b.output(chunk.offset), after=came)


@algorithm("all_gather")
def first_round(b: Builder) -> None:
    """Every round goes where the first one went."""
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
            for peer in b.peers:
                b.retrieve(b.output(peer * b.nbytes + chunk.offset - chunks[0].offset), chunk, peer)


@algorithm("all_gather")
def until_it_wraps(b: Builder) -> None:
    """From the second lap of the ring on a rank retrieves its first peer's block twice."""
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
            for peer in b.peers:
                source = b.peers[0] if chunk.seq >= b.layout.slots else peer
                b.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, source)


@algorithm("all_gather")
def no_bytes(b: Builder) -> None:
    shares = 4096 // b.nbytes
    assert shares >= 0
    gathered(b, b.nbytes, b.peers)


@algorithm("all_gather")
def powers_of_two(b: Builder) -> None:
    if b.ranks & (b.ranks - 1):
        b.decline(f"needs a power of two ranks, not {b.ranks}")
    gathered(b, b.nbytes, b.peers)


@algorithm("all_gather")
def equal_shares(b: Builder) -> None:
    if b.nbytes % (8 * b.ranks):
        b.decline(f"needs blocks of {b.ranks} equal shares, not of {b.nbytes} bytes")
    gathered(b, b.nbytes, b.peers)


@algorithm("broadcast")
def declines_roots(b: Builder) -> None:
    if b.root:
        b.decline(f"broadcasts from rank 0, not from {b.root}")
    root_zero(b)


@algorithm("all_gather")
def declines(b: Builder) -> None:
    b.decline("takes nothing at all")


@algorithm("all_gather")
def raises(b: Builder) -> None:
    raise ArgumentError("takes nothing at all")


def rotated(b: Builder) -> None:
    """Every rank folds from its own contribution on: other bits on each."""
    order = [b.rank, *b.peers]
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            event = b.publish(chunk, b.input(chunk.offset), overwritten=True)
            b._order(event)
            b._combine(
                b.output(chunk.offset),
                NOTHING,
                chunk.nbytes,
                [b.input(chunk.offset), *(b.carrier.area(chunk, peer, 0) for peer in b.peers)],
                arrive=lambda number, chunk=chunk: b.carrier.await_chunk(chunk, order[number], 0),
                divide=b.call.redop == "avg",
                stream="retrieve",
                accumulator=b._scratch(chunk.nbytes),
            )


@algorithm("all_reduce")
def chain(b: Builder) -> None:
    rotated(b)


@algorithm("all_reduce")
def ring(b: Builder) -> None:
    rotated(b)


@algorithm("all_reduce")
def tree(b: Builder) -> None:
    rotated(b)


@algorithm("all_to_all", variants=("zero_copy",))
def exchanges_lent(b: Builder) -> None:
    """Right, but for no call in place."""
    b.copy(b.output(b.rank * b.nbytes), b.input(b.rank * b.nbytes), b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges"):
        for chunk in chunks:
            for peer in b.peers:
                b.publish(chunk, b.input(peer * b.nbytes + chunk.offset), block=peer)
            for peer in b.peers:
                b.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, peer, block=b.rank)


@algorithm("all_reduce", builder=Levels)
def on_two_levels(b: Builder) -> None:
    """Right: as the shipped one."""
    [recipe] = [r for function in PAGES for r in recipes_of(function) if r.collective == "all_reduce"]
    recipe.algorithm(b)


# --- what only one row or column of the matrix shows --------------------------------------------------------------


@algorithm("all_gather")
def pairs_of_bytes(b: Builder) -> None:
    gathered(b, b.nbytes // 2 * 2, b.peers)


@algorithm("all_reduce")
def wrong_min(b: Builder) -> None:
    folded(b, 0, b.nbytes, stuck=b.call.redop == "min")


@algorithm("all_reduce")
def wrong_integers(b: Builder) -> None:
    folded(b, 0, b.nbytes, stuck=b.call.dtype.startswith(("i", "u")))


@algorithm("all_gather")
def up_to_ten(b: Builder) -> None:
    gathered(b, b.nbytes, b.peers[:9])


@algorithm("all_gather")
def last_of_three(b: Builder) -> None:
    """The last round is the first one again if it is the third."""
    gathered(b, b.nbytes, b.peers, lambda c: 0 if c.seq == 2 and c.offset + c.nbytes == b.nbytes else c.offset)


@algorithm("all_gather")
def no_grids(b: Builder) -> None:
    """Right where there are 2 ^ k ranks, or an odd number of them."""
    rows = b.ranks & -b.ranks
    gathered(b, b.nbytes, b.peers[: -1 if 1 < rows < b.ranks else None])


_built: set[object] = set()


@algorithm("all_gather")
def another_each_time(b: Builder) -> None:
    """Right, but built in another order from the second time on."""
    first = (b.call, b.rank) not in _built
    _built.add((b.call, b.rank))
    gathered(b, b.nbytes, b.peers if first else b.peers[::-1])


@algorithm("all_gather")
def never_invalidates(b: Builder) -> None:
    """Right for ranks of one host."""
    gathered(b, b.nbytes, b.peers)
    for name, stream in b.written.streams.items():
        b.written.streams[name] = [i for i in stream if i.op != Op.INVALIDATE]


# --- what misuses the builder -------------------------------------------------------------------------------------


@algorithm("all_gather")
def right_for_no_bytes(b: Builder) -> None:
    late = [chunk for chunks in b.rounds(b.nbytes, spread="ranges") for chunk in chunks]
    for chunk in late:
        b.publish(chunk, b.input(chunk.offset))  # the line that is named


@algorithm("all_gather")
def blocks_of_four(b: Builder) -> None:
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
            for peer in b.peers:
                b.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, peer, block=peer // 4)
