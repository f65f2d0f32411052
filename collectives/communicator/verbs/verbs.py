"""The collectives as a user calls them: what each does to which array. `CallRunner` decides how a call runs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from collectives.builder.recipes import Recipe
from collectives.communicator.arrays import Array
from collectives.communicator.calls.arguments import block_like, blocks_like, like
from collectives.communicator.calls.operations import Outcome
from collectives.contracts import COLLECTIVES
from cxlemu import _native
from cxlemu.numbers import root_of

# Where each parameter of a collective stands among the arguments of Verbs._calls.
_PLACES = {"x": 1, "out": 2, "op": 3, "root": 4, "variant": 5, "async_op": 6}


class Verbs:
    """Every collective, as a method with its arguments, for NumPy arrays.

    A communicator's methods return the array that holds this rank's result, ``out`` or, where a result replaces it,
    ``x``; None on a rank that gets none. Those of `Communicator.persistent` take the same arguments and return an
    `Operation`, which runs when it is called. All verbs share these arguments:

    ``x``: array of any shape; every rank passes equally many elements of the same dtype.

    ``op``: "sum", "prod", "min", "max", "avg", "band", "bor" or "bxor", if the dtype supports it; avg is the sum
    divided by the number of ranks, and scans have none.

    ``variant``: "auto" (see `Communicator.choice`), one of `collectives.algorithms.catalog.variants`, or a Recipe.

    ``async_op``: return a Handle at once; the call runs after the earlier ones of this rank, and ``wait`` returns what
    the call would.

    ``timeout_s``: how long this call waits for its peers without progress, in seconds (default: the communicator's
    deadline). Then it raises DeadlineError, and the communicator is revoked.

    All raise ArgumentError where an array or argument does not fit (nothing was sent), and RunError where a peer called
    something else, left or did not arrive, or the pool failed: see `Communicator`.
    """

    rank: int
    size: int
    # (collective, x, out, op, root, variant, async_op) as every method below fills them in
    _calls: Callable[..., Outcome]
    _timed_call: Callable[..., Outcome]  # the same after the seconds that it may wait

    def all_reduce(
        self,
        x: Array,
        op: str = "sum",
        out: Array | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine ``x`` of all ranks, element by element, in rank order.

        Args:
            out: Array of the shape and dtype of ``x`` for the result (default: the result replaces ``x``).
        """
        return self._within(timeout_s)("all_reduce", x, x if out is None else out, op, 0, variant, async_op)

    def reduce(
        self,
        x: Array,
        op: str = "sum",
        out: Array | None = None,
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine ``x`` of all ranks at ``root``, element by element, in rank order.

        Args:
            out: At the root, array like ``x`` for the result (default: it replaces ``x``); ignored elsewhere.
            root: The rank that gets the result.
        """
        root = root_of("reduce", root, self.size)
        return self._within(timeout_s)(
            "reduce", x, self._at(root, x if out is None else out), op, root, variant, async_op
        )

    def broadcast(
        self,
        x: Array,
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Copy ``x`` of ``root`` to ``x`` of all other ranks.

        Args:
            root: The rank whose ``x`` is sent.
        """
        root = root_of("broadcast", root, self.size)
        return self._within(timeout_s)("broadcast", x, x, "none", root, variant, async_op)

    def all_gather(
        self,
        x: Array,
        out: Array | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Gather ``x`` of all ranks, in rank order, on every rank.

        Args:
            out: Array of the dtype of ``x`` and ``size`` times its elements (default: a new one of shape
                ``(size, *x.shape)``). In place, ``x`` is this rank's block of it.
        """
        return self._within(timeout_s)(
            "all_gather", x, blocks_like(x, "x", self.size) if out is None else out, "none", 0, variant, async_op
        )

    def gather(
        self,
        x: Array,
        out: Array | None = None,
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Gather ``x`` of all ranks, in rank order, at ``root``.

        Args:
            out: At the root, array of the dtype of ``x`` and ``size`` times its elements (default: a new one of shape
                ``(size, *x.shape)``); ignored elsewhere.
            root: The rank that gets the blocks.
        """
        root = root_of("gather", root, self.size)
        if self.rank == root and out is None:
            out = blocks_like(x, "x", self.size)
        return self._within(timeout_s)("gather", x, self._at(root, out), "none", root, variant, async_op)

    def scatter(
        self,
        x: Array | None,
        out: Array | None = None,
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send block k of the root's ``x`` to ``out`` of rank k.

        Args:
            x: At the root, array of ``size`` blocks; with ``variant="zero_copy"`` one of `Communicator.heap`.
            out: Array of one block (default, at the root: a new one, the first axis of ``x`` divided by ``size``).
            root: The rank whose ``x`` is sent.
        """
        root = root_of("scatter", root, self.size)
        if out is None and self.rank == root and x is not None:
            out = block_like(x, "x", self.size, "scatter")
        return self._within(timeout_s)("scatter", x, out, "none", root, variant, async_op)

    def reduce_scatter(
        self,
        x: Array,
        op: str = "sum",
        out: Array | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine block k of ``x`` of all ranks at rank k, element by element, in rank order.

        Args:
            x: Array of ``size`` blocks.
            out: Array of one block (default: a new one, of the first axis of ``x`` divided by ``size``).
        """
        target = block_like(x, "x", self.size, "reduce_scatter") if out is None else out
        return self._within(timeout_s)("reduce_scatter", x, target, op, 0, variant, async_op)

    def scan(
        self,
        x: Array,
        op: str = "sum",
        out: Array | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine ``x`` of all ranks up to this one, element by element, in rank order.

        Args:
            op: As in `all_reduce`, but for "avg".
            out: Array of the shape and dtype of ``x`` for the result (default: the result replaces ``x``).
        """
        return self._within(timeout_s)("scan", x, x if out is None else out, op, 0, variant, async_op)

    def exscan(
        self,
        x: Array,
        op: str = "sum",
        out: Array | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Combine ``x`` of all ranks before this one, element by element, in rank order.

        Args:
            op: As in `all_reduce`, but for "avg".
            out: Array of the shape and dtype of ``x`` for the result (default: the result replaces ``x``). Rank 0 gets
                no result, and its array stays as it is.
        """
        return self._within(timeout_s)("exscan", x, x if out is None else out, op, 0, variant, async_op)

    def all_to_all(
        self,
        x: Array,
        out: Array | None = None,
        *,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send block k of ``x`` to rank k, where it becomes block ``rank`` of ``out``.

        Args:
            x: Array of ``size`` blocks.
            out: Array like ``x`` (default: a new one). As it has the shape of ``x``, blocks may end within a row; where
                the result is one block, as in `scatter`, they are whole rows.
        """
        return self._within(timeout_s)(
            "all_to_all", x, like(x, "x") if out is None else out, "none", 0, variant, async_op
        )

    def pass_on(
        self,
        x: Array,
        out: Array | None = None,
        *,
        root: int = 0,
        variant: str | Recipe = "auto",
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Copy ``x`` of ``root`` to ``out`` of the rank after it: a send that all ranks call, as a plan of its own.

        `Communicator.send` and `Communicator.recv` are for the two ranks alone.

        Args:
            x: At the root, C-contiguous array of any shape. Another rank's says how much is sent, and is not read.
            out: At the rank after the root, array of the same size (default: a new one like ``x``); ignored elsewhere.
            root: The rank whose ``x`` is sent.
        """
        root = root_of("send", root, self.size)
        reader = (root + 1) % self.size
        if self.rank == reader and out is None:
            out = like(x, "x")
        return self._within(timeout_s)("send", x, self._at(reader, out), "none", root, variant, async_op)

    def barrier(
        self, *, variant: str | Recipe = "auto", async_op: bool = False, timeout_s: float | None = None
    ) -> Outcome:
        """Wait until all ranks have called it."""
        return self._within(timeout_s)("barrier", None, None, "none", 0, variant, async_op)

    def _within(self, timeout_s: float | None) -> Callable[..., Outcome]:
        return self._calls if timeout_s is None else partial(self._timed_call, timeout_s)

    def _install_fast_path(self, calls: _native.DispatchCache) -> None:
        """Put in place of each method above one that does the same for calls like an earlier one, without Python."""
        for name, contract in COLLECTIVES.items():
            if not hasattr(Verbs, name):
                continue  # a collective that others have added, without a verb; or one whose ranks agree first
            verb = _native.Verb(
                calls,
                getattr(self, name),
                *_shape_of(getattr(type(self), name)),
                rank=self.rank,
                replaces=contract.replaces,
                only_at_root=contract.rooted_output,
                makes_out=contract.moves_data and not contract.replaces,
            )
            setattr(self, name, verb)

    # --- arrays that a call needs and was not given ----------------------------------------------------------

    def _at(self, root: int, array: Array | None) -> Array | None:
        return array if self.rank == root else None


@cache
def _shape_of(method: Callable[..., Any]) -> tuple[tuple[str, ...], int, tuple[int, ...], tuple[Any, ...]]:
    """Return a method's parameters that C looks at, without ``self`` and timeout_s: the same for all communicators.

    They are: names; how many of them have a place; where each stands in `Verbs._calls`; the arguments of a call that
    gives none.
    """
    parameters = dict(list(inspect.signature(method).parameters.items())[1:])
    parameters.pop("timeout_s", None)
    places = tuple(_PLACES[parameter] for parameter in parameters)
    defaults: list[Any] = [method.__name__, None, None, "none", 0, ..., ...]
    for place, parameter in zip(places, parameters.values(), strict=True):
        defaults[place] = ... if parameter.default is parameter.empty else parameter.default
    count = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
    return tuple(map(sys.intern, parameters)), count, places, tuple(defaults)
