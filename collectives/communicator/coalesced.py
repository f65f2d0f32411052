"""Coalesced calls: one plan for a list of arrays, which are packed into one block; a plan for each dtype.

    comm.all_reduce_many(gradients)  # in place
    with comm.coalesce() as batch:   # the same, call by call; runs when the block ends
        batch.all_reduce(x)
        batch.all_gather(y, out)

Packing copies each array in and out once, and saves its doorbells, fences and waits: it pays for many small arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from collectives.builder.recipes import Recipe
from collectives.communicator.arguments import Staging, as_array
from collectives.communicator.arrays import Array
from collectives.communicator.operations import Outcome
from cxlemu.errors import ArgumentError


class ManyArguments(NamedTuple):
    """What a coalesced verb asks for.

    Attributes:
        collective: The collective's name.
        arrays: The inputs; where ``outs`` is None they are also replaced by the results.
        outs: The arrays for the results, or None.
        op: The reduction; "none" where there is none.
        root: The root's rank, 0 where there is none.
        variant: "auto", a variant's name, or a Recipe.
        timeout_s: How long each call waits for its peers, in seconds, or None.
    """

    collective: str
    arrays: Sequence[Any]
    outs: Sequence[Any] | None
    op: str
    root: int
    variant: str | Recipe
    timeout_s: float | None


class Packed(NamedTuple):
    """Arrays of one dtype as one block.

    Attributes:
        x: The inputs, packed.
        out: What the packed results go to.
        staging: What is copied before and after the call.
    """

    x: Array
    out: Array
    staging: Staging


def packed(asked: ManyArguments, rank: int, size: int) -> list[Packed]:
    """Pack a call's arrays: those of one dtype into one block each, in the order in which dtypes come.

    Args:
        asked: The verb's arguments.
        rank: This rank.
        size: The communicator's size.

    Returns:
        The blocks. All ranks pack alike, as they pass arrays of equal shapes and dtypes.

    Raises:
        ArgumentError: One is no array, or results do not fit.
    """
    arrays = [as_array(array, "arrays") for array in asked.arrays]
    outs = arrays if asked.outs is None else [as_array(array, "outs") for array in asked.outs]
    if len(outs) != len(arrays):
        raise ArgumentError(f"{asked.collective}_many: {len(arrays)} arrays have {len(outs)} outs: pass one for each")
    gathers, scatters = asked.collective == "all_gather", asked.collective == "reduce_scatter"
    groups: dict[np.dtype[Any], list[tuple[Array, Array]]] = {}
    for array, out in zip(arrays, outs, strict=True):
        wanted = array.size * size if gathers else array.size // size if scatters else array.size
        if (scatters and array.size % size) or out.size != wanted or out.dtype != array.dtype:
            raise ArgumentError(
                f"{asked.collective}_many: an array of {array.size} x {array.dtype} has an out of {out.size} x "
                f"{out.dtype}: pass {wanted} elements of its dtype"
            )
        if not out.flags.writeable:
            raise ArgumentError("outs are read-only, results cannot be written to them")
        groups.setdefault(array.dtype, []).append((array, out))
    return [_one(asked, pairs, rank, size) for pairs in groups.values()]


def _one(asked: ManyArguments, pairs: list[tuple[Array, Array]], rank: int, size: int) -> Packed:
    gathers, scatters = asked.collective == "all_gather", asked.collective == "reduce_scatter"
    dtype, staging = pairs[0][0].dtype, Staging()
    total = sum(array.size for array, _ in pairs)
    x = np.empty((size, total // size) if scatters else (1, total), dtype)
    out = np.empty((size, total), dtype) if gathers else np.empty((1, total // size), dtype) if scatters else x
    at = to = 0
    for array, result in pairs:
        width, got = array.size // x.shape[0], result.size // out.shape[0]
        if array.size and (asked.collective != "broadcast" or rank == asked.root):
            staging.before.append((x[:, at : at + width], array.reshape(x.shape[0], width)))
        if result.size and (asked.collective != "broadcast" or rank != asked.root):
            _after(staging, result, out[:, to : to + got])
        at, to = at + width, to + got
    return Packed(x, out, staging)


def _after(staging: Staging, result: Array, part: Array) -> None:
    if result.flags.c_contiguous:
        staging.after.append((result.reshape(part.shape), part))
        return
    place = np.empty(result.shape, result.dtype)  # a view of an array with gaps has its own shape alone
    staging.after += [(place.reshape(part.shape), part), (result, place)]


class CoalescedVerbs(ABC):
    """Verbs that take a list of arrays, and one plan for those of each dtype. All ranks pass the same shapes."""

    rank: int
    size: int

    @abstractmethod
    def _many(self, asked: ManyArguments, async_op: bool) -> Outcome:
        """Run a coalesced call; its result is the list of arrays that hold the results."""

    def all_reduce_many(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine each of ``arrays`` of all ranks, in place, in rank order.

        Args:
            arrays: Arrays of any shapes and dtypes.
            op: As in `Verbs.all_reduce`.
            variant: As in `Verbs.all_reduce`.
            async_op: Return a Handle at once; the call runs after the earlier ones of this rank.
            timeout_s: How long the call waits for its peers without progress, in seconds.

        Returns:
            ``arrays``; with ``async_op`` its Handle.

        Raises:
            ArgumentError: An array or argument does not fit; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        return self._many(ManyArguments("all_reduce", arrays, None, op, 0, variant, timeout_s), async_op)

    def broadcast_many(
        self,
        arrays: Sequence[Any],
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Copy each of ``arrays`` of ``root`` to those of all other ranks.

        Args:
            arrays: Arrays of any shapes and dtypes.
            root: The rank whose arrays are sent.
            variant: As in `Verbs.all_reduce`.
            async_op: Return a Handle at once; the call runs after the earlier ones of this rank.
            timeout_s: How long the call waits for its peers without progress, in seconds.

        Returns:
            ``arrays``; with ``async_op`` its Handle.

        Raises:
            ArgumentError: An array or argument does not fit; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        return self._many(ManyArguments("broadcast", arrays, None, "none", root, variant, timeout_s), async_op)

    def all_gather_many(
        self,
        arrays: Sequence[Any],
        outs: Sequence[Any] | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Gather each of ``arrays`` of all ranks, in rank order, on every rank.

        Args:
            arrays: Arrays of any shapes and dtypes.
            outs: For each an array of ``size`` times its elements (default: new ones of shape ``(size, *x.shape)``).
            variant: As in `Verbs.all_reduce`.
            async_op: Return a Handle at once; the call runs after the earlier ones of this rank.
            timeout_s: How long the call waits for its peers without progress, in seconds.

        Returns:
            ``outs``; with ``async_op`` its Handle.

        Raises:
            ArgumentError: An array or argument does not fit; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        if outs is None:
            given = [as_array(array, "arrays") for array in arrays]
            outs = [np.empty((self.size, *array.shape), array.dtype) for array in given]
        return self._many(ManyArguments("all_gather", arrays, outs, "none", 0, variant, timeout_s), async_op)

    def reduce_scatter_many(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        outs: Sequence[Any] | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine block k of each of ``arrays`` of all ranks at rank k, in rank order.

        Args:
            arrays: Arrays of ``size`` blocks each.
            op: As in `Verbs.all_reduce`.
            outs: For each an array of one block (default: new ones, the first axis divided by ``size``).
            variant: As in `Verbs.all_reduce`.
            async_op: Return a Handle at once; the call runs after the earlier ones of this rank.
            timeout_s: How long the call waits for its peers without progress, in seconds.

        Returns:
            ``outs``; with ``async_op`` its Handle.

        Raises:
            ArgumentError: An array or argument does not fit; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        if outs is None:
            given = [as_array(array, "arrays") for array in arrays]
            if any(array.ndim == 0 or array.shape[0] % self.size for array in given):
                raise ArgumentError(f"reduce_scatter_many: first axes divide into {self.size} blocks, or pass outs")
            outs = [np.empty((array.shape[0] // self.size, *array.shape[1:]), array.dtype) for array in given]
        return self._many(ManyArguments("reduce_scatter", arrays, outs, op, 0, variant, timeout_s), async_op)

    @contextmanager
    def coalesce(self) -> Iterator[Batch]:
        """Collect calls in a block, and run them when it ends: those of one kind, one after another, as one.

        Yields:
            A `Batch`, whose methods take calls. Nothing runs where the block raises.
        """
        batch = Batch()
        yield batch
        batch.run(self)


class Batch:
    """The calls of a `CoalescedVerbs.coalesce` block, whose arrays hold results when the block has ended."""

    def __init__(self) -> None:
        self._calls: list[tuple[tuple[str, str, int], Any, Any]] = []

    def all_reduce(self, x: Any, op: str = "sum") -> None:
        """Add an all_reduce of ``x``, in place."""
        self._calls.append((("all_reduce", op, 0), x, None))

    def broadcast(self, x: Any, *, root: int = 0) -> None:
        """Add a broadcast of the root's ``x``."""
        self._calls.append((("broadcast", "none", root), x, None))

    def all_gather(self, x: Any, out: Any) -> None:
        """Add an all_gather of ``x`` to ``out``."""
        self._calls.append((("all_gather", "none", 0), x, out))

    def reduce_scatter(self, x: Any, out: Any, op: str = "sum") -> None:
        """Add a reduce_scatter of ``x`` to ``out``."""
        self._calls.append((("reduce_scatter", op, 0), x, out))

    def run(self, verbs: CoalescedVerbs) -> None:
        """Run the calls in their order, neighbours of one kind as one. Raises as the verbs do."""
        while self._calls:
            name, op, root = kind = self._calls[0][0]
            count = next((k for k, call in enumerate(self._calls) if call[0] != kind), len(self._calls))
            now, self._calls = self._calls[:count], self._calls[count:]
            outs = None if now[0][2] is None else [out for _, _, out in now]
            verbs._many(ManyArguments(name, [x for _, x, _ in now], outs, op, root, "auto", None), False)
