"""How a coalesced call packs its arrays into one block, where they live: on the host, or on a device.

Arrays on a device are packed by their addresses alone, and its queue copies what the packing says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from collectives.builder.recipes import Recipe
from collectives.communicator.arrays import Array, check_distinct, dtype_name
from collectives.communicator.calls.arguments import Staging, as_array
from collectives.communicator.calls.operations import CopiesAround
from cxlemu._native import apart
from cxlemu.accelerator.arrays import ViewedArray, address_array, device_view, same_device
from cxlemu.accelerator.device import DeviceView, hand_back
from cxlemu.engines.mover import BufferPart
from cxlemu.errors import ArgumentError
from cxlemu.numbers import root_of

Pair = tuple[Array, Array]  # an array, and the one for its result


class ManyArguments(NamedTuple):
    """What a coalesced verb asks for."""

    collective: str
    arrays: Sequence[Any]  # the inputs; where ``outs`` is None they are also replaced by the results
    outs: Sequence[Any] | None  # the arrays for the results, or None
    op: str  # the reduction; "none" where there is none
    root: int  # the root's rank, 0 where there is none
    variant: str | Recipe  # "auto", a variant's name, or a Recipe
    timeout_s: float | None  # how long each call waits for its peers, in seconds, or None


class Packed(NamedTuple):
    """Arrays of one dtype as one block."""

    x: Any  # packed inputs
    out: Any  # what the packed results go to
    staging: CopiesAround  # what is copied before and after the call


def packed(asked: ManyArguments, rank: int, size: int) -> tuple[list[Packed], tuple[tuple[str, int], ...]]:
    """Pack a call's arrays of one dtype into one block, in the order in which dtypes come, alike on all ranks.

    An array that uses another one's result is packed into a later block. Returns the blocks, and what must be alike:
    the dtype and the size in bytes of each array.
    """
    asked = asked._replace(root=root_of(f"{asked.collective}_many", asked.root, size))
    place, arrays, outs = _seen(asked)
    if len(outs) != len(arrays):
        raise ArgumentError(f"{asked.collective}_many: {len(arrays)} arrays have {len(outs)} outs: pass one for each")
    gathers, scatters = asked.collective == "all_gather", asked.collective == "reduce_scatter"
    pairs: list[Pair] = []
    for k, (array, out) in enumerate(zip(arrays, outs, strict=True)):
        wanted = array.size * size if gathers else array.size // size if scatters else array.size
        if (scatters and array.size % size) or out.size != wanted or out.dtype != array.dtype:
            raise ArgumentError(
                f"{asked.collective}_many: an array of {array.size} x {array.dtype} has an out of {out.size} x "
                f"{out.dtype}: pass {wanted} elements of its dtype"
            )
        if not (out.flags.carray or (asked.collective == "broadcast" and rank == asked.root)):
            role = f"{'arrays' if asked.outs is None else 'outs'}[{k}]"
            if not out.flags.writeable:
                raise ArgumentError(f"{role} is read-only: the result cannot be written to it")
            check_distinct(out, role)
        pairs.append((array, out))
    calls: list[list[Pair]] = []
    for run in [pairs] if asked.collective == "broadcast" else _runs(pairs):
        of_dtype: dict[np.dtype[Any], list[Pair]] = {}
        for pair in run:
            of_dtype.setdefault(pair[0].dtype, []).append(pair)
        calls += of_dtype.values()
    blocks = [place.packed(_one(asked, call, rank, size, place)) for call in calls]
    return blocks, tuple((dtype_name(array, reduces=False), array.nbytes) for array in arrays)


def _runs(pairs: list[Pair]) -> list[list[Pair]]:
    """Cut arrays and their results into runs, in each of which no result lies in what another pair has."""
    if apart(pairs):
        return [pairs]
    runs: list[list[Pair]] = [[]]
    for x, out in pairs:
        if any(
            np.shares_memory(out, each) or np.shares_memory(x, other_out)
            for other, other_out in runs[-1]
            for each in (other, other_out)
        ):
            runs.append([])
        runs[-1].append((x, out))
    return runs


def _one(asked: ManyArguments, pairs: list[Pair], rank: int, size: int, place: _Place) -> Packed:
    gathers, scatters = asked.collective == "all_gather", asked.collective == "reduce_scatter"
    dtype, staging = pairs[0][0].dtype, Staging()
    total = sum(array.size for array, _ in pairs)
    x = place.empty((size, total // size) if scatters else (1, total), dtype)
    out = place.empty((size, total) if gathers else (1, total // size), dtype) if gathers or scatters else x
    offset = to = 0
    for array, result in pairs:
        width, got = array.size // x.shape[0], result.size // out.shape[0]
        if array.size and (asked.collective != "broadcast" or rank == asked.root):
            staging.before.append((x[:, offset : offset + width], array.reshape(x.shape[0], width)))
        if result.size and (asked.collective != "broadcast" or rank != asked.root):
            part = out[:, to : to + got]
            staging.after.append((result.reshape(part.shape) if result.flags.c_contiguous else result, part))
        offset, to = offset + width, to + got
    return Packed(x, out, staging)


class _Place(Protocol):
    """Where a call's arrays live."""

    def seen(self, argument: Any, role: str) -> Array:
        """View an argument as NumPy's array of the same address, shape and dtype."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Make room there, and view it so."""

    def packed(self, planned: Packed) -> Packed:
        """Turn what was planned with such views into arguments and copies of this place."""


