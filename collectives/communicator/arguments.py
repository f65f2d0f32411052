"""What a user may pass as an array: NumPy's, what shares its memory with it, and what is not contiguous."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from collectives.communicator.arrays import Array
from collectives.communicator.operations import Operation
from cxlemu.accelerator.arrays import ATTRIBUTE, device_view
from cxlemu.dlpack import from_dlpack
from cxlemu.errors import ArgumentError


def as_array(argument: Any, role: str) -> Array:
    """View an argument as a NumPy array, without a copy.

    Args:
        argument: An array, or an object with the buffer protocol (bytearray, memoryview, array.array) or DLPack
            (tensors of other libraries in the CPU's memory).
        role: The argument's name, for messages.

    Returns:
        The array itself, or one that shares the object's memory and keeps it.

    Raises:
        ArgumentError: It is none of these, has a mask, or is not in the CPU's memory.
    """
    if _is_masked(argument):
        raise ArgumentError(f"{role} is a masked array: its mask would be lost, so pass {role}.filled(VALUE)")
    if isinstance(argument, np.ndarray):
        return argument
    if hasattr(argument, ATTRIBUTE):
        raise ArgumentError(f"{role} lives on a device: this call takes arrays of the host")
    if hasattr(argument, "__dlpack__"):
        return from_dlpack(argument, role)
    try:
        return np.asarray(memoryview(argument))
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"{role} is a {type(argument).__name__}: a NumPy array is needed, or what shares its memory by the buffer "
            f"protocol or DLPack"
        ) from None


def _is_masked(argument: Any) -> bool:
    """Whether an argument is a masked array; without `numpy.ma`, which takes long to import, there is none."""
    return "numpy.ma" in sys.modules and isinstance(argument, np.ma.MaskedArray)


def like(x: Any, role: str, shape_for: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple) -> Array:
    """Make an array for a result.

    Args:
        x: The array that it is made for: it lives where this one does, and has its dtype.
        role: The argument's name, for messages.
        shape_for: Says which shape is right for that of ``x``.

    Raises:
        ArgumentError: ``x`` is no array, or has no shape that is right.
    """
    if not isinstance(x, np.ndarray) and (view := device_view(x, role)) is not None:
        made: Array = view.kin.like(shape_for(view.shape))
        return made
    given = as_array(x, role)
    return np.empty(shape_for(given.shape), given.dtype)


class CopiesAround(Protocol):
    """What is copied before and after a call."""

    def fill(self) -> None:
        """Copy before the call."""

    def copy_back(self) -> None:
        """Copy after it."""


@dataclass
class Staging:
    """Contiguous stand-ins for arrays that are not: filled before a call, and copied back after it.

    Attributes:
        before: What is copied before each call: (to, from).
        after: What is copied after it.
    """

    before: list[tuple[Array, Array]] = field(default_factory=list)
    after: list[tuple[Array, Array]] = field(default_factory=list)

    def arrays(self, x: Any, out: Any) -> tuple[Array | None, Array | None]:
        """Turn a call's arguments into contiguous arrays.

        Args:
            x: The input, or None.
            out: What the result goes to, or None; the same object as ``x`` where it replaces it.

        Returns:
            Both as arrays; where one is not contiguous, a private one like it, which is staged.

        Raises:
            ArgumentError: One is no array, see `as_array`, or the result would go to read-only memory.
        """
        source = None if x is None else as_array(x, "x")
        target = source if out is x else None if out is None else as_array(out, "out")
        given = target
        if target is not None and not target.flags.c_contiguous:
            if not target.flags.writeable:
                raise ArgumentError("out is read-only, the result cannot be written to it")
            target = np.empty(target.shape, target.dtype)
            self.after.append((given, target))  # type: ignore[arg-type]
        if source is None or source.flags.c_contiguous:
            return source, target
        private = target if given is source and target is not None else np.empty(source.shape, source.dtype)
        self.before.append((private, source))
        return private, target

    def fill(self) -> None:
        """Copy before the call."""
        for to, source in self.before:
            np.copyto(to, source)

    def copy_back(self) -> None:
        """Copy after it."""
        for to, source in self.after:
            np.copyto(to, source)

    def __bool__(self) -> bool:
        return bool(self.before or self.after)


@dataclass(frozen=True)
class Staged:
    """An operation on stand-ins for its arrays.

    Attributes:
        inner: The operation on the stand-ins.
        staging: What is copied before and after it.
        result: What a run returns.
        turn: Runs an operation when this rank's earlier calls have ended.
    """

    inner: Operation
    staging: CopiesAround
    result: Any
    turn: Callable[[Operation], Any]

    def __call__(self) -> Any:
        return self.turn(self)

    def run(self) -> Any:
        """Copy in, run the call at once, copy back. Returns the result, and raises what the call raises."""
        self.staging.fill()
        self.inner.run()
        self.staging.copy_back()
        return self.result
