"""Fused products as a user calls them, on matrices of NumPy or of a device: PyTorch's names where it has them.

c = comm.all_gather_matmul(a, b)        # a: this rank's rows, b: its columns; c: all rows, its columns
c = comm.matmul_reduce_scatter(a, b)    # a: its columns, b: its rows; c: its rows of the sum
c = comm.matmul_all_reduce(a, b)        # the same, all rows
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.communicator.arrays import as_bytes, dtype_name
from collectives.communicator.operations import Outcome
from collectives.fused.plans import fused_call
from collectives.fused.shapes import shapes
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES, Call

Matrix = NDArray[Any]


class BoundProduct(NamedTuple):
    """A call and the bytes of this rank's matrices, 1-D uint8: A, B and the result, which ``out`` is as a matrix."""

    call: Call
    a: Bytes
    b: Bytes
    c: Bytes
    out: Matrix


def bind(kind: str, ranks: int, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any) -> BoundProduct:
    """Check this rank's matrices, and make one for the result where none is given.

    Args:
        kind: "all_gather_gemm", "gemm_reduce_scatter" or "gemm_all_reduce".
        ranks: The communicator's size.
        a: This rank's part of A, a matrix.
        b: This rank's part of B, a matrix of the dtype of ``a``.
        out: The matrix for the result; None: a new one.
        style: "fused", "medium" or "unfused".
        **cut: ``comm_tile_rows``, ``compute_tile``, ``order`` and ``transport`` of `collectives.fused.fused_plan`.

    Raises:
        ArgumentError: A matrix does not fit, or the product cannot be cut so: names what is wrong.
    """
    call = _call(kind, ranks, [("a", a), ("b", b)] + ([] if out is None else [("out", out)]), style, **cut)
    shape = shapes(call).c
    if out is None:
        out = np.empty(shape, DTYPES[call.dtype])
    elif out.shape != shape:
        raise ArgumentError(f"{kind}: out must have shape {shape}, not {out.shape}")
    elif np.may_share_memory(out, a) or np.may_share_memory(out, b):
        raise ArgumentError(f"{kind}: out overlaps a or b, which are needed until the end")
    return BoundProduct(call, as_bytes(a, "a"), as_bytes(b, "b"), as_bytes(out, "out", writeable=True), out)


def result_shape(kind: str, ranks: int, a: Matrix, b: Matrix, style: str, **cut: Any) -> tuple[int, int]:
    """Return the shape of this rank's result; arguments and errors as of `bind`."""
    return shapes(_call(kind, ranks, [("a", a), ("b", b)], style, **cut)).c


def _call(kind: str, ranks: int, given: Sequence[tuple[str, Matrix]], style: str, **cut: Any) -> Call:
    (_, a), (_, b) = given[:2]
    for name, matrix in given:
        if not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
            what = f"shape {matrix.shape}" if isinstance(matrix, np.ndarray) else f"a {type(matrix).__name__}"
            raise ArgumentError(f"{kind}: {name} must be a matrix, a NumPy array of two dimensions, not {what}")
        if matrix.dtype != a.dtype:
            raise ArgumentError(f"{kind}: {name} is {matrix.dtype}, but a is {a.dtype}")
    if a.shape[1] != b.shape[0]:
        raise ArgumentError(f"{kind}: a of shape {a.shape} has other columns than b of shape {b.shape} has rows")
    gathers = kind == "all_gather_gemm"
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    whole = (m * ranks, n * ranks, k) if gathers else (m, n, k * ranks)
    return fused_call(kind, style, ranks, *whole, dtype_name(a, reduces=True), **cut)


class Products(ABC):
    """Products of matrices that are spread over the ranks, fused with the communication that they take.

    ``style`` is "fused", "medium" or "unfused"; ``comm_tile_rows``, ``compute_tile``, ``order`` and ``transport`` are
    those of `collectives.fused.fused_plan`. All ranks take the same. Results are the same bits in every run. Raises
    ArgumentError for matrices that do not fit (nothing is sent), and otherwise what collectives raise. Tiles are
    multiplied by NumPy's BLAS, which has threads of its own: with a rank a core, set OPENBLAS_NUM_THREADS=1 before
    NumPy is imported. A rank's matrices may all live on a device, which multiplies them and rounds in its own way.
    """

    @abstractmethod
    def _product(self, kind: str, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any) -> Outcome:
        """Return the call's result, or an operation (collectives/communicator/persistent.py)."""

    def all_gather_matmul(
        self, a: Matrix, b: Matrix, out: Matrix | None = None, *, style: str = "fused", **cut: Any
    ) -> Outcome:
        """Multiply all ranks' ``a``, one below the other, by this rank's ``b``.

        Args:
            a: Matrix of shape (m / size, k): this rank's rows.
            b: Matrix of shape (k, n / size) and the dtype of ``a``: this rank's columns.
            out: Matrix of shape (m, n / size) for the result (default: a new one); overlaps neither ``a`` nor ``b``.
            style: "fused", "medium" or "unfused".
            **cut: ``comm_tile_rows``, ``compute_tile``, ``order`` and ``transport`` of `collectives.fused.fused_plan`.

        Returns:
            ``out``.

        Raises:
            ArgumentError: The matrices do not fit, or the product cannot be cut so; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        return self._product("all_gather_gemm", a, b, out, style, **cut)

    def matmul_reduce_scatter(
        self, a: Matrix, b: Matrix, out: Matrix | None = None, *, style: str = "fused", **cut: Any
    ) -> Outcome:
        """Sum all ranks' ``a @ b`` in rank order, and give each rank its rows of that.

        Args:
            a: Matrix of shape (m, k / size): this rank's columns.
            b: Matrix of shape (k / size, n) and the dtype of ``a``: this rank's rows.
            out: Matrix of shape (m / size, n) for the result (default: a new one); overlaps neither ``a`` nor ``b``.
            style: "fused", "medium" or "unfused".
            **cut: ``comm_tile_rows``, ``compute_tile``, ``order`` and ``transport`` of `collectives.fused.fused_plan`.

        Returns:
            ``out``.

        Raises:
            ArgumentError: The matrices do not fit, or the product cannot be cut so; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        return self._product("gemm_reduce_scatter", a, b, out, style, **cut)

    def matmul_all_reduce(
        self, a: Matrix, b: Matrix, out: Matrix | None = None, *, style: str = "fused", **cut: Any
    ) -> Outcome:
        """Sum all ranks' ``a @ b`` in rank order, with the same bits on every rank.

        Args:
            a: Matrix of shape (m, k / size): this rank's columns.
            b: Matrix of shape (k / size, n) and the dtype of ``a``: this rank's rows.
            out: Matrix of shape (m, n) for the result (default: a new one); overlaps neither ``a`` nor ``b``.
            style: "fused", "medium" or "unfused".
            **cut: ``comm_tile_rows``, ``compute_tile``, ``order`` and ``transport`` of `collectives.fused.fused_plan`.

        Returns:
            ``out``.

        Raises:
            ArgumentError: The matrices do not fit, or the product cannot be cut so; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        return self._product("gemm_all_reduce", a, b, out, style, **cut)