class _Host:
    """Arrays of the host: each is its own view."""

    def seen(self, argument: Any, role: str) -> Array:
        return as_array(argument, role)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.empty(shape, dtype)

    def packed(self, planned: Packed) -> Packed:
        return planned


class _OnDevice:
    """Arrays of one device. The NumPy array that stands for each is never read: its base says which array it stands
    for, whole or in part."""

    def __init__(self, views: list[DeviceView | None], what: str) -> None:
        self._device = same_device(views, what)
        given = [view for view in views if view is not None]
        self._given, self._kin = given, given[0]
        self._queues = list({id(view.queue): view.queue for view in given}.values())
        self._known: dict[int, tuple[Any, DeviceView]] = {}

    def seen(self, argument: Any, role: str) -> Array:
        view = device_view(argument, role)
        assert view is not None, "all arrays were looked at"
        return self._stand_in(view)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        buffer = self._device.allocate(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return self._stand_in(DeviceView(self._device, buffer, shape, dtype, self._queues[0], self._kin.kin))

    def packed(self, planned: Packed) -> Packed:
        x, out = ViewedArray(self._view(planned.x)), ViewedArray(self._view(planned.out))
        asked = planned.staging
        assert isinstance(asked, Staging)
        before, after = ([pair for copy in some for pair in self._rows(*copy)] for some in (asked.before, asked.after))
        staging = DeviceStaging(self._given, self._queues, before, after)
        return Packed(x, x if planned.out is planned.x else out, staging)

    def _stand_in(self, view: DeviceView) -> Array:
        array = address_array(view)
        self._known[id(array.base)] = array.base, view
        return array

    def _view(self, array: Array) -> DeviceView:
        return self._known[id(array.base)][1]

    def _rows(self, to: Array, source: Array) -> list[tuple[BufferPart, BufferPart]]:
        return [(self._row(a), self._row(b)) for a, b in zip(to, source, strict=True)]

    def _row(self, row: Array) -> BufferPart:
        buffer = self._view(row).buffer
        return BufferPart(buffer, row.ctypes.data - buffer.address, row.nbytes)


class DeviceStaging:
    """What a device's queue copies before and after a call, after what was queued for all arrays before."""

    def __init__(
        self,
        views: Sequence[DeviceView],
        queues: Sequence[Any],
        before: Sequence[tuple[BufferPart, BufferPart]],
        after: Sequence[tuple[BufferPart, BufferPart]],
    ) -> None:
        self._views, self._device, self._queue, self._others = views, views[0].device, queues[0], queues[1:]
        self._before, self._after = before, after

    def fill(self) -> None:
        """Queue the copies before a call."""
        for other in self._others:
            self._device.wait(self._queue, self._device.record(other))
        self._copy(self._before)

    def copy_back(self) -> None:
        """Queue the copies after a call; what is queued for the arrays later comes after them."""
        self._copy(self._after)
        event = self._device.record(self._queue)
        for other in self._others:
            self._device.wait(other, event)
        hand_back(self._views)

    def _copy(self, copies: Sequence[tuple[BufferPart, BufferPart]]) -> None:
        for to, source in copies:
            self._device.copy(self._queue, to, source)


def _seen(asked: ManyArguments) -> tuple[_Place, list[Array], list[Array]]:
    """Where a call's arrays live, and these and its outs as that place sees them."""
    arrays, outs = list(asked.arrays), [] if asked.outs is None else list(asked.outs)
    place: _Place = _Host()
    if not all(type(each) is np.ndarray for each in (*arrays, *outs)):
        roles = [f"arrays[{k}]" for k in range(len(arrays))] + [f"outs[{k}]" for k in range(len(outs))]
        views = [
            None if isinstance(each, np.ndarray) else device_view(each, role)
            for each, role in zip((*arrays, *outs), roles, strict=True)
        ]
        if any(view is not None for view in views):
            place = _OnDevice(views, f"{asked.collective}_many")
        arrays = [place.seen(each, role) for each, role in zip(arrays, roles, strict=False)]
        outs = [place.seen(each, role) for each, role in zip(outs, roles[len(arrays) :], strict=True)]
    return place, arrays, arrays if asked.outs is None else outs
