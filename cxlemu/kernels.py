"""Named local kernels of COMPUTE: what each one computes, and how many bytes it touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cxlemu.checksums import CHECKSUM_BYTES, checksum
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes

DIMENSION_MAX = 1 << 24
CHECKED_BYTES_MAX = 1 << 40


class ChecksumError(Exception):
    """Bytes are not those whose checksum came with them. Engines know whose they are: `Running.damaged`."""


@dataclass(frozen=True, slots=True)
class KernelKind:
    """``run`` (parameters, output, inputs) writes the output in place; ``sizes`` (parameters) are bytes, output first.

    ``sizes`` raises ArgumentError for parameters that make no sense. What a kernel that only ``checks`` writes is no
    part of any result.
    """

    run: Callable[[tuple[int, ...], Bytes, Sequence[Bytes]], None]
    sizes: Callable[[tuple[int, ...]], tuple[int, ...]]
    checks: bool = False


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


def _checked_bytes(name: str, parameters: tuple[int, ...]) -> int:
    if len(parameters) != 1 or not 0 < parameters[0] <= CHECKED_BYTES_MAX:
        raise ArgumentError(f"{name} takes a number of bytes from 1 to {CHECKED_BYTES_MAX}, not {parameters}")
    return parameters[0]


def _crc32c(parameters: tuple[int, ...], out: Bytes, inputs: Sequence[Bytes]) -> None:
    """The checksum of so many bytes."""
    out[:] = checksum(inputs[0])


def _crc32c_check(parameters: tuple[int, ...], out: Bytes, inputs: Sequence[Bytes]) -> None:
    """The same, compared with the one that came with the bytes. Raises ChecksumError where they differ."""
    data, came = inputs
    out[:] = checksum(data)
    if not np.array_equal(out, came):
        raise ChecksumError


KERNELS = {
    "gemm_f32": KernelKind(_gemm_f32, _gemm_sizes),
    "crc32c": KernelKind(_crc32c, lambda p: (CHECKSUM_BYTES, _checked_bytes("crc32c", p)), checks=True),
    "crc32c_check": KernelKind(
        _crc32c_check, lambda p: (CHECKSUM_BYTES, _checked_bytes("crc32c_check", p), CHECKSUM_BYTES), checks=True
    ),
}
