"""What a user may pass as an array: NumPy's, what shares its memory with it, and what is not contiguous."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collectives.communicator.arrays import Array, check_distinct
from cxlemu.accelerator.arrays import ATTRIBUTE, device_view
from cxlemu.dlpack import from_dlpack
from cxlemu.errors import ArgumentError


def as_array(argument: Any, role: str) -> Array:
    """View an array, or an object with buffers or DLPack, as a NumPy array that shares and keeps its memory."""
    if _is_masked(argument):
        raise ArgumentError(f"{role} is a masked array: its mask would be lost, so pass {role}.filled(VALUE)")
    if isinstance(argument, np.ndarray):
        return np.asarray(argument)  # a subclass may index, reshape and copy in its own way, as np.matrix does
    if hasattr(argument, ATTRIBUTE):
        raise ArgumentError(f"{role} lives on a device: this call takes arrays of the host")
    if hasattr(argument, "__dlpack__"):
        return from_dlpack(argument, role)
    try:
        return np.asarray(memoryview(argument))
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"{role} is a {type(argument).__name__}: a NumPy array is needed, or an object that shares its memory "
            "by the buffer protocol or DLPack"
        ) from None


def viewed(argument: Any, role: str) -> Any:
    """View an array of the host as NumPy's, as `as_array`; return one on a device as it is."""
    on_device = not isinstance(argument, np.ndarray) and device_view(argument, role) is not None
    return argument if on_device else as_array(argument, role)


def _is_masked(argument: Any) -> bool:
    """Whether an argument is a masked array; without `numpy.ma`, which takes long to import, there is none."""
    return "numpy.ma" in sys.modules and isinstance(argument, np.ma.MaskedArray)


def like(x: Any, role: str, shape_for: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple) -> Array:
    """Make an array for a result, where ``x`` lives and of its dtype."""
    if not isinstance(x, np.ndarray) and (view := device_view(x, role)) is not None:
        made: Array = view.kin.like(shape_for(view.shape))
        return made
    given = as_array(x, role)
    result: Array = made_like(x, shape_for(given.shape), given.dtype)
    return result


def blocks_like(x: Any, role: str, size: int) -> Array:
    """Make an array for a block of each of ``size`` ranks, as ``x`` is one."""
    return like(x, role, lambda shape: (size, *shape))


def block_like(x: Any, role: str, size: int, verb: str) -> Array:
    """Make an array for one of ``size`` blocks that the first axis of ``x`` divides into."""

    def block(shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] % size:
            raise ArgumentError(
                f"{verb}: {role} of shape {shape} does not divide into {size} blocks; pass out, or reshape {role}"
            )
        return (shape[0] // size, *shape[1:])

    return like(x, role, block)


def made_like(x: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Make an array of the host, of the kind of ``x``: a tensor of torch where that is one, or else NumPy's."""
    new_empty = getattr(x, "new_empty", None)
    return np.empty(shape, dtype) if new_empty is None else new_empty(shape)


@dataclass
class Staging:
    """Contiguous stand-ins for arrays that are not: filled before a call, and copied back after it."""

    before: list[tuple[Array, Array]] = field(default_factory=list)  # what is copied before each call: (to, from)
    after: list[tuple[Array, Array]] = field(default_factory=list)  # what is copied after it

    def arrays(self, x: Any, out: Any, *, only_read: bool = False) -> tuple[Array | None, Array | None]:
        """Turn arguments into contiguous arrays, private and staged where they are not; ``out`` may be ``x`` itself.

        ``only_read``: the call leaves ``out`` as it is.
        """
        source = None if x is None else as_array(x, "x")
        target = source if out is x else None if out is None else as_array(out, "out")
        given = target
        if target is not None and not target.flags.c_contiguous:
            if not (target.flags.writeable or only_read):
                raise ArgumentError(f"{'x' if out is x else 'out'} is read-only: the result cannot be written to it")
            target = np.empty(target.shape, target.dtype)
            if not only_read:
                check_distinct(given, "x" if out is x else "out")  # type: ignore[arg-type]
                self.after.append((given, target))  # type: ignore[arg-type]
        if source is None or source.flags.c_contiguous:
            return source, target
        private = target if given is source and target is not None else np.empty(source.shape, source.dtype)
        self.before.append((private, source))
        return private, target

    def fill(self) -> None:
        for to, source in self.before:
            np.copyto(to, source)

    def copy_back(self) -> None:
        for to, source in self.after:
            np.copyto(to, source.reshape(to.shape))

    def __bool__(self) -> bool:
        return bool(self.before or self.after)
