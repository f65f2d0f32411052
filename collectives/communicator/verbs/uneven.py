"""Collectives of blocks that differ in size, with mpi4py's meaning: counts and displacements in elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collectives.builder.recipes import Recipe
from collectives.communicator.calls.agreed import UnevenArguments
from collectives.communicator.calls.operations import Outcome
from collectives.communicator.calls.uneven_blocks import BlocksGiven, Counts
from cxlemu.errors import ArgumentError
from cxlemu.numbers import op_of, root_of


class UnevenVerbs:
    """Collectives of blocks that differ in size, as methods with their arguments.

    Counts and displacements are in elements; without displacements, blocks lie one after another. A list of arrays, one
    for each rank, stands for an array with counts. `Verbs` describes the arguments and errors that all verbs share;
    ArgumentError is raised here also where arrays do not fit among ranks.
    """

    rank: int
    size: int
    _uneven: Callable[[UnevenArguments, bool], Outcome]

    def all_gatherv(
        self,
        x: Any,
        out: Any = None,
        counts: Counts = None,
        displs: Counts = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Gather ``x`` of all ranks, which may differ in size, in rank order, on every rank.

        Args:
            x: Array of any shape; ranks pass arrays of one dtype.
            out: Array for all blocks, or a list of ``size`` arrays (default: a new array, of whole rows of ``x`` where
                blocks are such). In place, ``x`` is this rank's block of it.
            counts: The elements of each rank's ``x``, the same on all ranks. Either all ranks pass them or none does;
                then a small call before this one exchanges them.
            displs: Where in ``out`` each block begins, in elements.
        """
        receive = BlocksGiven(out, "out", self.size, counts, displs)
        known = counts is not None
        asked = UnevenArguments(
            "all_gatherv", BlocksGiven(x, "x", 1), receive, "none", 0, variant, known, timeout_s=timeout_s
        )
        return self._uneven(asked, async_op)

    def gatherv(
        self,
        x: Any,
        out: Any = None,
        counts: Counts = None,
        displs: Counts = None,
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Gather ``x`` of all ranks, which may differ in size, in rank order, at ``root``.

        Args:
            x: Array of any shape; ranks pass arrays of one dtype.
            out: At the root, array for all blocks, or a list of ``size`` arrays (default: a new array); ignored
                elsewhere.
            counts: At the root, the elements of each rank's ``x`` (default: the ranks' own sizes); ignored elsewhere.
            displs: At the root, where in ``out`` each block begins, in elements.
            root: The rank that gets the blocks.
        """
        root = root_of("gatherv", root, self.size)
        receive = (
            BlocksGiven(out, "out", self.size, counts, displs)
            if self.rank == root
            else BlocksGiven(None, "out", self.size)
        )
        asked = UnevenArguments("gatherv", BlocksGiven(x, "x", 1), receive, "none", root, variant, timeout_s=timeout_s)
        return self._uneven(asked, async_op)

    def scatterv(
        self,
        x: Any,
        out: Any = None,
        counts: Counts = None,
        displs: Counts = None,
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send block k of the root's ``x``, of any size, to ``out`` of rank k.

        Args:
            x: At the root, array with all blocks, or a list of ``size`` arrays; ignored elsewhere.
            out: Array for this rank's block (default, at the root: a new one).
            counts: At the root, the elements of each block (default: as ``out`` of each rank has); ignored elsewhere.
            displs: At the root, where in ``x`` each block begins, in elements.
            root: The rank whose ``x`` is sent.
        """
        root = root_of("scatterv", root, self.size)
        send = (
            BlocksGiven(x, "x", self.size, counts, displs) if self.rank == root else BlocksGiven(None, "x", self.size)
        )
        asked = UnevenArguments(
            "scatterv", send, BlocksGiven(out, "out", 1), "none", root, variant, timeout_s=timeout_s
        )
        return self._uneven(asked, async_op)

    def reduce_scatterv(
        self,
        x: Any,
        op: str = "sum",
        out: Any = None,
        counts: Counts = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine block k of ``x`` of all ranks, of any size, at rank k, in rank order.

        Args:
            x: Array with a block for each rank, or a list of ``size`` arrays.
            op: As in `Verbs.reduce_scatter`.
            out: Array for this rank's block (default: a new one).
            counts: The elements of each block, the same on all ranks. Either all ranks pass them or none does; then
                a small call before this one exchanges the sizes of ``out``.
        """
        send, known = BlocksGiven(x, "x", self.size, counts), counts is not None
        op = op_of("reduce_scatterv", op)
        asked = UnevenArguments(
            "reduce_scatterv", send, BlocksGiven(out, "out", 1), op, 0, variant, known, timeout_s=timeout_s
        )
        return self._uneven(asked, async_op)

    def all_to_allv(
        self,
        x: Any,
        out: Any = None,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        send_displs: Counts = None,
        recv_displs: Counts = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send block k of ``x``, of any size, to rank k, where it becomes block ``rank`` of ``out``.

        Args:
            x: Array with a block for each rank, or a list of ``size`` arrays.
            out: Array for the blocks from each rank, or a list of ``size`` arrays (default: a new array).
            send_counts: The elements of each block of ``x`` (default: as the receivers state; where they do not,
                blocks are even, as in mpi4py).
            recv_counts: The elements of each block of ``out`` (default: as the senders state, or even).
            send_displs: Where in ``x`` each block begins, in elements.
            recv_displs: Where in ``out`` each block begins, in elements.
        """
        send = BlocksGiven(x, "x", self.size, send_counts, send_displs)
        receive = BlocksGiven(out, "out", self.size, recv_counts, recv_displs)
        asked = UnevenArguments("all_to_allv", send, receive, "none", 0, variant, timeout_s=timeout_s)
        return self._uneven(asked, async_op)

    def all_to_allw(
        self, x: Sequence[Any], out: Sequence[Any], *, async_op: bool = False, timeout_s: float | None = None
    ) -> Outcome:
        """Send array k of ``x`` to array ``rank`` of rank k's ``out``: arrays may differ in shape and dtype.

        Args:
            x: A list of ``size`` arrays, each with as many bytes as the array of its receiver.
            out: A list of ``size`` arrays to receive into.
        """
        for given, role in ((x, "x"), (out, "out")):
            if not isinstance(given, list | tuple):
                raise ArgumentError(f"all_to_allw: {role} is a list of {self.size} arrays, one for each rank")
        send, receive = BlocksGiven(x, "x", self.size), BlocksGiven(out, "out", self.size)
        asked = UnevenArguments(
            "all_to_allv", send, receive, "none", 0, "auto", timeout_s=timeout_s, verb="all_to_allw"
        )
        return self._uneven(asked, async_op)
