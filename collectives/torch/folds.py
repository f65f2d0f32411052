"""Reductions: torch's operators as the communicator's."""

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
    name: str  # the communicator's name of the reduction
    # what each rank's tensor is multiplied by before it is summed, a number or a tensor; None: by nothing
    factor: Any = None
    refused: frozenset[torch.dtype] = ONLY_MOVED  # the dtypes that it does not combine

    def before(self, tensor: torch.Tensor) -> None:
        """Multiply a tensor by the factor, in place."""
        if self.factor is not None:
            tensor.detach().mul_(self.factor)

    def applied(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.factor is None else tensor.detach() * self.factor


_NOT_BITS = ONLY_MOVED | {
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
}
_FOLDS = {  # by the operator's number: == of two operators takes torch longer than all else here
    hash(op): Reduction(name, refused=_NOT_BITS if name in ("band", "bor", "bxor") else ONLY_MOVED)
    for op, name in _NAMES.items()
}


def fold_of(opts: Any, tensor: torch.Tensor) -> Reduction:
    """Return how torch's options (None: a sum) combine tensors like this one."""
    op = ReduceOp.SUM if opts is None else opts.reduceOp
    fold, dtype = _FOLDS.get(hash(op)), tensor.dtype
    if fold is not None and dtype not in fold.refused:
        return fold
    if dtype in ONLY_MOVED:
        raise ValueError(f"cxl: {describe(tensor)} can be sent, but not reduced: convert it to float32 or bfloat16")
    if fold is not None:
        raise ValueError(f"cxl: {fold.name} is for integers and bool, not for {describe(tensor)}")
    if op != ReduceOp.PREMUL_SUM:
        raise ValueError(f"cxl: {op} is not a reduction of cxl: use one of {', '.join(_NAMES.values())}")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"cxl: PREMUL_SUM is for floating-point tensors, not for {describe(tensor)}")
    return Reduction("sum", op.__getstate__()[1])
