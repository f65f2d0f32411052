"""Fused products as a user calls them, on matrices of NumPy or of a device: PyTorch's names where it has them.

c = comm.all_gather_matmul(a, b)        # a: this rank's rows, b: its columns; c: all rows, its columns
c = comm.matmul_reduce_scatter(a, b)    # a: its columns, b: its rows; c: its rows of the sum
c = comm.matmul_all_reduce(a, b)        # the same, all rows
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from collectives.communicator.calls.operations import Outcome
from collectives.communicator.calls.products import Matrix


class Products(ABC):
    """Products of matrices spread over the ranks, fused with their communication.

    ``style`` is "fused", "medium" or "unfused"; ``comm_tile_rows``, ``compute_tile``, ``order`` and ``transport`` are
    those of `collectives.fused.fused_plan`. All ranks take the same, and every product returns ``out``. Results are the
    same bits in every run. Matrices that do not fit or divide raise ArgumentError, and nothing is sent; other
    errors are those of collectives. NumPy's BLAS multiplies tiles and has threads of its own: with a rank a core, set
    OPENBLAS_NUM_THREADS=1 before NumPy is imported. A rank's matrices may all live on a device, which multiplies them
    and rounds in its own way.
    """

    @abstractmethod
    def _product(self, kind: str, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any) -> Outcome:
        """Return the call's result, or an operation (collectives/communicator/verbs/persistent.py)."""

    def all_gather_matmul(
        self, a: Matrix, b: Matrix, out: Matrix | None = None, *, style: str = "fused", **cut: Any
    ) -> Outcome:
        """Multiply all ranks' ``a``, one below the other, by this rank's ``b``.

        Args:
            a: Matrix of shape (m / size, k): this rank's rows.
            b: Matrix of shape (k, n / size) and the dtype of ``a``: this rank's columns.
            out: Matrix of shape (m, n / size) for the result (default: a new one); overlaps neither ``a`` nor ``b``.
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
        """
        return self._product("gemm_all_reduce", a, b, out, style, **cut)
