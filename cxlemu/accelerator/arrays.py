"""Arrays that live on a device: how a call knows them, and plain ones of our own.

An array of any library takes part in calls if it has an attribute ``__cxl_device_array__``, a `DeviceView`. Others say
where they are by ``__cuda_array_interface__`` or by DLPack; `cxlemu.accelerator.cuda` and ``lent`` make views of them.
"""

from __future__ import annotations

import ctypes
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cxlemu.accelerator.device import ComputeDevice, DeviceView, Queue
from cxlemu.accelerator.fake import FakeDevice
from cxlemu.accelerator.lent import lent_view
from cxlemu.dlpack import check_resolved
from cxlemu.engines.mover import BufferPart
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes

ATTRIBUTE = "__cxl_device_array__"


def device_view(argument: Any, role: str) -> DeviceView | None:
    """Return how to reach an argument that lives on a device; None for one that does not."""
    if type(argument) is np.ndarray:  # as most are
        return None
    view = getattr(argument, ATTRIBUTE, None)
    if isinstance(view, DeviceView):
        return view
    check_resolved(argument, role)
    if hasattr(argument, "__cuda_array_interface__"):
        from cxlemu.accelerator.cuda import cuda_view  # NVIDIA's packages are imported only for their arrays

        return cuda_view(argument, role)
    return lent_view(argument, role)


class DeviceArray:
    """An array on any device, C-contiguous. No host code can reach its elements but through the device.

    What its methods do is queued, and done late, as a device does it.
    """

    def __init__(self, device: ComputeDevice, queue: Queue, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._device, self._queue = device, queue
        self._buffer = device.allocate(int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize)

    def like(self, shape: tuple[int, ...]) -> Self:
        made = copy(self)
        DeviceArray.__init__(made, self._device, self._queue, shape, self.dtype)
        return made

    def __getitem__(self, block: int) -> Self:
        """Return block ``block`` along the first axis, which shares this array's memory."""
        if not self.shape or not -self.shape[0] <= block < self.shape[0]:
            raise IndexError(f"an array of shape {self.shape} has no block {block}")
        part = copy(self)
        part.shape = self.shape[1:]
        nbytes = self._buffer.nbytes // self.shape[0]
        part._buffer = self._buffer.part(block % self.shape[0] * nbytes, nbytes)
        return part

    def set(self, values: ArrayLike) -> None:
        """Queue a copy of values of the host, which are taken now, to the array."""
        pinned = self._device.pinned(self._buffer.nbytes)
        pinned.view(self.dtype).reshape(self.shape)[...] = values
        self._device.copy(self._queue, self._whole(self._buffer), self._whole(pinned))

    def get(self) -> NDArray[Any]:
        """Return the elements, once all that was queued before has been done."""
        return fetched(self.__cxl_device_array__)

    @property
    def __cxl_device_array__(self) -> DeviceView:
        return DeviceView(self._device, self._buffer, self.shape, self.dtype, self._queue, self)

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        raise TypeError("a device array is not converted to NumPy implicitly: call get()")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, on {self._device.name})"

    def _whole(self, buffer: Any) -> BufferPart:
        return BufferPart(buffer, 0, self._buffer.nbytes)


class FakeArray(DeviceArray):
    """An array on a `FakeDevice`, whose user works in the device's ``default`` queue."""

    def __init__(self, device: FakeDevice, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Make an array whose elements have any value; arguments as of `DeviceArray`."""
        super().__init__(device, device.default, shape, dtype)

    @classmethod
    def of(cls, device: FakeDevice, values: ArrayLike) -> FakeArray:
        given = np.asarray(values)
        made = cls(device, given.shape, given.dtype)
        made.set(given)
        return made


def fetched(view: DeviceView) -> NDArray[Any]:
    """Return a copy of an array on a device in pinned memory, once all that its user queued before has been done."""
    pinned, device = view.device.pinned(view.buffer.nbytes), view.device
    device.copy(view.queue, BufferPart(pinned, 0, pinned.nbytes), BufferPart(view.buffer, 0, pinned.nbytes))
    device.synchronize(view.queue)
    return pinned.view(view.dtype).reshape(view.shape)


def put_back(view: DeviceView, pinned: Bytes, nbytes: int) -> None:
    """Copy the first bytes of pinned memory to an array on a device, after what its user has queued, and wait."""
    if nbytes:
        view.device.copy(view.queue, BufferPart(view.buffer, 0, nbytes), BufferPart(pinned, 0, nbytes))
        view.device.synchronize(view.queue)


@dataclass(frozen=True)
class ViewedArray:
    """A part of an array on a device, as an argument of a call."""

    view: DeviceView

    @property
    def __cxl_device_array__(self) -> DeviceView:
        return self.view


def row_of(view: DeviceView, first: int, count: int) -> ViewedArray:
    """Return ``count`` elements of an array on a device, from element ``first`` on, as an array of one axis."""
    item = view.dtype.itemsize
    return ViewedArray(replace(view, buffer=view.buffer.part(first * item, count * item), shape=(count,)))


def address_array(view: DeviceView) -> NDArray[Any]:
    """Make a NumPy array with the address, shape and dtype of an array on a device. It must not be read or written.

    It stands for the array where only these count: which arrays overlap, and how many bytes they have.
    """
    memory: Any = (ctypes.c_uint8 * view.buffer.nbytes).from_address(view.buffer.address)
    array = np.frombuffer(memory, np.uint8) if view.buffer.nbytes else np.empty(0, np.uint8)
    stand_in: NDArray[Any] = array.view(view.dtype).reshape(view.shape)
    stand_in.flags.writeable = view.writeable
    return stand_in


def same_device(views: list[DeviceView | None], what: str) -> ComputeDevice:
    """Return the device of all arrays of a call; None among the views is an array of the host."""
    if None in views:
        raise ArgumentError(f"{what}: one array is on a device, the other on the host: copy one of them")
    devices = [view.device for view in views if view is not None]
    if any(device is not devices[0] for device in devices):
        raise ArgumentError(f"{what}: the arrays are on two devices")
    return devices[0]
