"""NCCL's rings and chains (its src/device/*.h): rank r sends to rank r + 1 only.

| | steps | sent per rank | source |
|---|---|---|---|
| all_gather, reduce_scatter | N - 1 | (N - 1) m | Thakur, Rabenseifner, Gropp, IJHPCA 2005 |
| all_reduce | 2 (N - 1) | 2 m (N - 1) / N | Patarasuk, Yuan, JPDC 2009 |
| broadcast, reduce | N - 1, all under way at once | m | NCCL |

where m is a block. Folded around the ring: slice k begins with the contribution of the rank after k and ends with k's.
"""

from collectives.algorithms.nccl.words import Sends
from collectives.builder import Chunk
from cxlemu.memory.protocol import LINE_BYTES

IN_A_CHUNK = 2  # slices: a smaller block is cut into two as well


def ring_all_gather(b: Sends) -> None:
    """Pass every rank's block around the ring."""
    right, left = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.slices(b.nbytes, lanes=b.ranks - 1, at_least=IN_A_CHUNK):
        for chunk in chunks:
            b.send(chunk, b.input(chunk.offset), right)
        for step in range(b.ranks - 1):
            offset = (b.rank - 1 - step) % b.ranks * b.nbytes
            for chunk in chunks:
                passes = step + 1 < b.ranks - 1
                came = b.receive(chunk, b.output(offset + chunk.offset), left, lane=step)
                if passes:
                    b.send(chunk, b.output(offset + chunk.offset), right, lane=step + 1, after=came)


def ring_reduce_scatter(b: Sends) -> None:
    """Fold every block around the ring, from the rank after its owner to the owner."""
    right, left = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks
    for chunks in b.slices(b.nbytes, lanes=b.ranks - 1, at_least=IN_A_CHUNK):
        for chunk in chunks:
            b.send(chunk, b.input(left * b.nbytes + chunk.offset), right)
        for step in range(b.ranks - 1):
            own = b.input((b.rank - 2 - step) % b.ranks * b.nbytes)
            last = step == b.ranks - 2
            for chunk in chunks:
                result = b.output(chunk.offset) if last else b.partial(chunk, step)
                came = b.receive_reduce(chunk, result, own.at(chunk.offset), left, lane=step, last=last)
                if not last:
                    b.send(chunk, result, right, lane=step + 1, after=came)


def ring_all_reduce(b: Sends) -> None:
    """Reduce-scatter and then all-gather slices of ceil(m / N) bytes, rounded up to whole lines."""
    right, left, steps = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks, b.ranks - 1
    stride = -(-b.nbytes // (b.ranks * LINE_BYTES)) * LINE_BYTES

    def of(chunk: Chunk, block: int) -> tuple[Chunk, int]:
        """A chunk of this block, and where it lies: the last blocks may be short or empty."""
        end = min(stride * (block + 1), b.nbytes)
        offset = stride * block + chunk.offset
        return chunk._replace(nbytes=min(max(end - offset, 0), chunk.nbytes)), offset

    for chunks in b.slices(stride, lanes=2 * steps, at_least=IN_A_CHUNK):
        for chunk in chunks:
            mine, offset = of(chunk, left)
            b.send(mine, b.input(offset), right)
        for step in range(2 * steps):
            block, passes = (b.rank - 2 - step) % b.ranks, step + 1 < 2 * steps
            for chunk in chunks:
                mine, offset = of(chunk, block)
                if step < steps:
                    result = b.output(offset) if step == steps - 1 else b.partial(chunk, step)
                    last = step == steps - 1
                    came = b.receive_reduce(mine, result, b.input(offset), left, lane=step, last=last)
                else:
                    result = b.output(offset)
                    came = b.receive(mine, result, left, lane=step)
                if passes:
                    b.send(mine, result, right, lane=step + 1, after=came)


def chain_broadcast(b: Sends) -> None:
    """Pass the vector from the root around the ring to the rank before it."""
    right, left = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks
    if b.is_root:
        b.copy(b.output(), b.input(), b.nbytes)
    for chunks in b.slices(b.nbytes, lanes=1):
        for chunk in chunks:
            if b.is_root:
                b.send(chunk, b.input(chunk.offset), right)
                continue
            passes = right != b.root
            came = b.receive(chunk, b.output(chunk.offset), left)
            if passes:
                b.send(chunk, b.output(chunk.offset), right, after=came)


def chain_reduce(b: Sends) -> None:
    """Fold vectors from the rank after the root around the ring to the root."""
    right, left = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks
    for chunks in b.slices(b.nbytes, lanes=1):
        for chunk in chunks:
            own = b.input(chunk.offset)
            if left == b.root:
                b.send(chunk, own, right)
            elif b.is_root:
                b.receive_reduce(chunk, b.output(chunk.offset), own, left, last=True)
            else:
                folded = b.partial(chunk)
                b.send(chunk, folded, right, after=b.receive_reduce(chunk, folded, own, left))
