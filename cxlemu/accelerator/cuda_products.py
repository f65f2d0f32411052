"""Products of matrices on a GPU: cuBLAS where NVIDIA's ``nvmath-python`` is, else a kernel of ours.

Each rounds in its own way, as any BLAS does: the bits are those of one GPU and one library, and the same for all ranks
where a sum over ranks is folded in rank order. Tests run the kernel on the CPU, and cuBLAS's calls on a stand-in.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from cxlemu.accelerator.device import TileProduct
from cxlemu.accelerator.fold_kernel import ELEMENTS, kernel_options
from cxlemu.errors import DeviceError
from cxlemu.plan import RedOp

try:
    from nvmath.bindings import cublas
except ImportError:  # our own kernel then
    cublas = None

SIDE = 4  # a thread computes this many rows and columns, which it keeps in registers
# Sums in f32 (of f64 in f64), element after element, from the left.
KERNEL = (
    ELEMENTS
    + r"""
extern "C" __global__ void multiply(T *c, const T *a, const T *b, long long m, long long n, long long k,
                                    long long lda, long long ldb, long long ldc) {
    const long long across = (n + CXL_SIDE - 1) / CXL_SIDE, tiles = (m + CXL_SIDE - 1) / CXL_SIDE * across;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long tile = (long long)blockIdx.x * blockDim.x + threadIdx.x; tile < tiles; tile += step) {
        const long long row = tile / across * CXL_SIDE, column = tile % across * CXL_SIDE;
        const int rows = m - row < CXL_SIDE ? (int)(m - row) : CXL_SIDE;
        const int columns = n - column < CXL_SIDE ? (int)(n - column) : CXL_SIDE;
        W sums[CXL_SIDE][CXL_SIDE] = {{0}};
        for (long long p = 0; p < k; p++) {
            for (int i = 0; i < rows; i++) {
                const W left = load(a[(row + i) * lda + p]);
                for (int j = 0; j < columns; j++) sums[i][j] += left * load(b[p * ldb + column + j]);
            }
        }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++) c[(row + i) * ldc + column + j] = store(sums[i][j]);
    }
}
"""
)
_CUBLAS_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}  # cudaDataType


class GpuProducts:
    """Multiplies on one GPU. ``enter`` makes the GPU's context current in the calling thread."""

    def __init__(self, launch: Callable[..., None], enter: Callable[[], object]) -> None:
        self._launch, self._enter, self._handle, self._turn = launch, enter, None, Lock()

    def multiply(self, queue: Any, product: TileProduct, c: int, a: int, b: int) -> None:
        """Queue a product of matrices at these addresses. Raises DeviceError where CUDA refuses it."""
        if cublas is not None:
            self._by_cublas(queue, product, c, a, b)
            return
        options = [*kernel_options(product.dtype, RedOp.SUM), f"-DCXL_SIDE={SIDE}"]
        tiles = -(-product.m // SIDE) * -(-product.n // SIDE)
        self._launch(queue, KERNEL, "multiply", options, (c, a, b), product[1:], tiles)

    def _by_cublas(self, queue: Any, product: TileProduct, c: int, a: int, b: int) -> None:
        """Columns first, as cuBLAS counts, these are the transposed matrices: B's comes first then."""
        dtype, m, n, k, lda, ldb, ldc = product
        wide = "64F" if dtype == "f64" else "32F"
        scalars = np.array([1, 0], np.float64 if dtype == "f64" else np.float32)
        one, zero = scalars[:1].ctypes.data, scalars[1:].ctypes.data
        kind, none = _CUBLAS_TYPES[dtype], int(cublas.Operation.N)
        how = int(getattr(cublas.ComputeType, f"COMPUTE_{wide}")), int(cublas.GemmAlgo.DEFAULT)
        self._enter()
        try:
            with self._turn:  # one handle, whose stream is that of the call
                if self._handle is None:
                    self._handle = cublas.create()
                cublas.set_stream(self._handle, int(queue))
                left, right = (b, kind, ldb), (a, kind, lda)
                cublas.gemm_ex(self._handle, none, none, n, m, k, one, *left, *right, zero, c, kind, ldc, *how)
        except (cublas.cuBLASError, RuntimeError) as error:  # the latter: the library is not here
            raise DeviceError(f"cuBLAS returned {error}") from error
