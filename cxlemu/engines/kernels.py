"""Named local kernels of COMPUTE: (parameters, output bytes, input bytes) -> None, output written in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cxlemu.memory.protocol import Bytes

KernelFunction = Callable[[tuple[int, ...], Bytes, Sequence[Bytes]], None]


def gemm_f32(parameters: tuple[int, ...], out: Bytes, inputs: Sequence[Bytes]) -> None:
    """One tile C = A @ B, row-major f32: parameters (m, n, k), A is m x k, B is k x n."""
    m, n, k = parameters
    a = inputs[0][: m * k * 4].view(np.float32).reshape(m, k)
    b = inputs[1][: k * n * 4].view(np.float32).reshape(k, n)
    out.view(np.float32).reshape(m, n)[:] = a @ b


KERNELS: dict[str, KernelFunction] = {"gemm_f32": gemm_f32}
