"""The collectives as torch calls them. One mixin for both kinds of process group: see process_group.py.

Every method takes torch's lists and options, and returns a `Work`. Lists have one tensor, as a rank has one device.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from collectives.communicator.arrays import Array
from collectives.torch import tensors as of
from collectives.torch.folds import Reduction, fold_of
from collectives.torch.order import CallOrder
from collectives.torch.work import Result, Together, Work
from cxlemu.errors import ArgumentError

Run = Callable[[], None]
T = TypeVar("T")
PACKED_BYTES = 1 << 20  # of a tensor in a coalesced call: a larger one takes a call of its own


class GroupVerbs:
    """Collectives of a process group, on a communicator."""

    comm: Any  # the communicator of the group's members
    _rank: int
    _size: int
    _order: CallOrder

    def _start(self, name: str, run: Run, result: Result, opts: Any, *about: Tensor, detail: str = "") -> Work:
        """Make a call now, or let it run in its turn where torch asks for that. Provided by the group."""
        raise NotImplementedError

    # --- reductions -------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """Combine each tensor with the others' in place, in rank order."""
        tensor = _one(tensors, "all_reduce")
        x = of.shared(tensor)
        if x is None:
            if tensor.is_sparse and tensor.is_cpu:
                return self.allreduce_sparse(tensors, opts)
            of.check(tensor)
        fold = fold_of(opts, tensor)

        if x is not None and fold.factor is None:
            run = partial(self.comm.all_reduce, x, fold.name)
        else:
            run = partial(self._all_reduce, tensor, fold)
        return self._start("all_reduce", run, tensors, opts, tensor, detail=fold.name)

    def _all_reduce(self, tensor: Tensor, fold: Reduction) -> None:
        place = of.dense(tensor)
        fold.before(place)
        self._nonempty(place, lambda x: self.comm.all_reduce(x, fold.name))
        of.store(place, tensor)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """Combine every tensor of a list with the others' in place, as one call for each dtype."""
        of.check(*tensors)
        folds = [fold_of(opts, tensor) for tensor in tensors]

        def run() -> None:
            places = [of.dense(tensor) for tensor in tensors]
            for fold, place in zip(folds, places, strict=True):
                fold.before(place)
            arrays = [array for place in places if (array := of.as_array(place)).size]
            small, large = packable(arrays, [array.nbytes for array in arrays])
            if small:
                self.comm.all_reduce_many(small, folds[0].name)
            for array in large:
                self.comm.all_reduce(array, folds[0].name)
            for place, tensor in zip(places, tensors, strict=True):
                of.store(place, tensor)

        return self._start("all_reduce_coalesced", run, tensors, opts, *tensors)

    def allreduce_sparse(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """Sum a sparse tensor over the ranks, in place."""
        tensor = _one(tensors, "all_reduce")
        fold = fold_of(opts, tensor)
        if fold.name != "sum":
            raise ValueError(f"cxl: all_reduce of a sparse tensor takes SUM, not {fold.name}")

        def run() -> None:
            mine = tensor.coalesce()
            indices, values = mine.indices(), mine.values()
            about = torch.tensor([values.shape[0], *tensor.shape])
            rows = self.comm.all_gather(of.as_array(about)).tolist()
            counts, (first, *others) = [count for count, *_ in rows], [shape for _, *shape in rows]
            for rank, shape in enumerate(others, 1):
                if shape != first:
                    raise ArgumentError(f"rank 0 has a sparse tensor of {first}, rank {rank} one of {shape}")
            every = []
            for part in (indices.t().contiguous(), values):
                row = part[0].numel() if part.shape[0] else int(torch.tensor(part.shape[1:]).prod())
                whole = torch.empty((sum(counts), *part.shape[1:]), dtype=part.dtype)
                self.comm.all_gatherv(of.as_array(part), of.as_array(whole), [count * row for count in counts])
                every.append(whole)
            total = torch.sparse_coo_tensor(every[0].t(), every[1], tensor.shape).coalesce()
            with torch.no_grad():
                tensor.copy_(total)  # a detached one has elements of its own

        return self._start("all_reduce", run, tensors, opts, tensor, detail="sparse")

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Combine a tensor with the others' at the root, in rank order; elsewhere it stays as it is."""
        tensor, root = _one(tensors, "reduce"), opts.rootRank
        of.check(*tensors)
        fold = fold_of(opts, tensor)

        def run() -> None:
            if self._rank == root:
                place = of.dense(tensor)
                fold.before(place)
            else:
                place = fold.applied(of.dense(tensor))
            self._nonempty(place, lambda x: self.comm.reduce(x, fold.name, x, root=root))
            if self._rank == root:
                of.store(place, tensor)

        return self._start("reduce", run, tensors, opts, tensor, detail=f"{fold.name} at {root}")

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Work:
        """Combine block k of all ranks' lists at rank k; blocks may differ in size."""
        output, blocks = _one(outputs, "reduce_scatter"), _one(inputs, "reduce_scatter")
        of.check(output, *blocks)
        _blocks("reduce_scatter", blocks, self._size)
        fold = fold_of(opts, output)
        counts = [block.numel() for block in blocks]
        if counts[self._rank] != output.numel():
            raise ValueError(
                f"cxl: reduce_scatter: block {self._rank} has {counts[self._rank]} elements, the output "
                f"{output.numel()}"
            )

        def run() -> None:
            whole = fold.applied(of.joined(blocks))
            self._reduce_scatter(whole, output, fold, counts)

        return self._start("reduce_scatter", run, outputs, opts, *blocks, detail=fold.name)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Combine block k of all ranks' inputs at rank k; a tensor is as many equal blocks as there are ranks."""
        of.check(output, input)
        _fits("reduce_scatter", input, output, self._size)
        fold = fold_of(opts, output)
        return self._start(
            "reduce_scatter",
            lambda: self._reduce_scatter(fold.applied(of.dense(input)), output, fold, None),
            [output],
            opts,
            input,
            detail=fold.name,
        )

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """Make `reduce_scatter_single` of every pair of a list, of the small ones as one call for each dtype."""
        _pairs("reduce_scatter", inputs, outputs, self._size)
        folds = [fold_of(opts, output) for output in outputs]

        def run() -> None:
            places = [of.dense(output) for output in outputs]
            wholes = [fold.applied(of.dense(input)) for fold, input in zip(folds, inputs, strict=True)]
            moved = [(of.as_array(x), of.as_array(out)) for x, out in zip(wholes, places, strict=True) if x.numel()]
            small, large = packable(moved, [x.nbytes for x, _ in moved])
            if small:
                self.comm.reduce_scatter_many([x for x, _ in small], folds[0].name, [out for _, out in small])
            for x, out in large:
                self.comm.reduce_scatter(x, folds[0].name, out)
            for place, output in zip(places, outputs, strict=True):
                of.store(place, output)

        return self._start("reduce_scatter_coalesced", run, outputs, opts, *inputs)

    def _reduce_scatter(self, whole: Tensor, output: Tensor, fold: Reduction, counts: list[int] | None) -> None:
        place = of.dense(output)
        x, out = of.as_array(whole), of.as_array(place)
        if counts is not None and len(set(counts)) > 1:
            self.comm.reduce_scatterv(x, fold.name, out, counts)
        elif x.size:
            self.comm.reduce_scatter(x, fold.name, out)
        else:
            self.comm.barrier()
        of.store(place, output)

    # --- moves ------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        tensor, root = _one(tensors, "broadcast"), opts.rootRank
        of.check(*tensors)

        def run() -> None:
            place = of.dense(tensor)
            self._nonempty(place, lambda x: self.comm.broadcast(x, root=root))
            of.store(place, tensor)

        return self._start("broadcast", run, tensors, opts, tensor, detail=f"from {root}")

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        """Gather all ranks' tensors on every rank; tensors may differ in size."""
        tensor, blocks = _one(inputs, "all_gather"), _one(outputs, "all_gather")
        of.check(tensor, *blocks)
        _blocks("all_gather", blocks, self._size)
        _like("all_gather", tensor, blocks[self._rank])
        counts = [block.numel() for block in blocks]

        def run() -> None:
            whole = of.room(blocks)
            self._all_gather(of.dense(tensor), whole, counts)
            of.spread(whole, blocks)

        return self._start("all_gather", run, outputs, opts, tensor)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        of.check(output, input)
        _fits("all_gather", output, input, self._size)

        def run() -> None:
            place = of.dense(output)
            self._all_gather(of.dense(input), place, None)
            of.store(place, output)

        return self._start("all_gather", run, [output], opts, input)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        """Gather every tensor of a list; each rank's list of results is one of ``outputs``."""
        works = [
            self.allgather([[of_rank[k] for of_rank in outputs]], [tensor], opts) for k, tensor in enumerate(inputs)
        ]
        return Together(works, outputs, self._order)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """Make `all_gather_single` of every pair of a list, of the small ones as one call for each dtype."""
        _pairs("all_gather", outputs, inputs, self._size)

        def run() -> None:
            places = [of.dense(output) for output in outputs]
            moved = [
                (of.as_array(of.dense(x)), of.as_array(out)) for x, out in zip(inputs, places, strict=True) if x.numel()
            ]
            small, large = packable(moved, [out.nbytes for _, out in moved])
            if small:
                self.comm.all_gather_many([x for x, _ in small], [out for _, out in small])
            for x, out in large:
                self.comm.all_gather(x, out)
            for place, output in zip(places, outputs, strict=True):
                of.store(place, output)

        return self._start("all_gather_coalesced", run, outputs, opts, *inputs)

    def _all_gather(self, tensor: Tensor, whole: Tensor, counts: list[int] | None) -> None:
        x, out = of.as_array(tensor), of.as_array(whole)
        if counts is not None and len(set(counts)) > 1:
            self.comm.all_gatherv(x, out, counts)
        elif out.size:
            self.comm.all_gather(x, out)
        else:
            self.comm.barrier()

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        tensor, root = _one(inputs, "gather"), opts.rootRank
        of.check(*inputs)
        at_root = self._rank == root
        blocks = _one(outputs, "gather") if at_root else []
        if at_root:
            of.check(*blocks)
            _blocks("gather", blocks, self._size)
            for block in blocks:
                _like("gather", tensor, block)

        def run() -> None:
            whole = of.room(blocks) if at_root else None
            out = None if whole is None else of.as_array(whole)
            self._nonempty(of.dense(tensor), lambda x: self.comm.gather(x, out, root=root))
            if whole is not None:
                of.spread(whole, blocks)

        return self._start("gather", run, outputs, opts, tensor, detail=f"at {root}")

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        output, root = _one(outputs, "scatter"), opts.rootRank
        of.check(*outputs)
        at_root = self._rank == root
        blocks = _one(inputs, "scatter") if at_root else []
        if at_root:
            of.check(*blocks)
            _blocks("scatter", blocks, self._size)
            for block in blocks:
                _like("scatter", output, block)

        def run() -> None:
            x = of.as_array(of.joined(blocks)) if at_root else None
            place = of.dense(output)
            self._nonempty(place, lambda out: self.comm.scatter(x, out, root=root))
            of.store(place, output)

        return self._start("scatter", run, outputs, opts, output, detail=f"from {root}")

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """Give each rank its tensor of this rank's list; tensors may differ in size."""
        of.check(*outputs, *inputs)
        for blocks in (outputs, inputs):
            _blocks("all_to_all", blocks, self._size)
        sent, received = [t.numel() for t in inputs], [t.numel() for t in outputs]

        def run() -> None:
            whole = of.room(outputs)
            self._all_to_all(of.joined(inputs), whole, sent, received)
            of.spread(whole, outputs)

        return self._start("all_to_all", run, outputs, opts, *inputs)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, received: Sequence[int], sent: Sequence[int], opts: Any = None
    ) -> Work:
        """Exchange the rows of a tensor: as many as ``sent`` says to each rank, or equally many."""
        of.check(output, input)
        counts = []
        for tensor, rows in ((input, sent), (output, received)):
            if rows and sum(rows) != tensor.shape[0]:
                raise ValueError(f"cxl: all_to_all: splits {list(rows)} are not the {tensor.shape[0]} rows")
            if not rows and tensor.numel() and tensor.shape[0] % self._size:
                raise ValueError(f"cxl: all_to_all: {tensor.shape[0]} rows are not equally many for {self._size} ranks")
            row = tensor.numel() // tensor.shape[0] if tensor.numel() else 0
            counts.append([n * row for n in rows] if rows else [tensor.numel() // self._size] * self._size)

        def run() -> None:
            place = of.dense(output)
            self._all_to_all(of.dense(input), place, *counts, equal=not sent and not received)
            of.store(place, output)

        return self._start("all_to_all", run, [output], opts, input)

    def _all_to_all(
        self, whole: Tensor, place: Tensor, sent: list[int], received: list[int], *, equal: bool = False
    ) -> None:
        x, out = of.as_array(whole), of.as_array(place)
        if not equal:  # ranks with equal blocks cannot know that the others' are
            self.comm.all_to_allv(x, out, sent, received)
        elif x.size:
            self.comm.all_to_all(x, out)
        else:
            self.comm.barrier()

    def barrier(self, opts: Any = None) -> Work:
        return self._start("barrier", self.comm.barrier, [], opts)

    # --- shared -----------------------------------------------------------------------------------------------

    def _nonempty(self, tensor: Tensor, call: Callable[[Array], Any]) -> None:
        """Make a call on a tensor's array. Without elements it is a barrier, so that ranks that differ notice it."""
        array = of.as_array(tensor)
        if array.size:
            call(array)
        else:
            self.comm.barrier()

    # what torch up to 2.13 calls some of them
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def packable(arrays: list[T], sizes: list[int]) -> tuple[list[T], list[T]]:
    """Part a coalesced call's arrays: those that are packed into one call, and those for which a copy costs more."""
    small = [array for array, nbytes in zip(arrays, sizes, strict=True) if nbytes <= PACKED_BYTES]
    if len(small) < 2:
        return [], arrays
    return small, [array for array, nbytes in zip(arrays, sizes, strict=True) if nbytes > PACKED_BYTES]


def _pairs(call: str, wholes: list[Tensor], blocks: list[Tensor], size: int) -> None:
    if len(wholes) != len(blocks):
        raise ValueError(f"cxl: {call}: {len(wholes)} tensors for {len(blocks)}: pass one for each")
    of.check(*wholes, *blocks)
    for whole, block in zip(wholes, blocks, strict=True):
        _fits(call, whole, block, size)


def _one(given: Sequence[Any], call: str) -> Any:
    if len(given) == 1:
        return given[0]
    raise ValueError(f"cxl: {call} takes one tensor or list per rank, not {len(given)}")


def _blocks(call: str, blocks: Sequence[Tensor], size: int) -> None:
    if len(blocks) != size:
        raise ValueError(f"cxl: {call}: the list has {len(blocks)} tensors, for {size} ranks")
    if any(block.dtype != blocks[0].dtype for block in blocks):
        raise ValueError(f"cxl: {call}: the list's tensors are of several dtypes")


def _like(call: str, tensor: Tensor, block: Tensor) -> None:
    if tensor.dtype != block.dtype or tensor.numel() != block.numel():
        raise ValueError(f"cxl: {call}: {of.describe(tensor)} does not fit in {of.describe(block)}")


def _fits(call: str, whole: Tensor, block: Tensor, size: int) -> None:
    if whole.dtype != block.dtype or whole.numel() != block.numel() * size:
        raise ValueError(
            f"cxl: {call}: {of.describe(whole)} is not {size} times {of.describe(block)}, one for each rank"
        )
