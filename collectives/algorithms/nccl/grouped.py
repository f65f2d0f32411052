"""Collectives that NCCL has as sends and receives in one group (nccl-tests): all are under way at once.

Steps: 1. Sent: gather m by every rank but the root, scatter (N - 1) m by the root, all_to_all (N - 1) m by every rank.
A rank begins with the next one, so that not all turn to the same peer at once.
"""

from collectives.algorithms.nccl.words import Sends


def _lane(b: Sends, sender: int, to: int) -> int:
    return (sender - to) % b.ranks - 1


def grouped_gather(b: Sends) -> None:
    """Send every rank's block to the root, each in a lane of its own."""
    if b.is_root:
        b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.slices(b.nbytes, lanes=b.ranks - 1, bells=1):
        for chunk in chunks:
            if not b.is_root:
                b.send(chunk, b.input(chunk.offset), b.root, lane=_lane(b, b.rank, b.root), bell=0)
                continue
            for peer in b.peers:
                b.receive(chunk, b.output(peer * b.nbytes + chunk.offset), peer, lane=_lane(b, peer, b.rank), bell=0)


def grouped_scatter(b: Sends) -> None:
    """Send the root's blocks to all other ranks."""
    if b.is_root:
        b.copy(b.output(), b.input(b.root * b.nbytes), b.nbytes)
    for chunks in b.slices(b.nbytes, lanes=1):
        for chunk in chunks:
            if not b.is_root:
                b.receive(chunk, b.output(chunk.offset), b.root)
                continue
            for peer in b.peers:
                b.send(chunk, b.input(peer * b.nbytes + chunk.offset), peer)


def grouped_all_to_all(b: Sends) -> None:
    """Send a block from every rank to every other, each in a lane of its own."""
    own = b.rank * b.nbytes
    b.copy(b.output(own), b.input(own), b.nbytes)
    for chunks in b.slices(b.nbytes, lanes=b.ranks - 1, bells=1):
        sent = {}
        for chunk in chunks:
            for peer in b.peers:
                offset, lane = peer * b.nbytes + chunk.offset, _lane(b, b.rank, peer)
                sent[chunk.number, peer] = b.send(chunk, b.input(offset), peer, lane=lane, bell=0, overwritten=True)
        for chunk in chunks:
            for step in range(1, b.ranks):
                peer = (b.rank - step) % b.ranks
                offset, lane = peer * b.nbytes + chunk.offset, _lane(b, peer, b.rank)
                b.receive(chunk, b.output(offset), peer, lane=lane, bell=0, after=sent[chunk.number, peer])
