"""Tensors as arrays that a communicator takes, without a copy where they are dense."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from collectives.communicator.arrays import Array
from collectives.torch.harness import Installed
from cxlemu import _native

# What NumPy has no dtype for only moves, as elements of the same size; bf16 is what the communicator calls it.
_ALIKE = {name: getattr(torch, name) for name in ("bool", "float16", "float32", "float64", "complex64", "complex128")}
_ALIKE |= {name: getattr(torch, name) for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")}
_MOVED = {torch.complex32: np.int32, **{getattr(torch, n): np.uint8 for n in dir(torch) if n.startswith("float8_")}}
ONLY_MOVED = frozenset(_MOVED)  # no sum of these is what their bytes' would be
_SEEN_AS = {
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    **{dtype: np.dtype(name) for name, dtype in _ALIKE.items()},
    **{dtype: np.dtype(seen) for dtype, seen in _MOVED.items()},
}


def check(*tensors: torch.Tensor) -> None:
    """Check that tensors can be sent together."""
    for tensor in tensors:
        if not (tensor.is_cpu or tensor.is_cuda):
            raise ValueError(
                f"cxl sends tensors of the CPU and of CUDA; {describe(tensor)} is on {tensor.device}: send tensor.cpu()"
            )
        if tensor.is_cuda != tensors[0].is_cuda:
            raise ValueError(f"cxl: {describe(tensors[0])} and {describe(tensor)} are on the CPU and on a GPU")
        if tensor.is_nested:
            raise ValueError("cxl sends dense tensors, not nested ones: send tensor.values() and tensor.offsets()")
        if tensor.layout is not torch.strided:
            what = f"cxl sends dense tensors, {describe(tensor)} is {tensor.layout}: send tensor.to_dense()"
            raise ValueError(what + "; all_reduce sums sparse_coo" * (tensor.layout is torch.sparse_coo))
        if tensor.is_quantized:
            raise ValueError(f"cxl sends no {describe(tensor)}, which is quantized: send tensor.int_repr()")
        if tensor.dtype not in _SEEN_AS:
            raise ValueError(f"cxl sends no {describe(tensor)}: send its bytes, tensor.view(torch.uint8)")


def shared(tensor: torch.Tensor) -> Array | None:
    """View a tensor where `check` and `dense` have nothing to do, at the least cost; None for others and empty ones."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    seen_as, count = _SEEN_AS.get(tensor.dtype), tensor.numel()
    if not count or seen_as is None:
        return None
    return _native.borrowed(tensor.data_ptr(), count, seen_as, tensor.untyped_storage())


class GpuTensor:
    """A dense tensor of a GPU as a 1-D array that a communicator takes; see `cxlemu.accelerator.arrays`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        plain = tensor.detach().reshape(-1)
        if tensor.dtype in _MOVED:
            plain = plain.view(_ALIKE[np.dtype(_MOVED[tensor.dtype]).name])
        self._tensor, self.size, self.nbytes = plain, tensor.numel(), tensor.nbytes

    @property
    def __cxl_device_array__(self) -> Any:
        return gpu_view(self._tensor, "tensor")  # each time, as its stream is the one that is current


def gpu_view(tensor: torch.Tensor, role: str) -> Any:
    """View a tensor of a GPU as a `DeviceView`. Raises as `cuda_view`, and ArgumentError without NVIDIA's package."""
    from cxlemu.accelerator.cuda import cuda_view  # NVIDIA's package, for tensors of its GPUs alone

    return cuda_view(tensor, role)


def as_array(tensor: torch.Tensor) -> Any:
    """View a dense tensor as a 1-D array, which keeps its memory, even where the tensor gets another."""
    if tensor.is_cuda:
        if Installed.harness is not None:
            raise ValueError(
                f"cxl: under cxlemu torchrun calls take tensors of the CPU, not {describe(tensor)} of a GPU"
            )
        return GpuTensor(tensor)
    return _native.borrowed(tensor.data_ptr(), tensor.numel(), _SEEN_AS[tensor.dtype], tensor.untyped_storage())


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if its elements lie one after another in memory and are what they seem, else such a copy."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def store(place: torch.Tensor, tensor: torch.Tensor) -> None:
    """Store a result to the tensor that it is for, where its `dense` place is another one."""
    if place is not tensor:
        _copy(tensor.detach(), place)


def _copy(tensor: torch.Tensor, place: torch.Tensor) -> None:
    """Copy elements; of those that share their memory, as an expanded tensor's do, the last one stays, as with Gloo."""
    for number, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[number] > 1:
            tensor, place = tensor.narrow(number, 0, 1), place.narrow(number, -1, 1)
    tensor.copy_(place)


def nbytes(tensor: torch.Tensor) -> int:
    """Return the size in bytes of what a call sends of a tensor."""
    return int(tensor.nbytes if tensor.layout is torch.strided else tensor._values().nbytes)


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one dense 1-D tensor of all elements, one tensor after another."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def room(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))


def spread(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Store the elements of a 1-D tensor to tensors, one tensor after another."""
    parts = whole.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        _copy(tensor.detach(), part.view(tensor.shape))


def describe(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
