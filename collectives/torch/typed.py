"""A future of a list of tensors that C++ knows for one: torch's FP16_COMPRESS hook of DDP accepts no other.

Futures that Python makes are of a Python object. Only TorchScript makes a typed one that has no value yet.
"""

import warnings
from functools import cache
from typing import Any

import torch


def needs_type(tensors: list[Any]) -> bool:
    """Whether a call's result goes to a hook in C++ that looks at the future's type: tensors of float16."""
    return bool(tensors) and isinstance(tensors[0], torch.Tensor) and tensors[0].dtype is torch.float16


def typed_future(ends: torch.futures.Future[Any], tensors: list[torch.Tensor]) -> Any:
    """Make a future of tensors that ends after another one, in a thread of torch's, and fails as that does."""
    return _scripted()(ends, tensors)


@cache
def _scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons call TorchScript old
        return torch.jit.script(_fork)


def _follow(ends: torch.jit.Future[torch.Tensor], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.jit.wait(ends)
    return tensors


def _fork(ends: torch.jit.Future[torch.Tensor], tensors: list[torch.Tensor]) -> torch.jit.Future[list[torch.Tensor]]:
    return torch.jit.fork(_follow, ends, tensors)
