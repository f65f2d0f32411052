"""What torch's profiler sees of calls: ranges such as ``cxl:all_reduce``, with the metadata that torch's own have.

A synchronous call's range is as long as the call. An asynchronous one's says when it was made, as torch's do; the range
``cxl:wait`` says when a caller waited for it. The profiler keeps metadata with ``record_shapes=True``.

torch's own event `record_param_comms` takes its metadata from an object of C++ that Python cannot make: a range of that
name without the object ends the process in torch 2.13.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from collectives.torch import tensors as of

_numbers = itertools.count()  # of calls


class SeenCall:
    """A call while the profiler looks: a range, whose ``number`` the waits for it name."""

    def __init__(self, name: str, sent: Sequence[Tensor], about: dict[str, Any], *, asynchronous: bool) -> None:
        self.number = next(_numbers)
        details = {"Collective name": name, "dtype": str(sent[0].dtype).removeprefix("torch.") if sent else "", **about}
        details |= {"In msg nelems": _elements(sent), "In msg bytes": sum(map(of.nbytes, sent))}
        details |= {"Async": asynchronous, "Call": self.number}
        self._range = _range(f"cxl:{name}", sent, details)
        if asynchronous:
            with self._range:
                pass

    def around(self, run: Callable[[], None]) -> Callable[[], None]:
        def ranged() -> None:
            with self._range:
                run()

        return ranged

    def waited(self) -> Any:
        return _range("cxl:wait", (), {"Call": self.number})


def received(result: Any) -> int:
    """Count the elements that a call gives, in lists of any depth."""
    return sum(each.numel() if isinstance(each, Tensor) else received(each) for each in result)


def _range(name: str, sent: Sequence[Tensor], about: dict[str, Any]) -> Any:
    return torch._C._profiler._RecordFunctionFast(name, list(sent), about | {"scope": "user_scope"})


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
