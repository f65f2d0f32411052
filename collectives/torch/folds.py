"""Reductions: torch's operators as the communicator's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from collectives.torch.tensors import ONLY_MOVED, describe

_NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.AVG: "avg",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}


class Reduction(NamedTuple):
    """How tensors are combined.

    Attributes:
        name: The communicator's name of the reduction.
        factor: What each rank's tensor is multiplied by before it is summed, a number or a tensor; None: by nothing.
    """

    name: str
    factor: Any = None

    def before(self, tensor: torch.Tensor) -> None:
        """Multiply a tensor by the factor, in place."""
        if self.factor is not None:
            tensor.detach().mul_(self.factor)

    def applied(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, or a product of it and the factor."""
        return tensor if self.factor is None else tensor.detach() * self.factor


_FOLDS = {op: Reduction(name) for op, name in _NAMES.items()}


def fold_of(opts: Any, tensor: torch.Tensor) -> Reduction:
    """Return how options of a reduction combine tensors like this one.

    Args:
        opts: torch's options with a ``reduceOp``; None for a sum.
        tensor: A tensor of the call.

    Raises:
        ValueError: Such tensors cannot be combined so.
    """
    op = ReduceOp.SUM if opts is None else opts.reduceOp
    if tensor.dtype in ONLY_MOVED:
        raise ValueError(f"cxl: {describe(tensor)} can be sent, but not reduced: convert it to float32 or bfloat16")
    fold = next((fold for known, fold in _FOLDS.items() if op == known), None)
    if fold is None:
        if op != ReduceOp.PREMUL_SUM:
            raise ValueError(f"cxl: {op} is no reduction that cxl knows: use one of {', '.join(_NAMES.values())}")
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(f"cxl: PREMUL_SUM is for floating-point tensors, not for {describe(tensor)}")
        return Reduction("sum", op.__getstate__()[1])
    if fold.name in ("band", "bor", "bxor") and (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"cxl: {fold.name} is for integers and bool, not for {describe(tensor)}")
    return fold
