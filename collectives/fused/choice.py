"""An operator of a fused call, and how the call is cut into tiles."""

from dataclasses import dataclass

from collectives.fused.plans import fused_call
from cxlemu.plan import Call


@dataclass(frozen=True, slots=True)
class Operator:
    """A product of A (m x k) and B (k x n), shared by all ranks, and (``kind``, of `KINDS`) what it is fused with."""

    kind: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"

    def __str__(self) -> str:
        return f"{self.kind} {self.m}x{self.n}x{self.k} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a fused call is cut; None stands for the plan's default, see `collectives.fused.plans.fused_call`."""

    comm_tile_rows: int | None = None
    compute_tile: tuple[int, int] | None = None  # rows, columns
    order: str = "shifted"
    transport: str | None = None

    def __str__(self) -> str:
        tile = "x".join(map(str, self.compute_tile)) if self.compute_tile else "default"
        return f"{self.comm_tile_rows or 'default'}, {tile}, {self.order}, {self.transport or 'default'}"


def call_of(operator: Operator, style: str, ranks: int, choice: Tiling) -> Call:
    return fused_call(
        *(operator.kind, style, ranks, operator.m, operator.n, operator.k, operator.dtype),
        comm_tile_rows=choice.comm_tile_rows,
        compute_tile=choice.compute_tile,
        order=choice.order,
        transport=choice.transport,
    )
