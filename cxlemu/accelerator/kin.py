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
        model = self.array
        if hasattr(model, "new_empty"):
            return model.new_empty(shape)
        if hasattr(model, "__array_namespace__"):
            return model.__array_namespace__().empty(shape, dtype=model.dtype, device=model.device)
        library = sys.modules.get(type(model).__module__.partition(".")[0])
        if library is None or not hasattr(library, "empty"):
            raise ArgumentError(f"cannot allocate an array like a {type(model).__name__}: pass out")
        with model.device:
            return library.empty(shape, model.dtype)
