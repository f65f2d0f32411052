"""Ours on arrays of a device: calls that take them as they are, and calls that are staged by hand.

By hand: the source is copied to pinned memory, the host waits for that, calls, and has the result copied back.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from collectives.communicator.calls.operations import Operation
from cxlemu.accelerator.arrays import DeviceArray
from cxlemu.accelerator.device import ComputeDevice, Queue
from cxlemu.engines.mover import BufferPart
from studies.peers.worker import Buffers, Call, OnADevice

Handle = Callable[[Buffers], Operation]


class Arrays(NamedTuple):
    """One rank's arrays on a device; None where it has no such array. In place they are the same one."""

    x: DeviceArray | None
    out: DeviceArray | None


class OnDevice(OnADevice):
    """A call on arrays of a device, repeated by Python. A time ends when the device has done it."""

    def __init__(self, call: Call, arrays: Arrays, buffers: Buffers, device: ComputeDevice, queue: Queue) -> None:
        super().__init__(call, buffers)
        self._arrays, self._device, self._queue = arrays, device, queue
        self._ones = None
        if arrays.x is not None:
            self._ones = arrays.x.like(arrays.x.shape)
            self._ones.set(np.ones(arrays.x.shape, arrays.x.dtype))
            device.synchronize(queue)

    def once(self) -> None:
        """Copy the source there, make the call, and copy the result back."""
        x, out = self._arrays
        if x is not None:
            x.set(self.buffers.x)  # type: ignore[arg-type]  # both have a source, or neither
        self._call()
        if out is not None:
            self.buffers.out[:] = out.get()  # type: ignore[index]

    def _wait(self) -> None:
        self._device.synchronize(self._queue)

    def _fill(self) -> None:
        if self._ones is not None and self._arrays.x is not None:
            move(self._device, self._queue, self._arrays.x, self._ones)


def device_paths(private: Buffers, device: ComputeDevice, handle: Handle) -> dict[str, OnDevice]:
    """Prepare a call's paths on a device: "device", which takes its arrays, and "hand"."""
    queue = device.queue()

    def made(host: np.ndarray | None) -> DeviceArray | None:
        return None if host is None else DeviceArray(device, queue, host.shape, host.dtype)

    def pinned(array: DeviceArray | None) -> np.ndarray | None:
        return None if array is None else device.pinned(array.shape[0] * 4).view(np.float32)

    out, in_place = made(private.out), private.x is private.out
    arrays = Arrays(out if in_place else made(private.x), out)
    host_out = pinned(out)
    host = Buffers(host_out if in_place else pinned(arrays.x), host_out)
    call = handle(host)

    def staged() -> None:
        if arrays.x is not None:
            move(device, queue, host.x, arrays.x)
        device.synchronize(queue)
        call()
        if arrays.out is not None:
            move(device, queue, arrays.out, host.out)

    return {
        "device": OnDevice(handle(Buffers(*arrays)), arrays, private, device, queue),  # type: ignore[arg-type]
        "hand": OnDevice(staged, arrays, private, device, queue),
    }


def move(device: ComputeDevice, queue: Queue, to: DeviceArray | np.ndarray | None, source: object) -> None:
    """Queue a copy between arrays of the same size, of the device or pinned."""
    device.copy(queue, _whole(to), _whole(source))


def _whole(array: object) -> BufferPart:
    if isinstance(array, DeviceArray):
        buffer = array.__cxl_device_array__.buffer
        return BufferPart(buffer, 0, buffer.nbytes)
    assert isinstance(array, np.ndarray)
    return BufferPart(array.view(np.uint8), 0, array.nbytes)
