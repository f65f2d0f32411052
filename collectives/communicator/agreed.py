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
from collectives.communicator.arguments import Staged, Staging
from collectives.communicator.arrays import Array, as_bytes
from collectives.communicator.operations import Operation
from collectives.communicator.planner import CallArguments, check_root
from collectives.communicator.uneven_blocks import Blocks, BlocksGiven, numbers_of
from cxlemu.errors import ArgumentError

UNKNOWN = -1


class UnevenArguments(NamedTuple):
    """What an uneven verb asks for.

    Attributes:
        collective: The collective's name.
        send: What this rank sends.
        receive: What it takes.
        op: The reduction; "none" where there is none.
        root: The root's rank, 0 where there is none.
        variant: "auto", a variant's name, or a Recipe.
        known: All ranks have passed all counts.
        timeout_s: How long each of its calls waits for peers, in seconds; None: the communicator's deadline.
    """

    collective: str
    send: BlocksGiven
    receive: BlocksGiven
    op: str
    root: int
    variant: str | Recipe
    known: bool = False
    timeout_s: float | None = None


def told(asked: UnevenArguments, rank: int, size: int, send: Blocks, receive: Blocks) -> Array:
    """Say what this rank knows of the blocks.

    Returns:
        Bytes to each and from each rank, or UNKNOWN, and whether these have several dtypes; shape (3, size), i64.
    """
    mine = np.full((3, size), UNKNOWN, np.int64)
    mine[2] = send.several or receive.several
    if asked.collective in ("all_gatherv", "gatherv"):
        _note(mine[0], send.nbytes)  # one block, for the rank that takes it
        if asked.collective == "all_gatherv" or rank == asked.root:
            _note(mine[1], receive.nbytes)
    elif asked.collective == "scatterv":
        if rank == asked.root:
            _note(mine[0], send.nbytes)
        if receive.nbytes is not None:
            mine[1, asked.root] = receive.nbytes[0]
    else:
        _note(mine[0], send.nbytes)
        _note(mine[1], receive.nbytes)  # one block, or one from each rank
    return mine


def _note(row: Array, nbytes: list[int] | None) -> None:
    if nbytes is not None:
        row[:] = nbytes


def agreed(asked: UnevenArguments, everyone: Array) -> tuple[int, ...]:
    """Find the counts of a call from what all ranks have told.

    Args:
        asked: What this rank asks for.
        everyone: What each rank has told, shape (size, 3, size).

    Returns:
        Bytes of the blocks, as `Call.counts` has them.

    Raises:
        ArgumentError: What one rank sends another does not take, or a block's size is known to neither; all ranks raise
            the same.
    """
    sends, takes = everyone[:, 0], everyone[:, 1].T  # [source, target]
    size = len(everyone)
    differ = (sends != takes) & (sends != UNKNOWN) & (takes != UNKNOWN)
    both = np.where(sends == UNKNOWN, takes, sends)
    name, root = asked.collective, asked.root
    if name == "all_to_allv":
        needed = np.ones((size, size), bool)
    elif name == "gatherv":
        needed = np.arange(size)[None, :] == root
    elif name == "scatterv":
        needed = np.arange(size)[:, None] == root
    else:
        needed = np.ones((size, size), bool)
    needed = np.broadcast_to(needed, (size, size))
    for source, target in np.argwhere(differ & needed)[:1].tolist():
        raise ArgumentError(
            f"{name}: rank {source} sends {sends[source, target]} bytes to rank {target}, which takes "
            f"{takes[source, target]}"
        )
    if name in ("all_gatherv", "gatherv"):
        column = both[:, root] if name == "gatherv" else both.max(axis=1)
        both = np.broadcast_to(column[:, None], (size, size))
    elif name == "reduce_scatterv":
        most = both.max(axis=0)
        for source, target in np.argwhere((both != UNKNOWN) & (both != most))[:1].tolist():
            raise ArgumentError(
                f"{name}: the block of rank {target} has {both[source, target]} bytes on rank {source}, and "
                f"{most[target]} on another: all ranks pass blocks of equal sizes"
            )
        both = np.broadcast_to(most, (size, size))
    for source, target in np.argwhere((both == UNKNOWN) & needed)[:1].tolist():
        raise ArgumentError(
            f"{name}: no rank says how large the block from rank {source} to rank {target} is: pass counts, or arrays "
            f"that say so"
        )
    if name == "all_to_allv":
        return tuple(both.reshape(-1).tolist())
    if name in ("all_gatherv", "gatherv"):
        return tuple(both[:, root].tolist())
    return tuple(both[root].tolist())


