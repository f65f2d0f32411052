"""Shadows every call of a process group on Gloo, and names the first one that differs; messages are in messages.py.

What ranks pass to a call also travels by Gloo. Each rank computes from it what the call must give: moves byte for byte,
reductions in rank order by the definition in cxlemu/plan/reduction.py, which for two ranks are Gloo's own bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist

from collectives.communicator.arrays import Array, dtype_name
from collectives.communicator.calls.watch import SAME
from cxlemu.choices import DTYPE_NAMES
from cxlemu.errors import ContractError
from cxlemu.plan import Plan, RedOp
from cxlemu.plan.reduction import fold
from faults.torch.difference import Difference, ShadowedCall
from faults.torch.group_faults import GroupNumbers
from faults.torch.messages import MessageDifference, MessageShadow

if TYPE_CHECKING:
    from torch.distributed import Store

Expected = Callable[[list[Array]], Array | None]
GLOO_S = 1800.0


class GlooShadow:
    """The group's ranks once more, through Gloo, for arrays. Made when all ranks are connected: none ends before."""

    def __init__(self, store: Store, rank: int, size: int, barrier: Callable[[], object]) -> None:
        """Connect all ranks. Where Gloo fails later, ``barrier`` is cxl's and says which rank was lost."""
        its_store = dist.PrefixStore("shadow/", store)
        self.group = dist.ProcessGroupGloo(its_store, rank, size, timeout=timedelta(seconds=GLOO_S))
        self.group.barrier().wait()
        self._size, self._barrier = size, barrier

    def gather(self, array: Array) -> list[Array]:
        """Return all ranks' arrays, whose sizes may differ; every rank's is of the same dtype, or empty."""
        try:
            return self._gathered(array)
        except RuntimeError:
            self._barrier()
            raise

    def _gathered(self, array: Array) -> list[Array]:
        mine = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        self.group.allgather([lengths], [torch.tensor([mine.numel()])]).wait()
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: mine.numel()] = mine
        every = [torch.empty(longest, dtype=torch.uint8) for _ in range(self._size)]
        if longest:
            self.group.allgather([every], [padded]).wait()
        return [each[: int(length)].numpy().view(array.dtype) for each, length in zip(every, lengths, strict=True)]


