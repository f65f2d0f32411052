"""Coalesced calls: one plan for a list of arrays, which are packed into one block; a plan for each dtype.

    comm.all_reduce_many(gradients)  # in place
    with comm.coalesce() as batch:   # the same, call by call; runs when the block ends
        batch.all_reduce(x)
        batch.all_gather(y, out)

Packing copies each array in and out once, and saves its doorbells, fences and waits: it pays for many small arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from collectives.builder.recipes import Recipe
from collectives.communicator.calls.arguments import block_like, blocks_like
from collectives.communicator.calls.operations import Outcome
from collectives.communicator.calls.packing import ManyArguments
from cxlemu.errors import ArgumentError
from cxlemu.numbers import op_of, root_of
from cxlemu.units import counted
from cxlemu.unshared import Unshared


class CoalescedVerbs(ABC):
    """Verbs for lists of arrays of any shapes; arrays of one dtype share a plan. All ranks pass the same shapes.

    Each returns the list of the arrays that hold the results.

    `Verbs` describes the arguments that all verbs share.
    """

    rank: int
    size: int

    @abstractmethod
    def _many(self, asked: ManyArguments, async_op: bool) -> Outcome:
        """Run a coalesced call; its result is the list of arrays that hold the results."""

    def all_reduce_many(
        self,
        arrays: Iterable[Any],
        op: str = "sum",
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine each of ``arrays`` of all ranks, in place, in rank order."""
        return self._many(ManyArguments("all_reduce", _listed(arrays), None, op, 0, variant, timeout_s), async_op)

    def broadcast_many(
        self,
        arrays: Iterable[Any],
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Copy each of ``arrays`` of ``root`` to those of all other ranks.

        Args:
            root: The rank whose arrays are sent.
        """
        return self._many(ManyArguments("broadcast", _listed(arrays), None, "none", root, variant, timeout_s), async_op)

    def all_gather_many(
        self,
        arrays: Iterable[Any],
        outs: Iterable[Any] | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Gather each of ``arrays`` of all ranks, in rank order, on every rank.

        Args:
            outs: For each an array of ``size`` times its elements (default: new ones of shape ``(size, *x.shape)``).
        """
        arrays, outs = _listed(arrays), None if outs is None else _listed(outs, "outs")
        if outs is None:
            outs = [blocks_like(each, f"arrays[{k}]", self.size) for k, each in enumerate(arrays)]
        return self._many(ManyArguments("all_gather", arrays, outs, "none", 0, variant, timeout_s), async_op)

    def reduce_scatter_many(
        self,
        arrays: Iterable[Any],
        op: str = "sum",
        outs: Iterable[Any] | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine block k of each of ``arrays`` of all ranks at rank k, in rank order.

        Args:
            arrays: Arrays of ``size`` blocks each.
            outs: For each an array of one block (default: new ones, the first axis divided by ``size``).
        """
        arrays, outs = _listed(arrays), None if outs is None else _listed(outs, "outs")
        if outs is None:
            verb = "reduce_scatter_many"
            outs = [block_like(each, f"arrays[{k}]", self.size, verb) for k, each in enumerate(arrays)]
        return self._many(ManyArguments("reduce_scatter", arrays, outs, op, 0, variant, timeout_s), async_op)

    @contextmanager
    def coalesce(self) -> Iterator[Batch]:
        """Collect calls in a block, and run them when it ends: those of one kind, one after another, as one.

        Yields:
            A `Batch`, whose methods take calls until the block ends. Nothing runs where the block raises.
        """
        batch = Batch(self)
        try:
            yield batch
        finally:
            batch.over = True
        batch.run()


def _listed(arrays: Iterable[Any], role: str = "arrays") -> Sequence[Any]:
    """Return what can be gone through again and again: a generator's arrays in a list, and a list itself."""
    try:
        iterator = iter(arrays)
        if getattr(arrays, "ndim", 2) < 2:  # the rows of others are arrays
            raise TypeError
    except TypeError:
        raise ArgumentError(f"{role} is a {type(arrays).__name__}: a list of arrays is needed") from None
    return list(iterator) if iterator is arrays or not hasattr(arrays, "__getitem__") else arrays  # type: ignore[return-value]


class Batch(Unshared):
    """The calls of a `CoalescedVerbs.coalesce` block. Each method returns the array that holds its result when the
    block has ended.

    Attributes:
        over: Whether the block has ended: from then on all methods raise ArgumentError.
    """

    def __init__(self, verbs: CoalescedVerbs) -> None:
        self.over, self._verbs = False, verbs
        self._calls: list[tuple[tuple[str, str, int], Any, Any]] = []

    def __repr__(self) -> str:
        return f"<Batch of {counted(len(self._calls), 'call')}>"

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        """Add an all_reduce of ``x``, in place."""
        return self._add("all_reduce", x, None, op_of("all_reduce", op))

    def broadcast(self, x: Any, *, root: int = 0) -> Any:
        """Add a broadcast of the root's ``x``."""
        return self._add("broadcast", x, None, root=root_of("broadcast", root, self._verbs.size))

    def all_gather(self, x: Any, out: Any = None) -> Any:
        """Add an all_gather of ``x`` to ``out`` (default: a new array, as `CoalescedVerbs.all_gather_many`)."""
        return self._add("all_gather", x, blocks_like(x, "x", self._verbs.size) if out is None else out)

    def reduce_scatter(self, x: Any, out: Any = None, op: str = "sum") -> Any:
        """Add a reduce_scatter of ``x`` to ``out`` (default: a new array, as `CoalescedVerbs.reduce_scatter_many`)."""
        op = op_of("reduce_scatter", op)
        out = block_like(x, "x", self._verbs.size, "reduce_scatter") if out is None else out
        return self._add("reduce_scatter", x, out, op)

    def _add(self, collective: str, x: Any, out: Any, op: str = "none", root: int = 0) -> Any:
        if self.over:
            raise ArgumentError(
                f"{collective}: the block of this batch has ended and its calls have run: begin another one"
            )
        self._calls.append(((collective, op, root), x, out))
        return x if out is None else out

    def run(self) -> None:
        """Run the calls in their order, neighbours of one kind packed where none needs another's result. Raises as the
        verbs do."""
        while self._calls:
            name, op, root = kind = self._calls[0][0]
            count = next((k for k, call in enumerate(self._calls) if call[0] != kind), len(self._calls))
            now, self._calls = self._calls[:count], self._calls[count:]
            outs = None if now[0][2] is None else [out for _, _, out in now]
            self._verbs._many(ManyArguments(name, [x for _, x, _ in now], outs, op, root, "auto", None), False)
