"""NCCL's tree for all_reduce: up a binary tree and down again, slice by slice.

Steps: about 2 log2(N). Sent per rank: about 2 m, half of it up and half of it down. There are two trees, each for half
of the vector, the second one of the ranks counted from the other end, so that few are inner nodes twice and all links
are busy (Sanders, Speck, Traeff, ParCo 2009). What goes down does not wait for what goes up.
"""

from collections.abc import Callable

from collectives.algorithms.nccl.words import Sends
from collectives.builder import Chunk
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.rounding import round_up

LANES = 3  # of a tree: what comes from the first child, from the second, and from the parent


def tree_all_reduce(b: Sends) -> None:
    """Fold each half of the vector up a tree of its own to its root, and pass the result down again."""
    half = round_up(-(-b.nbytes // 2), LINE_BYTES)
    for chunks in b.slices(half, lanes=2 * LANES):
        for chunk in chunks:
            _slice(b, chunk, tree=0, rank=b.rank, at=chunk.offset, of=lambda rank: rank)
            mirrored = b.ranks - 1 - b.rank
            _slice(b, chunk, tree=1, rank=mirrored, at=half + chunk.offset, of=lambda rank: b.ranks - 1 - rank)


def _slice(b: Sends, chunk: Chunk, *, tree: int, rank: int, at: int, of: Callable[[int], int]) -> None:
    """One slice in one tree, in which this is ``rank``; ``of`` gives the rank that another one of it really is."""
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < b.ranks]
    first, folded, came = tree * LANES, b.input(at), None
    chunk = chunk._replace(nbytes=min(chunk.nbytes, max(b.nbytes - at, 0)))
    for lane, child in enumerate(children):
        last = rank == 0 and child == children[-1]
        result = b.output(at) if rank == 0 else b.partial(chunk, tree)
        came = b.receive_reduce(chunk, result, folded, of(child), lane=first + lane, last=last)
        folded = result
    if rank > 0:
        parent = of((rank - 1) // 2)
        b.send(chunk, folded, parent, lane=first + (rank - 1) % 2, after=came)
        came = b.receive(chunk, b.output(at), parent, lane=first + 2, down=True)
    for child in children:
        b.send(chunk, b.output(at), of(child), lane=first + 2, after=came, down=True)
