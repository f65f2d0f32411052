"""An array of another library that has DLPack alone, on a fake device: its user works in a queue of its own."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cxlemu.accelerator.arrays import FakeArray, fetched
from cxlemu.accelerator.device import DeviceView
from cxlemu.accelerator.fake import DLPACK_DEVICE, FakeDevice
from cxlemu.dlpack import _READ_ONLY, _Versioned
from cxlemu.engines.mover import BufferPart

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
CODES = {"i": 0, "u": 1, "f": 2, "c": 5}


class LentArray:
    """Of a library that follows the array API standard; ``asked`` are the streams that consumers named."""

    def __init__(self, device: FakeDevice, shape: Any, dtype: Any, queue: Any = None) -> None:
        self._array = FakeArray(device, tuple(shape), dtype)
        self.device, self.queue, self.asked = device, device.queue() if queue is None else queue, []
        self.shape, self.dtype, self.flags, self.strides = self._array.shape, self._array.dtype, 0, None
        self._kept: list[Any] = []

    @classmethod
    def of(cls, device: FakeDevice, values: Any) -> LentArray:
        made = cls(device, values.shape, values.dtype)
        made.set(values)
        return made

    def set(self, values: Any) -> None:
        """Queued in the array's own queue."""
        pinned = self.device.pinned(values.nbytes)
        pinned[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._move(self._buffer, pinned)

    def get(self) -> Any:
        view = self._array.__cxl_device_array__
        return fetched(DeviceView(view.device, view.buffer, view.shape, view.dtype, self.queue, view.kin))

    @property
    def _buffer(self) -> Any:
        return self._array.__cxl_device_array__.buffer

    def _move(self, to: Any, source: Any) -> None:
        self.device.copy(self.queue, BufferPart(to, 0, source.nbytes), BufferPart(source, 0, source.nbytes))

    def __array_namespace__(self) -> Any:
        return Library

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_DEVICE, self.device.number

    def __dlpack__(self, *, stream: int, max_version: tuple[int, int]) -> Any:
        self.asked.append(stream)
        self.device.wait(self.device.queue_of(stream), self.device.record(self.queue))
        its = _Versioned()
        shape = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        its.major, its.flags, tensor = 1, self.flags, its.tensor
        tensor.data, tensor.ndim, tensor.shape = self._buffer.address, len(self.shape), shape
        tensor.device.type, tensor.device.id = self.__dlpack_device__()
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = CODES[self.dtype.kind], self.dtype.itemsize * 8, 1
        if self.strides is not None:
            steps = (ctypes.c_int64 * len(self.strides))(*self.strides)
            tensor.strides = steps
            self._kept.append(steps)
        self._kept += [its, shape]
        return _new(ctypes.addressof(its), b"dltensor_versioned", None)


class Library:
    """What such an array says it is of."""

    @staticmethod
    def empty(shape: Any, *, dtype: Any, device: FakeDevice) -> LentArray:
        return LentArray(device, shape, dtype)


READ_ONLY = _READ_ONLY
