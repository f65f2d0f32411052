"""Results in kind: arrays like a user's, made by the library that his is of."""

import sys
from dataclasses import dataclass
from typing import Any

from cxlemu.errors import ArgumentError


@dataclass(frozen=True)
class ArrayKin:
    """Makes arrays like one of torch, of a library that follows the array API standard, or of CuPy and its like."""

    array: Any

    def like(self, shape: tuple[int, ...]) -> Any:
        its = self.array
        if hasattr(its, "new_empty"):
            return its.new_empty(shape)
        if hasattr(its, "__array_namespace__"):
            return its.__array_namespace__().empty(shape, dtype=its.dtype, device=its.device)
        library = sys.modules.get(type(its).__module__.partition(".")[0])
        if library is None or not hasattr(library, "empty"):
            raise ArgumentError(f"cannot allocate an array like a {type(its).__name__}: pass out")
        with its.device:
            return library.empty(shape, its.dtype)