@dataclass
class AgreedCall:
    """An uneven call as an operation: ranks agree on its blocks when it first runs, or when it is prepared.

    Args:
        asked: What the verb asks for.
        rank: This rank's number in the communicator.
        size: The communicator's size.
        prepare: Makes an operation from a verb's arguments.
        turn: Runs an operation when this rank's earlier calls have ended.
    """

    asked: UnevenArguments
    rank: int
    size: int
    prepare: Callable[[CallArguments], Operation]
    turn: Callable[[Operation], Any]

    def __call__(self) -> Any:
        return self.turn(self)

    def run(self) -> Any:
        """Agree on the blocks, and run the call. Raises what either raises."""
        return self.prepared(lambda operation: operation.run()).run()

    def prepared(self, run: Callable[[Operation], object]) -> Operation:
        """Agree on the blocks, and return the operation on them.

        Args:
            run: Runs the small call in which ranks agree.

        Raises:
            ArgumentError: The arguments do not fit each other here, or among ranks.
            RunError: As for collectives.
        """
        asked = self.asked
        check_root(asked.collective, asked.root, self.size)
        moved = asked.op == "none"
        send = Blocks(asked.send, moved=moved)
        receive = Blocks(asked.receive, send.dtype, moved=moved)
        if asked.known:
            return self._operation(self._known(send, receive), send, receive, several=False)
        everyone = self._everyone(told(asked, self.rank, self.size, send, receive), run)
        return self._operation(agreed(asked, everyone), send, receive, several=bool(everyone[:, 2].any()))

    def _known(self, send: Blocks, receive: Blocks) -> tuple[int, ...]:
        side = self.asked.send if self.asked.receive.counts is None else self.asked.receive
        dtype = send.dtype or receive.dtype
        assert dtype is not None and side.counts is not None
        return tuple(count * dtype.itemsize for count in numbers_of(side.counts, side, "counts"))

    def _everyone(self, mine: Array, run: Callable[[Operation], object]) -> Array:
        everyone = np.empty((self.size, *mine.shape), np.int64)
        run(self.prepare(CallArguments("all_gather", mine, everyone, "none", 0, "auto")))
        return everyone

    def _operation(self, counts: tuple[int, ...], send: Blocks, receive: Blocks, *, several: bool) -> Operation:
        asked, staging, result = self.asked, Staging(), self.asked.receive.given
        sent, got = self._of_this_rank(counts)
        x: Any = None if sent is None or send.dtype is None else send.packed(sent, staging, result=False)
        out: Any = None
        if got is not None and receive.dtype is not None:
            out = receive.packed(got, staging, result=True)
        elif got is not None:
            if send.several:
                raise ArgumentError(
                    f"{asked.collective}: x has several dtypes: pass out, a list with each rank's array"
                )
            if send.dtype is None:
                raise ArgumentError(f"{asked.collective}: rank {self.rank} needs out, an array for its block")
            out = result = send.new_like(sum(got))
        else:
            result = None
        if several:  # on any rank: all move bytes
            x = None if x is None else as_bytes(x, "x")
            out = None if out is None else as_bytes(out, "out", writeable=True)
        arguments = CallArguments(asked.collective, x, out, asked.op, asked.root, asked.variant, counts)
        inner = self.prepare(arguments)
        return Staged(inner, staging, result, self.turn)

    def _of_this_rank(self, counts: tuple[int, ...]) -> tuple[list[int] | None, list[int] | None]:
        """The bytes of this rank's blocks: what it sends and what it gets, None where it has no part in that."""
        rank, name, is_root = self.rank, self.asked.collective, self.rank == self.asked.root
        if name == "all_to_allv":
            return list(counts[rank * self.size :][: self.size]), list(counts[rank :: self.size])
        one, every = [counts[rank]], list(counts)
        return {
            "all_gatherv": (one, every),
            "gatherv": (one, every if is_root else None),
            "scatterv": (every if is_root else None, one),
            "reduce_scatterv": (every, one),
        }[name]
