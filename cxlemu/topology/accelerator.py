"""Accelerators: what a rank computes with, from a YAML file whose figures carry their provenance, as a topology's do.

A topology names one of those shipped, in configs/accelerators. cxlemu/cost/gemm.py says how long a GEMM takes on one.
"""

import warnings
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from cxlemu.errors import ArgumentError
from cxlemu.topology.described import Described
from cxlemu.topology.fields import GbytesPerS, Model, Name, Nanoseconds, Size
from cxlemu.topology.provenance import Provenances
from cxlemu.topology.shipped import shipped_accelerators

TflopPerS = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Part = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Rates(Model):
    """Peak rates of dense matrix products by the dtype of their operands; 1 TFLOP/s is 10^12 operations per second."""

    bf16: TflopPerS = Field(description="peak of bf16 products, in TFLOP/s")
    f16: TflopPerS | None = Field(default=None, description="peak of f16 products; absent: as bf16")
    f32: TflopPerS | None = Field(default=None, description="peak of f32 products")
    f64: TflopPerS | None = Field(default=None, description="peak of f64 products")


class Accelerator(Described):
    """One kind of accelerator, from a file.

    Peaks are the vendor's; ``gemm_efficiency`` and ``memory_efficiency`` state the share that is reached.
    """

    noun: ClassVar[str] = "accelerator"

    name: Name = Field(description="the accelerator's name")
    description: Annotated[str, Field(max_length=200)] = Field(default="", description="one line for people")
    multiprocessors: int = Field(ge=1, le=1024, description="number of GEMM tiles computed at once")
    peak_tflop_per_s: Rates = Field(description="peak rate by dtype, in TFLOP/s: bf16 and others")
    gemm_efficiency: Share = Field(description="share of the peak that tiles of 128 x 256 reach")
    half_rate_tile: int = Field(
        ge=1, le=1024, description="rows, as columns, of a tile computed at half the rate of an endless one"
    )
    tile_ns: Nanoseconds = Field(description="time of each tile beside its products, to fill, drain and store, in ns")
    memory_bytes: Size = Field(description="capacity of its memory, for example 80GiB")
    memory_gbytes_per_s: GbytesPerS = Field(description="peak bandwidth of its memory, in GB/s")
    memory_efficiency: Share = Field(description="share of the peak bandwidth that kernels reach")
    held_by_copies: Part = Field(
        default=0.0, description="share of a fused call's copies during which its multiprocessors compute no tile"
    )
    slowed_by_copies: Part = Field(
        default=0.0,
        description="relative slowdown of a fused call's tiles beside copies, which share caches and memory",
    )

    @property
    def standings(self) -> Provenances:
        """The old name of `provenance`."""
        warnings.warn(
            "accelerator.standings is accelerator.provenance now: 0.3.0 removes it", DeprecationWarning, stacklevel=2
        )
        return self.provenance

    def peak_flop_per_s(self, dtype: str) -> float:
        """Return the peak rate of matrix products, in FLOP/s; f16 without a rate of its own has that of bf16."""
        rates = self.peak_tflop_per_s
        rate = getattr(rates, dtype, None) or (rates.bf16 if dtype == "f16" else None)
        if rate is None:
            raise ArgumentError(f"{self.name} has no rate for {dtype}: give peak_tflop_per_s.{dtype}")
        return float(rate * 1e12)

    @property
    def memory_bytes_per_s(self) -> float:
        """The bandwidth of its memory that kernels reach, in bytes/s."""
        return self.memory_gbytes_per_s * 1e9 * self.memory_efficiency

    @classmethod
    def shipped(cls) -> dict[str, Path]:
        """List the accelerators that come with cxlemu, by name."""
        return shipped_accelerators()
