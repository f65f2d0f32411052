"""Arrays of other libraries as NumPy's, without a copy: DLPack (dmlc.github.io/dlpack).

Memory of a device is shown by its address alone: only the device reads or writes it. NumPy's own `from_dlpack` knows no
bf16 and no f8, and makes some arrays read-only that are not.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError

_CPU_DEVICES = {1, 3, 11, 13}  # the CPU's own memory, and memory that CUDA, ROCm or both pin or manage for it
_READ_ONLY = 1
_MOST_AXES = 64


class _Device(Structure):
    _fields_ = (("type", c_int32), ("id", c_int32))


class _DataType(Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Versioned(Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    )


_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}
_F8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")  # codes from 7 on

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = c_char_p, (ctypes.py_object,)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)


def from_dlpack(other: Any, role: str) -> NDArray[Any]:
    """View an array that is resolved of another library as NumPy's, which keeps its memory; read-only if that library
    says so."""
    what = _what(other, role)
    if (device := device_of(other, role)[0]) not in _CPU_DEVICES:
        raise ArgumentError(f"{what} is not in the CPU's memory (DLPack device {device}): copy it to the host first")
    return _lent(other, what)


def from_device(other: Any, role: str, stream: int) -> NDArray[Any]:
    """View an array on a device by its address, and keep its memory; the view may be neither read nor written."""
    return _lent(other, _what(other, role), stream=stream)


def device_of(other: Any, role: str) -> tuple[int, int]:
    """Return the kind and the number of the device on which an array of DLPack lies; (0, 0) for what is none."""
    try:
        kind, number = other.__dlpack_device__() if hasattr(other, "__dlpack_device__") else (0, 0)
    except Exception as error:  # a library refuses as it likes, such as for a tensor without memory
        what = f"{_what(other, role)} is without memory, or"
        raise ArgumentError(f"{what} is on a device unknown to DLPack: {error}") from error
    return int(kind), int(number)


def check_resolved(other: Any, role: str) -> None:
    """Refuse a tensor of torch that is conjugated or negated later, sparse, or zeros without memory: its memory holds
    other numbers than it has."""
    layout = getattr(other, "layout", None)
    if type(layout).__module__ == "torch" and str(layout) != "torch.strided":
        raise ArgumentError(f"{role} is a tensor of layout {layout}: pass {role}.to_dense()")
    if getattr(other, "_is_zerotensor", bool)():
        raise ArgumentError(f"{role} is a tensor of zeros without memory: pass {role}.clone()")
    for lazy in ("conj", "neg"):
        if getattr(other, f"is_{lazy}", bool)():
            what = {"conj": "conjugated", "neg": "negated"}[lazy]
            raise ArgumentError(f"{role} is a tensor to be {what} later: pass {role}.resolve_{lazy}()")


def pin(*arguments: Any) -> None:
    """Keep the storages of torch's tensors, also of those in lists, from being resized from now on, as ``numpy()`` of a
    tensor does: what runs while their user goes on reads or writes them."""
    for tensor in _tensors(arguments):
        if (storage := tensor.untyped_storage()).resizable() and storage.device.type == "cpu":
            torch = sys.modules["torch"]
            torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _tensors(arguments: Iterable[Any]) -> Iterator[Any]:
    torch: Any = sys.modules.get("torch")
    for argument in arguments if torch is not None else ():
        if isinstance(argument, (list, tuple)):
            yield from _tensors(argument)
        elif isinstance(argument, torch.Tensor) and argument.layout is torch.strided:
            yield argument


def _what(other: Any, role: str) -> str:
    return f"{role}, a {type(other).__module__}.{type(other).__name__},"


def _lent(other: Any, what: str, **asked: int) -> NDArray[Any]:
    try:
        # a capsule keeps a tensor of torch, whose memory may become another one
        storage = other.untyped_storage() if hasattr(other, "untyped_storage") else None
        if storage is not None and storage.device.type == "meta":
            raise ArgumentError("it is a fake one, without memory")
        try:
            capsule = other.__dlpack__(max_version=(1, 0), **asked)
        except TypeError:  # a library of before DLPack 1.0
            capsule = other.__dlpack__(**asked)
    except Exception as error:  # a library refuses as it likes, such as for a tensor that needs gradients
        raise ArgumentError(f"{what} cannot be exported by its library: {error}") from error
    name, read_only = _name(capsule), False
    if name == b"dltensor_versioned":
        versioned = _Versioned.from_address(_pointer(capsule, name))
        if versioned.major != 1:
            raise ArgumentError(f"{what} uses DLPack {versioned.major}.{versioned.minor}: 1.x is needed")
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    array = _view(tensor, capsule, storage, what)
    if read_only:
        array.flags.writeable = False
    return array


def _view(tensor: _Tensor, capsule: object, storage: Any, what: str) -> NDArray[Any]:
    if not 0 <= tensor.ndim <= _MOST_AXES:
        raise ArgumentError(f"{what} has {tensor.ndim} axes")
    dtype = _dtype(tensor.dtype, what)
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, dtype)
    steps = [1] * tensor.ndim
    for k in range(tensor.ndim - 2, -1, -1):
        steps[k] = steps[k + 1] * shape[k + 1]
    if tensor.strides:
        steps = [tensor.strides[k] for k in range(tensor.ndim)]
    if any(step < 0 for step in steps):
        raise ArgumentError(f"{what} runs backwards along an axis: pass a copy")
    begin = (tensor.data or 0) + tensor.byte_offset
    nbytes = (1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))) * dtype.itemsize
    room = None if storage is None else storage.data_ptr() + storage.nbytes() - begin
    if not tensor.data or (room is not None and room < nbytes):
        raise ArgumentError(f"{what} has {max(room or 0, 0)} bytes of memory, its elements have {nbytes}")
    memory = (c_uint8 * nbytes).from_address(begin)
    memory.owner = capsule, storage
    return np.ndarray(shape, dtype, buffer=memory, strides=[step * dtype.itemsize for step in steps])


def _dtype(of: _DataType, what: str) -> np.dtype[Any]:
    if of.lanes == 1 and of.bits % 8 == 0 and of.code in _KINDS:
        with suppress(TypeError):
            number: np.dtype[Any] = np.dtype(f"{_KINDS[of.code]}{of.bits // 8}")
            return number
    dtype: Any = {(4, 16): ml_dtypes.bfloat16, (6, 8): np.bool_}.get((of.code, of.bits))
    if of.bits == 8 and 0 <= of.code - 7 < len(_F8):
        dtype = getattr(ml_dtypes, f"float8_{_F8[of.code - 7]}")
    if of.lanes != 1 or dtype is None:
        raise ArgumentError(
            f"{what} has elements of a type that NumPy lacks (DLPack code {of.code}, {of.bits} bits): convert it"
        )
    other: np.dtype[Any] = np.dtype(dtype)
    return other