class Compared:
    """A communicator's verbs, each of which is checked against Gloo; everything else is the communicator's."""

    def __init__(
        self,
        comm: Any,
        group: str,
        gloo: GlooShadow,
        on_wrong: Callable[[Difference, list[Array]], None],
        found_message: Callable[[MessageDifference], None],
        as_run: Callable[[Plan], Plan],
        at: GroupNumbers,
    ) -> None:
        self.messages = messages = MessageShadow(comm, group, gloo.group, found_message, at)
        self.isend, self.irecv, self.leave = messages.isend, messages.irecv, messages.leave
        self._comm, self.group, self._gloo, self._found, self._as_run = comm, group, gloo, on_wrong, as_run
        self._at = at
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    # --- verbs ------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Array, op: str = "sum") -> None:
        self._checked(("all_reduce", op, 0), x, x, lambda: self._comm.all_reduce(x, op), lambda every: _fold(op, every))

    def reduce(self, x: Array, op: str, out: Array, *, root: int) -> None:
        self._checked(
            ("reduce", op, root),
            x,
            out if self._comm.rank == root else None,
            lambda: self._comm.reduce(x, op, out, root=root),
            lambda every: _fold(op, every),
        )

    def reduce_scatter(self, x: Array, op: str, out: Array) -> None:
        """Combine block k at rank k."""
        rank, size = self._comm.rank, self._comm.size
        self._checked(
            ("reduce_scatter", op, 0),
            x,
            out,
            lambda: self._comm.reduce_scatter(x, op, out),
            lambda every: _fold(op, [each.reshape(size, -1)[rank] for each in every]),
        )

    def reduce_scatterv(self, x: Array, op: str, out: Array, counts: Sequence[int]) -> None:
        """Combine block k, of ``counts[k]`` elements, at rank k."""
        rank = self._comm.rank
        at = sum(counts[:rank])
        self._checked(
            ("reduce_scatterv", op, 0),
            x,
            out,
            lambda: self._comm.reduce_scatterv(x, op, out, counts),
            lambda every: _fold(op, [each[at : at + counts[rank]] for each in every]),
        )

    def broadcast(self, x: Array, *, root: int = 0) -> None:
        self._checked(
            ("broadcast", "none", root), x, x, lambda: self._comm.broadcast(x, root=root), lambda every: every[root]
        )

    def all_gather(self, x: Array, out: Array | None = None) -> Any:
        target = np.empty((self._comm.size, x.size), x.dtype) if out is None else out
        self._checked(
            ("all_gather", "none", 0), x, target, lambda: self._comm.all_gather(x, target), lambda e: np.concatenate(e)
        )
        return target

    def all_gatherv(self, x: Array, out: Array, counts: Sequence[int]) -> None:
        """Gather arrays of different sizes on all."""
        self._checked(
            ("all_gatherv", "none", 0),
            x,
            out,
            lambda: self._comm.all_gatherv(x, out, counts),
            lambda every: np.concatenate(every),
        )

    def gather(self, x: Array, out: Array | None, *, root: int = 0) -> None:
        self._checked(
            ("gather", "none", root),
            x,
            out if self._comm.rank == root else None,
            lambda: self._comm.gather(x, out, root=root),
            lambda every: np.concatenate(every),
        )

    def scatter(self, x: Array | None, out: Array, *, root: int = 0) -> None:
        rank, size = self._comm.rank, self._comm.size
        mine = np.empty(0, out.dtype) if x is None or rank != root else x
        self._checked(
            ("scatter", "none", root),
            mine,
            out,
            lambda: self._comm.scatter(x, out, root=root),
            lambda every: every[root].reshape(size, -1)[rank],
        )

    def all_to_all(self, x: Array, out: Array) -> None:
        rank, size = self._comm.rank, self._comm.size
        self._checked(
            ("all_to_all", "none", 0),
            x,
            out,
            lambda: self._comm.all_to_all(x, out),
            lambda every: np.concatenate([each.reshape(size, -1)[rank] for each in every]),
        )

    def all_to_allv(self, x: Array, out: Array, sent: Sequence[int], received: Sequence[int]) -> None:
        """Give block k, of ``sent[k]`` elements, to rank k."""
        rank, size = self._comm.rank, self._comm.size
        counts = [each.tolist() for each in self._gloo.gather(np.array(sent, np.int64))]

        def expected(every: list[Array]) -> Array:
            begins = [sum(counts[source][:rank]) for source in range(size)]
            return np.concatenate([every[s][begins[s] : begins[s] + counts[s][rank]] for s in range(size)])

        self._checked(
            ("all_to_allv", "none", 0), x, out, lambda: self._comm.all_to_allv(x, out, sent, received), expected
        )

    # --- lists: compared call by call, so that what differs has a plan of its own -------------------------------

    def all_reduce_many(self, arrays: Sequence[Array], op: str = "sum") -> None:
        for array in arrays:
            self.all_reduce(array, op)

    def all_gather_many(self, arrays: Sequence[Array], outs: Sequence[Array]) -> None:
        for x, out in zip(arrays, outs, strict=True):
            self.all_gather(x, out)

    def reduce_scatter_many(self, arrays: Sequence[Array], op: str, outs: Sequence[Array]) -> None:
        """Combine block k of each array at rank k."""
        for x, out in zip(arrays, outs, strict=True):
            self.reduce_scatter(x, op, out)

    # --- the comparison ---------------------------------------------------------------------------------------

    def _checked(
        self,
        what: tuple[str, str, int],
        x: Array,
        out: Array | None,
        run: Callable[[], Any],
        expected: Expected,
    ) -> None:
        before = x.copy()
        run()
        every = self._gloo.gather(before)
        wrong = np.zeros(5, np.int64)  # whether, the element, how many, how many there are, and what was called
        wrong[4] = crc32(repr(what).encode())
        right: Array | None = None
        if out is not None:
            right = expected(every)
            assert right is not None
            got, want = (array.reshape(-1).view(np.uint8).reshape(-1, out.itemsize) for array in (out, right))
            differ = np.flatnonzero((got != want).any(axis=1))
            if differ.size:
                wrong[:4] = 1, differ[0], differ.size, out.size
        verdicts = self._gloo.gather(wrong)
        self.calls += 1
        if len({int(verdict[4]) for verdict in verdicts}) > 1:
            raise ContractError(self._unlike(what))
        guilty = next((rank for rank, verdict in enumerate(verdicts) if verdict[0]), None)
        if guilty is None:
            return
        values = np.zeros(2, out.dtype if out is not None else x.dtype)
        if guilty == self._comm.rank and out is not None and right is not None:
            values[:] = out.reshape(-1)[wrong[1]], right.reshape(-1)[wrong[1]]
        got_value, right_value = (str(value) for value in self._gloo.gather(values)[guilty])
        _, element, count, of, _ = map(int, verdicts[guilty])
        call = ShadowedCall(self.group, self._at.call, *what, dtype_name(x, reduces=False), x.size, self._comm.size)
        difference = Difference.explained(
            call, guilty, element, count, of, got_value, right_value, self._comm, x, out, self._as_run
        )
        self._found(difference, every)
        raise ContractError(difference.sentence())

    def _unlike(self, what: tuple[str, str, int]) -> str:
        """Say which two ranks called different things, where none waited for the other: two roots of a broadcast."""
        mine = "{} {} root {}".format(*what).replace(" none", "")
        texts = [each.tobytes().decode() for each in self._gloo.gather(np.frombuffer(mine.encode(), np.uint8))]
        other = next(rank for rank, text in enumerate(texts) if text != texts[0])
        where = f"[{texts[0]}] on rank 0 but [{texts[other]}] on rank {other}"
        return f"call {self._at.call} of group {self.group} is {where}: {SAME}"


def _fold(op: str, every: list[Array]) -> Array:
    """Combine arrays in rank order, as the machine's definition does."""
    redop = RedOp[op.upper()]
    number = DTYPE_NAMES.index(dtype_name(every[0], reduces=True))
    parts = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in every]
    return fold(number, redop, parts, len(every) if op == "avg" else 1).view(every[0].dtype)
