"""What COMPUTE costs in virtual time: the table of a plan's kernels as tiles on an accelerator's multiprocessors.

Every rank has an accelerator of its own. A COMPUTE is so many tiles, each on the first multiprocessor that is free, and
its stream goes on as soon as the last of them has begun: COMPUTEs that follow each other share waves, as the tiles of
one kernel do. RECORD, and whatever else reads what was computed, waits until they are over; so a COMPUTE that needs the
result of another waits for an event between them. What launching kernels takes is in `costs.call_ns`.

All tiles of a rank share its memory: together they take no less than moving their operands, each once.
"""

from __future__ import annotations

import numpy as np

from cxlemu.errors import ArgumentError, PlanError
from cxlemu.gemm import Product, in_company
from cxlemu.plan import DTYPES, Frame, Kernel, Op, RankPart
from cxlemu.plan.instructions import Records
from cxlemu.topology import Accelerator

COST_DTYPE = np.dtype([("tiles", "<i8"), ("tile_ns", "<i8")])  # kernel_cost in virtual/virtual.h
TILES_MAX = 1 << 20  # of one COMPUTE
TILE_NS_MAX = 1 << 40
GEMM = "gemm_"  # and a dtype: the names of kernels that are products, of m, n and k


def kernel_costs(accelerator: Accelerator | None, frame: Frame, part: RankPart) -> Records:
    """A row of COST_DTYPE for each kernel of the frame, where one rank computes what ``part`` says.

    Raises PlanError for kernels that have no cost, ArgumentError where the topology has no accelerator for them.
    """
    if not frame.kernels:
        return np.zeros(0, COST_DTYPE)
    products = [_product(kernel) for kernel in frame.kernels]
    if accelerator is None:
        raise ArgumentError(
            f"{frame.kernels[0].name} needs an accelerator: give the topology one, such as accelerator: a100-sxm"
        )
    records = np.concatenate([stream.records for stream in part.streams])
    records = records[records["op"] == Op.COMPUTE]
    computes = [records[records["arg"] == number] for number in range(len(products))]
    total_flops = sum(len(its) * product.flops for its, product in zip(computes, products, strict=True))
    total_ns = _moved_bytes(products, computes) / accelerator.memory_bytes_per_s * 1e9
    costs = np.zeros(len(products), COST_DTYPE)
    for row, product, its in zip(costs, products, computes, strict=True):
        share_ns = total_ns * len(its) * product.flops / total_flops if len(its) else 0.0
        tiling = in_company(accelerator, product, times=max(len(its), 1), floor_ns=share_ns)
        if tiling.tiles > TILES_MAX or tiling.tile_ns > TILE_NS_MAX:
            raise ArgumentError(
                f"a GEMM of {product.m} x {product.n} x {product.k} in one COMPUTE is too large: cut it into tiles"
            )
        row["tiles"], row["tile_ns"] = tiling.tiles, tiling.tile_ns
    return costs


def _product(kernel: Kernel) -> Product:
    dtype = kernel.name.removeprefix(GEMM)
    if not kernel.name.startswith(GEMM) or dtype not in DTYPES or len(kernel.parameters) < 3:
        raise PlanError(f"the kernel {kernel.name} has no cost in this model")
    m, n, k = kernel.parameters[:3]
    return Product(m, n, k, dtype)


def _moved_bytes(products: list[Product], computes: list[Records]) -> int:
    """Operands and results that the rank's COMPUTEs name, each once: tiles of one row share their rows of A."""
    moved: dict[tuple[int, int, int], int] = {}
    for product, records in zip(products, computes, strict=True):
        sides = {"dst": product.m * product.n, "a": product.m * product.k, "b": product.k * product.n}
        for name, elements in sides.items():
            for place in np.unique(records[name][["kind", "id", "offset"]]).tolist():
                moved[place] = max(moved.get(place, 0), elements * DTYPES[product.dtype].itemsize)
    return sum(moved.values())
