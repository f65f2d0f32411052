"""Tensors as arrays that a communicator takes, without a copy where they are dense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from collectives.communicator.arrays import Array

# What NumPy has no dtype for is seen as one of equally large elements, and called what the communicator calls it.
_SEEN_AS = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.complex32: (torch.int32, np.dtype(np.int32)),
    **{getattr(torch, name): (torch.uint8, np.dtype(np.uint8)) for name in dir(torch) if name.startswith("float8_")},
}
ONLY_MOVED = frozenset(_SEEN_AS) - {torch.bfloat16}  # no sum of these is what their bytes' would be


def check(*tensors: torch.Tensor) -> None:
    """Check that tensors can be sent. Raises ValueError for one that is not on the CPU or is sparse."""
    for tensor in tensors:
        if not tensor.is_cpu:
            raise ValueError(
                f"cxl sends tensors of the CPU; {describe(tensor)} is on {tensor.device}: send tensor.cpu(), or begin "
                "with init_process_group('cpu:cxl,cuda:nccl')"
            )
        if tensor.layout is not torch.strided:
            raise ValueError(f"cxl sends dense tensors, {describe(tensor)} is {tensor.layout}")


def as_array(tensor: torch.Tensor) -> Array:
    """View a dense tensor as a 1-D array; it shares the tensor's memory."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.ndim != 1:
        tensor = tensor.reshape(-1)
    if tensor.dtype in _SEEN_AS:
        seen, called = _SEEN_AS[tensor.dtype]
        seen_as: Array = tensor.view(seen).numpy().view(called)
        return seen_as
    array: Array = tensor.numpy()
    return array


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if its elements lie one after another in memory and are what they seem, else such a copy."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def store(place: torch.Tensor, tensor: torch.Tensor) -> None:
    """Store a result to the tensor that it is for, where its `dense` place is another one."""
    if place is not tensor:
        tensor.detach().copy_(place)


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one dense 1-D tensor of all elements, one tensor after another."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def room(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a 1-D tensor with room for the elements of all."""
    return torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)


def spread(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Store the elements of a 1-D tensor to tensors, one tensor after another."""
    parts = whole.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def describe(tensor: Any) -> str:
    """Name a tensor in a few words, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
