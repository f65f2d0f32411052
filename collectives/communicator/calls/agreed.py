"""Ranks agree on the blocks of an uneven call, of which each rank often knows only its own, as in MPI.

A plan needs the sizes of all ranks' blocks. So ranks tell each other theirs before the call, in one small all_gather of
bytes, and every rank checks that each block is as large on the rank that sends it as on the rank that takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from collectives.builder.recipes import Recipe
from collectives.communicator.arrays import Array, as_bytes
from collectives.communicator.calls.arguments import Staging
from collectives.communicator.calls.operations import Operation, Staged
from collectives.communicator.calls.planner import CallArguments
from collectives.communicator.calls.uneven_blocks import UNKNOWN, Blocks, BlocksGiven, numbers_of
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError
from cxlemu.unshared import Unshared


class UnevenArguments(NamedTuple):
    collective: str
    send: BlocksGiven  # what this rank sends
    receive: BlocksGiven  # what this rank receives
    op: str  # the reduction; "none" where there is none
    root: int  # the root's rank, 0 where there is none
    variant: str | Recipe  # "auto", a variant's name, or a Recipe
    known: bool = False  # all ranks have passed all counts
    # how long each of its calls waits for peers, in seconds; None: the communicator's deadline
    timeout_s: float | None = None
    verb: str = ""  # what the user called, where that is not the collective

    @property
    def name(self) -> str:
        return self.verb or self.collective


def told(asked: UnevenArguments, rank: int, size: int, send: Blocks, receive: Blocks) -> Array:
    """Return bytes to and from each rank, or UNKNOWN; whether they have several dtypes; and bytes to and from each rank
    where no rank says, as in mpi4py: even blocks. i64 of shape (5, size).
    """
    mine = np.full((5, size), UNKNOWN, np.int64)
    mine[2] = send.several or receive.several
    contract = COLLECTIVES[asked.collective]
    if contract.per_pair:
        mine[3], mine[4] = send.even_nbytes, receive.even_nbytes
    if contract.brings(rank, asked.root):
        _note(mine[0], send.nbytes)  # one block, or one for each rank
    if contract.rooted_input:  # all take theirs from the root
        if receive.nbytes is not None:
            mine[1, asked.root] = receive.nbytes[0]
    elif contract.gets(rank, asked.root, size):
        _note(mine[1], receive.nbytes)  # one block, or one from each rank
    return mine


def _note(row: Array, nbytes: list[int] | None) -> None:
    if nbytes is not None:
        row[:] = nbytes


def agreed(asked: UnevenArguments, everyone: Array) -> tuple[int, ...]:
    """Find the bytes of a call's blocks, as `Call.counts` has them, from all ranks' words, of shape (size, 5, size)."""
    sends, takes = everyone[:, 0], everyone[:, 1].T  # [source, target]
    nobody = (sends == UNKNOWN) & (takes == UNKNOWN)
    sends, takes = np.where(nobody, everyone[:, 3], sends), np.where(nobody, everyone[:, 4].T, takes)
    size = len(everyone)
    differ = (sends != takes) & (sends != UNKNOWN) & (takes != UNKNOWN)
    both = np.where(sends == UNKNOWN, takes, sends)
    name, root = asked.name, asked.root
    contract = COLLECTIVES[asked.collective]
    needed = np.ones((size, size), bool)
    if contract.rooted_output:
        needed &= np.arange(size)[None, :] == root
    if contract.rooted_input:
        needed &= np.arange(size)[:, None] == root
    for source, target in np.argwhere(differ & needed)[:1].tolist():
        raise ArgumentError(
            f"{name}: rank {source} sends {sends[source, target]} bytes to rank {target}, which expects "
            f"{takes[source, target]}"
        )
    if contract.input_blocks == "one":
        column = both[:, root] if contract.rooted_output else both.max(axis=1)
        both = np.broadcast_to(column[:, None], (size, size))
    elif contract.reduces:
        most = both.max(axis=0)
        for source, target in np.argwhere((both != UNKNOWN) & (both != most))[:1].tolist():
            raise ArgumentError(
                f"{name}: the block of rank {target} has {both[source, target]} bytes on rank {source}, and "
                f"{most[target]} on another: all ranks pass blocks of equal sizes"
            )
        both = np.broadcast_to(most, (size, size))
    for source, target in np.argwhere((both == UNKNOWN) & needed)[:1].tolist():
        raise ArgumentError(
            f"{name}: the size of the block from rank {source} to rank {target} is unknown: pass counts, or arrays of "
            "that size"
        )
    if contract.per_pair:
        return tuple(both.reshape(-1).tolist())
    return tuple((both[:, root] if contract.input_blocks == "one" else both[root]).tolist())


@dataclass
class AgreedCall(Unshared):
    """An uneven call as an operation: ranks agree on its blocks when it first runs, or when it is prepared."""

    asked: UnevenArguments
    rank: int
    size: int
    prepare: Callable[[CallArguments], Operation]
    turn: Callable[[Operation], Any]

    def __repr__(self) -> str:
        return f"<Operation [{self.asked.name}]>"

    def __call__(self) -> Any:
        return self.turn(self)

    def run(self) -> Any:
        """Agree on the blocks, and run the call. Raises what either raises."""
        return self.prepared(lambda operation: operation.run()).run()

    def prepared(self, run: Callable[[Operation], object]) -> Staged:
        """Agree on the blocks, and return the operation on them."""
        asked = self.asked
        moved = asked.op == "none"
        send = Blocks(asked.send, moved=moved)
        receive = Blocks(asked.receive, send.dtype, moved=moved)
        self._check_out(send, receive)
        if asked.known:
            return self._operation(self._known(send, receive), send, receive, several=False)
        everyone = self._everyone(told(asked, self.rank, self.size, send, receive), run)
        return self._operation(agreed(asked, everyone), send, receive, several=bool(everyone[:, 2].any()))

    def _check_out(self, send: Blocks, receive: Blocks) -> None:
        """Check that this rank has an array for what it gets, or can make one, before it tells anyone anything."""
        asked, contract = self.asked, COLLECTIVES[self.asked.collective]
        if receive.dtype is not None or not (contract.per_pair or contract.gets(self.rank, asked.root, self.size)):
            return
        if send.several:
            raise ArgumentError(f"{asked.name}: x has several dtypes: pass out, a list with each rank's array")
        if send.dtype is None:
            raise ArgumentError(f"{asked.name}: rank {self.rank} needs out, an array for its block")

    def _known(self, send: Blocks, receive: Blocks) -> tuple[int, ...]:
        side = self.asked.send if self.asked.receive.counts is None else self.asked.receive
        dtype = send.dtype or receive.dtype
        assert dtype is not None and side.counts is not None
        return tuple(count * dtype.itemsize for count in numbers_of(side.counts, side, "counts"))

    def _everyone(self, mine: Array, run: Callable[[Operation], object]) -> Array:
        everyone = np.empty((self.size, *mine.shape), np.int64)
        run(self.prepare(CallArguments("all_gather", mine, everyone, "none", 0, "auto", verb=self.asked.name)))
        return everyone

    def _operation(self, counts: tuple[int, ...], send: Blocks, receive: Blocks, *, several: bool) -> Staged:
        asked, staging, result = self.asked, Staging(), self.asked.receive.given
        sent, got = self._of_this_rank(counts)
        x: Any = None if sent is None or send.dtype is None else send.packed(sent, staging, result=False)
        out: Any = None
        if got is not None and receive.dtype is not None:
            out = receive.packed(got, staging, result=True)
        elif got is not None:
            out = result = send.new_like(sum(got))
        else:
            result = None
        if several:  # on any rank: all move bytes
            x = None if x is None else as_bytes(x, "x")
            out = None if out is None else as_bytes(out, "out", writeable=True)
        arguments = CallArguments(asked.collective, x, out, asked.op, asked.root, asked.variant, counts, asked.verb)
        inner = self.prepare(arguments)
        return Staged(inner, staging, result, self.turn)

    def _of_this_rank(self, counts: tuple[int, ...]) -> tuple[list[int] | None, list[int] | None]:
        """The bytes of this rank's blocks: what it sends and what it gets, None where it has no part in that."""
        rank, root, contract = self.rank, self.asked.root, COLLECTIVES[self.asked.collective]
        if contract.per_pair:
            return list(counts[rank * self.size :][: self.size]), list(counts[rank :: self.size])
        blocks = {"one": [counts[rank]], "ranks": list(counts)}
        sent = blocks[contract.input_blocks] if contract.brings(rank, root) else None
        return sent, blocks[contract.output_blocks] if contract.gets(rank, root, self.size) else None
