"""Persistent operations: a call is checked and planned once, and then run as often as one likes.

op = comm.persistent.all_reduce(x)  # as MPI-4's MPI_Allreduce_init
op()                                # the sum of what x holds now, without any Python in between
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives.builder.recipes import Recipe
from collectives.communicator.arrays import Array
from collectives.communicator.calls.agreed import UnevenArguments
from collectives.communicator.calls.operations import Operation
from collectives.communicator.calls.planner import CallArguments
from collectives.communicator.calls.products import Matrix
from collectives.communicator.verbs.products import Products
from collectives.communicator.verbs.uneven import UnevenVerbs
from collectives.communicator.verbs.verbs import Verbs
from cxlemu.dlpack import pin
from cxlemu.errors import ArgumentError
from cxlemu.unshared import Unshared

Prepare = Callable[[CallArguments], Operation]
PrepareProduct = Callable[..., Operation]


class Persistent(Verbs, UnevenVerbs, Products, Unshared):
    """The verbs of a communicator, with the same arguments, each giving an `Operation` that runs when it is called.

    An operation holds the memory of its arrays and runs faster than the call: nothing is checked again. All ranks make
    and call operations in the same order as other calls. ``async_op=True`` raises ArgumentError. Ranks agree on the
    blocks of an uneven call once, when it is made.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        prepare: Prepare,
        prepare_uneven: Callable[[UnevenArguments], Operation],
        prepare_product: PrepareProduct,
        timed: Callable[[Operation, float], Operation],
    ) -> None:
        self.rank, self.size = rank, size
        self._timed = timed
        self._prepare, self._prepare_uneven, self._prepare_product = prepare, prepare_uneven, prepare_product

    def __repr__(self) -> str:
        return f"<Persistent verbs of rank {self.rank} of {self.size}>"

    def _calls(
        self,
        collective: str,
        x: Array | None,
        out: Array | None,
        op: str,
        root: int,
        variant: str | Recipe,
        async_op: bool,
    ) -> Operation:
        _refuse_async(collective, async_op)
        operation = self._prepare(CallArguments(collective, x, out, op, root, variant))
        pin(x, out)
        return operation

    def _timed_call(self, timeout_s: float, *asked: Any) -> Operation:
        return self._timed(self._calls(*asked), timeout_s)

    def _uneven(self, asked: UnevenArguments, async_op: bool) -> Operation:
        _refuse_async(asked.collective, async_op)
        return self._prepare_uneven(asked)

    def _product(self, kind: str, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any) -> Operation:
        return self._prepare_product(kind, a, b, out, style, **cut)


def _refuse_async(collective: str, async_op: bool) -> None:
    if async_op:
        raise ArgumentError(f"persistent {collective}: async_op is for calls, not for operations, which start later")
