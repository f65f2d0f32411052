"""Named local kernels of COMPUTE: what each one computes, and how many bytes it touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes

DIMENSION_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class KernelKind:
    """``run`` (parameters, output, inputs) writes the output in place; ``sizes`` (parameters) are bytes, output first.

    ``sizes`` raises ArgumentError for parameters that make no sense.
    """

    run: Callable[[tuple[int, ...], Bytes, Sequence[Bytes]], None]
    sizes: Callable[[tuple[int, ...]], tuple[int, ...]]


def _gemm_sizes(parameters: tuple[int, ...]) -> tuple[int, ...]:
    if len(parameters) != 3 or not all(0 < p <= DIMENSION_MAX for p in parameters):
        raise ArgumentError(f"gemm_f32 takes m, n and k from 1 to {DIMENSION_MAX}, not {parameters}")
    m, n, k = parameters
    return m * n * 4, m * k * 4, k * n * 4


def _gemm_f32(parameters: tuple[int, ...], out: Bytes, inputs: Sequence[Bytes]) -> None:
    """One tile C = A @ B, row-major f32: A is m x k, B is k x n."""
    m, n, k = parameters
    a, b = (operand.view(np.float32) for operand in inputs)
    out.view(np.float32).reshape(m, n)[:] = a.reshape(m, k) @ b.reshape(k, n)


KERNELS = {"gemm_f32": KernelKind(_gemm_f32, _gemm_sizes)}
